"""The history in the file: its statements, and the pruning of the oldest rows."""

import sqlite3
from collections.abc import Sequence
from math import inf
from typing import Final

from beanlite.core.events import Event
from beanlite.host.clock import Clock
from beanlite.journal.event_rows import COLUMNS, EventRows, HistoryBounds, Rows

# The most rows deleted at a time while there is nothing else to do, and the rows deleted per row that is written.
PRUNED_MAX: Final = 500
PRUNED_EACH: Final = 2
# The most rows in the future that are passed over at a time in search of one that is not.
PASSED_MAX: Final = 2000

# Rows that are no further in the future than this don't count as such: a server's clock may be a little ahead.
_AHEAD_S: Final = 60

# No row is numbered this high, except by damage: the numbers after it would soon be more than SQLite has room for.
_END_N: Final = 1 << 62
_MAX_N: Final = (1 << 63) - 1

_ROW: Final = "(?, ?, ?, ?, ?, ?, ?, ?, ?, NULL)"
# Inserting several rows per statement is cheaper.
AT_ONCE: Final = 16
INSERTS: Final = [
    f"INSERT INTO history ({COLUMNS}) VALUES {', '.join([_ROW] * rows)}" for rows in range(1, AT_ONCE + 1)
]
"""Statements that insert one row, two rows, and so on."""
STORE_BODY: Final = "UPDATE history SET body = ? WHERE n = ?"
# Copies the body of a job that is being deleted, if it was not in memory; runs before the job itself is deleted.
FETCH_BODY: Final = """
    UPDATE history SET body = (
        SELECT coalesce(jobs.body, (SELECT bodies.body FROM bodies WHERE bodies.id = jobs.id))
        FROM jobs WHERE jobs.id = history.job
    ) WHERE n = ?
"""
# A value that is no time, which only damage can cause, counts as long ago, so that its row is the next to be deleted.
_AT: Final = "coalesce(CAST(at AS REAL), 0.0)"
_OLDEST: Final = f"SELECT n, {_AT} FROM history ORDER BY n LIMIT 1"
# The oldest of so many rows from this number on that is not in the future.
_PAST: Final = f"""
    SELECT n, at FROM (SELECT n, {_AT} AS at FROM history WHERE n >= ? ORDER BY n LIMIT ?)
    WHERE at <= ? ORDER BY n LIMIT 1
"""
_NTH: Final = "SELECT n FROM history WHERE n >= ? ORDER BY n LIMIT 1 OFFSET ?"
_PRUNE: Final = f"DELETE FROM history WHERE n BETWEEN ? AND ? AND ({_AT} < ? OR n < ?)"


class History(EventRows):
    """The rows of the history, and the pruning of the oldest."""

    def __init__(self, bounds: HistoryBounds, clock: Clock) -> None:
        """``clock`` is the server's clock, by which events have their times."""
        super().__init__(bounds, clock.utc_s)
        self._oldest: tuple[int, float] | None = None
        """The time of the oldest row, and a number up to its own, as far as known; None if there are no rows."""
        self._past = 0, inf
        """The same for the oldest row that is not in the future; if its time is infinite, none before it is."""

    def read(self, connection: sqlite3.Connection) -> None:
        """Read the numbers of the newest and the oldest row in the file, to continue from there."""
        (last,) = connection.execute("SELECT max(n) FROM history WHERE n < ?", (_END_N,)).fetchone()
        self.last = last or 0
        self._oldest = connection.execute(_OLDEST).fetchone()
        self._past = self._oldest or (0, inf)

    def rows_of(self, events: Sequence[Event]) -> Rows:
        """Return the rows for these events, except those that the bounds exclude."""
        before = self.last
        rows = super().rows_of(events)
        if rows.values and self._oldest is None:
            self._oldest = before + 1, self._utc_s(events[0].at_ns)
        return rows

    def prune(self, connection: sqlite3.Connection, rows: int, now_s: float) -> bool:
        """Delete up to ``rows`` of the oldest rows that exceed the bounds; returns whether there may be more."""
        if self._oldest is None:
            return False
        before_s, before_n = now_s - self.kept_s, self.kept_from
        n, at_s = self._oldest
        if at_s >= before_s and n >= before_n:
            # It may be in the future, because the clock was wrong, and those behind it too old.
            n, at_s = self._past = self._oldest_past(connection, now_s + _AHEAD_S)
            if at_s >= before_s:
                return at_s == inf and n <= self.last
        nth = connection.execute(_NTH, (n, rows - 1)).fetchone() or (_MAX_N,)
        count = connection.execute(_PRUNE, (n, *nth, before_s, before_n)).rowcount
        self._oldest = connection.execute(_OLDEST).fetchone()
        self._past = max(n, self._past[0]), inf
        return count >= rows

    def _oldest_past(self, connection: sqlite3.Connection, now_s: float) -> tuple[int, float]:
        """Return the oldest row that is not in the future, or, with an infinite time, where to go on in search of it.

        There may be very many that are in the future: no row is looked at twice, nor all in one go.
        """
        n, at_s = self._past
        if at_s <= now_s:
            return n, at_s
        row: tuple[int, float] | None = connection.execute(_PAST, (n, PASSED_MAX, now_s)).fetchone()
        if row is None:
            (after,) = connection.execute(_NTH, (n, PASSED_MAX)).fetchone() or (self.last + 1,)
            row = after, inf
        return row
