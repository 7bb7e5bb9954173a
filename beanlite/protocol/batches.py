"""Putting and reserving many jobs at once. ``docs/protocol.md`` describes these commands and their replies."""

from typing import Final

from beanlite.core.admission import PUT_BYTES
from beanlite.core.engine import Engine
from beanlite.core.job import SECOND_NS, SLICE, Job
from beanlite.core.rules import WAITING as WAITING_JOBS
from beanlite.core.ticker import is_deadline_soon
from beanlite.core.tube import Client, Peer, Tube
from beanlite.protocol import replies
from beanlite.protocol.blocked import WAITING, WORKING
from beanlite.protocol.operators.replies import as_json
from beanlite.protocol.operators.requests import PutJobs
from beanlite.protocol.ruled_puts import NO_BODIES, Bodies, has_room, repeat
from beanlite.protocol.session import REPLIES_MAX, Session

DRAINING: Final = "DRAINING"
OUT_OF_MEMORY: Final = "OUT_OF_MEMORY"
# The default ttr of a job, in seconds.
TTR_S: Final = 60
# Tubes looked at by a batch of reserves; each reserve looks at all tubes that the client watches.
LOOKS_MAX: Final = 100 * SLICE
# To look whether a tube is still shut costs as much as to look at so many that are not.
SHUT_LOOKS: Final = 10


def refusal_of_puts(engine: Engine, size: int, jobs: int = 1) -> str | None:
    """Return why jobs whose bodies have this total size can't be put now; None if they can."""
    admission = engine.admission
    if admission.draining:
        return DRAINING
    if size + (jobs - 1) * PUT_BYTES > admission.room_bytes:
        admission.lack_room()
        return OUT_OF_MEMORY
    return None


def on_behalf_of(person: str | None, session: Session) -> Peer:
    """Return the identity with which the client's changes are recorded, including the person that it named, if any.

    A client for whose rights there are rules names nobody else than them.
    """
    peer = session.client.peer
    if session.person:  # which the address has as well
        return Peer(peer.address.partition(" ")[0], peer.number, session.person)
    return peer if person is None or session.rights is not None else Peer(peer.address, peer.number, person)


def acting_in(tube: Tube, by: Peer) -> Client:
    """Return a client to act with in a tube that ``by`` doesn't use; it is not one of the connected clients."""
    return Client(tube, 0, by)


def put_jobs(session: Session, request: PutJobs, now_ns: int) -> bytes | None:
    return _put_jobs(session, request, now_ns, NO_BODIES)


def _put_jobs(session: Session, request: PutJobs, now_ns: int, late_bodies: Bodies) -> bytes | None:
    engine, client = session.engine, session.client
    jobs = [(job.tube or client.use.name, job, job.body or job.base64 or b"") for job in request.jobs]
    if any(len(body) > session.service.max_job_size for _, _, body in jobs):
        return replies.JOB_TOO_BIG
    refusal = refusal_of_puts(engine, sum(len(body) for _, _, body in jobs), len(jobs))
    if refusal is not None:
        return refusal.encode() + replies.END
    new_tubes = {name for name, _, _ in jobs} - engine.tubes.keys()
    tube_refusal = engine.clients.refusal_of_tubes(new_tubes) if new_tubes else None
    if tube_refusal is not None:
        session.service.refused(tube_refusal.value)
        return replies.OUT_OF_MEMORY
    new_jobs, missing = _new_jobs(engine, [(name, body) for name, _, body in jobs], late_bodies, now_ns)
    if missing:
        session.gather(
            missing, lambda found, then_ns: _put_jobs(session, request, then_ns, {**late_bodies, **found}), WORKING
        )
        return None
    if not all(has_room(engine, name, count, session.service.refused) for name, count in new_jobs.items()):
        return replies.OUT_OF_MEMORY
    if jobs and not client.producer:
        engine.clients.becomes_producer(client)
    by = on_behalf_of(request.by, session)
    putting: dict[bytes, Client] = {}
    for name in dict.fromkeys(name for name, _, _ in jobs):  # before any put, which takes of the room for tubes
        tube = engine.clients.tube(name)
        assert isinstance(tube, Tube)
        putting[name] = acting_in(tube, by)
    ids = []
    for name, job, body in jobs:
        twin, _ = engine.rulings.twin(putting[name].use, body, late_bodies, now_ns)
        if twin is not None:
            ids.append(repeat(session, twin))
            continue
        ttr_s = TTR_S if job.ttr_s is None else max(1, job.ttr_s)
        new_job = engine.put(putting[name], job.pri or 0, job.delay_s or 0, ttr_s, body, now_ns)
        ids.append(new_job.id)
    session.waits = session.waits or bool(ids)
    return session.ok_reply(as_json({"ids": ids}))


