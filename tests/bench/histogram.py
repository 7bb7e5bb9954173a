"""Latencies in buckets of equal relative width: any number in little memory, and easily merged."""

from collections.abc import Iterable
from typing import Final, Self

_BITS: Final = 6
_EXACT: Final = 2 << _BITS  # up to here a bucket is one nanosecond
_BUCKETS: Final = (48 - _BITS + 1) << _BITS  # 2**48 ns are three days


class Histogram:
    """Counts of latencies in nanoseconds, each known to within 1 %.

    A bucket holds the values that agree in their highest 7 bits, and reports the middle of its range.
    """

    __slots__ = ("_counts", "max_ns")

    def __init__(self) -> None:
        self._counts = [0] * _BUCKETS
        self.max_ns = 0
        """The longest latency, exactly."""

    def record(self, ns: int) -> None:
        """Count one latency."""
        self._counts[ns if ns < _EXACT else ((shift := ns.bit_length() - _BITS - 1) << _BITS) + (ns >> shift)] += 1
        if ns > self.max_ns:  # noqa: PLR1730 - takes half as long as max(); runs once per batch
            self.max_ns = ns

    def percentile_ns(self, percent: float) -> int:
        """Return the latency that `percent` (to one decimal) of all do not exceed; 0 if there are none."""
        wanted = round(10 * percent) * sum(self._counts)  # in thousandths, as 99.9 is not a float
        so_far = 0
        for bucket, count in enumerate(self._counts):
            so_far += count
            if count and 1000 * so_far >= wanted:
                return min(_middle_ns(bucket), self.max_ns)
        return 0

    def merge(self, other: Self) -> None:
        """Add the counts of another histogram."""
        self._counts = [mine + its for mine, its in zip(self._counts, other._counts, strict=True)]
        self.max_ns = max(self.max_ns, other.max_ns)

    def dump(self) -> list[list[int]]:
        """Return what `load` takes: the longest latency, then pairs of a bucket and its count."""
        return [[self.max_ns], *([bucket, count] for bucket, count in enumerate(self._counts) if count)]

    @classmethod
    def load(cls, dumped: Iterable[list[int]]) -> Self:
        """Make a histogram from what `dump` returned in another process."""
        histogram = cls()
        (histogram.max_ns,), *pairs = dumped
        for bucket, count in pairs:
            histogram._counts[bucket] = count
        return histogram


def _middle_ns(bucket: int) -> int:
    if bucket < _EXACT:
        return bucket
    shift = (bucket >> _BITS) - 1
    return ((bucket - (shift << _BITS)) << shift) + (1 << shift >> 1)
