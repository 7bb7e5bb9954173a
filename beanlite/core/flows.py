"""What came and went over time, for charts: in the server as a whole, and in each tube where something happens.

It is noted once a second, when the tallies are taken for the totals: commands pay nothing for it, and neither does a
tube in which nothing happens. Of a span in which nothing happened no point is kept.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, NamedTuple

from beanlite.core.job import SECOND_NS
from beanlite.core.totals import Tally
from beanlite.core.tube import Tube

# The ranges of charts: the seconds that each point stands for, and how many points there are.
RANGES: Final[dict[str, tuple[int, int]]] = {"5min": (3, 100), "hour": (30, 120), "day": (600, 144)}
# Waits are counted between these bounds, of which four are an octave: at most 0; from 0.1 ms up to ten days.
_WAITS_NS: Final[list[int]] = [0] + [round(100_000 * 2 ** (step / 4)) for step in range(133)]
# No wait between any two of them.
_NO_WAITS: Final = array("q", [0] * (len(_WAITS_NS) + 1))
# How many numbers a point has: its place in time, the nanoseconds for which it was counted, the counts of jobs put,
# reserved and deleted and of delays over, the jobs ready at its end, and two waits in seconds, or -1.
_WIDTH: Final = 9
_MEDIAN: Final = 0.5
_TAIL: Final = 0.99
UNKNOWN: Final = -1.0
# What a point takes, and what a flow takes besides, at most, in bytes.
POINT_BYTES: Final = 84
FLOW_BYTES: Final = 5400
# All flows together take at most so many bytes, and at most such a part of the memory that may be used.
FLOWS_BYTES: Final = 32 << 20
PART: Final = 64
# A new flow takes the place of one in which so long nothing has happened; or the last quarter of the room is left to
# those that there are, as each of them grows.
IDLE_NS: Final = 300 * SECOND_NS
_GROWTH: Final = 4
# A tally is taken about so long after the last one.
_TALLY_NS: Final = 3 * SECOND_NS // 2
# From how many seconds of the finest points current rates are computed.
RATE_S: Final = 10


class Series(NamedTuple):
    """What a range knows: a value for each of its points, the latest last."""

    from_ns: int
    """When the first point begins."""
    step_s: int
    seconds: list[float]
    """For how long each point was counted: about ``step_s``."""
    put: list[int]
    reserved: list[int]
    deleted: list[int]
    delay_over: list[int]
    ready: list[int | None]
    """The jobs that were ready at the end of each; None: not known."""
    wait_p50_s: list[float | None]
    """How long jobs had been ready when they were reserved, by the median; None: none was, or it is not known."""
    wait_p99_s: list[float | None]
    """Likewise, by the longest but one in a hundred."""


class Ring:
    """The points of one range. The last one is open until something happens after its end."""

    __slots__ = (
        "_delay_over",
        "_deleted",
        "_from_ns",
        "_most",
        "_place",
        "_points",
        "_put",
        "_ready",
        "_reserved",
        "_step_ns",
        "_to_ns",
        "_waits",
    )

    def __init__(self, step_s: int, most: int) -> None:
        self._step_ns = step_s * SECOND_NS
        self._most = most * _WIDTH
        self._points = array("d")
        self._place = -1
        """The number of the open point, counted from the beginning of time; -1: there is none."""
        self._from_ns = 0
        """From when the open point was counted, and up to when."""
        self._to_ns = 0
        self._put = self._reserved = self._deleted = self._delay_over = self._ready = 0
        self._waits: array[int] | None = None
        """How many waits fell between each two bounds; None: none yet."""

    def note(self, tally: Tally, weights: list[tuple[int, int]], ready: int, now_ns: int) -> int:
        """Add what a tally counted; returns how many points there are more."""
        more = 0
        place = now_ns // self._step_ns
        if place != self._place:
            begin_ns = min(place * self._step_ns, now_ns - SECOND_NS)
            if self._place >= 0:
                before = len(self._points)
                if now_ns - self._to_ns <= _TALLY_NS:
                    begin_ns = self._to_ns
                self._close(min(begin_ns, (self._place + 1) * self._step_ns))
                more = (len(self._points) - before) // _WIDTH
            self._place, self._from_ns = place, begin_ns
            self._put = self._reserved = self._deleted = self._delay_over = 0
            self._waits = None
        self._to_ns = now_ns
        self._put += tally.put
        self._reserved += tally.reserved
        self._deleted += tally.deleted
        self._delay_over += tally.delay_over
        self._ready = ready
        if weights:
            waits = self._waits
            if waits is None:
                waits = self._waits = array("q", _NO_WAITS)
            for at, weight in weights:
                waits[at] += weight
        return more

    def _close(self, to_ns: int) -> None:
        if len(self._points) >= self._most:
            del self._points[:_WIDTH]
        self._points.extend(self._open_point(to_ns))

    def _open_point(self, to_ns: int) -> tuple[float, ...]:
        waits = self._waits
        p50, p99 = (UNKNOWN, UNKNOWN) if waits is None else (quantile_s(waits, _MEDIAN), quantile_s(waits, _TAIL))
        counts = float(self._put), float(self._reserved), float(self._deleted), float(self._delay_over)
        return float(self._place), float(max(to_ns - self._from_ns, 1)), *counts, float(self._ready), p50, p99

    def rows(self, now_ns: int) -> list[tuple[float, ...]]:
        """Return the points, the open one as it is now."""
        points = self._points
        rows = [tuple(points[at : at + _WIDTH]) for at in range(0, len(points), _WIDTH)]
        if self._place >= 0:
            to_ns = self._to_ns
            if now_ns - to_ns > _TALLY_NS:  # nothing has happened since
                to_ns = max(to_ns, min(now_ns, (self._place + 1) * self._step_ns))
            rows.append(self._open_point(to_ns))
        return rows

    def sums(self, first: int) -> tuple[float, float, float, float]:
        """Return the nanoseconds, and the counts of jobs put, reserved and deleted, from the place ``first`` on."""
        if self._place < first:
            return 0.0, 0.0, 0.0, 0.0
        counted_ns = float(self._to_ns - self._from_ns)
        put, reserved, deleted = float(self._put), float(self._reserved), float(self._deleted)
        points = self._points
        at = len(points) - _WIDTH
        while at >= 0 and points[at] >= first:
            counted_ns += points[at + 1]
            put += points[at + 2]
            reserved += points[at + 3]
            deleted += points[at + 4]
            at -= _WIDTH
        return counted_ns, put, reserved, deleted


class KeptFlow:
    """What came and went in a tube, or in the whole server, in each range."""

    __slots__ = ("_rings", "made_ns", "noted_ns", "points")

    def __init__(self, now_ns: int) -> None:
        self.made_ns = self.noted_ns = now_ns
        self.points = 0
        """How many points all rings have."""
        self._rings = [Ring(step_s, most) for step_s, most in RANGES.values()]

    def note(self, tally: Tally, weights: list[tuple[int, int]], ready: int, now_ns: int) -> None:
        """Add what a tally counted. ``weights``: how many waits are at each place of ``_WAITS_NS``, from ``weigh``."""
        self.noted_ns = now_ns
        for ring in self._rings:
            self.points += ring.note(tally, weights, ready, now_ns)

    def rows(self, span: str, now_ns: int) -> list[tuple[float, ...]]:
        """Return the points of a range."""
        return self._rings[list(RANGES).index(span)].rows(now_ns)

    def rates(self, now_ns: int) -> tuple[float, float, float]:
        """Return how many jobs were put, reserved and deleted per second in the last RATE_S or so."""
        if now_ns - self.noted_ns >= RATE_S * SECOND_NS:
            return 0.0, 0.0, 0.0
        step_ns = RANGES["5min"][0] * SECOND_NS
        first = (now_ns - RATE_S * SECOND_NS) // step_ns
        counted_ns, put, reserved, deleted = self._rings[0].sums(first)
        to_ns = now_ns if now_ns - self.noted_ns > _TALLY_NS else self.noted_ns
        took_s = max(counted_ns, to_ns - first * step_ns) / SECOND_NS
        return put / took_s, reserved / took_s, deleted / took_s


class Flows:
    """The flow of the whole server, and those of tubes in which something has happened, as long as there is room."""

    __slots__ = ("_flows", "_points", "lost", "max_bytes", "since_ns", "total")

    def __init__(self) -> None:
        self.total = KeptFlow(0)
        self._flows: OrderedDict[bytes, KeptFlow] = OrderedDict()
        """By the name of the tube, which may come and go; the one in which something happened last comes last."""
        self._points = 0
        self.lost = False
        """Whether there was ever no room for a flow."""
        self.max_bytes = FLOWS_BYTES
        self.since_ns = 0
        """When the server began to serve; what was before is not known, be it that it stood by."""

    def __len__(self) -> int:
        return len(self._flows)

    @property
    def used_bytes(self) -> int:
        """What the flows of tubes take."""
        return len(self._flows) * FLOW_BYTES + self._points * POINT_BYTES

    def find(self, name: bytes) -> KeptFlow | None:
        """Return the flow of a tube; None if nothing has happened there, or there was no room for it."""
        return self._flows.get(name)

    def note(self, tube: Tube, tally: Tally, ready: int, now_ns: int) -> None:
        """Note the tally of a tube, which has just been taken. ``ready``: the jobs ready in the whole server."""
        weights = weigh(tally)
        self.total.note(tally, weights, ready, now_ns)
        flow = self._flows.get(tube.name)
        if flow is None:
            if not (tube.holds_jobs or tube.watching or tube.using):  # it is gone; there may be very many
                return
            if not self._makes_room(now_ns):
                self.lost = True
                return
            flow = self._flows[tube.name] = KeptFlow(now_ns)
        else:
            self._flows.move_to_end(tube.name)
        before = flow.points
        flow.note(tally, weights, len(tube.ready), now_ns)
        self._points += flow.points - before
        while self.used_bytes > self.max_bytes:
            self._drop_first()

    def _makes_room(self, now_ns: int) -> bool:
        """Whether there is room for another flow, perhaps because one is dropped in which nothing happens."""
        if self.used_bytes + FLOW_BYTES <= self.max_bytes - self.max_bytes // _GROWTH:
            return True
        if not self._flows or now_ns - self._flows[next(iter(self._flows))].noted_ns < IDLE_NS:
            return False
        self._drop_first()
        return True

    def _drop_first(self) -> None:
        _, flow = self._flows.popitem(last=False)
        self._points -= flow.points
        self.lost = True


def weigh(tally: Tally) -> list[tuple[int, int]]:
    """Return for some waits of a tally their places among the bounds, and how many reservations each stands for."""
    weight = max(1, tally.reserved // max(1, len(tally.waits)))
    return [(bisect_left(_WAITS_NS, wait_ns), weight) for wait_ns in tally.waits]


def quantile_s(counts: Sequence[int], share: float) -> float:
    """Return the wait in seconds that such a share of those that were counted does not exceed, about."""
    rank = share * sum(counts)
    for at, count in enumerate(counts):
        if count and rank <= count:
            if not at:
                return 0.0
            least, most = _WAITS_NS[at - 1], _WAITS_NS[min(at, len(_WAITS_NS) - 1)]
            return (least + (most - least) * rank / count) / SECOND_NS
        rank -= count
    return _WAITS_NS[-1] / SECOND_NS


def series_of(flow: KeptFlow | None, span: str, ready: int, since_ns: int, now_ns: int) -> Series:
    """Return what a range knows up to now. ``flow``: None if nothing has happened; ``ready``: the jobs that are now.

    What happened before ``since_ns`` is not known.
    """
    step_s, most = RANGES[span]
    step_ns = step_s * SECOND_NS
    last = now_ns // step_ns
    first = max(last - most + 1, since_ns // step_ns)
    series = Series(first * step_ns, step_s, [], [], [], [], [], [], [], [])
    rows = [] if flow is None else flow.rows(span, now_ns)
    level: int | None = ready if flow is None else None
    at = 0
    for place in range(first, last + 1):
        while at < len(rows) and rows[at][0] < place:
            level = int(rows[at][6])
            at += 1
        row = rows[at] if at < len(rows) and rows[at][0] == place else None
        if row is not None:
            level = int(row[6])
            unknown_ns = since_ns - place * step_ns
            if unknown_ns > 0:
                row = (row[0], max(row[1] - unknown_ns, SECOND_NS), *row[2:])
        _add(series, row, level)
    if series.ready:
        series.ready[-1] = ready
    return series


def _add(series: Series, row: tuple[float, ...] | None, level: int | None) -> None:
    series.ready.append(level)
    if row is None:
        series.seconds.append(float(series.step_s))
        for counts in (series.put, series.reserved, series.deleted, series.delay_over):
            counts.append(0)
        series.wait_p50_s.append(None)
        series.wait_p99_s.append(None)
        return
    series.seconds.append(row[1] / SECOND_NS)
    series.put.append(int(row[2]))
    series.reserved.append(int(row[3]))
    series.deleted.append(int(row[4]))
    series.delay_over.append(int(row[5]))
    series.wait_p50_s.append(row[7] if row[7] >= 0 else None)
    series.wait_p99_s.append(row[8] if row[8] >= 0 else None)
