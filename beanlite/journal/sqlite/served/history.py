"""The history: a row for each event in the life of a job, and the pruning of the oldest rows."""

import sqlite3
from collections.abc import Sequence
from math import inf
from typing import Final, NamedTuple

from beanlite.core.events import DELETE, NOTE, POLICY, SCHEDULE, Event
from beanlite.host.clock import Clock

_DAY_S: Final = 24 * 3600
# How long the actions of operators are kept if no other history is.
OPERATORS_KEPT_S: Final = 400 * _DAY_S
# The approximate size of a row without its body.
ROW_BYTES: Final = 60
# The most rows deleted at a time while there is nothing else to do, and the rows deleted per row that is written.
PRUNED_MAX: Final = 500
PRUNED_EACH: Final = 2

# Rows that are no further in the future than this don't count as such: a server's clock may be a little ahead.
_AHEAD_S: Final = 60

# No row is numbered this high, except by damage: the numbers after it would soon be more than SQLite has room for.
_END_N: Final = 1 << 62
_MAX_N: Final = (1 << 63) - 1

_COLUMNS: Final = "n, at, job, tube, what, by, conn, pri, delay_s, body"
_ROW: Final = "(?, ?, ?, ?, ?, ?, ?, ?, ?, NULL)"
INSERT: Final = f"INSERT INTO history ({_COLUMNS}) VALUES {_ROW}"
WIDTH: Final = 9
# Inserting several rows per statement is cheaper.
AT_ONCE: Final = 16
INSERT_SEVERAL: Final = f"INSERT INTO history ({_COLUMNS}) VALUES {', '.join([_ROW] * AT_ONCE)}"
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
# The oldest from this number on that is not in the future.
_PAST: Final = f"SELECT n, {_AT} FROM history WHERE n >= ? AND {_AT} <= ? ORDER BY n LIMIT 1"
_NTH: Final = "SELECT n FROM history WHERE n >= ? ORDER BY n LIMIT 1 OFFSET ?"
_PRUNE: Final = f"DELETE FROM history WHERE n BETWEEN ? AND ? AND ({_AT} < ? OR n < ?)"

# The events whose body is kept in any case: what was set.
_TELLING: Final = frozenset({NOTE, POLICY, SCHEDULE})

Row = tuple[object, ...]


class HistoryBounds(NamedTuple):
    """How much history is kept."""

    kept_s: int | None
    """For how long rows are kept; None: only the actions of operators are recorded."""
    max_bytes: int
    bodies: bool
    """Whether the bodies of deleted jobs are kept too."""


class Rows(NamedTuple):
    """Events as rows of the history."""

    values: list[object]
    """WIDTH values for each row, in the order of the columns."""
    bodies: list[Row]
    """The bodies to be stored with rows, of deleted jobs and of what was set, each with the number of its row."""
    to_fetch: list[Row]
    """The numbers of the rows whose body is to be copied from the job's row."""
    body_bytes: int

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return len(self.values) // WIDTH


