"""Logs when memory runs short, and when it has room again."""

from typing import Final

from beanlite.core.memory import Memory
from beanlite.host import log

# Memory has room again when a sixteenth of it is free. With a smaller margin, memory that is just full would be logged
# over and over.
ROOM_AGAIN: Final = 16


class Crossings:
    """A log of crossings: it remembers on which side of each bound memory was at the last look."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._short = False
        self._crowded = False
        self._refused = 0
        memory.attach(self.look)

    def look(self) -> None:
        """Log what has changed; to be called for each batch. ``Memory`` calls it whenever a put is refused."""
        memory = self._memory
        if memory.refused != self._refused:
            self._refused = memory.refused
            if not self._short:
                self._short = True
                log.warning("out of memory: puts are refused until there is room again", **self._facts())
        elif self._short and memory.room_bytes > memory.max_bytes // ROOM_AGAIN:
            self._short = False
            log.info("memory has room again: puts are accepted", refused=memory.refused, **self._facts())
        if self._crowded and not memory.unloaded:
            self._crowded = memory.crowded = False
            log.info("all bodies are in memory again", fetched=memory.fetched, **self._facts())
        elif memory.crowded and not self._crowded:
            self._crowded = True
            log.info("memory is too small for all bodies: some are only in the database now", **self._facts())

    def _facts(self) -> dict[str, int]:
        memory = self._memory
        return {"used": memory.used_bytes, "bodies": memory.body_bytes, "max_memory": memory.max_bytes}
