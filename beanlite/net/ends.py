"""The two connections of a client that is forwarded: its own, and the one to the active server that stands for it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Final, cast

# No command has a longer line.
LINE_BYTES: Final = 256
# How long a client has to close its side once the active server has closed its own.
FAREWELL_S: Final = 2.0
_KEEPALIVE: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)


class End(asyncio.BufferedProtocol):
    """One of the two connections of a client: what comes from it leaves by the other one."""

    __slots__ = ("_chunk", "_is_cut", "_over", "early", "ended", "is_lost", "other", "transport")

    def __init__(self, chunk: memoryview, over: Callable[[], None]) -> None:
        """``chunk`` is what is read into; ``over`` is called when this one is closed, and the other one as well."""
        self._chunk = chunk
        self._over = over
        self._is_cut = False
        self.other: End | None = None
        self.transport: asyncio.Transport | None = None
        self.ended = False
        """Nothing more comes from it."""
        self.is_lost = False
        """It is closed."""
        self.early = b""
        """What came from it before the other one was there."""

    # -- what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is there; it may have been cut off meanwhile."""
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=0)
        if self._is_cut:
            self.transport.abort()

    def get_buffer(self, _sizehint: int) -> memoryview:
        """All share one buffer, as what is read leaves it at once."""
        return self._chunk

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes have come."""
        other = self._open_other()
        if self.ended:
            return
        if other is not None:
            other.write(self._chunk[:nbytes].tobytes())
        elif self.other is not None and self.other.transport is None and not self.other.is_lost:
            self.early += self._chunk[:nbytes].tobytes()

    def eof_received(self) -> bool:
        """No more come; returns whether any may still go there."""
        self.end()
        return self.other is not None and not self.other.ended

    def connection_lost(self, _exc: Exception | None) -> None:
        """It is closed, and so the other one is of no use any more."""
        self.transport, self.is_lost = None, True
        other = self._open_other()
        if other is not None:
            other.abort()
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
        """Close it at once, or as soon as it is there."""
        self._is_cut = True
        if self.transport is not None:
            self.transport.abort()

    def _open_other(self) -> asyncio.Transport | None:
        other = None if self.other is None else self.other.transport
        return None if other is None or other.is_closing() else other


class ServerEnd(End):
    """The one to the active server, which is done with the client when it closes its side."""

    __slots__ = ("names", "sock")

    def __init__(self, chunk: memoryview, over: Callable[[], None], sock: socket.socket) -> None:
        """``sock`` is connected already."""
        super().__init__(chunk, over)
        self.sock = sock
        self.names: tuple[object, object] = sock.getsockname(), sock.getpeername()
        """Its addresses, on this side and on the other one."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It gets what the client, which was there before, has sent meanwhile."""
        super().connection_made(transport)
        client, own = self.other, self.transport
        if client is None or own is None or own.is_closing():
            return
        if client.is_lost:
            own.abort()
            return
        own.write(client.early)
        client.early = b""
        if client.ended:
            client.end()

    def eof_received(self) -> bool:
        """The client has a while to close its own."""
        client = self._open_other()
        if client is not None:
            asyncio.get_running_loop().call_later(FAREWELL_S, client.close)
        return super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client still gets the replies that have come."""
        client = self._open_other()
        if client is not None:
            client.close()
        super().connection_lost(exc)


class Guest:
    """A client of the active server: its socket, and how that is connected.

    Its socket is left untouched until the active server is there and takes what it has sent: up to then it can be
    passed on to another one, or be served here.
    """

    __slots__ = ("_awaited", "client", "peer", "server", "sock", "task")

    def __init__(self, sock: socket.socket, peer: object, client: End) -> None:
        self._awaited = 1
        self.sock = sock
        self.peer = peer
        self.client = client
        self.server: ServerEnd | None = None
        self.task: asyncio.Task[None] | None = None
        """Connects it."""

    def has_asked(self) -> bool:
        """Whether it has sent a line; if not, its socket is readable again when there is more. OSError: it has gone."""
        try:
            said = self.sock.recv(LINE_BYTES, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        # An error is told by the loop once only, even if there is still something to read.
        if not said or self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            raise ConnectionAbortedError("it has closed its side")
        # If that is less than was waited for, no more comes, or the socket does not know how to wait for it.
        if b"\n" in said or not self._awaited <= len(said) < LINE_BYTES:
            return True
        self._await(len(said) + 1)
        return False

    def release(self) -> None:
        """It is others' now."""
        self._await(1)

    def pass_on(self, server: ServerEnd, most: int) -> bool:
        """Send the active server what there is, or so many bytes; False: it takes nothing, and all is still there."""
        try:
            said = self.sock.recv(most, socket.MSG_PEEK)
        except OSError:  # the client has gone, which is noticed soon
            return True
        try:
            sent = server.sock.send(said)
        except OSError:
            return False
        self.sock.recv(sent)
        return True

    async def tie(self, server: ServerEnd) -> None:
        """It has this connection to the active server from now on."""
        self.server = server
        self.client.other, server.other = server, self.client
        await _join(self.client, self.sock)  # first, as its end can keep what comes
        await _join(server, server.sock)

    def untie(self) -> None:
        """Or the two would keep each other."""
        if self.server is not None:
            self.client.other = self.server.other = None

    def cut_off(self) -> None:
        """Close both connections at once."""
        self.client.cut_off()
        if self.server is not None:
            self.server.cut_off()

    def _await(self, nbytes: int) -> None:
        """Have the socket be readable only when there are so many bytes."""
        if nbytes != self._awaited:
            self._awaited = nbytes
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, nbytes)


async def _join(end: End, sock: socket.socket) -> None:
    """Have the loop look after it."""
    try:
        await asyncio.get_running_loop().connect_accepted_socket(lambda: end, sock)
    except OSError:  # whoever is there has gone
        sock.close()
        end.connection_lost(None)


async def connect(host: str, port: int, chunk: memoryview, over: Callable[[], None]) -> ServerEnd:
    """A connection to the active server, which has not closed it yet. OSError: there is none."""
    loop = asyncio.get_running_loop()
    problem = "the name has no address"
    for family, kind, protocol, _, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)  # noqa: FBT003 - as it is declared
            for option in _KEEPALIVE:
                sock.setsockopt(*option)
            await loop.sock_connect(sock, address)
            _look_at(sock)
            return ServerEnd(chunk, over, sock)
        except OSError as error:
            sock.close()
            problem = str(error)  # the error itself would keep this frame, and that the error
        except BaseException:
            sock.close()
            raise
    raise OSError(problem)


def _look_at(sock: socket.socket) -> None:
    """OSError: it was closed on the other side."""
    try:
        sock.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return
    raise ConnectionAbortedError("it closes its connections")
