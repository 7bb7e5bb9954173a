"""Counts the jobs that have each value at a path in their bodies, or of a fact, slice by slice."""

import heapq
import re
import time
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from beanlite.console import listing
from beanlite.console.filters import Record
from beanlite.core.where import is_path
from beanlite.errors import ConfigError

if TYPE_CHECKING:
    from beanlite.console.listing import Source
    from beanlite.protocol.operators.filters import Filter

# What jobs can be grouped by besides a path; in quotes such a word is a path, too.
FACTS: Final = ("tube", "state", "why", "note")
# What delayed jobs can be grouped by besides.
DUE: Final = "due"
# How many values are kept while they are counted; with one more, the half that has fewer jobs is given up.
VALUES_MAX: Final = 10_000
# How many paths columns can have, and how long one may be, as the protocol has it.
PATHS_MAX: Final = 8
PATH_LENGTH_MAX: Final = 200
# A path ends with a comma that is not in quotes.
_PATHS: Final = re.compile(r'(?:"(?:[^"\\]|\\.)*"|[^",])+')


class Summary(NamedTuple):
    """What a list shows of numbers of jobs by value."""

    rows: list[tuple[str | None, int]] = []  # noqa: RUF012 - never changed
    """The values of most jobs, and how many each has."""
    others: int = 0
    """How many jobs have other values."""
    jobs: int = 0
    """How many jobs have been counted."""
    looked: int = 0
    """How many jobs have been looked at."""
    is_rough: bool = False
    """Whether a value may have some of the others' jobs, too."""


class Groups:
    """Numbers of jobs by value."""

    def __init__(self) -> None:
        self.counts: dict[str | None, int] = {}
        """By value; None stands for no value."""
        self.others = 0
        """How many jobs have values that were given up; a value that is there may have some of them, too."""
        self.looked = 0
        """How many jobs have been looked at."""

    @property
    def jobs(self) -> int:
        """How many jobs have been counted."""
        return sum(self.counts.values()) + self.others

    def add(self, rows: list[tuple[str | None, int]]) -> None:
        """Add values, and the number of jobs of each."""
        for value, jobs in rows:
            self.counts[value] = self.counts.get(value, 0) + jobs
        if len(self.counts) > VALUES_MAX:
            summary = self.summary(VALUES_MAX // 2)
            self.counts, self.others = dict(summary.rows), summary.others

    def summary(self, limit: int) -> Summary:
        """Return what a list of at most `limit` values shows, 0 meaning all; jobs without a value come last."""
        rows, jobs = self.first(limit), self.jobs
        if None in self.counts:
            rows.append((None, self.counts[None]))
        return Summary(rows, jobs - sum(number for _, number in rows), jobs, self.looked, self.others > 0)

    def first(self, limit: int) -> list[tuple[str | None, int]]:
        """Return the values of most jobs, at most `limit`, 0 meaning all."""
        values = [(value, jobs) for value, jobs in self.counts.items() if value is not None]
        first: list[tuple[str | None, int]] = []
        first += heapq.nsmallest(limit or len(values), values, key=lambda item: (-item[1], item[0]))
        return first


def paths_of(text: str) -> list[str]:
    """Return the paths in a text, with commas in between. ConfigError: they are none, or too many."""
    paths = [path.strip() for path in _PATHS.findall(text) if path.strip()]
    for path in paths:
        if len(path) > PATH_LENGTH_MAX or not is_path(path):
            raise ConfigError(f"{path[:40]!r} is not a path, such as customer or items[0].state")
    if len(paths) > PATHS_MAX:
        raise ConfigError(f"{PATHS_MAX} paths at most")
    return paths


def grouping_of(text: str) -> Record:
    """Return what jobs are to be grouped by, as a part of a request. ConfigError: it is no path."""
    if text in FACTS:
        return {"fact": text}
    if len(text) > PATH_LENGTH_MAX or not is_path(text):
        raise ConfigError(f"{text[:40]!r} is no path, such as error.type, and not {', '.join(FACTS)}")
    return {"path": text}


def due(source: "Source", which: "Filter") -> Counter[int]:
    """Return how many delayed jobs become ready in each minute, which is given by its UTC timestamp."""
    criteria = {**which.criteria(), "state": "delayed"}
    if which.state not in {None, "delayed"}:
        raise ConfigError("--group-by due takes delayed jobs only")
    jobs = listing.everything(source.list_jobs, criteria, "jobs")
    return Counter(int(_due_at(job)) // 60 * 60 for job in jobs)


def _due_at(job: Record) -> float:
    """Return when a delayed job becomes ready: exactly, of one that has waited since it was put."""
    about_at = time.time() + job["left_s"] + 0.5  # which is cut to whole seconds
    put_at: float = job["created_at"] + job["delay_s"]
    return put_at if abs(put_at - about_at) <= 1 else about_at


def slices(source: "Source", which: "Filter", by: Record) -> Iterator[Groups]:
    """Count jobs, and yield the same numbers after each slice."""
    groups = Groups()
    request: Record = {**which.criteria(), **by}
    while True:
        reply = source.group_jobs(request)
        groups.add(reply["groups"])
        groups.looked += reply["looked"]
        request["after"] = reply["next"]
        yield groups
        if reply["next"] is None:
            return


def count(source: "Source", which: "Filter", by: Record) -> Groups:
    """Count all jobs that match."""
    *_, groups = slices(source, which, by)
    return groups
