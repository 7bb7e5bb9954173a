"""An old primary that is started again after its standby was promoted is passed over, though it comes first."""

import asyncio

import asyncpg
import pytest

from beanlite.host import log
from beanlite.journal.postgres import lease, link, sender, standing
from beanlite.journal.postgres.dump import export
from beanlite.journal.postgres.link import Link, connect
from beanlite.journal.postgres.status import status
from tests.journal.postgres.serving import (
    SOON_S,
    Postgres,
    ServingPostgres,
    commit_waits,
    served,
    until,
    with_lost_standby,
    without_standby,
)
from tests.journal.postgres.test_lease import Still
from tests.support.cutting import Cutting


@pytest.fixture
def passed_over(monkeypatch):
    """The addresses of the old primaries that were passed over."""
    urls = []
    expect = Link.expect_successor

    def noted(link, history):
        try:
            expect(link, history)
        except ConnectionError:
            urls.append(link.url)
            raise

    monkeypatch.setattr(Link, "expect_successor", noted)
    monkeypatch.setattr(link, "_old_primaries", log.Seldom())
    return urls


def serves_alone(cluster):
    """Let it serve without a standby once it is started again."""
    with (cluster.data / "postgresql.conf").open("a") as settings:
        settings.write("synchronous_standby_names = ''\n")


async def failed_over(pair):
    """Promote the standby, and return the old primary, which has ended, and the new one."""
    old, new = pair.primary, pair.standby
    await asyncio.to_thread(pair.fail_over)
    await without_standby(new)
    return old, new


async def finds(serving, cluster):
    """Wait until a server that has nothing to store has found the host."""
    sender = serving.journal._sender
    async with asyncio.timeout(SOON_S):
        while sender._link is None or str(cluster.port) not in sender._link.url:
            await sender._keep_lease()
            await asyncio.sleep(0.01)


def both(pair):
    """Return the address of the database, with the host first that is the primary now."""
    return f"postgresql://queue@{pair.primary.place},{pair.standby.place}/queue"


@pytest.mark.parametrize("waits", [True, False], ids=["waits for its standby", "alone"])
async def test_an_old_primary_that_is_started_again_is_passed_over(pair, waits):
    old, new = pair.primary, pair.standby
    serving = await served(f"postgresql://queue@{old.place},{new.place}/queue", lease_s=100)
    first = await serving.put(b"first")
    await asyncio.to_thread(pair.fail_over)
    await without_standby(new)
    second = await serving.put(b"second")
    if not waits:
        serves_alone(old)
    await asyncio.to_thread(old.start)
    await new.asql(f"SELECT pg_terminate_backend({serving.journal._sender._link.pid})")
    third = await serving.put(b"third")
    assert serving.failures == []
    assert await serving.journal.fetch([first, second, third]) == [b"first", b"second", b"third"]
    assert serving.released == [first, second, third]
    await serving.stop()


@pytest.mark.parametrize("waits", [True, False], ids=["waits for its standby", "alone"])
async def test_old_primary_is_passed_over_though_nothing_was_stored_since(pair, waits):
    serving = await served(both(pair), lease_s=100)
    first = await serving.put(b"first")
    await until(lambda: not (serving.core.engine.ledger.tallied or serving.journal.busy))
    old, new = await failed_over(pair)
    await finds(serving, new)
    if not waits:
        serves_alone(old)
    await asyncio.to_thread(old.start)
    assert await serving.journal.fetch([first]) == [b"first"]
    await new.asql(f"SELECT pg_terminate_backend({serving.journal._sender._link.pid})")
    second = await serving.put(b"second")
    assert await serving.journal.fetch([first, second]) == [b"first", b"second"]
    assert serving.failures == []
    assert await old.asql("SELECT id FROM jobs ORDER BY id", "queue") == [(first,)]
    await serving.stop()


@pytest.mark.parametrize("old_first", [True, False])
async def test_server_uses_the_new_primary_though_the_old_one_runs_again(pair, old_first):
    old, new = pair.primary, pair.standby
    hosts = [old.place, new.place] if old_first else [new.place, old.place]
    serving = await served(f"postgresql://queue@{','.join(hosts)}/queue", lease_s=100)
    first = await serving.put(b"first")
    serves_alone(old)
    pair.fail_over()  # and the server's loop is held up
    old.start()
    await without_standby(new)
    second = await serving.put(b"second")
    assert await serving.journal.fetch([first, second]) == [b"first", b"second"]
    assert await new.asql("SELECT id FROM jobs ORDER BY id", "queue") == [(first,), (second,)]
    assert serving.failures == []
    await serving.stop()


