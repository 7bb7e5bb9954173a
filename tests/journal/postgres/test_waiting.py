"""The lease by itself: how long other servers wait for it, and which server may give it back."""

import asyncio
import time

import asyncpg
import pytest

from beanlite.core.job import SECOND_NS
from beanlite.errors import JournalFailed
from beanlite.journal.postgres import lease, schema
from beanlite.journal.postgres.beats import BEAT
from beanlite.journal.postgres.lease import GIVE_BACK, _Waiting, give_back
from beanlite.journal.postgres.link import Behind
from beanlite.journal.postgres.sender import Sender
from beanlite.journal.postgres.standing import Patience
from tests.journal.postgres.serving import (
    LEASE_S,
    Postgres,
    ServingPostgres,
    applicant,
    by_few,
    served,
    sql,
    take,
    until,
)
from tests.journal.postgres.test_lease import Still

SOON_S = 30
_WAITING = """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%FROM lease%'
"""


async def test_lease_time_does_not_pass_while_the_database_is_silent(database):
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


async def test_server_that_lost_its_lease_has_nothing_to_give_back(database):
    taken = await take(applicant(database), asyncio.Event())
    await taken.link.connection.execute("UPDATE lease SET epoch = epoch + 1")  # another server has taken over
    assert await taken.link.row(GIVE_BACK, taken.epoch, 0) is None
    assert await taken.link.connection.fetchval("SELECT stopped_at FROM lease") is None
    taken.link.drop()


async def test_commit_confirmed_after_a_later_beat_never_shortens_the_lease(database):
    """As when it has waited for a lock, and the beat was raised beside it."""
    taken = await take(applicant(database), asyncio.Event())
    assert taken is not None
    sender = Sender(applicant(database), taken, *[lambda *_: None] * 4)
    sender._confirm(taken.sent_ns + 2)
    sure_until_ns = sender.sure_until_ns
    sender._confirm(taken.sent_ns + 1)
    assert sender.sure_until_ns == sure_until_ns
    sender.end()


async def test_server_with_a_long_lease_gives_signs_of_life_within_seconds(postgres, database):
    """Otherwise it passes for one that is halted."""
    clock = Still()
    serving = await served(database, lease_s=200, clock=clock)
    await serving.put()
    await until(lambda: not (serving.core.engine.ledger.tallied or serving.journal.busy))
    (before,) = await sql(postgres, database, "SELECT beat FROM lease_now")
    clock.now_ns += 6 * SECOND_NS
    async with asyncio.timeout(SOON_S):
        while await sql(postgres, database, "SELECT beat FROM lease_now") == [before]:
            await asyncio.sleep(0.01)
    await serving.stop()


async def test_two_servers_with_one_name_and_address_are_told(database, caplog):
    """As in containers with one hostname: each would take the other for its own earlier process."""
    first = await served(database)
    second = ServingPostgres(Postgres(database))
    waiting = asyncio.create_task(second.start())
    await until(lambda: "another server has this server's name and address" in caplog.text or waiting.done())
    assert not waiting.done()
    await first.stop()
    await (await asyncio.wait_for(waiting, SOON_S)).stop()


async def test_late_commit_of_an_earlier_process_is_no_other_server(database, caplog):
    first = await served(database, lease_s=100)
    second = ServingPostgres(Postgres(database, lease_s=100))
    waiting = asyncio.create_task(second.start())
    await until(lambda: second.medium.standing_by == [True])
    await asyncio.sleep(0.3)  # it has looked
    await first.journal._sender._keep_lease()
    await asyncio.sleep(0.3)
    assert "another server has this server's name and address" not in caplog.text
    await first.stop()
    await (await asyncio.wait_for(waiting, SOON_S)).stop()


