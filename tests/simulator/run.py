"""One seed: some lives of a server, the faults that end them, and what must be true after each."""

import asyncio
import gc
import logging
import shutil
import tempfile
from pathlib import Path


from beanlite.clock import utc_clock
from beanlite.config import Settings
from beanlite.errors import BeanliteError
from beanlite.journal.sqlite import journal, mark, migrations, replay, room, writer
from beanlite.journal.sqlite.database import open_database
from beanlite.net.listener import Listener
from beanlite.server import Server, make_journal
from tests.simulator import disk as disks, world as worlds
from tests.simulator.clients import TUBES, Client
from tests.simulator.disk import ERRNO, FaultyDisk
from tests.simulator.habits import live
from tests.simulator.ledger import BrokenPromiseError, Ledger, must
from tests.simulator.memory import Picture, all_jobs, check, difference, take
from tests.simulator.world import SECOND_NS, SimulatedLoop, SimulatedSync, World

ENDS = {"stop": 2, "kill": 3, "kill amid": 3, "power": 3, "power amid": 5, "EIO": 2, "EIO for good": 1}
SYNC_S = (0.00005, 0.0004, 0.003, 0.02)
STEPS_S = (0, 0, 0, 0, 3600, -3600, 86_400, -7)
LONG_S = 100_000
FSYNC = ("always", "always", "always", "50ms", "never")


