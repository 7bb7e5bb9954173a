"""Operators' commands that look at jobs, tubes and clients. ``docs/protocol.md`` describes them and their replies."""

from base64 import b64encode
from bisect import bisect_right
from collections.abc import Callable, Mapping
from functools import partial
from heapq import nlargest, nsmallest
from operator import attrgetter
from typing import Any, Final

from beanlite.core.access import ALL_TUBES, READER
from beanlite.core.engine import Engine
from beanlite.core.heap import KeyHeap
from beanlite.core.job import GONE, ID_BITS, ID_MASK, SECOND_NS, Job
from beanlite.core.like import Like, tubes_at_once
from beanlite.core.notes import first_line
from beanlite.core.operator_find import LOOKS_MAX, Filter, Matches, find
from beanlite.core.snapshot import HOLDS_MAX, client_snapshot, first_s
from beanlite.core.tube import DUE_MAX, Client, Tube
from beanlite.core.where import Paths
from beanlite.protocol import replies
from beanlite.protocol.blocked import LOOKING
from beanlite.protocol.operators.replies import Record, as_json, client_record, cursor, job_record, tube_record
from beanlite.protocol.operators.requests import GROUPED_MAX, GroupJobs, ListClients, ListJobs, ListTubeStats, Selection
from beanlite.protocol.session import Session

# How many records a reply has by default.
LIMIT: Final = 100
# Tubes looked at in a slice.
TUBES_LOOKED_AT: Final = 5000
# A slice of clients ends with the one that brings it beyond this many names of watched tubes, and jobs looked at.
CLIENT_FACTS_MAX: Final = 4000

_BEFORE_ALL: Final = -1  # smaller than any id or key


def filter_of(session: Session, role: str, request: Selection, now_ns: int) -> Filter:
    """Return the filter of a request, which leaves out jobs that were put after its first slice.

    It also leaves out jobs of tubes on which the client does not have the role.
    """
    last_id = session.engine.last_id if request.after is None else request.bound
    now_s = session.service.utc_s(now_ns)
    return Filter(session.engine, last_id, now_ns, now_s, request.criteria(), permits_for(session, role))


def permits_for(session: Session, role: str) -> Callable[[bytes], bool] | None:
    """Return what says whether the client has a role on a tube; None if it has on all."""
    rights = session.rights
    return None if rights is None or rights.may(role, ALL_TUBES) else partial(rights.may, role)


def place_of(request: Selection) -> int:
    """Return the place after which a slice begins."""
    return _BEFORE_ALL if request.place is None else request.place


def list_jobs(session: Session, request: ListJobs, now_ns: int) -> bytes | None:
    engine = session.engine
    conditions = filter_of(session, READER, request, now_ns)
    last_id = engine.last_id
    paths = None if request.paths is None else Paths(request.paths)
    conditions.parses = conditions.parses or paths is not None
    matches = find(
        engine,
        conditions,
        place_of(request),
        request.limit or LIMIT,
        by_queue=request.order == "queue",
        need_bodies=bool(request.preview) or paths is not None,
    )

    def reply(late_bodies: dict[Job, bytes | None], then_ns: int) -> bytes:
        jobs = [
            _record(session, job, late_bodies.get(job) or matches.bodies.get(job, b""), request, paths, then_ns)
            for job in matches.jobs
            if not late_bodies or still_fits(conditions, job, late_bodies)
        ]
        next_one = cursor(matches.next, conditions.up_to_id)
        looks = looked(session, matches)
        return session.ok_reply(as_json({"jobs": jobs, "next": next_one, "looked": looks, "last_id": last_id}))

    if matches.missing:
        session.gather(matches.missing, reply, LOOKING)
        return None
    return reply({}, now_ns)


def looked(session: Session, matches: Matches) -> int:
    """Return how many jobs a slice has looked at: for a limited client only those that match, lest it counts others."""
    return matches.looks if session.rights is None else len(matches.jobs)


def still_fits(conditions: Filter, job: Job, late_bodies: dict[Job, bytes | None]) -> bool:
    """Whether a job that was found still fits, now that the missing bodies have been fetched."""
    if job.state is GONE or not conditions.fits(job):
        return False
    body = late_bodies.get(job, b"")
    return job not in late_bodies or (body is not None and conditions.fits_body(body))


