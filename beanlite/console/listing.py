"""Lists of jobs, tubes and clients, slice by slice from a server or a file, as described in docs/protocol.md."""

import heapq
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from beanlite.console import outlook
from beanlite.console.filters import Record, identity, job_name
from beanlite.console.live import Live
from beanlite.console.several import Servers, Several
from beanlite.errors import ConfigError

if TYPE_CHECKING:
    from beanlite.console.file import File
    from beanlite.protocol.operators.filters import Filter

# How many records to ask for at a time.
_SLICE: Final = 200
# How many bytes of each body are shown in a list.
_PREVIEW: Final = 200

# The facts that jobs can be sorted by, besides by id and by queue, and whether the largest comes first.
_SORTS: Final[dict[str, tuple[str, bool]]] = {
    "age": ("age_s", True),
    "in-state": ("in_state_s", True),
    "pri": ("pri", False),
    "size": ("size", True),
    "timeouts": ("timeouts", True),
    "reserves": ("reserves", True),
}
# The orders of lists that can be continued where they were cut.
CONTINUED: Final = ("id", "queue")
JOB_SORTS: Final = (*CONTINUED, *_SORTS)
# The keys of a filter that leave out the jobs which come after a known one in such an order. A job has been reserved at
# least as often as it timed out.
_AHEAD: Final = {
    "age": "older_s",
    "in-state": "in_state_s",
    "pri": "pri_max",
    "timeouts": "reserves_min",
    "reserves": "reserves_min",
}
# What tubes can be sorted by: names from a to z, all else with the largest first.
TUBE_SORTS: Final = ("name", "ready", "reserved", "delayed", "buried", "oldest", "bytes", "waiting", "failed", "due")
# What clients can be sorted by, besides by number, and the fact that each means.
_CLIENT_SORTS: Final = {"holds": "holds", "hold": "oldest_hold_s", "silent": "silent_s", "connected": "connected_s"}
CLIENT_SORTS: Final = ("number", *_CLIENT_SORTS)
# Those that a server is asked for alone, of all tubes, and its word for each.
_ALONE: Final = {key: key for key in ("name", "ready", "reserved", "delayed", "buried", "waiting")} | {
    "oldest": "first_ready_s"
}
# How many tubes a server can be asked for by their names, and how many jobs by their ids.
NAMED_MAX: Final = 1000
# Those that only a file or only a server knows.
_UNKNOWN: Final = {
    "bytes": "--sort bytes needs --db: a server does not add up the sizes of jobs",
    "waiting": "--sort waiting needs a server: a file has no clients",
}

Source: TypeAlias = "Live | Several | File"
"""A source of jobs and tubes."""
_SERVERS: Final = (Live, Several)


class Page(NamedTuple):
    """A part of a list."""

    records: list[Record]
    after: str | None
    """Where to continue; None: there is nothing more, or the list can't be continued."""
    is_cut: bool = False
    """Whether the time was up before all records were looked at that it may have."""


def everything(
    ask: Callable[[Record], Record], request: Record, key: str, until_s: float = math.inf
) -> Iterator[Record]:
    """Yield the records of all slices of a list that are asked for until a moment of the monotonic clock."""
    return records_of(ask, {**request, "limit": _SLICE}, key, until_s)


def records_of(
    ask: Callable[[Record], Record], request: Record, key: str, until_s: float = math.inf
) -> Iterator[Record]:
    """Yield the records as ``everything`` does, in slices as large as the server makes them."""
    for records, _ in slices(ask, request, key, until_s):
        yield from records


def jobs(
    source: Source,
    which: "Filter",
    sort: str,
    limit: int,
    after: str | None,
    paths: Sequence[str] = (),
    until_s: float = math.inf,
) -> Page:
    """Return up to `limit` jobs, 0 meaning all, sorted. ConfigError: there is no such order, or not of these jobs.

    Each has the texts of what is at the paths in its body, or None where there is nothing. With a limit, they are those
    of the slices that are asked for until a moment of the monotonic clock.
    """
    if sort not in JOB_SORTS:
        raise ConfigError(f"jobs are sorted by {', '.join(JOB_SORTS)}, not by {sort!r}")
    request: Record = {**which.criteria(), "preview": _PREVIEW, "notes": True}
    if paths:
        request["paths"] = list(paths)
    if sort in _SORTS:
        if after is not None:
            raise ConfigError("--after goes on only in a list that is sorted by id or queue")
        if limit:
            return _leading(source.list_jobs, request, sort, limit, until_s)
        key, largest = _SORTS[sort]
        return Page(first(everything(source.list_jobs, request, "jobs"), key, largest=largest, limit=0), None)
    if sort == "queue" and (which.tube is None or which.state in {None, "reserved"}):
        raise ConfigError("--sort queue needs --tube, and --state ready, delayed or buried")
    if sort == "id" and not limit:
        everyone = everything(source.list_jobs, {**request, "after": after}, "jobs")
        return Page(first(everyone, "id", largest=False, limit=0), None)
    found: dict[str, Record] = {}  # by id: in a queue a job may move from one slice to a later one
    request |= {"order": sort, "after": after, "limit": _next_slice(limit, 0)}
    cursor = None
    for records, cursor in slices(source.list_jobs, request, "jobs", until_s):
        found |= {job_name(job): job for job in records}
        if limit and len(found) == limit:
            return Page(list(found.values()), cursor)
        request["limit"] = _next_slice(limit, len(found))
    return Page(list(found.values()), cursor, is_cut=cursor is not None)


