"""What a server that stands by does with clients: their bytes go to the active server, and its replies come back.

Nobody looks at the bytes. Clients that come while no server is active wait, accepted or still with the kernel, and
nothing is read of what they send: so all of it reaches whichever server is active next, be it this one.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from functools import partial
from typing import Final, cast

from beanlite import log
from beanlite.net.addresses import Addresses
from beanlite.net.listener import Listener
from beanlite.net.operators import Operators
from beanlite.net.refusals import Refusals
from beanlite.values import host_and_port, is_place

# How long the active server may take to accept a connection, and how long after a failure it is tried again.
CONNECT_S: Final = 2.0
AGAIN_S: Final = 0.1
# How long a client has to close its side once the active server has closed its own, and how long it may take until all
# is answered when this server stops.
FAREWELL_S: Final = 2.0
# How much is read at once; as much at most is held for each direction of a connection.
CHUNK_BYTES: Final = 1 << 14
_KEEPALIVE: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)


class End(asyncio.BufferedProtocol):
    """One of the two connections of a client: what comes from it leaves by the other one."""

    __slots__ = ("_chunk", "_over", "ended", "is_lost", "other", "transport")

    def __init__(self, chunk: memoryview, over: Callable[[], None]) -> None:
        """``chunk`` is what is read into; ``over`` is called when this one is closed, and the other one as well."""
        self._chunk = chunk
        self._over = over
        self.other: End | None = None
        self.transport: asyncio.Transport | None = None
        self.ended = False
        """Nothing more comes from it."""
        self.is_lost = False
        """It is closed."""

    # -- what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is there; if the other one is not any more, that was for nothing."""
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=0)
        if self.other is not None and (self.other.ended or self.other.is_lost):
            self.cut_off()
            self.other.cut_off()

    def get_buffer(self, _sizehint: int) -> memoryview:
        """All share one buffer, as what is read leaves it at once."""
        return self._chunk

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes have come."""
        other = self._open_other()
        if other is not None and not self.ended:
            other.write(self._chunk[:nbytes].tobytes())

    def eof_received(self) -> bool:
        """No more come; returns whether any may still go there."""
        self.end()
        return self.other is not None and not self.other.ended

    def connection_lost(self, _exc: Exception | None) -> None:
        """It is closed: the other one is closed when it has sent what it has."""
        self.transport, self.is_lost = None, True
        other = self._open_other()
        if other is not None:
            other.close()
        elif self.other is not None and self.other.is_lost:
            self._over()

    def pause_writing(self) -> None:
        """Whoever is there does not read: nothing more is read for it."""
        other = self._open_other()
        if other is not None:
            other.pause_reading()

    def resume_writing(self) -> None:
        """It has read everything."""
        other = self._open_other()
        if other is not None and self.other is not None and not self.other.ended:
            other.resume_reading()

    # -- its end

    def end(self) -> None:
        """Take nothing more from it, and tell the other one so."""
        self.ended = True
        other = self._open_other()
        if other is None or self.other is None:
            return
        if self.other.ended:
            other.close()
            return
        try:
            other.write_eof()
        except OSError:  # it was closed on both sides already
            other.abort()

    def hear_no_more(self) -> None:
        """Do as if it had sent its last."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()
            self.end()

    def cut_off(self) -> None:
        """Close it at once."""
        if self.transport is not None:
            self.transport.abort()

    def _open_other(self) -> asyncio.Transport | None:
        other = None if self.other is None else self.other.transport
        return None if other is None or other.is_closing() else other


class ServerEnd(End):
    """The one to the active server, which is done with the client when it closes its side."""

    __slots__ = ("name",)

    def __init__(self, chunk: memoryview, over: Callable[[], None]) -> None:
        super().__init__(chunk, over)
        self.name: object = None
        """Its address on this side."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is noticed within half a minute if that machine is lost, even if nothing is sent."""
        super().connection_made(transport)
        sock = transport.get_extra_info("socket")
        for option in _KEEPALIVE:
            sock.setsockopt(*option)

    def eof_received(self) -> bool:
        """The client has a while to close its own."""
        client = self._open_other()
        if client is not None:
            asyncio.get_running_loop().call_later(FAREWELL_S, client.close)
        return super().eof_received()


class Guest:
    """A client of the active server: its socket, and both connections once they are made."""

    __slots__ = ("client", "peer", "server", "sock", "task")

    def __init__(self, sock: socket.socket, peer: object, client: End, server: ServerEnd) -> None:
        self.sock = sock
        self.peer = peer
        self.client = client
        self.server = server
        client.other, server.other = server, client
        self.task: asyncio.Task[None] | None = None
        """Connects it."""

    def cut_off(self) -> None:
        """Close both connections at once."""
        self.client.cut_off()
        self.server.cut_off()

    def untie(self) -> None:
        """Nothing knows of it any more, and it is not to keep itself."""
        self.client.other = self.server.other = None


