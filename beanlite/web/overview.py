"""The contents of the first page: what is wrong with the server, its rates, and its tubes."""

from dataclasses import dataclass
from typing import Any, Final

from beanlite.console import listing
from beanlite.console.filters import Record
from beanlite.console.live import Live
from beanlite.core.findings import BURIED, CRASH_LOOP, LEFT_BURIED, REFUSED, STORM_DUE

# TubesPage on one page.
PAGE: Final = 50
# What tubes can be sorted by.
SORTS: Final = ("name", "ready", "reserved", "delayed", "buried", "waiting", "first_ready_s")
# The state of the jobs that a finding is about; those of the other kinds are ready.
STATES: Final = {BURIED: "buried", LEFT_BURIED: "buried", STORM_DUE: "delayed", CRASH_LOOP: None, REFUSED: None}


@dataclass(frozen=True, slots=True)
class TubesPage:
    """A page of tubes."""

    tubes: list[Record]
    page: int
    more: bool
    """Whether there is another page."""


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


def findings(live: Live) -> list[Record]:
    """Return what is wrong, the worst first, each finding with the state of the jobs that it is about."""
    found = live.diagnose({})["findings"]
    return [{**finding, "state": STATES.get(finding["kind"], "ready")} for finding in found]
