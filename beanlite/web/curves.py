"""Numbers over time as the path of a small picture, which needs no script to be seen."""

import time
from collections.abc import Iterable
from typing import Final, NamedTuple

from beanlite.operators.filters import Record

# The picture's own units; a page draws it in whatever size it likes. A line at the very top would be cut in half.
WIDTH: Final = 600
HEIGHT: Final = 100
_TOP: Final = 4


class Curve(NamedTuple):
    """A curve as SVG has it."""

    line: str
    area: str
    most: float
    """The largest of the numbers, at which the curve is at the top."""
    total: float
    from_at: float
    to_at: float


def curve(rows: Iterable[Record], key: str, span_s: int, points: int) -> Curve:
    """One fact of rows that each stand for a span of time, up to now; where there is no row it is 0."""
    last = int(time.time()) // span_s * span_s
    first = last - (points - 1) * span_s
    found = {row["at"]: row[key] for row in rows}
    values = [found.get(at, 0) for at in range(first, last + 1, span_s)]
    most = max(values)
    step = WIDTH / (points - 1)
    places = [
        f"{place * step:.1f},{HEIGHT - ((HEIGHT - _TOP) * value / most if most else 0):.1f}"
        for place, value in enumerate(values)
    ]
    line = f"M{'L'.join(places)}"
    return Curve(line, f"{line}L{WIDTH},{HEIGHT}L0,{HEIGHT}Z", most, sum(values), first, last + span_s)
