"""The lease: which server has it, which one takes it over, and what a server does that has lost it."""

import asyncio
import socket

import asyncpg
import pytest

from beanlite.core.job import SECOND_NS
from beanlite.errors import LeaseLost, ListenError
from beanlite.host.clock import Clock
from beanlite.journal.postgres.address import Entry
from beanlite.journal.postgres.journal import PostgresJournal
from beanlite.journal.postgres.link import Link
from beanlite.net.listener import open_listener
from beanlite.settings.sources import load
from tests.journal.postgres.serving import (
    LEASE_S,
    SOON_S,
    Postgres,
    ServingPostgres,
    by,
    made_by_an_older_version,
    refusal,
    served,
    sql,
    until,
)
from tests.support.core import Core
from tests.support.cutting import Cutting


async def test_second_server_takes_over_when_the_first_falls_silent(database):
    first = await served(database, node="first")
    job_id = await first.put()
    second = ServingPostgres(Postgres(database, node="second"))
    waiting = asyncio.create_task(second.start())
    await until(lambda: second.medium.standing_by == [True])
    for _ in range(3):
        await asyncio.sleep(LEASE_S / 2)  # it is alive, though it has nothing to do
    assert not waiting.done()
    await first.abandon()
    await asyncio.wait_for(waiting, SOON_S)
    assert second.medium.standing_by == [True, False]
    assert second.core.engine.jobs.find(job_id).body == b"job"
    assert second.core.engine.last_id == job_id
    await second.stop()


async def test_lease_that_was_not_given_back_counts_as_taken_over(postgres, database):
    counts = []
    for _ in range(2):
        serving = await served(database)
        counts.append(serving.journal.facts().tenure.takeovers)
        await serving.stop()
    await (await served(database)).abandon()
    serving = await served(database)
    counts.append(serving.journal.facts().tenure.takeovers)
    assert counts == [0, 0, 1]
    (row,) = await sql(postgres, database, "SELECT takeovers, epoch FROM alive")
    assert (*row, serving.journal.facts().tenure.epoch) == (1, 4, 4)
    await serving.stop()


async def test_a_batch_that_takes_longer_than_the_lease_loses_it_to_nobody(postgres, database):
    first = await served(database, node="first")
    second = ServingPostgres(Postgres(database, node="second"))
    waiting = asyncio.create_task(second.start())
    await until(lambda: second.medium.standing_by == [True])
    holder = await asyncpg.connect(database)
    async with holder.transaction():
        await holder.execute("LOCK TABLE jobs")
        job_id = first.begin_to_put()
        await until(lambda: first.journal._sender.sent_ns is not None)
        (before,) = await sql(postgres, database, "SELECT beat FROM lease_now")
        beats = 0
        async with asyncio.timeout(SOON_S):
            while beats < 10 and not waiting.done():  # for twice the time of the lease
                (row,) = await sql(postgres, database, "SELECT beat, epoch FROM lease_now")
                beats = row["beat"] - before["beat"]
                await asyncio.sleep(0.01)
        assert row["epoch"] == 1
        await until(lambda: not first.journal.in_doubt)
    await holder.close()
    await until(lambda: first.released == [job_id])
    await first.stop()
    await (await asyncio.wait_for(waiting, SOON_S)).stop()


async def test_lease_that_is_given_back_is_taken_at_once(database):
    first = await served(database, node="first", lease_s=1000)
    second = ServingPostgres(Postgres(database, node="second", lease_s=1000))
    waiting = asyncio.create_task(second.start())
    await until(lambda: second.medium.standing_by == [True])
    await first.stop()
    await asyncio.wait_for(waiting, SOON_S)
    await second.stop()


async def test_server_that_can_not_listen_gives_the_lease_back(postgres, database):
    """Another program has taken its port while it stood by: then the port is bound, but not listened on."""
    listener = open_listener(load(flags={"host": "127.0.0.1", "port": 0, "database": database}))
    with socket.create_server(listener.sockets[0].getsockname()):
        place = Entry(database, "here", listener.address, 1000, require_sync=False)
        journal = PostgresJournal(place, Clock(), listener.stand_by)
        with pytest.raises(ListenError):
            await journal.recover(Core().engine, Clock(), asyncio.Event())
    listener.close()
    (row,) = await sql(postgres, database, "SELECT epoch, stopped_at IS NOT NULL AS is_free FROM lease")
    assert tuple(row) == (1, True)


async def test_server_that_can_not_migrate_gives_the_lease_back(postgres, database):
    await made_by_an_older_version(database, 2)
    await sql(postgres, database, "UPDATE schema_version SET number = 1")  # what the next one adds is there
    assert "the migration 0002_lease.sql" in await refusal(database, lease_s=1000)
    (row,) = await sql(postgres, database, "SELECT epoch, stopped_at IS NOT NULL AS is_free FROM lease")
    assert tuple(row) == (1, True)


