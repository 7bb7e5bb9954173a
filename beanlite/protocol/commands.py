"""What each command does; ``command_table`` lists them all.

A command's function takes the session, the parsed arguments and the time. It returns the reply, or None if the reply
comes later. If the reply acknowledges a change, which has to be stored first, the function sets ``session.waits``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from beanlite.core.access import WORKER
from beanlite.core.clients import Refusal
from beanlite.core.heap import KeyHeap
from beanlite.core.job import ID_BITS, ID_MASK, SECOND_NS, Job
from beanlite.core.ledger import BYTES_AT_ONCE
from beanlite.core.queues import Outcome
from beanlite.core.snapshot import job_snapshot, server_snapshot, tube_snapshot
from beanlite.core.ticker import is_deadline_soon
from beanlite.core.timers import NEVER_NS
from beanlite.core.tube import is_tube_name
from beanlite.protocol import replies
from beanlite.protocol.arguments import Put
from beanlite.protocol.blocked import KICKING, WAITING, WORKING, YIELDING
from beanlite.protocol.noting import NoteLine, finish_note
from beanlite.protocol.operators.commands import finish_request
from beanlite.protocol.ruled_puts import put_by_rules
from beanlite.protocol.session import Session
from beanlite.protocol.stats import job_stats, server_stats, tube_list, tube_stats

WATCHED_MANY: Final = 100  # tubes; a reserve that has to look at more takes long
# Commands that change nothing, whose replies hold no bodies, and that have to wait for their turn, with all after them.
LOOKS: Final = frozenset({b"stats", b"stats-job", b"stats-tube", b"list-tubes", b"list-tubes-watched"})

_Peek = Callable[[Session, bytes, int], bytes | None]


# -- putting


def put(session: Session, line: Put, _now_ns: int) -> bytes | None:
    """Carry out the line of a put. The body follows even if the put is refused."""
    engine = session.engine
    if line.size > session.service.max_job_size:
        session.refuse(line, replies.JOB_TOO_BIG)
        return None
    if not line.ends_well:
        return replies.BAD_FORMAT
    if not session.client.producer:
        engine.clients.becomes_producer(session.client)
    admission = engine.admission
    if line.size > admission.room_bytes and not admission.draining:
        admission.lack_room()
        session.refuse(line, replies.OUT_OF_MEMORY)
        return None
    session.put = line
    return None


def finish_put(session: Session, line: Put, body: bytes | None, now_ns: int) -> bytes | None:
    """Carry out a put, a request or a note, whose body has come. ``body`` is None if CR LF does not follow it."""
    session.put = None
    if line.is_request:
        return (
            finish_note(session, line, body, now_ns)
            if isinstance(line, NoteLine)
            else finish_request(session, line, body)
        )
    if body is None:
        return replies.EXPECTED_CRLF
    engine = session.engine
    admission = engine.admission
    if admission.draining:
        return replies.DRAINING
    if line.size > admission.room_bytes:  # there was room when the line came
        admission.lack_room()
        return replies.OUT_OF_MEMORY
    rules = session.client.use.rules
    if rules is not None and rules.checks_puts:
        return put_by_rules(session, line, body, now_ns)
    session.waits = True
    job = engine.put(session.client, line.pri, line.delay_s, line.ttr_s, body, now_ns)
    return replies.inserted(job.id)


# -- reserving


def reserve(session: Session, _none: bytes, now_ns: int) -> bytes | None:
    return _reserve_until(session, replies.RESERVED, NEVER_NS, now_ns)


def reserve_with_timeout(session: Session, timeout_s: int, now_ns: int) -> bytes | None:
    return _reserve_until(session, replies.RESERVED, now_ns + timeout_s * SECOND_NS, now_ns)


def _reserve_until(session: Session, form: bytes, until_ns: int, now_ns: int, *, in_turn: bool = False) -> bytes | None:
    client, engine = session.client, session.engine
    if not client.worker:
        engine.clients.becomes_worker(client)
    if len(client.watched) > WATCHED_MANY and not in_turn:
        session.set_aside(_reserve_in_turn, (form, until_ns), WORKING)
        return None
    job = engine.reserve(client, now_ns)
    if job is not None:
        body = job.body
        if body is not None:
            return session.job_reply(form, job, body)
        _fetch_reserved(session, form, job, until_ns)
        return None
    if is_deadline_soon(client, now_ns):
        return replies.DEADLINE_SOON
    if until_ns <= now_ns or session.half_closed:
        return replies.TIMED_OUT
    engine.clients.wait(client, until_ns, now_ns)
    session.wait_form = form
    session.blocked = WAITING
    return None


def _reserve_in_turn(session: Session, asked: tuple[bytes, int], now_ns: int) -> bytes | None:
    form, until_ns = asked
    return _reserve_until(session, form, until_ns, now_ns, in_turn=True)


def end_wait(session: Session, outcome: Job | Outcome) -> None:
    """Answer the reserve for which a client waits."""
    session.blocked = None
    form = session.wait_form
    if not isinstance(outcome, Job):
        session.replies.append(replies.DEADLINE_SOON if outcome is Outcome.DEADLINE_SOON else replies.TIMED_OUT)
    elif outcome.body is None:
        _fetch_reserved(session, form, outcome, session.client.wait_until_ns)
    else:
        session.replies.append(session.job_reply(form, outcome, outcome.body))


def _fetch_reserved(session: Session, form: bytes, job: Job, until_ns: int) -> None:
    """Have the body of a job fetched that the client has been given by a reserve, which may last until ``until_ns``."""
    session.gather([job], lambda bodies, now_ns: _tell_fetched(session, form, job, bodies[job], until_ns, now_ns))


def _tell_fetched(
    session: Session, form: bytes, job: Job, body: bytes | None, until_ns: int, now_ns: int
) -> bytes | None:
    """Reply with a job whose body was fetched; if the client no longer has the job, reserve again."""
    if body is not None and session.still_has(job, body):
        return session.job_reply(form, job, body)
    return _reserve_until(session, form, until_ns, now_ns)


def reserve_job(session: Session, job_id: int, now_ns: int) -> bytes | None:
    job = session.engine.reserve_job(session.client, job_id, now_ns)
    if job is None:
        return replies.NOT_FOUND
    if not session.client.worker:
        session.engine.clients.becomes_worker(session.client)
    body = job.body
    if body is not None:
        return session.job_reply(replies.RESERVED, job, body)
    session.gather([job], lambda bodies, then_ns: _tell_fetched_job(session, job, bodies[job], then_ns))
    return None


def _tell_fetched_job(session: Session, job: Job, body: bytes | None, now_ns: int) -> bytes | None:
    """Reply with a job whose body was fetched; if the client no longer has the job, try again to reserve it."""
    if body is not None and session.still_has(job, body):
        return session.job_reply(replies.RESERVED, job, body)
    if not session.may_with(WORKER, job):  # it has been moved since
        return replies.NOT_FOUND
    return reserve_job(session, job.id, now_ns)


# -- changing jobs


def delete(session: Session, job_id: int, now_ns: int) -> bytes:
    if not session.engine.delete(session.client, job_id, now_ns):
        return replies.NOT_FOUND
    session.waits = True
    if session.engine.ledger.event_bytes >= BYTES_AT_ONCE:
        session.blocked = YIELDING  # the line was short, but the body that the history keeps was not
    return replies.DELETED


def release(session: Session, line: tuple[int, int, int], now_ns: int) -> bytes:
    job_id, pri, delay_s = line
    if not session.engine.release(session.client, job_id, pri, delay_s, now_ns):
        return replies.NOT_FOUND
    session.waits = True
    return replies.RELEASED


def bury(session: Session, line: tuple[int, int], now_ns: int) -> bytes:
    job_id, pri = line
    if not session.engine.bury(session.client, job_id, pri, now_ns):
        return replies.NOT_FOUND
    session.waits = True
    return replies.BURIED


def touch(session: Session, job_id: int, now_ns: int) -> bytes:
    return replies.TOUCHED if session.engine.touch(session.client, job_id, now_ns) else replies.NOT_FOUND


def kick(session: Session, bound: int, now_ns: int) -> bytes | None:
    if min(bound, len(_kicked_queue(session).keys)) > 1:  # its line does not tell what it costs
        session.set_aside(_begin_kick, bound, WORKING)
        return None
    return _begin_kick(session, bound, now_ns)


def _begin_kick(session: Session, bound: int, now_ns: int) -> bytes | None:
    """Begin to kick as many jobs as there are now: those that come back between the slices are no part of it.

    No job that is buried from now on is kicked. Of delayed jobs only the number is kept: one that comes meanwhile, and
    is due before others, is kicked instead of the last of them.
    """
    queue = _kicked_queue(session)
    last_key = NEVER_NS << ID_BITS
    if queue is session.client.use.buried:
        last_key = session.engine.counts.burials << ID_BITS | ID_MASK
    session.kick = (queue, min(bound, len(queue)), last_key, 0)
    resume_kick(session, now_ns)
    return None


def _kicked_queue(session: Session) -> KeyHeap:
    tube = session.client.use
    return tube.buried if tube.buried.keys else tube.delayed


def resume_kick(session: Session, now_ns: int) -> None:
    """Kick a slice of the jobs. The rest follow when the session is resumed, after others have had their turn."""
    assert session.kick is not None
    queue, left, last_key, done = session.kick
    kicked = session.engine.kick(session.client, queue, left, last_key, now_ns)
    done += kicked
    session.waits = True
    if not kicked or kicked == left:
        session.kick = session.blocked = None
        session.replies.append(replies.KICKED % done)
    else:
        session.kick = (queue, left - kicked, last_key, done)
        session.blocked = KICKING


def kick_job(session: Session, job_id: int, now_ns: int) -> bytes:
    if not session.engine.kick_job(session.client, job_id, now_ns):
        return replies.NOT_FOUND
    session.waits = True
    return replies.KICKED_JOB


# -- looking


def peek(session: Session, job_id: int, _now_ns: int) -> bytes | None:
    job = session.engine.jobs.find(job_id)
    return replies.NOT_FOUND if job is None else _tell_found(session, job, None)


def peek_ready(session: Session, _none: bytes, _now_ns: int) -> bytes | None:
    return _peek_first(session, session.client.use.ready, peek_ready)


def peek_delayed(session: Session, _none: bytes, _now_ns: int) -> bytes | None:
    return _peek_first(session, session.client.use.delayed, peek_delayed)


def peek_buried(session: Session, _none: bytes, _now_ns: int) -> bytes | None:
    return _peek_first(session, session.client.use.buried, peek_buried)


def _peek_first(session: Session, queue: KeyHeap, again: _Peek) -> bytes | None:
    if not queue.keys:
        return replies.NOT_FOUND
    job = session.engine.jobs[queue.keys[0] & ID_MASK]
    return _tell_found(session, job, again)


def _tell_found(session: Session, job: Job, again: _Peek | None) -> bytes | None:
    """Reply with a job. If it is gone when its body has been fetched, peek ``again``: there may be another one."""
    body = job.body
    if body is not None:
        return session.job_reply(replies.FOUND, job, body)
    session.gather([job], lambda bodies, now_ns: _tell_fetched_found(session, job, bodies[job], again, now_ns))
    return None


def _tell_fetched_found(
    session: Session, job: Job, body: bytes | None, again: _Peek | None, now_ns: int
) -> bytes | None:
    if body is not None:
        return session.job_reply(replies.FOUND, job, body)
    return replies.NOT_FOUND if again is None else again(session, b"", now_ns)


def stats(session: Session, _none: bytes, _now_ns: int) -> bytes:
    service = session.service
    counts = [(f"cmd-{command.word.decode()}", command.count) for command in service.commands if command.in_stats]
    server = server_snapshot(session.engine)
    return session.ok_reply(server_stats(server, counts, service.facts(), service.max_job_size))


def stats_job(session: Session, job_id: int, now_ns: int) -> bytes:
    job = session.engine.jobs.find(job_id)
    if job is None:
        return replies.NOT_FOUND
    session.show(job)
    return session.ok_reply(job_stats(job_snapshot(job, now_ns), journaled=session.service.journaled))


def stats_tube(session: Session, name: bytes, now_ns: int) -> bytes:
    tube = session.engine.tubes.get(name)
    if tube is None:
        return replies.NOT_FOUND
    values = None if tube.rules is None else tube.rules.values
    return session.ok_reply(tube_stats(tube_snapshot(tube, now_ns), values))


# -- tubes


def use(session: Session, name: bytes, _now_ns: int) -> bytes:
    refusal = session.engine.clients.use(session.client, name)
    return replies.USING + name + replies.END if refusal is None else _refuse(session, refusal)


def watch(session: Session, name: bytes, _now_ns: int) -> bytes:
    watched = session.engine.clients.watch(session.client, name)
    return replies.WATCHING % watched if isinstance(watched, int) else _refuse(session, watched)


def _refuse(session: Session, refusal: Refusal) -> bytes:
    session.service.refused(refusal.value)
    return replies.OUT_OF_MEMORY


def ignore(session: Session, name: bytes, _now_ns: int) -> bytes:
    watched = session.engine.clients.ignore(session.client, name)
    return replies.NOT_IGNORED if watched is None else replies.WATCHING % watched


def list_tubes(session: Session, _none: bytes, _now_ns: int) -> bytes:
    return session.ok_reply(tube_list(list(session.engine.tubes)))


def list_tube_used(session: Session, _none: bytes, _now_ns: int) -> bytes:
    return replies.USING + session.client.use.name + replies.END


def list_tubes_watched(session: Session, _none: bytes, _now_ns: int) -> bytes:
    return session.ok_reply(tube_list([tube.name for tube in session.client.watched]))


def name(session: Session, claim: str, _now_ns: int) -> bytes:
    session.engine.clients.call(session.client, claim)
    return replies.NAMED


def pause_tube(session: Session, line: tuple[bytes, int], now_ns: int) -> bytes:
    name, pause_s = line
    if not is_tube_name(name):  # the reference counts the command before it looks at the name
        return replies.BAD_FORMAT
    if not session.engine.pause(session.client.peer, name, pause_s, now_ns):
        return replies.NOT_FOUND
    session.waits = True
    return replies.PAUSED
