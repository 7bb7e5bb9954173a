"""What is measured only if somebody may ask for it: none of it is made otherwise, and nothing is spent on it."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from beanlite.core.totals import Tally

_MS: Final = 1_000_000
# Of what takes moments, from 0.1 ms to 10 s, and of what may take days, from 1 ms on.
_MOMENTS_NS: Final = [
    round(ms * _MS) for ms in (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 10_000)
]
_DAYS_NS: Final = [ms * _MS for ms in (1, 10, 100, 1000, 10_000, 60_000, 600_000, 3_600_000, 21_600_000, 86_400_000)]
_JOBS: Final = [0, 1, 2, 5, 10, 25, 50, 100, 250, 500, 1000]


class Histogram:
    """How often a measure was at most each of some bounds, which rise, and more than all of them."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: list[int]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """How often it was at most this bound and more than the one before; the last one is for what exceeds all."""
        self.total = 0
        """All that was measured, added up."""

    def note(self, measure: int, times: int = 1) -> None:
        """So much was measured, so many times."""
        self.counts[bisect_left(self.bounds, measure)] += times
        self.total += measure * times


class Measures:
    """What is measured; times are in nanoseconds. It has an attribute for each thing measured."""

    __slots__ = ("batch_jobs", "checkpoints", "commands", "commits", "holds", "syncs", "tally", "turns", "waits")

    def __init__(self) -> None:
        self.tally = Tally(b"")
        """What has happened to jobs of all tubes, as far as it has been taken for the totals."""
        self.waits = Histogram(_DAYS_NS)
        """How long jobs were ready before they were reserved."""
        self.holds = Histogram(_DAYS_NS)
        """How long they were reserved."""
        self.commands = Histogram(_MOMENTS_NS)
        """From the turn in which commands came to the departure of their replies; a reserve does not wait in it."""
        self.turns = Histogram(_MOMENTS_NS)
        """From a turn's first command to its end."""
        self.batch_jobs = Histogram(_JOBS)
        """How many jobs were written with a batch."""
        self.commits = Histogram(_MOMENTS_NS)
        """How long it took to write a batch, without its sync."""
        self.syncs = Histogram(_MOMENTS_NS)
        """How long it took to sync."""
        self.checkpoints = Histogram(_MOMENTS_NS)
        """How long checkpoints took."""
