"""How long commands wait: for an answer, for a connection, and when the client is closed."""

import asyncio
import contextlib
import itertools
import math
import socket
import time
from functools import partial
from typing import Any

import pytest

from beanlite.client import (
    CannotConnect,
    ConnectionLost,
    SomePutsFailed,
    TimedOut,
    connect,
    connect_blocking,
)
from beanlite.client.channel import connect_channel
from tests.client.test_odd_servers import Odd

STATS = b"OK 4\r\n---\n\r\n"


async def begin_blocking(url, **ways):
    return await asyncio.to_thread(partial(connect_blocking, url, **ways))


@pytest.mark.parametrize("reply", [None, b""], ids=["hangs up", "is silent"])
@pytest.mark.parametrize(
    "ask",
    [
        lambda queue: queue.stats(),
        lambda queue: queue.put("x", "other"),
        lambda queue: queue.watch("other"),
        lambda queue: queue.reserve_job(5),
    ],
    ids=["stats", "put", "watch", "reserve_job"],
)
async def test_timeout_bounds_each_command(ask, reply):
    async with Odd(always=reply) as server, asyncio.timeout(30):
        queue = await begin_blocking(server.url, timeout_s=1.0)
        with pytest.raises(CannotConnect):
            await asyncio.to_thread(ask, queue)
        assert server.connections < 40
        queue.close()


async def test_timeout_bounds_several_puts_together():
    async with Odd() as server, asyncio.timeout(30):
        queue = await begin_blocking(server.url, timeout_s=1.0)
        with pytest.raises(SomePutsFailed) as error:
            await asyncio.to_thread(queue.put_many, ["x"] * 2000, "other")
        errors = error.value.errors
        assert type(errors[0]) is CannotConnect
        assert [errors[at] is errors[0] for at in range(2000)] == [True] * 2000
        queue.close()


def test_timeout_bounds_connecting():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began_s = time.monotonic()
        with pytest.raises(CannotConnect):
            connect_blocking(f"beanlite://127.0.0.1:{silent.getsockname()[1]}", timeout_s=0.1)
        assert time.monotonic() - began_s < 5


async def test_timeouts_that_no_poll_can_have_are_none():
    async with Odd(always=STATS) as server:
        queue = await begin_blocking(server.url, timeout_s=3e6)
        assert queue._wire.socket.gettimeout() is None
        queue.close()
        queue = await begin_blocking(server.url)
        assert queue._wire.socket.gettimeout() is None
        queue.close()
        queue = await begin_blocking(server.url, timeout_s=math.inf)
        assert await asyncio.to_thread(queue.stats) == {}
        queue.close()
        queue = await begin_blocking(server.url, timeout_s=1)
        queue._wire._allow((1 << 32) - 1)
        assert queue._wire.socket.gettimeout() is None
        async with connect(server.url) as other:
            wrong: Any
            for wrong in (math.inf, math.nan):
                with pytest.raises(ValueError, match="timeout_s"):
                    await other.reserve(wrong)
                with pytest.raises(ValueError, match="timeout_s"):
                    await asyncio.to_thread(queue.reserve, wrong)
        queue.close()


async def test_reserve_ends_in_time_without_a_server(mortal):
    async with connect(mortal.url) as queue:
        await mortal.kill()
        for timeout_s in (1, 0):
            async with asyncio.timeout(8):
                results = await asyncio.gather(*(queue.reserve(timeout_s) for _ in range(5)), return_exceptions=True)
            assert {type(result) for result in results} == {TimedOut}
        await mortal.revive()
        await queue.put("x")
        for _ in range(100):
            with contextlib.suppress(TimedOut):
                assert (await queue.reserve(0)).text == "x"
                break


# -- waits


class Waits:
    """What the waits are asked for: how many connections in a row have failed."""

    def __init__(self, monkeypatch, module, most=math.inf):
        self.failures = []
        self._most = most
        monkeypatch.setattr(f"beanlite.client.{module}.wait_s", self._take)

    def _take(self, failures, _chance, _servers):
        self.failures.append(failures)
        if len(self.failures) >= self._most:
            raise EnoughWaits
        return 0.0


class EnoughWaits(Exception):
    """As many waits as a test wants to see."""


async def test_waits_grow_if_each_connection_ends(monkeypatch):
    in_loop, blocking = Waits(monkeypatch, "pool", 6), Waits(monkeypatch, "blocking", 6)
    async with Odd() as server, connect(server.url) as queue, asyncio.timeout(30):
        with pytest.raises(EnoughWaits):
            await queue.stats()
        other = await begin_blocking(server.url)
        with pytest.raises(EnoughWaits):
            await asyncio.to_thread(other.stats)
        other.close()
    assert in_loop.failures == blocking.failures == [1, 2, 3, 4, 5, 6]


