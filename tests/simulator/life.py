"""One life of a server: its start, its clients and faults, and its end."""

import asyncio
import sqlite3
from contextlib import suppress
from typing import TYPE_CHECKING

from beanlite.host.clock import Clock
from beanlite.net.listener import Listener
from beanlite.server.server import Server
from beanlite.server.start import make_journal
from tests.faults.forker import CHANGES
from tests.simulator.clients import Client
from tests.simulator.disk import EIO, READ, SYNC, beside
from tests.simulator.habits import live, mix
from tests.simulator.ledger import must
from tests.simulator.loop import SECOND_NS, SimulatedLoop
from tests.simulator.memory import Late, all_jobs, check, take, take_stopped
from tests.simulator.operators import mix_with_policies, set_policies, unset_all

if TYPE_CHECKING:
    from tests.simulator.run import Run

SYNC_S = (0.00005, 0.0004, 0.003, 0.02)
THREAD_S = (0.0005, 0.0005, 0.02, 0.3, 1.0)
# Statements that another program may run on the file.
HANDS = ("BEGIN", "BEGIN IMMEDIATE", "PRAGMA wal_checkpoint(PASSIVE)", "PRAGMA wal_checkpoint(TRUNCATE)", "VACUUM")
STEPS_S = (0, 0, 0, 0, 3600, -3600, 86_400, -7)


class _NotedClock(Clock):
    """Remembers the time that it was last set to."""

    __slots__ = ("set_ns",)

    def set(self, now_ns):
        super().set(now_ns)
        self.set_ns = now_ns


