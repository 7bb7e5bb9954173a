"""The statement of a batch, by itself."""

import asyncio
import time

import asyncpg
import pytest

from beanlite.host.clock import Clock, utc_s
from beanlite.journal.event_rows import DEEDS_ONLY, EventRows, HistoryBounds
from beanlite.journal.postgres.batch import batch_of
from beanlite.journal.postgres.beats import BEAT
from beanlite.journal.postgres.lease import Applicant
from beanlite.journal.postgres.recovery import MARK, PRUNE_BATCHES
from beanlite.journal.totals import Totals
from tests.journal.postgres.serving import SOON_S, take
from tests.support.core import Core

JOBS = b"put 0 0 60 1\r\na\r\nput 0 0 60 1\r\nb\r\nput 0 0 60 1\r\nc\r\n"
# Changes that no constraint of the tables prevents from being stored twice.
REPEATABLE = b"reserve-job 1\r\nbury 1 7\r\nreserve-job 2\r\nrelease 2 9 0\r\npause-tube default 60\r\n"


def batch(core, client, commands, rows_of_events=None):
    core.send(client, commands)
    ledger = core.engine.ledger
    changes = ledger.take(core.engine.last_id, deferred=True, totals=True, now_ns=core.now_ns)
    return batch_of(changes, Totals(), time.time(), rows_of_events or EventRows(DEEDS_ONLY, utc_s))


@pytest.fixture
async def taken(database):
    """A lease of an empty database."""
    applicant = Applicant(
        database, "here", "127.0.0.1:1", 1, require_sync=False, name="it", clock_ns=Clock(), stand_by=lambda _: None
    )
    taken = await take(applicant, asyncio.Event())
    yield taken
    taken.link.drop()


async def everything(connection):
    rows = await connection.fetch("SELECT batches::text FROM batches UNION ALL SELECT jobs::text FROM jobs")
    return sorted(row[0] for row in rows) + await connection.fetch("SELECT * FROM totals")


async def send(taken, batch, *, epoch, last):
    return await taken.link.row(batch.statement, epoch, last, *batch.parameters)


async def test_what_arrives_twice_or_too_late_does_nothing(taken):
    core = Core()
    client = core.client()
    first, second = batch(core, client, JOBS), batch(core, client, REPEATABLE)
    assert await send(taken, first, epoch=taken.epoch, last=0) is not None
    assert await send(taken, second, epoch=taken.epoch, last=first.number) is not None
    before = await everything(taken.link.connection)
    assert await send(taken, second, epoch=taken.epoch, last=first.number) is None  # again
    third = batch(core, client, b"kick 9\r\npause-tube default 0\r\n")
    assert await send(taken, third, epoch=taken.epoch, last=first.number) is None  # the batch before it is missing
    assert await everything(taken.link.connection) == before
    await taken.link.connection.execute("UPDATE lease SET epoch = epoch + 1")
    before = await everything(taken.link.connection)
    assert await send(taken, third, epoch=taken.epoch, last=second.number) is None  # another server has taken over
    assert await everything(taken.link.connection) == before
    assert await send(taken, third, epoch=taken.epoch + 1, last=second.number) is not None
    assert await everything(taken.link.connection) != before


async def test_row_of_a_batch_tells_which_jobs_it_has_changed(taken):
    core = Core()
    client = core.client()
    first, second = batch(core, client, JOBS), batch(core, client, REPEATABLE + b"delete 3\r\n")
    for each, last in (first, 0), (second, first.number):
        assert await send(taken, each, epoch=taken.epoch, last=last) is not None
    rows = await taken.link.connection.fetch("SELECT before, changed, gone FROM batches WHERE beat = 0 ORDER BY number")
    assert list(map(tuple, rows)) == [(0, None, None), (first.number, [1, 2], [3])]


async def test_a_tube_that_was_gone_and_made_anew_has_one_total(taken):
    core = Core()
    client = core.client()
    before = batch(core, client, b"put 0 0 60 1\r\na\r\ndelete 1\r\n")
    again = b"use mail\r\nput 0 0 60 1\r\na\r\ndelete %d\r\nuse default\r\n"
    twice = batch(core, client, again % 2 + again % 3)
    assert await send(taken, before, epoch=taken.epoch, last=0) is not None
    assert await send(taken, twice, epoch=taken.epoch, last=before.number) is not None
    totals = await taken.link.connection.fetch("SELECT span_s, put, deleted FROM totals WHERE tube = 'mail'")
    assert sorted(map(tuple, totals)) == [(3600, 2, 2), (86400, 2, 2)]


async def test_a_body_that_the_row_of_its_job_has_is_not_sent_again(taken):
    """The jobs that are deleted at once may have more bytes than a statement can."""
    core = Core()
    core.engine.ledger.start_recording()
    core.engine.ledger.keeps_bodies = True
    client = core.client()
    history = EventRows(HistoryBounds(3600, 1 << 30, bodies=True), utc_s)
    first = batch(core, client, JOBS, history)
    second = batch(core, client, b"delete 1\r\nput 0 0 60 1\r\nd\r\ndelete 4\r\n", history)
    for each, last in (first, 0), (second, first.number):
        assert await send(taken, each, epoch=taken.epoch, last=last) is not None
    columns = [column for column in second.parameters if isinstance(column, tuple)]
    assert [value for column in columns for value in column if isinstance(value, bytes)] == [b"d"]
    deleted = await taken.link.connection.fetch("SELECT job, body FROM history WHERE what = 'delete' ORDER BY n")
    assert list(map(tuple, deleted)) == [(1, b"a"), (4, b"d")]


