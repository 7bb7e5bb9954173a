"""Sends events of jobs to the clients that watch, once the events are durable."""

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

# Events queued for a client; further ones are lost to it.
QUEUE_MAX: Final = 10_000
# Events sent in one go, before others have their turn: to all clients together, but at least one to each.
AT_ONCE: Final = 200
# A client with more unread bytes than this is sent no events, nor is one that still waits for the reply to its
# watch-events; it is tried again after RETRY_S.
UNREAD_MAX: Final = 1 << 16
RETRY_S: Final = 0.1


class Watcher:
    """What a client watches, and the events that it has not been sent yet."""

    __slots__ = ("_lost", "_since_ns", "_tube", "_what", "is_answered", "queue")

    def __init__(self) -> None:
        self.queue: deque[Event | int] = deque()
        """Events; a number stands for that many lost ones."""
        self._lost = 0
        """How many events have been lost since the last one in the queue."""

    def watch(self, tube: bytes | None, what: list[str] | None, since_ns: int) -> None:
        """Hear of events from ``since_ns`` on, of those that ``Feed.watch`` describes; the queue stays as it is."""
        self._tube = tube
        self._what = None if what is None else frozenset(what)
        self._since_ns = since_ns
        self.is_answered = False
        """Whether the client has been sent the reply to its command: no event may come before that."""

    def hear(self, event: Event) -> None:
        """Queue an event if the client watches it; count it as lost if the queue is full."""
        if (
            event.at_ns < self._since_ns
            or (self._tube is not None and event.tube.name != self._tube)
            or (self._what is not None and event.what not in self._what)
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
        """Take up to ``most`` entries from the queue; return them as replies."""
        told: list[bytes] = []
        while self.queue and len(told) < most:
            event = self.queue.popleft()
            told.append(lost_reply(event) if isinstance(event, int) else event_reply(event, utc_s))
        if self._lost and not self.queue:
            told.append(lost_reply(self._lost))
            self._lost = 0
        return b"".join(told)


class Feed:
    """All watchers. For their sake events are recorded only while there are any."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        ledger: Ledger,
        connections: dict[Client, Connection],
        utc_s: Callable[[int], float],
    ) -> None:
        """``connections`` are those of all clients, kept up to date; ``utc_s`` converts a time to UTC."""
        self._utc_s = utc_s
        self._loop = loop
        self._ledger = ledger
        self._connections = connections
        self._watchers: dict[Client, Watcher] = {}
        self._timer: asyncio.Handle | None = None

    def watch(self, client: Client, tube: bytes | None, what: list[str] | None, now_ns: int) -> None:
        """Send a client events of jobs from now on: only those of ``tube``, and of the kinds in ``what``, if given."""
        if client not in self._watchers:
            self._ledger.start_recording()
            self._watchers[client] = Watcher()
        self._watchers[client].watch(tube, what, now_ns)

    def tell(self, events: list[Event]) -> None:
        """Queue events, which are durable, for the watchers, and have them sent."""
        if not self._watchers:
            return
        for event in events:
            event.body = None  # it is of no use here, and clients that read slowly would keep it in memory
            for watcher in self._watchers.values():
                watcher.hear(event)
        if self._timer is None:
            self._timer = self._loop.call_soon(self._send)

    def _send(self) -> None:
        self._timer = None
        delay_s: float | None = None
        share = max(1, AT_ONCE // max(1, len(self._watchers)))
        for client, watcher in list(self._watchers.items()):
            connection = self._connections.get(client)
            if connection is None or not connection.session.operator:  # it is gone, or may not watch any more
                del self._watchers[client]
                self._ledger.stop_recording()
                continue
            watcher.is_answered = watcher.is_answered or not connection.owes()
            if not watcher.is_answered or connection.transport.get_write_buffer_size() > UNREAD_MAX:
                delay_s = RETRY_S if delay_s is None else delay_s
            else:
                if watcher.queue:
                    connection.transport.write(watcher.take(share, self._utc_s))
                if watcher.queue:
                    delay_s = 0.0
        if delay_s is not None:
            self._timer = self._loop.call_later(delay_s, self._send)
