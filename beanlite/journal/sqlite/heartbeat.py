"""The row that tells which server has the file, and when it was last seen alive: for those who read the file."""

import math
import os
import sqlite3
import time
from typing import Final

from beanlite import __version__

# How often the row is written with the batches at most, and how often while there are none.
BUSY_S: Final = 1.0
IDLE_S: Final = 10.0


class Heartbeat:
    """Writes the row, on a connection that the caller may use at that moment."""

    def __init__(self, connection: sqlite3.Connection, address: str) -> None:
        """``address`` is where the server listens."""
        self._db = connection
        self._row = (1, __version__, os.getpid(), address, time.time())
        self._beat_s = -math.inf

    def beat(self, every_s: float) -> bool:
        """The server lives; returns whether it was time to say so again."""
        now_s = time.monotonic()
        if now_s - self._beat_s < every_s:
            return False
        self._beat_s = now_s
        self._db.execute("REPLACE INTO server VALUES (?, ?, ?, ?, ?, ?, NULL)", (*self._row, time.time()))
        return True

    def end(self) -> None:
        """The server stops in an orderly way."""
        now = time.time()
        self._db.execute("REPLACE INTO server VALUES (?, ?, ?, ?, ?, ?, ?)", (*self._row, now, now))
