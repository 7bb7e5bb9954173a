"""The whole server with simulated time, loop and journal: hours pass in an instant, and the journal fails on demand."""

import asyncio
from typing import Any

import pytest

from beanlite.commit.group import FLUSH_S
from beanlite.errors import JournalFailed
from beanlite.net.roster import FAREWELL_S, QUIET_S
from tests.support.policies import policy
from tests.support.simulated import Client, settle, simulated

HOUR_S = 3600.0


def test_delay_of_an_hour_ends_after_an_hour_and_a_ttr_after_two():
    async def play(server, _journal):
        worker, producer = Client(server), Client(server)
        began_s = asyncio.get_running_loop().time()
        assert await producer.ask(b"put 0 3600 3600 1\r\nx\r\n") == b"INSERTED 1\r\n"
        assert await worker.ask(b"reserve\r\n") == b""
        await asyncio.sleep(HOUR_S - 1)
        assert worker.said == b""
        await asyncio.sleep(1)
        await settle()
        assert worker.said == b"RESERVED 1 1\r\nx\r\n"
        assert await producer.ask(b"reserve\r\n") == b""
        await asyncio.sleep(HOUR_S)
        await settle()
        assert producer.said == b"RESERVED 1 1\r\nx\r\n"
        assert asyncio.get_running_loop().time() - began_s == pytest.approx(2 * HOUR_S, abs=0.1)
        assert b"uptime: 7200\n" in await worker.ask(b"stats\r\n")

    assert simulated(play) is None


def test_a_reply_waits_for_the_journal_for_as_long_as_it_takes():
    async def play(server, journal):
        producer, other = Client(server), Client(server)
        journal.holds = True
        assert await producer.ask(b"put 0 0 60 1\r\nx\r\nlist-tube-used\r\n") == b""
        await asyncio.sleep(HOUR_S)
        assert producer.said == b""
        assert await other.ask(b"list-tube-used\r\n") == b"USING default\r\n"
        journal.holds = False
        journal.let_go()
        await settle()
        assert producer.said == b"INSERTED 1\r\nUSING default\r\n"

    assert simulated(play) is None


def test_failed_journal_ends_the_server_and_acknowledges_nothing_more():
    failure = JournalFailed("the right to write is lost")

    async def play(server, journal):
        producer, other = Client(server), Client(server)
        journal.holds = True
        assert await producer.ask(b"put 0 0 60 1\r\nx\r\n") == b""
        journal.fail(failure)
        assert await other.ask(b"put 0 0 60 1\r\nx\r\n") == b""
        assert producer.said == b""

    assert simulated(play) is failure


def test_stop_waits_a_limited_time_for_a_client_that_does_not_close():
    async def play(server, _journal):
        client = Client(server)
        assert await client.ask(b"put 0 0 60 1\r\nx\r\n") == b"INSERTED 1\r\n"
        client.closes = False
        loop = asyncio.get_running_loop()
        clock.extend([loop.time, loop.time()])

    clock: list[Any] = []
    assert simulated(play) is None
    now_s, stopped_s = clock
    assert now_s() - stopped_s == pytest.approx(FAREWELL_S, abs=0.1)


def test_a_stop_waits_only_for_a_moment_for_a_client_that_is_silent():
    class Silent(Client):
        def write_eof(self):
            pass  # it does not close its side by itself

    async def play(server, _journal):
        await Silent(server).ask(b"put 0 0 60 1\r\nx\r\n")
        loop = asyncio.get_running_loop()
        clock.extend([loop.time, loop.time()])

    clock: list[Any] = []
    assert simulated(play) is None
    now_s, stopped_s = clock
    assert now_s() - stopped_s == pytest.approx(QUIET_S, abs=0.01)


def test_a_client_that_keeps_sending_after_quit_is_closed_in_the_end():
    class Talker(Client):
        def write_eof(self):
            pass  # it does not close its side

    async def play(server, _journal):
        client = Talker(server)
        await client.ask(b"quit\r\n")
        loop = asyncio.get_running_loop()
        quit_s = loop.time()
        while not client.closed and loop.time() < quit_s + 2 * FAREWELL_S:
            client.send(b"more\r\n")
            await asyncio.sleep(0.1)
        assert FAREWELL_S <= loop.time() - quit_s < FAREWELL_S + 1

    assert simulated(play) is None


def test_a_stop_waits_as_long_as_batch_after_batch_is_stored():
    async def play(server, journal):
        def store_one():
            journal.listener.durable(*journal.waiting.popleft())
            journal.listener.ready()

        journal.holds = True
        clients = [Client(server) for _ in range(2)]
        for client in clients:
            assert await client.ask(b"put 0 0 60 1\r\nx\r\n") == b""
        loop = asyncio.get_running_loop()
        loop.call_later(0.8 * FLUSH_S, store_one)
        loop.call_later(1.6 * FLUSH_S, setattr, journal, "holds", False)
        loop.call_later(1.6 * FLUSH_S, journal.let_go)
        asked.extend(clients)

    asked: list[Client] = []
    assert simulated(play) is None
    assert [client.said for client in asked] == [b"INSERTED 1\r\n", b"INSERTED 2\r\n"]


def test_nothing_is_committed_while_the_journal_closes():
    stored = []

    async def play(server, journal):
        async def close():
            journal.commit = lambda changes: stored.append(changes.jobs)
            await asyncio.sleep(HOUR_S)

        journal.close = close
        server.parts.engine.set_policies([policy("*", "ttl", "1m"), policy("*", "expired", "delete")], [], 0)
        assert await Client(server).ask(b"put 0 0 60 1\r\nx\r\n") == b"INSERTED 1\r\n"

    assert simulated(play) is None
    assert stored == []