async def test_beats_are_seen_though_their_sequence_is_behind_the_rows(postgres, database):
    """As after logical replication of the tables, which leaves the sequence out."""
    await (await served(database)).stop()
    await sql(postgres, database, "INSERT INTO batches SELECT batch, 1000, last_id, seen_at FROM lease_now")
    await sql(postgres, database, "ALTER SEQUENCE beats RESTART")
    active = await take(applicant(database), asyncio.Event())
    await active.link.row(BEAT, active.epoch)
    assert await sql(postgres, database, "SELECT beat FROM lease_now") == [(1003,)]
    active.link.drop()


async def test_sequence_that_another_candidate_sets_back_refuses_no_start(postgres, database, monkeypatch):
    """It caught up with the rows as they were before the lease was taken."""
    own_take = _Waiting._take

    async def take_beside_another(*arguments):
        lease = await own_take(*arguments)
        await sql(postgres, database, "SELECT setval('beats', beat, false) FROM lease_now")
        return lease

    monkeypatch.setattr(_Waiting, "_take", take_beside_another)
    active = await take(applicant(database), asyncio.Event())
    assert await sql(postgres, database, "SELECT epoch, beat FROM lease_now") == [(active.epoch, 2)]
    active.link.drop()


async def test_slower_server_stands_by_for_the_faster_one(database, monkeypatch):
    """It is not taken for a server that stands by for the one before, which is at no address in a new database."""
    own_take = _Waiting._take
    faster = []

    async def take_after_another(waiting, link, statement, *seen):
        monkeypatch.undo()
        faster.append(await take(applicant(database), asyncio.Event()))
        return await own_take(waiting, link, statement, *seen)

    monkeypatch.setattr(_Waiting, "_take", take_after_another)
    told = []
    stopped = asyncio.Event()

    def stand_by(active):
        told.append(active)
        stopped.set()

    assert await asyncio.wait_for(take(applicant(database, stand_by), stopped), SOON_S) is None
    assert told == ["127.0.0.1:1"]
    faster[0].link.drop()


async def test_server_followed_before_it_stored_its_lease_time_stands_by(database, monkeypatch):
    """Others wait only for the lease of the server before, and this one would count on its own."""
    migrate = schema.migrate
    followers = []

    async def be_followed(link, name, **only_from):
        await migrate(link, name, **only_from)
        if only_from:  # when it does not have the lease yet
            return
        monkeypatch.undo()
        followers.append(await take(applicant(database), asyncio.Event()))  # after LEASE_S

    monkeypatch.setattr(lease, "migrate", be_followed)
    told = []
    stopped = asyncio.Event()

    def stand_by(active):
        told.append(active)
        stopped.set()

    slow = applicant(database, stand_by)._replace(lease_s=100)
    assert await asyncio.wait_for(take(slow, stopped), SOON_S) is None
    assert told == ["127.0.0.1:1"]
    followers[0].link.drop()


async def test_two_servers_make_the_tables_at_once_under_repeatable_read(postgres, database):
    await postgres.asql(
        f"ALTER DATABASE {database.rpartition('/')[2]} SET default_transaction_isolation = 'repeatable read'"
    )
    holder = await asyncpg.connect(database)
    async with holder.transaction():
        await holder.execute(f"SELECT pg_advisory_xact_lock({schema._LOCK})")
        stopped = asyncio.Event()
        waiting = [asyncio.create_task(take(applicant(database), stopped)) for _ in range(2)]
        async with asyncio.timeout(SOON_S):
            while len(await postgres.asql("SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")) < 2:
                await asyncio.sleep(0.001)
    await holder.close()
    await asyncio.wait(waiting, timeout=SOON_S, return_when=asyncio.FIRST_COMPLETED)
    stopped.set()
    taken, nothing = sorted(await asyncio.gather(*waiting), key=lambda taken: taken is None)
    assert nothing is None
    taken.link.drop()


