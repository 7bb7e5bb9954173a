"""The journal in PostgreSQL, on a real database: what it stores, and what it does when that fails."""

import asyncio
import os
import re
import signal
import sqlite3
import subprocess

import pytest

from beanlite.clock import Clock
from beanlite.core.job import BURIED, DELAYED, ID_BITS, READY, SECOND_NS
from beanlite.errors import JournalFailed, JournalRefused, LeaseLost
from beanlite.journal.postgres import sender
from beanlite.journal.postgres.journal import Place, PostgresJournal
from beanlite.journal.postgres.link import Link
from beanlite.journal.sqlite.database import open_database
from tests.journal.test_base import Serving
from tests.support.core import put
from tests.support.cutting import Cutting
from tests.support.postgres import Pair

LEASE_S = 1
SOON_S = 10


async def until(true):
    """Wait until it is, by looking at it in each turn of the loop."""
    async with asyncio.timeout(SOON_S):
        while not true():
            await asyncio.sleep(0.001)


@pytest.fixture(autouse=True)
async def _no_connection_is_left(monkeypatch):
    made = []
    init = Link.__init__

    def noted(link, connection):
        init(link, connection)
        made.append((link, asyncio.current_task()))

    monkeypatch.setattr(Link, "__init__", noted)
    yield
    for _ in range(5):
        await asyncio.sleep(0)
    assert [task for link, task in made if not link.connection.is_closed()] == []


class Postgres:
    """A database, as the medium of a journal."""

    def __init__(self, url, *, lease_s=LEASE_S, require_sync=False, node="here"):
        self._place = Place(url, node, "127.0.0.1:11300", lease_s, require_sync)
        self.url = url
        self.standing_by = []

    def open(self):
        return PostgresJournal(self._place, Clock(), self.standing_by.append)


class ServingPostgres(Serving):
    """Time is the real one: the lease depends on it."""

    async def start(self):
        self.core.now_ns = Clock()()
        return await super().start()

    def release(self, replies):
        self.released.append(int(replies))

    async def put(self, body=b"job"):
        job_id = self.begin_to_put(body)
        await until(lambda: job_id in self.released or self.failures)
        return job_id

    def begin_to_put(self, body=b"job"):
        job_id = put(self.core, self.client, body=body)
        self.group.hold(self, b"%d" % job_id)
        return job_id

    async def abandon(self):
        """As if the process had been killed."""
        self.journal._sender.end()
        self.journal._reader.close()
        await asyncio.wait({self.journal._pruning})


async def served(url, **others):
    return await ServingPostgres(Postgres(url, **others)).start()


async def sql(postgres, database, statement):
    return await postgres.asql(statement, database.rpartition("/")[2])


def told(core):
    """All that is known of each job; the time that is left, and ages, are given in seconds by the same clock."""
    tell = {}
    for job_id in range(1, core.engine.last_id + 1):
        job = core.engine.jobs.find(job_id)
        if job is not None:
            near_ns = SECOND_NS // 1000
            due_ns = job.key >> ID_BITS if job.state is not READY else 0
            due_ns //= 1 if job.state is BURIED else near_ns
            past = job.past
            tell[job_id] = (
                job.tube.name, job.state, job.pri, job.delay_s, job.ttr_s, job.created_ns // near_ns, due_ns, job.body,
                job.reserves, past.timeouts, past.releases, past.buries, past.kicks, job.why,
                job.last_holder and (job.last_holder.address, job.last_holder.number),
            )  # fmt: skip
    return tell


async def test_all_that_is_known_of_jobs_and_pauses_is_there_after_a_restart(postgres, database):
    serving = await served(database)
    core = serving.core
    worker = core.client()
    for line in (
        b"use mail\r\n", b"watch mail\r\n",
        b"put 5 0 60 5\r\nready\r\n", b"put 4294967295 1000 4294967295 4\r\n\x00\xff\r\n\r\n", b"put 1 0 9 0\r\n\r\n",
        b"put 0 0 60 2000\r\n" + b"x" * 2000 + b"\r\n", b"reserve-job 3\r\n", b"bury 3 7\r\n", b"reserve-job 4\r\n",
        b"release 4 9 0\r\n", b"put 2 0 50 4\r\nkick\r\n", b"reserve-job 5\r\n", b"bury 5 1\r\n", b"kick-job 5\r\n",
        b"pause-tube mail 1000\r\n", b"put 0 0 60 4\r\ngone\r\n", b"delete 6\r\n",
    ):  # fmt: skip
        assert not re.match(rb"NOT_FOUND|BAD|EXPECTED|UNKNOWN", core.send(worker, line)), line
    await serving.put()
    core.send(worker, b"reserve-job 1\r\n")  # nobody is promised that
    before = told(core)
    await serving.stop()
    again = await served(database)
    after = told(again.core)
    assert before[1][1].value == "reserved"
    assert after.pop(1)[1].value == "ready"
    before.pop(1)
    assert after == before
    paused = again.core.engine.tubes[b"mail"]
    assert (paused.pause_s, paused.pause_until_ns // SECOND_NS) == (
        1000,
        core.engine.tubes[b"mail"].pause_until_ns // SECOND_NS,
    )
    assert again.core.engine.last_id == core.engine.last_id
    (totals,) = await sql(postgres, database, "SELECT put, buried, kicked, deleted FROM days WHERE tube = 'mail'")
    assert tuple(totals) == (6, 2, 1, 1)
    await again.stop()


