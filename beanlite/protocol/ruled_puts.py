"""Puts into tubes for which operators have set how many jobs there may be, or that none may be there twice."""

from collections.abc import Callable, Mapping
from typing import Final

from beanlite.core.engine import Engine
from beanlite.core.job import Job
from beanlite.core.rules import MAX_JOBS
from beanlite.protocol import replies
from beanlite.protocol.arguments import Put
from beanlite.protocol.session import Session

Bodies = Mapping[Job, bytes | None]
NO_BODIES: Final[Bodies] = {}


def has_room(engine: Engine, name: bytes, jobs: int, refused: Callable[[str], None]) -> bool:
    """Whether so many jobs more may be put into a tube, which may not exist yet; if not, ``refused`` is told."""
    tube = engine.tubes.get(name)
    rules = engine.policies.rules_of(name) if tube is None else tube.rules
    if rules is None or not rules.max_jobs or (0 if tube is None else tube.jobs) + jobs <= rules.max_jobs:
        return True
    if tube is not None:
        engine.ledger.tally(tube).refused += jobs
    refused(MAX_JOBS)
    return False


def put_by_rules(
    session: Session, line: Put, body: bytes, now_ns: int, late_bodies: Bodies = NO_BODIES
) -> bytes | None:
    """Carry out a put to which the rules of its tube apply, once its body has come and there is room for it."""
    engine, tube = session.engine, session.client.use
    twin, missing = engine.rulings.twin(tube, body, late_bodies, now_ns)
    if twin is not None:
        return replies.inserted(repeat(session, twin))
    if missing is not None:
        if not late_bodies:
            session.aside_bytes = line.size
        session.gather(
            [missing], lambda found, then_ns: _put_late(session, line, body, {**late_bodies, **found}, then_ns)
        )
        return None
    if not has_room(engine, tube.name, 1, session.service.refused):
        return replies.OUT_OF_MEMORY
    session.waits = True
    job = engine.put(session.client, line.pri, line.delay_s, line.ttr_s, body, now_ns)
    return replies.inserted(job.id)


def repeat(session: Session, twin: Job) -> int:
    """Count a put that would repeat a job, and return the id of that job."""
    ledger = session.engine.ledger
    ledger.tally(twin.tube).duplicates += 1
    if not ledger.is_stored(twin.id):
        ledger.hasten(twin)  # that it waits, and in this tube, is what the client relies on
        session.waits = True
    elif ledger.stored_batch < ledger.batch - 1:
        session.waits = True
    return twin.id


def _put_late(session: Session, line: Put, body: bytes, late_bodies: Bodies, now_ns: int) -> bytes | None:
    """Go on with a put whose tube had to be searched for its body."""
    admission = session.engine.admission
    if admission.draining:
        return replies.DRAINING
    if line.size > admission.room_bytes:
        admission.lack_room()
        return replies.OUT_OF_MEMORY
    return put_by_rules(session, line, body, now_ns, late_bodies)
