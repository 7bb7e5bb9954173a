"""Several servers, with the same methods for questions as one: all are asked at the same time, and the answers merged.

Each record has the name of its server as ``server``. A server that is away is left out, and the reason is kept.
"""

import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from heapq import merge
from itertools import islice
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeAlias, TypeVar

from beanlite.beanstalk.client import TIMEOUT_S, Server, Unreachable, address_text
from beanlite.client.calls import list_tube_used
from beanlite.client.errors import Declined
from beanlite.console.filters import JobId, Record
from beanlite.console.live import Live
from beanlite.console.names import Names
from beanlite.core.findings import SEVERITIES
from beanlite.errors import BeanliteError, ConfigError

if TYPE_CHECKING:
    from beanlite.fleet.servers import Fleet

Answer = TypeVar("Answer")

# How long a server may take to accept a connection, all of its addresses together, and to answer a question that only
# looks: a screen that shows several servers says within 5 s that one is away.
AWAY_S: Final = 4.0
# How much later than a server's connection says so itself it is given up.
_LATE_S: Final = 0.5
# How many jobs a slice has by default.
_LIMIT: Final = 100
# The numbers among the statistics that are no counts, and the words of which one server's holds for all.
_NO_SUMS: Final = frozenset(
    {
        "backup-failed-at", "backup-succeeded-at", "binlog-current-index", "binlog-max-size", "binlog-oldest-index",
        "disk-free", "history-bodies-max", "max-job-size", "pid", "uptime",
    }
)  # fmt: skip
_FLAGS: Final = ("disk-full", "draining")
# What a queue in each state is ordered by.
_QUEUES: Final[Mapping[str, Callable[[Record], Any]]] = {
    "ready": lambda job: (job["pri"], job["id"]),
    "delayed": lambda job: job["left_s"],
    "buried": lambda job: -job["in_state_s"],
}


class Place(NamedTuple):
    """One of several servers."""

    name: str
    number: int
    """What a cursor carries of it."""
    addresses: tuple[Server, ...]
    """Where it is reached: of an active server and its standbys, the first one that answers."""

    @property
    def options(self) -> str:
        """The options that name it in a command, with the standbys that are reached in the same way as the first."""
        first, *others = [address for address in self.addresses if len(address) == len(self.addresses[0])]
        standbys = [address_text(address).rpartition("/")[2] for address in others] if len(first) > 1 else []
        return f" --connect {shlex.quote(','.join([address_text(first), *standbys]))}"


class Places(NamedTuple):
    """The servers that a command or a page is about."""

    places: tuple[Place, ...]
    fleet: "Fleet | None" = None
    """The file that says which of them has a tube; None: there is none."""


def only(address: Server) -> Places:
    """Return a single server, that has no name, as places."""
    return Places((Place("", 0, (address,)),))


def reach(place: Place, person: str = "", within_s: float = TIMEOUT_S) -> Live:
    """Connect to one of several servers, and act for a person, if one is named; replies have to come within a time.

    BeanliteError: that fails.
    """
    share_s = AWAY_S / len(place.addresses)
    errors = []
    for address in place.addresses:
        live = None
        try:
            live = Live(address, person, share_s)
            if len(place.addresses) > 1:
                with suppress(Declined):  # that is an answer, too
                    live.client.ask(list_tube_used())
        except Unreachable as error:
            if live is not None:
                live.close()
            errors.append(str(error))
        else:
            live.client.wait(within_s)
            return live
    raise Unreachable("; ".join(errors))


def reach_only(place: Place, person: str = "", within_s: float = TIMEOUT_S) -> Live:
    """Connect to the only server, as `reach` does; without standbys it has as long as for a reply. BeanliteError."""
    if len(place.addresses) > 1:
        return reach(place, person, within_s)
    return Live(place.addresses[0], person, within_s)


