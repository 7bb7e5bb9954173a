"""Who is held when the active server is lost, and who is not: a stand-in for it, that is lost at each moment."""

import asyncio
import contextlib
import select
import socket
import struct

import pytest
import uvloop

from beanlite.net.addresses import Addresses
from beanlite.net.listener import open_listener
from beanlite.net.operators import Operators
from beanlite.net.refusals import Refusals
from beanlite.settings.config import Settings
from beanlite.standby.ends import End, Guest, ServerEnd
from beanlite.standby.forward import Forwarder
from tests.support.inside import until

RESET = struct.pack("ii", 1, 0)
LINE = b"list-tube-used\r\n"
LOOPS = pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
WAYS = pytest.mark.parametrize("way", ["backlog", "reset", "end"])


class Active:
    """A stand-in for the active server."""

    def __init__(self):
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._connection: socket.socket | None = None
        self.place = self._listening.getsockname()
        self.address = f"127.0.0.1:{self.place[1]}"

    async def has_connection(self):
        """Wait until the kernel has accepted one for it, and not an iteration of the loop longer."""
        async with asyncio.timeout(10):
            while not select.select([self._listening], [], [], 0)[0]:
                await asyncio.sleep(0)

    async def heard(self):
        """What was passed on to it in a connection that it accepts."""
        loop = asyncio.get_running_loop()
        if self._connection is not None:
            self._connection.close()
        self._listening.setblocking(False)
        async with asyncio.timeout(10):
            self._connection, _ = await loop.sock_accept(self._listening)
        return await self.hears()

    async def hears(self):
        """What comes next in that connection."""
        return await hear(self._connection)

    async def answer(self, what):
        assert self._connection is not None
        await asyncio.get_running_loop().sock_sendall(self._connection, what)

    def lose(self, way):
        """Be lost, with a connection accepted only by the kernel, reset or closed."""
        if way != "backlog" and self._connection is None:
            self._connection, _ = self._listening.accept()
        self._listening.close()
        if self._connection is not None:
            if way == "reset":
                self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            self._connection.close()


class Standby:
    """A forwarder, and clients that come to it."""

    def __init__(self, stack, operators):
        self._stack = stack
        self.listener = open_listener(Settings(port=0))
        addresses = Addresses(100, spare_local=False)
        self.forwarder = Forwarder(self.listener, "here:1", 100, addresses, Operators(operators), Refusals())
        stack.callback(self.listener.close)
        stack.callback(self.forwarder.stand_by, None)

    def active(self):
        """Another server is active from now on."""
        active = Active()
        self._stack.callback(active.lose, "backlog")
        self.forwarder.stand_by(active.address)
        return active

    async def client(self, says=b"", of="127.0.0.1"):
        """Someone who connects, and says this or was accepted."""
        loop = asyncio.get_running_loop()
        client = self._stack.enter_context(socket.socket())
        client.bind((of, 0))
        client.setblocking(False)
        there = len(self.forwarder._silent) + len(self.forwarder._waiting) + len(self.forwarder._served)
        await loop.sock_connect(client, self.listener.sockets[0].getsockname())
        if says:
            client.send(says)
        else:
            await until(lambda: len(self.forwarder._silent) + len(self.forwarder._waiting) > there)
        return client

    async def begins_to_serve(self):
        """Wait until something was passed on, and not an iteration of the loop longer."""
        async with asyncio.timeout(10):
            while not self.forwarder._served:
                await asyncio.sleep(0)


def low_water(sock):
    """How much there has to be for a socket to be readable."""
    return sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT)


async def hear(client):
    async with asyncio.timeout(10):
        return await asyncio.get_running_loop().sock_recv(client, 1 << 16)


async def is_served_by(active, client, said):
    assert await active.heard() == said
    await active.answer(b"USING default\r\n")
    assert await hear(client) == b"USING default\r\n"


def played(new_loop, play, operators="none"):
    async def serve():
        errors = []
        asyncio.get_running_loop().set_exception_handler(lambda _loop, what: errors.append(what))
        with contextlib.ExitStack() as stack:
            await play(Standby(stack, operators))
        assert errors == []

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(serve())


@LOOPS
@pytest.mark.parametrize("says", [b"", b"list-tu"])
def test_silent_client_is_held(new_loop, says):
    async def play(standby):
        active = standby.active()
        client = await standby.client(says)
        other = await standby.client(LINE)  # it was served, so those before it have been looked at
        await is_served_by(active, other, LINE)
        active.lose("reset")
        assert await hear(other) == b""
        active = standby.active()
        client.send(LINE[len(says) :])
        await is_served_by(active, client, says + LINE[len(says) :])

    played(new_loop, play)


@LOOPS
@WAYS
def test_client_that_asks_as_the_active_server_is_lost_is_held(new_loop, way):
    async def play(standby):
        active = standby.active()
        client = await standby.client(LINE)
        await active.has_connection()
        active.lose(way)
        await until(lambda: standby.forwarder._timer is not None)  # it was noticed
        active = standby.active()
        await is_served_by(active, client, LINE)

    played(new_loop, play)


@LOOPS
def test_client_is_held_while_the_active_address_is_impossible(new_loop):
    async def play(standby):
        standby.forwarder.stand_by("no..name:11300")
        client = await standby.client(LINE)
        await until(lambda: standby.forwarder._timer is not None)
        active = standby.active()
        await is_served_by(active, client, LINE)

    played(new_loop, play)


