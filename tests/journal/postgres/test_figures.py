"""What a server tells of its database: size, dead rows, old transactions and standbys."""

import asyncio
import json

import asyncpg
import pytest

from beanlite.cli import main
from beanlite.core.measures import Measures
from beanlite.journal.postgres import journal
from beanlite.journal.postgres.status import status
from tests.journal.postgres.serving import (
    SOON_S,
    Postgres,
    ServingPostgres,
    by,
    by_few,
    made_by_an_older_version,
    served,
    until,
)


@pytest.fixture(autouse=True)
def _often(monkeypatch):
    monkeypatch.setattr(journal, "_LOOKS_EVERY_S", 0.01)


async def measured(url, **others):
    """Serve as with the setting health."""
    serving = ServingPostgres(Postgres(url, **others))
    serving.core.engine.ledger.measures = Measures()
    return await serving.start()


def told(serving):
    return serving.journal.facts().database


async def test_open_transaction_and_what_it_holds_are_told(database):
    serving = await measured(database)
    forgotten = await asyncpg.connect(database, server_settings={"application_name": "psql"})
    await forgotten.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT")
    for _ in range(5):
        await serving.put()
    holder = f"process {forgotten.get_server_pid()} psql"
    await until(lambda: told(serving) and told(serving).oldest_snapshot >= 5)
    await until(lambda: told(serving).oldest_transaction_s > 0.5)
    assert told(serving).oldest_holder == holder
    await forgotten.close()
    await until(lambda: told(serving).oldest_holder != holder)
    await serving.stop()


async def test_locked_tables_are_no_reason_to_be_silent(database):
    serving = await measured(database, lease_s=100)
    await until(lambda: told(serving))
    holder = await asyncpg.connect(database)
    async with holder.transaction():
        await holder.execute("LOCK TABLE jobs, lease, batches")
        serving.journal._database = None
        await until(lambda: told(serving))
    await holder.close()
    await serving.stop()


async def test_nothing_is_told_once_the_database_is_away(database, way, monkeypatch):
    monkeypatch.setattr(journal, "_TOLD_S", 0.3)
    serving = await measured(by(way, database), lease_s=100)
    await until(lambda: told(serving))
    way.refuses = True
    way.cut()
    await until(lambda: told(serving) is None)
    assert serving.failures == []
    way.refuses = False
    await until(lambda: told(serving))
    assert await serving.put() == 1  # over a new connection, by which the lease is given back
    await serving.stop()


async def test_role_that_may_not_see_standbys_tells_no_numbers_of_them(pair):
    role, url = await by_few(pair.primary, pair.url())
    serving = await measured(url, lease_s=100)
    await until(lambda: told(serving))
    (standby,) = told(serving).standbys
    assert (role, standby.name, standby.sync_state, standby.lag_bytes) == (role, "two", "unknown", None)
    await serving.stop()


async def test_status_says_that_commits_wait_for_a_standby_that_is_gone(pair, capsys):
    serving = await served(pair.url(), lease_s=100)

    async def said(*options):
        code = await asyncio.to_thread(main, ["cluster", "status", pair.url(), *options])
        return code, capsys.readouterr().out

    code, out = await said("--json")
    assert (code, json.loads(out)["status"], json.loads(out)["commits_wait"]) == (0, "serving", False)
    pair.standby.kill()
    async with asyncio.timeout(SOON_S):
        while (code := (await said())[0]) == 0:
            pass
    why = "serving, but commits wait: no synchronous standby (ANY 1 (one, two)) is streaming"
    code, out = await said()
    assert (code, f"status                     {why}\n" in out, "commits_wait" in out) == (1, True, False)
    code, out = await said("--json")
    assert (code, json.loads(out)["status"], json.loads(out)["commits_wait"]) == (1, why, True)
    pair.standby.start()
    await serving.stop()


async def test_status_says_that_commits_wait_for_a_second_standby(pair, capsys):
    serving = await served(pair.url(), lease_s=100)
    await pair.primary.asql("ALTER SYSTEM SET synchronous_standby_names = 'ANY 2 (two, lost)'")
    await pair.primary.asql("SELECT pg_reload_conf()")
    async with asyncio.timeout(SOON_S):
        while await asyncio.to_thread(main, ["cluster", "status", pair.url()]) == 0:
            pass
    out = capsys.readouterr().out
    assert "commits wait: 1 of 2 synchronous standbys (ANY 2 (two, lost)) is streaming\n" in out
    await pair.primary.asql("ALTER SYSTEM SET synchronous_standby_names = 'FIRST 1 (two, lost)'")
    await pair.primary.asql("SELECT pg_reload_conf()")
    async with asyncio.timeout(SOON_S):
        while await asyncio.to_thread(main, ["cluster", "status", pair.url()]) == 1:
            pass
    await serving.stop()


async def test_status_doubts_no_commits_of_a_standby_it_may_not_see(pair, capsys):
    role, url = await by_few(pair.primary, pair.url())
    serving = await served(url, lease_s=100)
    assert (await asyncio.to_thread(main, ["cluster", "status", url]), role in url) == (0, True)
    assert "two unknown" in capsys.readouterr().out
    await serving.stop()


async def test_nobody_is_asked_without_the_setting_health(database):
    serving = await served(database)
    await serving.put()
    assert told(serving) is None
    await serving.stop()


async def test_status_of_an_older_schema_leaves_out_what_it_lacks(database):
    await made_by_an_older_version(database, 6)
    facts = await asyncio.wait_for(asyncio.to_thread(status, database), SOON_S)
    assert (facts["takeovers"], facts["dead_rows"]["jobs"]) == (None, 0)
