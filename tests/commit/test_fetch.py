"""Bodies are fetched in rounds, for all who wait for them, and ahead."""

import asyncio

import pytest

from beanlite.commit import fetch as fetch_module
from beanlite.commit.fetch import Fetcher
from beanlite.core.memory import NO_BOUND
from beanlite.errors import JournalFailed
from tests.support.core import Core, put
from tests.support.simulated import FakeJournal

BODY = b"x" * 100
TURNS = 20


class SlowJournal(FakeJournal):
    """Notes which bodies are asked for, and hands them out when it is told to."""

    fetches = True

    def __init__(self):
        super().__init__()
        self.rounds = []
        self.gone = set()
        self._answer = None

    async def fetch(self, job_ids):
        assert self._answer is None, "one call at a time"
        self.rounds.append(list(job_ids))
        self._answer = asyncio.get_running_loop().create_future()
        try:
            await self._answer
        finally:
            self._answer = None
        return [None if job_id in self.gone else BODY + b"%d" % job_id for job_id in job_ids]

    async def hand_out(self):
        self._answer.set_result(None)
        await turns()

    async def fail(self, error):
        self._answer.set_exception(error)
        await turns()


async def turns():
    for _ in range(TURNS):
        await asyncio.sleep(0)


class Teller:
    """Waits for a body, and notes what it is told."""

    def __init__(self, told, who):
        self._told = told
        self._who = who

    def resume(self, body):
        self._told.append((self._who, body))

    def lack_memory(self):
        self._told.append((self._who, MemoryError))


class Fetching:
    """A core of which no body is in memory, and what has been told to whom."""

    def __init__(self):
        self.core = Core()
        self.engine = self.core.engine
        self.engine.bound_memory(NO_BOUND, 0, fetches=True)
        self.client = self.core.client()
        self.journal = SlowJournal()
        self.failures = []
        self.told = []
        self.fetcher = Fetcher(asyncio.get_running_loop(), self.engine, self.journal, self.failures.append)

    def put(self, jobs, body=BODY):
        for _ in range(jobs):
            put(self.core, self.client, body + b"%d" % (self.engine.last_id + 1))
        self.core.store()
        assert self.engine.memory.unloaded == jobs
        self.engine.bound_memory(NO_BOUND, 1_000_000, fetches=True)

    def want(self, who, job_id):
        self.fetcher.fetch(self.engine.jobs[job_id], Teller(self.told, who))

    def reserve(self, who):
        """The next job, as a connection does it whose client waits for its body."""
        job = self.engine.reserve(self.client.client, self.core.now_ns)
        self.fetcher.fetch(job, Teller(self.told, who))
        return job


@pytest.fixture
async def fetching():
    return Fetching()


def body_of(job_id):
    return BODY + b"%d" % job_id


async def test_what_is_wanted_during_a_round_is_fetched_in_the_next(fetching):
    fetching.put(5)
    fetching.want("a", 3)
    fetching.want("b", 1)
    await turns()
    fetching.want("c", 5)
    fetching.want("d", 3)
    await turns()
    assert fetching.journal.rounds == [[3, 1]]
    assert fetching.told == []
    await fetching.journal.hand_out()
    assert fetching.told == [("a", body_of(3)), ("d", body_of(3)), ("b", body_of(1))]
    assert fetching.journal.rounds == [[3, 1], [5]]
    await fetching.journal.hand_out()
    assert fetching.told[3:] == [("c", body_of(5))]
    assert len(fetching.journal.rounds) == 2
    assert fetching.engine.memory.unloaded == 5


async def test_a_body_that_many_wait_for_is_handed_over_in_slices(monkeypatch):
    monkeypatch.setattr(fetch_module, "AT_ONCE", 2)
    fetching = Fetching()
    fetching.put(1)
    for who in range(5):
        fetching.want(who, 1)
    await turns()
    fetching.journal._answer.set_result(None)
    seen = set()
    for _ in range(TURNS):
        await asyncio.sleep(0)
        seen.add(len(fetching.told))
    assert seen - {0} == {2, 4, 5}
    assert fetching.told == [(who, body_of(1)) for who in range(5)]


async def test_bounded_rounds_fetch_awaited_bodies_before_fetching_ahead(monkeypatch):
    monkeypatch.setattr(fetch_module, "ROUND_JOBS", 3)
    monkeypatch.setattr(fetch_module, "AT_ONCE", 2)
    fetching = Fetching()
    fetching.put(20)
    for who in range(7):
        fetching.reserve(who)
    await turns()
    for _ in range(3):
        await fetching.journal.hand_out()
    assert fetching.journal.rounds == [[1, 2, 3], [4, 5, 6], [7], list(range(8, 21))]
    await fetching.journal.hand_out()
    assert fetching.told == [(who, body_of(who + 1)) for who in range(7)]
    assert sorted(fetching.engine.bodies.ahead) == list(range(8, 21))
    assert all(fetching.engine.jobs[job_id].body == body_of(job_id) for job_id in range(8, 21))


