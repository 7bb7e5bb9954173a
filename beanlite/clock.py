"""The one clock of a server."""

import time
from collections.abc import Callable


def utc_clock() -> Callable[[], int]:
    """A clock in nanoseconds since 1970 UTC that never goes back: it is set once, and then the monotonic one."""
    monotonic_ns = time.monotonic_ns
    offset_ns = time.time_ns() - monotonic_ns()
    return lambda: monotonic_ns() + offset_ns
