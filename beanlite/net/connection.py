"""One client's connection: bytes to its session, replies out in order, and neither side run over by the other."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, cast

from beanlite.protocol.blocked import CLOSING, KICKING, REPLETE, YIELDING
from beanlite.protocol.framing import FramedSession

if TYPE_CHECKING:
    from beanlite.core.job import Job
    from beanlite.core.queues import Outcome
    from beanlite.server import Server

# A client may send this much ahead while it waits in a reserve; then it is no longer read from.
READ_AHEAD_MAX: Final = 1 << 18
# What a client has not read yet: over this many bytes it is no longer served until it has.
UNREAD_MAX: Final = 1 << 18


class Connection(asyncio.Protocol):
    """A client's transport and session."""

    __slots__ = (
        "_deaf",
        "_going_on",
        "_journaled",
        "_leaving",
        "_owed",
        "_reading",
        "_server",
        "_transport",
        "_unread",
        "session",
    )

    def __init__(self, server: Server) -> None:
        self._server = server
        self._journaled = server.service.journaled
        self._owed = 0
        """How often the barrier holds replies of ours."""
        self._reading = True
        self._unread = False
        """The client does not read its replies fast enough."""
        self._deaf = False
        """The server stops, and hears no more commands."""
        self._leaving = False
        self._going_on = False

    # -- what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has come; one too many is closed at once."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=UNREAD_MAX)
        self.session = FramedSession(self._server.service)
        if not self._server.admit(self):
            self._leaving = True
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Bytes have come: the way of every command begins here."""
        server = self._server
        server.turn_bytes -= len(data)
        late = False
        if server.turn_bytes > 0:
            now_ns = server.turn_ns
        else:
            now_ns = server.now()
            late = now_ns > server.turn_until_ns
        try:
            # Others come first; who waits for each reply is among them.
            if late or (self._owed and server.barrier.full):
                self.session.postpone(data)
                self._settle_rest()
                return
            self.session.receive(data, now_ns)
        except Exception as bug:  # noqa: BLE001 - what concerns others is raised again
            self._fail(bug)
        self.settle()
        if server.engine.clients.woken:
            server.wake(now_ns)  # now, so that what they wait for is stored in the same batch
        if server.barrier.syncing:
            server.barrier.served()

    def eof_received(self) -> bool:
        """The client sends no more: what is due to it is still sent."""
        now_ns = self._server.now()
        self._server.wake(now_ns)  # what has come true by now is told first
        try:
            self.session.half_close(now_ns)
        except Exception as bug:  # noqa: BLE001 - as above
            self._fail(bug)
        self.settle()
        self._server.wake(now_ns)
        return True

    def connection_lost(self, _exc: Exception | None) -> None:
        """The client is gone, and with it whatever it had not finished."""
        self._leaving = True
        self._server.forget(self)

    def pause_writing(self) -> None:
        """The client does not read: it is not served, nor read from, until it does."""
        self._unread = True
        self._see_reading()

    def resume_writing(self) -> None:
        """The client has read what it was sent."""
        self._unread = False
        self._see_reading()
        self._settle_rest()

    # -- replies

    def settle(self) -> None:
        """Send what may leave, or have it wait for the journal; to be called when the session has done something."""
        session = self.session
        try:
            if session.replies or session.blocked is KICKING:
                if session.waits and self._journaled:
                    self._owed += 1
                    self._server.barrier.hold(self, session.take_replies(hold=True))
                elif not self._owed:
                    self._transport.write(session.take_replies())
            if session.blocked or session.half_closed or not self._reading:
                self._settle_rest()
        except Exception as bug:  # noqa: BLE001 - as above
            self._abandon(bug)

    def release(self, replies: bytes) -> None:
        """What these replies waited for is stored: send them."""
        session = self.session
        self._owed -= 1
        try:
            if not self._owed:
                session.replies_sent()
                if session.replies:
                    replies += session.take_replies()  # answered meanwhile, and true already
            if not self._leaving:
                self._transport.write(replies)
            if session.blocked or session.half_closed:
                self._settle_rest()
        except Exception as bug:  # noqa: BLE001 - as above
            self._abandon(bug)

    def listen_no_more(self) -> None:
        """The server is about to stop: no more commands are carried out."""
        self._deaf = True
        self._see_reading()

    def stop(self) -> None:
        """No more commands; what has been answered is sent before the connection is closed."""
        self._leaving = True
        self._transport.close()

    def _settle_rest(self) -> None:
        """What only some connections need: to go on later, to be closed, to be held back."""
        session = self.session
        # A kick's next slice waits until the one before is stored: a batch never gathers more than one.
        if (
            (session.blocked is KICKING and not self._owed)
            or (session.blocked is YIELDING and not self._unread)
            or (session.blocked is REPLETE and not self._unread and not self._owes())
        ):
            if not self._going_on:
                self._going_on = True
                self._server.go_on_later(self)
        elif (session.blocked is CLOSING or (session.half_closed and not session.blocked)) and not self._owes():
            # Now, not when asyncio has closed the socket: who asks next finds the reservations returned.
            self._server.let_go(session.client)
            self.stop()
        self._see_reading()

    def wake(self, outcome: Job | Outcome, now_ns: int) -> None:
        """The client has waited for this."""
        if self.session.blocked is CLOSING:
            return  # it has met a bug since; what it was given goes back when it is closed
        try:
            self.session.wake(outcome, now_ns)
        except Exception as bug:  # noqa: BLE001 - as above
            self._fail(bug)
        self.settle()

    def go_on(self) -> None:
        """Let the session continue where it was blocked."""
        self._going_on = False
        session = self.session
        if self._leaving or self._deaf or session.blocked is None:
            return
        now_ns = self._server.now()
        try:
            session.resume(now_ns)
        except Exception as bug:  # noqa: BLE001 - as above
            self._fail(bug)
        self.settle()
        self._server.wake(now_ns)

    # -- our own bugs

    def _fail(self, bug: Exception) -> None:
        """The client has met a bug: that is its end, and told it in its turn. A bug that concerns others is raised."""
        self._server.spare_others(bug)
        self.session.fail()

    def _abandon(self, bug: Exception) -> None:
        """The same where replies may have been lost: none can be sent behind them."""
        self._fail(bug)
        self._leaving = True
        self._transport.abort()

    def _owes(self) -> bool:
        return bool(self._owed or self.session.replies)

    def _see_reading(self) -> None:
        """Read from the client unless it is ahead of us, or does not read itself."""
        session = self.session
        reading = not (
            self._unread
            or self._deaf
            or session.blocked is YIELDING
            or (session.blocked and session.pending > READ_AHEAD_MAX)
        )
        if reading != self._reading and not self._transport.is_closing():
            self._reading = reading
            if reading:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()
