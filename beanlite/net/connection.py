"""A client's connection: feeds bytes to its session, and does what the session is blocked for.

``outbox`` keeps its replies in order, ``flow`` controls what is read from the client, and ``ending`` ends it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, cast

from beanlite.commit.fetch import Waiter
from beanlite.commit.group import GroupCommit
from beanlite.core.job import Job
from beanlite.core.queues import Outcome
from beanlite.core.tube import Client
from beanlite.net.addresses import peer_name
from beanlite.net.buffers import UNSENT_BYTES_MAX, Buffers
from beanlite.net.ending import Ending
from beanlite.net.flow import Flow
from beanlite.net.outbox import Outbox
from beanlite.net.turns import LATE, Turns
from beanlite.protocol.blocked import CLOSING, FETCHING, KICKING, LOOKING, REPLETE, WORKING, YIELDING, Blocked
from beanlite.protocol.framing import FramedSession, is_one_put
from beanlite.protocol.replies import UNAUTHORIZED
from beanlite.protocol.session import Service

# A client that waits for each reply is not held back by a full batch. One that sends more bytes or lines than this at
# once is, and by a long turn as well; short data is not searched for lines.
SMALL_BYTES: Final = 1 << 12
LINES_MAX: Final = 16
SHORT_BYTES: Final = 128
# A client that gets more replies than this at once is pipelining its commands.
ONE_BY_ONE_MAX: Final = 4


@dataclass(slots=True)
class Host:
    """Everything a connection knows about its server."""

    turns: Turns
    buffers: Buffers
    group: GroupCommit
    service: Service
    admit: Callable[[Connection, asyncio.BaseTransport], bool]
    """Called with a new connection; returns False if it exceeds a limit."""
    forget: Callable[[Client], None]
    """Called when a connection is closed."""
    part: Callable[[Connection], None]
    """Takes over the socket of a client that is done, and closes it; then calls ``connection_lost``."""
    fetch: Callable[[Job, Waiter], None]
    """Fetches the body of a job for a connection."""
    spare_others: Callable[[Exception], None]
    """Logs a bug that can have affected only one client; raises any other."""


class Connection(asyncio.Protocol):
    """A client's transport and session."""

    __slots__ = (
        "_flow",
        "_group",
        "_host",
        "_outbox",
        "_resuming",
        "_turns",
        "ending",
        "heard_ns",
        "session",
        "since_ns",
        "transport",
    )

    def __init__(self, host: Host) -> None:
        self._host = host
        self._turns = host.turns
        self._group = host.group
        self.since_ns = self.heard_ns = host.turns.glance()
        """When it was made, and when its client has last sent something."""
        self._resuming = False
        """Set while a resumption is pending: a later turn, or a body being fetched, will continue the session."""

    # -- called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set up a session for a new client, or close the connection at once if it exceeds a limit."""
        host = self._host
        self.transport = to = cast(asyncio.Transport, transport)
        self.session = session = self._new_session(host.service, peer_name(transport))
        self.ending = Ending(session, to, host.buffers, host.turns, host.spare_others)
        self._flow = Flow(session, to, self.ending, host.buffers, host.group, host.turns)
        self._outbox = Outbox(session, to, self.ending, self._flow, host.group, host.turns)
        to.set_write_buffer_limits(high=UNSENT_BYTES_MAX)
        if not host.admit(self, transport):
            self.ending.cut_off()

    def data_received(self, data: bytes) -> None:
        """Pass received bytes to the session: every command starts here."""
        size = len(data)
        is_much = size > SHORT_BYTES and (
            size > SMALL_BYTES or (data.count(b"\n") > LINES_MAX and not is_one_put(data))
        )
        now_ns = self._turns.received(size, is_much=is_much)
        try:
            # Let others go first. A client that waits for each reply is not held back, unless it puts a large body.
            if now_ns == LATE or ((self._outbox.held or is_much or self.session.put is not None) and self._group.full):
                # Even while nobody else can be served, what goes on can be seen. What is behind it waits all the same:
                # some are answered at once, such as a wrong line.
                if self.session.replies or not (self._group.flooded and self.session.begins_with_look(data)):
                    self.heard_ns = self._turns.glance()
                    self.session.postpone(data)
                    self._settle_rest()
                    return
                self.heard_ns = now_ns = self._turns.now()
                self.session.receive_first(data, now_ns)
            else:
                self.heard_ns = now_ns
                self.session.receive(data, now_ns)
        except Exception as bug:  # noqa: BLE001 - a bug that concerns other clients is raised again
            self.ending.fail(bug)
        answers = len(self.session.replies)
        self.settle()
        self._turns.wake()  # now, so that the jobs they are given are stored in the same batch
        blocked = self.session.blocked
        if self.session.put is not None or self._host.buffers.amounts:
            self._flow.note_buffers()
        self._turns.served(
            one_by_one=answers <= ONE_BY_ONE_MAX
            and (blocked is None or not (blocked is YIELDING or blocked is LOOKING or blocked is WORKING))
        )

    def eof_received(self) -> bool:
        """Note that the client has half-closed: it sends no more, but still gets its outstanding replies."""
        self._turns.leave(self._half_close)
        return True

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's name, for subclasses
        """Note that the client is gone: end its wait at once, and disconnect it in its turn."""
        self.ending.lose()
        self._turns.leave(self._leave)

    def pause_writing(self) -> None:
        """Note that the client does not read its replies: neither serve it nor read from it until it does."""
        self._flow.hold_back()

    def resume_writing(self) -> None:
        """Note that the client has read its replies, or most of them: serve it again."""
        self._flow.go_on()
        self._settle_rest()

    def _new_session(self, service: Service, address: str) -> FramedSession:
        return FramedSession(service, address)

    # -- the client's end

    def _half_close(self) -> None:
        if self.ending.leaving:  # its turn was put off, and meanwhile the connection ended
            self.transport.close()
            return
        now_ns = self._turns.now()
        self._turns.wake()  # waits that are already over are answered first
        try:
            self.session.half_close(now_ns)
        except Exception as bug:  # noqa: BLE001 - as above
            self.ending.fail(bug)
        self.settle()
        self._turns.wake()

    def _leave(self) -> None:
        self._flow.note_waiting(0)
        self._host.forget(self.session.client)
        self.ending.leave()

    def part(self) -> None:
        """Carry out no more commands, and close the connection once all replies so far have been sent."""
        if self.ending.part():
            self._host.part(self)

    def dismiss(self) -> None:
        """Close the connection because its client has no rights, or fewer than before, once it has been told so."""
        self._turns.leave(self._dismiss)

    def _dismiss(self) -> None:
        if not self.ending.leaving:
            self.session.dismiss(UNAUTHORIZED)
            self.settle()

    # -- replies

    def settle(self) -> None:
        """Send the session's replies, or hold them for the journal; to be called after each call into the session."""
        if self.ending.leaving:
            return
        session = self.session
        try:
            if session.replies or session.blocked is KICKING:
                self._outbox.send(self)
            if session.blocked or session.half_closed or not self._flow.reading:
                self._settle_rest()
        except Exception as bug:  # noqa: BLE001 - as above
            self.ending.abandon(bug)

    def release(self, replies: bytes) -> None:
        """Send replies that were held: the changes they acknowledge are durable."""
        session = self.session
        try:
            self._outbox.release(replies)
            if session.replies and not self._outbox.held:
                self.settle()  # the journal is in doubt: they wait for the next batch
            if session.blocked or session.half_closed or not self._flow.reading:
                self._settle_rest()
        except Exception as bug:  # noqa: BLE001 - as above
            self.ending.abandon(bug)

    @property
    def owes(self) -> bool:
        """Whether the client has not been sent all replies to what has been carried out for it."""
        return self._outbox.owes

    def tell(self, events: bytes) -> None:
        """Send events that the client watches."""
        self.transport.write(events)
        if self._flow.unread:
            self._flow.note_buffers()

    def listen_no_more(self) -> None:
        """Carry out no more commands, because the server is about to stop."""
        self._flow.listen_no_more()

    # -- what the session is blocked for

    def _settle_rest(self) -> None:
        """Do what only some connections need: resume later, fetch bodies, close, or stop reading."""
        if self.ending.leaving:
            return
        session = self.session
        blocked = session.blocked
        # The next slice of a kick waits until the previous one is durable: a batch never has more than one.
        if (blocked is KICKING and not self._outbox.held) or (
            not self._flow.unread
            and (
                blocked is LOOKING
                or blocked is WORKING
                or blocked is YIELDING
                or (blocked is REPLETE and not self._outbox.owes)
            )
        ):
            self._resume_later(blocked)
        elif session.gathering is not None and not self._resuming and not self._flow.unread:
            self._resuming = True
            if self._group.flooded and session.gathering.kind is FETCHING:
                self._turns.resume_later(self._fetch_bodies, YIELDING)
            else:
                self._fetch_bodies()
        elif (session.blocked is CLOSING or (session.half_closed and not session.blocked)) and not self._outbox.owes:
            self.part()
            return
        self._flow.update()

    def _fetch_bodies(self) -> None:
        gathering = self.session.gathering
        if gathering is not None:
            for job in gathering.jobs:
                self._host.fetch(job, BodyWaiter(self, job))

    def _resume_later(self, kind: Blocked) -> None:
        if not self._resuming:
            self._resuming = True
            self._turns.resume_later(self.resume, kind)

    def wake(self, outcome: Job | Outcome) -> None:
        """Pass on the outcome of the client's wait in a reserve."""
        if self.ending.leaving or self.session.blocked is CLOSING:
            return  # it is gone, or has met a bug since; a job it was given goes back when it is closed
        try:
            self.session.wake(outcome)
        except Exception as bug:  # noqa: BLE001 - as above
            self.ending.fail(bug)
        self.settle()

    def resume(self) -> None:
        """Continue the session where it was blocked."""
        self._resuming = False
        session = self.session
        if self.ending.leaving or self._flow.deaf or session.blocked is None:
            return
        if self._flow.unread and session.blocked is not KICKING and session.blocked is not FETCHING:
            return  # until it has read; a kick says nothing yet, and bodies that have been fetched are not kept
        now_ns = self._turns.now()
        try:
            session.resume(now_ns, self._turns.steps)
        except Exception as bug:  # noqa: BLE001 - as above
            self.ending.fail(bug)
        self.settle()
        if self._host.buffers.amounts:
            self._flow.note_buffers()
        self._turns.wake()

    def bring(self, job: Job, body: bytes | None) -> None:
        """Pass on a body that the session needs, or None if the job is gone; resume the session once it has all."""
        kind = self.session.bring(job, body)
        if kind is FETCHING:
            self.resume()
            return
        self._flow.note_buffers()
        if kind is not None:
            self._turns.resume_later(self.resume, kind)

    def lack_memory(self) -> None:
        """Fail the session, because there is no memory for a body that it waits for."""
        self._resuming = False
        self.ending.fail(MemoryError("for the body of a job"))
        self.settle()


class BodyWaiter:
    """Waits for one of the bodies that a connection needs, as the fetcher's ``Waiter``."""

    __slots__ = ("_connection", "_job")

    def __init__(self, connection: Connection, job: Job) -> None:
        self._connection = connection
        self._job = job

    def resume(self, body: bytes | None) -> None:
        """Pass on the body, or None if the job is gone."""
        self._connection.bring(self._job, body)

    def lack_memory(self) -> None:
        """Pass on that there is no memory for the body."""
        self._connection.lack_memory()
