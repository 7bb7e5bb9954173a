"""Restarts amid random sessions: the core on the real journal goes on with the state of the naive model.

::

    RESTART_STEPS=100000 python -m pytest tests/server/test_restart.py  # a long run
    RESTART_SEED=4711 python -m pytest tests/server/test_restart.py     # repeats the run with this seed

Every batch that was taken from the core and written has to be there after a crash, exactly as it was when it was taken;
later changes must not be. In half of the steps there is a history, which has to agree with each job.
test_restart_server plays a twentieth of the steps to a real server.
"""

import asyncio
import os
import random
import shutil
from collections import Counter
from functools import partial
from itertools import count
from typing import NamedTuple

import pytest

from beanlite.core.engine import Engine
from beanlite.journal.event_rows import HistoryBounds
from beanlite.journal.sqlite.file.fileformat import wal_of
from beanlite.journal.sqlite.served.batch import batch_of
from beanlite.journal.sqlite.served.journal import SqliteJournal
from beanlite.journal.sqlite.served.writer import IDS_AHEAD
from tests.support.journal_files import NO_HISTORY, make
from tests.support.model_policies import SECOND_NS, Policies
from tests.support.model_queues import Job
from tests.support.ruled_sessions import RULED, VALUES, RuledChance
from tests.support.sessions import (
    ACTIONS,
    CLIENTS_MAX,
    COMMANDS,
    MAX_JOB_SIZE,
    SECONDS,
    Twins,
    explore,
    weighted,
)

STEPS = int(os.environ.get("RESTART_STEPS", "5000"))
SEED = int(os.environ.get("RESTART_SEED", str(random.randrange(1 << 32))))

# The file has seconds as floating-point numbers, which hold these fractions exactly, so nothing is rounded.
STEP_NS = SECOND_NS // 512
KINDS = weighted({"session": 120, "take": 20, "take all": 10, "write": 30, "checkpoint": 1, "crash": 3, "stop": 2})
# The same for times that follow from policies; those of retries are scattered. A put that repeats a job has what is
# deferred of that written sooner, which the model does not know.
EXACT_VALUES = {key: texts for key, texts in VALUES.items() if key not in {"retry", "unique"}} | {
    "rate": ("1/s", "4/s", "2/h", "off")
}

# Commands that leave much for a restart to keep.
LASTING_COMMANDS = [*COMMANDS, *weighted({"pause-tube": 10, "bury": 10, "reserve-job": 5, "use": 5})]
LONG_SECONDS = (0, 3600, 100_000)


HISTORY = HistoryBounds(1 << 40, 1 << 30, bodies=False)  # for ever: here it is the year 2000
STATES = {"bury": "buried", "delete": None} | dict.fromkeys(("reserve", "touch"), "reserved")
"""The state of a job after these events; after any other it is ready, or delayed if the event has a delay."""
COUNTED = ("reserve", "ttr over", "release", "bury", "kick")


class Stored(NamedTuple):
    """The contents of a file, in the model's terms."""

    jobs: dict[int, Job]
    last_id: int
    pauses: dict[bytes, tuple[int, int]]
    policies: dict[tuple[bytes, str], str]


