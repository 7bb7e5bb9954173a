"""Connections that have no rights yet: how many there may be, and for how long each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from beanlite.net.addresses import Addresses
from beanlite.net.connection import Connection
from beanlite.net.handshakes import SHARE, SHARE_LEAST
from beanlite.net.identities import Identity

PENDING_S: Final = 10.0


class Pending:
    """The connections without rights, the earliest first, and one timer for all."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        dismiss: Callable[[Connection], None],
        cut_off: Callable[[Connection], None],
        most: int,
    ) -> None:
        """``dismiss`` ends a connection whose time is over, and ``cut_off`` one that makes room for another at once."""
        self._loop = loop
        self._dismiss = dismiss
        self._cut_off = cut_off
        self._addresses = Addresses(0, spare_local=False)
        self.limit(most)
        self._until_s: dict[Connection, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._until_s)

    def limit(self, most: int) -> None:
        """From now on there may be so many, a part of them from one place."""
        self._most = most
        self._addresses.limit(max(SHARE_LEAST, most // SHARE), spare_local=False)

    def add(self, connection: Connection, identity: Identity) -> None:
        """Give a connection its time, in place of the earliest if there are too many, or of its address or its user.

        A client with a token sends it at once, so that the earliest hardly has one.
        """
        host = identity.host
        place = identity.shown.encode() if host is None else self._addresses.address_of((host,))
        if self._addresses.is_full(place):
            self._make_room(next(each for each in self._until_s if self._addresses.has(each, place)))
        elif len(self) >= self._most:
            self._make_room(next(iter(self._until_s)))
        self._addresses.add(connection, place)
        self._until_s[connection] = self._loop.time() + PENDING_S
        if self._timer is None:
            self._timer = self._loop.call_later(PENDING_S, self._end)

    def _make_room(self, connection: Connection) -> None:
        self.drop(connection)
        self._cut_off(connection)

    def drop(self, connection: Connection) -> None:
        """Forget a connection that has rights by now, or is closed."""
        if self._until_s.pop(connection, None) is not None:
            self._addresses.drop(connection)

    def _end(self) -> None:
        """End the connections whose time is over."""
        self._timer = None
        now_s = self._loop.time()
        for connection, until_s in list(self._until_s.items()):
            if until_s > now_s:
                self._timer = self._loop.call_later(until_s - now_s, self._end)
                break
            self.drop(connection)
            self._dismiss(connection)
