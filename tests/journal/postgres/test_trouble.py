"""What happens to a batch when the connection, the database or its disk is lost."""

import asyncio
import gc

import asyncpg
import pytest

from beanlite.errors import JournalFailed
from beanlite.journal.postgres import recovery, sender
from beanlite.journal.postgres.link import TROUBLE, Link, connect, text_of
from beanlite.journal.postgres.recovery import Reader
from tests.journal.postgres.serving import SOON_S, by, by_few, served, sql, until


async def test_another_hand_at_our_rows_ends_the_server(postgres, database):
    serving = await served(database, lease_s=100)
    job_id = await serving.put()
    await sql(postgres, database, "DELETE FROM jobs")
    serving.core.send(serving.client, b"delete %d\r\n" % job_id)
    await serving.put()
    assert [type(failure) for failure in serving.failures] == [JournalFailed]
    assert "another program has changed rows" in str(serving.failures[0])
    assert await sql(postgres, database, "SELECT id FROM jobs") == []  # the whole batch is left out


async def test_a_change_of_a_job_that_is_not_there_makes_no_job(postgres, database):
    serving = await served(database, lease_s=100)
    job_id = await serving.put()
    await sql(postgres, database, "DELETE FROM jobs")
    serving.core.send(serving.client, b"reserve\r\nbury %d 0\r\n" % job_id)
    await serving.put()
    assert [type(failure) for failure in serving.failures] == [JournalFailed]
    assert await sql(postgres, database, "SELECT id FROM jobs") == []


@pytest.mark.parametrize("lost", ["question", "answer"])
async def test_a_batch_is_stored_once_whether_it_or_its_answer_was_lost(postgres, database, way, lost):
    serving = await served(by(way, database), lease_s=100)
    jobs = [await serving.put()]
    for cuts in range(1, 6):
        way.cut_at = lost
        jobs.append(await serving.put())
        assert way.cuts == cuts
    assert serving.released == jobs
    assert serving.failures == []
    assert await sql(postgres, database, "SELECT id FROM jobs ORDER BY id") == [(job_id,) for job_id in jobs]
    (totals,) = await sql(postgres, database, "SELECT batch FROM lease_now")
    assert totals["batch"] == serving.core.engine.ledger.stored_batch
    await serving.stop()


async def test_a_beat_and_a_batch_do_not_meet_on_the_connection(database):
    serving = await served(database, lease_s=100)
    sender = serving.journal._sender
    link = sender._link
    for _ in range(20):
        job_id = serving.begin_to_put()
        sender._start(sender._keep_lease())
        await until(lambda job_id=job_id: job_id in serving.released or serving.failures)
    assert serving.failures == []
    assert sender._link is link
    await serving.stop()


async def test_a_connection_that_has_ended_still_tells_whose_it_was(database):
    link = await connect(database, "it")
    pid = await link.connection.fetchval("SELECT pg_backend_pid()")
    link.drop()
    await asyncio.sleep(0)
    assert link.pid == pid


async def test_statement_amid_the_end_of_its_connection_is_told_in_words(database):
    """PostgreSQL has said that it ends the connection, and has not closed it yet."""
    link = await connect(database, "it")
    said = b"SFATAL\0VFATAL\0C57P01\0Mterminating connection due to administrator command\0\0"
    protocol = getattr(link.connection, "_protocol")  # noqa: B009 - it has no type
    protocol.data_received(b"E" + (4 + len(said)).to_bytes(4, "big") + said)
    with pytest.raises(TROUBLE) as trouble:
        await link.row("SELECT 1")
    assert text_of(trouble.value) == "the connection has ended"
    link.drop()


async def test_a_connection_that_says_nothing_any_more_is_given_up(database, way, monkeypatch):
    monkeypatch.setattr(sender, "LOOK_AFTER_S", 0.1)
    serving = await served(by(way, database))
    way.cut_at = "silence"
    job_id = serving.begin_to_put()
    await until(lambda: serving.journal.in_doubt)
    assert serving.released == []
    way.cut_at = None
    await until(lambda: serving.released == [job_id])
    await serving.stop()


async def test_a_commit_that_waits_for_a_lock_says_whose(database, monkeypatch, caplog):
    monkeypatch.setattr(sender, "LOOK_AFTER_S", 0.1)
    serving = await served(database)
    holder = await asyncpg.connect(database)
    async with holder.transaction():
        await holder.execute("LOCK TABLE jobs")
        job_id = serving.begin_to_put()
        lock = f"commit is waiting: another program has a lock, in process {holder.get_server_pid()}"
        await until(lambda: lock in caplog.text)
    await holder.close()
    await until(lambda: serving.released == [job_id])
    await serving.stop()


