"""The lease by itself: how long other servers wait for it, and which server may give it back."""

import asyncio
import time

import asyncpg

from beanlite.clock import Clock
from beanlite.journal.postgres.lease import GIVE_BACK, Applicant, take

LEASE_S = 1
SOON_S = 30


def applicant(database, stand_by=lambda _: None):
    return Applicant(
        database, "it", "here", "127.0.0.1:1", LEASE_S, require_sync=False, clock_ns=Clock(), stand_by=stand_by
    )


async def test_while_the_database_does_not_answer_the_time_of_the_lease_does_not_pass(database):
    """The active server may have been cut off as well."""
    gone = await take(applicant(database), asyncio.Event())
    gone.link.drop()
    other = await asyncpg.connect(database)
    stands_by = asyncio.Event()
    waiting = asyncio.create_task(take(applicant(database, lambda _: stands_by.set()), asyncio.Event()))
    async with asyncio.timeout(SOON_S):
        await stands_by.wait()
        async with other.transaction():
            await other.execute("LOCK lease IN ACCESS EXCLUSIVE MODE")
            await asyncio.sleep(0.95 * LEASE_S)
        over_s = time.monotonic()
        taken = await waiting
    assert time.monotonic() - over_s > 0.9 * LEASE_S
    taken.link.drop()
    await other.close()


async def test_who_was_taken_over_from_has_nothing_to_give_back(database):
    taken = await take(applicant(database), asyncio.Event())
    await taken.link.connection.execute("UPDATE lease SET epoch = epoch + 1")  # another server has taken over
    assert await taken.link.row(GIVE_BACK, taken.epoch, time.time(), 0) is None
    assert await taken.link.connection.fetchval("SELECT stopped_at FROM lease") is None
    taken.link.drop()
