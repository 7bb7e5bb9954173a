"""Patterns of tubes that are asked for, in which * is any text and ? any character."""

import fnmatch
import re
from typing import Final

from beanlite.core.tube import Tube

# What a slice may cost, which the last name may exceed.
COST_MAX: Final = 2 << 20


class Like:
    """A pattern. To try it with a name can take as long as to compare each byte of one with each of the other."""

    __slots__ = ("_each", "_match")

    def __init__(self, pattern: str) -> None:
        self._match = re.compile(fnmatch.translate(pattern).encode()).match
        self._each = len(pattern) if "*" in pattern else 1

    def fits(self, name: bytes) -> bool:
        """Whether this is the name of such a tube."""
        return self._match(name) is not None

    def cost(self, name: bytes) -> int:
        """Return what it costs to try a name, in bytes compared, at most."""
        return self._each * len(name)


def tubes_at_once(tubes: list[Tube], first: int, most: int, like: Like | None) -> list[Tube]:
    """Return the tubes from the ``first`` on that are looked at in a slice, and tried with the pattern, if any."""
    part = tubes[first : first + most]
    if like is not None:
        cost = 0
        for place, tube in enumerate(part, 1):
            cost += like.cost(tube.name)
            if cost >= COST_MAX:
                return part[:place]
    return part
