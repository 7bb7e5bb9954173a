"""Sends events of jobs to the clients that watch, once the events are durable.

All watchers share one list of the latest events, in which each has a place. However many they are, they are sent events
in slices, and what waits for them takes no more memory.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from beanlite.core.access import READER, Rights
from beanlite.core.events import NOTE, SCHEDULE, WORDS, Event
from beanlite.core.ledger import Ledger
from beanlite.core.notes import first_line
from beanlite.core.tube import Client
from beanlite.net.connection import Connection
from beanlite.protocol.operators.replies import event_reply, lost_reply, without_long_body

# Events that are kept for the clients; one that lags further behind loses the earlier ones.
KEPT_MAX: Final = 10_000
# What is done in one go, before others have their turn: counted in events looked at, where sending counts as some more.
AT_ONCE: Final = 200
SEND_COST: Final = 5
# Events looked at for one client in one go; more if there are few clients, but each is served once.
SHARE: Final = 50
# A client with more unread bytes than this is sent no events, nor is one that still waits for the reply to its
# watch-events; it is tried again after RETRY_S.
UNREAD_MAX: Final = 1 << 16
# With many clients it is a part of this: what is unread leaves in a single turn of the loop if all read it at once.
UNREAD_ALL: Final = 1 << 23
RETRY_S: Final = 0.1
# How often a client can change what it watches before it has been sent the events from before the first change.
CHANGES_MAX: Final = 10


class Wish:
    """What a client wants to hear of: events from a place in the list and from a time on, perhaps only some."""

    __slots__ = ("place", "since_ns", "tube", "words")

    def __init__(self, place: int, tube: bytes | None, what: list[str] | None, since_ns: int) -> None:
        self.place = place
        self.tube = tube
        self.words = None if what is None else frozenset(what) & _WORDS  # others could be very long
        self.since_ns = since_ns

    def fits(self, event: Event) -> bool:
        """Whether the client wants to hear of an event."""
        return (
            event.at_ns >= self.since_ns
            and (self.tube is None or event.tube.name == self.tube)
            and (self.words is None or event.what in self.words)
        )


_WORDS: Final = frozenset(WORDS)


class Watcher:
    """A client that watches: its place in the list of events, and what it wants to hear of from which place on."""

    __slots__ = ("is_answered", "place", "wishes")

    def __init__(self, place: int) -> None:
        self.place = place
        """The next event to look at for it."""
        self.wishes: deque[Wish] = deque()
        """The last one counts from its place on, one before that up to there."""
        self.is_answered = False
        """Whether the client has been sent the reply to its command: no event may come before that."""

    def wish_at(self, place: int) -> Wish:
        """Return what the client wants to hear of at this place, which only grows from call to call."""
        while len(self.wishes) > 1 and self.wishes[1].place <= place:
            self.wishes.popleft()
        return self.wishes[0]


class Feed:
    """All watchers. For their sake events are recorded only while there are any."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        ledger: Ledger,
        connections: dict[Client, Connection],
        utc_s: Callable[[int], float],
    ) -> None:
        """Take the ``connections`` of all clients, kept up to date; ``utc_s`` converts a time to UTC."""
        self._utc_s = utc_s
        self._loop = loop
        self._ledger = ledger
        self._connections = connections
        self._watchers: dict[Client, Watcher] = {}
        self._events: list[Event] = []
        """The latest events."""
        self._told: list[bytes] = []
        """Each of them as a reply; empty until the first client is sent it."""
        self._first = 0
        """The place of the first of these events, counted from the start of the server."""
        self._round: deque[Client] = deque()
        """Clients that may have events to be sent, the next one first."""
        self._round_end = 0
        """The end of the list when this round began: the next one is for what has come since."""
        self._retry: dict[Client, None] = {}
        """Clients that can't be sent any at the moment."""
        self._timer: asyncio.Handle | None = None
        self._retry_timer: asyncio.Handle | None = None

    def watch(self, client: Client, tube: bytes | None, what: list[str] | None, now_ns: int) -> None:
        """Send a client events of jobs from now on: only those of ``tube``, and of the kinds in ``what``, if given."""
        if client not in self._watchers:
            self._ledger.start_recording()
            self._watchers[client] = Watcher(self._end)
        watcher = self._watchers[client]
        watcher.is_answered = False
        watcher.wishes.append(Wish(self._end, tube, what, now_ns))
        if len(watcher.wishes) > CHANGES_MAX:
            watcher.wishes.popleft()

    def forget(self, client: Client) -> None:
        """Send nothing more to a client that is gone."""
        if client in self._watchers:
            self._drop(client)

    @property
    def _end(self) -> int:
        return self._first + len(self._events)

    def tell(self, events: list[Event]) -> None:
        """Keep events, which are durable, for the watchers, and have them sent."""
        if not self._watchers:
            return
        for event in events:
            if event.what == NOTE and event.body is not None:
                event.body = first_line(event.body).encode()
            elif event.job_id:
                event.body = None  # it is of no use here, and would take memory
            elif event.what == SCHEDULE and event.body is not None:
                event.body = without_long_body(event.body)  # likewise
        self._events += events
        self._told += [b""] * len(events)
        if len(self._events) > 2 * KEPT_MAX:  # not sooner, since what is left has to be moved
            dropped = len(self._events) - KEPT_MAX
            del self._events[:dropped], self._told[:dropped]
            self._first += dropped
        self._go_on()

    def _go_on(self) -> None:
        """Have the round go on, or the next one begin, if there is something to send."""
        if not self._round and self._round_end < self._end:
            self._round.extend(client for client in self._watchers if client not in self._retry)
            self._round_end = self._end
        if self._round and self._timer is None:
            self._timer = self._loop.call_soon(self._send)

    def _send(self) -> None:
        """Send what fits in one go."""
        self._timer = None
        left = AT_ONCE
        share = max(SHARE, AT_ONCE // max(1, len(self._round)))
        unread_max = min(UNREAD_MAX, UNREAD_ALL // max(1, len(self._watchers)))
        while self._round and left > 0:
            left -= self._serve(self._round.popleft(), share, unread_max)
        self._go_on()

    def _serve(self, client: Client, share: int, unread_max: int) -> int:
        """Send a client its share of the events; returns what that cost."""
        watcher, connection = self._watchers.get(client), self._connections.get(client)
        if watcher is None:
            return 1
        if connection is None or connection.ending.leaving or not connection.session.operator:
            self._drop(client)  # it is gone, or may not watch any more
            return 1
        watcher.is_answered = watcher.is_answered or not connection.owes
        if not watcher.is_answered or connection.transport.get_write_buffer_size() > unread_max:
            self._try_again(client)
            return 1
        before, rights = watcher.place, connection.session.rights
        looks = 1 if rights is None else rights.looks(READER)
        told = self._take(watcher, rights, max(1, share // looks))
        if told:
            connection.tell(told)
        if watcher.place < self._round_end:
            self._round.append(client)
        return (watcher.place - before) * looks + (SEND_COST if told else 1)

    def _take(self, watcher: Watcher, rights: Rights | None, share: int) -> bytes:
        """Pass over a share of the events for a watcher, and return those that it wants to hear of and may."""
        told: list[bytes] = []
        if watcher.place < self._first:
            told.append(lost_reply(self._first - watcher.place))
            watcher.place = self._first
        stop = min(watcher.place + share, self._end)
        for place in range(watcher.place, stop):
            at = place - self._first
            event = self._events[at]
            # The tube of a policy's event is its pattern.
            if watcher.wish_at(place).fits(event) and (rights is None or rights.may(READER, event.tube.name)):
                reply = self._told[at]
                if not reply:
                    reply = self._told[at] = event_reply(event, self._utc_s)
                told.append(reply)
        watcher.place = stop
        return b"".join(told)

    def _drop(self, client: Client) -> None:
        del self._watchers[client]
        self._ledger.stop_recording()
        if not self._watchers:
            self._first = self._end
            self._events.clear()
            self._told.clear()

    def _try_again(self, client: Client) -> None:
        self._retry[client] = None
        if self._retry_timer is None:
            self._retry_timer = self._loop.call_later(RETRY_S, self._retry_all)

    def _retry_all(self) -> None:
        self._retry_timer = None
        self._round.extend(self._retry)
        self._retry.clear()
        self._go_on()
