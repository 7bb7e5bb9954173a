"""Finds the jobs that an operator asks for, a slice at a time.

A slice looks at a bounded number of jobs and bytes, and returns where the next one begins. No state is kept between
slices. Everything here only reads.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from beanlite.core.engine import Engine
from beanlite.core.heap import KeyHeap
from beanlite.core.job import DELAYED, ID_MASK, READY, RESERVED, SECOND_NS, U32_MAX, Job, State
from beanlite.core.like import COST_MAX, Like
from beanlite.core.tube import Client, Tube, is_of_host
from beanlite.core.where import PARSED_MAX, Where

# Jobs looked at in a slice; fewer in queue order, because walking a heap takes longer.
LOOKS_MAX: Final = 4000
WALKED_MAX: Final = 1000
# How far from its head the order of a queue can be listed: each slice walks past all jobs listed before.
DEPTH_MAX: Final = 20_000
# If the queues that can hold matching jobs have no more jobs than this, only these jobs are looked at.
FEW_MAX: Final = 10_000
# If there are no more tubes than this, those whose names match a pattern are looked for, and only their jobs looked at.
FEW_TUBES_MAX: Final = 1000
# Bytes as which a body counts in which a value is looked for; and one that is parsed: so many, and so many times its
# size.
SCANNED_EACH: Final = 1024
PARSED_EACH: Final = 4096
PARSED_FACTOR: Final = 32
# A longer text may have to be compared with most places of a body: for each so many of its bytes the body counts again.
TEXT_EACH: Final = 20
# Bytes of notes and bodies that a slice searches, copies or has fetched, which the last one may exceed; and how much of
# each body is searched.
BYTES_MAX: Final = 2 << 20
SEARCHED_MAX: Final = 1 << 20

_LATEST_NS: Final = (1 << 62) - 1
_EARLIEST_NS: Final = -_LATEST_NS
_FEWEST: Final = -_LATEST_NS
_TRIES: Final = ("reserves_min", "tries_min", "timeouts_min", "releases_min")


class TooDeep(Exception):
    """An order of a queue that can't be listed so far from its head."""


