"""Limits what is buffered for all clients together: commands not carried out yet, and replies not read yet."""

from __future__ import annotations

from typing import Final, Protocol

from beanlite.core.admission import Admission
from beanlite.core.memory import PART, Memory
from beanlite.net.refusals import Refusals

# A client with fewer buffered bytes than this is not counted; ``CLIENT_BYTES`` allows for them.
COUNTED_FROM: Final = 4096
# A client to which more bytes of replies are left to be sent, because the kernel has no room for them, is not served
# until it has read them. There may be as few as a reply has, and each takes some hundred bytes until it is sent.
UNSENT_BYTES_MAX: Final = 100
# When such a part of the memory has been buffered, or freed, it is seen how much room that leaves for puts: without a
# journal the next batch, which looks as well, may be some time away.
MOVED_PART: Final = 256


def buffers_max_bytes(memory: Memory) -> int:
    """How many bytes may be buffered for all clients together."""
    return memory.max_bytes // PART


class Buffered(Protocol):
    """A connection's end, as this module sees it."""

    def cut_off(self) -> None:
        """Close the connection at once, discarding unsent replies."""


class Buffers:
    """Counts the buffered bytes; above the limit, closes the connections that have had some for longest.

    A client that sends and reads as fast as it can is never counted for more than moments.
    """

    __slots__ = ("_admission", "_granted_bytes", "_memory", "_refusals", "amounts")

    def __init__(self, memory: Memory, admission: Admission, refusals: Refusals) -> None:
        self._memory = memory
        self._admission = admission
        self._granted_bytes = 0
        """How much was buffered when ``admission`` was last told."""
        self._refusals = refusals
        self.amounts: dict[Buffered, int] = {}
        """How many bytes are buffered for each connection; the one that has had some for longest comes first."""

    def note(self, connection: Buffered, buffered_bytes: int) -> None:
        """Set how many bytes are buffered for a connection; if the total is above the limit, close others."""
        if buffered_bytes < COUNTED_FROM and not self.amounts:
            return
        memory = self._memory
        memory.buffer_bytes -= self.amounts.get(connection, 0)
        if buffered_bytes >= COUNTED_FROM:
            self.amounts[connection] = buffered_bytes
            memory.buffer_bytes += buffered_bytes
        else:
            self.amounts.pop(connection, None)
        while memory.buffer_bytes > buffers_max_bytes(memory) and len(self.amounts) > 1:
            longest = next(iter(self.amounts))
            memory.buffer_bytes -= self.amounts.pop(longest)
            self._refusals.note("buffers")
            longest.cut_off()
        if abs(memory.buffer_bytes - self._granted_bytes) > memory.max_bytes // MOVED_PART:
            self._granted_bytes = memory.buffer_bytes
            self._admission.grant()

    def discard(self, more_bytes: int) -> None:
        """Count replies that will not be sent as held, as long as they take memory: meanwhile few others are served."""
        self._memory.held_bytes += more_bytes
