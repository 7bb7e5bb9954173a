"""Flow control of one connection: whether its client is read from, and what it is charged for."""

from __future__ import annotations

import asyncio

from beanlite.commit.group import GroupCommit
from beanlite.net.buffers import Buffers
from beanlite.net.ending import Ending
from beanlite.net.turns import Turns
from beanlite.protocol.framing import FramedSession


class Flow:
    """Stops reading from a client that is too far ahead or does not read its replies, and counts what it has caused.

    A client is charged for four things: what it has sent and is not carried out yet, the bodies that are gathered for a
    reply, the replies that it has not read, and those that wait for others which are held.
    """

    __slots__ = (
        "_buffers",
        "_ending",
        "_group",
        "_session",
        "_transport",
        "_turns",
        "_waiting_bytes",
        "deaf",
        "reading",
        "unread",
    )

    def __init__(
        self,
        session: FramedSession,
        transport: asyncio.Transport,
        ending: Ending,
        buffers: Buffers,
        group: GroupCommit,
        turns: Turns,
    ) -> None:
        self._session = session
        self._transport = transport
        self._ending = ending
        self._buffers = buffers
        self._group = group
        self._turns = turns
        self.reading = True
        self.unread = False
        """Whether the client has to read replies before it is served again."""
        self._waiting_bytes = 0
        """What is counted of replies that wait, without a journal's need, for those that are held."""
        self.deaf = False
        """Set when the server is stopping and carries out no more commands."""

    def hold_back(self) -> None:
        """Note that the client does not read its replies: neither serve it nor read from it until it does."""
        self.unread = True
        self.update()

    def go_on(self) -> None:
        """Note that the client has read its replies, or most of them: serve it again."""
        self.unread = False
        self.update()

    def listen_no_more(self) -> None:
        """Read no more from the client, because the server is about to stop."""
        self.deaf = True
        self.update()

    def update(self) -> None:
        """Read from the client unless it is too far ahead, does not read its replies, or the server is stopping."""
        reading = self._session.wants_more and not self.unread and not self.deaf
        self.note_buffers()
        if reading != self.reading and not self._transport.is_closing():
            self.reading = reading
            if reading:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def note_buffers(self) -> None:
        """Count what is buffered for the client."""
        if not self._ending.leaving:
            session = self._session
            unread_bytes = self._transport.get_write_buffer_size() if self.unread else 0
            self._buffers.note(self._ending, session.pending + session.aside_bytes + unread_bytes)

    def note_waiting(self, waiting_bytes: int) -> None:
        """Count replies that wait for those that are held; if all clients' are too many, nobody is served for now."""
        more_bytes = waiting_bytes - self._waiting_bytes
        self._waiting_bytes = waiting_bytes
        if self._group.count(more_bytes):
            self._turns.look_at_clock()

    def none_waiting(self) -> None:
        """Note that no reply waits any more for one that is held."""
        if self._waiting_bytes:
            self.note_waiting(0)
