"""A journal that stands by reads jobs ahead, and takes over with little to read."""

import asyncio

import pytest

from beanlite.errors import JournalRefused
from beanlite.journal.postgres import ahead
from tests.journal.postgres.serving import (
    Postgres,
    ServingPostgres,
    by,
    made_by_an_older_version,
    served,
    sql,
    until,
)
from tests.support.operators import all_jobs

JOBS = 30


@pytest.fixture(autouse=True)
def _told(caplog, monkeypatch):
    caplog.set_level("INFO", "beanlite")
    monkeypatch.setattr(ahead, "_AGAIN_S", 0.1)
    monkeypatch.setattr(ahead, "_CHUNK", 7)


def fields(caplog, event):
    """Return the fields of the lines with this event."""
    return [record.fields for record in caplog.records if record.message == event]


async def active(database):
    serving = await served(database)
    for _ in range(JOBS):
        serving.begin_to_put()
    await serving.put()
    return serving


def stand_by(database):
    standby = ServingPostgres(Postgres(database, node="other"))
    return standby, asyncio.create_task(standby.start())


async def has_read(caplog, times=1):
    await until(lambda: len(fields(caplog, "jobs are read ahead")) == times)


def ids(serving):
    return sorted(job.id for job in all_jobs(serving.core.engine))


async def test_damaged_row_is_told_and_then_refused(postgres, database, caplog):
    serving = await active(database)
    await sql(postgres, database, "UPDATE jobs SET pri = 5 WHERE id = 9")
    _, starting = stand_by(database)
    await until(lambda: fields(caplog, "jobs can't be read ahead"))
    assert "the row of job 9 has changed" in fields(caplog, "jobs can't be read ahead")[0]["error"]
    await serving.abandon()
    with pytest.raises(JournalRefused, match="the row of job 9 has changed; restore a backup"):
        await starting


@pytest.mark.parametrize("end", ["stop", "abandon"])
async def test_standby_reads_only_what_is_new_when_it_takes_over(database, caplog, end):
    serving = await active(database)
    standby, starting = stand_by(database)
    await has_read(caplog)
    await serving.put(b"new")
    serving.core.send(serving.client, b"delete 3\r\n")
    await serving.put(b"newer")
    await getattr(serving, end)()
    await starting
    (line,) = fields(caplog, "jobs were read ahead")
    assert line["jobs"] == JOBS + 2
    assert line["read_now"] <= 2
    assert ids(standby) == ids(serving)
    assert await standby.put() == JOBS + 4
    await standby.stop()


async def test_copy_is_compared_while_the_lease_of_a_lost_server_runs_out(database, caplog, monkeypatch):
    serving = await active(database)
    standby, starting = stand_by(database)
    await has_read(caplog)
    assert standby.journal._ahead._compared == -1
    monkeypatch.setattr(ahead, "_EVERY_S", 0.01)
    await serving.abandon()
    await until(lambda: standby.journal._ahead._compared == standby.journal._ahead._batch)
    assert standby.journal.stands_by
    await starting
    assert fields(caplog, "jobs were read ahead")
    await standby.stop()


async def test_copy_outlives_its_connections(database, way, caplog):
    serving = await active(database)
    standby, starting = stand_by(by(way, database))
    await has_read(caplog)
    way.cut()
    await serving.put()
    await has_read(caplog, 2)
    await serving.stop()
    await starting
    assert fields(caplog, "jobs were read ahead")[0]["read_now"] <= 1
    assert "read ahead anew" not in caplog.text
    assert ids(standby) == ids(serving)
    await standby.stop()


async def test_standby_that_was_away_for_too_long_reads_everything_anew(postgres, database, way, caplog):
    serving = await active(database)
    standby, starting = stand_by(by(way, database))
    await has_read(caplog)
    way.refuses = True
    way.cut()
    for _ in range(3):
        await serving.put()
    await sql(postgres, database, "DELETE FROM batches WHERE number < (SELECT max(number) FROM batches)")
    way.refuses = False
    await has_read(caplog, 2)
    assert fields(caplog, "jobs are read ahead anew: too much has changed since")
    await serving.stop()
    await starting
    assert fields(caplog, "jobs were read ahead")[0]["jobs"] == JOBS + 4
    assert ids(standby) == ids(serving)
    await standby.stop()


async def test_active_server_keeps_the_last_batches_for_standbys(postgres, database):
    serving = await served(database, lease_s=100)
    reader = serving.journal._reader
    await until(lambda: reader._kept_above is not None)  # it begins with a look for old rows
    kept = []
    for puts in 1, 2, 0:
        for _ in range(puts):
            await serving.put()
        await reader.prune(0)
        kept.append(len(await sql(postgres, database, "SELECT FROM batches WHERE beat = 0")))
    assert kept == [1, 2, 1]  # the last row stays
    await serving.stop()


async def test_nothing_is_read_ahead_from_the_schema_of_an_older_version(postgres, database, caplog):
    await made_by_an_older_version(database, 6)
    await sql(postgres, database, "UPDATE lease SET stopped_at = NULL, node = 'old', address = '127.0.0.1:1'")
    standby, starting = stand_by(database)
    await starting  # the old server is not there any more
    assert standby.medium.standing_by == [True, False]
    assert not fields(caplog, "jobs are read ahead")
    assert not fields(caplog, "jobs were read ahead")
    await standby.put()
    (row,) = await sql(postgres, database, "SELECT before, changed FROM batches WHERE beat = 0")
    assert tuple(row) == (0, None)
    await standby.stop()


async def test_server_that_stops_amid_reading_leaves_no_connection(database, caplog, monkeypatch):
    """The fixture of all these tests looks for connections."""
    monkeypatch.setattr(ahead, "_CHUNK", 1)
    serving = await active(database)
    stopped = asyncio.Event()
    standby = ServingPostgres(Postgres(database, node="other"))
    starting = asyncio.create_task(standby.journal.recover(standby.core.engine, standby.core.clock(), stopped))
    await until(lambda: (reading := getattr(standby.journal, "_ahead", None)) is not None and reading._copy is not None)
    stopped.set()
    assert not await starting
    assert not fields(caplog, "jobs are read ahead")
    await serving.stop()
