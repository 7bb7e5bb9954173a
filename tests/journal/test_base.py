"""The contract between the group commit and any journal; one of those tested is written from the docstrings alone."""

import asyncio
import contextlib
import errno
import sqlite3
from collections import deque

import pytest

from beanlite.commit.group import GroupCommit
from beanlite.errors import JournalFailed
from beanlite.journal.sqlite.served.journal import SqliteJournal
from beanlite.journal.volatile import MemoryJournal
from tests.support.core import Core, put
from tests.support.inside import abandon
from tests.support.journal_files import NO_HISTORY
from tests.support.simulated import FakeJournal

IN_FLIGHT_MAX = 3
TURNS = 20


async def turns():
    """Let the loop turn as often as a batch needs if nothing holds it up."""
    for _ in range(TURNS):
        await asyncio.sleep(0)


class ReplicatedJournal(FakeJournal):
    """Sends each batch to another machine, which answers later; another server may take over at any time."""

    def __init__(self, replica):
        self._replica = replica
        self._in_flight = deque()
        self._loop = self._listener = None

    @property
    def busy(self):
        return len(self._in_flight) >= IN_FLIGHT_MAX

    async def recover(self, engine, _now_ns, stopped):
        if stopped.is_set():
            return False
        engine.recovered(self._replica.last_id, self._replica.batch)
        return True

    def attach(self, listener):
        self._loop = asyncio.get_running_loop()
        self._listener = listener

    def commit(self, changes):
        self._in_flight.append((changes.batch, changes.last_id, {job.id for job in changes.jobs}))
        if self._replica.reachable:
            self._loop.call_soon(self.answer)
        if not self.busy:
            self._listener.ready()

    def answer(self, batches=1):
        """Have the other machine take this many batches, and acknowledge them together."""
        taken = [self._in_flight.popleft() for _ in range(min(batches, len(self._in_flight)))]
        for self._replica.batch, self._replica.last_id, jobs in taken:
            self._replica.stored |= jobs
        if taken:
            self._listener.durable(self._replica.batch, self._replica.last_id)
            self._listener.ready()

    def lose_the_right(self):
        self._in_flight.clear()
        self._listener.failed(JournalFailed("another server has taken over"))


class Memory:
    """No medium, and so no failures."""

    def open(self):
        return MemoryJournal()

    def hold_up(self):
        pass

    def go_through(self, journal):
        pass


class Sqlite:
    """A file on a disk whose syncs the test controls."""

    def __init__(self, path, disk):
        self._path = path
        self._disk = disk

    def open(self):
        return SqliteJournal(self._path, "always", 0, 65535, "unix:socket", NO_HISTORY)

    def hold_up(self):
        self._disk.free.clear()

    def go_through(self, _journal):
        self._disk.free.set()

    def fail(self, _journal):
        self._disk.error = errno.EIO
        self._disk.free.set()

    def jobs(self):
        with contextlib.closing(sqlite3.connect(self._path)) as reader:
            return {job_id for (job_id,) in reader.execute("SELECT id FROM jobs")}


class Replicated:
    """Another machine, which can be out of reach."""

    def __init__(self):
        self.reachable = True
        self.batch = self.last_id = 0
        self.stored = set()

    def jobs(self):
        return self.stored

    def open(self):
        return ReplicatedJournal(self)

    def hold_up(self):
        self.reachable = False

    def go_through(self, journal):
        self.reachable = True
        journal.answer(IN_FLIGHT_MAX)

    def fail(self, journal):
        journal.lose_the_right()


@pytest.fixture(params=["memory", "sqlite", "replicated"])
def medium(request, tmp_path, disk):
    """The medium that the journal writes to."""
    return {"memory": Memory, "sqlite": lambda: Sqlite(tmp_path / "q.db", disk), "replicated": Replicated}[
        request.param
    ]()


