"""Numbers over time as SVG paths, so that curves need no script."""

import time
from collections.abc import Iterable
from itertools import groupby
from typing import Final, NamedTuple

from beanlite.console.filters import Record

# In the picture's own units; pages scale it. The margin at the top keeps a line there from being cut in half.
WIDTH: Final = 600
HEIGHT: Final = 100
_TOP: Final = 4


class Curve(NamedTuple):
    """A curve as SVG paths, with its scale."""

    line: str
    area: str
    most: float
    """The largest number, at which the curve reaches the top."""
    total: float
    from_at: float
    """The time of its first point, in UTC seconds."""


def curve(rows: Iterable[Record], key: str, span_s: int, points: int, *, gaps: bool = False) -> Curve:
    """Make a curve of one fact of rows that each stand for a span of time, up to now.

    A span without a row counts as 0, or, with ``gaps``, leaves a gap.
    """
    last = int(time.time()) // span_s * span_s
    first = last - (points - 1) * span_s
    by_time = {row["at"]: row[key] for row in rows if key in row}
    values = [by_time.get(at, None if gaps else 0) for at in range(first, last + 1, span_s)]
    numbers = [value for value in values if value is not None]
    most = max(numbers, default=0)
    line = area = ""
    for is_gap, run in groupby(enumerate(values), lambda place: place[1] is None):
        if not is_gap:
            piece, below = _piece([(place, value) for place, value in run if value is not None], most, points)
            line, area = line + piece, area + below
    return Curve(line, area, most, sum(numbers), first)


def _piece(run: list[tuple[int, float]], most: float, points: int) -> tuple[str, str]:
    """Return the paths of a piece of the line without gaps, and of the area below it."""
    step, height = WIDTH / (points - 1), HEIGHT - _TOP
    places = [f"{at * step:.1f},{HEIGHT - (height * value / most if most else 0):.1f}" for at, value in run]
    line = f"M{'L'.join(places)}" + ("h1" if len(run) == 1 else "")
    begin, end = run[0][0] * step, run[-1][0] * step
    return line, f"{line}L{end:.1f},{HEIGHT}L{begin:.1f},{HEIGHT}Z"
