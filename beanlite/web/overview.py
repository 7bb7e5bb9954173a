"""The contents of the first page: what is wrong with the server, its rates, and its tubes."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from heapq import nsmallest
from typing import Final

from beanlite.console import listing, outlook, why
from beanlite.console.filters import Record
from beanlite.console.live import Live
from beanlite.core.findings import BURIED, CRASH_LOOP, LEFT_BURIED, REFUSED, STORM_DUE
from beanlite.errors import ConfigError
from beanlite.web.pages import link, quoted

# Tubes on one page.
PAGE: Final = 50
# What tubes can be sorted by.
SORTS: Final = ("name", "ready", "reserved", "delayed", "buried", "waiting", "first_ready_s")
# The state of the jobs that a finding is about; those of the other kinds are ready.
STATE_OF: Final = {BURIED: "buried", LEFT_BURIED: "buried", STORM_DUE: "delayed", CRASH_LOOP: None, REFUSED: None}

# When a tube will be empty is told if its next job has waited for so long.
_LATE_S: Final = 60

# What the page of a tube does not tell elsewhere.
_FACTS: Final = frozenset({"clients", "reserved", "pace", "crashes"})


def name_and_order(query: Mapping[str, str]) -> tuple[str, str]:
    """Return what is asked for in the names of tubes, and how they are sorted. ConfigError: there is no such order."""
    like, sort = query.get("like", "").strip()[:200], query.get("sort", "name")
    if sort not in SORTS:
        raise ConfigError(f"sort: tubes are sorted by {', '.join(SORTS)}")
    return like, sort


@dataclass(frozen=True, slots=True)
class TubesPage:
    """A page of tubes."""

    tubes: list[Record]
    page: int
    more: bool
    """Whether there is another page."""


def tubes(live: Live, like: str, sort: str, page: int) -> TubesPage:
    """Return a page of the tubes whose names match ``like``, in this order."""
    # All pages cost the same.
    names = listing.names_in_order(live, {"like": like} if like else {}, sort)
    end = page * PAGE
    places = {name: place for place, name in enumerate(names[end - PAGE : end])}
    records = tubes_named(live, list(places))
    return TubesPage(sorted(records, key=lambda tube: places[tube["name"]]), page, len(names) > end)


def tubes_named(live: Live, names: list[str]) -> list[Record]:
    """Return the tubes of these names; one may be gone by now."""
    request: Record = {"names": names, "due_s": outlook.DUE_S}
    records = listing.every_tube(live, request) if names else []
    for tube in records:
        if tube["puts_per_s"] is not None:
            tube |= {f"{key}_per_min": 60 * tube[f"{key}_per_s"] for key in ("puts", "deletes")}
        outlook.add_outlook(tube)
        if (tube["first_ready_s"] or 0) < _LATE_S:  # a few jobs more or less are no trend
            tube.pop("drain_s", None)
    return records


def leading(live: Live, like: str, sort: str, most: int) -> tuple[list[tuple[float, str]], int]:
    """Return the first tubes in this order, each with what it is ordered by, and how many there are in all."""
    only = ["name"] if sort == "name" else ["name", sort]
    rows = listing.every_tube(live, {"only": only} | ({"like": like} if like else {}))
    ranks = [(-(-1 if value is None else value), name) for name, *values in rows for value in values or [0]]
    return nsmallest(most, ranks), len(ranks)


def findings(live: Live) -> list[Record]:
    """Return what is wrong, the worst first, each finding with the state of the jobs that it is about."""
    return _with_states(live.diagnose({})["findings"])


def diagnosis(live: Live, tube: str) -> tuple[list[Record], list[tuple[str, str]]]:
    """Return what is wrong with a tube, and how it does, in lines with titles, as ``beanlite why`` tells it."""
    reply = live.diagnose({"tube": tube})
    facts = [] if reply["tube"] is None else why.facts_of(reply["tube"])
    findings = [finding for finding in reply["findings"] if finding["tubes"]]  # the others concern the server
    return _with_states(findings), [(title, line) for title, line in facts if title in _FACTS]


def _with_states(findings: list[Record]) -> list[Record]:
    return [
        {**finding, "state": STATE_OF.get(finding["kind"], "ready"), "page": _page_of(finding["command"] or "")}
        for finding in findings
    ]


def _page_of(command: str) -> str:
    """Return the page that shows what a command does; empty if there is none."""
    match shlex.split(command)[1:]:
        case ["jobs", "--tube", tube, *options]:
            longest_first = {"sort": "in-state"} if "reserved" in options else {}
            asked = {name.removeprefix("--"): value for name, value in zip(options[::2], options[1::2], strict=False)}
            return link(f"/tube/{quoted(tube)}", **longest_first | asked) + "#jobs"
        case ["job", job_id]:
            return f"/job/{job_id}"
        case ["clients", *_]:
            return "/clients"
        case ["policy", "show", tube]:
            return f"/tube/{quoted(tube)}#policies"
    return ""
