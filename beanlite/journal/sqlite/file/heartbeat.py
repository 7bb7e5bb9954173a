"""The row that records which server has the file, when it was last seen alive, and what its clock showed then."""

import math
import os
import sqlite3
import time
from pathlib import Path
from typing import Final, NamedTuple

from beanlite import __version__
from beanlite.core.job import SECOND_NS
from beanlite.core.restore import FAR_NS
from beanlite.host.clock import Clock, clock_ns, utc_s
from beanlite.journal.sqlite.file.fileformat import damaged, refused
from beanlite.journal.sqlite.file.mark import boot_id

# The shortest interval between two writes of the row with batches, and the interval while there are no batches.
BUSY_S: Final = 1.0
IDLE_S: Final = 10.0
# No delay could be added to a time later than this: its ns would not fit into 64 bits.
_FAR_NS: Final = FAR_NS // 2

_COLUMNS: Final = "one, version, pid, address, started_at, boot, offset_ns, ahead_s, seen_at, stopped_at"
_WRITE: Final = f"REPLACE INTO server ({_COLUMNS}) VALUES (1, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
# A file without jobs has no times that another clock could make wrong: those of policies and schedules are UTC.
_LAST: Final = """
    SELECT
        seen_at, ahead_s, CAST(boot AS BLOB), offset_ns,
        said IS CAST(seen_at * 4194304 AS INTEGER) || ' ' || CAST(ahead_s * 4194304 AS INTEGER) || ' ' ||
            coalesce(boot, '-') || ' ' || coalesce(offset_ns, '-')
    FROM server
    WHERE EXISTS (SELECT 1 FROM jobs) OR EXISTS (SELECT 1 FROM pauses)
"""


class LastSeen(NamedTuple):
    """What the last server of a file recorded about its clock."""

    utc_ns: int
    """When the server was last seen alive, by the machine's clock."""
    clock_ns: int
    """The same time by the server's own clock."""
    boot: bytes | None
    """The id of the machine's boot; None: unknown."""
    offset_ns: int | None
    """The time of that boot by the server's own clock."""


def read_ahead_s(connection: sqlite3.Connection) -> float:
    """Return by how much the times in a file are ahead of UTC, according to its last server; 0 for an older file."""
    if connection.execute("SELECT 1 FROM pragma_table_info('server') WHERE name = 'ahead_s'").fetchone() is None:
        return 0.0
    row = connection.execute("SELECT CAST(ahead_s AS REAL) FROM server").fetchone()
    return 0.0 if row is None else float(row[0])


def read_last_seen(connection: sqlite3.Connection, path: Path) -> LastSeen | None:
    """Read the last server's record; None if no stored time depends on it. JournalRefused: the file is damaged."""
    with refused(path):
        row = connection.execute(_LAST).fetchone()
    if row is None:
        return None
    seen_s, ahead_s, boot, offset_ns, alike = row
    last = last_seen(seen_s, ahead_s, boot, offset_ns)
    if last is None:
        raise damaged(path, "server row has impossible values")
    if not alike:
        raise damaged(path, "server row does not match its checksum")
    return last


def last_seen(seen_s: object, ahead_s: object, boot: bytes | None, offset_ns: object) -> LastSeen | None:
    """Convert the values of a row; None if no server can have written it."""
    if not (isinstance(seen_s, float | int) and isinstance(ahead_s, float | int) and isinstance(offset_ns, int | None)):
        return None
    if max(abs(seen_s), abs(ahead_s)) > FAR_NS:  # infinite, or so large that it could not be converted to ns
        return None
    seen_ns = clock_ns(seen_s)
    last_ns = seen_ns + round(ahead_s * SECOND_NS)
    is_near = max(abs(seen_ns), abs(last_ns), abs(offset_ns or 0)) <= _FAR_NS
    return LastSeen(seen_ns, last_ns, boot, offset_ns) if is_near else None


def set_clock(clock: Clock, last: LastSeen | None) -> None:
    """Set the clock of a server that is about to read a file, so that it continues the last server's clock.

    If the machine has not been rebooted since, the time is known exactly. Otherwise the machine's clock determines how
    much time has passed since the file was last written; if that clock is behind, none has.
    """
    if last is None:
        return
    now_ns = last.clock_ns + max(0, clock.utc_ns() - last.utc_ns)
    boot = boot_id()
    if last.offset_ns is not None and boot is not None and last.boot == boot.encode():
        counted_ns = clock.since_boot_ns() + last.offset_ns
        if counted_ns > last.clock_ns - SECOND_NS:  # else the offset is from elsewhere, e.g. another time namespace
            now_ns = counted_ns
    clock.set(now_ns)


class Heartbeat:
    """Writes the row, on a connection of which the caller has exclusive use at that moment."""

    def __init__(self, connection: sqlite3.Connection, address: str, clock: Clock) -> None:
        """``address`` is where the server listens."""
        self._db = connection
        self._clock = clock
        address_text = address.encode(errors="backslashreplace").decode()  # the path of a Unix socket need not be text
        self._row = (__version__, os.getpid(), address_text, utc_s(clock.utc_ns()), boot_id(), clock.offset_ns)
        self._beat_s = -math.inf

    def beat(self, every_s: float) -> bool:
        """Write the row if the last write was ``every_s`` ago or longer; returns whether it was written."""
        now_s = time.monotonic()
        if now_s - self._beat_s < every_s:
            return False
        self._beat_s = now_s
        self._write(stopped=False)
        return True

    def end(self) -> None:
        """Record the orderly stop of the server."""
        self._write(stopped=True)

    def _write(self, *, stopped: bool) -> None:
        ahead_s = self._clock.ahead_ns / SECOND_NS
        now_s = utc_s(self._clock.utc_ns())
        self._db.execute(_WRITE, (*self._row, ahead_s, now_s, now_s if stopped else None))
