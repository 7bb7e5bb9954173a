"""A session goes on after a restart with the state that the model says, whenever and however it was stopped.

The core and the journal with its real file, in this process: an orderly stop writes and closes as the server does, a
kill goes on with a copy of the files as they are at that moment. That a real kill is no worse, the last test shows.

::

    RESTART_STEPS=100000 python -m pytest tests/test_restart.py     # a long one
    RESTART_SEED=4711 python -m pytest tests/test_restart.py        # the same as the one that had this seed
"""

import asyncio
import itertools
import os
import random
import re
import shutil
import time
from contextlib import ExitStack
from dataclasses import replace

import pytest

from beanlite.config import Settings
from beanlite.journal.writer import to_batch
from beanlite.server import Server
from beanlite.stats import job_stats
from tests.core import Core
from tests.model import SECOND_NS, Model
from tests.servers import start_beanlite
from tests.sessions import COMMANDS, MAX_JOB_SIZE, PRIS, Chance, Twins, difference, shrink
from tests.wire import Wire

STEPS = int(os.environ.get("RESTART_STEPS", "3000"))
SEED = int(os.environ.get("RESTART_SEED", str(random.randrange(1 << 32))))

STEP_NS = SECOND_NS // 512  # the file has its times as floating-point seconds, which can hold these exactly
DOWN_NS = (0, STEP_NS, SECOND_NS, 5 * SECOND_NS, 3600 * SECOND_NS)
PROMISES = (b"INSERTED", b"DELETED", b"RELEASED", b"BURIED", b"KICKED", b"PAUSED")


class Stored:
    """What may be in the file.

    A job is there as it was when something of it was last acknowledged, or as it has been since: reservations, touches,
    and the ends of ttrs and delays come later.
    """

    def __init__(self):
        self.versions = {}
        self.last_id = 0
        self.pauses = {}

    def store(self, model, *, everything):
        """A batch has been stored, what lags included or perhaps not."""
        before, self.versions = self.versions, {}
        for job in model.snapshot():
            keep = [] if everything or job.id in model.promised else before[job.id]
            self.versions[job.id] = [*keep, job]
        self.last_id = model.last_id
        self.pauses = model.pauses()
        model.promised.clear()

    def restart(self, model, is_this):
        """Start the model again with those versions that the server shows. ``is_this`` compares its stats-job."""
        jobs = []
        for versions in self.versions.values():
            restored = [model.restored(version) for version in versions]
            jobs.append(next((job for job in restored if is_this(job.id, model.stats_of(job))), None))
            assert jobs[-1] is not None, f"none of {[model.stats_of(job) for job in restored]}"
        model.restart(jobs, self.last_id, self.pauses)


class WithJournal(Twins):
    """The core with its journal: what it promises is true when the next batch is stored."""

    def __init__(self, directory):
        super().__init__()
        self._directories = (directory / str(number) for number in itertools.count())
        self._runner = asyncio.Runner()
        self._stored = Stored()
        self._path = next(self._directories) / "queue.db"
        self._path.parent.mkdir(parents=True)
        self._recover()

    def __exit__(self, *_error):
        self._runner.run(self._journal.close())
        self._runner.close()

    def compare(self):
        for session, client in self.pairs:
            for reply in client.replies:
                word, *rest = reply.split()
                unstored = word in {b"RESERVED", b"FOUND"} and int(rest[0]) not in self._stored.versions
                assert session.waits or not (unstored or word in PROMISES), f"{reply} does not wait for the journal"
        super().compare()

    def _store(self, lagging):
        changes = self.core.engine.take_changes(lagging=lagging)
        if changes.jobs or changes.pauses or self.model.promised:
            self._journal.write(to_batch(changes))
            self.core.engine.stored_batch = changes.batch
        self._stored.store(self.model, everything=lagging)

    def _checkpoint(self):
        self._runner.run(self._journal.checkpoint())

    def _stop(self, down_ns):
        self._store(lagging=True)
        self._runner.run(self._journal.close())
        self._restart(down_ns)

    def _kill(self, down_ns):
        before, self._path = self._path, next(self._directories) / "queue.db"
        self._path.parent.mkdir()
        for end in ("", "-wal"):
            shutil.copy(f"{before}{end}", f"{self._path}{end}")
        self._runner.run(self._journal.close())
        self._restart(down_ns)

    def _restart(self, down_ns):
        now_ns = self.core.now_ns + down_ns
        self.core = Core(MAX_JOB_SIZE)
        self.core.now_ns = self.model.now_ns = now_ns
        self._recover()
        engine = self.core.engine
        assert engine.jobs.keys() == self._stored.versions.keys()

        def is_this(job_id, said):
            return said.endswith(job_stats(engine.jobs[job_id], now_ns, journaled=True) + b"\r\n")

        self._stored.restart(self.model, is_this)
        self.pairs = []
        self.core.wait(0)  # as the server does when it starts
        self._stored.store(self.model, everything=False)

    def _recover(self):
        server = Server(Settings(db=self._path), None)
        server._clock = lambda: self.core.now_ns
        self._runner.run(server._recover())
        self.core.engine = self.core.service.engine = server.engine
        self._journal = server._journal


def session(seed, length, directory):
    """Play a random session; returns its actions, and what went wrong at the last one."""
    rng = random.Random(seed)
    chance = Chance(rng, step_ns=STEP_NS)
    stored_share = rng.choice((1, 0.3, 0.1))
    actions = []

    def play(*action):
        actions.append(action)
        twins.play(action)

    try:
        with WithJournal(directory) as twins:
            for _ in range(length):
                play(*chance.action(twins.model))
                if rng.random() < stored_share:
                    play("store", rng.random() < 0.3)
                if rng.random() < 0.01:
                    play("checkpoint")
                if rng.random() < 0.02:
                    play(rng.choice(("kill", "stop")), rng.choice(DOWN_NS))
            play("kill", 0)
            twins.compare_all()
    except Exception as error:  # noqa: BLE001 - whatever it is
        return actions, error
    return actions, None


def test_a_restart_at_any_step(tmp_path, record_property):
    rng = random.Random(SEED)
    directories = (tmp_path / str(number) for number in itertools.count())
    left = STEPS
    while left > 0:
        length = min(left, rng.choice((50, 200, 1000)))
        actions, error = session(rng.getrandbits(64), length, next(directories))
        if error is not None:

            def fails(fewer):
                return difference(fewer, lambda: WithJournal(next(directories)))

            least = shrink(actions, fails)
            told = "\n".join(map(str, least))
            raise AssertionError(f"RESTART_SEED={SEED}; the least of it:\n{told}\n{fails(least)}") from error
        left -= length
    record_property("restart steps", STEPS)
    record_property("RESTART_SEED", SEED)


# -- a real server


UNTIMED = {
    name: COMMANDS[name]
    for name in "put reserve-job delete release bury touch kick kick-job pause-tube use watch ignore peek".split()
} | {"reserve-with-timeout": 20}


def masked(reply):
    """Without the figures that change as time passes."""
    return re.sub(rb"OK \d+|(age|time-left): \d+", b"", reply)


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_real_restart(tmp_path, how):
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")  # noqa: T201 - shown if it fails
    rng = random.Random(seed)
    chance = Chance(rng, UNTIMED, seconds=(10_000, 20_000))
    model = Model(time.time_ns(), 65535)
    stored = Stored()
    for _ in range(3):
        with start_beanlite(tmp_path) as server, ExitStack() as stack:
            ...