@LOOPS
@WAYS
def test_unanswered_client_is_closed_and_not_passed_on_again(new_loop, way):
    async def play(standby):
        active = standby.active()
        client = await standby.client(LINE)
        if way == "backlog":
            await until(lambda: standby.forwarder._served)
        else:
            assert await active.heard() == LINE
        active.lose(way)
        with contextlib.suppress(ConnectionResetError):
            assert await hear(client) == b""
        active = standby.active()
        other = await standby.client(b"other\r\n")
        await is_served_by(active, other, b"other\r\n")

    played(new_loop, play)


@LOOPS
def test_unanswered_client_is_closed_when_another_server_is_active(new_loop):
    async def play(standby):
        first = standby.active()
        client = await standby.client(LINE)
        await standby.begins_to_serve()
        standby.active()
        with contextlib.suppress(ConnectionResetError):
            assert await hear(client) == b""
        assert await first.heard() == LINE
        assert await first.hears() == b""
        await until(lambda: not standby.forwarder._served)

    played(new_loop, play)


@LOOPS
def test_client_that_leaves_during_handover_leaves_the_active_server(new_loop):
    async def play(standby):
        active = standby.active()
        client = await standby.client(LINE)
        await standby.begins_to_serve()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        client.close()
        assert await active.heard() == LINE
        with contextlib.suppress(ConnectionResetError):
            assert await active.hears() == b""
        await until(lambda: not standby.forwarder._served)

    played(new_loop, play)


@LOOPS
def test_client_is_handed_over_with_all_that_it_sent(new_loop):
    async def play(standby):
        active = standby.active()
        clients = [await standby.client(), await standby.client(b"list"), await standby.client()]
        asks = await standby.client(LINE)
        await active.has_connection()
        # More of a line is waited for, not looked at again and again.
        assert sorted(map(low_water, standby.forwarder._silent)) == [1, 1, 5]
        active.lose("reset")
        await until(lambda: standby.forwarder._timer is not None)
        standby.forwarder.stand_by(None)
        clients[2].send(LINE)
        await until(lambda: len(standby.forwarder._waiting) == 2)
        come = standby.forwarder.hand_over()
        clients[0].send(b"x")
        clients[1].send(b"x")
        assert set(map(low_water, come)) == {1}
        said = {}
        for sock in come:
            said[sock.getpeername()] = await hear(sock)
            sock.close()
        assert said == {
            clients[0].getsockname(): b"x",
            clients[1].getsockname(): b"listx",
            clients[2].getsockname(): LINE,
            asks.getsockname(): LINE,
        }

    played(new_loop, play)


@LOOPS
def test_what_is_less_than_a_line_is_passed_on_when_it_is_the_last(new_loop):
    async def play(standby):
        active = standby.active()
        client = await standby.client(b"list")
        await until(lambda: set(map(low_water, standby.forwarder._silent)) == {5})
        client.shutdown(socket.SHUT_WR)
        assert await active.heard() == b"list"
        assert await active.hears() == b""

    played(new_loop, play)


@LOOPS
def test_line_that_comes_in_two_parts_may_be_followed_by_shorter_ones(new_loop):
    async def play(standby):
        active = standby.active()
        client = await standby.client(LINE[:-2])
        await until(lambda: set(map(low_water, standby.forwarder._silent)) == {len(LINE) - 1})
        client.send(LINE[-2:])
        await is_served_by(active, client, LINE)
        client.send(b"use a\r\n")
        assert await active.hears() == b"use a\r\n"

    played(new_loop, play)


def test_what_the_active_server_does_not_take_is_left_with_the_client():
    chunk = memoryview(bytearray(1))
    sock, client = socket.socketpair()
    active = Active()
    with sock, client, socket.create_connection(active.place) as own:
        client.send(LINE)
        server = ServerEnd(chunk, sock.close, own)
        active.lose("reset")
        guest = Guest(sock, None, End(chunk, sock.close))
        assert not guest.pass_on(server, 100)
        assert sock.recv(100) == LINE


@LOOPS
def test_what_comes_after_the_first_line_follows_it(new_loop):
    """While the loop does not look after both connections yet, too."""
    said = LINE * 2000  # more than is passed on at once

    async def play(standby):
        active = standby.active()
        client = await standby.client(said)
        client.shutdown(socket.SHUT_WR)
        heard = await active.heard()
        while len(heard) < len(said):
            heard += await active.hears()
        assert heard == said
        assert await active.hears() == b""

    played(new_loop, play)


@LOOPS
def test_nothing_is_left_of_who_is_refused(new_loop):
    async def play(standby):
        active = standby.active()
        stranger = await standby.client(LINE, of="127.0.0.2")
        with contextlib.suppress(ConnectionResetError):
            assert await hear(stranger) == b""
        assert not standby.forwarder._waiting
        assert not standby.forwarder._own_ends
        assert await active.heard() == b""  # a connection was there, and nothing was passed on
        other = await standby.client(LINE)
        await is_served_by(active, other, LINE)

    played(new_loop, play, operators="127.0.0.1")


@LOOPS
def test_silent_client_that_leaves_is_forgotten(new_loop):
    async def play(standby):
        standby.active()
        client = await standby.client()
        resets = await standby.client(b"list")
        resets.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        client.close()
        resets.close()
        await until(lambda: not standby.forwarder._silent)
        assert not standby.forwarder._waiting
        assert not standby.forwarder._served
        assert not standby.forwarder._addresses._of

    played(new_loop, play)
