"""Measurements for metrics: made only if somebody may ask for them, so that a server without metrics pays nothing."""

from bisect import bisect_left
from typing import Final

from beanlite.core.totals import Tally

_MS: Final = 1_000_000
# Bounds for durations of moments, from 0.1 ms to 10 s, and for those that may be days, from 1 ms to a day; for jobs.
_MOMENTS_NS: Final = [
    round(ms * _MS) for ms in (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 10_000)
]
_DAYS_NS: Final = [ms * _MS for ms in (1, 10, 100, 1000, 10_000, 60_000, 600_000, 3_600_000, 21_600_000, 86_400_000)]
_JOBS: Final = [0, 1, 2, 5, 10, 25, 50, 100, 250, 500, 1000]


class Histogram:
    """How many measurements fell between each two of some ascending bounds."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: list[int]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """How many were at most this bound and more than the one before; the last count is of those above all."""
        self.total = 0
        """The sum of all measurements."""

    def note(self, measure: int, times: int = 1) -> None:
        """Add a measurement, as often as ``times``."""
        self.counts[bisect_left(self.bounds, measure)] += times
        self.total += measure * times


class Measures:
    """All measurements; times are in nanoseconds."""

    __slots__ = ("batch_jobs", "checkpoints", "commands", "commits", "holds", "syncs", "tally", "turns", "waits")

    def __init__(self) -> None:
        self.tally = Tally(b"")
        """The tallies of all tubes that have been taken for the totals, summed."""
        self.waits = Histogram(_DAYS_NS)
        """How long jobs were ready before they were reserved."""
        self.holds = Histogram(_DAYS_NS)
        """How long jobs were reserved."""
        self.commands = Histogram(_MOMENTS_NS)
        """From the turn in which a command came until its reply left; the wait of a reserve is not included."""
        self.turns = Histogram(_MOMENTS_NS)
        """From the first command of a turn to its end."""
        self.batch_jobs = Histogram(_JOBS)
        """How many jobs were written with a batch."""
        self.commits = Histogram(_MOMENTS_NS)
        """How long it took to write a batch, without its sync."""
        self.syncs = Histogram(_MOMENTS_NS)
        """How long syncs took."""
        self.checkpoints = Histogram(_MOMENTS_NS)
        """How long checkpoints took."""
