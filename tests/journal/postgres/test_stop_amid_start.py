"""A stop while the start waits for the database: it is heeded soon, whatever the start waits for."""

import asyncio

import asyncpg
import pytest

from beanlite.errors import LeaseLost
from beanlite.journal.postgres import journal, lease, schema, sender
from tests.journal.postgres.serving import SOON_S, Postgres, ServingPostgres, applicant, by, sql, take, until
from tests.journal.postgres.test_history import ALL, asked, recorded, stored

WAITS = """
    SELECT FROM pg_stat_activity
    WHERE datname = current_database() AND application_name = 'beanlite here' AND wait_event_type = 'Lock'
"""


@pytest.fixture
async def holder(database):
    """A connection of another program, which holds locks."""
    holder = await asyncpg.connect(database)
    yield holder
    await holder.close()


async def locked_out(postgres, database):
    """Wait until the connection of the server waits for a lock, and not one beside it."""
    async with asyncio.timeout(SOON_S):
        while not await sql(postgres, database, WAITS):
            await asyncio.sleep(0.001)


class Starting:
    """A start after a server that was killed with a reserved job, which waits to store that it is ready again."""

    def __init__(self, url):
        self.stopped = asyncio.Event()
        self.serving = ServingPostgres(Postgres(url, history=ALL))
        self.serving.core.engine.ledger.start_recording()

    def begin(self):
        core = self.serving.core
        return asyncio.create_task(self.serving.journal.recover(core.engine, core.clock(), self.stopped))


@pytest.fixture
async def starting(postgres, database, way, holder):
    first = await recorded(database)
    await first.put()
    first.core.send(first.client, b"reserve\r\n")
    await stored(first)
    await first.abandon()
    await holder.execute("BEGIN; LOCK TABLE history IN SHARE MODE")
    starting = Starting(by(way, database))
    recovering = starting.begin()
    await locked_out(postgres, database)
    yield starting, recovering
    assert recovering.done()


@pytest.mark.parametrize("is_away", [False, True])
async def test_stop_does_not_wait_until_restarts_can_be_stored(postgres, database, way, holder, starting, is_away):
    starting, recovering = starting
    if is_away:
        way.refuses = True
        way.cut()
    starting.stopped.set()
    assert await asyncio.wait_for(recovering, SOON_S) is False
    await holder.execute("ROLLBACK")
    way.refuses = False
    after = await recorded(database)
    await after.put()
    found = await asked(postgres, database, "SELECT job, what FROM history ORDER BY n")
    assert found == [(1, "put"), (1, "reserve"), (1, "restart"), (2, "put")]
    await after.stop()


async def test_lease_lost_between_restarts_that_are_stored_is_told(starting):
    starting, recovering = starting
    lost = LeaseLost("another server has taken over")
    starting.serving.journal._fails(lost)  # as a beat does that comes between two slices
    with pytest.raises(LeaseLost) as told:
        await asyncio.wait_for(recovering, SOON_S)
    assert told.value is lost


async def test_stop_amid_restarts_that_are_soon_stored_gives_the_lease_back(
    postgres, database, holder, starting, monkeypatch
):
    for module in (journal, sender, lease):  # a busy machine may take more than a second to give it back
        monkeypatch.setattr(module, "LOOK_AFTER_S", SOON_S)
    starting, recovering = starting
    starting.stopped.set()
    await asyncio.sleep(0)
    await holder.execute("ROLLBACK")
    assert await asyncio.wait_for(recovering, SOON_S) is False
    assert await asked(postgres, database, "SELECT stopped_at IS NOT NULL FROM lease") == [(True,)]


@pytest.mark.parametrize("why", ["lock", "silence"])
async def test_standby_stops_while_the_database_does_not_answer(postgres, database, way, holder, why):
    active = await take(applicant(database)._replace(lease_s=100), asyncio.Event())
    stands_by, stopped = asyncio.Event(), asyncio.Event()
    standby = applicant(by(way, database), lambda _: stands_by.set())._replace(lease_s=100)
    waiting = asyncio.create_task(take(standby, stopped))
    await asyncio.wait_for(stands_by.wait(), SOON_S)
    if why == "lock":
        await holder.execute("BEGIN; LOCK TABLE schema_version")
        way.cut()
        await locked_out(postgres, database)
    else:
        way.cut_at = why
        await until(lambda: way.cuts == 2)  # the lease is asked for, and jobs are read ahead
    stopped.set()
    assert await asyncio.wait_for(waiting, SOON_S) is None
    active.link.drop()


async def test_stop_right_after_the_database_was_checked_is_no_error(database, monkeypatch):
    stopped = asyncio.Event()
    checking = schema.check

    async def check(link, *arguments, **others):
        await checking(link, *arguments, **others)
        stopped.set()
        await until(link.connection.is_closed)

    monkeypatch.setattr(lease, "check", check)
    assert await asyncio.wait_for(take(applicant(database), stopped), SOON_S) is None
