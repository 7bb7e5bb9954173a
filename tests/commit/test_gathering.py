"""Clients that have just been answered are given the moment that they need to share the next batch."""

import asyncio
import contextlib

import pytest

from beanlite.commit import group
from tests.support.inside import PUT, ask, connect, serving, until


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
        disk.free.set()
        disk.poll()
        assert await asyncio.wait_for(one[0].readline(), 10) == b"INSERTED 1\r\n"
        for _ in range(5):
            await asyncio.sleep(0)
        assert disk.syncs == 1
        yield server, commit, one, other


async def test_batch_waits_for_the_client_that_was_answered(tmp_path, disk):
    async with two_clients(tmp_path / "q.db", disk) as (_, commit, one, other):
        one[1].write(PUT)
        replies = {await asyncio.wait_for(client[0].readline(), 10) for client in (one, other)}
        assert replies == {b"INSERTED 2\r\n", b"INSERTED 3\r\n"}
        assert disk.syncs == 2
        assert commit._expected == 2


async def test_batch_waits_no_longer_than_a_pause(tmp_path, disk):
    async with two_clients(tmp_path / "q.db", disk) as (_, commit, _, other):
        paused_ns = commit._clock() + group.PAUSE_NS
        commit._clock = lambda: paused_ns
        assert await asyncio.wait_for(other[0].readline(), 10) == b"INSERTED 2\r\n"
        assert disk.syncs == 2


async def test_batch_waits_for_no_more_than_some_turns(tmp_path, disk):
    async with two_clients(tmp_path / "q.db", disk) as (_, commit, _, other):
        commit._patience = group.TURN_CLIENTS
        assert await asyncio.wait_for(other[0].readline(), 10) == b"INSERTED 2\r\n"
        assert disk.syncs == 2


async def test_client_that_does_not_come_back_is_not_waited_for(tmp_path, disk):
    async with two_clients(tmp_path / "q.db", disk) as (_, commit, one, other):
        commit._patience = group.TURN_CLIENTS
        assert await asyncio.wait_for(other[0].readline(), 10) == b"INSERTED 2\r\n"
        one[1].write(PUT)  # the other one, which was answered last, sends nothing
        assert await asyncio.wait_for(one[0].readline(), 10) == b"INSERTED 3\r\n"


async def test_batch_waits_while_somebody_is_served(tmp_path, disk):
    async with two_clients(tmp_path / "q.db", disk) as (server, commit, _, other):
        third = await connect(server)
        paused_ns = commit._clock() + group.PAUSE_NS
        commit._clock = lambda: paused_ns - 1
        assert await ask(third, b"list-tube-used\r\n") == b"USING default\r\n"
        commit._clock = lambda: paused_ns
        for _ in range(5):
            await asyncio.sleep(0)
        assert disk.syncs == 1
        commit._clock = lambda: paused_ns + group.PAUSE_NS
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


async def test_batch_does_not_wait_while_many_others_are_served(tmp_path, disk):
    async with two_clients(tmp_path / "q.db", disk) as (_, commit, _, other):
        commit._patience = commit._served = 10**9
        assert await asyncio.wait_for(other[0].readline(), 10) == b"INSERTED 2\r\n"
        assert disk.syncs == 2
