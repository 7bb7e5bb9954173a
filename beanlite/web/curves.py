"""A few numbers over time as a small picture, beside the name of a tube."""

import time
from collections.abc import Iterable
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


def curve(rows: Iterable[Record], key: str, span_s: int, points: int) -> Curve:
    """Make a curve of one fact of rows that each stand for a span of time, up to now; one without a row counts as 0."""
    last = int(time.time()) // span_s * span_s
    by_time = {row["at"]: row[key] for row in rows}
    values = [by_time.get(at, 0) for at in range(last - (points - 1) * span_s, last + 1, span_s)]
    most = max(values)
    step, height = WIDTH / (points - 1), HEIGHT - _TOP
    places = [
        f"{at * step:.1f},{HEIGHT - (height * value / most if most else 0):.1f}" for at, value in enumerate(values)
    ]
    line = f"M{'L'.join(places)}"
    return Curve(line, f"{line}L{WIDTH},{HEIGHT}L0,{HEIGHT}Z", most)