class Life:
    """A server from its start to its end."""

    def __init__(self, run: "Run", number: int) -> None:
        self.run = run
        self.number = number
        self.world = world = run.world
        self.error: BaseException | None = None
        self.recovered = False
        self.orderly = False
        self.cramped = world.chance.random() < 0.1
        """Whether the disk has little room at the start, perhaps too little for the server to start."""

    def play(self, end: str, *, last: bool) -> None:
        world = self.world
        world.dead, world.crash_ns, world.ended_ns = False, 0, 0
        world.committed = world.synced  # this life's syncs do not make good what the previous life left unsynced
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
        """Cancel all tasks: the process is gone, and nothing that was under way gets any further."""
        loop.set_exception_handler(lambda *_: None)
        for _ in range(20):
            tasks = asyncio.all_tasks(loop)
            if not tasks:
                return
            for task in tasks:
                task.cancel()
            loop.run_until_complete(asyncio.wait(tasks, timeout=30))

    async def _play(self, end: str, *, last: bool) -> None:
        run = self.run
        loop = asyncio.get_running_loop()
        clock = _NotedClock()
        listener = Listener([], "nowhere")
        store = make_journal(run.settings, listener, clock)
        server = self.server = Server(run.settings, listener, store, clock, lambda: run.settings)
        self._look_in(store)
        self._arm(end)
        if self.cramped:
            limit = self.world.disk.quota if run.seed % 2 else self.world.disk.room
            limit(self.world.chance.choice((0, 3_000, 40_000, 300_000)))
        serving = loop.create_task(server.serve())
        serving.add_done_callback(self._ended)
        while not server.wiring and not serving.done():
            await asyncio.sleep(0.0005)
        if not serving.done():
            await self._serve(server, end, last=last)
        if not serving.done():
            self.world.thread_s = THREAD_S[0]  # a stop gives the last batch a limited time
            server._stopped.set()
        await asyncio.wait({serving})
        self.orderly = self.error is None
        if self.orderly:
            late = Late(set(), set()) if self.world.referee is None else self.world.referee.late
            run.pictures[:] = [(0, each) for each in take_stopped(server.parts.engine, run.pictures[-1][1], late)]
            run.durable = run.synced = self.world.synced = 0
            run.told.clear()
            left = sorted(path.name for path in run.folder.iterdir())
            must(left == ["queue.db"], f"an orderly stop has left {left}")

    def _ended(self, task) -> None:
        self.world.ended_ns = self.world.ended_ns or self.world.now_ns
        self.error = None if task.cancelled() else task.exception()

    def _arm(self, end: str) -> None:
        world = self.world
        chance = world.chance
        if end.endswith("amid"):
            world.disk.die_at(chance.randint(1, chance.choice((40, 150, 400))))
        elif end == "EIO on reads":
            number = chance.randint(1, chance.choice((20, 100, 300)))
            world.disk.fail_at(number, 1 << READ, EIO, for_good=chance.random() < 0.5)
        elif end.startswith("EIO"):
            kinds = chance.choice((CHANGES, 1 << SYNC))
            number = chance.randint(1, 200 if kinds == CHANGES else 50)
            world.disk.fail_at(number, kinds, EIO, for_good=end == "EIO for good")
        elif end in {"kill", "power"}:
            world.crash_ns = world.now_ns + round(chance.choice((0.01, 0.1, 1, 5)) * chance.random() * SECOND_NS)

    def _look_in(self, journal) -> None:
        """Observe what the journal recovers, and each batch that is committed."""
        run = self.run
        recover, attach, commit = journal.recover, journal.attach, journal.commit

        async def recover_(engine, clock, stopped):
            done = await recover(engine, clock, stopped)
            run.tried_ns = max(run.tried_ns, clock.set_ns)
            if done and not self.world.gone:
                run.found(take(engine), engine, clock)
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
                last = None if self.world.referee is None else run.pictures[-1][1]
                run.pictures.append((changes.batch, take(self.server.parts.engine, last, changes.jobs)))
            commit(changes)

        journal.recover, journal.attach, journal.commit = recover_, attach_, commit_

    async def _serve(self, server, end: str, *, last: bool) -> None:
        world, run = self.world, self.run
        chance = world.chance
        if self.cramped:
            server.loop.call_later(chance.choice((0.01, 2)), world.disk.room, -1)
        names = [f"{self.number}{letter}" for letter in "abcd"[: chance.randint(1, 4)]]
        clients = [Client(world, run.ledger, run.notes, name) for name in names]
        turns, mixed = chance.randint(2, 14), mix(chance)
        if world.referee is not None:
            turns, mixed = 2 * turns, mix_with_policies(world.referee, mixed)
        tasks = [asyncio.create_task(live(client, server.wiring.new_connection, turns, mixed)) for client in clients]
        tasks.append(asyncio.create_task(self._disturb(server)))
        if world.referee is not None:
            operator = Client(world, run.ledger, run.notes, f"{self.number}p")
            tasks.append(asyncio.create_task(set_policies(operator, server.wiring.new_connection, world.referee)))
        left = set(tasks)
        while left and not server._stopped.is_set():
            done, left = await asyncio.wait(left, timeout=1)
            for task in done:
                self._heed(task)
            self._check(server)
        for task in left:
            task.cancel()
        world.disk.room(-1)
        if left or (end != "stop" and not last):
            # The server has been killed or has failed; or nothing has happened to it yet, and it is killed here.
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
            check(server.parts.engine)
            if self.world.referee is not None:
                self.world.referee.check(server.parts.engine)

    async def _disturb(self, server) -> None:
        """Fill the disk or a quota, set the clock, use the file from another connection, slow down syncs, or signal.

        The signals have the settings read again, or begin drain mode.
        """
        world = self.world
        chance = world.chance
        for _ in range(chance.choice((0, 0, 1, 2))):
            await asyncio.sleep(chance.choice((0.001, 0.1, 1)) * chance.random())
            what = chance.choice(("room", "quota", "wall", "sync", "hand", "reload", "reload", "drain"))
            if what in {"room", "quota"}:
                limit = world.disk.room if what == "room" else world.disk.quota
                limit(chance.choice((0, 5_000, 50_000, 600_000)))
                await asyncio.sleep(chance.choice((0.01, 0.5, 4)))
                world.disk.room(-1)
            elif what == "wall":
                world.wall_ns += chance.choice(STEPS_S) * SECOND_NS
            elif what == "hand":
                with suppress(sqlite3.Error), beside(self.run.settings.db) as hand:
                    hand.execute(chance.choice(HANDS)).fetchall()
                    hand.execute("SELECT count(*) FROM jobs").fetchall()
                    await asyncio.sleep(chance.choice((0.01, 0.5, 4)))
            elif what == "reload":
                self.run.change_settings()
                server._reloads.want(stands_by=False)
            elif what == "drain":
                server._drain()
            else:
                world.sync_s = chance.choice(SYNC_S)

    async def _drain(self, server, clients) -> None:
        """Work the queue off, checking that it has the right jobs, and gives them out in the right order."""
        world, run = self.world, self.run
        chance = world.chance
        slow_s = 30 * max(world.thread_s, 0.1)
        world.slow, world.thread_s = False, THREAD_S[0]  # or the shortest ttrs would expire amid the replies
        for client in clients:
            client.wire.vanish()
        await asyncio.sleep(slow_s)  # what the journal's thread, or a sync, was slow with is over
        client = Client(world, run.ledger, run.notes, f"{self.number}z")
        client.connect(server.wiring.new_connection())
        if world.referee is not None:
            await unset_all(client, world.referee)
        for tube in client.tubes:
            client.send(client.plain("watch", tube), client.use_tube(tube), client.plain("pause-tube", tube + b" 0"))
            client.send(client.kick(10_000), client.kick(10_000))  # the buried ones, then the delayed ones
        await client.all_answered(60)
        self._check(server)
        jobs = {job_id: job.pri for job_id, job in all_jobs(server.parts.engine).items()}
        at_once = chance.choice((1, 1, 7))
        for _ in range(len(jobs) // at_once + 2):
            client.send(client.reserve(0) if at_once == 1 else client.reserve_several(at_once, 0))
        await client.all_answered(60)
        must(not client.waits, "a command was never answered")
        due = sorted(jobs, key=lambda job_id: (jobs[job_id], job_id))
        must(client.taken == due, f"{client.taken} came, {due} were due")
        for job_id, job in run.ledger.jobs.items():
            possible = run.ledger.outcomes(job)
            must(job_id in jobs or "absent" in possible, f"job {job_id} is gone, it may be {possible}")
            must(job_id not in jobs or possible != {"absent"}, f"job {job_id} was deleted and is there")
        client.send(*[client.delete(job_id) for job_id in due])
        await client.all_answered(60)
        must(not client.waits and not all_jobs(server.parts.engine), "jobs are left after all were deleted")
        self._check(server)
