"""What is added to the totals of each tube, by the hour and by the day."""

from __future__ import annotations

from operator import add
from typing import Final

from beanlite.core.job import SECOND_NS
from beanlite.core.totals import Tally

HOUR_S: Final = 3600
DAY_S: Final = 24 * HOUR_S
# How long each is kept.
KEPT_S: Final = {HOUR_S: 14 * DAY_S, DAY_S: 400 * DAY_S}


def totals_rows(tallies: list[Tally], now_s: float) -> list[tuple[object, ...]]:
    """What to add to the hour and to the day that it is, in UTC seconds; a row for each of them and each tube."""
    sums: dict[str, tuple[float, ...]] = {}
    for tally in tallies:
        name = tally.name.decode()
        counts = (
            tally.put,
            tally.reserved,
            tally.deleted,
            tally.released,
            tally.timed_out,
            tally.buried,
            tally.kicked,
            tally.waited_ns / SECOND_NS,
            tally.held_ns / SECOND_NS,
        )
        before = sums.get(name)  # of a tube that is gone, and was made anew
        sums[name] = counts if before is None else tuple(map(add, before, counts))
    return [
        (span_s, int(now_s) // span_s * span_s, name, *counts) for name, counts in sums.items() for span_s in KEPT_S
    ]