class RestartedTwins(Twins):
    """Twins of which the core has a journal, and which can be started again."""

    def __init__(self, runner, directory, empty, *, history):
        super().__init__()
        self.runner = runner
        self.history = history
        self.directory = directory
        directory.mkdir()
        self.files = (directory / f"{number}.db" for number in count())
        self.path = next(self.files)
        shutil.copy(empty, self.path)
        self.stored = self.taken = Stored({}, 0, {}, {})
        self.batch = None
        """A batch that was taken but not yet written."""
        self._recover()

    def __exit__(self, *_error):
        self.runner.run(self.journal.close())
        shutil.rmtree(self.directory)

    # -- the journal

    def _take(self, lagging):
        """Take a batch; changes that were not promised to a client are included only if ``lagging``."""
        if self.batch is not None:
            return
        self.batch = batch_of(self.core.engine.take_changes(deferred=lagging), self.journal.chronicle.history)
        model = self.model
        now = {job.id: job for job in model.snapshot()}
        if lagging:
            jobs = now
        else:
            jobs = {job_id: job for job_id, job in self.taken.jobs.items() if job_id not in model.promised}
            jobs |= {job_id: job for job_id, job in now.items() if job_id in model.promised}
        self.taken = Stored(jobs, model.last_id, model.pauses(), dict(model.policies.rows))
        model.promised.clear()

    def _write(self):
        if self.batch is not None:
            self.journal.write(self.batch)
            self.core.engine.stored(self.batch.number, self.batch.last_id)
            self.batch, self.stored = None, self.taken

    def _checkpoint(self):
        self.runner.run(self.journal.checkpoint())

    # -- the end, and the restart

    def _crash(self, down_ns):
        """Crash: only the files are left, as they are."""
        path = next(self.files)
        shutil.copy(self.path, path)
        shutil.copy(wal_of(self.path), wal_of(path))
        self.runner.run(self.journal.close())
        self.path = path
        self._restart(down_ns, IDS_AHEAD)

    def _stop(self, down_ns):
        """Stop as the server does: everything is written, clients leave, and then the jobs they held are written."""
        self._write()
        self._take(lagging=True)
        self._write()
        engine = self.core.engine
        engine.begin_stop()
        for session, _ in self.pairs:
            engine.clients.stop_waiting(session.client)
        for session, _ in self.pairs:
            self.core.close(session)
        self.journal.write(batch_of(engine.take_changes(deferred=True), self.journal.chronicle.history))
        self.runner.run(self.journal.close())
        back = {job_id: self.model.restored(job) for job_id, job in self.stored.jobs.items()}
        self.stored = self.stored._replace(jobs=back)  # now, and not at the start
        self._restart(down_ns, 0)

    def _restart(self, down_ns, ids_left_out):
        self.batch, self.taken = None, self.stored
        self.pairs.clear()
        self.core.now_ns += down_ns
        self.model.now_ns += down_ns
        self._recover()
        last_id = self.core.engine.last_id
        assert 0 <= last_id - self.stored.last_id <= ids_left_out
        jobs, _, pauses, policies = self.stored
        self.model.policies = Policies(policies)
        self.model.restart([self.model.restored(job) for job in jobs.values()], last_id, pauses)
        self.model.wait(0)  # some jobs may have become too old meanwhile
        if self.history:  # changes made by the start are written at once
            jobs = {job.id: job for job in self.model.snapshot()}
            self.stored = self.taken = self.stored._replace(jobs=jobs, last_id=last_id)
            self._compare_history()
        self._look()

    def _compare_history(self):
        """Check that the last event of each job shows its state, and that its counters are the numbers of events."""
        last, counts = {}, Counter()
        of_jobs = "SELECT job, what, delay_s, pri FROM history WHERE job > 0"  # the other events are pauses
        for job_id, what, delay_s, pri in self.journal._db.execute(of_jobs):
            last[job_id] = STATES.get(what, "delayed" if delay_s else "ready"), pri
            counts[job_id, what] += 1
        told = {
            job_id: (*state, *(counts[job_id, what] for what in COUNTED))
            for job_id, state in last.items()
            if state[0] is not None
        }
        assert told == {
            job.id: (job.state, job.pri, job.reserves, job.timeouts, job.releases, job.buries, job.kicks)
            for job in self.model.jobs
        }

    def _recover(self):
        """Make a new engine, and recover the file into it with the server's own code."""
        engine = Engine()
        engine.ledger.recording = self.history
        bounds = HISTORY if self.history else NO_HISTORY
        journal = SqliteJournal(self.path, "always", 0, MAX_JOB_SIZE, "unix:socket", bounds)
        self.runner.run(journal.recover(engine, self.core.clock(), asyncio.Event()))
        self.runner.run(journal._bodies.close())
        self.journal = journal._writer
        self.core.start(engine, MAX_JOB_SIZE)
        self.core.wait(0)

    def _look(self):
        """Compare everything that can be seen without changing anything."""
        tubes = [b"stats-tube " + tube.name for tube in self.model.tubes]
        jobs = [what + b" %d" % job.id for job in self.model.jobs for what in (b"stats-job", b"peek")]
        for line in (b"stats", b"list-tubes", *tubes, *jobs):
            self.ask(line)


def think(rng, twins):
    chance = RuledChance(rng, LASTING_COMMANDS, rng.choice((SECONDS, LONG_SECONDS)), STEP_NS)
    chance.values_of = EXACT_VALUES
    # The history tells of what clients and operators did, and not of all that followed from that by policies.
    actions = ACTIONS if twins.history else (*ACTIONS, *RULED)
    while True:
        kind = rng.choice(KINDS)
        if kind == "session":
            yield chance.ruled_action(twins.model, actions)
        elif kind in {"take", "take all"}:
            yield ("take", kind == "take all")
        elif kind in {"crash", "stop"}:
            yield (kind, rng.choice((0, 0, chance._wait_ns(twins.model))))
            yield from [("connect",)] * rng.randrange(1, CLIENTS_MAX)
        else:
            yield (kind,)


@pytest.mark.parametrize("history", [False, True], ids=["without history", "with history"])
def test_random_sessions(tmp_path, record_property, history):
    empty = tmp_path / "empty.db"
    make(empty)
    with asyncio.Runner() as runner:
        explore(SEED, STEPS // 2, partial(RestartedTwins, runner, tmp_path / "files", empty, history=history), think)
    record_property("restart steps", (STEPS // 2, f"RESTART_SEED={SEED}"))
