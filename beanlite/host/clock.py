"""The one clock of a server, and the conversion of its times to UTC.

It runs on while the machine is suspended, so that whatever became due meanwhile is due. It is not affected when the
machine's clock is set: a delay of an hour lasts an hour. So it may be ahead of UTC or behind. Times that are stored, or
passed from one server to the next, are by this clock; people are shown UTC.

It counts nanoseconds since 2000-01-01 UTC. Until 2036 these fit into 60 bits, and thus into an int object of 32 bytes;
nanoseconds since 1970 would take 48 bytes, for each job.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

EPOCH_S: Final = 946_684_800  # in seconds since 1970
_SECOND_NS: Final = 1_000_000_000
# Differences up to this are ignored: the machine's clock is adjusted by that much all the time.
_AHEAD_NS: Final = _SECOND_NS // 2
# Where there is no CLOCK_BOOTTIME, the clock stands still while the machine is suspended.
_SINCE_BOOT: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def _since_boot_ns() -> int:
    return time.clock_gettime_ns(_SINCE_BOOT)


def _utc_ns() -> int:
    return time.time_ns() - EPOCH_S * _SECOND_NS


class Clock:
    """A clock that never goes back: it is set before it is read, and from then on counts the time since boot."""

    __slots__ = ("offset_ns", "since_boot_ns", "utc_ns")

    def __init__(self, since_boot_ns: Callable[[], int] = _since_boot_ns, utc_ns: Callable[[], int] = _utc_ns) -> None:
        """Set the clock to the machine's UTC. ``utc_ns`` also counts from 2000."""
        self.since_boot_ns = since_boot_ns
        self.utc_ns = utc_ns
        self.offset_ns = 0
        """The clock's time at boot."""
        self.set(utc_ns())

    def set(self, now_ns: int) -> None:
        """Set the clock to this time; it has no times before 2000."""
        self.offset_ns = max(0, now_ns) - self.since_boot_ns()

    def __call__(self) -> int:
        """Return the current time, in nanoseconds."""
        return self.since_boot_ns() + self.offset_ns

    @property
    def ahead_ns(self) -> int:
        """By how much the clock is ahead of the machine's UTC; 0 for small differences."""
        ahead_ns = self() - self.utc_ns()
        return ahead_ns if abs(ahead_ns) > _AHEAD_NS else 0

    def utc_s(self, clock_ns: int) -> float:
        """Convert a time of this clock to UTC, in seconds since 1970."""
        return utc_s(clock_ns - self.ahead_ns)


def utc_s(clock_ns: int) -> float:
    """Convert a time of a clock that agrees with UTC to seconds since 1970."""
    return clock_ns / _SECOND_NS + EPOCH_S


def clock_ns(utc_s: float) -> int:
    """Convert seconds since 1970 to the time of a clock that agrees with UTC."""
    return int((utc_s - EPOCH_S) * 1e9)  # SQLite computes likewise, even if it returns a time as a whole number
