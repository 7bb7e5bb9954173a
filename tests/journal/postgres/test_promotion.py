"""A promotion that is taken back: the primary that was thought lost goes on, and the other follows it."""

import asyncio

from tests.journal.postgres.serving import SOON_S, Postgres, ServingPostgres, commit_waits, served, until
from tests.journal.postgres.test_old_primary import both, looking_from


async def taken_back(pair):
    """Start the old primary again, with the one that was promoted after it as its standby."""
    await asyncio.to_thread(pair.standby.kill)
    await asyncio.to_thread(pair.primary.start)
    await asyncio.to_thread(pair.make_standby)


async def test_a_promotion_that_is_taken_back_stops_neither_server(pair):
    """As when a halted leader of Patroni continues, and takes its key again."""
    first = await served(both(pair), node="first", lease_s=100)
    second = ServingPostgres(Postgres(both(pair), node="second", lease_s=100))
    waiting = asyncio.create_task(second.start())
    await until(lambda: second.medium.standing_by == [True])
    before = await first.put()
    await asyncio.to_thread(pair.primary.kill)
    await asyncio.to_thread(pair.standby.promote)
    job_id = first.begin_to_put(b"meanwhile")
    await commit_waits(pair.standby)
    await looking_from(pair.standby, "second")
    await taken_back(pair)
    await looking_from(pair.primary, "second")
    await until(lambda: job_id in first.released or first.failures)
    assert first.failures == []
    await first.stop()
    await asyncio.wait_for(waiting, SOON_S)
    assert [second.core.engine.jobs.find(each).body for each in (before, job_id)] == [b"job", b"meanwhile"]
    await second.stop()
