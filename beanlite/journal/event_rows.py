"""The history as rows: one for each event in the life of a job, whatever the database."""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from beanlite.core.events import DELETE, NOTE, POLICY, SCHEDULE, Event

_DAY_S: Final = 24 * 3600
# How long the actions of operators are kept if no other history is.
OPERATORS_KEPT_S: Final = 400 * _DAY_S
# The approximate size of a row without its body.
ROW_BYTES: Final = 60
COLUMNS: Final = "n, at, job, tube, what, by, conn, pri, delay_s, body"
# How many values a row has without its body.
WIDTH: Final = 9

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


DEEDS_ONLY: Final = HistoryBounds(None, 1 << 30, bodies=False)
"""Only the actions of operators."""


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


class EventRows:
    """Makes rows of events, and numbers them.

    The number of a row is that of the previous row plus the approximate size of the row, so the difference of two
    numbers is about the number of bytes between them.
    """

    def __init__(self, bounds: HistoryBounds, utc_s: Callable[[int], float]) -> None:
        """``utc_s`` converts a time of the server's clock to the time that a row has."""
        self.bound(bounds)
        self._utc_s = utc_s
        self.last = 0
        """The number of the last row."""

    def bound(self, bounds: HistoryBounds) -> None:
        """Apply new bounds."""
        self.bounds = bounds
        self.kept_s = OPERATORS_KEPT_S if bounds.kept_s is None else bounds.kept_s

    @property
    def kept_from(self) -> int:
        """The number from which rows are kept, as far as their bytes are concerned."""
        return max(0, self.last - self.bounds.max_bytes)  # a database takes no number below -(1 << 63)

    @property
    def bodies_max(self) -> int:
        """How many bytes of the history may be bodies of deleted jobs."""
        return self.bounds.max_bytes if self.bounds.bodies else 0

    def rows_of(self, events: Sequence[Event]) -> Rows:
        """Return the rows for these events, except those that the bounds exclude."""
        values: list[object] = []
        bodies: list[Row] = []
        to_fetch: list[Row] = []
        body_bytes = 0
        all_of_them, with_bodies = self.bounds.kept_s is not None, self.bounds.bodies
        n = self.last
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
                at_s = self._utc_s(at_ns)
            if event.tube is not tube:
                tube = event.tube
                name = tube.name.decode()
            values += (n, at_s, event.job_id, name, event.what, by, conn, event.pri, event.delay_s)
        self.last = n
        return Rows(values, bodies, to_fetch, body_bytes)


def _add_body(event: Event, n: int, bodies: list[Row], to_fetch: list[Row]) -> int:
    """Add the body of an event, whose row is numbered by so much above ``n`` as it takes; returns that."""
    if event.body is None:
        to_fetch.append((n + event.size,))
        return event.size
    size = len(event.body)
    bodies.append((event.body, n + size))
    return size
