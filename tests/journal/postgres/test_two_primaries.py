"""A standby is promoted while its old primary still accepts writes, and a server is active there."""

import asyncio
import io

import pytest

from beanlite.errors import JournalFailed
from beanlite.host import log
from beanlite.journal.postgres import journal
from beanlite.journal.postgres.dump import export
from beanlite.journal.postgres.link import session
from beanlite.journal.postgres.past import looking
from beanlite.journal.postgres.primaries import other_primaries
from beanlite.journal.postgres.soundness import verify
from beanlite.journal.postgres.standing import LostToAnother
from beanlite.journal.postgres.status import status
from tests.journal.postgres.serving import (
    SOON_S,
    Postgres,
    ServingPostgres,
    served,
    until,
    with_lost_standby,
    without_standby,
)
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
    await until(lambda: "a server is active on another host that accepts writes" in caplog.text or waiting.done())
    assert not waiting.done()
    assert await first.put() == 1
    await asyncio.to_thread(pair.primary.kill)
    await asyncio.wait_for(waiting, SOON_S)
    await until(lambda: first.failures)
    assert "has lost commits that it acknowledged" in str(first.failures)
    assert await pair.standby.asql("SELECT node FROM lease", "queue") == [("second",)]
    await second.stop()


async def test_start_waits_while_the_old_primary_has_what_the_new_lacks(pair, caplog):
    """Another standby has confirmed it, say, and the server is restarted in order."""
    first = await served(both(pair), lease_s=2)
    await promoted_beside(pair)
    job_id = await first.put()
    await first.stop()
    second = ServingPostgres(Postgres(both(pair), lease_s=2))
    waiting = asyncio.create_task(second.start())
    await until(lambda: "has commits that this one lacks" in caplog.text or waiting.done())
    assert not waiting.done()
    await asyncio.to_thread(pair.standby.kill)
    await asyncio.wait_for(waiting, SOON_S)
    assert second.core.engine.jobs.find(job_id) is not None
    await second.stop()


@pytest.mark.parametrize("is_active", [True, False], ids=["active", "stopped"])
async def test_commands_read_the_host_that_has_the_last_commits(pair, caplog, is_active):
    serving = await served(both(pair))
    await promoted_beside(pair)
    job_id = await serving.put()
    if not is_active:
        await serving.stop()
    caplog.clear()
    async with asyncio.timeout(SOON_S):  # the promoted host has seen the server alive, too
        while (told := await asyncio.to_thread(status, both(pair)))["database"] != pair.primary.place:
            await asyncio.sleep(0.01)
    assert told["other_primaries"] == [f"postgresql://queue@{pair.standby.place}/queue"]
    sink = io.BytesIO()
    await asyncio.to_thread(export, both(pair), sink)
    assert b'"job"' in sink.getvalue()
    assert "1 ready" in str(await asyncio.to_thread(lambda: list(verify(both(pair)))))
    assert await asyncio.to_thread(shown, both(pair), job_id) is not None
    assert "ignoring an old primary" not in caplog.text
    if is_active:
        await serving.stop()


def shown(url, job_id):
    with looking(url) as look:
        return look.show_job(job_id)


async def test_active_server_on_the_old_primary_warns(pair, caplog, monkeypatch):
    monkeypatch.setattr(journal, "_LOOKS_EVERY_S", 0.1)
    serving = await served(both(pair), lease_s=100)
    await promoted_beside(pair)
    assert await serving.put() == 1
    await until(lambda: not (serving.core.engine.ledger.tallied or serving.journal.busy))
    serving.journal._sender._oddities = log.Seldom()
    caplog.clear()
    await until(lambda: "another host was promoted, but the one in use still accepts writes" in caplog.text)
    (fields,) = [each.fields for each in caplog.records if "another host was promoted" in each.msg]
    assert fields["batch"] > fields["its_batch"]
    assert fields["its_node"] == "here"
    assert serving.failures == []
    await serving.stop()


async def test_bodies_are_read_where_batches_are_sent_beside_a_promotion(pair):
    """It has all batches up to its promotion, and so our lease; what is stored later it lacks."""
    serving = await served(both(pair), lease_s=100)
    first = await serving.put(b"first")
    await until(lambda: not (serving.core.engine.ledger.tallied or serving.journal.busy))
    await without_standby(pair.primary)
    await asyncio.to_thread(pair.standby.promote)
    await without_standby(pair.standby)
    serving.journal._follow()
    assert await serving.journal.fetch([first]) == [b"first"]
    second = await serving.put(b"second")
    assert await serving.journal.fetch([second]) == [b"second"]
    assert serving.failures == []
    await serving.stop()