@pytest.fixture
async def other(database, taken):  # noqa: ARG001 - the tables have to be there
    """Another connection to the same database."""
    connection = await asyncpg.connect(database)
    yield connection
    await connection.close()


@pytest.fixture
async def third(database, taken):  # noqa: ARG001 - likewise
    connection = await asyncpg.connect(database)
    yield connection
    await connection.close()


async def waits(connection, count=1):
    """Wait until this many statements wait for a lock."""
    locked = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    async with asyncio.timeout(SOON_S):
        while len(await connection.fetch(locked)) < count:
            await asyncio.sleep(0.001)


TAKE = "SELECT epoch FROM take_lease($1, $2, $3, 'second', '', '')"


async def seen(connection):
    return tuple(await connection.fetchrow("SELECT epoch, batch, beat FROM lease_now"))


async def test_lease_is_not_taken_while_a_batch_is_under_way(taken, other, third):
    core = Core()
    first = batch(core, core.client(), JOBS)
    before = await seen(third)
    async with other.transaction():
        await other.fetchrow(first.statement, taken.epoch, 0, *first.parameters)
        taking = asyncio.create_task(taken.link.row(TAKE, *before))
        await waits(third)
    assert await taking is None
    assert (await seen(third))[:2] == (taken.epoch, first.number)
    assert await taken.link.row(TAKE, *await seen(third)) is not None


async def test_a_batch_that_waited_for_who_took_the_lease_is_not_stored(taken, other, third):
    core = Core()
    first = batch(core, core.client(), JOBS)
    async with other.transaction():
        assert await other.fetchrow(TAKE, *await seen(third)) is not None
        storing = asyncio.create_task(send(taken, first, epoch=taken.epoch, last=0))
        await waits(third)
    assert await storing is None
    assert await third.fetch("SELECT FROM jobs") == []
    assert await third.fetch("SELECT FROM batches WHERE beat = 0") == []


async def test_lease_is_not_taken_while_a_beat_is_under_way(taken, other, third):
    before = await seen(third)
    async with other.transaction():
        await other.fetchrow(BEAT, taken.epoch)
        taking = asyncio.create_task(taken.link.row(TAKE, *before))
        await waits(third)
    assert await taking is None


async def test_one_of_two_copies_that_are_under_way_is_stored(taken, other, third):
    core = Core()
    client = core.client()
    first, second = batch(core, client, JOBS), batch(core, client, REPEATABLE)
    await send(taken, first, epoch=taken.epoch, last=0)
    async with other.transaction():
        assert await other.fetchrow(second.statement, taken.epoch, first.number, *second.parameters) is not None
        storing = asyncio.create_task(send(taken, second, epoch=taken.epoch, last=first.number))
        await waits(third)
        before = await everything(other)
    assert await storing is None
    assert await everything(other) == before


async def test_copy_that_waited_until_its_row_was_deleted_changes_nothing(taken, other, third):
    """What it sees of the batches is as of when it began to wait."""
    core = Core()
    client = core.client()
    first, second, last = [batch(core, client, each) for each in (JOBS, REPEATABLE, b"kick 9\r\ndelete 1\r\n")]
    await send(taken, first, epoch=taken.epoch, last=0)
    async with other.transaction():
        await other.fetch("SELECT FROM lease FOR UPDATE")
        storing = asyncio.create_task(send(taken, second, epoch=taken.epoch, last=first.number))
        await waits(third)
        for number, each in ((first.number, second), (second.number, last)):
            assert await other.fetchrow(each.statement, taken.epoch, number, *each.parameters) is not None
        await other.execute(MARK, taken.epoch, last.number)
        await other.execute(PRUNE_BATCHES, -1, taken.epoch, last.number)
        assert await other.fetch("SELECT number FROM batches") == [(last.number,)]
        before = await other.fetch("SELECT * FROM jobs ORDER BY id")
    assert await storing is None
    assert await third.fetch("SELECT * FROM jobs ORDER BY id") == before
    more = batch(core, client, JOBS)
    assert await send(taken, more, epoch=taken.epoch, last=last.number) is not None


async def test_batch_and_beat_leave_no_version_of_the_leases_row_behind(taken):
    """Each later batch would have to pass it, as long as some transaction is open that may still read it."""
    core = Core()
    client = core.client()
    row = "SELECT ctid FROM lease"
    before = await taken.link.connection.fetchval(row)
    last = 0
    for _ in range(3):
        more = batch(core, client, JOBS)
        assert await send(taken, more, epoch=taken.epoch, last=last) is not None
        last = more.number
        assert (await taken.link.row(BEAT, taken.epoch))["batch"] == last
    assert await taken.link.connection.fetchval(row) == before
