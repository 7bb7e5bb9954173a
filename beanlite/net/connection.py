"""A client's connection: feeds bytes to its session, sends the replies in order, and applies flow control both ways."""

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
from beanlite.net.buffers import Buffers
from beanlite.net.turns import LATE, Turns
from beanlite.protocol.blocked import CLOSING, FETCHING, KICKING, LOOKING, REPLETE, WORKING, YIELDING, Blocked
from beanlite.protocol.framing import FramedSession
from beanlite.protocol.session import Service

# A client that waits for each reply is held back by a full batch only if it sends more bytes than this at once.
SMALL_BYTES: Final = 1 << 12
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
        "_deaf",
        "_group",
        "_host",
        "_leaving",
        "_owed",
        "_reading",
        "_resuming",
        "_turns",
        "_unread_bytes",
        "_waiting_bytes",
        "session",
        "transport",
    )

    def __init__(self, host: Host) -> None:
        self._host = host
        self._turns = host.turns
        self._group = host.group
        self._owed = 0
        """How many of this connection's calls of ``GroupCommit.hold`` have not been released yet."""
        self._reading = True
        self._unread_bytes = 0
        """Unread reply bytes when they exceeded the limit; 0 while the client reads its replies fast enough."""
        self._waiting_bytes = 0
        """What is counted of replies that wait, without a journal's need, for those that are held."""
        self._deaf = False
        """Set when the server is stopping and carries out no more commands."""
        self._leaving = False
        """Set once nothing more is to be sent."""
        self._resuming = False
        """Set while a resumption is pending: a later turn, or a body being fetched, will continue the session."""

    # -- called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set up a session for a new client, or close the connection at once if it exceeds a limit."""
        self.transport = cast(asyncio.Transport, transport)
        self.session = self._new_session(self._host.service, peer_name(transport))
        self.transport.set_write_buffer_limits(high=self._host.buffers.unread_max_bytes)
        if not self._host.admit(self, transport):
            self.cut_off()

    def data_received(self, data: bytes) -> None:
        """Pass received bytes to the session: every command starts here."""
        now_ns = self._turns.received(len(data))
        try:
            # Let others go first. A client that waits for each reply is not held back, unless it puts a large body.
            if now_ns == LATE or (
                (self._owed or len(data) > SMALL_BYTES or self.session.put is not None) and self._group.full
            ):
                # Even while nobody else can be served, what goes on can be seen.
                if not (self._group.flooded and self.session.begins_with_look(data)):
                    self.session.postpone(data)
                    self._settle_rest()
                    return
                now_ns = self._turns.now()
            self.session.receive(data, now_ns)
        except Exception as bug:  # noqa: BLE001 - a bug that concerns other clients is raised again
            self._fail(bug)
        answers = len(self.session.replies)
        self.settle()
        self._turns.wake(now_ns)  # now, so that the jobs they are given are stored in the same batch
        blocked = self.session.blocked
        if self.session.put is not None or self._host.buffers.amounts:
            self._note_buffers()
        self._turns.served(
            one_by_one=answers <= ONE_BY_ONE_MAX
            and (blocked is None or not (blocked is YIELDING or blocked is LOOKING or blocked is WORKING))
        )

    def eof_received(self) -> bool:
        """The client has half-closed: it sends no more, but still gets its outstanding replies."""
        self._turns.leave(self._half_close)
        return True

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's name, for subclasses
        """The client is gone: end its wait at once, and disconnect it in its turn."""
        self._leaving = True
        self.session.stop_waiting()  # now, lest it be given a job before its turn to leave
        self._turns.leave(self._leave)

    def pause_writing(self) -> None:
        """The client is not reading its replies: neither serve it nor read from it until it does."""
        self._unread_bytes = self.transport.get_write_buffer_size()
        self._read_or_pause()

    def resume_writing(self) -> None:
        """The client has read its replies, or most of them: serve it again."""
        self._unread_bytes = 0
        self._read_or_pause()
        self._settle_rest()

    def _new_session(self, service: Service, address: str) -> FramedSession:
        return FramedSession(service, address)

    # -- the client's end

    def _half_close(self) -> None:
        if self._leaving:  # its turn was put off, and meanwhile the connection ended
            self.transport.close()
            return
        now_ns = self._turns.now()
        self._turns.wake(now_ns)  # waits that are already over are answered first
        try:
            self.session.half_close(now_ns)
        except Exception as bug:  # noqa: BLE001 - as above
            self._fail(bug)
        self.settle()
        self._turns.wake(now_ns)

    def cut_off(self) -> None:
        """Close the connection at once, discarding unsent replies."""
        self._leaving = True
        self.transport.abort()

    def _leave(self) -> None:
        self._note_waiting(0)
        self._host.forget(self.session.client)
        self._host.buffers.note(self, 0)
        self._turns.disconnect(self.session.client)

    def part(self) -> None:
        """Carry out no more commands, and close the connection once all replies so far have been sent."""
        self._leaving = True
        self._host.buffers.note(self, self.transport.get_write_buffer_size())  # the client may never read the rest
        # Now, not when the socket is closed: the next client finds the reservations returned.
        self._turns.disconnect(self.session.client)
        if self.session.half_closed:
            self.transport.close()
        elif not self.transport.is_closing():
            self._host.part(self)

    # -- replies

    def settle(self) -> None:
        """Send the session's replies, or hold them for the journal; to be called after each call into the session."""
        if self._leaving:
            return
        session = self.session
        try:
            if session.replies or session.blocked is KICKING:
                if (session.waits or self._group.in_doubt) and self._host.service.journaled:
                    self._owed += 1
                    if self._group.hold(self, session.take_replies(hold=True)):
                        self._turns.look_at_clock()
                elif not self._owed:
                    self.transport.write(session.take_replies())
                else:
                    self._note_waiting(session.unsent_bytes)
            if session.blocked or session.half_closed or not self._reading:
                self._settle_rest()
        except Exception as bug:  # noqa: BLE001 - as above
            self._abandon(bug)

    def release(self, replies: bytes) -> None:
        """Send replies that were held: the changes they acknowledge are durable."""
        session = self.session
        self._owed -= 1
        try:
            if not self._owed:
                if self._waiting_bytes:
                    self._note_waiting(0)
                session.replies_sent()
                if session.replies and not self._group.in_doubt:
                    replies += session.take_replies()  # answered meanwhile, and not waiting for the journal
            if not self._leaving:
                self.transport.write(replies)
            if session.replies and not self._owed:
                self.settle()  # the journal is in doubt: they wait for the next batch
            if session.blocked or session.half_closed:
                self._settle_rest()
        except Exception as bug:  # noqa: BLE001 - as above
            self._abandon(bug)

    @property
    def owes(self) -> bool:
        """Whether the client has not been sent all replies to what has been carried out for it."""
        return bool(self._owed or self.session.replies)

    def listen_no_more(self) -> None:
        """Carry out no more commands, because the server is about to stop."""
        self._deaf = True
        self._read_or_pause()

    def _settle_rest(self) -> None:
        """Do what only some connections need: resume later, fetch bodies, close, or stop reading."""
        if self._leaving:
            return
        session = self.session
        blocked = session.blocked
        # The next slice of a kick waits until the previous one is durable: a batch never has more than one.
        if (blocked is KICKING and not self._owed) or (
            not self._unread_bytes
            and (
                blocked is LOOKING
                or blocked is WORKING
                or blocked is YIELDING
                or (blocked is REPLETE and not self.owes)
            )
        ):
            self._resume_later(blocked)
        elif session.gathering is not None and not self._resuming:
            self._resuming = True
            if self._group.flooded and session.gathering.kind is FETCHING:
                self._turns.resume_later(self._fetch_bodies, YIELDING)
            else:
                self._fetch_bodies()
        elif (session.blocked is CLOSING or (session.half_closed and not session.blocked)) and not self.owes:
            self.part()
            return
        self._read_or_pause()

    def _fetch_bodies(self) -> None:
        gathering = self.session.gathering
        if gathering is not None:
            for job in gathering.jobs:
                self._host.fetch(job, BodyWaiter(self, job))

    def _resume_later(self, kind: Blocked) -> None:
        if not self._resuming:
            self._resuming = True
            self._turns.resume_later(self.resume, kind)

    def wake(self, outcome: Job | Outcome, now_ns: int) -> None:
        """Pass on the outcome of the client's wait in a reserve."""
        if self._leaving or self.session.blocked is CLOSING:
            return  # it is gone, or has met a bug since; a job it was given goes back when it is closed
        try:
            self.session.wake(outcome, now_ns)
        except Exception as bug:  # noqa: BLE001 - as above
            self._fail(bug)
        self.settle()

    def resume(self) -> None:
        """Continue the session where it was blocked."""
        self._resuming = False
        session = self.session
        if self._leaving or self._deaf or session.blocked is None:
            return
        now_ns = self._turns.now()
        try:
            session.resume(now_ns, self._turns.steps)
        except Exception as bug:  # noqa: BLE001 - as above
            self._fail(bug)
        self.settle()
        if self._host.buffers.amounts:
            self._note_buffers()
        self._turns.wake(now_ns)

    def bring(self, job: Job, body: bytes | None) -> None:
        """Pass on a body that the session needs, or None if the job is gone; resume the session once it has all."""
        kind = self.session.bring(job, body)
        if kind is FETCHING:
            self.resume()
        elif kind is not None:
            self._turns.resume_later(self.resume, kind)

    def lack_memory(self) -> None:
        """Fail the session, because there is no memory for a body that it waits for."""
        self._resuming = False
        self._fail(MemoryError("for the body of a job"))
        self.settle()

    def _note_buffers(self) -> None:
        if not self._leaving:
            session = self.session
            self._host.buffers.note(self, session.pending + session.aside_bytes + self._unread_bytes)

    def _note_waiting(self, waiting_bytes: int) -> None:
        """Count replies that wait for those that are held; if all clients' are too many, nobody is served for now."""
        more_bytes = waiting_bytes - self._waiting_bytes
        self._waiting_bytes = waiting_bytes
        if self._group.count(more_bytes):
            self._turns.look_at_clock()

    # -- bugs in the server

    def _fail(self, bug: Exception) -> None:
        """Send the client an error after its other replies, and close it. A bug that concerns others is raised."""
        self._host.spare_others(bug)
        self.session.fail(bug)

    def _abandon(self, bug: Exception) -> None:
        """Like ``_fail``, but close at once: replies may have been lost, and none can be sent after them."""
        self._fail(bug)
        self.cut_off()

    def _read_or_pause(self) -> None:
        """Read from the client unless it is too far ahead, does not read its replies, or the server is stopping."""
        reading = self.session.wants_more and not self._unread_bytes and not self._deaf
        self._note_buffers()
        if reading != self._reading and not self.transport.is_closing():
            self._reading = reading
            if reading:
                self.transport.resume_reading()
            else:
                self.transport.pause_reading()


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