@pytest.mark.parametrize("stored", [True, False], ids=["lacks a batch", "lacks nothing"])
async def test_new_primary_is_awaited_for_as_long_as_it_takes(pair, passed_over, caplog, stored):
    clock = Still()
    serving = await served(both(pair), lease_s=100, clock=clock)
    await serving.put(b"first")
    await until(lambda: not (serving.core.engine.ledger.tallied or serving.journal.busy))
    old, new = await failed_over(pair)
    await finds(serving, new)
    if stored:
        await serving.put(b"second")
    serves_alone(old)
    await asyncio.to_thread(old.start)
    await asyncio.to_thread(new.stop)
    last = serving.begin_to_put(b"last")
    await until(lambda: passed_over)
    clock.now_ns += 10**15
    since = len(passed_over)
    await until(lambda: len(passed_over) > since + 1)
    assert serving.failures == []
    assert "ignoring an old primary" in caplog.text
    await asyncio.to_thread(new.start)
    await until(lambda: last in serving.released)
    assert serving.failures == []
    await serving.stop()


async def test_standby_does_not_take_over_on_a_restarted_old_primary(pair):
    old, new = pair.primary, pair.standby
    url = f"postgresql://queue@{old.place},{new.place}/queue"
    first = await served(url, node="first")
    second = ServingPostgres(Postgres(url, node="second"))
    waiting = asyncio.create_task(second.start())
    await until(lambda: second.medium.standing_by == [True])
    await asyncio.to_thread(pair.fail_over)
    await without_standby(new)
    job_id = await first.put()
    pid = await looking_from(new, "second")
    serves_alone(old)
    await asyncio.to_thread(old.start)
    await new.asql(f"SELECT pg_terminate_backend({pid})")
    await looking_from(new, "second", but=pid)
    assert not waiting.done()
    await first.stop()
    await asyncio.wait_for(waiting, SOON_S)
    assert second.core.engine.jobs.find(job_id).body == b"job"
    await second.stop()


async def test_standby_does_not_take_over_on_an_old_primary_still_running(pair):
    """Its standby was promoted nevertheless, and the active server was the only one to notice."""
    old, new = pair.primary, pair.standby
    first = await served(both(pair), node="first", lease_s=2)
    clock = Still()
    second = ServingPostgres(Postgres(both(pair), node="second", lease_s=2, clock=clock))
    waiting = asyncio.create_task(second.start())
    await until(lambda: second.medium.standing_by == [True])
    await asyncio.to_thread(new.promote)
    await without_standby(new)
    await without_standby(old)
    await old.asql(f"SELECT pg_terminate_backend({first.journal._sender._link.pid})")
    await finds(first, new)
    job_id = await first.put()
    before = await old.asql("SELECT epoch FROM lease", "queue")
    looking = asyncio.create_task(looking_from(new, "second"))
    while not looking.done():
        clock.now_ns += 100_000_000
        await asyncio.sleep(0.01)
    await looking
    assert await old.asql("SELECT epoch FROM lease", "queue") == before
    assert not waiting.done()
    await first.stop()
    await asyncio.wait_for(waiting, SOON_S)
    assert second.core.engine.jobs.find(job_id).body == b"job"
    await second.stop()


async def test_commit_that_waits_for_the_standby_moves_to_it_once_promoted(pair):
    """Though the old primary never stopped, and the connection to it is sound."""
    old, new = pair.primary, pair.standby
    serving = await served(both(pair))
    first = await serving.put(b"first")
    await asyncio.to_thread(new.promote)
    await without_standby(new)
    second = await serving.put(b"second")
    assert serving.failures == []
    assert await new.asql("SELECT id FROM jobs ORDER BY id", "queue") == [(first,), (second,)]
    assert await old.asql("SELECT epoch FROM lease", "queue") == [(1,)]
    await serving.stop()