class History:
    """The numbers of the rows, and the pruning of the oldest.

    The number of a row is that of the previous row plus the approximate size of the row, so the difference of two
    numbers is about the number of bytes between them.
    """

    def __init__(self, bounds: HistoryBounds, clock: Clock) -> None:
        """``clock`` is the server's clock, by which events have their times."""
        self.bound(bounds)
        self._clock = clock
        self._last = 0
        """The number of the last row."""
        self._oldest: tuple[int, float] | None = None
        """The time of the oldest row, and a number up to its own, as far as known; None if there are no rows."""
        self._past = 0, inf
        """The same for the oldest row that is not in the future; if its time is infinite, none before it is."""

    def bound(self, bounds: HistoryBounds) -> None:
        """Apply new bounds."""
        self._bounds = bounds
        self._kept_s = OPERATORS_KEPT_S if bounds.kept_s is None else bounds.kept_s

    @property
    def bodies_max(self) -> int:
        """How many bytes of the history may be bodies of deleted jobs."""
        return self._bounds.max_bytes if self._bounds.bodies else 0

    def read(self, connection: sqlite3.Connection) -> None:
        """Read the numbers of the newest and the oldest row in the file, to continue from there."""
        (last,) = connection.execute("SELECT max(n) FROM history WHERE n < ?", (_END_N,)).fetchone()
        self._last = last or 0
        self._oldest = connection.execute(_OLDEST).fetchone()
        self._past = self._oldest or (0, inf)

    def rows_of(self, events: Sequence[Event]) -> Rows:
        """Return the rows for these events, except those that the bounds exclude."""
        values: list[object] = []
        bodies: list[Row] = []
        to_fetch: list[Row] = []
        body_bytes = 0
        all_of_them, with_bodies = self._bounds.kept_s is not None, self._bounds.bodies
        n = self._last
        # Values that many rows share are computed once: they account for much of the time.
        at_ns, at_s, tube, name = -1, 0.0, None, ""
        for event in events:
            if not (all_of_them or event.by_operator):
                continue
            peer = event.by
            # A policy or a schedule that has done it has no number.
            by, conn = (None, None) if peer is None else (peer.address, peer.number or None)
            if event.by_operator:
                by = f"operator {by}"
            n += ROW_BYTES
            if peer is not None and peer.person:
                by = f"{by} for {peer.person}"
                n += len(peer.person)
            if by is not None and len(by) > ROW_BYTES:  # it calls itself something long
                n += len(by)
            if (with_bodies and event.what == DELETE) or event.what in _TELLING:
                size = _add_body(event, n, bodies, to_fetch)
                n += size
                body_bytes += size
            if event.at_ns != at_ns:
                at_ns = event.at_ns
                at_s = self._clock.utc_s(at_ns)
            if event.tube is not tube:
                tube = event.tube
                name = tube.name.decode()
            values += (n, at_s, event.job_id, name, event.what, by, conn, event.pri, event.delay_s)
        if values and self._oldest is None:
            self._oldest = self._last + 1, self._clock.utc_s(events[0].at_ns)
        self._last = n
        return Rows(values, bodies, to_fetch, body_bytes)

    def prune(self, connection: sqlite3.Connection, rows: int, now_s: float) -> bool:
        """Delete up to ``rows`` of the oldest rows that exceed the bounds; returns whether there may be more."""
        if self._oldest is None:
            return False
        before_s, before_n = now_s - self._kept_s, self._last - self._bounds.max_bytes
        n, at_s = self._oldest
        if at_s >= before_s and n >= before_n:
            # It may be in the future, because the clock was wrong, and those behind it too old.
            n, at_s = self._past = self._oldest_past(connection, now_s + _AHEAD_S)
            if at_s >= before_s:
                return False
        nth = connection.execute(_NTH, (n, rows - 1)).fetchone() or (_MAX_N,)
        count = connection.execute(_PRUNE, (n, *nth, before_s, before_n)).rowcount
        self._oldest = connection.execute(_OLDEST).fetchone()
        self._past = max(n, self._past[0]), inf
        return count >= rows

    def _oldest_past(self, connection: sqlite3.Connection, now_s: float) -> tuple[int, float]:
        """Return the oldest row that is not in the future, looked for once, since there may be very many that are."""
        n, at_s = self._past
        if at_s <= now_s:
            return n, at_s
        row: tuple[int, float] | None = connection.execute(_PAST, (n, now_s)).fetchone()
        return row or (self._last + 1, inf)


def _add_body(event: Event, n: int, bodies: list[Row], to_fetch: list[Row]) -> int:
    """Add the body of an event, whose row is numbered by so much above ``n`` as it takes; returns that."""
    if event.body is None:
        to_fetch.append((n + event.size,))
        return event.size
    size = len(event.body)
    bodies.append((event.body, n + size))
    return size
