"""What happens to a batch, a start or a stop when the database's synchronous standby is lost."""

import asyncio
import os
import signal

import asyncpg
import pytest

from beanlite.errors import JournalFailed
from beanlite.journal.postgres import lease, sender
from beanlite.journal.postgres.standing import LostToAnother
from tests.journal.postgres.serving import SOON_S, commit_waits, served, sql, until, without_standby
from tests.support.postgres import receiver_of


async def test_cancelled_wait_for_the_standby_acknowledges_nothing(pair, monkeypatch):
    monkeypatch.setattr(sender, "LOOK_AFTER_S", 0.2)
    await pair.primary.asql("ALTER DATABASE queue SET client_min_messages = 'error'")  # hides that it was cancelled
    serving = await served(pair.url(), require_sync=True)
    await serving.put()
    receiver = receiver_of(pair.standby)
    os.kill(receiver, signal.SIGSTOP)
    job_id = serving.begin_to_put()
    seen = set()
    async with asyncio.timeout(SOON_S):
        while len(seen) < 3:  # the batch, and two attempts to find out what became of it
            for row in await pair.primary.asql("SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"):
                seen.add(row["pid"])
                await pair.primary.asql(f"SELECT pg_cancel_backend({row['pid']})")
    assert job_id not in serving.released
    os.kill(receiver, signal.SIGCONT)
    await until(lambda: job_id in serving.released)
    assert serving.failures == []
    assert await pair.primary.asql("SELECT id FROM jobs ORDER BY id", "queue") == [(1,), (2,)]
    await serving.stop()


async def test_a_stop_with_nothing_to_store_does_not_wait_for_the_standby(pair):
    serving = await served(pair.url(), require_sync=True)
    await serving.put()
    await until(lambda: not serving.core.engine.ledger.tallied)  # the totals of the put are stored as well
    await until(lambda: not serving.journal.busy)
    os.kill(receiver_of(pair.standby), signal.SIGSTOP)
    await commit_waits(pair.primary)  # the beat does
    await asyncio.wait_for(serving.group.flush(), SOON_S)
    assert await serving.journal.close() == "the lease could not be given back: the database does not answer"


async def test_start_without_the_standby_says_so(pair, monkeypatch, caplog):
    monkeypatch.setattr(lease, "LOOK_AFTER_S", 0.1)
    receiver = receiver_of(pair.standby)
    os.kill(receiver, signal.SIGSTOP)
    starting = asyncio.create_task(served(pair.url(), require_sync=True))
    await until(lambda: "no answer from the synchronous standby" in caplog.text)
    assert not starting.done()
    os.kill(receiver, signal.SIGCONT)
    await (await asyncio.wait_for(starting, SOON_S)).stop()


async def test_start_logs_its_waits_for_a_lock_and_then_for_the_standby(pair, monkeypatch, caplog):
    monkeypatch.setattr(lease, "LOOK_AFTER_S", 0.1)
    await (await served(pair.url(), require_sync=True)).stop()
    receiver = receiver_of(pair.standby)
    os.kill(receiver, signal.SIGSTOP)
    other = await asyncpg.connect(pair.primary.url("queue"))
    await other.execute("BEGIN; SELECT FROM lease FOR UPDATE")
    starting = asyncio.create_task(served(pair.url(), require_sync=True))
    await until(lambda: "another program has a lock" in caplog.text)
    await other.close()
    await until(lambda: "no answer from the synchronous standby" in caplog.text)
    os.kill(receiver, signal.SIGCONT)
    await (await asyncio.wait_for(starting, SOON_S)).stop()


async def test_restarted_primary_acknowledges_nothing_the_standby_lacks(pair):
    serving = await served(pair.url(), require_sync=True, lease_s=100)
    await serving.put()
    receiver = receiver_of(pair.standby)
    os.kill(receiver, signal.SIGSTOP)
    waiting = [serving.begin_to_put() for _ in range(3)]
    await commit_waits(pair.primary)
    await asyncio.to_thread(pair.restart_primary)
    assert len(await pair.primary.asql("SELECT id FROM jobs", "queue")) == 1 + len(waiting)  # a read is misleading
    await commit_waits(pair.primary)
    assert serving.released == [1]
    os.kill(receiver, signal.SIGCONT)
    await until(lambda: serving.released == [1, *waiting])
    assert serving.failures == []
    await serving.stop()


async def test_a_standby_that_was_behind_is_noticed_when_it_is_promoted(pair):
    """The standby was asynchronous, as require_sync = false allows."""
    await without_standby(pair.primary)
    await without_standby(pair.standby)
    serving = await served(pair.url())
    await serving.put()
    await asyncio.to_thread(pair.standby.stop)
    assert await serving.put() in serving.released
    await asyncio.to_thread(pair.primary.kill)
    await asyncio.to_thread(pair.standby.start)
    await asyncio.to_thread(pair.standby.promote)
    await serving.put()
    assert [type(failure) for failure in serving.failures] == [JournalFailed]
    assert "lost commits" in str(serving.failures[0])


@pytest.mark.parametrize("way_there", ["the same connection", "another connection"])
async def test_loss_of_commits_is_told_though_another_has_taken_over(postgres, database, way_there):
    """As after the promotion of a standby that was behind, where another server was faster."""
    serving = await served(database)
    for _ in range(3):
        await serving.put()
    lost = "WITH lost AS (UPDATE lease SET epoch = epoch + 1, node = 'another', batch = 1) DELETE FROM batches"
    await sql(postgres, database, lost)
    if way_there == "another connection":
        serving.journal._sender._link.drop()
    serving.begin_to_put()
    await until(lambda: serving.failures)
    assert [type(failure) for failure in serving.failures] == [LostToAnother]
    assert "lost commits that it acknowledged: it has batch 1, and had batch" in str(serving.failures[0])
    assert "another server has taken over: another at" in str(serving.failures[0])