async def test_one_of_two_servers_that_stand_by_takes_over(database):
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


async def test_standby_gives_up_a_silent_connection(database, way):
    first = await served(database, node="first")
    second = ServingPostgres(Postgres(by(way, database), node="second"))
    waiting = asyncio.create_task(second.start())
    await until(lambda: second.medium.standing_by == [True])
    way.cut_at = "silence"
    await until(lambda: way.cuts)
    way.cut_at = None
    await first.abandon()
    await asyncio.wait_for(waiting, SOON_S)
    await second.stop()


async def test_standby_takes_over_if_all_hosts_lack_what_it_has_seen(postgres, database, caplog):
    """As after the promotion of an asynchronous standby, or the restoration of a backup."""
    first = await served(database, node="first")
    second = ServingPostgres(Postgres(database, node="second"))
    waiting = asyncio.create_task(second.start())
    await until(lambda: second.medium.standing_by == [True])
    await first.abandon()
    await sql(postgres, database, "DELETE FROM batches")
    end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'beanlite second'"
    await sql(postgres, database, end)
    await until(lambda: "could not connect to the database" in caplog.text)
    await asyncio.wait_for(waiting, SOON_S)
    await second.stop()


async def test_log_tells_an_earlier_lease_of_its_own_from_another_server(postgres, database, caplog):
    caplog.set_level("INFO")
    first = await served(database)
    await first.abandon()
    second = await served(database)
    assert "this server's earlier lease has to run out" in caplog.text
    await second.abandon()
    waiting = asyncio.create_task(served(database))
    await until(lambda: caplog.text.count("earlier lease") == 2)
    await sql(postgres, database, "UPDATE lease SET node = 'another', epoch = epoch + 1")
    await until(lambda: "another server is active" in caplog.text)
    await (await asyncio.wait_for(waiting, SOON_S)).stop()


class Still:
    """A clock that stands still until it is set, and counts how often it is read."""

    def __init__(self):
        self.now_ns = Clock()()
        self.looks = 0

    def __call__(self):
        self.looks += 1
        return self.now_ns

    async def looked_at(self):
        """Wait until it has been read several more times."""
        enough = self.looks + 9
        await until(lambda: self.looks > enough)


async def test_time_for_which_the_standby_did_not_look_does_not_count(database):
    """The standby's machine was suspended, perhaps together with that of the active server."""
    first = await served(database, node="first", lease_s=100)
    clock = Still()
    second = ServingPostgres(Postgres(database, node="second", lease_s=100, clock=clock))
    waiting = asyncio.create_task(second.start())
    await until(lambda: second.medium.standing_by == [True])
    clock.now_ns += 1000 * SECOND_NS
    await clock.looked_at()
    assert not waiting.done()
    await first.stop()
    await asyncio.wait_for(waiting, SOON_S)
    await second.stop()


async def test_the_longer_one_of_two_leases_counts(database):
    """The active server relies on its own setting."""
    first = await served(database, node="first", lease_s=1000)
    clock = Still()
    second = ServingPostgres(Postgres(database, node="second", lease_s=100, clock=clock))
    waiting = asyncio.create_task(second.start())
    await until(lambda: second.medium.standing_by == [True])
    for _ in range(20):
        clock.now_ns += 45 * SECOND_NS
        await clock.looked_at()
    assert not waiting.done()
    await first.stop()
    await asyncio.wait_for(waiting, SOON_S)
    await second.stop()


@pytest.mark.parametrize("version", [1, 2])
async def test_a_database_of_an_older_version_is_taken_over(postgres, database, version):
    """Once the older server that is active has stopped; and that one can't take it back."""
    await made_by_an_older_version(database, version)
    older = await asyncpg.connect(database)
    older_take = "UPDATE lease SET epoch = epoch + 1, beat = beat + 1, stopped_at = NULL WHERE epoch = $1"
    await older.execute(older_take, 0)
    second = ServingPostgres(Postgres(database, node="second", lease_s=100))
    waiting = asyncio.create_task(second.start())
    await until(lambda: second.medium.standing_by == [True])
    await older.execute("UPDATE lease SET batch = 7, last_id = 70, beat = beat + 1, stopped_at = 1")
    await asyncio.wait_for(waiting, SOON_S)
    assert await second.put() == 71
    (row,) = await sql(postgres, database, "SELECT epoch, batch >= 8 AS is_later, lease_s FROM lease_now")
    assert tuple(row) == (2, True, 100)
    with pytest.raises(asyncpg.UndefinedColumnError):
        await older.execute(older_take, 2)
    await older.close()
    await second.stop()