async def test_waits_begin_anew_after_an_answer(monkeypatch):
    in_loop, blocking = Waits(monkeypatch, "pool"), Waits(monkeypatch, "blocking")
    replies = [None, None, STATS, None, STATS]
    async with Odd(*replies * 2) as server, connect(server.url) as queue, asyncio.timeout(30):
        other = await begin_blocking(server.url)
        for _ in range(2):
            assert await queue.stats() == {}
        for _ in range(2):
            assert await asyncio.to_thread(other.stats) == {}
        other.close()
    assert in_loop.failures == blocking.failures == [1, 2, 1]


async def test_each_reason_for_which_it_waits_is_logged_once(monkeypatch, caplog):
    reasons = ["refused", "refused", "odd", "refused"]

    async def connect_in_the_end(target, when_free):
        if reasons:
            raise CannotConnect(reasons.pop(0))
        return await connect_channel(target, when_free)

    monkeypatch.setattr("beanlite.client.pool.wait_s", lambda *_: 0)
    async with Odd(always=STATS) as server, connect(server.url) as queue:
        monkeypatch.setattr("beanlite.client.pool.connect_channel", connect_in_the_end)
        server.cut()
        assert await queue.stats() == {}
    told = [f"a connection to {server.url} has ended", "refused", "odd"]
    assert caplog.messages == [f"{each}; connecting again" for each in told]


async def test_reserves_that_wait_begin_again_without_waits(monkeypatch):
    """One connection that is made is enough for all others, though a server with no jobs answers none of them."""
    waits = Waits(monkeypatch, "pool")
    async with Odd(always=b"") as server, connect(server.url) as queue, asyncio.timeout(30):
        tasks = [asyncio.create_task(queue.reserve()) for _ in range(20)]
        while server.connections < 20:
            await asyncio.sleep(0.001)
        server.cut()
        while server.connections < 40:
            await asyncio.sleep(0.001)
        for task in tasks:
            task.cancel()
    assert waits.failures == [1]


# -- closing


async def test_close_ends_those_who_wait_for_a_connection(mortal, monkeypatch):
    monkeypatch.setattr("beanlite.client.pool.wait_s", lambda *_: 1000.0)
    async with connect(mortal.url) as queue:
        await mortal.kill()
        while queue.is_connected:
            await asyncio.sleep(0.001)
        tasks = [asyncio.ensure_future(each) for each in (queue.stats(), queue.reserve(), queue.reserve())]
        await asyncio.sleep(0)
        await queue.close()
        async with asyncio.timeout(30):
            results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [str(result) for result in results] == ["the queue is closed"] * 3


async def test_close_cuts_off_attempts_to_connect(monkeypatch):
    monkeypatch.setattr("beanlite.client.channel.CONNECT_S", 1000.0)
    async with Odd(greets=1) as server, connect(server.url) as queue, asyncio.timeout(30):
        server.cut()
        while queue.is_connected:
            await asyncio.sleep(0.001)
        tasks = [asyncio.ensure_future(each) for each in (queue.stats(), queue.reserve(), queue.reserve())]
        while server.connections < 2:
            await asyncio.sleep(0.001)
        await queue.close()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [str(result) for result in results] == ["the queue is closed"] * 3


@pytest.mark.parametrize("steps", range(5))
async def test_client_can_be_closed_twice_while_it_connects(steps):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        queue = connect(f"beanlite://127.0.0.1:{silent.getsockname()[1]}")
        put = asyncio.create_task(queue.put("x"))
        while not queue._pool._attempts:
            await asyncio.sleep(0)
        closing = asyncio.create_task(queue.close())
        for _ in range(steps):
            await asyncio.sleep(0)
        await queue.close()
        await closing
        with pytest.raises(ConnectionLost):
            await put


async def test_blocking_client_that_is_closed_waits_no_more(mortal, monkeypatch):
    queue = await begin_blocking(mortal.url, timeout_s=5)
    await mortal.kill()
    failures = itertools.count()

    def close(*_):
        if next(failures) == 1:
            queue.close()
        return 0.0

    monkeypatch.setattr("beanlite.client.blocking.wait_s", close)
    with pytest.raises(ConnectionLost, match="the queue is closed"):
        await asyncio.to_thread(queue.reserve)