async def test_two_nodes_whose_clocks_differ_have_the_same_time(database):
    serving = await served(database)
    assert serving.core.send(serving.client, b"put 0 1000 60 1\r\nx\r\n") == b"INSERTED 1\r\n"
    await serving.put()
    await serving.stop()
    other = ServingPostgres(Postgres(database))
    clock = Clock(utc_ns=lambda: Clock().utc_ns() + 3600 * SECOND_NS)
    other.core.clock = lambda: clock  # type: ignore[method-assign]
    await other.start()
    job = other.core.engine.jobs.find(1)
    assert job.state is DELAYED
    assert 900 < ((job.key >> ID_BITS) - clock()) // SECOND_NS <= 1000
    await other.stop()


async def test_the_views_show_what_those_of_the_file_show(postgres, database, tmp_path):
    open_database(tmp_path / "q.db").close()
    file = sqlite3.connect(tmp_path / "q.db")
    serving = await served(database)
    await serving.put("größer\n".encode() + b"\xff")
    views = {name for (name,) in file.execute("SELECT name FROM sqlite_schema WHERE type = 'view'")} - {"events"}
    columns = await sql(postgres, database, "SELECT table_name, column_name FROM information_schema.columns")
    for view in views:
        rows = await sql(postgres, database, f"TABLE {view}")
        ours = {name for shown, name in columns if shown == view}
        theirs = {name for (name,) in file.execute("SELECT name FROM pragma_table_info(?)", (view,))}
        assert theirs - ours == ({"pid"} if view == "alive" else set()), view
        assert bool(rows) == (view not in {"delayed", "reserved", "buried", "hours", "days", "rates"}), view
    file.close()
    await serving.stop()


async def test_bodies_are_fetched_in_the_order_in_which_they_are_asked_for(database):
    serving = await served(database)
    small, large = [await serving.put(body) for body in (b"small", b"large" * 1000)]
    assert await serving.journal.fetch([large, 4711, small]) == [b"large" * 1000, None, b"small"]
    await serving.stop()


async def test_bodies_for_which_there_is_no_memory_stay_in_the_database(database):
    serving = await served(database)
    for _ in range(200):
        serving.begin_to_put(b"x" * 60_000)
    await serving.put()
    await serving.stop()
    again = ServingPostgres(Postgres(database))
    again.core.engine.bound_memory(64 << 20, 1 << 20, fetches=True)
    await again.start()
    memory = again.core.engine.memory
    assert 50 < memory.unloaded < 201  # the last one is small
    assert memory.unloaded_bytes == (memory.unloaded - 1) * 60_000 + len(b"job")
    assert len(again.core.engine.jobs) == 201
    await again.stop()


# -- the lease


async def test_a_second_server_takes_over_when_the_first_is_not_heard_of_any_more(database):
    first = await served(database, node="first")
    job_id = await first.put()
    second = ServingPostgres(Postgres(database, node="second"))
    waiting = asyncio.create_task(second.start())
    await until(lambda: second.medium.standing_by == [True])
    for _ in range(3):
        await asyncio.sleep(LEASE_S / 2)  # it lives, though it has nothing to do
    assert not waiting.done()
    await first.abandon()
    await asyncio.wait_for(waiting, SOON_S)
    assert second.medium.standing_by == [True, False]
    assert second.core.engine.jobs.find(job_id).body == b"job"
    assert second.core.engine.last_id == job_id
    await second.stop()


