"""A router whose server has several addresses, each with a proxy that accepts connections whatever is behind it."""

import asyncio

import pytest

from tests.router.routers import start_router
from tests.support.cutting import Cutting
from tests.support.servers import free_port, start_beanlite
from tests.support.wire import Wire, put_bytes, until

SERVERS = """version = 2
[servers.s1]
number = 1
connect = ["127.0.0.1:{}", "127.0.0.1:{}", "127.0.0.1:{}"]
"""


async def test_other_address_is_used_if_connections_are_closed_at_once(tmp_path):
    server = start_beanlite(tmp_path / "server")
    async with Cutting(server.port) as first, Cutting(server.port) as second:
        with await asyncio.to_thread(start_router, tmp_path / "router", [server]) as router:
            (tmp_path / "router/servers.toml").write_text(SERVERS.format(first.port, second.port, server.port))
            with Wire(router.connect()) as worker, Wire(router.connect()) as producer:
                await asyncio.to_thread(until, lambda: producer.stats()["router-map-version"] == "2")
                worker.send(b"watch a\r\nreserve\r\n")
                await asyncio.to_thread(worker.reply)
                first.to_port = free_port()
                first.cut()
                producer.send(b"use a\r\n" + put_bytes(b"x"))
                assert await asyncio.to_thread(producer.reply) == "USING a"
                assert (await asyncio.to_thread(producer.reply)).startswith("INSERTED")
                assert (await asyncio.to_thread(worker.reply)).startswith("RESERVED")
    assert second.passed_on


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
async def test_other_address_is_used_if_a_client_gets_no_answer(tmp_path, order):
    server = start_beanlite(tmp_path / "server")
    async with Cutting(server.port) as halted, Cutting(server.port) as standby:
        standby.refuses = True
        with await asyncio.to_thread(start_router, tmp_path / "router", [server]) as router:
            ports = [(halted, standby)[at].port for at in order]
            (tmp_path / "router/servers.toml").write_text(SERVERS.format(*ports, free_port()))
            with Wire(router.connect()) as idle, Wire(router.connect()) as worker, Wire(router.connect()) as producer:
                await asyncio.to_thread(until, lambda: idle.stats()["router-map-version"] == "2")
                for wire in idle, worker, producer:
                    assert (await asyncio.to_thread(wire.ask, "use a")) == "USING a"
                assert await asyncio.to_thread(worker.ask, "watch a") == "WATCHING 2"
                halted.cut_at, standby.refuses = "silence", False
                worker.send(b"reserve\r\n")
                producer.send(put_bytes(b"x"))
                with Wire(router.connect()) as leaving:
                    leaving.send(b"list-tubes\r\n")
                    await asyncio.to_thread(until, lambda: halted.cuts >= 3)
                assert await asyncio.to_thread(producer.is_closed)
                assert (await asyncio.to_thread(worker.reply)).startswith("RESERVED")
                assert await asyncio.to_thread(idle.put, b"y")
                assert "server away" not in await asyncio.to_thread(router.log_text)
    assert standby.passed_on
