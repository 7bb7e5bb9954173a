"""Clients that have just been answered are given the moment that they need to share the next batch."""

import asyncio
import contextlib

import pytest

from beanlite.commit import group
from beanlite.commit.batch_wait import AWAY_NS, PAUSE_NS, PAUSE_PART, PAUSES, REST_NS, TOOK_MAX_NS, BatchWait
from tests.support.inside import PUT, ask, connect, serving, until

SLOW_NS = 1_000_000


def wait_after(*took_ns):
    """Return the wait, from the time 0 on, for two clients after batches that took these times."""
    wait = BatchWait()
    for each_ns in took_ns:
        wait.begin(2, each_ns, 0)
    return wait


def test_batch_waits_until_all_that_are_expected_wait_for_it():
    assert wait_after(0).lasts(1, 0)
    assert not wait_after(0).lasts(2, 0)


def test_batch_waits_no_longer_than_a_pause():
    assert wait_after(0).lasts(1, PAUSE_NS - 1)
    assert not wait_after(0).lasts(1, PAUSE_NS)


def test_pause_is_longer_on_a_slow_disk():
    assert wait_after(SLOW_NS, SLOW_NS).lasts(1, SLOW_NS // PAUSE_PART - 1)
    assert not wait_after(SLOW_NS, SLOW_NS).lasts(1, SLOW_NS // PAUSE_PART)


def test_pause_is_as_short_as_ever_after_one_slow_sync():
    assert not wait_after(0, SLOW_NS).lasts(1, PAUSE_NS)
    assert not wait_after(SLOW_NS, 0).lasts(1, PAUSE_NS)


def test_pause_is_not_that_of_a_disk_that_hangs():
    hung = wait_after(10**12, 10**12)
    assert hung.lasts(1, TOOK_MAX_NS // PAUSE_PART - 1)
    assert not hung.lasts(1, TOOK_MAX_NS // PAUSE_PART)


def test_batch_waits_while_clients_are_served_but_not_for_ever():
    wait = wait_after(SLOW_NS, SLOW_NS)
    pause_ns = SLOW_NS // PAUSE_PART
    for number in range(PAUSES + 1):
        wait.note_served(1)
        assert wait.lasts(1, number * (pause_ns - 1))
    wait.note_served(1)
    assert not wait.lasts(1, PAUSES * pause_ns)


def test_clients_that_are_served_before_an_answer_make_no_batch_wait():
    slow = wait_after(SLOW_NS, SLOW_NS)
    slow.note_served(1)
    slow.begin(2, SLOW_NS, 0)
    assert not slow.lasts(1, SLOW_NS // PAUSE_PART)


def test_no_batch_waits_for_a_while_after_others_had_the_core():
    wait = wait_after(0)
    wait.note_yield(AWAY_NS, 1)
    assert wait.lasts(1, 1)
    wait.note_yield(AWAY_NS + 1, 1)
    assert not wait.lasts(1, 1)
    wait.begin(2, 0, REST_NS)
    assert not wait.lasts(1, REST_NS)
    assert wait.lasts(1, REST_NS + 1)


# -- in a server


@pytest.fixture(autouse=True)
def no_timer(monkeypatch):
    """Have no timer make the batch, as would happen after some milliseconds."""
    monkeypatch.setattr(group, "DEFER_S", 3600.0)
    monkeypatch.setattr(group, "TOTALS_S", 3600.0)


@contextlib.asynccontextmanager
async def two_clients(path, disk):
    """Serve two clients of which one has just been answered, while the other one waits for the next batch."""
    async with serving(path) as (server, _):
        commit = server.wiring.group_commit
        one, other = await connect(server), await connect(server)
        disk.free.clear()
        one[1].write(PUT)
        await until(lambda: disk.under_way)
        other[1].write(PUT)
        await until(lambda: commit._held)
        now_ns = commit._clock()
        commit._clock = lambda: now_ns
        end_sync(disk)
        assert await asyncio.wait_for(one[0].readline(), 10) == b"INSERTED 1\r\n"
        await turns()
        assert disk.syncs == 1
        yield server, commit, one, other


def end_sync(disk):
    disk.free.set()
    disk.poll()


async def turns():
    for _ in range(5):
        await asyncio.sleep(0)


async def test_batch_waits_for_the_client_that_was_answered(tmp_path, disk):
    async with two_clients(tmp_path / "q.db", disk) as (_, _, one, other):
        one[1].write(PUT)
        replies = {await asyncio.wait_for(client[0].readline(), 10) for client in (one, other)}
        assert replies == {b"INSERTED 2\r\n", b"INSERTED 3\r\n"}
        assert disk.syncs == 2


async def test_clients_that_were_answered_together_share_the_next_batch(tmp_path, disk):
    async with two_clients(tmp_path / "q.db", disk) as (_, commit, one, other):
        one[1].write(PUT)
        for client in (one, other):
            assert (await asyncio.wait_for(client[0].readline(), 10)).startswith(b"INSERTED")
        one[1].write(PUT)
        await until(lambda: commit._held)
        await turns()
        assert disk.syncs == 2
        other[1].write(PUT)
        for client in (one, other):
            assert (await asyncio.wait_for(client[0].readline(), 10)).startswith(b"INSERTED")
        assert disk.syncs == 3


async def test_server_yields_no_more_after_others_had_the_core(tmp_path, monkeypatch):
    now_ns, yields = 0, 0

    def give_away():
        nonlocal now_ns, yields
        now_ns += AWAY_NS + 1
        yields += 1

    async with serving(tmp_path / "q.db") as (server, _):
        commit = server.wiring.group_commit
        now_ns = commit._clock()
        commit._clock = lambda: now_ns
        client = await connect(server)
        monkeypatch.setattr(group, "sched_yield", give_away)
        for number in (1, 2):
            commit._wait.begin(2, TOOK_MAX_NS, now_ns)
            commit._wait.begin(2, TOOK_MAX_NS, now_ns)
            assert await ask(client, PUT) == b"INSERTED %d\r\n" % number
        assert yields == 1


async def test_full_batch_does_not_wait(tmp_path, disk):
    async with two_clients(tmp_path / "q.db", disk) as (_, commit, _, other):
        commit._memory.gathered_bytes += group.BATCH_BYTES
        assert await asyncio.wait_for(other[0].readline(), 10) == b"INSERTED 2\r\n"
        assert disk.syncs == 2


async def test_client_that_does_not_come_back_is_not_waited_for_twice(tmp_path, disk):
    async with two_clients(tmp_path / "q.db", disk) as (_, commit, one, other):
        paused_ns = commit._clock() + PAUSE_NS
        commit._clock = lambda: paused_ns
        assert await asyncio.wait_for(other[0].readline(), 10) == b"INSERTED 2\r\n"
        assert disk.syncs == 2
        one[1].write(PUT)  # the other one, which was answered last, sends nothing
        assert await asyncio.wait_for(one[0].readline(), 10) == b"INSERTED 3\r\n"


async def test_batch_waits_while_the_server_serves_somebody(tmp_path, disk):
    async with two_clients(tmp_path / "q.db", disk) as (server, commit, _, other):
        third = await connect(server)
        began_ns = commit._clock()
        commit._wait.begin(2, SLOW_NS, began_ns)
        commit._wait.begin(2, SLOW_NS, began_ns)
        commit._clock = lambda: began_ns + SLOW_NS // PAUSE_PART - 1
        assert await ask(third, b"list-tube-used\r\n") == b"USING default\r\n"
        commit._clock = lambda: began_ns + SLOW_NS // PAUSE_PART
        await turns()
        assert disk.syncs == 1
        commit._clock = lambda: began_ns + 2 * SLOW_NS
        assert await asyncio.wait_for(other[0].readline(), 10) == b"INSERTED 2\r\n"


async def test_lone_client_waits_for_nobody(tmp_path, disk):
    async with serving(tmp_path / "q.db") as (server, _):
        commit = server.wiring.group_commit
        now_ns = commit._clock()
        commit._clock = lambda: now_ns
        client = await connect(server)
        for number in range(1, 4):
            client[1].write(PUT)
            assert await asyncio.wait_for(client[0].readline(), 10) == b"INSERTED %d\r\n" % number
        assert disk.syncs == 3


async def reserve_during_sync(server, disk):
    """Reserve a job, which waits for no sync, while that of another client is under way; return that client."""
    worker, client = await connect(server), await connect(server)
    assert await ask(worker, PUT) == b"INSERTED 1\r\n"
    disk.free.clear()
    client[1].write(PUT)
    await until(lambda: disk.under_way)
    assert await ask(worker, b"reserve\r\n") == b"RESERVED 1 1\r\n"
    return client


async def test_what_nobody_waits_for_goes_with_the_next_command(tmp_path, disk):
    async with serving(tmp_path / "q.db") as (server, _):
        client, ledger = await reserve_during_sync(server, disk), server.parts.engine.ledger
        server.wiring.group_commit._take_deferred()  # as its timer does, while a sync is under way
        end_sync(disk)
        assert await asyncio.wait_for(client[0].readline(), 10) == b"INSERTED 2\r\n"
        await turns()
        assert disk.syncs == 2
        assert ledger.has_deferred
        assert await ask(client, b"delete 2\r\n") == b"DELETED\r\n"
        assert disk.syncs == 3
        assert not ledger.has_deferred


async def test_what_nobody_waits_for_is_stored_without_a_command(tmp_path, disk, monkeypatch):
    monkeypatch.setattr(group, "DEFER_S", 0.001)
    async with serving(tmp_path / "q.db") as (server, _):
        await reserve_during_sync(server, disk)
        await until(lambda: server.wiring.group_commit._deferred_due)
        end_sync(disk)
        await until(lambda: not server.parts.engine.ledger.has_deferred)
        await until(lambda: disk.syncs == 3)