async def test_what_is_given_back_is_taken_at_once(database):
    first = await served(database, node="first", lease_s=1000)
    second = ServingPostgres(Postgres(database, node="second", lease_s=1000))
    waiting = asyncio.create_task(second.start())
    await until(lambda: second.medium.standing_by == [True])
    await first.stop()
    await asyncio.wait_for(waiting, SOON_S)
    await second.stop()


async def test_of_two_that_stand_by_one_takes_over(database):
    first = await served(database, node="first")
    others = [ServingPostgres(Postgres(database, node=f"other {number}")) for number in range(2)]
    waiting = {asyncio.create_task(other.start()) for other in others}
    await until(lambda: all(other.medium.standing_by == [True] for other in others))
    await first.abandon()
    done, left = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    await asyncio.sleep(2 * LEASE_S)
    assert len(done) == len(left) == 1
    assert not next(iter(left)).done()
    await done.pop().result().stop()
    await (await asyncio.wait_for(left.pop(), SOON_S)).stop()


async def taken_over(postgres, database):
    await sql(postgres, database, "UPDATE lease SET epoch = epoch + 1, node = 'another', beat = beat + 1")


async def test_who_has_lost_the_lease_stores_and_acknowledges_nothing(postgres, database):
    serving = await served(database, lease_s=100)
    before = await serving.put()
    await taken_over(postgres, database)
    await serving.put()
    assert [type(failure) for failure in serving.failures] == [LeaseLost]
    assert "another" in str(serving.failures[0])
    assert serving.released == [before]
    assert await sql(postgres, database, "SELECT id FROM jobs") == [(before,)]


async def test_without_the_fence_it_would(postgres, database, monkeypatch):
    """That the test above can fail."""
    row = Link.row

    def without_the_fence(link, statement, *parameters):
        return row(link, statement.replace("WHERE epoch = $1 AND batch", "WHERE $1 > 0 AND batch"), *parameters)

    monkeypatch.setattr(Link, "row", without_the_fence)
    serving = await served(database, lease_s=100)
    await taken_over(postgres, database)
    job_id = await serving.put()
    assert serving.released == [job_id]
    await serving.abandon()


async def test_who_is_not_sure_of_the_lease_is_in_doubt(database):
    async with Cutting(int(database.partition("127.0.0.1:")[2].partition("/")[0])) as way:
        serving = await served(re.sub(r":\d+/", f":{way.port}/", database))
        assert not serving.journal.in_doubt
        way.refuses = True
        way.cut()
        await until(lambda: serving.journal.in_doubt)
        assert not serving.failures
        way.refuses = False
        await until(lambda: not serving.journal.in_doubt)
        await serving.stop()


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


# -- lost connections


@pytest.fixture
async def way(postgres):
    async with Cutting(postgres.port) as way:
        yield way


@pytest.mark.parametrize("lost", ["question", "answer"])
async def test_a_batch_is_stored_once_whether_it_or_its_answer_was_lost(postgres, database, way, lost):
    serving = await served(f"postgresql://queue@127.0.0.1:{way.port}/{database.rpartition('/')[2]}", lease_s=100)
    jobs = [await serving.put()]
    for cuts in range(1, 6):
        way.cut_at = lost
        jobs.append(await serving.put())
        assert way.cuts == cuts
    assert serving.released == jobs
    assert serving.failures == []
    assert await sql(postgres, database, "SELECT id FROM jobs ORDER BY id") == [(job_id,) for job_id in jobs]
    (totals,) = await sql(postgres, database, "SELECT (SELECT batch FROM lease) AS batch")
    assert totals["batch"] == serving.core.engine.ledger.stored_batch
    await serving.stop()


async def test_a_connection_that_says_nothing_any_more_is_given_up(database, way, monkeypatch):
    monkeypatch.setattr(sender, "_LOOK_AFTER_S", 0.1)
    serving = await served(f"postgresql://queue@127.0.0.1:{way.port}/{database.rpartition('/')[2]}")
    way.cut_at = "silence"
    job_id = serving.begin_to_put()
    await until(lambda: serving.journal.in_doubt)
    assert serving.released == []
    way.cut_at = None
    await until(lambda: serving.released == [job_id])
    await serving.stop()


async def test_a_loss_of_commits_is_noticed(postgres, database):
    """As after the promotion of a standby that was behind."""
    serving = await served(database, lease_s=100)
    await serving.put()
    await sql(postgres, database, "UPDATE lease SET batch = 0, last_id = 0")
    await sql(postgres, database, "DELETE FROM jobs")
    await serving.put()
    assert [type(failure) for failure in serving.failures] == [JournalFailed]
    assert "lost commits" in str(serving.failures[0])