def _leading(ask: Callable[[Record], Record], request: Record, sort: str, limit: int, until_s: float) -> Page:
    """Return the first `limit` jobs in an order; of millions, few others are asked for, unless that is by size."""
    key, largest = _SORTS[sort]
    ahead, strictest = _AHEAD.get(sort), max if largest else min
    request |= {"limit": _SLICE}
    rows: list[Record] = []
    cursor = None
    for records, cursor in slices(ask, request, "jobs", until_s):  # noqa: B007 - it is needed at the end
        rows = first([*rows, *records], key, largest=largest, limit=limit)
        # Beyond an unknown value there may be known ones.
        if ahead is not None and len(rows) == limit and rows[-1][key] is not None:
            bound = rows[-1][key] + (1 if largest else -1)
            if bound < 0:  # no job has a smaller pri
                return Page(rows, None)
            request[ahead] = strictest(request.get(ahead, bound), bound)
    return Page(rows, None, is_cut=cursor is not None)


def tubes(source: Source, like: str, sort: str, limit: int, over_s: float = 0) -> tuple[list[Record], int]:
    """Return up to `limit` tubes whose names match, 0 meaning all, sorted; and their number. ConfigError: bad order.

    With `over_s`, they have the rates that are measured for so long. ConfigError: not of a file.
    """
    if sort not in TUBE_SORTS:
        raise ConfigError(f"tubes are sorted by {', '.join(TUBE_SORTS)}, not by {sort!r}")
    if over_s and not isinstance(source, _SERVERS):
        raise ConfigError("--over needs a server: a file has the rates of this hour and the last")
    request: Record = {"like": like}
    names: list[str] = []
    if isinstance(source, _SERVERS) and sort in _ALONE and 0 < limit <= NAMED_MAX and not over_s:
        names = names_in_order(source, request, _ALONE[sort])
        request = {"names": list(dict.fromkeys(names[:limit]))}  # several servers may have a tube

    def list_tubes() -> list[Record]:
        return every_tube(source, {**request, "due_s": outlook.DUE_S})

    rows = outlook.measured(list_tubes, over_s) if over_s else list_tubes()
    for row in rows:
        outlook.add_outlook(row)
    if sort == "oldest":  # a server knows only how long the next job has been ready
        sort = "oldest_ready_s" if rows and "oldest_ready_s" in rows[0] else "first_ready_s"
    if rows and sort not in rows[0]:
        raise ConfigError(_UNKNOWN[sort])
    return first(rows, sort, largest=sort != "name", limit=limit), len(names) or len(rows)


def names_in_order(live: Servers, request: Record, key: str) -> list[str]:
    """Return the names of all tubes that a request chooses, sorted; only what sorting needs is asked for."""
    if key == "name":
        return sorted(name for (name,) in every_tube(live, {**request, "only": ["name"]}))
    rows = every_tube(live, {**request, "only": ["name", key]})
    rows.sort(key=lambda facts: -1 if facts[1] is None else facts[1], reverse=True)
    return [name for name, _ in rows]


def every_tube(source: Source, request: Record) -> list[Any]:
    """Return the tubes of all slices of a list, or what the request's ``only`` names of each, the name first.

    A tube that is dropped and made again between two slices is in both: its last record counts.
    """
    request = request if "only" in request else {**request, "limit": _SLICE}
    tubes = (tube for part, _ in slices(source.list_tubes, request, "tubes") for tube in part)
    if "only" not in request:
        return list({identity(tube): tube for tube in tubes}.values())
    # Of several servers such a row does not say of which one it is.
    rows: list[Any] = list(tubes)
    return rows if isinstance(source, Several) else list({row[0]: row for row in rows}.values())


def clients(source: Servers, tube: str | None, sort: str) -> list[Record]:
    """Return the clients but this one, or those that use or watch a tube, sorted. ConfigError: no such order."""
    if sort not in CLIENT_SORTS:
        raise ConfigError(f"clients are sorted by {', '.join(CLIENT_SORTS)}, not by {sort!r}")
    rows = [
        client
        for client in everything(source.list_clients, {}, "clients")
        if not client.pop("asks") and (tube is None or tube == client["uses"] or tube in client["watches"])
    ]
    return first(rows, _CLIENT_SORTS[sort], largest=True, limit=0) if sort in _CLIENT_SORTS else rows


def first(records: Iterable[Record], key: str, *, largest: bool, limit: int) -> list[Record]:
    """Return the first `limit` records sorted by one fact, 0 meaning all; records that lack the fact come last."""

    def order(record: Record) -> tuple[bool, Any]:
        value = record.get(key)
        return (value is not None) == largest, 0 if value is None else value

    if not limit:
        return sorted(records, key=order, reverse=largest)
    return (heapq.nlargest if largest else heapq.nsmallest)(limit, records, key=order)


def _next_slice(limit: int, count: int) -> int:
    """Return how many records to ask for, so that the cursor ends up right after the last one wanted."""
    return min(_SLICE, limit - count) if limit else _SLICE


def slices(
    ask: Callable[[Record], Record], request: Record, key: str, until_s: float = math.inf
) -> Iterator[tuple[list[Record], str | None]]:
    """Yield each slice of a list, and where to continue; `request` may be changed in between.

    After a moment of the monotonic clock no further one is asked for.
    """
    while True:
        reply = ask(request)
        request["after"] = reply["next"]
        yield reply[key], reply["next"]
        if reply["next"] is None or time.monotonic() >= until_s:
            return