def _record(session: Session, job: Job, body: bytes, request: ListJobs, paths: Paths | None, now_ns: int) -> Record:
    # Without ``session.show``: operators have to see something even while a commit can't be carried out.
    record = job_record(job, now_ns, session.service.utc_s)
    if request.preview:
        record["preview"] = body[: request.preview].decode(errors="replace")
    if request.notes:
        record["note"] = first_line(session.engine.notes.text(job)) or None
    if paths is not None:
        record["values"] = paths.values(body)
    return record


def group_jobs(session: Session, request: GroupJobs, now_ns: int) -> bytes | None:
    engine = session.engine
    conditions = filter_of(session, READER, request, now_ns)
    path = None if request.path is None else Paths([request.path])
    conditions.parses = conditions.parses or path is not None
    limit = LOOKS_MAX if path is None and request.fact != "note" else GROUPED_MAX
    matches = find(engine, conditions, place_of(request), limit, need_bodies=path is not None)

    def reply(late_bodies: dict[Job, bytes | None], _then_ns: int) -> bytes:
        groups: dict[str | None, int] = {}
        for job in matches.jobs:
            if late_bodies and not still_fits(conditions, job, late_bodies):
                continue
            if path is None:
                value = _fact(session, job, request.fact or "")
            else:
                value = path.values(late_bodies.get(job) or matches.bodies.get(job, b""))[0]
            groups[value] = groups.get(value, 0) + 1
        rows = [[value, jobs] for value, jobs in groups.items()]
        next_one = cursor(matches.next, conditions.up_to_id)
        return session.ok_reply(as_json({"groups": rows, "next": next_one, "looked": looked(session, matches)}))

    if matches.missing:
        session.gather(matches.missing, reply, LOOKING)
        return None
    return reply({}, now_ns)


def _fact(session: Session, job: Job, fact: str) -> str | None:
    """Return what a job is grouped by."""
    if fact == "tube":
        return job.tube.name.decode()
    if fact == "note":
        note = session.engine.notes.text(job)
        return first_line(note) or None if note else None
    return job.why if fact == "why" else job.shown_state.value


def show_job(session: Session, job_id: int, now_ns: int) -> bytes | None:
    engine = session.engine
    job = engine.jobs.find(job_id)
    if job is None:
        return replies.NOT_FOUND
    target = job

    def reply(late_bodies: dict[Job, bytes | None], then_ns: int) -> bytes:
        body = late_bodies.get(target, target.body)
        if body is None or target.state is GONE or not session.may_with(READER, target):
            return replies.NOT_FOUND
        session.show(target)
        record = job_record(target, then_ns, session.service.utc_s)
        note = engine.notes.text(target).decode() or None
        return session.ok_reply(as_json({**record, "note": note, "body": b64encode(body).decode()}))

    if job.body is None:
        session.gather([job], reply, LOOKING)
        return None
    return reply({}, now_ns)


# -- tubes


def list_tube_stats(session: Session, request: ListTubeStats, now_ns: int) -> bytes:
    engine = session.engine
    permits = permits_for(session, READER)
    if request.names is None:
        tubes = engine.tubes_in_order()
    else:  # without those that are not permitted, so that their number does not tell which of them there are
        names = [name for name in request.names if permits is None or permits(name)]
        tubes = sorted({engine.tubes[name] for name in names if name in engine.tubes}, key=_serial)
    first = 0 if request.place is None else bisect_right(tubes, request.place, key=_serial)
    like = None if request.like is None else Like(request.like)
    tubes_of_slice = tubes_at_once(tubes, first, TUBES_LOOKED_AT, like)
    matches = tubes_of_slice
    if permits is not None:
        matches = [tube for tube in matches if permits(tube.name)]
    if like is not None:
        matches = [tube for tube in matches if like.fits(tube.name)]
    limit = request.limit or LIMIT
    if request.only is not None:
        limit = len(matches)
    elif request.order is not None:
        matches = _first(engine, matches, request.order, limit, now_ns)
    dues: list[int] = []
    if request.due_s is not None:
        dues = _dues(matches[:limit], now_ns + request.due_s * SECOND_NS)
        limit = len(dues)
    if len(matches) > limit:
        matches = matches[:limit]
        tubes_of_slice = tubes_of_slice[: bisect_right(tubes_of_slice, matches[-1].serial, key=_serial)]
    more = first + len(tubes_of_slice) < len(tubes)
    records: list[Any]
    if request.only is None:
        records = [tube_record(engine, tube, session.client, now_ns) for tube in matches]
        for at, due in enumerate(dues):
            records[at]["due"] = due
    else:
        records = list(zip(*[_facts(engine, matches, fact, now_ns) for fact in request.only], strict=True))
    reply: Record = {
        "tubes": records,
        "next": cursor(tubes_of_slice[-1].serial, 0) if more else None,
        "looked": len(tubes_of_slice),
    }
    return session.ok_reply(as_json(reply))