async def test_a_full_disk_refuses_puts_until_there_is_room_again(postgres, database):
    serving = await served(database, lease_s=100)
    await serving.put()
    await sql(
        postgres,
        database,
        """CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$
           BEGIN RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = '53100'; END $$""",
    )
    await sql(
        postgres,
        database,
        "CREATE TRIGGER full_disk BEFORE INSERT ON jobs FOR EACH STATEMENT EXECUTE FUNCTION full_disk()",
    )
    job_id = serving.begin_to_put()
    await until(lambda: serving.core.engine.admission.disk_full)
    assert serving.core.send(serving.client, b"put 0 0 60 1\r\nx\r\n") == b"OUT_OF_MEMORY\r\n"
    assert job_id not in serving.released
    await sql(postgres, database, "DROP TRIGGER full_disk ON jobs")
    await until(lambda: job_id in serving.released)
    assert not serving.core.engine.admission.disk_full
    await serving.stop()


# -- what is refused at the start


async def refusal(url, **others):
    journal = Postgres(url, **others).open()
    serving = ServingPostgres(Postgres(url))
    with pytest.raises(JournalRefused) as refused:
        await asyncio.wait_for(journal.recover(serving.core.engine, serving.core.clock(), asyncio.Event()), SOON_S)
    assert "\n" not in str(refused.value)
    return str(refused.value)


async def test_a_database_without_a_synchronous_standby_is_refused(database):
    assert "no synchronous standby" in await refusal(database, require_sync=True)


async def test_a_database_that_is_not_ours_is_refused(postgres, database):
    await sql(postgres, database, "CREATE TABLE jobs (id integer)")
    assert "not beanlite's" in await refusal(database)


async def test_a_newer_schema_is_refused(postgres, database):
    await (await served(database)).stop()
    await sql(postgres, database, "UPDATE schema_version SET number = 99")
    assert "use a newer beanlite" in await refusal(database)


async def test_another_encoding_is_refused(postgres):
    await postgres.asql("CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'")
    assert "has the encoding LATIN1" in await refusal(postgres.url("latin"))


async def test_a_wrong_password_is_refused_and_not_told(postgres, database):
    await postgres.asql("CREATE ROLE stranger LOGIN PASSWORD 'right'")
    said = await refusal(database.replace("queue@", "stranger:wr0ng@"))
    assert "password authentication failed" in said
    assert "wr0ng" not in said


async def test_a_database_that_does_not_exist_is_refused(postgres):
    assert 'database "nowhere" does not exist' in await refusal(postgres.url("nowhere"))


async def test_a_changed_body_is_refused(postgres, database):
    serving = await served(database)
    await serving.put()
    await serving.stop()
    await sql(postgres, database, "UPDATE jobs SET body = 'other'")
    assert "the body of job 1 has changed" in await refusal(database)


# -- with a standby


@pytest.fixture
def pair():
    pair = Pair()
    yield pair
    pair.end()


def receiver_of(standby):
    """The process of a standby that takes over what the primary has written."""
    command = ["pgrep", "-P", str(standby.process.pid), "-f", "walreceiver"]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


async def test_nothing_is_acknowledged_without_the_standby_even_if_the_wait_is_cancelled(pair, monkeypatch):
    monkeypatch.setattr(sender, "_LOOK_AFTER_S", 0.2)
    serving = await served(pair.url(), require_sync=True)
    await serving.put()
    receiver = receiver_of(pair.standby)
    os.kill(receiver, signal.SIGSTOP)
    job_id = serving.begin_to_put()
    seen = set()
    while len(seen) < 3:  # the batch, and two that look for it
        for row in await pair.primary.asql("SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"):
            seen.add(row["pid"])
            await pair.primary.asql(f"SELECT pg_cancel_backend({row['pid']})")
    assert job_id not in serving.released
    os.kill(receiver, signal.SIGCONT)
    await until(lambda: job_id in serving.released)
    assert serving.failures == []
    assert await pair.primary.asql("SELECT id FROM jobs ORDER BY id", "queue") == [(1,), (2,)]
    await serving.stop()


async def test_a_standby_that_was_behind_is_noticed_when_it_is_promoted(pair):
    """It was asynchronous, as require_sync = false allows."""
    for cluster in (pair.primary, pair.standby):
        await cluster.asql("ALTER SYSTEM SET synchronous_standby_names = ''")
        await cluster.asql("SELECT pg_reload_conf()")
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