async def test_start_that_waits_for_a_lock_on_jobs_says_whose(database, monkeypatch, caplog):
    monkeypatch.setattr(recovery, "LOOK_AFTER_S", 0.1)
    serving = await served(database)
    await serving.put()
    await serving.stop()
    holder = await asyncpg.connect(database)
    async with holder.transaction():
        await holder.execute("LOCK TABLE jobs")
        starting = asyncio.create_task(served(database))
        lock = f"read is waiting: another program has a lock, in process {holder.get_server_pid()}"
        await until(lambda: lock in caplog.text)
    await holder.close()
    serving = await asyncio.wait_for(starting, SOON_S)
    assert len(serving.core.engine.jobs) == 1
    await serving.stop()


async def test_commit_that_waits_is_looked_after_whatever_the_lease(database, caplog):
    serving = await served(database, lease_s=999)
    holder = await asyncpg.connect(database)
    async with holder.transaction():
        await holder.execute("LOCK TABLE jobs")
        serving.begin_to_put()
        await until(lambda: "commit is waiting: another program has a lock" in caplog.text)
    await holder.close()
    await until(lambda: serving.released)
    await serving.stop()


@pytest.mark.usefixtures("patient")
async def test_waiting_commit_is_found_whatever_the_name_of_its_server(database, monkeypatch, caplog):
    monkeypatch.setattr(sender, "LOOK_AFTER_S", 0.1)
    serving = await served(database, node="größer\t1\x7f")
    link = serving.journal._sender._link
    holder = await asyncpg.connect(database)
    async with holder.transaction():
        await holder.execute("LOCK TABLE jobs")
        job_id = serving.begin_to_put()
        await until(lambda: "another program has a lock" in caplog.text or serving.journal._sender._link is not link)
    await holder.close()
    await until(lambda: serving.released == [job_id])
    assert serving.journal._sender._link is link
    await serving.stop()


@pytest.mark.usefixtures("patient")
async def test_waiting_commit_keeps_its_connection_if_none_is_left(postgres, database, monkeypatch, caplog):
    monkeypatch.setattr(sender, "LOOK_AFTER_S", 0.1)
    role, url = await by_few(postgres, database)
    serving = await served(url)
    link = serving.journal._sender._link
    await postgres.asql(f"ALTER ROLE {role} CONNECTION LIMIT 1")
    holder = await asyncpg.connect(database)
    async with holder.transaction():
        await holder.execute("LOCK TABLE jobs")
        job_id = serving.begin_to_put()
        waits = "all connections of the database are in use"
        await until(lambda: waits in caplog.text or serving.journal._sender._link is not link)
    await holder.close()
    await until(lambda: serving.released == [job_id])
    assert serving.journal._sender._link is link
    await serving.stop()


async def test_batch_whose_first_copy_waits_for_a_lock_is_stored_once(postgres, database):
    """The database does not notice that the connection is lost while a statement waits."""
    serving = await served(database, lease_s=100)
    before = await serving.put()
    holder = await asyncpg.connect(database)
    async with holder.transaction():
        await holder.execute("LOCK TABLE jobs")
        job_id = serving.begin_to_put()
        for copies in (1, 2):
            async with asyncio.timeout(SOON_S):
                while len(await sql(postgres, database, "SELECT FROM pg_locks WHERE NOT granted")) < copies:
                    await asyncio.sleep(0.001)
            if copies == 1:
                serving.journal._sender._link.drop()
    await holder.close()
    await until(lambda: job_id in serving.released or serving.failures)
    assert serving.failures == []
    after = await serving.put()
    assert await sql(postgres, database, "SELECT id FROM jobs ORDER BY id") == [(before,), (job_id,), (after,)]
    await serving.stop()


async def test_copy_stored_after_a_later_one_found_no_room_is_ours(postgres, database, monkeypatch):
    serving = await served(database, lease_s=100)
    before = await serving.put()
    holder = await asyncpg.connect(database)
    row, full = Link.row, True

    async def without_room(link, statement, *parameters, **others):
        if full and "fence" in statement:
            raise asyncpg.DiskFullError("no room")
        return await row(link, statement, *parameters, **others)

    async with holder.transaction():
        await holder.execute("LOCK TABLE jobs")
        job_id = serving.begin_to_put()
        async with asyncio.timeout(SOON_S):
            while not await sql(postgres, database, "SELECT FROM pg_locks WHERE NOT granted"):
                await asyncio.sleep(0.001)
        monkeypatch.setattr(Link, "row", without_room)
        serving.journal._sender._link.drop()
        await until(lambda: serving.core.engine.admission.disk_full or serving.failures)
    await holder.close()
    async with asyncio.timeout(SOON_S):
        while await sql(postgres, database, "SELECT id FROM jobs ORDER BY id") != [(before,), (job_id,)]:
            await asyncio.sleep(0.001)
    await serving.journal._sender._keep_lease()
    assert serving.failures == []
    full = False
    await until(lambda: job_id in serving.released or serving.failures)
    assert serving.failures == []
    await serving.stop()


