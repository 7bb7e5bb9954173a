"""What operators may set for tubes in a simulated run, and what holds for a tube; nothing is taken from the server."""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from beanlite.core.ruled import DEBT_MAX_NS
from tests.simulator.loop import SECOND_NS

Values = Mapping[tuple[bytes, str], str]


class Rate(NamedTuple):
    """How many jobs may be reserved in how long."""

    token_ns: int
    """How long it takes until another job may be."""
    burst: int


TUBES = (b"default", b"mail", b"log")
DEAD, OLD = b"dead", b"old"
ALL_TUBES = (*TUBES, DEAD, OLD)
# What bodies begin with that are put again and again: all others are put once.
AGAIN = b"again."
# Bodies that only schedules put, and when.
SCHEDULED = {"s1": b"schedule.1.3.", "s2": b"schedule.2.60."}
WHEN = ("every 1s", "every 5s", "* * * * *")
# The values of each key, and what they mean. ``unique`` has one of them in each run.
MEANING: dict[str, dict[str, Any]] = {
    "max_tries": {"1": 1, "2": 2, "3": 3},
    "then": {"bury": None, "move:dead": DEAD, "move:mail": b"mail"},
    "retry": {"1s": (1, 1), "1s..4s": (1, 4), "2s..1m": (2, 60)},
    "max_reserved": {"1": 1, "2": 2, "5": 5},
    "rate": {"1/s": Rate(SECOND_NS, 1), "10/s": Rate(SECOND_NS // 10, 10), "30/m": Rate(2 * SECOND_NS, 1)},
    "max_jobs": {"1": 1, "3": 3, "10": 10},
    "fair": {"true": True},
    "unique": {"waiting": "waiting", "present": "present"},
    "ttl": {"1s": SECOND_NS, "3s": 3 * SECOND_NS, "1m": 60 * SECOND_NS, "2h": 7200 * SECOND_NS},
    "expired": {"bury": None, "delete": None, "move:old": OLD},
}
PATTERNS = (b"*", b"default", b"mail", b"l?g", b"*a*", b"dead")


def text_of(values: Values, tube: bytes, key: str) -> str | None:
    """Return the value that holds for a tube; None if none does."""
    name = tube.decode()
    patterns = [pattern for pattern, each in values if each == key and fnmatchcase(name, pattern.decode())]
    if not patterns:
        return None
    value = values[min(patterns, key=_rank), key]
    return None if value == "off" else value


def _rank(pattern: bytes) -> tuple[bool, int, bytes]:
    wild = pattern.count(b"*") + pattern.count(b"?")
    return wild > 0, wild - len(pattern), pattern


class Bucket:
    """What may still be reserved from a tube with a rate, in the time that it takes to earn it."""

    def __init__(self, rate: Rate, now_ns: int) -> None:
        self.rate = rate
        self._level_ns = 0
        self._at_ns = now_ns
        self._owner: object = None

    def permits(self, owner: object, now_ns: int) -> bool:
        """Whether a job may be reserved now; ``owner``: the tube. One that is made anew knows nothing of debts."""
        if owner is not self._owner:
            self._owner, self._level_ns = owner, max(0, self._level_ns)
        full_ns = self.rate.burst * self.rate.token_ns
        self._level_ns = min(full_ns, self._level_ns + now_ns - self._at_ns)
        self._at_ns = now_ns
        return self._level_ns >= self.rate.token_ns

    def take(self) -> None:
        full_ns = self.rate.burst * self.rate.token_ns
        self._level_ns = max(self._level_ns - self.rate.token_ns, full_ns - max(full_ns, DEBT_MAX_NS))


class Known:
    """What an operator knows to be set: the values that each key may have. None: it is not set."""

    def __init__(self) -> None:
        self._possible: dict[Any, list[tuple[int, str | None]]] = {}
        self._moment = 0

    def all(self) -> list[Any]:
        return list(self._possible)

    def asks(self, changes: Mapping[Any, str | None]) -> int:
        """Enter a change that is asked for; returns its number."""
        self._moment += 1
        for each, value in changes.items():
            self._possible.setdefault(each, [(0, None)]).append((self._moment, value))
        return self._moment

    def done(self, number: int) -> None:
        """Enter that this change has been acknowledged."""
        for each, values in self._possible.items():
            if any(moment == number for moment, _ in values):
                self._possible[each] = [entry for entry in values if entry[0] >= number]

    def answered(self, number: int, reply: Mapping[str, Any]) -> None:
        """Enter the reply to this change, which is empty if that was refused."""
        if reply:
            self.done(number)
            return
        for each, values in self._possible.items():
            self._possible[each] = [entry for entry in values if entry[0] != number]

    def fault(self, rows: Mapping[Any, str]) -> str | None:
        """Return why this can't be what is set; None if they can be."""
        for each in self._possible.keys() | rows.keys():
            possible = [value for _, value in self._possible.get(each, [(0, None)])]
            if rows.get(each) not in possible:
                return f"{each} is {rows.get(each)}, and may be {possible}"
        return None

    def begin_anew(self, rows: Mapping[Any, str]) -> None:
        self._possible = {each: [(0, value)] for each, value in rows.items()}