class Serving:
    """An engine and the group commit on a journal, and a connection that notes the replies that are released."""

    def __init__(self, medium):
        self.medium = medium
        self.journal = medium.open()
        self.core = Core()
        self.client = self.core.client()
        self.released, self.failures = [], []
        self.unstored = set()
        """Jobs whose replies were released although the medium did not have them."""

    async def start(self):
        assert await self.journal.recover(self.core.engine, self.core.clock(), asyncio.Event())
        self.group = GroupCommit(
            asyncio.get_running_loop(),
            self.core.engine,
            self.journal,
            tell_failure=self.failures.append,
            tell_room=lambda: None,
            tell_events=lambda _: None,
            clock=self._now,
        )
        return self

    def _now(self):
        self.core.now_ns += 10_000  # time passes while the group commit waits for clients
        return self.core.now_ns

    async def put(self, body=b"job"):
        job_id = put(self.core, self.client, body=body)
        self.group.hold(self, b"%d" % job_id)
        await turns()
        return job_id

    def release(self, replies):
        job_id = int(replies)
        self.released.append(job_id)
        if self.journal.facts().keeps_jobs:
            self.unstored |= {job_id} - self.medium.jobs()

    async def stop(self):
        await self.group.flush()
        assert await self.journal.close() is None


@pytest.fixture
async def serving(medium):
    serving = await Serving(medium).start()
    yield serving
    if serving.failures:  # the process would end here
        if isinstance(serving.journal, SqliteJournal):
            await abandon(serving.journal)
    else:
        medium.go_through(serving.journal)
        await serving.stop()


async def test_bodies_are_fetched_in_the_order_in_which_they_are_asked_for(serving):
    medium, journal = serving.medium, serving.journal
    medium.go_through(journal)
    small, large = [await serving.put(body) for body in (b"small", b"large" * 1000)]
    await serving.group.flush()
    if journal.fetches:
        assert await journal.fetch([large, 4711, small]) == [b"large" * 1000, None, b"small"]
    else:
        with pytest.raises(NotImplementedError):
            await journal.fetch([small])


async def test_replies_are_released_in_order_and_only_when_they_are_durable(serving):
    serving.medium.hold_up()
    jobs = [await serving.put() for _ in range(5)]
    assert serving.released == (jobs if serving.journal.immediate else [])
    serving.medium.go_through(serving.journal)
    await turns()
    assert serving.released == jobs
    assert serving.unstored == set()
    assert serving.failures == []


async def test_each_reply_is_released_without_another_command(serving):
    for _ in range(3):
        job_id = await serving.put()
        assert serving.released[-1] == job_id
    assert not serving.journal.busy


@pytest.mark.parametrize("medium", ["sqlite", "replicated"], indirect=True)
async def test_failed_journal_releases_and_commits_nothing_more(serving, monkeypatch):
    before = await serving.put()
    serving.medium.hold_up()
    await serving.put()
    serving.medium.fail(serving.journal)
    await turns()
    assert [type(failure) for failure in serving.failures] == [JournalFailed]
    commits = []
    monkeypatch.setattr(serving.journal, "commit", commits.append)
    await serving.put()
    assert serving.released == [before]
    assert commits == []
    assert len(serving.failures) == 1


async def test_a_stop_makes_everything_durable_even_what_nobody_waits_for(medium):
    serving = await Serving(medium).start()
    await serving.put()
    serving.core.send(serving.client, b"reserve\r\n")
    last_id = put(serving.core, serving.client)
    await serving.stop()
    assert not serving.journal.facts().keeps_jobs or last_id in medium.jobs()
    assert serving.failures == []


@pytest.mark.parametrize("medium", ["sqlite", "replicated"], indirect=True)
async def test_no_id_is_given_out_again_after_a_restart(medium):
    for restarts in range(3):
        serving = await Serving(medium).start()
        job_id = await serving.put()
        assert job_id == restarts + 1
        serving.core.send(serving.client, b"delete %d\r\n" % job_id)  # so that only the last id shows it
        await serving.stop()


@pytest.mark.parametrize("medium", ["replicated"], indirect=True)
async def test_several_batches_may_be_in_flight_and_become_durable_together(serving):
    serving.medium.hold_up()
    jobs = [await serving.put() for _ in range(IN_FLIGHT_MAX + 1)]
    assert serving.journal.busy
    serving.journal.answer(2)
    assert serving.released == jobs[:2]
    await turns()
    assert len(serving.journal._in_flight) == 2  # the batch that had to wait is one of them
    serving.journal.answer()
    assert serving.released == jobs[:3]
    serving.journal.lose_the_right()
    await turns()
    assert serving.released == jobs[:3]
    assert serving.unstored == set()


async def test_statistics_need_nothing_but_a_journal_that_has_recovered(serving):
    facts = serving.journal.facts()
    assert facts.keeps_jobs is not isinstance(serving.journal, MemoryJournal)
    assert (facts.records, facts.log_bytes <= facts.log_bytes_max) == (0, True)
