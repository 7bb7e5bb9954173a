"""How a tube does: how fast jobs come and go, how many tries fail, and when no job will be ready any more."""

import time
from collections.abc import Callable
from typing import Final

from beanlite.console.filters import Record, identity

# How far ahead to look for delayed jobs that become ready.
DUE_S: Final = 1800

# How a reservation ends without the job being deleted. A server does not count apart what operators bury and delete.
_FAILURES: Final = ("releases", "timeouts", "buries", "client_gone")


# A tube with fewer jobs ready than this is steady if about as many come as go: all but such a share, or one a minute.
_SMALL: Final = 100
_SHARE: Final = 0.2


def is_steady(ready: int, puts_per_min: float, deletes_per_min: float) -> bool:
    """Whether a tube has few jobs ready, and about as many come as go: when it will be empty is left to chance."""
    most = max(puts_per_min, deletes_per_min)
    return ready < _SMALL and deletes_per_min > 0 and abs(puts_per_min - deletes_per_min) <= max(1, _SHARE * most)


def measured(list_tubes: Callable[[], list[Record]], over_s: float) -> list[Record]:
    """Return the tubes after so long a time, with what has come and gone in it, per minute."""
    began_s = time.monotonic()
    before = {identity(tube): tube for tube in list_tubes()}
    time.sleep(over_s)
    tubes = list_tubes()
    minutes = (time.monotonic() - began_s) / 60
    for tube in tubes:
        earlier = before.get(identity(tube), {})  # of one that was not there, all has been done since
        for key, count in (("puts_per_min", "total_jobs"), ("deletes_per_min", "deletes")):
            tube[key] = max(0, tube[count] - earlier.get(count, 0)) / minutes
    return tubes


def add_outlook(tube: Record) -> None:
    """Add the share of reservations that fail; and, where rates are known, in how many seconds no job will be ready.

    That is None if more come than go, and left out of a tube that is small and steady. A server counts failures since
    its start, a file has those of this hour and the last.
    """
    rates = "_per_min" if "releases_per_min" in tube else ""
    failures = sum(tube.get(key + rates) or 0 for key in _FAILURES)
    ends = failures + (tube["deletes" + rates] or 0)
    tube["failed"] = round(failures / ends, 4) if ends else None
    if "puts_per_min" in tube:
        puts, deletes = tube["puts_per_min"] or 0, tube["deletes_per_min"] or 0
        if not tube["ready"] or deletes > puts:
            tube["drain_s"] = round(60 * tube["ready"] / (deletes - puts)) if tube["ready"] else 0
        elif not is_steady(tube["ready"], puts, deletes):
            tube["drain_s"] = None
