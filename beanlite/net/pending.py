"""Connections that have no rights yet: how many there may be, and for how long each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from beanlite.net.connection import Connection

PENDING_MAX: Final = 1024
# Of these, from one address. Those over a Unix socket have none.
PENDING_PER_HOST: Final = PENDING_MAX // 10
PENDING_S: Final = 10.0


class Pending:
    """The connections without rights, the earliest first, and one timer for all."""

    def __init__(self, loop: asyncio.AbstractEventLoop, dismiss: Callable[[Connection], None]) -> None:
        """``dismiss`` ends a connection whose time is over."""
        self._loop = loop
        self._dismiss = dismiss
        self._until_s: dict[Connection, tuple[float, str | None]] = {}
        self._per_host: dict[str | None, int] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._until_s)

    def add(self, connection: Connection, host: str | None) -> bool:
        """Give a connection its time; returns False if there are too many."""
        of_host = self._per_host.get(host, 0)
        if len(self) >= PENDING_MAX or (host is not None and of_host >= PENDING_PER_HOST):
            return False
        self._per_host[host] = of_host + 1
        self._until_s[connection] = (self._loop.time() + PENDING_S, host)
        if self._timer is None:
            self._timer = self._loop.call_later(PENDING_S, self._end)
        return True

    def drop(self, connection: Connection) -> None:
        """Forget a connection that has rights by now, or is closed."""
        entry = self._until_s.pop(connection, None)
        if entry is not None:
            host = entry[1]
            self._per_host[host] -= 1
            if not self._per_host[host]:
                del self._per_host[host]

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