@pytest.mark.parametrize("way_there", ["the connection is lost", "a commit waits"])
async def test_server_on_old_primary_ends_once_another_has_taken_over(pair, way_there):
    """Though the old primary has all that it stored, and the new one lacks a batch."""
    serving = await served(both(pair), lease_s=100)
    await promoted_beside(pair)
    await serving.put()
    await pair.standby.asql("UPDATE lease SET epoch = epoch + 1, node = 'another'", "queue")
    if way_there == "a commit waits":
        await with_lost_standby(pair.primary)
    else:
        serving.journal._sender._link.drop()
    await serving.put()
    assert serving.released == [1]
    assert [type(failure) for failure in serving.failures] == [LostToAnother]
    assert serving.failures[0].exit_code == JournalFailed.exit_code
    assert "has lost commits that it acknowledged" in str(serving.failures[0])


@pytest.mark.parametrize("missed", [1, 2])
async def test_server_ends_though_its_successor_has_no_later_epoch(pair, missed):
    """The host of the successor lacks the last starts of the server, each of which has taken the lease."""
    await (await served(both(pair))).stop()
    await without_standby(pair.primary)
    await follows_nobody(pair.standby)
    for _ in range(missed - 1):
        await (await served(both(pair))).stop()
    first = await served(both(pair), lease_s=100)
    job_id = await first.put(b"ours")
    await until(lambda: not (first.core.engine.ledger.tallied or first.journal.busy))
    await promoted_beside(pair)
    second = await served(f"postgresql://queue@{pair.standby.place}/queue")
    while second.journal._sender.standing.batch <= first.journal._sender.standing.batch:
        await second.put(b"theirs")
    assert second.journal._sender.standing.epoch == first.journal._sender.standing.epoch + 1 - missed
    first.journal._reader.drop()
    assert await first.journal.fetch([job_id]) == [b"ours"]
    first.journal._sender._link.drop()
    await first.put()
    assert first.released == [job_id]
    assert [type(failure) for failure in first.failures] == [LostToAnother]
    assert "this server's lease is missing, and another server has taken over" in str(first.failures[0])
    await second.stop()


async def test_promoted_host_that_merely_lacks_a_start_is_passed_over(pair):
    await (await served(both(pair))).stop()
    await without_standby(pair.primary)
    await follows_nobody(pair.standby)
    serving = await served(both(pair), lease_s=100)
    await promoted_beside(pair)
    serving.journal._sender._link.drop()
    assert await serving.put() == 1
    assert await pair.primary.asql("SELECT id FROM jobs", "queue") == [(1,)]
    assert serving.failures == []
    await serving.stop()


@pytest.fixture
async def same_number(pair):
    """Two hosts with the queue, each promoted without the other: their timelines have the same number."""
    await (await served(both(pair))).stop()
    await follows_nobody(pair.standby)
    for cluster in (pair.primary, pair.standby):
        await asyncio.to_thread(cluster.kill)
        (cluster.data / "standby.signal").touch()
        with (cluster.data / "postgresql.conf").open("a") as settings:
            settings.write("synchronous_standby_names = ''\n")
        await asyncio.to_thread(cluster.start)
        await asyncio.to_thread(cluster.promote)
    return pair


async def test_server_does_not_take_over_beside_one_on_another_primary(same_number, caplog):
    places = [same_number.primary.place, same_number.standby.place]
    first = await served(f"postgresql://queue@{places[1]}/queue", node="first", lease_s=2)
    second = ServingPostgres(Postgres(both(same_number), node="second", lease_s=2))
    waiting = asyncio.create_task(second.start())
    await until(lambda: "a server is active on another host that accepts writes" in caplog.text or waiting.done())
    assert not waiting.done()
    await first.stop()
    await asyncio.to_thread(same_number.standby.kill)
    await asyncio.wait_for(waiting, SOON_S)
    await second.stop()


async def test_active_server_warns_of_another_promoted_host(same_number, caplog, monkeypatch):
    monkeypatch.setattr(journal, "_LOOKS_EVERY_S", 0.1)
    serving = await served(both(same_number), lease_s=100)
    await until(lambda: "another host still accepts writes, too" in caplog.text)
    await serving.stop()


async def test_second_address_of_a_host_is_no_other_host(database):
    place = database.partition("@")[2].partition("/")[0]
    url = database.replace(place, f"{place},{place.replace('127.0.0.1', 'localhost')}")
    async with session(url) as link, other_primaries(url, link) as links:
        assert links == []


async def test_second_address_is_no_other_host_though_ours_fails(database, way):
    place = database.partition("@")[2].partition("/")[0]
    url = database.replace(place, f"127.0.0.1:{way.port},{place}")
    async with session(url) as link:
        assert str(way.port) in link.url
        way.refuses = True
        async with other_primaries(url, link) as links:
            assert links == []
