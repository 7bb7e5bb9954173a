"""One client's connection: bytes to its session, replies out in order, and neither side overrun by the other."""

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
from beanlite.protocol.blocked import CLOSING, KICKING, REPLETE, YIELDING
from beanlite.protocol.framing import FramedSession
from beanlite.protocol.session import Service

# Of those who wait for each reply, only who sends more bytes than this at once is held back by a full batch.
SMALL_BYTES: Final = 1 << 12
# Who is answered more at once than this pipelines its commands.
ONE_BY_ONE_MAX: Final = 4


@dataclass(slots=True)
class Host:
    """All that a connection knows of its server."""

    turns: Turns
    buffers: Buffers
    group: GroupCommit
    service: Service
    admit: Callable[[Connection, asyncio.BaseTransport], bool]
    """Called with a new connection; False if it is one too many."""
    forget: Callable[[Client], None]
    """Called when a connection is closed."""
    part: Callable[[Client, asyncio.Transport], None]
    """Takes over the socket of a client that is done, to close it."""
    fetch: Callable[[Job, Waiter], None]
    """Fetches the body of a job for a connection."""
    spare_others: Callable[[Exception], None]
    """Logs a bug that only one client has met, and raises any other."""


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
        "session",
        "transport",
    )

    def __init__(self, host: Host) -> None:
        self._host = host
        self._turns = host.turns
        self._group = host.group
        self._owed = 0
        """How many times the group commit holds replies of ours."""
        self._reading = True
        self._unread_bytes = 0
        """How much the client had left to read when that became too much; 0 if it reads its replies fast enough."""
        self._deaf = False
        """The server is stopping, and carries out no more commands."""
        self._leaving = False
        """Nothing more is sent."""
        self._resuming = False
        """Something will have the session continue: its turn, or the body that it waits for."""

    # -- what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has come; one too many is closed at once."""
        self.transport = cast(asyncio.Transport, transport)
        self.session = self._new_session(self._host.service, peer_name(transport))
        self.transport.set_write_buffer_limits(high=self._host.buffers.unread_max_bytes)
        if not self._host.admit(self, transport):
            self.cut_off()

    def data_received(self, data: bytes) -> None:
        """Bytes have come: every command starts here."""
        now_ns = self._turns.received(len(data))
        try:
            # Others come first; whoever waits for each reply is among them, unless it puts something large.
            if now_ns == LATE or (
                (self._owed or len(data) > SMALL_BYTES or self.session.put is not None) and self._group.full
            ):
                self.session.postpone(data)
                self._settle_rest()
                return
            self.session.receive(data, now_ns)
        except Exception as bug:  # noqa: BLE001 - what concerns others is raised again
            self._fail(bug)
        answers = len(self.session.replies)
        self.settle()
        self._turns.wake(now_ns)  # now, so that what they wait for is stored in the same batch
        if self.session.put is not None or self._host.buffers.amounts:
            self._note_buffers()
        self._turns.served(one_by_one=answers <= ONE_BY_ONE_MAX and self.session.blocked is not YIELDING)

    def eof_received(self) -> bool:
        """The client sends no more: what is due to it is still sent."""
        self._turns.leave(self._half_close)
        return True

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's name, for who inherits
        """The client is gone, and with it whatever it had not finished."""
        self._leaving = True
        self.session.stop_waiting()  # now, or it would be given a job before its turn to leave comes
        self._turns.leave(self._leave)

    def pause_writing(self) -> None:
        """The client does not read: it is not served, nor read from, until it does."""
        self._unread_bytes = self.transport.get_write_buffer_size()
        self._read_or_pause()

    def resume_writing(self) -> None:
        """The client has read what it was sent."""
        self._unread_bytes = 0
        self._read_or_pause()
        self._settle_rest()

    def _new_session(self, service: Service, address: str) -> FramedSession:
        return FramedSession(service, address)

    # -- the client's end

    def _half_close(self) -> None:
        if self._leaving:  # it was to have its turn later, and meanwhile all was over
            self.transport.close()
            return
        now_ns = self._turns.now()
        self._turns.wake(now_ns)  # what has come true by now is told first
        try:
            self.session.half_close(now_ns)
        except Exception as bug:  # noqa: BLE001 - as above
            self._fail(bug)
        self.settle()
        self._turns.wake(now_ns)

    def cut_off(self) -> None:
        """Close it at once, whatever is left to send."""
        self._leaving = True
        self.transport.abort()

    def _leave(self) -> None:
        self._host.forget(self.session.client)
        self._disconnect()

    def _disconnect(self) -> None:
        self._host.buffers.note(self, 0)
        self._turns.disconnect(self.session.client)

    def part(self) -> None:
        """No more commands; what has been answered is sent before the connection is closed."""
        self._leaving = True
        self._disconnect()  # now, not when the socket is closed: whoever asks next finds the reservations returned
        if self.session.half_closed:
            self.transport.close()
        elif not self.transport.is_closing():
            self._host.part(self.session.client, self.transport)

    # -- replies

    def settle(self) -> None:
        """Send what may leave, or have it wait for the journal; to be called when the session has done something."""
        if self._leaving:
            return
        session = self.session
        try:
            if session.replies or session.blocked is KICKING:
                if (session.waits or self._group.in_doubt) and self._host.service.journaled:
                    self._owed += 1
                    self._group.hold(self, session.take_replies(hold=True))
                elif not self._owed:
                    self.transport.write(session.take_replies())
            if session.blocked or session.half_closed or not self._reading:
                self._settle_rest()
        except Exception as bug:  # noqa: BLE001 - as above
            self._abandon(bug)

    def release(self, replies: bytes) -> None:
        """What these replies waited for is stored: send them."""
        session, self._owed = self.session, self._owed - 1
        try:
            if not self._owed:
                session.replies_sent()
                if session.replies and not self._group.in_doubt:
                    replies += session.take_replies()  # answered meanwhile, and true already
            if not self._leaving:
                self.transport.write(replies)
            if session.replies and not self._owed:
                self.settle()  # in doubt, they wait for the next batch
            if session.blocked or session.half_closed:
                self._settle_rest()
        except Exception as bug:  # noqa: BLE001 - as above
            self._abandon(bug)

    def listen_no_more(self) -> None:
        """The server is about to stop: carry out no more commands."""
        self._deaf = True
        self._read_or_pause()

    def _settle_rest(self) -> None:
        """What only some connections need: to resume later, to be closed, to be held back."""
        if self._leaving:
            return
        session = self.session
        # A kick's next slice waits until the one before is stored: a batch never gathers more than one.
        if (
            (session.blocked is KICKING and not self._owed)
            or (session.blocked is YIELDING and not self._unread_bytes)
            or (session.blocked is REPLETE and not self._unread_bytes and not self._owes())
        ):
            if not self._resuming:
                self._resuming = True
                self._turns.resume_later(self.resume)
        elif session.gathering is not None and not self._resuming:
            self._resuming = True
            for job in session.gathering.jobs:
                self._host.fetch(job, Part(self, job))
        elif (session.blocked is CLOSING or (session.half_closed and not session.blocked)) and not self._owes():
            self.part()
            return
        self._read_or_pause()

    def wake(self, outcome: Job | Outcome, now_ns: int) -> None:
        """The client has waited for this."""
        if self._leaving or self.session.blocked is CLOSING:
            return  # it is gone, or has met a bug since; what it was given goes back when it is closed
        try:
            self.session.wake(outcome, now_ns)
        except Exception as bug:  # noqa: BLE001 - as above
            self._fail(bug)
        self.settle()

    def resume(self) -> None:
        """Let the session continue where it was blocked."""
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
        self._turns.wake(now_ns)

    def lack_memory(self) -> None:
        """There is no memory for the body that the session waits for."""
        self._resuming = False
        self._fail(MemoryError("for the body of a job"))
        self.settle()

    def _note_buffers(self) -> None:
        if not self._leaving:
            self._host.buffers.note(self, self.session.pending + self._unread_bytes)

    # -- our own bugs

    def _fail(self, bug: Exception) -> None:
        """The client has met a bug: it is told so in its turn, and closed. A bug that concerns others is raised."""
        self._host.spare_others(bug)
        self.session.fail(bug)

    def _abandon(self, bug: Exception) -> None:
        """The same where replies may have been lost: none can be sent after them."""
        self._fail(bug)
        self.cut_off()

    def _owes(self) -> bool:
        return bool(self._owed or self.session.replies)

    def _read_or_pause(self) -> None:
        """Read from the client unless it is ahead of us, or does not read itself."""
        reading = self.session.wants_more and not self._unread_bytes and not self._deaf
        self._note_buffers()
        if reading != self._reading and not self.transport.is_closing():
            self._reading = reading
            if reading:
                self.transport.resume_reading()
            else:
                self.transport.pause_reading()


class Part:
    """Waits for one of the bodies that a connection needs, and is the fetcher's ``Waiter`` for it."""

    __slots__ = ("_connection", "_job")

    def __init__(self, connection: Connection, job: Job) -> None:
        self._connection = connection
        self._job = job

    def resume(self, body: bytes | None) -> None:
        """Hand over the body, or None if the job is gone."""
        if self._connection.session.bring(self._job, body):
            self._connection.resume()

    def lack_memory(self) -> None:
        """There is no memory for the body."""
        self._connection.lack_memory()
