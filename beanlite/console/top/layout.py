"""The columns of the tables of ``beanlite top``."""

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final, NamedTuple

from beanlite.console import tables, units
from beanlite.console.filters import Record, pattern_of, tube_name
from beanlite.console.top import sampling

# From this width on the terminal has room for all about a job.
WIDE: Final = 150
# Eight heights, and none at all.
_BARS: Final = " ▁▂▃▄▅▆▇█"


class TableColumn(NamedTuple):
    """A column: the key of the fact that it shows, and its width in characters, including the sort mark.

    A column of width 0 takes the space that the others leave.
    """

    key: str
    title: str
    show: Callable[[Any], str]
    width: int
    from_width: int = 0
    """The column is left out on a terminal that is narrower."""
    mark: Callable[[Record], str] = lambda _: ""
    """What precedes the fact."""


# Short words for why no job is reserved from a tube.
_SHUT: Final = {"paused": "paused", "max_reserved": "full", "rate": "rate"}


def name_filter(text: str) -> Callable[[str], bool]:
    """Return what says whether a name fits a filter: a pattern with * or ?, or a part of the name."""
    pattern = pattern_of(text) or "*"
    return lambda name: fnmatchcase(name, pattern)


def sparkline(values: Sequence[float], top: float) -> str:
    """Return a bar for each value, of which ``top`` has the full height; only 0 has none."""
    highest = len(_BARS) - 1
    return "".join(_BARS[min(highest, max(1, round(highest * value / top))) if value else 0] for value in values)


def trends(trend: Sequence[tuple[float, float]]) -> tuple[str, str]:
    """Return how many jobs came and went lately, as bars of one scale."""
    top = max((rate for pair in trend for rate in pair), default=0.0)
    come, go = (sparkline([pair[at] for pair in trend], top).rjust(sampling.TREND) for at in (0, 1))
    return come, go


def _trend(trend: Sequence[tuple[float, float]]) -> str:
    return "|".join(trends(trend))


def tube_text(tube: Record) -> str:
    """Return what a narrow terminal has no columns for."""
    come, go = trends(tube.get("trend", ()))
    waits = f"the next one waits {units.age(tube['first_ready_s'])}" if tube["first_ready_s"] is not None else ""
    paused = f"paused for {units.age(tube['pause_left_s'])}" if tube["pause_left_s"] else ""
    clients = f"{units.short(tube['waiting'])} of {units.short(tube['watching'])} clients wait"
    facts = "; ".join(text for text in (tube.get("wrong"), paused, clients, waits) if text)
    return units.on_one_line(f"{tube_name(tube)}: in|out {come}|{go}; {facts}")


def _name_mark(tube: Record) -> str:
    words = [_SHUT.get(word, word) for word in tube.get("shut", ())]
    server = f"{tube['server']}:" if "server" in tube else ""
    return (f"({', '.join(words)}) " if words else "") + server


TUBES: Final = (
    TableColumn("name", "tube", str, 0, mark=_name_mark),
    TableColumn("ready", "ready", units.short, 6),
    TableColumn("reserved", "reserved", units.short, 9),
    TableColumn("delayed", "delayed", units.short, 8),
    TableColumn("buried", "buried", units.short, 7),
    TableColumn("puts_per_s", "puts/s", units.rate, 7),
    TableColumn("deletes_per_s", "deletes/s", units.rate, 10),
    TableColumn("first_ready_s", "next waits", units.age, 12, 96),
    TableColumn("waiting", "waiting", units.short, 8, 106),
    TableColumn("watching", "watching", units.short, 9, 117),
    TableColumn("pause_left_s", "paused for", lambda left_s: units.age(left_s) if left_s else "", 12, 131),
    TableColumn("wrong", "wrong", str, 16, 149),
    TableColumn("trend", "in|out", _trend, 2 * sampling.TREND + 1, 172),
    TableColumn("first_buried_s", "buried for", units.age, 12, 190),
    TableColumn("using", "using", units.short, 6, 198),
    TableColumn("total_jobs", "put in all", units.short, 11, 211),
)
JOBS: Final = (
    TableColumn("id", "id", str, 9),
    TableColumn("state", "state", str, 8),
    TableColumn("pri", "pri", str, 5),
    TableColumn("in_state_s", "in state", units.age, 12),
    TableColumn("size", "size", units.size, 9),
    TableColumn("age_s", "age", units.age, 12, WIDE),
    TableColumn("left_s", "left", units.age, 12, WIDE),
    TableColumn("timeouts", "timeouts", units.short, 8, WIDE),
    TableColumn("holder", "last holder", tables.peer, 24, WIDE),
    TableColumn("preview", "body", str, 0),
)
