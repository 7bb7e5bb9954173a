"""A job's history in few lines: events that recur in the same order become one line."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from beanlite.console.filters import Record

# How many lines, or events one by one, a page shows.
LINES_MAX: Final = 100
# How many events may recur together, and how often at least.
_CYCLE_MAX: Final = 25
_TIMES_MIN: Final = 3


class Line(NamedTuple):
    """An event, or several that recur."""

    events: list[Record]
    """Those of the first time."""
    times: int
    first_at: float
    last_at: float
    end: int
    """How many events of the history it ends with."""

    @property
    def words(self) -> str:
        """What happened each time."""
        if len(self.events) == 1:
            return str(self.events[0]["what"])
        return ", ".join(
            line.words if line.times == 1 else f"({line.times} \N{MULTIPLICATION SIGN} {line.words})"
            for line in fold(self.events)
        )


def fold(history: Sequence[Record]) -> list[Line]:
    """Return a history as lines, both from the oldest on."""
    kinds = [_kind(event) for event in history]
    lines = []
    at = 0
    while at < len(history):
        length, times = 1, 1
        for each in range(1, _CYCLE_MAX + 1):
            recurs = _times(kinds, at, each)
            if recurs >= _TIMES_MIN and recurs * each > times * length:
                length, times = each, recurs
        end = at + length * times
        events = list(history[at : at + length])
        lines.append(Line(events, times, history[at]["at"], history[end - 1]["at"], end))
        at = end
    return lines


def _times(kinds: Sequence[object], at: int, length: int) -> int:
    """Return how often these events follow each other."""
    cycle = kinds[at : at + length]
    end = at + length
    while len(cycle) == length and kinds[end : end + length] == cycle:
        end += length
    return (end - at) // length


def _kind(event: Record) -> tuple[object, ...]:
    """Return what makes events alike: not which client it was, but what it is and for whom it acted."""
    by = event["by"]
    peer = event.get("policy") if by is None else (by["operator"], by["person"])
    return event["what"], event["tube"], event["pri"], event["delay_s"], peer
