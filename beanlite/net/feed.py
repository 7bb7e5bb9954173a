"""Tells those who watch what happens to jobs, once it is durable."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from beanlite.core.events import Event
from beanlite.core.ledger import Ledger
from beanlite.core.tube import Client
from beanlite.net.connection import Connection
from beanlite.protocol.operator_replies import event_reply, lost_reply

# Events that wait for a client to be told; more are lost to it.
QUEUE_MAX: Final = 10_000
# Events told in one go, before others have their turn.
AT_ONCE: Final = 200
# Bytes that a client may have left to read and be told more. If it is too much, how long to wait for it.
UNREAD_MAX: Final = 1 << 16
RETRY_S: Final = 0.1


class Watcher:
    """What a client watches, and what it has not been told yet."""

    __slots__ = ("_lost", "_tube", "_what", "queue")

    def __init__(self, tube: bytes | None, what: list[str] | None) -> None:
        self._tube = tube
        self._what = what
        self.queue: deque[Event | int] = deque()
        """A number stands for so many that were lost."""
        self._lost = 0
        """How many have been lost since the last one in the queue."""

    def hear(self, event: Event) -> None:
        """Something has happened."""
        if (self._tube is not None and event.tube.name != self._tube) or (
            self._what is not None and event.what not in self._what
        ):
            return
        if len(self.queue) >= QUEUE_MAX:
            self._lost += 1
            return
        if self._lost:
            self.queue.append(self._lost)
            self._lost = 0
        self.queue.append(event)

    def take(self, most: int, utc_s: Callable[[int], float]) -> bytes:
        """The next of what it has to be told."""
        told: list[bytes] = []
        while self.queue and len(told) < most:
            event = self.queue.popleft()
            told.append(lost_reply(event) if isinstance(event, int) else event_reply(event, utc_s))
        if self._lost and not self.queue:
            told.append(lost_reply(self._lost))
            self._lost = 0
        return b"".join(told)


class Feed:
    """All watchers. Events are made for their sake only as long as there are any."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        ledger: Ledger,
        connections: dict[Client, Connection],
        utc_s: Callable[[int], float],
    ) -> None:
        """``connections`` are those of all clients, as they come and go; ``utc_s`` tells what a time is in UTC."""
        self._utc_s = utc_s
        self._loop = loop
        self._ledger = ledger
        self._connections = connections
        self._watchers: dict[Client, Watcher] = {}
        self._timer: asyncio.Handle | None = None

    def watch(self, client: Client, tube: bytes | None, what: list[str] | None) -> None:
        """Tell this client from now on what happens to jobs; in one tube, or of one kind, if these are given."""
        if client not in self._watchers:
            self._ledger.start_recording()
        self._watchers[client] = Watcher(tube, what)

    def tell(self, events: list[Event]) -> None:
        """Something has happened, and is durable."""
        if not self._watchers:
            return
        for watcher in self._watchers.values():
            for event in events:
                watcher.hear(event)
        if self._timer is None:
            self._timer = self._loop.call_soon(self._send)

    def _send(self) -> None:
        self._timer = None
        delay_s: float | None = None
        for client, watcher in list(self._watchers.items()):
            connection = self._connections.get(client)
            if connection is None:
                del self._watchers[client]
                self._ledger.stop_recording()
            elif connection.transport.get_write_buffer_size() > UNREAD_MAX:
                delay_s = RETRY_S if delay_s is None else delay_s
            else:
                if watcher.queue:
                    connection.transport.write(watcher.take(AT_ONCE, self._utc_s))
                if watcher.queue:
                    delay_s = 0.0
        if delay_s is not None:
            self._timer = self._loop.call_later(delay_s, self._send)
