"""The row that tells which server has the file, when it was last seen alive, and what its clock showed then."""

import math
import os
import sqlite3
import time
from pathlib import Path
from typing import Final

from beanlite import __version__
from beanlite.clock import Clock, clock_ns, utc_s
from beanlite.core.job import SECOND_NS
from beanlite.core.restore import FAR_NS
from beanlite.journal.sqlite.fileformat import damaged, refused
from beanlite.journal.sqlite.mark import boot_id

# How often the row is written with the batches at most, and how often while there are none.
BUSY_S: Final = 1.0
IDLE_S: Final = 10.0

_COLUMNS: Final = "one, version, pid, address, started_at, boot, offset_ns, ahead_s, seen_at, stopped_at"
_WRITE: Final = f"REPLACE INTO server ({_COLUMNS}) VALUES (1, ?, ?, ?, ?, ?, ?, ?, ?, ?)"  # noqa: S608 - our own words
# A file without jobs has no times that another clock could make wrong.
_LAST: Final = """
    SELECT seen_at, ahead_s, boot, offset_ns FROM server
    WHERE EXISTS (SELECT 1 FROM jobs) OR EXISTS (SELECT 1 FROM pauses)
"""


def read_ahead_s(connection: sqlite3.Connection) -> float:
    """By how much the times in a file are ahead of UTC, as its last server knew; an older file does not say."""
    if connection.execute("SELECT 1 FROM pragma_table_info('server') WHERE name = 'ahead_s'").fetchone() is None:
        return 0.0
    found = connection.execute("SELECT CAST(ahead_s AS REAL) FROM server").fetchone()
    return 0.0 if found is None else float(found[0])


def set_clock(clock: Clock, connection: sqlite3.Connection, path: Path) -> None:
    """Set the clock of a server that is about to read the file: it goes on where that of the last one was.

    As long as the machine was not booted since, that is known for sure. Else its clock tells how much time has passed
    since the file was last written, if it says that any has. JournalRefused: the file is damaged.
    """
    with refused(path):
        last = connection.execute(_LAST).fetchone()
    if last is None:
        return
    seen_s, ahead_s, boot, offset_ns = last
    times = [seen_s, ahead_s, 0 if offset_ns is None else offset_ns]
    if not all(isinstance(each, float | int) and abs(each) < FAR_NS for each in times):
        raise damaged(path, "its server table says what can't be")
    seen_ns = clock_ns(seen_s)
    last_ns = seen_ns + round(ahead_s * SECOND_NS)
    now_ns = last_ns + max(0, clock.utc_ns() - seen_ns)
    if offset_ns is not None and boot is not None and boot == boot_id():
        counted_ns = clock.since_boot_ns() + offset_ns
        if counted_ns > last_ns - SECOND_NS:  # else it was counted elsewhere, as in a container with a time of its own
            now_ns = counted_ns
    clock.set(now_ns)


class Heartbeat:
    """Writes the row, on a connection that the caller may use at that moment."""

    def __init__(self, connection: sqlite3.Connection, address: str, clock: Clock) -> None:
        """``address`` is where the server listens."""
        self._db = connection
        self._clock = clock
        self._row = (__version__, os.getpid(), address, utc_s(clock.utc_ns()), boot_id(), clock.offset_ns)
        self._beat_s = -math.inf

    def beat(self, every_s: float) -> bool:
        """The server lives; returns whether it was time to say so again."""
        now_s = time.monotonic()
        if now_s - self._beat_s < every_s:
            return False
        self._beat_s = now_s
        self._write(stopped=False)
        return True

    def end(self) -> None:
        """The server stops in an orderly way."""
        self._write(stopped=True)

    def _write(self, *, stopped: bool) -> None:
        ahead_s = self._clock.ahead_ns / SECOND_NS
        now_s = utc_s(self._clock.utc_ns())
        self._db.execute(_WRITE, (*self._row, ahead_s, now_s, now_s if stopped else None))
