"""Connections that have no rights yet: how many there may be, and for how long each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from beanlite.net.allowed import address_of
from beanlite.net.connection import Connection

PENDING_MAX: Final = 1024
# Of these, from one address. Those over a Unix socket have none.
PENDING_PER_HOST: Final = PENDING_MAX // 10
PENDING_S: Final = 10.0
# Who has one IPv6 address has all with this prefix.
_IPV6_BYTES: Final = 8


class Pending:
    """The connections without rights, the earliest first, and one timer for all."""

    def __init__(self, loop: asyncio.AbstractEventLoop, dismiss: Callable[[Connection], None]) -> None:
        """``dismiss`` ends a connection whose time is over."""
        self._loop = loop
        self._dismiss = dismiss
        self._until_s: dict[Connection, tuple[float, bytes | None]] = {}
        self._per_host: dict[bytes | None, int] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._until_s)

    def add(self, connection: Connection, host: str | None) -> bool:
        """Give a connection its time; returns False if there are too many."""
        place = None if host is None else _place_of(host)
        of_place = self._per_host.get(place, 0)
        if len(self) >= PENDING_MAX or (place is not None and of_place >= PENDING_PER_HOST):
            return False
        self._per_host[place] = of_place + 1
        self._until_s[connection] = (self._loop.time() + PENDING_S, place)
        if self._timer is None:
            self._timer = self._loop.call_later(PENDING_S, self._end)
        return True

    def drop(self, connection: Connection) -> None:
        """Forget a connection that has rights by now, or is closed."""
        entry = self._until_s.pop(connection, None)
        if entry is not None:
            place = entry[1]
            self._per_host[place] -= 1
            if not self._per_host[place]:
                del self._per_host[place]

    def _end(self) -> None:
        """End the connections whose time is over."""
        self._timer = None
        now_s = self._loop.time()
        for connection, (until_s, _) in list(self._until_s.items()):
            if until_s > now_s:
                self._timer = self._loop.call_later(until_s - now_s, self._end)
                break
            self.drop(connection)
            self._dismiss(connection)


def _place_of(host: str) -> bytes:
    """Return what counts as one address: the IPv4 address, or the network part of the IPv6 address."""
    address = address_of(host)
    return address.packed if address.version == 4 else address.packed[:_IPV6_BYTES]
