"""The one clock of a server, and what its times are in UTC.

It goes on while the machine is suspended, as the world does: what has come due meanwhile is due. When the clock of the
machine is set, it goes on as before: a delay of an hour lasts an hour. So it may be ahead of UTC, or behind; what is
stored and goes from one server to the next is by this clock, and people are told UTC.

It counts nanoseconds since 2000-01-01 UTC: until 2036 these fit in 60 bits, and so in an int of 32 bytes; those since
1970 take 48, for each job.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

EPOCH_S: Final = 946_684_800  # in seconds since 1970
_SECOND_NS: Final = 1_000_000_000
# By less the clock of the machine is set all the time, and nobody notices.
_AHEAD_NS: Final = _SECOND_NS // 2


def _since_boot_ns() -> int:
    return time.clock_gettime_ns(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def _utc_ns() -> int:
    return time.time_ns() - EPOCH_S * _SECOND_NS


class Clock:
    """It never goes back: it is set before anybody asks it, and then counts the time since boot."""

    __slots__ = ("offset_ns", "since_boot_ns", "utc_ns")

    def __init__(self, since_boot_ns: Callable[[], int] = _since_boot_ns, utc_ns: Callable[[], int] = _utc_ns) -> None:
        """Set it to what the machine says. ``utc_ns`` counts from 2000 on, too."""
        self.since_boot_ns = since_boot_ns
        self.utc_ns = utc_ns
        self.offset_ns = 0
        """What it shows at boot."""
        self.set(utc_ns())

    def set(self, now_ns: int) -> None:
        """Have it show this; before 2000 it has no times."""
        self.offset_ns = max(0, now_ns) - self.since_boot_ns()

    def __call__(self) -> int:
        """The time."""
        return self.since_boot_ns() + self.offset_ns

    @property
    def ahead_ns(self) -> int:
        """By how much it is ahead of UTC as the machine has it now."""
        ahead_ns = self() - self.utc_ns()
        return ahead_ns if abs(ahead_ns) > _AHEAD_NS else 0

    def utc_s(self, clock_ns: int) -> float:
        """What UTC was when it showed this, in seconds since 1970."""
        return utc_s(clock_ns - self.ahead_ns)


def utc_s(clock_ns: int) -> float:
    """Seconds since 1970 UTC, by a clock that is right."""
    return clock_ns / _SECOND_NS + EPOCH_S


def clock_ns(utc_s: float) -> int:
    """What a clock that is right shows at a moment of UTC."""
    return int((utc_s - EPOCH_S) * _SECOND_NS)
