"""The one clock of a server, and what its times are in UTC.

It goes on while the machine is suspended, as the world does: what has come due meanwhile is due.

It counts nanoseconds since 2000-01-01 UTC: until 2036 these fit in 60 bits, and so in an int of 32 bytes; those since
1970 take 48, for each job.
"""

import time
from collections.abc import Callable
from typing import Final

EPOCH_S: Final = 946_684_800  # in seconds since 1970
_SECOND_NS: Final = 1_000_000_000


def utc_clock() -> Callable[[], int]:
    """A clock that never goes back: it is set once, and then counts the time since boot."""
    clock_gettime_ns, which = time.clock_gettime_ns, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    offset_ns = time.time_ns() - EPOCH_S * _SECOND_NS - clock_gettime_ns(which)
    return lambda: clock_gettime_ns(which) + offset_ns


def utc_s(clock_ns: int) -> float:
    """Seconds since 1970 UTC."""
    return clock_ns / _SECOND_NS + EPOCH_S


def clock_ns(utc_s: float) -> int:
    """What the clock shows at a moment of UTC."""
    return int((utc_s - EPOCH_S) * _SECOND_NS)