async def test_commit_of_a_role_that_becomes_another_moves_too(pair, monkeypatch, caplog):
    """It may not see what the role waits for that has connected."""
    monkeypatch.setattr(sender, "LOOK_AFTER_S", 0.1)
    old, new = pair.primary, pair.standby
    for statement in (
        "CREATE ROLE owner",
        "CREATE ROLE guest LOGIN IN ROLE owner",
        "ALTER ROLE guest SET role = owner",
    ):
        await old.asql(statement)
    await old.asql("ALTER DATABASE queue OWNER TO owner")
    serving = await served(both(pair).replace("queue@", "guest@"))
    first = await serving.put(b"first")
    await follows_nobody(new)
    begun = serving.begin_to_put(b"second")
    await until(lambda: "commit is waiting: no answer from the synchronous standby" in caplog.text)
    await asyncio.to_thread(new.promote)
    await without_standby(new)
    await until(lambda: serving.released[-1:] == [begun] or serving.failures)
    assert await new.asql("SELECT id FROM jobs ORDER BY id", "queue") == [(first,), (begun,)]
    assert await new.asql("SELECT tableowner FROM pg_tables WHERE tablename = 'jobs'", "queue") == [("owner",)]
    await serving.stop()


async def test_commit_behind_another_that_waits_for_the_standby_moves_too(pair, monkeypatch):
    """The other one has the lock on the lease: a beat beside the commit, say, whose connection was given up."""
    monkeypatch.setattr(sender, "LOOK_AFTER_S", 0.1)
    old, new = pair.primary, pair.standby
    serving = await served(both(pair))
    first = await serving.put(b"first")
    await until(lambda: not (serving.core.engine.ledger.tallied or serving.journal.busy))
    beat = await asyncpg.connect(f"postgresql://queue@{old.place}/queue")
    await beat.execute("BEGIN; UPDATE lease SET epoch = epoch")
    await follows_nobody(new)
    beating = asyncio.create_task(beat.execute("COMMIT"))
    await commit_waits(old, f"pid = {beat.get_server_pid()}")
    await asyncio.to_thread(new.promote)
    await without_standby(new)
    second = await serving.put(b"second")
    beat.terminate()
    await asyncio.wait([beating])
    assert isinstance(beating.exception(), asyncpg.ConnectionDoesNotExistError)
    assert await new.asql("SELECT id FROM jobs ORDER BY id", "queue") == [(first,), (second,)]
    assert serving.failures == []
    await serving.stop()


async def test_start_that_waits_for_the_standby_moves_to_it_once_promoted(pair, monkeypatch, caplog):
    monkeypatch.setattr(lease, "LOOK_AFTER_S", 0.1)
    await (await served(both(pair))).stop()
    new = pair.standby
    await follows_nobody(new)
    starting = asyncio.create_task(served(both(pair)))
    await until(lambda: "start is waiting: no answer from the synchronous standby" in caplog.text)
    await asyncio.to_thread(new.promote)
    await without_standby(new)
    serving = await asyncio.wait_for(starting, SOON_S)
    assert await serving.put() == 1
    assert await new.asql("SELECT id FROM jobs", "queue") == [(1,)]
    await serving.stop()


@pytest.mark.usefixtures("patient")
async def test_commit_that_waits_does_not_move_to_a_host_that_lacks_commits(pair, monkeypatch):
    monkeypatch.setattr(sender, "LOOK_AFTER_S", 0.1)
    asked = []
    has_successor = standing.has_successor

    async def noted(*arguments):
        asked.append(await has_successor(*arguments))
        return asked[-1]

    monkeypatch.setattr(sender, "has_successor", noted)
    old, new = pair.primary, pair.standby
    await without_standby(old)
    serving = await served(both(pair))
    await follows_nobody(new)
    await serving.put(b"first")
    link = serving.journal._sender._link
    await with_lost_standby(old)
    await asyncio.to_thread(new.promote)
    serving.begin_to_put(b"second")
    await until(lambda: len(asked) > 2)
    assert not any(asked)
    assert serving.journal._sender._link is link
    await without_standby(old)
    await until(lambda: len(serving.released) == 2)
    await serving.stop()


async def follows_nobody(standby):
    """Have a standby receive nothing more."""
    await standby.asql("ALTER SYSTEM SET primary_conninfo = ''")
    await standby.asql("SELECT pg_reload_conf()")
    async with asyncio.timeout(SOON_S):
        while await standby.asql("SELECT FROM pg_stat_wal_receiver"):
            await asyncio.sleep(0.01)


