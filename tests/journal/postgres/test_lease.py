"""The lease: who has it, who takes it over, and what those do who have lost it."""

import asyncio
import socket

from beanlite.errors import LeaseLost
from beanlite.journal.postgres.link import Link
from tests.journal.postgres.serving import LEASE_S, SOON_S, Postgres, ServingPostgres, by, served, sql, until


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


async def test_who_stands_by_gives_up_a_connection_that_says_nothing_any_more(database, way):
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


async def test_the_kernel_gives_up_a_machine_that_does_not_answer_any_more(database):
    serving = await served(database)
    sock = serving.journal._sender._link.connection._transport.get_extra_info("socket")
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    assert 0 < sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) <= 10_000
    await serving.stop()


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

    def without_the_fence(link, statement, *parameters, **others):
        statement = statement.replace("WHERE epoch = $1 AND batch", "WHERE $1 > 0 AND batch")
        return row(link, statement, *parameters, **others)

    monkeypatch.setattr(Link, "row", without_the_fence)
    serving = await served(database, lease_s=100)
    await taken_over(postgres, database)
    job_id = await serving.put()
    assert serving.released == [job_id]
    await serving.abandon()


async def test_who_is_not_sure_of_the_lease_is_in_doubt(database, way):
    serving = await served(by(way, database))
    assert not serving.journal.in_doubt
    way.refuses = True
    way.cut()
    await until(lambda: serving.journal.in_doubt)
    assert not serving.failures
    way.refuses = False
    await until(lambda: not serving.journal.in_doubt)
    await serving.stop()
