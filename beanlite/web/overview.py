"""The contents of the first page: the server's state, its problems, and its tubes."""

import time
from dataclasses import dataclass
from typing import Any, Final

from beanlite.console import listing, units
from beanlite.console.filters import Record
from beanlite.console.live import COUNTERS, Live

# TubesPage on one page.
PAGE: Final = 50
# What tubes can be sorted by.
SORTS: Final = ("name", "ready", "reserved", "delayed", "buried", "waiting", "first_ready_s")
# A job that has been ready for this long is shown as a problem.
LONG_S: Final = 3600
# How many tubes are named among the problems, for each kind.
NAMED_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class TubesPage:
    """A page of tubes."""

    tubes: list[Record]
    page: int
    more: bool
    """Whether there is another page."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that an operator should look at."""

    text: str
    tube: str | None = None
    state: str | None = None
    """The state of the tube's jobs that are concerned."""
    urgent: bool = False
    """Whether it concerns the server as a whole."""


def tubes(live: Live, like: str, sort: str, page: int) -> TubesPage:
    """Return a page of the tubes whose names match ``like``, in this order."""
    names = _in_order(live, like, sort)
    end = page * PAGE
    places = {name: place for place, name in enumerate(names[end - PAGE : end])}
    records: list[Record] = []
    if places:  # a tube may be gone by then
        records = live.list_tubes({"names": list(places), "limit": PAGE})["tubes"]
    return TubesPage(sorted(records, key=lambda tube: places[tube["name"]]), page, len(names) > end)


def _in_order(live: Live, like: str, sort: str) -> list[str]:
    """Return the sorted names of all matching tubes. Only what sorting needs is requested: all pages cost the same."""
    request: Record = {"like": like} if like else {}
    if sort == "name":
        return sorted(name for (name,) in all_tubes(live, {**request, "only": ["name"]}))
    rows = all_tubes(live, {**request, "only": ["name", sort]})
    rows.sort(key=lambda facts: -1 if facts[1] is None else facts[1], reverse=True)
    return [name for name, _ in rows]


def all_tubes(live: Live, request: Record) -> list[Any]:
    """Return the tubes of all slices of a list, or what the request's ``only`` names of each."""
    return [tube for part, _ in listing.slices(live.list_tubes, request, "tubes") for tube in part]


def problems(live: Live, stats: Record) -> list[Problem]:
    """Return the problems of the server and its tubes, the urgent ones first."""
    items = _of_server(stats)
    stuck = [tube for tube in all_tubes(live, {"order": "first_ready_s", "limit": 20}) if tube["ready"]]
    for tube in listing.first(stuck, "first_ready_s", largest=True, limit=NAMED_MAX):
        waits = units.age(tube["first_ready_s"])
        if not tube["watching"] and not tube["pause_left_s"]:
            text = f"nobody reserves from it: {units.jobs(tube['ready'])} ready, the next one for {waits}"
            items.append(Problem(text, tube["name"], "ready"))
        elif tube["first_ready_s"] >= LONG_S:
            why = "".join(f", because of its {word}" for word in tube["shut"] if word != "paused")
            items.append(Problem(f"its next job has been ready for {waits}{why}", tube["name"], "ready"))
    if stats["current-jobs-buried"]:
        buried = [tube for tube in all_tubes(live, {"order": "buried", "limit": 20}) if tube["buried"]]
        for tube in listing.first(buried, "buried", largest=True, limit=NAMED_MAX):
            since = units.age(tube["first_buried_s"])
            items.append(Problem(f"{units.jobs(tube['buried'])} buried, the first {since} ago", tube["name"], "buried"))
    return sorted(items, key=lambda problem: not problem.urgent)


def _of_server(stats: Record) -> list[Problem]:
    items = []
    if stats.get("disk-full") == "true":
        items.append(Problem("The disk is full: puts are refused until there is room again", urgent=True))
    if stats.get("draining") == "true":
        items.append(Problem("The server is draining: it takes no new jobs", urgent=True))
    used, most = stats.get("memory-used", 0), stats.get("memory-max", 0)
    if most and used > 0.9 * most:
        text = f"{used * 100 // most} % of the memory that it may use is taken; puts are refused when all of it is"
        items.append(Problem(text, urgent=True))
    if stats.get("backup-failed-at", 0):
        items.append(Problem(f"The last backup failed at {units.utc(stats['backup-failed-at'])} UTC", urgent=True))
    return items


class Rates:
    """Rates per second, from one reading of the statistics to the next."""

    def __init__(self) -> None:
        self._before: tuple[float, Record] = 0.0, {}
        self._rates: dict[str, float] = {}

    def since_last(self, stats: Record) -> dict[str, float]:
        """Return the rates since the previous statistics; empty at first, and after the server was restarted."""
        now_s = time.monotonic()
        before_s, before = self._before
        if stats is not before:
            self._before, self._rates = (now_s, stats), {}
            if before.get("id") == stats.get("id"):
                self._rates = {
                    name: sum(stats.get(key, 0) - before.get(key, 0) for key in keys) / (now_s - before_s)
                    for name, keys in COUNTERS.items()
                }
        return self._rates