async def test_a_batch_that_a_deadlock_undoes_is_sent_again(postgres, database):
    """Another program locks the tables in another order."""
    await postgres.asql(f"ALTER DATABASE {database.rpartition('/')[2]} SET deadlock_timeout = '3s'")
    serving = await served(database, lease_s=100)
    await serving.put()
    holder = await asyncpg.connect(database, server_settings={"deadlock_timeout": "1h"})
    async with holder.transaction():
        await holder.execute("LOCK TABLE jobs")
        job_id = serving.begin_to_put()
        while not await sql(postgres, database, "SELECT FROM pg_locks WHERE NOT granted"):
            await asyncio.sleep(0.001)
        await holder.execute("LOCK TABLE lease")
        assert job_id not in serving.released
    await holder.close()
    await until(lambda: job_id in serving.released)
    assert serving.failures == []
    await serving.stop()


async def test_batch_that_brings_trouble_is_sent_again_after_a_pause(postgres, database, monkeypatch):
    monkeypatch.setattr(sender, "AGAIN_S", 1)
    serving = await served(database, lease_s=100)
    await lacking(postgres, database, "jobs", "true", ("57014", "statement was cancelled"))
    job_id = serving.begin_to_put()
    await until(lambda: serving.journal._sender._unanswered)
    await asyncio.sleep(0.8)
    ((times,),) = await sql(postgres, database, "SELECT last_value FROM lacks")
    assert times <= 3
    await sql(postgres, database, "DROP TRIGGER lack ON jobs")
    await until(lambda: job_id in serving.released)
    await serving.stop()


async def test_batch_that_another_stored_is_not_taken_for_the_lost_one(postgres, database, way):
    """As after the restoration of another server's database."""
    serving = await served(by(way, database), lease_s=100)
    before = await serving.put()
    await sql(postgres, database, "UPDATE lease SET batch = batch + 10")
    way.cut_at = "question"
    await serving.put()
    assert way.cuts == 1
    assert [type(failure) for failure in serving.failures] == [JournalFailed]
    assert serving.released == [before]


async def test_a_loss_of_commits_is_noticed(postgres, database):
    """As after the promotion of a standby that was behind."""
    serving = await served(database, lease_s=100)
    await serving.put()
    await sql(postgres, database, "UPDATE lease SET batch = 0, last_id = 0")
    await sql(postgres, database, "DELETE FROM batches")
    await sql(postgres, database, "DELETE FROM jobs")
    await serving.put()
    assert [type(failure) for failure in serving.failures] == [JournalFailed]
    assert "lost commits" in str(serving.failures[0])


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("53100", "could not extend file: No space left on device"),
        ("53200", "out of memory"),
        ("53400", "temporary file size exceeds temp_file_limit"),
    ],
)
async def test_puts_are_refused_until_there_is_room_or_memory_again(postgres, database, code, why):
    serving = await served(database, lease_s=100)
    await serving.put()
    await lacking(postgres, database, "jobs", "true", (code, why))
    job_id = serving.begin_to_put()
    await until(lambda: serving.core.engine.admission.disk_full or serving.failures)
    assert serving.failures == []
    assert serving.core.send(serving.client, b"put 0 0 60 1\r\nx\r\n") == b"OUT_OF_MEMORY\r\n"
    assert job_id not in serving.released
    await sql(postgres, database, "DROP TRIGGER lack ON jobs")
    await until(lambda: job_id in serving.released)
    assert not serving.core.engine.admission.disk_full
    await serving.stop()


async def lacking(postgres, database, table, condition, error=("53100", "no room")):
    """Let there be no room for certain rows of a table, or another error; a sequence counts how often."""
    for statement in (
        "CREATE SEQUENCE lacks",
        f"""CREATE FUNCTION lack() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN PERFORM nextval('lacks'); RAISE EXCEPTION '{error[1]}' USING ERRCODE = '{error[0]}'; END $$""",
        f"CREATE TRIGGER lack BEFORE INSERT ON {table} FOR EACH ROW WHEN ({condition}) EXECUTE FUNCTION lack()",
    ):
        await sql(postgres, database, statement)


async def test_beat_without_room_refuses_puts_until_there_is_room(postgres, database, caplog):
    serving = await served(database, lease_s=100)
    await serving.put()
    await lacking(postgres, database, "batches", "NEW.beat <> 0")
    keep_lease = serving.journal._sender._keep_lease
    await asyncio.wait_for(keep_lease(), SOON_S)
    assert serving.core.send(serving.client, b"put 0 0 60 1\r\nx\r\n") == b"OUT_OF_MEMORY\r\n"
    assert "connection to the database lost" not in caplog.text
    await sql(postgres, database, "DROP TRIGGER lack ON batches")
    await keep_lease()
    assert not serving.core.engine.admission.disk_full
    assert serving.failures == []
    await serving.stop()