class Forwarder:
    """Looks after clients while this server stands by.

    Its attributes are what it was told, and the clients by how far they have come.
    """

    def __init__(
        self, listener: Listener, own: str, most: int, addresses: Addresses, operators: Operators, refusals: Refusals
    ) -> None:
        """``own`` is where others reach this server; ``most`` is how many clients it serves at a time."""
        self._listener = listener
        self._own = own
        self._most = most
        self._addresses = addresses
        self._operators = operators
        self._refusals = refusals
        self._oddities = log.Seldom()
        self._chunk = memoryview(bytearray(CHUNK_BYTES))
        self._active: str | None = None
        self._accepts = False
        self._timer: asyncio.TimerHandle | None = None
        self._waiting: dict[socket.socket, Guest] = {}
        """Those who are not connected to the active server yet, who came first at the front."""
        self._served: dict[socket.socket, Guest] = {}
        self._names: set[object] = set()
        """Of our own connections to the active server."""
        self._empty: asyncio.Event | None = None
        """At the stop: set when nobody is served any more."""

    @property
    def forwards_to(self) -> str | None:
        """The address of the active server, as long as clients are forwarded there."""
        return self._active if self._accepts else None

    def stand_by(self, active: str | None) -> None:
        """Another server is active now, and reached at that address; None: this one is active."""
        self._let_go()
        for guest in list(self._served.values()):
            guest.cut_off()
        self._active = active
        if active == self._own:
            log.warning("the active server had the address of this one, or has it: clients wait", advertise=active)
            return
        is_unknown = active is not None and not is_place(active)
        self._listener.refuse(is_unknown)
        if is_unknown:
            log.warning("the active server does not say where it is reached: clients are refused", address=active)
        elif active is not None:
            log.info("clients are forwarded", to=active)
            self._try()

    def hand_over(self) -> list[socket.socket]:
        """Those who still wait, for this server to serve them itself, now that it is active."""
        waiting = list(self._waiting)
        for sock in waiting:
            self._leave(sock)
        return waiting

    async def close(self) -> None:
        """Let nobody in any more, and have what was sent answered, which may take FAREWELL_S."""
        self._let_go()
        for sock in self.hand_over():
            sock.close()
        for guest in list(self._served.values()):
            guest.client.hear_no_more()
        if self._served:
            self._empty = asyncio.Event()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FAREWELL_S):
                    await self._empty.wait()
        for guest in list(self._served.values()):
            guest.cut_off()

    # -- who comes

    def _let_go(self) -> None:
        """Forward nobody any more for now."""
        self._accept(accepts=False)
        for guest in self._waiting.values():
            if guest.task is not None:
                guest.task.cancel()
                guest.task = None

    def _accept(self, *, accepts: bool) -> None:
        """Accept clients, or leave them with the kernel for now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if accepts == self._accepts:
            return
        self._accepts = accepts
        loop = asyncio.get_running_loop()
        for sock in self._listener.sockets:
            if accepts:
                sock.setblocking(False)  # noqa: FBT003 - as it is declared
                loop.add_reader(sock, self._on_client, sock)
            else:
                loop.remove_reader(sock)

    def _try(self) -> None:
        """Connect the first of those who wait to the active server; if there is none, accept one."""
        self._timer = None
        for guest in self._waiting.values():
            if guest.task is None:
                self._start(guest)
                return
        self._accept(accepts=True)

    def _try_later(self) -> None:
        self._accept(accepts=False)
        self._timer = asyncio.get_running_loop().call_later(AGAIN_S, self._try)

    def _on_client(self, listening: socket.socket) -> None:
        try:
            sock, peer = listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:  # there are no descriptors left
            self._oddities.warning("a client can't be accepted", error=error)
            self._try_later()
            return
        address = self._addresses.address_of(peer)
        if len(self._waiting) + len(self._served) >= self._most:
            self._refusals.note("connections")
        elif self._addresses.is_full(address):
            self._refusals.note("connections-per-address")
        else:
            sock.setblocking(False)  # noqa: FBT003 - as above
            self._addresses.add(sock, address)
            over = partial(self._leave, sock)
            guest = self._waiting[sock] = Guest(sock, peer, End(self._chunk, over), ServerEnd(self._chunk, over))
            self._start(guest)
            return
        sock.close()

    # -- how they are connected

    def _start(self, guest: Guest) -> None:
        assert self._active is not None
        guest.task = asyncio.get_running_loop().create_task(self._forward(guest, self._active))
        guest.task.add_done_callback(_raise_bug)

    async def _forward(self, guest: Guest, active: str) -> None:
        """Connect a client to the active server."""
        loop = asyncio.get_running_loop()
        host, port = host_and_port(active)
        problem: OSError | None = None
        try:
            async with asyncio.timeout(CONNECT_S):
                await loop.create_connection(lambda: guest.server, host, port)
        except OSError as error:
            problem = error
        if problem is not None:
            guest.task = None
            self._oddities.warning("the active server can't be reached", address=active, error=problem)
            self._try_later()
            return
        self._served[guest.sock] = self._waiting.pop(guest.sock)
        self._reached()
        if self._is_let_through(guest):
            with contextlib.suppress(OSError):  # the client has gone
                await loop.connect_accepted_socket(lambda: guest.client, guest.sock)
                return
        guest.client.is_lost = True
        guest.sock.close()
        guest.server.cut_off()

    def _reached(self) -> None:
        """The active server is there: all may come."""
        for guest in self._waiting.values():
            if guest.task is None:
                self._start(guest)
        self._accept(accepts=True)

    def _is_let_through(self, guest: Guest) -> bool:
        """Whether a client may have this connection to the active server."""
        if guest.server.transport is None:
            return False
        name = guest.server.name = guest.server.transport.get_extra_info("sockname")
        self._names.add(name)
        if guest.peer in self._names:
            self._oddities.warning("what is forwarded comes back: advertise has to lead to one server", to=self._active)
            return False
        if self._operators.include(name) and not self._operators.include(guest.peer):
            self._oddities.warning("clients are refused whom the active server would take for operators", by=name)
            return False
        return True

    def _leave(self, sock: socket.socket) -> None:
        """It is over with a client, or others look after it."""
        guest = self._waiting.pop(sock, None) or self._served.pop(sock)
        guest.untie()
        self._names.discard(guest.server.name)
        self._addresses.drop(sock)
        if self._empty is not None and not self._served:
            self._empty.set()


def _raise_bug(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.result()
