"""Forwarding without a server: the loop's own garbage, and an address at which nobody answers yet."""

import asyncio
import gc
import socket
import struct

import uvloop

from beanlite.net.addresses import Addresses
from beanlite.net.listener import open_listener
from beanlite.net.operators import Operators
from beanlite.net.refusals import Refusals
from beanlite.settings.config import Settings
from beanlite.standby.forward import Forwarder
from tests.support.inside import until
from tests.support.servers import free_port

RESET = struct.pack("ii", 1, 0)


class Echo(asyncio.Protocol):
    """What stands for the active server."""

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.transport.write(data)

    def connection_lost(self, _error):
        self.transport = None


async def talk(address, *, resets):
    loop = asyncio.get_running_loop()
    with socket.socket() as client:
        client.setblocking(False)
        await loop.sock_connect(client, address)
        await loop.sock_sendall(client, b"here\r\n")
        assert await asyncio.wait_for(loop.sock_recv(client, 100), 10) == b"here\r\n"
        if resets:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        else:
            client.shutdown(socket.SHUT_WR)
            assert await asyncio.wait_for(loop.sock_recv(client, 100), 10) == b""


async def garbage():
    loop = asyncio.get_running_loop()
    port = free_port()
    listener = open_listener(Settings(port=0))
    addresses = Addresses(100, spare_local=False)
    forwarder = Forwarder(listener, "here:1", 100, addresses, Operators("none"), Refusals())
    forwarder.stand_by(f"127.0.0.1:{port}")
    address = listener.sockets[0].getsockname()

    async def live():
        coming = [asyncio.create_task(talk(address, resets=number % 2)) for number in range(10)]
        await until(lambda: forwarder._timer is not None)  # nobody answers
        server = await loop.create_server(Echo, "127.0.0.1", port)
        try:
            await asyncio.gather(*coming)
            await until(lambda: not forwarder._served)
        finally:
            server.close()
        assert not forwarder._waiting
        assert not addresses._of
        assert not forwarder._own_ends

    try:
        await live()
        gc.collect()
        gc.disable()
        for _ in range(3):
            await live()
        return gc.collect()
    finally:
        gc.enable()
        forwarder.stand_by(None)
        listener.close()


def test_client_may_have_the_port_of_a_link_to_the_active_server():
    """As the kernel gives it to both, since they are connected to different ports."""

    async def serve():
        loop = asyncio.get_running_loop()
        server = await loop.create_server(Echo, "127.0.0.1", 0)
        listener = open_listener(Settings(port=0))
        forwarder = Forwarder(listener, "here:1", 100, Addresses(100, spare_local=False), Operators("none"), Refusals())
        active = server.sockets[0].getsockname()
        try:
            with socket.socket() as client:
                client.setblocking(False)
                client.bind(("127.0.0.1", 0))
                forwarder._own_ends.add((client.getsockname(), active))
                forwarder.stand_by(f"127.0.0.1:{active[1]}")
                await loop.sock_connect(client, listener.sockets[0].getsockname())
                await loop.sock_sendall(client, b"here\r\n")
                assert await asyncio.wait_for(loop.sock_recv(client, 100), 10) == b"here\r\n"
        finally:
            forwarder.stand_by(None)
            listener.close()
            server.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve())


def test_clients_wait_until_somebody_answers_and_leave_nothing_behind():
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(garbage()) == 0
    with asyncio.Runner() as runner:
        runner.run(garbage())