async def test_lost_connection_without_room_for_a_beat_refuses_puts(postgres, database):
    serving = await served(database, lease_s=100)
    await serving.put()
    await lacking(postgres, database, "batches", "NEW.beat <> 0")
    serving.journal._sender._link.drop()
    job_id = serving.begin_to_put()
    await until(lambda: serving.core.engine.admission.disk_full or serving.failures)
    await sql(postgres, database, "DROP TRIGGER lack ON batches")
    await until(lambda: job_id in serving.released or serving.failures)
    assert not serving.core.engine.admission.disk_full
    assert serving.failures == []
    await serving.stop()


async def test_room_for_a_beat_is_none_for_a_batch(postgres, database):
    serving = await served(database, lease_s=100)
    await lacking(postgres, database, "jobs", "true")
    job_id = serving.begin_to_put()
    await until(lambda: serving.core.engine.admission.disk_full or serving.failures)
    await serving.journal._sender._keep_lease()
    assert serving.core.engine.admission.disk_full
    await sql(postgres, database, "DROP TRIGGER lack ON jobs")
    await until(lambda: job_id in serving.released or serving.failures)
    await serving.stop()


@pytest.mark.parametrize("code", ["53100", "53200"])
async def test_a_body_that_can_not_be_read_for_now_is_read_later(postgres, database, caplog, code):
    """As when the database has no memory for the query, or no room for its temporary files."""
    serving = await served(database, lease_s=100)
    job_id = await serving.put()
    for statement in (
        f"""CREATE FUNCTION lack() RETURNS boolean LANGUAGE plpgsql AS $$
            BEGIN RAISE EXCEPTION 'not now' USING ERRCODE = '{code}'; END $$""",
        "ALTER TABLE jobs RENAME TO hidden",
        "CREATE VIEW jobs AS SELECT * FROM hidden WHERE lack()",
    ):
        await sql(postgres, database, statement)
    reading = asyncio.create_task(serving.journal.fetch([job_id]))
    await until(lambda: "could not read the database; trying again" in caplog.text or reading.done())
    for statement in ("DROP VIEW jobs", "ALTER TABLE hidden RENAME TO jobs"):
        await sql(postgres, database, statement)
    assert await asyncio.wait_for(reading, SOON_S) == [b"job"]
    await serving.stop()


async def test_row_missing_elsewhere_does_not_mean_that_a_job_is_gone(postgres, database):
    serving = await served(database, lease_s=100)
    job_id = await serving.put()
    elsewhere = await asyncio.to_thread(postgres.new_database)
    await (await served(elsewhere)).stop()
    serving.journal._reader.drop()
    serving.journal._reader._link = await connect(elsewhere, "it")
    assert await serving.journal.fetch([job_id]) == [b"job"]
    await serving.stop()


async def test_server_ends_if_another_program_deleted_a_row_to_be_read(postgres, database):
    """The job would be found again, and read again, for ever."""
    serving = await served(database, lease_s=100)
    job_id = await serving.put()
    await sql(postgres, database, "DELETE FROM jobs")
    with pytest.raises(JournalFailed, match="another program has changed rows"):
        await serving.journal.fetch([job_id])
    await serving.abandon()


@pytest.mark.parametrize("lost", ["refuses", "silence"])
async def test_a_stop_does_not_wait_for_bodies_that_can_not_be_read(database, way, caplog, lost):
    serving = await served(by(way, database), lease_s=100)
    job_id = await serving.put()
    assert await serving.journal.fetch([job_id]) == [b"job"]
    if lost == "silence":
        way.cut_at = lost
    else:
        way.refuses = True
        way.cut()
    reading = asyncio.create_task(serving.journal.fetch([job_id]))
    await until(lambda: way.cuts or "could not read the database; trying again" in caplog.text)
    serving.journal.begin_stop()
    assert await asyncio.wait_for(reading, SOON_S) == [None]
    assert await serving.journal.fetch([job_id]) == [None]
    assert serving.failures == []
    await serving.abandon()


async def test_stop_amid_the_recovery_reports_no_bug_of_its_reader(database):
    serving = await served(database, lease_s=100)
    await serving.put()
    bugs = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: bugs.append(context))
    reader = Reader(database, "it", "beside", lambda: serving.journal._sender.standing)
    reading = reader.jobs(lambda: True, 0)
    assert len(await anext(reading)) == 1
    reader.close()
    await asyncio.sleep(0)
    await reading.aclose()
    gc.collect()
    assert bugs == []
    await serving.stop()