def _new_jobs(
    engine: Engine, bodies: list[tuple[bytes, bytes]], late_bodies: Bodies, now_ns: int
) -> tuple[dict[bytes, int], list[Job]]:
    """Return how many jobs the bodies make in each tube, and the jobs of which it is not known whether they do."""
    counts: dict[bytes, int] = {}
    missing: dict[Job, None] = {}
    alike: dict[tuple[bytes, bytes], int] = {}
    most = {name: _alike_max(engine, name, len(bodies)) for name in {name for name, _ in bodies}}
    for name, body in bodies:
        tube = engine.tubes.get(name)
        twin, unknown = (None, None) if tube is None else engine.rulings.twin(tube, body, late_bodies, now_ns)
        if unknown is not None:
            missing[unknown] = None
        before = alike.get((name, body), 0)
        if twin is None and before < most[name]:
            alike[name, body] = before + 1
            counts[name] = counts.get(name, 0) + 1
    return counts, list(missing)


def _alike_max(engine: Engine, name: bytes, jobs: int) -> int:
    """Return how many of so many jobs with the same body a tube takes at most; the others repeat one of them."""
    tube = engine.tubes.get(name)
    rules = engine.policies.rules_of(name) if tube is None else tube.rules
    if rules is None or not rules.unique:
        return jobs
    if tube is None or tube.shut or rules.unique != WAITING_JOBS:
        return 1
    # A client that waits gets a job at once, which then does not wait any more.
    free = rules.max_reserved - tube.reserved if rules.max_reserved else len(tube.waiting)
    return 1 + min(free, len(tube.waiting))


def reserve_batch(session: Session, args: tuple[int, int], now_ns: int) -> bytes | None:
    most, timeout_s = args
    return _reserve_until(session, most, now_ns + timeout_s * SECOND_NS, now_ns)


def _reserve_until(session: Session, most: int, until_ns: int, now_ns: int) -> bytes | None:
    client, engine = session.client, session.engine
    if not client.worker:
        engine.clients.becomes_worker(client)
    looks = sum([SHUT_LOOKS if tube.shut else 1 for tube in client.watched])
    jobs = _reserve(session, min(most, max(1, LOOKS_MAX // looks)), now_ns)
    if jobs:
        bodies = {job: job.body for job in jobs}
        missing = [job for job, body in bodies.items() if body is None]
        if not missing:
            return _batch_reply(session, bodies)
        # The other bodies are kept for the reply: they may be unloaded while these are fetched.
        session.gather(
            missing, lambda late, then_ns: _reply_late(session, most, bodies | late, until_ns, then_ns), WORKING
        )
        return None
    if is_deadline_soon(client, now_ns):
        return replies.DEADLINE_SOON
    if until_ns <= now_ns or session.half_closed:
        return replies.TIMED_OUT
    engine.clients.wait(client, until_ns, now_ns)
    session.wait_form = replies.BATCH_OF_ONE
    session.blocked = WAITING
    return None


def _reply_late(
    session: Session, most: int, bodies: dict[Job, bytes | None], until_ns: int, now_ns: int
) -> bytes | None:
    """Reply with the jobs that the client still has; if it has none of them any more, reserve again."""
    return _batch_reply(session, bodies) or _reserve_until(session, most, until_ns, now_ns)


def _reserve(session: Session, most: int, now_ns: int) -> list[Job]:
    jobs: list[Job] = []
    size = 0
    while len(jobs) < most and size <= REPLIES_MAX:
        job = session.engine.reserve(session.client, now_ns)
        if job is None:
            break
        jobs.append(job)
        size += job.size
    return jobs


def _batch_reply(session: Session, bodies: dict[Job, bytes | None]) -> bytes:
    """Make the reply with those of these jobs that the client still has; empty if it has none of them."""
    engine = session.engine
    parts: list[bytes] = []
    for job, body in bodies.items():
        if body is None or not session.still_has(job, body):
            continue
        session.show(job)
        if engine.bodies.ahead:
            engine.bodies.note_delivery(job)
        session.count_bytes(len(body))
        parts.append(replies.with_job(replies.RESERVED, job.id, body))
    return replies.RESERVED_BATCH % len(parts) + b"".join(parts) if parts else b""
