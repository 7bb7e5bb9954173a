"""The database's plans for our statements, and TLS on the connection to it."""

import asyncio
import contextlib
import shutil
import subprocess
import time

import asyncpg
import pytest

from beanlite.errors import JournalRefused
from beanlite.journal.postgres import journal, recovery, status as status_module
from beanlite.journal.postgres.address import exposed_hosts
from beanlite.journal.postgres.link import name_of
from beanlite.journal.postgres.recovery import Reader
from beanlite.journal.postgres.status import status
from beanlite.journal.totals import TUBES_MAX
from tests.journal.postgres.serving import SOON_S, Postgres, ServingPostgres, refusal, served, sql, until
from tests.support.core import put
from tests.support.needs import need
from tests.support.postgres import Cluster, _program, _run, new_home, programs

JOBS = 5000
LATER_S = 2.1e9
WAITS = "SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query LIKE 'DELETE FROM totals%'"
READ = "SELECT seq_scan, idx_tup_fetch FROM pg_stat_user_tables WHERE relname = 'jobs'"


@pytest.mark.parametrize(
    ("url", "hosts"),
    [
        ("postgresql://beanlite@db1,db2:5433/queue", ["db1", "db2"]),
        ("postgresql://beanlite@db1/queue?sslmode=require", ["db1"]),
        ("postgresql://beanlite@[2001:db8::1]:5432/queue", ["2001:db8::1"]),
        ("postgresql:///queue?host=db1", ["db1"]),
        ("postgresql://beanlite@127.0.0.1,db2/queue", ["db2"]),
        ("postgresql://beanlite@db1/queue?sslmode=verify-full", []),
        ("postgresql://beanlite@localhost,[::1]:5433,127.0.0.1/queue", []),
        ("postgresql://%2Frun%2Fpostgresql/queue", []),
        ("postgresql:///queue?host=/run/postgresql", []),
        ("postgresql:///queue", []),
    ],
)
def test_hosts_are_exposed_unless_they_are_here_or_verified(url, hosts, monkeypatch):
    monkeypatch.delenv("PGHOST", raising=False)
    monkeypatch.delenv("PGSSLMODE", raising=False)
    assert exposed_hosts(url) == hosts
    monkeypatch.setenv("PGSSLMODE", "verify-full")
    assert exposed_hosts(url) == ([] if "sslmode" not in url else hosts)


async def test_start_warns_of_database_that_others_can_read(database, caplog):
    stopped = asyncio.Event()
    stopped.set()
    serving = ServingPostgres(Postgres(database))
    for url in (database, database.replace("127.0.0.1", "127.0.0.1,db.invalid")):
        opening = Postgres(url).open()
        with contextlib.suppress(JournalRefused):  # there is no such host
            await asyncio.wait_for(opening.recover(serving.core.engine, serving.core.clock(), stopped), SOON_S)
    (warning,) = [record for record in caplog.records if "others on the network" in record.getMessage()]
    assert vars(warning)["fields"] == {"hosts": "db.invalid", "sslmode": "prefer"}


async def test_queue_analysed_while_it_was_empty_is_read_by_its_index(postgres, database):
    serving = await served(database, lease_s=100)
    await sql(postgres, database, "VACUUM ANALYZE jobs")
    for _ in range(JOBS):
        put(serving.core, serving.client)
    last = await serving.put()
    for job_id in range(1, 401):
        serving.core.send(serving.client, b"reserve-job %d\r\nbury %d 0\r\n" % (job_id, job_id))
    for job_id in range(401, 801):
        serving.core.send(serving.client, b"delete %d\r\n" % job_id)
    await serving.put()
    await serving.stop()
    async with asyncio.timeout(SOON_S):  # a connection hands over its figures after its end has been told
        while not (read := (await sql(postgres, database, READ))[0])["idx_tup_fetch"]:
            await asyncio.sleep(0.01)
    assert read["seq_scan"] <= 1  # when its index was made
    assert 400 <= read["idx_tup_fetch"] < 2 * 800
    assert last == JOBS + 1