async def test_a_round_ends_with_the_body_that_makes_it_large(fetching, monkeypatch):
    monkeypatch.setattr(fetch_module, "ROUND_BYTES", 150)
    fetching.put(3)
    for job_id in (1, 2, 3):
        fetching.want(job_id, job_id)
    await turns()
    await fetching.journal.hand_out()
    assert fetching.journal.rounds == [[1, 2], [3]]


async def test_client_gets_a_job_it_reserves_while_that_is_fetched_ahead(fetching):
    fetching.put(4)
    fetching.reserve("a")
    await turns()
    assert fetching.journal.rounds == [[1]]
    await fetching.journal.hand_out()
    assert fetching.journal.rounds == [[1], [2, 3, 4]]
    fetching.reserve("b")
    await fetching.journal.hand_out()
    assert fetching.told == [("a", body_of(1)), ("b", body_of(2))]
    assert sorted(fetching.engine.bodies.ahead) == [3, 4]


async def test_a_job_that_is_deleted_meanwhile(fetching):
    fetching.put(4)
    fetching.reserve("a")
    fetching.want("b", 3)
    await turns()
    for job_id in (2, 3):
        assert fetching.engine.delete(fetching.client.client, job_id, fetching.core.now_ns)
        fetching.journal.gone.add(job_id)
    await fetching.journal.hand_out()
    await fetching.journal.hand_out()
    assert fetching.told == [("a", body_of(1)), ("b", None)]
    assert sorted(fetching.engine.bodies.ahead) == [4]
    assert fetching.engine.memory.unloaded == 1


async def test_a_failure_is_told_once_and_nothing_more_is_fetched(fetching):
    fetching.put(3)
    fetching.reserve("a")
    await turns()
    error = JournalFailed("the disk is gone")
    await fetching.journal.fail(error)
    assert fetching.failures == [error]
    fetching.reserve("b")
    await turns()
    assert len(fetching.journal.rounds) == 1
    assert fetching.told == []
    await fetching.fetcher.close()


async def test_short_memory_shrinks_rounds_until_one_body_fails_its_client(fetching):
    fetching.put(8)
    for job_id in (1, 2, 3, 4):
        fetching.want(job_id, job_id)
    await turns()
    short = MemoryError()
    await fetching.journal.fail(short)
    await fetching.journal.fail(short)
    assert fetching.journal.rounds == [[1, 2, 3, 4], [1, 2], [1]]
    assert fetching.told == []
    await fetching.journal.fail(short)
    assert fetching.told == [(1, MemoryError)]
    await fetching.journal.hand_out()
    await fetching.journal.hand_out()
    assert fetching.journal.rounds[3:] == [[2], [3, 4]]
    assert fetching.told[1:] == [(job_id, body_of(job_id)) for job_id in (2, 3, 4)]
    assert fetching.failures == []


async def test_where_memory_is_short_nothing_is_fetched_ahead(fetching):
    fetching.put(4)
    fetching.reserve("a")
    await turns()
    await fetching.journal.hand_out()
    assert fetching.journal.rounds == [[1], [2, 3, 4]]
    await fetching.journal.fail(MemoryError())
    assert not fetching.engine.bodies.ahead
    fetching.reserve("b")
    await turns()
    await fetching.journal.hand_out()
    assert fetching.told[1:] == [("b", body_of(2))]
    assert fetching.failures == []


async def test_a_stop_waits_for_what_is_on_its_way_and_begins_nothing(fetching):
    fetching.put(3)
    fetching.want("a", 1)
    await turns()
    closing = asyncio.create_task(fetching.fetcher.close())
    await turns()
    assert not closing.done()
    fetching.want("b", 2)
    await fetching.journal.hand_out()
    if len(fetching.journal.rounds) > 1:
        await fetching.journal.hand_out()
    await turns()
    assert closing.done()
    fetching.want("c", 3)
    await turns()
    assert ("c", body_of(3)) not in fetching.told


@pytest.mark.parametrize(
    ("word", "answer"),
    [
        (b"peek 1", b"NOT_FOUND\r\n"),
        (b"reserve-job 1", b"NOT_FOUND\r\n"),
        (b"reserve-with-timeout 5", b"TIMED_OUT\r\n"),
    ],
)
async def test_what_a_client_hears_whose_job_is_gone_before_its_body_came(fetching, word, answer):
    fetching.put(1)
    core = fetching.core
    assert core.send(fetching.client, word + b"\r\nlist-tube-used\r\n") == b""
    told = []
    (job,) = fetching.client.gathering.jobs
    fetching.fetcher.fetch(job, Teller(told, "client"))
    await turns()
    core.wait(11)  # until the ttr is over
    assert core.send(core.client(), b"delete 1\r\n") == b"DELETED\r\n"
    fetching.journal.gone.add(1)
    await fetching.journal.hand_out()
    assert fetching.client.bring(job, *(body for _, body in told))
    fetching.client.resume(core.now_ns)
    assert fetching.client.take_replies() == answer + b"USING default\r\n"
