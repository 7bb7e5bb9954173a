"""Which jobs an operator asks for: finding them among all, a slice at a time.

A slice looks at a bounded number of jobs and of bytes, and tells where the next one begins. Nothing is kept in between.
Everything here only reads.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

from beanlite.core.engine import Engine
from beanlite.core.heap import KeyHeap
from beanlite.core.job import DELAYED, ID_MASK, READY, RESERVED, U32_MAX, Job, State
from beanlite.core.tube import Tube

# Jobs looked at in a slice; in the order of a queue fewer, because to walk a heap takes longer.
LOOKS_MAX: Final = 4000
WALKED_MAX: Final = 1000
# How deep into a queue that order is known: each slice passes all those before it.
DEPTH_MAX: Final = 20_000
# Where the jobs that come into question are no more than this, no others are looked at.
FEW_MAX: Final = 10_000
# Bytes of bodies that a slice searches, copies or has fetched; one more body may go beyond. And how much of each body
# is searched.
BYTES_MAX: Final = 2 << 20
SEARCHED_MAX: Final = 1 << 20

_LATEST_NS: Final = (1 << 62) - 1
_EARLIEST_NS: Final = -_LATEST_NS


class TooDeep(Exception):
    """The order of a queue is not known so far from its head."""


class Filter:
    """What is asked of a job: all of this. It has as many attributes as can be asked for."""

    __slots__ = (
        "created_after_ns",
        "created_by_ns",
        "holder",
        "ids",
        "pri_max",
        "pri_min",
        "since_by_ns",
        "state",
        "text",
        "tube",
        "up_to_id",
    )

    def __init__(self, up_to_id: int) -> None:
        """At first each job up to this id fits."""
        self.up_to_id = up_to_id
        self.ids: list[int] | None = None
        """No others."""
        self.tube: Tube | None = None
        self.state: State | None = None
        self.created_after_ns = _EARLIEST_NS
        self.created_by_ns = _LATEST_NS
        self.since_by_ns = _LATEST_NS
        """When it came into its state, at the latest."""
        self.pri_min = 0
        self.pri_max = U32_MAX
        self.holder: int | None = None
        """The number of the connection that has it reserved."""
        self.text: bytes | None = None
        """What its body has in it."""

    def fits(self, job: Job) -> bool:
        """Whether a job is asked for, its body and ``ids`` aside."""
        return (
            (self.tube is None or job.tube is self.tube)
            and (self.state is None or job.state is self.state)
            and self.pri_min <= job.pri <= self.pri_max
            and self.created_after_ns < job.created_ns <= self.created_by_ns
            and job.since_ns <= self.since_by_ns
            and job.id <= self.up_to_id
            and (self.holder is None or (job.holder is not None and job.holder.peer.number == self.holder))
        )

    def fits_body(self, body: bytes) -> bool:
        """Whether a job with this body is."""
        return self.text is None or body.find(self.text, 0, SEARCHED_MAX) >= 0


class Found:
    """What a slice has found."""

    __slots__ = ("bodies", "jobs", "looked", "missing", "next")

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.bodies: dict[Job, bytes] = {}
        """Their bodies, if those are needed and in memory: they may be unloaded while others are fetched."""
        self.missing: list[Job] = []
        """Those of them whose bodies are needed and not in memory: whether they fit is not known yet."""
        self.looked = 0
        """How many jobs have been looked at."""
        self.next: int | None = None
        """The place after which to go on; None: there are no more."""


def find(
    engine: Engine, asked: Filter, after: int, limit: int, *, by_queue: bool = False, need_bodies: bool = False
) -> Found:
    """The next jobs that are asked for, up to ``limit``. ``need_bodies``: whoever asks needs them, too.

    ``after`` is a place: an id or, ``by_queue``, a key, in the order in which jobs leave the queue of their tube and
    state. TooDeep.
    """
    found = Found()
    places, more = _queue_places(asked, after) if by_queue else _id_places(engine, asked, after)
    bytes_left = BYTES_MAX
    searches = asked.text is not None
    for place in places:
        found.looked += 1
        job = engine.jobs.find(place & ID_MASK)
        if job is None or (by_queue and job.key != place) or not asked.fits(job):
            continue
        body = job.body
        if searches or need_bodies:
            bytes_left -= job.size
            if body is None:
                found.missing.append(job)
        if body is None or not searches or asked.fits_body(body):
            found.jobs.append(job)
            if need_bodies and body is not None:
                found.bodies[job] = body
        if len(found.jobs) == limit or bytes_left <= 0:
            more = more or place != places[-1]
            break
    found.next = places[found.looked - 1] if more and places else None
    return found


def _queue_places(asked: Filter, after: int) -> tuple[list[int], bool]:
    """The next keys of a queue, and whether there may be more."""
    assert asked.tube is not None
    assert asked.state is not None
    keys = _queue(asked.tube, asked.state).after(after, WALKED_MAX, DEPTH_MAX)
    if keys is None:
        raise TooDeep
    return keys, len(keys) == WALKED_MAX


def _id_places(engine: Engine, asked: Filter, after: int) -> tuple[list[int], bool]:
    """The next ids that come into question, and whether there may be more."""
    ids = _few_ids(engine, asked)
    if ids is None:
        ids = engine.jobs.ids_after(after, LOOKS_MAX)
        more = len(ids) == LOOKS_MAX
    else:
        ids = ids[bisect_right(ids, after) :]
        more = len(ids) > LOOKS_MAX
        ids = ids[:LOOKS_MAX]
    if ids and ids[-1] > asked.up_to_id:
        return ids[: bisect_right(ids, asked.up_to_id)], False
    return ids, more


def _few_ids(engine: Engine, asked: Filter) -> list[int] | None:
    """The ids of all jobs that come into question, rising; None if these are too many to gather them."""
    if asked.ids is not None:
        return sorted(set(asked.ids))
    queues = _few_queues(engine, asked)
    if queues is None or sum(len(queue.keys) for queue in queues) > FEW_MAX:
        return None
    return sorted({key & ID_MASK for queue in queues for key in queue.keys})


def _few_queues(engine: Engine, asked: Filter) -> list[KeyHeap] | None:
    """The queues outside of which no job comes into question; None: any may."""
    tube, state = asked.tube, asked.state
    if asked.holder is not None:
        client = engine.clients.connected.get(asked.holder)
        return [] if client is None else [client.deadlines]
    queues: list[KeyHeap] = []
    if state is RESERVED or (tube is not None and state is None and tube.reserved):
        queues += [client.deadlines for client in engine.clients.connected.values()]
        if sum(map(len, queues)) < engine.counts.reserved:  # some are still those of a client that has gone
            return None
    if tube is not None and state is not RESERVED:
        queues += [tube.ready, tube.delayed, tube.buried] if state is None else [_queue(tube, state)]
    return queues or None


def _queue(tube: Tube, state: State) -> KeyHeap:
    if state is READY:
        return tube.ready
    return tube.delayed if state is DELAYED else tube.buried