def sign(certificate, key):
    """Make a self-signed certificate."""
    how = ["-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=queue", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(["openssl", "req", *how, "-out", certificate, "-keyout", key], check=True, capture_output=True)


@pytest.fixture
def encrypted():
    """A database that is reached by TLS, and the certificate that has signed its own."""
    need(programs(), "PostgreSQL is not installed")
    need(shutil.which("openssl"), "openssl is not installed")
    cluster = Cluster(home := new_home(), "encrypted")
    cluster.make()
    certificate, key = cluster.data / "server.crt", cluster.data / "server.key"
    sign(certificate, key)
    owner = cluster.data.stat()
    for file in (certificate, key):
        shutil.chown(file, owner.st_uid, owner.st_gid)
        file.chmod(0o600)
    with (cluster.data / "postgresql.conf").open("a") as settings:
        settings.write("ssl = on\n")
    hosts = cluster.data / "pg_hba.conf"
    hosts.write_text("hostnossl all tls 127.0.0.1/32 reject\n" + hosts.read_text())
    cluster.start()
    cluster.sql("CREATE ROLE tls LOGIN SUPERUSER")
    yield cluster, certificate
    cluster.kill()
    shutil.rmtree(home)


async def test_server_reaches_the_database_by_tls_and_checks_which_it_is(encrypted, tmp_path):
    cluster, certificate = encrypted
    url = cluster.url().replace("queue@", "tls@")
    serving = await served(f"{url}?sslmode=verify-full&sslrootcert={certificate}")
    await serving.put()
    (row,) = await cluster.asql(
        "SELECT bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE usename = 'tls'"
    )
    assert row["bool_and"]
    await serving.stop()
    for mode in ("verify-full", "require"):
        facts = await asyncio.to_thread(status, f"{url}?sslmode={mode}&sslrootcert={certificate}")
        assert (facts["sslmode"], facts["encrypted"]) == (mode, True)
    assert "no encryption" in await refusal(f"{url}?sslmode=disable")
    other = tmp_path / "other.crt"
    await asyncio.to_thread(sign, other, tmp_path / "other.key")
    assert "certificate is not trusted" in await refusal(f"{url}?sslmode=verify-full&sslrootcert={other}")


async def test_number_of_tubes_in_the_totals_stays_bounded_over_takeovers(postgres, database):
    others = f"""
        INSERT INTO totals SELECT span_s, at, n::text, 0, 0, 0, 0, 0, 0, 0, 0, 0
        FROM totals, generate_series(2, {TUBES_MAX}) AS n WHERE tube = 'first' ON CONFLICT DO NOTHING
    """  # noqa: S608 - a number
    for tube in (b"first", b"second"):
        serving = await served(database)
        serving.core.send(serving.client, b"use %b\r\n" % tube)
        await serving.put()
        await serving.stop()
        await sql(postgres, database, others)
    days = await sql(postgres, database, "SELECT tube, sum(put) FROM days WHERE put > 0 GROUP BY tube ORDER BY tube")
    assert days == [("[rest]", 1), ("first", 1)]


async def test_totals_are_of_the_hour_by_the_clock_of_the_database(postgres, database, monkeypatch):
    """The clocks of two nodes may differ."""
    now_s = time.time()
    monkeypatch.setattr(time, "time", lambda: now_s - 5 * 3600)
    serving = await served(database)
    await serving.put()
    await serving.stop()
    at = "SELECT at, extract(epoch FROM now())::float8 AS now FROM totals WHERE span_s = 3600"
    ((began_s, database_s),) = await sql(postgres, database, at)
    assert 0 <= database_s - began_s < 2 * 3600  # the hour may have ended meanwhile


async def test_old_totals_are_taken_away_at_the_start_and_every_hour(postgres, database, monkeypatch):
    rounds = []
    prune = Reader.prune

    async def noted(reader, now_s, **others):
        await prune(reader, now_s, **others)
        rounds.append(now_s)

    monkeypatch.setattr(Reader, "prune", noted)
    monkeypatch.setattr(journal, "_PRUNES_EVERY_S", 0.01)
    serving = await served(database)
    await serving.put()
    await until(lambda: not (serving.core.engine.ledger.tallied or serving.journal.busy))
    await sql(postgres, database, "UPDATE totals SET at = at - 13 * 86400 WHERE span_s = 3600")
    for days in (0, 2, 400):
        await sql(postgres, database, f"UPDATE totals SET at = at - {days} * 86400")  # noqa: S608 - a number
        until_round = len(rounds) + 2
        await until(lambda until_round=until_round: len(rounds) >= until_round)
        left = await sql(postgres, database, "SELECT DISTINCT span_s FROM totals ORDER BY 1")
        assert [row["span_s"] for row in left] == {0: [3600, 86400], 2: [86400], 400: []}[days]
    await serving.stop()


async def test_rows_of_stored_batches_are_taken_away_after_many_batches(postgres, database, monkeypatch):
    monkeypatch.setattr(journal, "_MANY", 3)
    serving = await served(database)
    first = "SELECT min(number) AS number FROM batches WHERE beat = 0"
    async with asyncio.timeout(SOON_S):
        last = await serving.put()
        while (await sql(postgres, database, first))[0]["number"] == 1:
            assert (await sql(postgres, database, "SELECT last_id FROM lease_now"))[0]["last_id"] == last
            last = await serving.put()
    assert (await serving.put(), serving.failures) == (last + 1, [])
    await serving.stop()


@pytest.mark.parametrize("last", ["beat", "batch"])
async def test_idle_server_is_seen_after_old_rows_are_taken_away(postgres, database, last):
    serving = await served(database, lease_s=100)
    reader = serving.journal._reader
    await until(lambda: reader._kept_above is not None)  # it begins with a look for old rows
    await serving.put()
    if last == "beat":
        await serving.journal._sender._keep_lease()
    await sql(postgres, database, "UPDATE lease SET seen_at = seen_at - 3600")  # as if the start were long ago
    seen = "SELECT status, seen_at FROM alive"
    before = await sql(postgres, database, seen)
    for _ in range(3):
        await reader.prune(0)
        assert await sql(postgres, database, seen) == before
    assert before[0]["status"] == "serving"
    assert len(await sql(postgres, database, "SELECT FROM batches")) == 1
    await serving.stop()


async def test_what_keeps_old_rows_in_the_database_is_named(database, monkeypatch, caplog):
    monkeypatch.setattr(journal, "_MANY", 3)
    monkeypatch.setattr(recovery, "_OLD", 5)
    forgotten = await asyncpg.connect(database, server_settings={"application_name": "pg_dump"})
    await forgotten.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    await forgotten.execute("SELECT")
    serving = await served(database)
    named = f"can't remove old rows, and grows: process {forgotten.get_server_pid()} pg_dump has held"
    async with asyncio.timeout(SOON_S):
        while named not in caplog.text:
            await serving.put()
    await forgotten.close()
    await serving.stop()


async def test_a_bug_in_what_takes_old_totals_away_stops_the_server(database, monkeypatch):
    async def wrong(*_, **__):
        raise bug

    bug = LookupError("a bug")
    monkeypatch.setattr(Reader, "prune", wrong)
    serving = await served(database)
    await until(lambda: serving.failures)
    assert serving.failures == [bug]
    await serving.abandon()


def reader_beside(serving, url):
    return Reader(url, "it", "beside", lambda: serving.journal._sender.standing)


async def test_bodies_are_read_while_pruning_waits_for_the_standby(pair):
    serving = await served(pair.url(), lease_s=100)
    job_id = await serving.put()
    await pair.primary.asql("INSERT INTO totals SELECT 3600, 2000000000, 'old', 0, 0, 0, 0, 0, 0, 0, 0, 0", "queue")
    await asyncio.to_thread(pair.standby.stop)
    reader = reader_beside(serving, pair.url())
    pruning = asyncio.create_task(reader.prune(LATER_S))
    async with asyncio.timeout(SOON_S):
        while not await pair.primary.asql(WAITS):
            await asyncio.sleep(0.01)
        assert await reader.bodies([job_id], serving.core.engine.jobs.find) == [b"job"]
    assert not pruning.done()
    reader.close()
    await pruning
    await serving.abandon()


async def test_rows_of_batches_are_taken_away_after_a_batch_that_is_stored(postgres, database, caplog):
    serving = await served(database, lease_s=100)
    serving.journal._pruning.cancel()
    await asyncio.wait({serving.journal._pruning})
    await serving.put()
    reader = reader_beside(serving, database)
    batch = await asyncpg.connect(database)
    async with batch.transaction():
        await batch.execute("SELECT FROM lease FOR UPDATE")
        pruning = asyncio.create_task(reader.prune(LATER_S))
        waits = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query_start < now() - interval '0.5 s'"
        async with asyncio.timeout(SOON_S):
            while not (pruning.done() or await sql(postgres, database, waits)):
                await asyncio.sleep(0.01)
    await batch.close()
    await asyncio.wait_for(pruning, SOON_S)
    assert "could not delete" not in caplog.text
    reader.close()
    await serving.stop()


async def test_old_totals_locked_by_another_program_stay_for_the_next_hour(postgres, database, caplog):
    serving = await served(database, lease_s=100)
    serving.journal._pruning.cancel()  # its own round of them, which may still be under way
    await asyncio.wait({serving.journal._pruning})
    reader = reader_beside(serving, database)
    holder = await asyncpg.connect(database)
    async with holder.transaction():
        await holder.execute("LOCK TABLE totals")
        await asyncio.wait_for(reader.prune(LATER_S), SOON_S)
        assert "could not delete old totals and batches" in caplog.text
        assert await sql(postgres, database, "SELECT FROM pg_locks WHERE NOT granted") == []
    await holder.close()
    reader.close()
    await serving.stop()


@pytest.fixture
def worn_out():
    """A database that has to be vacuumed before 30 million more transactions, and says so at each."""
    need(programs(), "PostgreSQL is not installed")
    cluster = Cluster(home := new_home(), "worn")
    cluster.make()
    in_a_file = 4 * 8192 * 32
    number = (2**31 - 30_000_000) // in_a_file
    _run(_program("pg_resetwal"), "-x", str(number * in_a_file), "-D", cluster.data)
    file, owner = cluster.data / "pg_xact" / f"{number:04X}", cluster.data.stat()
    file.write_bytes(bytes(in_a_file // 4))
    shutil.chown(file, owner.st_uid, owner.st_gid)
    file.chmod(0o600)
    cluster.start()
    yield cluster
    cluster.kill()
    shutil.rmtree(home)


async def test_a_database_that_has_to_be_vacuumed_soon_serves_until_then(worn_out, caplog):
    serving = await asyncio.wait_for(served(worn_out.url()), SOON_S)
    assert await serving.put() == 1
    assert "database warning" in caplog.text
    await serving.stop()


async def test_status_shows_a_server_halted_amid_a_transaction_as_silent(database, monkeypatch):
    serving = await served(database)
    halted = await asyncpg.connect(database, server_settings={"application_name": name_of("other")})
    await halted.execute("BEGIN; SELECT 1")
    assert (await asyncio.to_thread(status, database))["standing_by"] == ["other"]
    monkeypatch.setattr(status_module, "_SILENT_S", 0.0)
    found = await asyncio.to_thread(status, database)
    assert (found["standing_by"], found["silent"]) == ([], ["other"])
    await halted.close()
    await serving.stop()


async def test_status_shows_a_standby_with_the_name_of_the_active_server(database):
    first = await served(database, lease_s=100)
    assert (await asyncio.to_thread(status, database))["standing_by"] == []
    second = ServingPostgres(Postgres(database, lease_s=100))
    waiting = asyncio.create_task(second.start())
    await until(lambda: second.medium.standing_by == [True])
    assert (await asyncio.to_thread(status, database))["standing_by"] == ["here"]
    await first.stop()
    await (await asyncio.wait_for(waiting, SOON_S)).stop()
