"""A history in few lines: events that recur in the same order become one line."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from beanlite.console.filters import Record
from beanlite.core.events import (
    BURY,
    CLIENT_GONE,
    COPY,
    DELAY,
    DELETE,
    KICK,
    MOVE,
    PAUSE,
    PUT,
    RELEASE,
    REPRIORITISE,
    RESERVE,
    RESTART,
    TTR_OVER,
)

# How many lines, or events one by one, a page shows.
LINES_MAX: Final = 100
# How many events may recur together, and how often at least.
_CYCLE_MAX: Final = 25
_TIMES_MIN: Final = 3
# What ends a reservation.
_ENDS: Final = frozenset({RELEASE, BURY, TTR_OVER, CLIENT_GONE, DELETE, KICK, RESTART, MOVE, DELAY})
# What operators do with a pri, or a delay, that they name. In their other events it is what each job has anyway, unless
# a program has named it.
_SETS_PRI: Final = frozenset({REPRIORITISE})
SETS_DELAY: Final = frozenset({COPY, DELAY, PAUSE, RELEASE})


class Line(NamedTuple):
    """An event, or several that recur."""

    events: list[Record]
    """Those of the first time, without a pri or delay that was another one later."""
    times: int
    first_at: float
    last_at: float
    end: int
    """How many events of the history it ends with."""
    held_s: float | None = None
    """How long clients had the job before each of the reservations ended that end in this line, on average."""

    @property
    def words(self) -> str:
        """What happened each time."""
        if len(self.events) == 1:
            return str(self.events[0]["what"])
        return ", ".join(
            line.words if line.times == 1 else f"({line.times} \N{MULTIPLICATION SIGN} {line.words})"
            for line in fold(self.events)
        )


def without_puts_of_copies(history: Iterable[Record]) -> Iterator[Record]:
    """Yield the events of a history, but not the put of each copy, which comes before it: copies then recur."""
    before = None
    for event in history:
        if before is not None and (event["what"] != COPY or before["what"] != PUT or event["id"] != before["id"]):
            yield before
        before = event
    if before is not None:
        yield before


def one_by_one(history: Sequence[Record], start: int, end: int) -> list[Line]:
    """Return some events of a history, from the oldest on, as a line each."""
    holds = _holds(history)[start:end]
    return [
        Line([event], 1, event["at"], event["at"], 0, held_s)
        for event, held_s in zip(history[start:end], holds, strict=True)
    ]


def fold(history: Sequence[Record], together: int = _CYCLE_MAX) -> list[Line]:
    """Return a history as lines, both from the oldest on; so many events may recur together."""
    holds = _holds(history)
    kinds = [_kind(event) for event in history]
    lines = []
    at = 0
    while at < len(history):
        length, times = 1, 1
        for each in range(1, together + 1):
            recurs = _times(kinds, at, each)
            if recurs >= _TIMES_MIN and recurs * each > times * length:
                length, times = each, recurs
        end = at + length * times
        events = [_in_common(history[each:end:length]) for each in range(at, at + length)]
        held = [held_s for held_s in holds[at:end] if held_s is not None]
        mean_s = sum(held) / len(held) if held else None
        lines.append(Line(events, times, history[at]["at"], history[end - 1]["at"], end, mean_s))
        at = end
    return lines


def _times(kinds: Sequence[object], at: int, length: int) -> int:
    """Return how often these events follow each other."""
    cycle = kinds[at : at + length]
    end = at + length
    while len(cycle) == length and kinds[end : end + length] == cycle:
        end += length
    return (end - at) // length


def _holds(history: Sequence[Record]) -> list[float | None]:
    """Return of each event that ends a reservation how long it lasted, and None of the others."""
    holds: list[float | None] = []
    since = None
    for event in history:
        what = event["what"]
        holds.append(event["at"] - since if since is not None and what in _ENDS else None)
        since = event["at"] if what == RESERVE else None if what in _ENDS else since
    return holds


def _kind(event: Record) -> tuple[object, ...]:
    """Return what makes events alike: not which client it was, but what it is and for whom it acted."""
    by, what = event["by"], event["what"]
    peer = event.get("policy") if by is None else (by["operator"], by["person"])
    of_operator = by is not None and by["operator"]
    pri = None if of_operator and what not in _SETS_PRI else event["pri"]
    delay_s = None if of_operator and what not in SETS_DELAY else event["delay_s"]
    return event.get("server"), what, event["tube"], pri, delay_s, event.get("change"), peer


def _in_common(events: Sequence[Record]) -> Record:
    """Return the first of events that recur, without a pri or delay that others do not have."""
    first = events[0]
    differing = {key: None for key in ("pri", "delay_s") if any(each[key] != first[key] for each in events)}
    return {**first, **differing}