class _Errors(logging.Handler):
    """What the server logs as an error."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record):
        self.lines.append(f"{record.getMessage()} {getattr(record, 'fields', '')} {record.exc_info or ''}")


ERRORS = _Errors()


def prepare() -> None:
    """Once for all seeds."""
    logging.getLogger("beanlite").handlers[:] = [ERRORS]
    logging.getLogger("beanlite").propagate = False
    logging.getLogger("beanlite").setLevel(logging.ERROR)
    logging.getLogger("asyncio").disabled = True
    # Everything is smaller than in life: what is kept in reserve, and what is read at a time of a file's jobs.
    room.RESERVE_BYTES = 256 << 10  # type: ignore[misc]
    replay._CHUNK, replay._CHUNK_BYTES = 8, 6000
    journal.sched_yield = lambda: None  # type: ignore[attr-defined]
    _remember_models()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "queue.db"
        open_database(file).close()
        EMPTY.append(file.read_bytes())
    gc.freeze()
    gc.disable()


EMPTY: list[bytes] = []
"""The file of a queue in which nothing is: to make one takes long, so only some seeds do."""


class _Model:
    """What a schema is compared with: it is always the same, and takes long to make."""

    def __init__(self, shape) -> None:
        self._shape = shape

    def execute(self, _statement):
        return self._shape

    def close(self):
        pass


def _remember_models() -> None:
    make, made = migrations._model, {}

    def remembered(parts):
        if len(parts) not in made:
            model = make(parts)
            made[len(parts)] = _Model(model.execute(migrations._SHAPE).fetchall())
            model.close()
        return made[len(parts)]

    migrations._model = remembered  # type: ignore[assignment]


class Life:
    """A server from its start to its end."""

    def __init__(self, run: "Run", number: int) -> None:
        self.run = run
        self.number = number
        self.world = run.world
        self.error: BaseException | None = None
        self.recovered = False
        self.orderly = False

    def play(self, end: str, *, last: bool) -> None:
        world = self.world
        world.dead, world.crash_ns = False, 0
        world.loop = loop = SimulatedLoop(world)
        asyncio.set_event_loop(loop)
        try:
            task = loop.create_task(self._play(end, last=last))
            try:
                loop.run_until_complete(task)
            except RuntimeError:
                if not world.dead:
                    raise
            if world.dead:
                self._bury(loop)
        finally:
            world.loop = None
            asyncio.set_event_loop(None)
            loop.close()

    def _bury(self, loop) -> None:
        """The process is gone: what was under way gets no further."""
        loop.set_exception_handler(lambda *_: None)
        for _ in range(20):
            tasks = asyncio.all_tasks(loop)
            if not tasks:
                return
            for task in tasks:
                task.cancel()
            loop.run_until_complete(asyncio.wait(tasks, timeout=30))

    async def _play(self, end: str, *, last: bool) -> None:
        run, world = self.run, self.world
        loop = asyncio.get_running_loop()
        clock = utc_clock()
        listener = Listener([], "nowhere")
        store = make_journal(run.settings, listener, clock)
        server = self.server = Server(run.settings, listener, store, clock)
        self._look_in(store)
        self._arm(end)
        serving = loop.create_task(server.serve())
        serving.add_done_callback(self._ended)
        while not hasattr(server, "_host") and not serving.done():
            await asyncio.sleep(0.0005)
        if not serving.done():
            await self._serve(server, end, last=last)
        if not serving.done():
            server._stopped.set()
        await asyncio.wait({serving})
        self.orderly = self.error is None
        if self.orderly:
            run.pictures[:] = [(0, take(server.engine))]
            run.durable = run.synced = 0
            left = sorted(path.name for path in run.folder.iterdir())
            must(left == ["queue.db"], f"an orderly stop has left {left}")

    def _ended(self, task) -> None:
        self.error = None if task.cancelled() else task.exception()

    def _arm(self, end: str) -> None:
        world = self.world
        chance = world.chance
        if end.endswith("amid"):
            world.disk.die_at(chance.randint(1, chance.choice((40, 150, 400))))
        elif end.startswith("EIO"):
            kinds = chance.choice((disks.CHANGES, 1 << disks.SYNC))
            number = chance.randint(1, 200 if kinds == disks.CHANGES else 50)
            world.disk.fail_at(number, kinds, ERRNO["EIO"], for_good=end == "EIO for good")
        elif end in {"kill", "power"}:
            world.crash_ns = world.now_ns + round(chance.choice((0.01, 0.1, 1, 5)) * chance.random() * SECOND_NS)

    def _look_in(self, journal) -> None:
        """See what a restart finds, and each batch that is committed."""
        run = self.run
        recover, attach, commit = journal.recover, journal.attach, journal.commit

        async def recover_(engine, now_ns, stopped):
            done = await recover(engine, now_ns, stopped)
            if done and not self.world.gone:
                run.found(take(engine), engine, now_ns)
                self.recovered = True
            return done

        def attach_(listener):
            attach(listener)
            durable = journal._listener.durable

            def durable_(batch, last_id):
                if not self.world.gone:
                    run.is_durable(batch)
                durable(batch, last_id)

            class Heard:
                ready = staticmethod(listener.ready)
                failed = staticmethod(listener.failed)

            Heard.durable = staticmethod(durable_)  # type: ignore[attr-defined]
            journal._listener = Heard

        def commit_(changes):
            if not self.world.gone:
                run.pictures.append((changes.batch, take(self.server.engine)))
            commit(changes)

        journal.recover, journal.attach, journal.commit = recover_, attach_, commit_

    async def _serve(self, server, end: str, *, last: bool) -> None:
        world, run = self.world, self.run
        chance = world.chance
        names = [f"{self.number}{letter}" for letter in "abcd"[: chance.randint(1, 4)]]
        clients = [Client(world, run.ledger, name) for name in names]
        turns = chance.randint(2, 14)
        tasks = [asyncio.create_task(live(client, server._new_connection, turns)) for client in clients]
        tasks.append(asyncio.create_task(self._disturb(server)))
        left = set(tasks)
        while left and not server._stopped.is_set():
            done, left = await asyncio.wait(left, timeout=0.5)
            for task in done:
                self._heed(task)
            self._check(server)
        for task in left:
            task.cancel()
        world.disk.room(-1)
        if left or (end != "stop" and not last):
            # It is killed, or has failed, or nothing has happened: then it is to be killed now.
            if not server._stopped.is_set():
                world.crash()
            return
        if last:
            await self._drain(server, clients)

    def _heed(self, task) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            raise error

    def _check(self, server) -> None:
        if server._failure is None:
            check(server.engine)
            self.run.seed_replies = 0

    async def _disturb(self, server) -> None:
        """A full disk, a clock that is set, other settings."""
        world = self.world
        chance = world.chance
        for _ in range(chance.choice((0, 0, 1, 2))):
            await asyncio.sleep(chance.choice((0.001, 0.1, 1)) * chance.random())
            what = chance.choice(("room", "room", "wall", "sync"))
            if what == "room":
                world.disk.room(chance.choice((0, 5_000, 50_000, 600_000)))
                await asyncio.sleep(chance.choice((0.01, 0.5, 4)))
                world.disk.room(-1)
            elif what == "wall":
                world.wall_ns += chance.choice(STEPS_S) * SECOND_NS
            else:
                world.sync_s = chance.choice(SYNC_S)
        del server

    async def _drain(self, server, clients) -> None:
        """Work everything off: it is what there should be, in the order in which it should come."""
        world, run = self.world, self.run
        for client in clients:
            client.wire.vanish()
        await asyncio.sleep(2)
        client = Client(world, run.ledger, f"{self.number}z")
        client.connect(server._new_connection())
        for tube in TUBES:
            client.send(client.plain("watch", tube), client.use_tube(tube), client.plain("pause-tube", tube + b" 0"))
            client.send(client.kick(10_000), client.kick(10_000))  # the buried ones, then the delayed ones
        await client.all_answered(60)
        self._check(server)
        jobs = {job_id: job.pri for job_id, job in all_jobs(server.engine).items()}
        for _ in range(len(jobs) + 1):
            client.send(client.reserve(0))
        await client.all_answered(60)
        must(not client.waits, "a command was never answered")
        due = sorted(jobs, key=lambda job_id: (jobs[job_id], job_id))
        must(client.taken == due, f"{client.taken} came, {due} were due")
        for job_id, job in run.ledger.jobs.items():
            possible = job.outcomes()
            must(job_id in jobs or "absent" in possible, f"job {job_id} is gone, it may be {possible}")
            must(job_id not in jobs or possible != {"absent"}, f"job {job_id} was deleted and is there")
        client.send(*[client.delete(job_id) for job_id in due])
        await client.all_answered(60)
        must(not client.waits and not all_jobs(server.engine), "jobs are left after all were deleted")
        self._check(server)


class Run:
    """All lives of one seed."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.seed = seed
        self.folder = folder
        self.world = World(seed)
        chance = self.world.chance
        if chance.random() < 0.8:
            (folder / "queue.db").write_bytes(EMPTY[0])
        self.world.disk = FaultyDisk(folder)
        self.ledger = Ledger()
        self.fsync = chance.choice(FSYNC)
        small = chance.random() < 0.3
        self.settings = Settings().model_copy(
            update={
                "db": folder / "queue.db",
                "fsync": self.fsync,
                "history": "1h" if chance.random() < 0.3 else None,
                "max_memory": chance.choice((40_000, 60_000, 100_000)) if small else 1 << 30,
                "body_memory": chance.choice((2_000, 20_000)) if chance.random() < 0.3 else None,
            }
        )
        self.pictures: list[tuple[int, Picture]] = [(0, Picture({}, {}))]
        self.durable = self.synced = 0
        self.power = self.orderly = False
        self.story: list[str] = []

    def is_durable(self, batch: int) -> None:
        self.durable = batch
        if self.fsync == "always":
            self.synced = batch
        self.pictures = [each for each in self.pictures if each[0] >= self.synced]

    def found(self, picture: Picture, engine, now_ns: int) -> None:
        """A restart has found this."""
        least = self.synced if self.power else self.durable
        ways = [
            difference(before, picture, now_ns, orderly=self.orderly)
            for batch, before in self.pictures
            if batch >= least
        ]
        why = f"the restart found what never was: {ways[0]}; or {ways[-1]}"
        must(None in ways, why)
        self.ledger.strict = not (self.power and self.fsync != "always")
        self.ledger.compare({job_id: (job.body, job.state.value) for job_id, job in all_jobs(engine).items()})
        check(engine)
        number = engine.ledger.stored_batch
        self.pictures = [(number, picture)]
        self.durable = self.synced = number
        self.power = self.orderly = False

    def play(self) -> None:
        world = self.world
        chance = world.chance
        worlds.enter(world)
        mark._boot_id = lambda: f"boot-{world.boot}"  # type: ignore[assignment]
        writer.background_sync = lambda: SimulatedSync(world)  # type: ignore[assignment]
        ERRORS.lines.clear()
        lives = chance.randint(1, 3)
        try:
            for number in range(lives + 1):
                last = number == lives
                end = "last" if last else chance.choices(list(ENDS), list(ENDS.values()))[0]
                self.story.append(end)
                world.sync_s = chance.choice(SYNC_S)
                life = Life(self, number)
                life.play(end, last=last)
                self._judge(life, end)
                self._between(life, end)
        finally:
            worlds.enter(None)
            world.disk.die()
            disks.opened.close()
            world.disk.close()

    def _judge(self, life: Life, end: str) -> None:
        world = self.world
        if world.broken is not None:
            raise world.broken
        if world.dead:
            return
        error = life.error
        if error is not None and not isinstance(error, BeanliteError):
            raise error
        must(error is None or end.startswith("EIO"), f"the server ended: {error}")
        must(not ERRORS.lines or end.startswith("EIO"), f"the log says {ERRORS.lines}")

    def _between(self, life: Life, end: str) -> None:
        world = self.world
        chance = world.chance
        world.disk.die()
        disks.opened.close()
        ERRORS.lines.clear()
        world.disk.room(-1)
        self.orderly = life.orderly
        if end.startswith("power") or (end.startswith("EIO") and chance.random() < 0.5):
            if self.fsync != "never":
                self.power = True
                self.orderly = False
                world.boot += 1
                world.disk.fail_power(chance)
        world.disk.settle()
        world.now_ns += round(chance.choice((0, 0, 2, 100)) * SECOND_NS)
        world.wall_ns += chance.choice(STEPS_S) * SECOND_NS


def play(seed: int, *, trace: bool = False) -> Run:
    """Play one seed; raises what went wrong."""
    folder = Path(tempfile.mkdtemp(prefix="beanlite-", dir="/dev/shm"))  # noqa: S108 - a disk in memory
    run = Run(seed, folder)
    run.world.trace = trace
    try:
        run.play()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if not seed % 50:
            gc.collect()
    return run