async def test_standby_does_not_take_over_on_an_old_primary_that_is_alone(pair, passed_over):
    old, new = pair.primary, pair.standby
    first = await served(both(pair), node="first", lease_s=2)
    async with Cutting(new.port) as way:
        url = f"postgresql://queue@{old.place},127.0.0.1:{way.port}/queue"
        clock = Still()
        second = ServingPostgres(Postgres(url, node="second", lease_s=2, clock=clock))
        waiting = asyncio.create_task(second.start())
        await until(lambda: second.medium.standing_by == [True])
        await failed_over(pair)
        await finds(first, new)
        for _ in range(2):  # the second beat shows that commits are confirmed there
            await looking_from(new, "second", since=await now(new))
            await first.journal._sender._keep_lease()
        await looking_from(new, "second", since=await now(new))
        serves_alone(old)
        await asyncio.to_thread(old.start)
        way.refuses = True
        way.cut()
        await until(lambda: passed_over)
        clock.now_ns += 10**15
        await until(lambda: len(passed_over) > 2)
        assert not waiting.done()
        way.refuses = False
        await first.stop()
        await asyncio.wait_for(waiting, SOON_S)
        assert await second.put() == 1
        await second.stop()


async def test_start_uses_the_host_that_was_promoted_last(pair, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(link, "_old_primaries", log.Seldom())
    url = both(pair)
    await (await served(url)).stop()
    old, new = await failed_over(pair)
    serves_alone(old)
    await asyncio.to_thread(old.start)
    serving = await served(url)
    assert "ignoring an old primary" in caplog.text
    await serving.put()
    assert await old.asql("SELECT id FROM jobs", "queue") == []
    assert await new.asql("SELECT id FROM jobs", "queue") == [(1,)]
    assert (await asyncio.to_thread(status, url))["database"].endswith(f":{new.port}")
    with (tmp_path / "lines").open("wb") as sink:
        await asyncio.to_thread(export, url, sink)
    assert '"job"' in (tmp_path / "lines").read_text()
    await serving.stop()


async def test_bodies_are_read_from_the_new_primary_beside_the_old_one(pair):
    async with Cutting(pair.primary.port) as way:
        url = f"postgresql://queue@127.0.0.1:{way.port},{pair.standby.place}/queue"
        serving = await served(url, lease_s=100)
        first = await serving.put(b"first")
        assert await serving.journal.fetch([first]) == [b"first"]
        await asyncio.to_thread(pair.standby.promote)
        await without_standby(pair.standby)
        way.refuses = True
        pid = serving.journal._sender._link.pid
        await pair.primary.asql(f"SELECT pg_terminate_backend({pid})")
        second = await serving.put(b"second")
        assert await serving.journal.fetch([first, second]) == [b"first", b"second"]
        assert serving.failures == []
        await serving.stop()


async def test_reading_connection_made_while_the_database_moves_is_not_used(database, monkeypatch):
    serving = await served(database, lease_s=100)
    job_id = await serving.put()
    glance, looks = Link.glance, []

    async def moved(link, statement):
        row = await glance(link, statement)
        looks.append(link)
        if len(looks) == 1:
            serving.journal._follow()
        return row

    serving.journal._follow()
    monkeypatch.setattr(Link, "glance", moved)
    assert await serving.journal.fetch([job_id]) == [b"job"]
    assert len(looks) >= 2  # old totals may just be taken away over another one
    assert looks[0].connection.is_closed()
    await serving.stop()


async def test_every_role_may_ask_for_the_history(postgres, database):
    await postgres.asql("CREATE ROLE nobody LOGIN")
    connected = await connect(database.replace("queue@", "nobody@"), "it")
    assert connected.history is not None
    connected.drop()


async def test_a_database_that_does_not_say_its_history_is_used(database, monkeypatch):
    monkeypatch.setattr(link, "_HISTORY", "SELECT pg_no_such_function()")
    serving = await served(database)
    assert serving.journal._sender.standing.history is None
    assert await serving.put() == 1
    await serving.stop()


async def now(cluster):
    """Return the time by the clock of the database."""
    return (await cluster.asql("SELECT clock_timestamp() AS now"))[0]["now"]


async def looking_from(cluster, node, but=0, since="-infinity"):
    """Wait until a server that stands by looks at the lease there, in another process, whose id is returned."""
    asked = f"""
        SELECT pid FROM pg_stat_activity
        WHERE application_name = 'beanlite {node}' AND query LIKE '%stopped_at%'
        AND pid <> {but} AND query_start > '{since}'
    """  # noqa: S608 - our own words
    async with asyncio.timeout(SOON_S):
        while not (rows := await cluster.asql(asked)):
            await asyncio.sleep(0.01)
    return rows[0]["pid"]
