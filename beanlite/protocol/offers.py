"""The commands of a client that joins several servers: it is offered a job, which it then takes or declines.

``docs/protocol.md`` describes them.
"""

from __future__ import annotations

from beanlite.core.job import SECOND_NS, Job
from beanlite.core.queues import Outcome
from beanlite.core.ticker import is_deadline_soon
from beanlite.protocol import replies
from beanlite.protocol.blocked import WAITING, WORKING
from beanlite.protocol.commands import WATCHED_MANY, end_wait as end_other_wait
from beanlite.protocol.session import Session


def offer(session: Session, timeout_s: int, now_ns: int) -> bytes | None:
    return _offer_until(session, now_ns + timeout_s * SECOND_NS, now_ns)


def _offer_until(session: Session, until_ns: int, now_ns: int, *, in_turn: bool = False) -> bytes | None:
    # As commands._reserve_until, which every worker's reserve passes through, so that no question is asked there.
    client, engine = session.client, session.engine
    if not client.worker:
        engine.clients.becomes_worker(client)
    if len(client.watched) > WATCHED_MANY and not in_turn:
        session.set_aside(_offer_in_turn, until_ns, WORKING)
        return None
    job = engine.offering.offer(client, now_ns)
    if job is not None:
        return _tell(session, job, until_ns)
    if is_deadline_soon(client, now_ns):
        return replies.DEADLINE_SOON
    if until_ns <= now_ns or session.half_closed:
        return replies.TIMED_OUT
    engine.clients.wait(client, until_ns, now_ns, for_offer=True)
    session.wait_form = replies.OFFERED
    session.blocked = WAITING
    return None


def _offer_in_turn(session: Session, until_ns: int, now_ns: int) -> bytes | None:
    return _offer_until(session, until_ns, now_ns, in_turn=True)


def end_wait(session: Session, outcome: Job | Outcome) -> None:
    """Answer the reserve or the offer for which a client waits."""
    if session.wait_form is not replies.OFFERED or not isinstance(outcome, Job):
        end_other_wait(session, outcome)
        return
    session.blocked = None
    answer = _tell(session, outcome, session.client.wait_until_ns)
    if answer is not None:
        session.replies.append(answer)


def waits_for_offer(session: Session) -> bool:
    """Whether the client waits for an offer, which anything that it sends ends, unless the offer is on its way."""
    return session.blocked is WAITING and session.client.waiting and session.client.waits_for_offer


def stop_waiting(session: Session) -> None:
    """Answer an offer for which the client waits, as it has sent something else."""
    session.engine.clients.stop_waiting(session.client)
    session.blocked = None
    session.replies.append(replies.TIMED_OUT)


def _tell(session: Session, job: Job, until_ns: int) -> bytes | None:
    body = job.body
    if body is not None:
        return session.job_reply(replies.OFFERED, job, body)
    session.gather([job], lambda bodies, now_ns: _tell_fetched(session, job, bodies[job], until_ns, now_ns))
    return None


def _tell_fetched(session: Session, job: Job, body: bytes | None, until_ns: int, now_ns: int) -> bytes | None:
    """Reply with a job whose body was fetched; if it is not offered to the client any more, offer another one."""
    if body is not None:
        session.engine.bodies.load(job, body)
        if job.holder is not None and job.holder is session.client.offers:
            return session.job_reply(replies.OFFERED, job, body)
    return _offer_until(session, until_ns, now_ns)


def take(session: Session, job_id: int, now_ns: int) -> bytes:
    return replies.TAKEN if session.engine.offering.take(session.client, job_id, now_ns) else replies.NOT_FOUND


def decline(session: Session, job_id: int, now_ns: int) -> bytes:
    return replies.DECLINED if session.engine.offering.decline(session.client, job_id, now_ns) else replies.NOT_FOUND