_serial: Final = attrgetter("serial")


def _first(engine: Engine, tubes: list[Tube], order: str, limit: int, now_ns: int) -> list[Tube]:
    """Return the first ``limit`` tubes by name, or those with the largest numbers of ``order``, largest first."""
    if order == "name":
        return nsmallest(limit, tubes, key=attrgetter("name"))

    def number(tube: Tube) -> int:
        if order == "first_ready_s" or order == "first_buried_s":  # noqa: PLR1714 - compiled it makes no tuple
            seconds = first_s(engine, tube.ready if order == "first_ready_s" else tube.buried, now_ns)
            return -1 if seconds is None else seconds
        facts: int | KeyHeap | Mapping[Client, None] = getattr(tube, order)
        return facts if isinstance(facts, int) else len(facts)

    return nlargest(limit, tubes, key=number)


def _dues(tubes: list[Tube], until_ns: int) -> list[int]:
    """Return how many jobs of each tube have a delay that ends by then, for as many tubes as a slice has time for."""
    dues: list[int] = []
    looks = 0
    for tube in tubes:
        dues.append(tube.delayed.about_up_to(until_ns << ID_BITS | ID_MASK, DUE_MAX))
        looks += dues[-1]
        if looks >= DUE_MAX:
            break
    return dues


def _facts(engine: Engine, tubes: list[Tube], fact: str, now_ns: int) -> list[Any]:
    """Return one fact about each tube: done fact by fact, because there are many tubes."""
    if fact == "name":
        return [tube.name.decode() for tube in tubes]
    if fact == "first_ready_s":
        return [first_s(engine, tube.ready, now_ns) for tube in tubes]
    if fact == "first_buried_s":
        return [first_s(engine, tube.buried, now_ns) for tube in tubes]
    facts = list(map(attrgetter(fact), tubes))
    return facts if not facts or isinstance(facts[0], int) else list(map(len, facts))


# -- clients


def list_clients(session: Session, request: ListClients, now_ns: int) -> bytes:
    engine, service = session.engine, session.service
    connected = engine.clients.connected
    numbers = list(connected)
    first = 0 if request.place is None else bisect_right(numbers, request.place)
    clients: list[Record] = []
    permits = permits_for(session, READER)
    last = first
    facts = 0
    for number in numbers[first : first + (request.limit or LIMIT)]:
        client = connected[number]
        last += 1
        facts += len(client.watched) + min(len(client.deadlines), HOLDS_MAX)
        if permits is None or _concerns(client, permits) or client is session.client:
            facts_of_client = client_snapshot(engine, client, now_ns)
            record = client_record(
                facts_of_client,
                service.buffered(client),
                service.contact_of(client),
                now_ns,
                asks=client is session.client,
            )
            clients.append(record if permits is None else _without_others(record, client, permits))
        if facts > CLIENT_FACTS_MAX:
            break
    next_one = cursor(numbers[last - 1], 0) if last < len(numbers) else None
    return session.ok_reply(as_json({"clients": clients, "next": next_one}))


def _concerns(client: Client, permits: Callable[[bytes], bool]) -> bool:
    """Whether a client uses or watches a tube that the one that asks may look at."""
    return permits(client.use.name) or any(permits(tube.name) for tube in client.watched)


def _without_others(record: Record, client: Client, permits: Callable[[bytes], bool]) -> Record:
    """Describe a client without the names of other tubes."""
    return {
        **record,
        "uses": client.use.name.decode() if permits(client.use.name) else None,
        "watches": [tube.name.decode() for tube in client.watched if permits(tube.name)],
    }
