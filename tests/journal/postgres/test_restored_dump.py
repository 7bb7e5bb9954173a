"""A dump that is restored while servers start or stand by: they wait until all of it is there."""

import asyncio

import pytest

from beanlite.journal.postgres import lease
from beanlite.journal.postgres.lease import _Waiting
from beanlite.journal.postgres.link import connect
from beanlite.journal.postgres.schema import expect_keys
from tests.journal.postgres.serving import SOON_S, Postgres, ServingPostgres, refusal, served, sql, until
from tests.support.postgres import _program, _run


@pytest.fixture
def losses(monkeypatch):
    """What servers that wait for the lease have found wrong with the database."""
    losses = []
    lost = _Waiting.note_loss

    def noted(waiting, error):
        losses.append(str(error))
        lost(waiting, error)

    monkeypatch.setattr(_Waiting, "note_loss", noted)
    monkeypatch.setattr(lease, "_AGAIN_S", 0.01)
    return losses


async def kept_waiting(waiting, losses):
    """Wait until the server has found anew that a table has no key."""
    losses.clear()
    await until(lambda: waiting.done() or any("has no primary key" in loss for loss in losses))
    assert not waiting.done()


async def test_table_of_somebody_else_needs_no_key(postgres, database):
    """An older version of the tables lacks that of notes, and another schema has one."""
    await (await served(database)).stop()
    for statement in ("DROP TABLE notes CASCADE", "CREATE SCHEMA other", "CREATE TABLE other.notes (said text)"):
        await sql(postgres, database, statement)
    await sql(postgres, database, f"ALTER DATABASE {database.rpartition('/')[2]} SET search_path = public, other")
    link = await connect(database, "beanlite")
    await expect_keys(link)
    link.drop()


async def test_start_waits_until_all_of_a_dump_is_restored(postgres, database, losses, caplog):
    serving = await served(database)
    await serving.put()
    await serving.stop()
    before, rows, after = await asyncio.gather(
        *(
            asyncio.to_thread(_run, _program("pg_dump"), f"--section={section}", database)
            for section in ("pre-data", "data", "post-data")
        )
    )
    empty = await asyncio.to_thread(postgres.new_database)

    async def restore(part):
        await asyncio.to_thread(_run, _program("psql"), "-q", "-v", "ON_ERROR_STOP=1", empty, input=part.stdout)

    await restore(before)
    waiting = asyncio.create_task(served(empty))
    await kept_waiting(waiting, losses)
    await restore(rows)
    await kept_waiting(waiting, losses)
    await restore(after)
    serving = await asyncio.wait_for(waiting, SOON_S)
    assert await serving.put() == 2
    await serving.stop()
    (line,) = [each.fields["error"] for each in caplog.records if "could not connect" in each.getMessage()]
    assert line.endswith("has no primary key: a dump is being restored, or its restoration was cut short")


async def test_standby_takes_no_lease_of_half_a_dump(postgres, database, losses):
    first = await served(database, node="first", lease_s=100)
    second = ServingPostgres(Postgres(database, node="second", lease_s=100))
    waiting = asyncio.create_task(second.start())
    await until(lambda: second.medium.standing_by == [True])
    await sql(postgres, database, "ALTER TABLE totals DROP CONSTRAINT totals_pkey")
    await first.stop()
    await kept_waiting(waiting, losses)
    await sql(postgres, database, "ALTER TABLE totals ADD PRIMARY KEY (span_s, at, tube)")
    await (await asyncio.wait_for(waiting, SOON_S)).stop()


@pytest.mark.parametrize("table", ["lease", "schema_version"])
async def test_table_with_a_key_and_without_rows_is_refused(postgres, database, table):
    await (await served(database)).stop()
    await sql(postgres, database, f"DELETE FROM {table}")  # noqa: S608 - a name
    assert f"its table {table} is empty" in await refusal(database)
