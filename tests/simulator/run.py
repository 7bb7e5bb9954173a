"""One seed: several lives of a server, how each ends, and what must be true afterwards."""

import gc
import random
import shutil
import tempfile
from pathlib import Path

from beanlite.errors import BeanliteError
from beanlite.settings.config import Settings
from tests.simulator import disk as disks, fit, world as worlds
from tests.simulator.disk import FaultyDisk
from tests.simulator.ledger import Ledger, must
from tests.simulator.life import STEPS_S, SYNC_S, THREAD_S, Life
from tests.simulator.loop import SECOND_NS
from tests.simulator.memory import Picture, all_jobs, check, difference
from tests.simulator.notes import Notes
from tests.simulator.referee import Referee
from tests.simulator.world import World

ENDS = {
    "stop": 2,
    "kill": 3,
    "kill amid": 3,
    "power": 3,
    "power amid": 5,
    "EIO": 2,
    "EIO for good": 1,
    "EIO on reads": 2,
}
# In this part of the seeds operators set policies.
RULED = 0.4
FSYNC = ("always", "always", "always", "50ms", "never")
# With --fsync 50ms, commits older than this have been synced: a sync may already be under way, and each may be slow.
LATE_NS = 5 * SECOND_NS


class Run:
    """All lives of one seed."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.seed = seed
        self.folder = folder
        self.world = World(seed)
        chance = self.world.chance
        if chance.random() < 0.9:
            (folder / "queue.db").write_bytes(fit.EMPTY[0])
        self.world.disk = FaultyDisk(folder)
        self.ledger = Ledger()
        self.notes = Notes(self.ledger)
        if random.Random(f"ruled {seed}").random() < RULED:
            self.world.referee = Referee(seed, self.ledger)
            self.ledger.unique = self.world.referee.unique
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
        self.pictures: list[tuple[int, Picture]] = [(0, Picture({}, {}, {}, {}))]
        self.durable = self.synced = 0
        self.tried_ns = 0
        """The latest clock time of a start since the last picture: that start may have stored the end of delays."""
        self.told: list[tuple[int, int]] = []
        """When each batch of this life was reported durable."""
        self.ended_ns = 0
        self.power = self.orderly = False
        self.story: list[str] = []

    def change_settings(self) -> None:
        """Change the settings that can also be changed while the server runs, but for the bound on memory."""
        chance = self.world.chance
        new = {"history": chance.choice((None, "1h")), "body_memory": chance.choice((None, 2_000, 20_000))}
        self.settings = self.settings.model_copy(update=new)

    def is_durable(self, batch: int) -> None:
        world = self.world
        self.durable = world.committed = batch
        self.synced = batch if self.fsync == "always" else max(self.synced, world.synced)
        self.told.append((world.now_ns, batch))
        self.pictures = [each for each in self.pictures if each[0] >= self.synced]

    def _safe(self) -> int:
        """Return the last batch that a power failure must not have lost."""
        safe = max(self.synced, self.world.synced)
        if self.fsync == "50ms":
            return max([safe, *(batch for told_ns, batch in self.told if told_ns < self.ended_ns - LATE_NS)])
        return safe

    def found(self, picture: Picture, engine, clock) -> None:
        """Check what a restart has recovered, and take it as the state from now on."""
        least = self._safe() if self.power else self.durable
        ways = [
            difference(before, picture, clock.set_ns, self.tried_ns, orderly=self.orderly)
            for batch, before in self.pictures
            if batch >= least
        ]
        why = f"the restart found what never was: {ways[0]}; or {ways[-1]}"
        must(None in ways, why)
        self.ledger.strict = strict = not (self.power and self.fsync != "always")
        self.ledger.compare({job_id: (job.body, job.state.value) for job_id, job in all_jobs(engine).items()})
        self.notes.compare({job_id: seen.note for job_id, seen in picture.jobs.items()}, strict=strict)
        if self.world.referee is not None:
            self.world.referee.begins(engine, clock, strict=strict)
        check(engine)
        self.tried_ns = 0
        number = engine.ledger.stored_batch
        self.pictures = [(number, picture)]
        self.durable = self.synced = self.world.committed = self.world.synced = number
        self.told.clear()
        self.power = self.orderly = False

    def play(self) -> None:
        world = self.world
        chance = world.chance
        fit.enter(world)
        lives = chance.randint(1, 3)
        try:
            for number in range(lives + 1):
                last = number == lives
                end = "last" if last else chance.choices(list(ENDS), list(ENDS.values()))[0]
                self.story.append(end)
                world.sync_s, world.thread_s = chance.choice(SYNC_S), chance.choice(THREAD_S)
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
        may_end = end.startswith("EIO") or (life.cramped and not life.recovered)
        must(error is None or may_end, f"the server ended: {error}")
        if (
            end == "EIO on reads"
        ):  # it is not damage, and must not be reported as damage, which an operator would salvage or restore
            must(
                "damaged" not in f"{error} {fit.ERRORS.lines}",
                f"a disk that can't be read is told: {error} {fit.ERRORS.lines}",
            )
        must(not fit.ERRORS.lines or may_end, f"the log says {fit.ERRORS.lines}")

    def _between(self, life: Life, end: str) -> None:
        world = self.world
        chance = world.chance
        world.disk.die()
        disks.opened.close()
        fit.ERRORS.lines.clear()
        world.disk.room(-1)
        self.orderly = life.orderly
        if life.recovered:
            self.ended_ns = world.ended_ns
        fails = end.startswith("power") or (end.startswith("EIO") and chance.random() < 0.5)
        if fails and self.fsync != "never":  # which promises nothing after a power failure
            self.power = True
            self.orderly = False
            world.boot += 1
            world.disk.fail_power(chance)
        world.disk.settle()
        world.now_ns += round(chance.choice((0, 0, 2, 100)) * SECOND_NS)
        world.wall_ns += chance.choice(STEPS_S) * SECOND_NS


def play(seed: int, *, trace: bool = False) -> Run:
    """Play one seed; raise an exception if anything went wrong."""
    folder = Path(tempfile.mkdtemp(prefix="beanlite-", dir="/dev/shm"))
    run = Run(seed, folder)
    run.world.trace = trace
    try:
        run.play()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if not seed % 20:  # often enough that what it frees is still in the caches
            gc.collect()
    return run
