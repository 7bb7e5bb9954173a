"""The two connections of a client that is forwarded: its own, and the one to the active server that stands for it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Final, cast

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
        """Close it at once."""
        if self.transport is not None:
            self.transport.abort()

    def _open_other(self) -> asyncio.Transport | None:
        other = None if self.other is None else self.other.transport
        return None if other is None or other.is_closing() else other


class ServerEnd(End):
    """The one to the active server, which is done with the client when it closes its side."""

    __slots__ = ("name", "other_name")

    def __init__(self, chunk: memoryview, over: Callable[[], None]) -> None:
        super().__init__(chunk, over)
        self.name: object = None
        """Its address on this side."""
        self.other_name: object = None
        """That on the other side."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is noticed within half a minute if that machine is lost, even if nothing is sent."""
        super().connection_made(transport)
        self.name = transport.get_extra_info("sockname")
        self.other_name = transport.get_extra_info("peername")
        sock = transport.get_extra_info("socket")
        for option in _KEEPALIVE:
            sock.setsockopt(*option)

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
    """A client of the active server: its socket, and how that is connected."""

    __slots__ = ("client", "peer", "server", "sock", "task")

    def __init__(self, sock: socket.socket, peer: object, client: End) -> None:
        self.sock = sock
        self.peer = peer
        self.client = client
        self.server: ServerEnd | None = None
        self.task: asyncio.Task[None] | None = None
        """Connects it."""

    def tie(self, server: ServerEnd) -> None:
        """It has this connection to the active server."""
        self.server = server
        self.client.other, server.other = server, self.client

    def untie(self) -> None:
        """Or the two would keep each other."""
        if self.server is not None:
            self.client.other = self.server.other = None

    def cut_off(self) -> None:
        """Close both connections at once."""
        self.client.cut_off()
        if self.server is not None:
            self.server.cut_off()
