"""A server whose clock runs fast, so that a minute passes in about a second."""

from pathlib import Path

from tests.support.servers import start_beanlite

TIMES = 40
ROOT = Path(__file__).parents[2]
# Python reads it before anything else. Only the server's clock is asked for this one.
FAST = f"""
import time

real, clock = time.clock_gettime_ns, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
began_ns = real(clock)


def fast(which):
    now_ns = real(which)
    return began_ns + (now_ns - began_ns) * {TIMES} if which == clock else now_ns


time.clock_gettime_ns = fast
"""


def start_fast(folder, *flags):
    """Start a server for which time passes TIMES times as fast as for others."""
    place = folder / "fast"
    place.mkdir(parents=True)
    (place / "sitecustomize.py").write_text(FAST)
    return start_beanlite(folder, *flags, environment={"PYTHONPATH": f"{place}:{ROOT}"})