class Filter:
    """The conditions that a job has to meet, all of them."""

    def __init__(
        self,
        engine: Engine,
        last_id: int,
        now_ns: int,
        now_s: float,
        criteria: Mapping[str, Any],
        permits: Callable[[bytes], bool] | None = None,
    ) -> None:
        """Make a filter of jobs up to ``last_id`` by the criteria of the protocol that are given.

        ``now_s``: the time of ``now_ns`` in UTC. ``permits``: whether the jobs of a tube with this name may match;
        None: those of any may.
        """
        self._permits = permits
        self._engine = engine
        self.ids: list[int] | None = criteria.get("ids")
        tube: str | None = criteria.get("tube")
        self.tube = None if tube is None else engine.tubes.get(tube.encode())
        self.is_in_vain = tube is not None and self.tube is None
        """Whether there is no such tube."""
        like: str | None = criteria.get("tube_like")
        self.tubes = None if like is None else Tubes(Like(like))
        self.state = None if "state" not in criteria else State(criteria["state"])
        self.created_by_ns = _ago(now_ns, criteria.get("older_s"), _LATEST_NS)
        self.created_after_ns = _ago(now_ns, criteria.get("newer_s"), _EARLIEST_NS)
        self.since_by_ns = min(
            _ago(now_ns, criteria.get("in_state_s"), _LATEST_NS),
            _at(now_ns, now_s, criteria.get("until_at"), _LATEST_NS),
        )
        """The latest time at which the job may have entered its state."""
        self.since_from_ns = _at(now_ns, now_s, criteria.get("since_at"), _EARLIEST_NS)
        """The earliest."""
        self.pri_min: int = criteria.get("pri_min", 0)
        self.pri_max: int = criteria.get("pri_max", U32_MAX)
        self.reserves_min: int = criteria.get("reserves_min", 0)
        self.tries_min: int = criteria.get("tries_min", _FEWEST)
        self.timeouts_min: int = criteria.get("timeouts_min", 0)
        self.releases_min: int = criteria.get("releases_min", 0)
        self._asks_tries = not criteria.keys().isdisjoint(_TRIES)
        self.why: str | None = criteria.get("why")
        self.note: bytes | None = None if "note_text" not in criteria else criteria["note_text"].encode()
        self.holder: int | None = criteria.get("holder")
        self.holder_host: str | None = criteria.get("holder_host")
        self.text: bytes | None = None if "text" not in criteria else criteria["text"].encode()
        self.where = None if "where" not in criteria else Where(criteria["where"])
        self.looks_into_bodies = self.text is not None or self.where is not None
        self.parses = self.where is not None
        """Whether bodies are parsed, be it only for what they have at some paths."""
        self.up_to_id: int = min(last_id, criteria.get("up_to_id", last_id))

    def fits(self, job: Job) -> bool:
        """Whether a job meets all conditions except ``ids`` and those of its body."""
        return (
            (self.tube is None or job.tube is self.tube)
            and (self.state is None or job.shown_state is self.state)
            and self.pri_min <= job.pri <= self.pri_max
            and self.created_after_ns < job.created_ns <= self.created_by_ns
            and self.since_from_ns <= job.since_ns <= self.since_by_ns
            and (not self._asks_tries or self._fits_tries(job))
            and job.id <= self.up_to_id
            and (self.holder is None or (job.holder is not None and job.holder.peer.number == self.holder))
            and (self.holder_host is None or (job.holder is not None and is_of_host(job.holder.peer, self.holder_host)))
            and (self._permits is None or self._permits(job.tube.name))
            and (self.tubes is None or self.tubes.have(job.tube))
            and (self.why is None or job.why == self.why)
            and (self.note is None or self.note in self._engine.notes.text(job))
        )

    def _fits_tries(self, job: Job) -> bool:
        past = job.past
        return (
            job.reserves >= self.reserves_min
            and job.tries >= self.tries_min
            and past.timeouts >= self.timeouts_min
            and past.releases >= self.releases_min
        )

    def fits_body(self, body: bytes) -> bool:
        """Whether a body meets the conditions that look into it."""
        if self.text is not None and body.find(self.text, 0, SEARCHED_MAX) < 0:
            return False
        return self.where is None or (len(body) <= PARSED_MAX and self.where.fits(body))

    @property
    def tubes_cost(self) -> int:
        """The bytes that it counts for to have found out which tubes match."""
        return 0 if self.tubes is None else self.tubes.cost

    def note_cost_of(self, job: Job) -> int:
        """Return the bytes that looking into a job's note counts for."""
        return 0 if self.note is None else _search_cost(self.note, len(self._engine.notes.text(job)))

    def cost_of(self, job: Job) -> int:
        """Return the bytes that looking into a job's body counts for."""
        body = job.body
        cost = 0 if self.text is None else _search_cost(self.text, min(job.size, SEARCHED_MAX))
        if not self.parses or job.size > PARSED_MAX:
            return max(cost, job.size)
        looks = 0 if body is None or self.where is None else self.where.looks(body)
        if looks:
            return cost + SCANNED_EACH + looks * job.size
        return cost + PARSED_EACH + PARSED_FACTOR * job.size


class Tubes:
    """The tubes whose names match a pattern."""

    __slots__ = ("_all", "_like", "cost")

    def __init__(self, like: Like) -> None:
        self._like = like
        self._all: dict[Tube, bool] = {}
        """Whether each tube is one of them, as far as this has been asked."""
        self.cost = 0
        """What it has cost to find that out, in bytes compared."""

    def have(self, tube: Tube) -> bool:
        """Whether a tube is one of them."""
        fits = self._all.get(tube)
        if fits is None:
            fits = self._all[tube] = self._like.fits(tube.name)
            self.cost += self._like.cost(tube.name)
        return fits

    def among(self, tubes: Iterable[Tube]) -> list[Tube] | None:
        """Return those among these; None if it costs too much to try them all."""
        found: list[Tube] = []
        for tube in tubes:
            if self.have(tube):
                found.append(tube)
            if self.cost > COST_MAX // 2:
                return None
        return found


