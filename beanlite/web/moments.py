"""Moments that the server tells as ages in whole seconds, and that would seem to move a little each time."""

import time
from collections.abc import Callable, Hashable
from typing import Final

# How far two computations of the same moment may be from each other: ages are cut, and answers shared for a second.
_MARGIN_S: Final = 3.0
_MOMENTS_MAX: Final = 1000


class Moments:
    """The moments that were shown, by what began then."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """``clock`` returns the UTC seconds."""
        self._clock = clock
        self._all: dict[Hashable, float] = {}

    def since(self, key: Hashable, age_s: float) -> float:
        """Return when something began that is so old: the same moment as before, unless it has begun anew."""
        at = self._clock() - age_s
        before = self._all.get(key)
        if before is not None and abs(at - before) <= _MARGIN_S:
            return before
        if len(self._all) >= _MOMENTS_MAX:
            self._all.clear()
        self._all[key] = at
        return at