@pytest.mark.parametrize("lost", [None, "silence"])
async def test_a_stop_amid_the_recovery_gives_the_lease_back(postgres, database, way, lost):
    serving = await served(database)
    await serving.put()
    await serving.stop()
    holder = await asyncpg.connect(database)
    async with holder.transaction():
        await holder.execute("LOCK TABLE jobs IN ACCESS EXCLUSIVE MODE")
        journal = Postgres(by(way, database), lease_s=100).open()
        stopped = asyncio.Event()
        recovering = asyncio.create_task(journal.recover(Core().engine, Clock(), stopped))
        await until(lambda: hasattr(journal, "_sender"))
        way.cut_at = lost
        journal._sender._start(journal._sender._keep_lease())
        await asyncio.sleep(0)  # it is under way
        stopped.set()
        assert await asyncio.wait_for(recovering, SOON_S) is False
    await holder.close()
    (row,) = await sql(postgres, database, "SELECT stopped_at IS NOT NULL AS is_free FROM lease")
    assert row["is_free"] == (lost is None)


async def test_server_reports_the_loss_of_its_lease_during_recovery(postgres, database):
    serving = await served(database)
    await serving.put()
    await serving.stop()
    holder = await asyncpg.connect(database)
    async with holder.transaction():
        await holder.execute("LOCK TABLE jobs IN ACCESS EXCLUSIVE MODE")
        journal = Postgres(database).open()
        recovering = asyncio.create_task(journal.recover(Core().engine, Clock(), asyncio.Event()))
        await until(lambda: hasattr(journal, "_sender"))
        await taken_over(postgres, database)
        with pytest.raises(LeaseLost):
            await asyncio.wait_for(recovering, SOON_S)
    await holder.close()


async def test_the_kernel_gives_up_a_machine_that_does_not_answer_any_more(database):
    serving = await served(database)
    sock = serving.journal._sender._link.connection._transport.get_extra_info("socket")
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    assert 0 < sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) <= 10_000
    await serving.stop()


async def test_jobs_are_read_from_where_the_lease_is(database, other):
    """They are not read from an old primary that has come back."""
    name = database.rpartition("/")[2]
    await other.asql(f"CREATE DATABASE {name}")
    await (await served(other.url(name))).stop()
    async with Cutting(other.port) as way:
        way.refuses = True
        url = database.replace("queue@", f"queue@127.0.0.1:{way.port},")
        first = await served(url, node="first", lease_s=100)
        job_id = await first.put()
        second = ServingPostgres(Postgres(url, node="second", lease_s=100))
        waiting = asyncio.create_task(second.start())
        await until(lambda: second.medium.standing_by == [True])
        way.refuses = False
        await first.stop()
        await until(lambda: waiting.done() or way.passed_on > 1)  # the connection has been tried again
        way.refuses = True
        way.cut()
        await asyncio.wait_for(waiting, SOON_S)
        assert second.core.engine.jobs.find(job_id).body == b"job"
        await second.stop()


async def taken_over(postgres, database):
    await sql(postgres, database, "UPDATE lease SET epoch = epoch + 1, node = 'another'")


async def test_server_without_the_lease_stores_and_acknowledges_nothing(postgres, database):
    serving = await served(database, lease_s=100)
    before = await serving.put()
    await taken_over(postgres, database)
    await serving.put()
    assert [type(failure) for failure in serving.failures] == [LeaseLost]
    assert "another" in str(serving.failures[0])
    assert serving.released == [before]
    assert await sql(postgres, database, "SELECT id FROM jobs") == [(before,)]


async def test_server_without_the_fence_stores_without_the_lease(postgres, database, monkeypatch):
    """Show that the test above can fail."""
    row = Link.row

    def without_the_fence(link, statement, *parameters, **others):
        statement = statement.replace("WHERE epoch = $1 AND batch", "WHERE $1 > 0 AND batch")
        return row(link, statement, *parameters, **others)

    monkeypatch.setattr(Link, "row", without_the_fence)
    serving = await served(database, lease_s=100)
    await taken_over(postgres, database)
    job_id = await serving.put()
    assert serving.released == [job_id]
    await serving.abandon()


async def test_server_unsure_of_its_lease_is_in_doubt(database, way):
    serving = await served(by(way, database))
    assert not serving.journal.in_doubt
    way.refuses = True
    way.cut()
    await until(lambda: serving.journal.in_doubt)
    assert not serving.failures
    way.refuses = False
    await until(lambda: not serving.journal.in_doubt)
    await serving.stop()