class Several(Names):
    """Connections to several servers. BeanliteError: all are away, or all refuse or do not know a command."""

    def __init__(self, places: Places, person: str = "", within_s: float = AWAY_S) -> None:
        """Connect to all at the same time, and act for a person, if one is named; replies have to come within a time.

        ConfigError: a file for TLS can't be used.
        """
        self.person = person
        self.fleet = places.fleet
        self.away: dict[str, str] = {}
        """Why servers could not be asked, or have refused something."""
        self.places: Mapping[str, Place] = {place.name: place for place in places.places}
        self.on_away: Callable[[], object] = lambda: None
        """What is done when a server is lost whose events are watched."""
        self.lives: dict[str, Live] = {}
        """The servers that answer, by their names."""
        self._within_s = within_s
        self.lives = self._at_once(
            {name: partial(reach, place, person, within_s) for name, place in self.places.items()}, AWAY_S
        )
        self.addresses = {name: live.name for name, live in self.lives.items()}
        """Where each was reached."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        for name in list(self.lives):
            self._leave(name)

    def _leave(self, name: str) -> None:
        live = self.lives.pop(name)
        live.client.abort()  # a thread may still wait for an answer
        live.close()

    def one(self, name: str) -> Live:
        """Return the connection to a server. ConfigError: there is none of this name. Unreachable: it is away."""
        if name not in self.places:
            raise ConfigError(f"there is no server {name}, only {', '.join(self.places)}")
        if name not in self.lives:
            raise Unreachable(f"{name} is away: {self.away.pop(name)}")
        return self.lives[name]

    def each(self, question: Callable[[Live], Answer], names: Iterable[str] | None = None) -> dict[str, Answer]:
        """Ask all servers, or those with these names, at the same time; return the answers of those that gave one."""
        asked = self.lives if names is None else [name for name in names if name in self.lives]
        return self._at_once({name: partial(question, self.lives[name]) for name in asked}, self._within_s)

    def _at_once(self, calls: Mapping[str, Callable[[], Answer]], within_s: float) -> dict[str, Answer]:
        """Carry out calls, one for each server; return the results. BeanliteError: all servers fail."""
        results, errors = at_once(calls, within_s + _LATE_S)
        if errors and not results and self.lives.keys() <= calls.keys():
            raise type(next(iter(errors.values())))("; ".join(f"{name}: {error}" for name, error in errors.items()))
        for name, error in errors.items():
            self.away.setdefault(name, str(error))
            if isinstance(error, Unreachable) and name in self.lives:
                self._leave(name)
        return results

    def no_tube(self, tube: str) -> BeanliteError:
        """Return the error that no server has a tube, as far as they answer."""
        return BeanliteError(f"no server that answers has a tube {tube}") if self.away else super().no_tube(tube)

    # -- questions, as to one server

    def stats(self) -> Record:
        """Return the sums of the statistics."""
        return summed(self.each(Live.stats).values())

    def list_jobs(self, request: Record) -> Record:
        """Return a slice of the jobs of all servers; without an order up to the limit of each."""
        if "order" in request:
            return self._in_order(request)
        return self._slice("jobs", Live.list_jobs, request)

    def group_jobs(self, request: Record) -> Record:
        """Return how many jobs of a slice have each value."""
        return self._slice("groups", Live.group_jobs, request)

    def list_tubes(self, request: Record) -> Record:
        """Return a slice of the tubes: one record for each server that has a tube, up to the limit of each."""
        return self._slice("tubes", Live.list_tubes, request)

    def list_clients(self, request: Record) -> Record:
        """Return a slice of the clients."""
        return self._slice("clients", Live.list_clients, request)

    def list_schedules(self, request: Record) -> Record:
        """Return a slice of the schedules."""
        return self._slice("schedules", Live.list_schedules, request)

    def list_policies(self, request: Record) -> Record:
        """Return all policies or, with ``tube``, those that hold for that tube."""
        replies = self.each(lambda live: live.list_policies(request))
        return {"policies": [row for name, reply in replies.items() for row in named(name, reply["policies"])]}

    def diagnose(self, request: Record) -> Record:
        """Return what is wrong with the tubes that a request names, and with the servers, the worst first.

        ``servers`` has the answer of each. What is known of a tube is that of the first server that has it.
        """
        replies = self.each(lambda live: live.diagnose(request))
        findings = [finding for name, reply in replies.items() for finding in named(name, reply["findings"])]
        findings.sort(key=lambda finding: SEVERITIES.index(finding["severity"]))
        known = (reply["tube"] for reply in replies.values() if reply.get("tube") is not None)
        return {
            "findings": findings,
            **{key: sum(reply[key] for reply in replies.values()) for key in ("tubes", "jobs")},
            "tube": next(known, None),
            "servers": replies,
        }

    def show_jobs(self, job_id: JobId) -> list[Record]:
        """Return all facts about a job or, if its server is not said, about those of all servers that have this id."""
        if job_id.server is not None:
            self.one(job_id.server)
        replies = self.each(lambda live: live.show_job(job_id), job_id.server and [job_id.server])
        if job_id.server is not None:  # it may not have answered
            self.one(job_id.server)
        return [each for name, facts in replies.items() for each in named(name, [] if facts is None else [facts])]

    def watch(self, request: Record) -> Iterator[Record]:
        """Yield the events of all servers as they happen. BeanliteError: all connections are lost."""
        events: SimpleQueue[tuple[str, Record | BeanliteError]] = SimpleQueue()

        def watch(name: str, live: Live) -> None:
            try:
                for event in live.watch(request):
                    events.put((name, event))
            except BeanliteError as error:
                events.put((name, error))

        for item in self.lives.items():
            Thread(target=watch, args=item, daemon=True).start()
        while True:
            name, event = events.get()
            if not isinstance(event, BeanliteError):
                yield {"server": name, **event}
                continue
            self._leave(name)
            if not self.lives:
                raise event
            self.away[name] = str(event)
            self.on_away()

    # -- slices

    def _slice(self, key: str, ask: Callable[[Live, Record], Record], request: Record) -> Record:
        """Return the next slice of each server's list."""
        cursors = self._cursors(request.get("after"))
        replies = self._ask_from(cursors, ask, dict.fromkeys(cursors, request))
        records = [record for name, reply in replies.items() for record in named(name, reply[key])]
        nexts = {name: reply["next"] for name, reply in replies.items() if reply["next"] is not None}
        looked = sum(reply.get("looked", 0) for reply in replies.values())
        return {key: records, "next": self._cursor(nexts), "looked": looked}

    def _in_order(self, request: Record) -> Record:
        """Return the first jobs of all servers in an order, up to the limit."""
        cursors = self._cursors(request.get("after"))
        limit = request.get("limit") or _LIMIT
        rows, nexts = self._first(request, cursors, dict.fromkeys(cursors, limit))
        order = _QUEUES[request["state"]] if request["order"] == "queue" else lambda job: job["id"]
        jobs = list(islice(merge(*(named(name, rows[name]) for name in rows), key=order), limit))
        taken = {name: sum(job["server"] == name for job in jobs) for name in rows}
        # The list of a server goes on behind the last job that is taken: its cursor is that of a list of so many.
        cut = {name: count for name, count in taken.items() if 0 < count < len(rows[name])}
        goes_on = {name: cursors[name] if taken[name] < len(rows[name]) else nexts[name] for name in rows}
        goes_on |= self._first(request, cursors, cut)[1] if cut else {}
        ended = {name for name in rows if taken[name] == len(rows[name]) and nexts[name] is None}
        return {"jobs": jobs, "next": self._cursor({name: at for name, at in goes_on.items() if name not in ended})}

    def _first(
        self, request: Record, cursors: Mapping[str, str | None], wanted: Mapping[str, int]
    ) -> tuple[dict[str, list[Record]], dict[str, str | None]]:
        """Return so many of the next jobs of each server, or as many as there are, and where each list goes on."""
        rows: dict[str, list[Record]] = {name: [] for name in wanted}
        nexts = {name: cursors[name] for name in wanted}
        lacking = list(wanted)
        while lacking:
            requests = {name: {**request, "limit": wanted[name] - len(rows[name])} for name in lacking}
            replies = self._ask_from(nexts, Live.list_jobs, requests)
            for name, reply in replies.items():
                rows[name] += reply["jobs"]
                nexts[name] = reply["next"]
            lacking = [name for name in replies if nexts[name] is not None and len(rows[name]) < wanted[name]]
        there = [name for name in rows if name in self.lives]
        return {name: rows[name] for name in there}, {name: nexts[name] for name in there}

    def _ask_from(
        self, cursors: Mapping[str, str | None], ask: Callable[[Live, Record], Record], requests: Mapping[str, Record]
    ) -> dict[str, Record]:
        """Ask for the next slice of each of these lists."""
        calls = {
            name: partial(ask, self.lives[name], {**request, "after": cursors[name]})
            for name, request in requests.items()
            if name in self.lives
        }
        return self._at_once(calls, self._within_s)

    def _cursors(self, after: str | None) -> dict[str, str | None]:
        """Return where each server's list goes on, without those that have ended. ConfigError: it is no such cursor."""
        if after is None:
            return dict.fromkeys(self.lives)
        names = {str(place.number): name for name, place in self.places.items()}
        parts = [part.partition(":") for part in after.split(",")]
        if not all(colon and number in names for number, colon, _ in parts):
            raise ConfigError(f"--after: {after!r} is not from a list of these servers")
        return {names[number]: cursor or None for number, _, cursor in parts if names[number] in self.lives}

    def _cursor(self, nexts: Mapping[str, str | None]) -> str | None:
        return ",".join(f"{self.places[name].number}:{at or ''}" for name, at in nexts.items()) or None


