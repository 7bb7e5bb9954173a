"""A standby is promoted while its old primary still accepts writes, and a server is active there."""

import asyncio

from beanlite.journal.postgres import journal
from beanlite.journal.postgres.status import status
from tests.journal.postgres.serving import SOON_S, Postgres, ServingPostgres, served, until, without_standby
from tests.journal.postgres.test_old_primary import both, follows_nobody


async def promoted_beside(pair):
    """Promote the standby, which lacks what is stored from now on, as an asynchronous one does."""
    await without_standby(pair.primary)
    await follows_nobody(pair.standby)
    await asyncio.to_thread(pair.standby.promote)
    await without_standby(pair.standby)


async def test_server_does_not_take_over_beside_one_on_the_old_primary(pair, caplog):
    first = await served(both(pair), node="first", lease_s=2)
    await promoted_beside(pair)
    second = ServingPostgres(Postgres(both(pair), node="second", lease_s=2))
    waiting = asyncio.create_task(second.start())
    await until(lambda: "a server is active on an old primary" in caplog.text or waiting.done())
    assert not waiting.done()
    assert await first.put() == 1
    assert (await asyncio.to_thread(status, both(pair)))["old_primaries"] == [
        f"postgresql://queue@{pair.primary.place}/queue"
    ]
    await asyncio.to_thread(pair.primary.kill)
    await asyncio.wait_for(waiting, SOON_S)
    await until(lambda: first.failures)
    assert "has lost commits that it acknowledged" in str(first.failures)
    assert await pair.standby.asql("SELECT node FROM lease", "queue") == [("second",)]
    await second.stop()


async def test_active_server_on_the_old_primary_warns(pair, caplog, monkeypatch):
    monkeypatch.setattr(journal, "_LOOKS_EVERY_S", 0.1)
    serving = await served(both(pair), lease_s=100)
    await promoted_beside(pair)
    await until(lambda: "another host was promoted, but the one in use still accepts writes" in caplog.text)
    assert await serving.put() == 1
    assert serving.failures == []
    await serving.stop()
