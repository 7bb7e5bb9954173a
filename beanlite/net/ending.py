"""The end of one connection: the client is done or gone, or is cut off, or has met a bug of ours."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from beanlite.net.buffers import Buffers
from beanlite.net.turns import Turns
from beanlite.protocol.framing import FramedSession


class Ending:
    """Ends a connection. Once it is ``leaving``, nothing more is sent to the client."""

    __slots__ = ("_buffers", "_discarded_bytes", "_session", "_spare_others", "_transport", "_turns", "leaving")

    def __init__(
        self,
        session: FramedSession,
        transport: asyncio.Transport,
        buffers: Buffers,
        turns: Turns,
        spare_others: Callable[[Exception], None],
    ) -> None:
        """``spare_others`` logs a bug that can have affected only one client, and raises any other."""
        self._session = session
        self._transport = transport
        self._buffers = buffers
        self._turns = turns
        self._spare_others = spare_others
        self.leaving = False
        """Set once nothing more is to be sent."""
        self._discarded_bytes = 0
        """What was not sent when the client was cut off."""

    def cut_off(self) -> None:
        """Close the connection at once, discarding unsent replies."""
        self.leaving = True
        self._session.forget()
        if not self._discarded_bytes:
            # The loop frees these some turns later, and by then others could have been cut off for as many again.
            self._discarded_bytes = self._transport.get_write_buffer_size()
            self._buffers.discard(self._discarded_bytes)
            self._turns.look_at_clock()
        self._transport.abort()

    def lose(self) -> None:
        """Note that the client is gone: end its wait at once, lest it be given a job before its turn to leave."""
        self.leaving = True
        self._session.stop_waiting()

    def leave(self) -> None:
        """Disconnect a client that is gone, in its turn."""
        self._buffers.note(self, 0)
        if self._discarded_bytes:
            self._buffers.discard(-self._discarded_bytes)
            self._turns.resume_soon()
        self._turns.disconnect(self._session.client)

    def part(self) -> bool:
        """Carry out no more commands; returns whether the client still has to be told that the server is done.

        One that has said so itself does not, unless it has replies to read.
        """
        self.leaving = True
        self._buffers.note(self, self._transport.get_write_buffer_size())  # the client may never read the rest
        # Now, not when the socket is closed: the next client finds the reservations returned.
        self._turns.disconnect(self._session.client)
        if self._session.half_closed and not self._transport.get_write_buffer_size():
            self._transport.close()
            return False
        return not self._transport.is_closing()

    def fail(self, bug: Exception) -> None:
        """Send the client an error after its other replies, and close it. A bug that concerns others is raised."""
        self._spare_others(bug)
        self._session.fail(bug)

    def abandon(self, bug: Exception) -> None:
        """Like ``fail``, but close at once: replies may have been lost, and none can be sent after them."""
        self.fail(bug)
        self.cut_off()