def _search_cost(text: bytes, size: int) -> int:
    return size * (1 + len(text) // TEXT_EACH)


def _at(now_ns: int, now_s: float, at_s: float | None, otherwise_ns: int) -> int:
    return otherwise_ns if at_s is None else now_ns + int((at_s - now_s) * SECOND_NS)


def _ago(now_ns: int, age_s: float | None, otherwise_ns: int) -> int:
    return otherwise_ns if age_s is None else now_ns - int(age_s * SECOND_NS)


class Matches:
    """The jobs of a slice that match."""

    __slots__ = ("bodies", "jobs", "looks", "missing", "next")

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.bodies: dict[Job, bytes] = {}
        """Bodies of these jobs that are needed and in memory, kept since they may be unloaded while others are
        fetched."""
        self.missing: list[Job] = []
        """Those of ``jobs`` whose bodies are needed and not in memory; whether such a body fits is not known yet."""
        self.looks = 0
        """How many jobs have been looked at."""
        self.next: int | None = None
        """The place after which the next slice continues; None if there are no more jobs."""


def find(
    engine: Engine, conditions: Filter, after: int, limit: int, *, by_queue: bool = False, need_bodies: bool = False
) -> Matches:
    """Find the next jobs that are asked for, up to ``limit``. ``need_bodies``: the caller needs their bodies.

    ``after`` is a place: an id or, with ``by_queue``, a key, in the order in which jobs leave the queue of the tube and
    state that are asked for. Raises TooDeep.
    """
    matches = Matches()
    if conditions.is_in_vain:
        return matches
    places, more = _queue_places(conditions, after) if by_queue else _id_places(engine, conditions, after)
    budget = BYTES_MAX
    searches = conditions.looks_into_bodies
    for place in places:
        matches.looks += 1
        job = engine.jobs.find(place & ID_MASK)
        if job is None or (by_queue and job.key != place):
            continue
        budget -= conditions.note_cost_of(job)
        if conditions.fits(job):
            body = job.body
            if searches or need_bodies:
                budget -= conditions.cost_of(job)
                if body is None:
                    matches.missing.append(job)
            if body is None or not searches or conditions.fits_body(body):
                matches.jobs.append(job)
                if need_bodies and body is not None:
                    matches.bodies[job] = body
        if len(matches.jobs) == limit or budget <= conditions.tubes_cost:
            more = more or place != places[-1]
            break
    matches.next = places[matches.looks - 1] if more and places else None
    return matches


def _queue_places(conditions: Filter, after: int) -> tuple[list[int], bool]:
    """Return the next keys of a queue, and whether there may be more."""
    assert conditions.tube is not None
    assert conditions.state is not None
    keys = _queue(conditions.tube, conditions.state).after(after, WALKED_MAX, DEPTH_MAX)
    if keys is None:
        raise TooDeep
    return keys, len(keys) == WALKED_MAX


def _id_places(engine: Engine, conditions: Filter, after: int) -> tuple[list[int], bool]:
    """Return the next ids to look at, and whether there may be more."""
    ids = _few_ids(engine, conditions)
    if ids is None:
        ids = engine.jobs.ids_after(after, LOOKS_MAX)
        more = len(ids) == LOOKS_MAX
    else:
        ids = ids[bisect_right(ids, after) :]
        more = len(ids) > LOOKS_MAX
        ids = ids[:LOOKS_MAX]
    if ids and ids[-1] > conditions.up_to_id:
        return ids[: bisect_right(ids, conditions.up_to_id)], False
    return ids, more


def _few_ids(engine: Engine, conditions: Filter) -> list[int] | None:
    """Return the ids of all jobs that can match, ascending; None if they are too many to gather."""
    if conditions.ids is not None:
        return sorted(set(conditions.ids))
    queues = _few_queues(engine, conditions)
    if queues is None or sum(len(queue.keys) for queue in queues) > FEW_MAX:
        return None
    return sorted({key & ID_MASK for queue in queues for key in queue.keys})


def _few_queues(engine: Engine, conditions: Filter) -> list[KeyHeap] | None:
    """Return the queues that hold all jobs that can match; None if any job may."""
    state = conditions.state
    if conditions.holder is not None:
        client = engine.clients.connected.get(conditions.holder)
        return [] if client is None else _held_by(client)
    if conditions.holder_host is not None:
        state = RESERVED
    tubes = [] if conditions.tube is None else [conditions.tube]
    if not tubes and conditions.tubes is not None and len(engine.tubes) <= FEW_TUBES_MAX:
        found = conditions.tubes.among(engine.tubes.values())
        if found is not None and not found:
            return []
        tubes = found or []
    queues: list[KeyHeap] = []
    if state is RESERVED or (state is None and any(tube.reserved for tube in tubes)):
        for client in engine.clients.connected.values():
            queues += _held_by(client)
        if sum(map(len, queues)) < engine.counts.reserved:  # a disconnected client still has some of the jobs
            return None
    if state is not RESERVED:
        for tube in tubes:
            queues += [tube.ready, tube.delayed, tube.buried] if state is None else [_queue(tube, state)]
    return queues or None


def _held_by(client: Client) -> list[KeyHeap]:
    """Return the queues of the jobs that a client has reserved, and of those that it is offered."""
    return [client.deadlines] if client.offers is None else [client.deadlines, client.offers.deadlines]


def _queue(tube: Tube, state: State) -> KeyHeap:
    if state is READY:
        return tube.ready
    return tube.delayed if state is DELAYED else tube.buried
