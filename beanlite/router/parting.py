"""The ends of clients' connections: each is closed once the client has read its last replies."""

from __future__ import annotations

import asyncio
from typing import Final

from beanlite.net.unread import unread_bytes

# How long a client may take to read anything of its last replies, and to close its side.
FAREWELL_S: Final = 2.0


class Partings:
    """The connections of clients that are done; they take descriptors until they are closed."""

    def __init__(self) -> None:
        self._all: dict[Parting, None] = {}
        """The earliest comes first."""

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._all)

    def begin(self, transport: asyncio.Transport, *, is_mutual: bool) -> None:
        """Close a connection once everything is sent. ``is_mutual``: the client sends no more, either."""
        parting = Parting(self, transport)
        self._all[parting] = None
        parting.begin(is_mutual=is_mutual)

    def over(self, parting: Parting) -> None:
        """Forget a connection, which is closed."""
        self._all.pop(parting, None)

    def make_room(self) -> bool:
        """Close the earliest connection on which everything is sent; return False if there is none."""
        for parting in self._all:
            if parting.cut_short():
                self.over(parting)
                return True
        return False


class Parting(asyncio.Protocol):
    """The end of one connection. A client that reads, however slowly, gets all its replies."""

    __slots__ = ("_loop", "_partings", "_timer", "_transport", "_unread")

    def __init__(self, partings: Partings, transport: asyncio.Transport) -> None:
        self._partings = partings
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(FAREWELL_S, self._on_timer)
        self._unread = unread_bytes(transport)

    def begin(self, *, is_mutual: bool) -> None:
        """Send no more, but read on: else the kernel would send RST, and replies would be lost."""
        transport = self._transport
        transport.set_protocol(self)
        if is_mutual or transport.is_closing():
            transport.close()
            return
        try:
            transport.write_eof()
            transport.resume_reading()
        except OSError:  # the client has closed both sides already
            transport.abort()

    def connection_lost(self, _error: Exception | None) -> None:
        """Take note that the connection is closed."""
        self._timer.cancel()
        self._partings.over(self)

    def _on_timer(self) -> None:
        unread = unread_bytes(self._transport)
        if unread < self._unread:
            self._unread = unread
            self._timer = self._loop.call_later(FAREWELL_S, self._on_timer)
        else:
            self._transport.abort()

    def cut_short(self) -> bool:
        """Close the connection without waiting for the client and return True, unless replies are left to send."""
        if self._transport.get_write_buffer_size():
            return False
        self._transport.close()
        return True