async def test_wait_for_a_lock_is_logged_and_can_be_stopped(database, monkeypatch, caplog):
    taken = await take(applicant(database), asyncio.Event())
    await taken.link.row(GIVE_BACK, taken.epoch, 0)
    taken.link.drop()
    monkeypatch.setattr(lease, "LOOK_AFTER_S", 0.1)
    holder = await asyncpg.connect(database)
    stopped = asyncio.Event()
    async with holder.transaction():
        await holder.execute("LOCK lease IN EXCLUSIVE MODE")
        waiting = asyncio.create_task(take(applicant(database), stopped))
        async with asyncio.timeout(SOON_S):
            while f"another program has a lock, in process {holder.get_server_pid()}" not in caplog.text:
                await asyncio.sleep(0.001)
        stopped.set()
        assert await asyncio.wait_for(waiting, SOON_S) is None
    await holder.close()


async def test_wait_for_a_commit_of_another_server_is_logged(database, monkeypatch, caplog):
    taken = await take(applicant(database), asyncio.Event())
    monkeypatch.setattr(lease, "LOOK_AFTER_S", 0.1)
    active = await asyncpg.connect(database, server_settings={"application_name": "beanlite first"})
    stopped = asyncio.Event()
    async with active.transaction():
        await active.fetchrow(BEAT, taken.epoch)
        waiting = asyncio.create_task(take(applicant(database), stopped))
        async with asyncio.timeout(SOON_S):
            while "start is waiting" not in caplog.text:
                await asyncio.sleep(0.001)
        stopped.set()
        assert await asyncio.wait_for(waiting, SOON_S) is None
    assert f"a commit of the server first is under way, in process {active.get_server_pid()}" in caplog.text
    assert "another program" not in caplog.text
    taken.link.drop()
    await active.close()


async def test_wait_for_a_lock_keeps_its_connection_if_none_is_left(postgres, database, monkeypatch, caplog):
    role, url = await by_few(postgres, database)
    taken = await take(applicant(url), asyncio.Event())
    await give_back(taken.link, taken.epoch, 0)
    async with asyncio.timeout(SOON_S):
        while await postgres.asql(f"SELECT FROM pg_stat_activity WHERE usename = '{role}'"):
            await asyncio.sleep(0.001)
    await postgres.asql(f"ALTER ROLE {role} CONNECTION LIMIT 1")
    monkeypatch.setattr(lease, "LOOK_AFTER_S", 0.1)
    holder = await asyncpg.connect(database)
    async with holder.transaction(), asyncio.timeout(SOON_S):
        await holder.execute("LOCK lease IN EXCLUSIVE MODE")
        waiting = asyncio.create_task(take(applicant(url), asyncio.Event()))
        while "all connections of the database are in use" not in caplog.text and "can't be reached" not in caplog.text:
            await asyncio.sleep(0.001)
    await holder.close()
    taken = await asyncio.wait_for(waiting, SOON_S)
    assert "can't be reached" not in caplog.text
    taken.link.drop()


async def test_poll_of_a_locked_lease_leaves_no_process_in_the_database(database, caplog):
    active = await take(applicant(database), asyncio.Event())
    other = await asyncpg.connect(database)
    stopped = asyncio.Event()
    async with other.transaction():
        await other.execute("LOCK lease IN ACCESS EXCLUSIVE MODE")
        waiting = asyncio.create_task(take(applicant(database)._replace(lease_s=0.4), stopped))
        await asyncio.sleep(2)
        found = await other.fetchval(_WAITING)
        assert found <= 1
        assert "another program has locked the table lease" in caplog.text
        assert not waiting.done()
    stopped.set()
    assert await asyncio.wait_for(waiting, SOON_S) is None
    active.link.drop()
    await other.close()


async def test_server_ends_after_half_a_lease_with_hosts_that_lack_commits():
    now_ns = 0
    patience = Patience(applicant("")._replace(clock_ns=lambda: now_ns))
    for seconds, error in ((0, Behind()), (60, ConnectionError()), (60, Behind()), (0.4 * LEASE_S, Behind())):
        now_ns += round(seconds * SECOND_NS)
        patience.use(error)
    now_ns += round(0.2 * LEASE_S * SECOND_NS)
    with pytest.raises(JournalFailed):
        patience.use(Behind())
