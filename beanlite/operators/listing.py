"""Lists of jobs, tubes and clients, slice by slice from a server or a file, as docs/protocol.md describes it."""

import heapq
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple, Protocol

from beanlite.errors import ConfigError
from beanlite.operators.filters import Filter, Record

# How many records to ask for at a time.
_SLICE: Final = 200
# How many bytes of a body are shown in a list.
_PREVIEW: Final = 200

# By what jobs can be sorted beside the order of their ids and of their queue, and whether the largest comes first.
_SORTS: Final[dict[str, tuple[str, bool]]] = {
    "age": ("age_s", True),
    "in-state": ("in_state_s", True),
    "pri": ("pri", False),
    "size": ("size", True),
    "timeouts": ("timeouts", True),
}
JOB_SORTS: Final = ("id", "queue", *_SORTS)


# By what tubes can be sorted: names from a to z, of all else the largest first.
TUBE_SORTS: Final = ("name", "ready", "reserved", "delayed", "buried", "oldest", "bytes", "waiting")


class Source(Protocol):
    """Where jobs and tubes are found."""

    def list_jobs(self, request: Record) -> Record:
        """A slice of the jobs."""

    def list_tubes(self, request: Record) -> Record:
        """A slice of the tubes."""

    def show_job(self, job_id: int) -> Record | None:
        """All that is known of a job, its body as bytes; None: there is no such job."""

    def check_tube(self, tube: str) -> None:
        """BeanliteError: there is no such tube."""

    def stats(self) -> Record:
        """What is known of the whole."""


class Listed(NamedTuple):
    """A part of a list."""

    records: list[Record]
    after: str | None
    """From where to go on; None: there is nothing more, or no way to tell."""


def everything(ask: Callable[[Record], Record], request: Record, key: str) -> Iterator[Record]:
    """All slices of a list, one record after the other."""
    for records, _ in _slices(ask, {**request, "limit": _SLICE}, key):
        yield from records


def jobs(source: Source, which: Filter, sort: str, limit: int, after: str | None) -> Listed:
    """Up to `limit` jobs, 0 meaning all, sorted. ConfigError: they can't be sorted like that."""
    if sort not in JOB_SORTS:
        raise ConfigError(f"--sort: jobs are sorted by {', '.join(JOB_SORTS)}, not by {sort!r}")
    request: Record = {**which.request(), "preview": _PREVIEW}
    if sort in _SORTS:
        if after is not None:
            raise ConfigError("--after goes on only in a list that is sorted by id or queue")
        key, largest = _SORTS[sort]
        return Listed(first(everything(source.list_jobs, request, "jobs"), key, largest=largest, limit=limit), None)
    if sort == "queue" and (which.tube is None or which.state in {None, "reserved"}):
        raise ConfigError("--sort queue needs --tube, and --state ready, delayed or buried")
    found: list[Record] = []
    request |= {"order": sort, "after": after, "limit": _next_slice(limit, 0)}
    for records, cursor in _slices(source.list_jobs, request, "jobs"):
        found += records
        if limit and len(found) == limit:
            return Listed(found, cursor)
        request["limit"] = _next_slice(limit, len(found))
    return Listed(found, None)


def tubes(source: Source, like: str, sort: str, limit: int) -> tuple[list[Record], int]:
    """Up to `limit` tubes of such a name, 0 meaning all, sorted; and how many there are. ConfigError: no such order."""
    if sort not in TUBE_SORTS:
        raise ConfigError(f"--sort: tubes are sorted by {', '.join(TUBE_SORTS)}, not by {sort!r}")
    found = list(everything(source.list_tubes, {"like": like}, "tubes"))
    if sort == "oldest":  # a server knows this only of the job that is next
        sort = "oldest_ready_s" if found and "oldest_ready_s" in found[0] else "first_ready_s"
    return first(found, sort, largest=sort != "name", limit=limit), len(found)


def first(records: Iterable[Record], key: str, *, largest: bool, limit: int) -> list[Record]:
    """The first of them in the order of one fact, of which those that lack it come last; all if `limit` is 0."""

    def order(record: Record) -> tuple[bool, Any]:
        value = record.get(key)
        return (value is not None) == largest, 0 if value is None else value

    if not limit:
        return sorted(records, key=order, reverse=largest)
    return (heapq.nlargest if largest else heapq.nsmallest)(limit, records, key=order)


def _next_slice(limit: int, found: int) -> int:
    """How many records to ask for, so that the cursor points behind the last one that is wanted."""
    return min(_SLICE, limit - found) if limit else _SLICE


def _slices(ask: Callable[[Record], Record], request: Record, key: str) -> Iterator[tuple[list[Record], str | None]]:
    """Each slice of a list, and where to go on; `request` may be changed in between."""
    while True:
        reply = ask(request)
        request["after"] = reply["next"]
        yield reply[key], reply["next"]
        if reply["next"] is None:
            return