Servers: TypeAlias = Live | Several
"""A server, or several."""


def connect(places: Places, within_s: float = AWAY_S) -> Servers:
    """Connect to servers; a single one has TIMEOUT_S to reply. BeanliteError, ConfigError, as of Several."""
    if len(places.places) > 1:
        return Several(places, within_s=within_s)
    (place,) = places.places
    live = reach_only(place)
    live.server = place.name
    return live


def at_once(
    calls: Mapping[str, Callable[[], Answer]], within_s: float
) -> tuple[dict[str, Answer], dict[str, BeanliteError]]:
    """Carry out calls at the same time; return the results, and the errors of those that fail. ConfigError.

    What is not there in time is not waited for any longer, be it the address of a machine.
    """
    results: dict[str, Answer] = {}
    errors: dict[str, Exception] = {}

    def carry_out(name: str, call: Callable[[], Answer]) -> None:
        try:
            results[name] = call()
        except Exception as error:  # noqa: BLE001 - the caller raises it
            errors[name] = error

    threads = [Thread(target=carry_out, args=item, daemon=True) for item in calls.items()]
    for thread in threads:
        thread.start()
    until_s = time.monotonic() + within_s
    for thread in threads:
        thread.join(max(0.0, until_s - time.monotonic()))
    done = {name: results[name] for name in calls if name in results}
    failed: dict[str, BeanliteError] = {}
    for name in [name for name in calls if name not in done]:
        error = errors.get(name, Unreachable(f"no answer within {within_s:g} s"))
        if isinstance(error, ConfigError) or not isinstance(error, BeanliteError):
            raise error
        failed[name] = error
    return done, failed


def named(server: str, records: Iterable[Any]) -> list[Any]:
    """Return records with the name of their server; what is no record stays as it is."""
    return [{"server": server, **each} if isinstance(each, dict) else each for each in records]


def named_each(replies: Mapping[str, Record]) -> list[Record]:
    """Return the answer of each server with its name."""
    return [{"server": name, **reply} for name, reply in replies.items()]


def summed(stats: Iterable[Record]) -> Record:
    """Return the sums of several servers' statistics; without what can't be added up."""
    sums: Record = {}
    for each in stats:
        for key, value in each.items():
            if key in _FLAGS:
                sums[key] = "true" if "true" in {value, sums.get(key)} else value
            elif isinstance(value, (int, float)) and key not in _NO_SUMS:
                sums[key] = sums.get(key, 0) + value
    return sums
