"""A client's connection to one server."""

from __future__ import annotations

import asyncio
from typing import Final, Protocol, cast

from beanlite.beanstalk.client import Server
from beanlite.router.dial import half_close
from beanlite.router.lane import Lane

# With so many bytes that the other side does not take, nothing more is read for it.
UNREAD_MAX: Final = 1 << 16


class Client(Protocol):
    """The side of the client, as the connections to servers see it."""

    def server_made(self, end: ServerSide) -> None:
        """Take a connection that was made."""

    def server_came(self, end: ServerSide, data: bytes) -> None:
        """Take what a server says."""

    def server_lost(self, end: ServerSide) -> None:
        """Take note that a connection was lost."""

    def flush(self) -> None:
        """Send everything."""


class ServerSide(asyncio.Protocol):
    """A connection to a server."""

    __slots__ = ("address", "client", "has_heard", "lane", "transport")

    def __init__(self, client: Client, lane: Lane) -> None:
        self.client: Client | None = client
        self.lane = lane
        self.address: Server | None = None
        """Where the server was reached."""
        self.has_heard = False
        """The server has said something."""
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin with the greeting, and with what waits to be sent."""
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=UNREAD_MAX)
        if self.client is None:  # it has gone meanwhile
            self.transport.abort()
        else:
            self.client.server_made(self)

    def data_received(self, data: bytes) -> None:
        """Pass on what the server says."""
        self.has_heard = True
        if self.client is not None:
            self.client.server_came(self, data)

    def eof_received(self) -> None:
        """Close: by itself a connection with TLS would stay open."""
        if self.transport is not None:
            self.transport.close()

    def connection_lost(self, _error: Exception | None) -> None:
        """Pass on that the connection is closed."""
        self.transport = None
        if self.client is not None:
            client, self.client = self.client, None
            client.server_lost(self)

    def pause(self) -> None:
        """Read no more from the server for now."""
        if self.client is not None and self.transport is not None:  # else the lane may have another connection
            self.lane.unread = True
            self.transport.pause_reading()

    def resume(self) -> None:
        """Read from it again."""
        if self.client is not None and self.transport is not None:
            self.lane.unread = False
            self.transport.resume_reading()

    def pause_writing(self) -> None:
        """Read no more from the client."""
        self._clog(is_clogged=True)

    def resume_writing(self) -> None:
        """Read from the client again."""
        self._clog(is_clogged=False)

    def _clog(self, *, is_clogged: bool) -> None:
        if self.client is not None:  # else the lane may have another connection
            self.lane.clogged = is_clogged
            self.client.flush()

    def close(self) -> None:
        """Close the connection, once all is sent."""
        self.client = None
        transport = self.transport
        if transport is not None:
            if not transport.get_write_buffer_size() and not transport.is_closing():
                half_close(transport)
            transport.close()
