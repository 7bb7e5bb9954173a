"""What is buffered for clients in all: commands that are not complete, and replies that have not been read."""

from __future__ import annotations

from typing import Final, Protocol

from beanlite.core.memory import Memory
from beanlite.net.refusals import Refusals

# Less than this, in bytes, is not counted for each client; ``CLIENT_BYTES`` allows for it.
COUNTED_FROM: Final = 4096
# When a client has this many bytes of replies left to read, it is no longer served until it has read them. The more
# clients there are, the fewer it is, so that all of them together can't make it more than a part of the memory.
UNREAD_MAX: Final = 1 << 18
UNREAD_LEAST: Final = 1 << 14
UNREAD_PART: Final = 16
# Of the memory there is, all buffers together may take a quarter.
PART: Final = 4


def buffers_max_bytes(memory: Memory) -> int:
    """How much may be buffered for all clients together."""
    return memory.max_bytes // PART


class Holder(Protocol):
    """A connection, as far as it is known here."""

    def cut_off(self) -> None:
        """Close it at once, whatever is left to send."""


class Buffers:
    """Counts what is buffered, and closes those who make it too much: the ones that have been at it longest.

    A client that sends and reads as fast as it can is never among these for more than moments.
    """

    __slots__ = ("_memory", "_refusals", "amounts")

    def __init__(self, memory: Memory, refusals: Refusals) -> None:
        self._memory = memory
        self._refusals = refusals
        self.amounts: dict[Holder, int] = {}
        """How many bytes are buffered for whom; who has had some for longest comes first."""

    @property
    def unread_max_bytes(self) -> int:
        """How much the next client may have left to read."""
        return min(UNREAD_MAX, max(UNREAD_LEAST, self._memory.max_bytes // UNREAD_PART // self._memory.clients))

    def note(self, holder: Holder, held_bytes: int) -> None:
        """So much is buffered for this connection now."""
        if held_bytes < COUNTED_FROM and not self.amounts:
            return
        memory, before_bytes = self._memory, self.amounts.get(holder, 0)
        if held_bytes < COUNTED_FROM:
            if before_bytes:
                del self.amounts[holder]
                memory.buffer_bytes -= before_bytes
            return
        self.amounts[holder] = held_bytes
        memory.buffer_bytes += held_bytes - before_bytes
        while memory.buffer_bytes > buffers_max_bytes(memory) and len(self.amounts) > 1:
            longest = next(iter(self.amounts))
            memory.buffer_bytes -= self.amounts.pop(longest)
            self._refusals.note("buffers")
            longest.cut_off()
