"""What each command does: its arguments read, the engine asked, the reply made.

A command returns its reply, or None if that comes later. When the reply acknowledges a change, which has to be stored
first, it sets ``session.waits``. A put is carried out in protocol, when its body has come.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from beanlite.core.job import ID_MASK, SECOND_NS, SLICE
from beanlite.core.ticker import is_deadline_soon
from beanlite.core.timers import NEVER_NS
from beanlite.protocol import arguments
from beanlite.protocol.stats import job_stats, server_stats, tube_list, tube_stats

if TYPE_CHECKING:
    from beanlite.core.heap import KeyHeap
    from beanlite.protocol.session import Session

# Why a session does not go on to its next command.
WAITING: Final = "waiting in a reserve"
KICKING: Final = "in a kick that goes on in slices"
REPLETE: Final = "has enough replies to read"
YIELDING: Final = "lets others have their turn"
CLOSING: Final = "has said quit, or met a bug of ours"

WATCHED_MANY: Final = 100  # tubes: to look at each takes as long as to let others have their turn

RESERVED: Final = b"RESERVED %d %d\r\n%b\r\n"
FOUND: Final = b"FOUND %d %d\r\n%b\r\n"
BAD_FORMAT: Final = b"BAD_FORMAT\r\n"
UNKNOWN_COMMAND: Final = b"UNKNOWN_COMMAND\r\n"
NOT_FOUND: Final = b"NOT_FOUND\r\n"
DEADLINE_SOON: Final = b"DEADLINE_SOON\r\n"
TIMED_OUT: Final = b"TIMED_OUT\r\n"
INTERNAL_ERROR: Final = b"INTERNAL_ERROR\r\n"


# -- reserving


def reserve(session: Session, _args: bytes, now_ns: int) -> bytes | None:
    session.counters.reserve += 1
    return _reserve_until(session, NEVER_NS, now_ns)


def reserve_with_timeout(session: Session, args: bytes, now_ns: int) -> bytes | None:
    timeout_s = arguments.parse_timeout(args)
    if timeout_s is None:
        return BAD_FORMAT
    session.counters.reserve_with_timeout += 1
    return _reserve_until(session, now_ns + timeout_s * SECOND_NS, now_ns)


def _reserve_until(session: Session, until_ns: int, now_ns: int) -> bytes | None:
    client, engine = session.client, session.engine
    if not client.worker:
        engine.clients.becomes_worker(client)
    if len(client.watched) > WATCHED_MANY:
        session.blocked = YIELDING
    job = engine.reserve(client, now_ns)
    if job is not None:
        return session.job_reply(RESERVED, job)
    if is_deadline_soon(client, now_ns):
        return DEADLINE_SOON
    if until_ns <= now_ns or session.half_closed:
        return TIMED_OUT
    engine.clients.wait(client, until_ns)
    session.blocked = WAITING
    return None


def reserve_job(session: Session, args: bytes, now_ns: int) -> bytes:
    job_id = arguments.parse_id(args)
    if job_id is None:
        return BAD_FORMAT
    job = session.engine.reserve_job(session.client, job_id, now_ns)
    if job is None:
        return NOT_FOUND
    if not session.client.worker:
        session.engine.clients.becomes_worker(session.client)
    return session.job_reply(RESERVED, job)


# -- what is done with a job


def delete(session: Session, args: bytes, _now_ns: int) -> bytes:
    job_id = arguments.parse_id(args)
    if job_id is None:
        return BAD_FORMAT
    session.counters.delete += 1
    if not session.engine.delete(session.client, job_id):
        return NOT_FOUND
    session.waits = True
    return b"DELETED\r\n"


def release(session: Session, args: bytes, now_ns: int) -> bytes:
    given = arguments.parse_release(args)
    if given is None:
        return BAD_FORMAT
    session.counters.release += 1
    job_id, pri, delay_s = given
    if not session.engine.release(session.client, job_id, pri, delay_s, now_ns):
        return NOT_FOUND
    session.waits = True
    return b"RELEASED\r\n"


def bury(session: Session, args: bytes, _now_ns: int) -> bytes:
    given = arguments.parse_bury(args)
    if given is None:
        return BAD_FORMAT
    session.counters.bury += 1
    if not session.engine.bury(session.client, *given):
        return NOT_FOUND
    session.waits = True
    return b"BURIED\r\n"


def touch(session: Session, args: bytes, now_ns: int) -> bytes:
    job_id = arguments.parse_id(args)
    if job_id is None:
        return BAD_FORMAT
    session.counters.touch += 1
    return b"TOUCHED\r\n" if session.engine.touch(session.client, job_id, now_ns) else NOT_FOUND


def kick(session: Session, args: bytes, now_ns: int) -> bytes | None:
    bound = arguments.parse_kick(args)
    if bound is None:
        return BAD_FORMAT
    session.counters.kick += 1
    tube = session.client.use
    session.kick = (tube.buried if tube.buried.keys else tube.delayed, bound, 0)
    go_on_kicking(session, now_ns)
    return None


def go_on_kicking(session: Session, now_ns: int) -> None:
    """Kick a slice; the rest comes when the connection runs the session again, after the others."""
    assert session.kick is not None
    queue, left, done = session.kick
    kicked = session.engine.kick(queue, min(left, SLICE), now_ns)
    done += kicked
    session.waits = True
    if kicked < SLICE or left == SLICE:
        session.kick = session.blocked = None
        session.replies.append(b"KICKED %d\r\n" % done)
    else:
        session.kick = (queue, left - kicked, done)
        session.blocked = KICKING


def kick_job(session: Session, args: bytes, now_ns: int) -> bytes:
    job_id = arguments.parse_id(args)
    if job_id is None:
        return BAD_FORMAT
    if not session.engine.kick_job(job_id, now_ns):
        return NOT_FOUND
    session.waits = True
    return b"KICKED\r\n"


# -- looking


def peek(session: Session, args: bytes, _now_ns: int) -> bytes:
    job_id = arguments.parse_id(args)
    if job_id is None:
        return BAD_FORMAT
    session.counters.peek += 1
    job = session.engine.jobs.find(job_id)
    return NOT_FOUND if job is None else session.job_reply(FOUND, job)


def peek_ready(session: Session, _args: bytes, _now_ns: int) -> bytes:
    session.counters.peek_ready += 1
    return _peek_first(session, session.client.use.ready)


def peek_delayed(session: Session, _args: bytes, _now_ns: int) -> bytes:
    session.counters.peek_delayed += 1
    return _peek_first(session, session.client.use.delayed)


def peek_buried(session: Session, _args: bytes, _now_ns: int) -> bytes:
    session.counters.peek_buried += 1
    return _peek_first(session, session.client.use.buried)


def _peek_first(session: Session, queue: KeyHeap) -> bytes:
    if not queue.keys:
        return NOT_FOUND
    return session.job_reply(FOUND, session.engine.jobs[queue.keys[0] & ID_MASK])


def stats(session: Session, _args: bytes, _now_ns: int) -> bytes:
    session.counters.stats += 1
    service = session.service
    return session.ok_reply(server_stats(session.engine, session.counters, service.facts(), service.max_job_size))


def stats_job(session: Session, args: bytes, now_ns: int) -> bytes:
    job_id = arguments.parse_id(args)
    if job_id is None:
        return BAD_FORMAT
    session.counters.stats_job += 1
    job = session.engine.jobs.find(job_id)
    return NOT_FOUND if job is None else session.ok_reply(job_stats(job, now_ns, journaled=session.service.journaled))


def stats_tube(session: Session, args: bytes, now_ns: int) -> bytes:
    name = arguments.parse_name(args)
    if name is None:
        return BAD_FORMAT
    session.counters.stats_tube += 1
    tube = session.engine.tubes.get(name)
    return NOT_FOUND if tube is None else session.ok_reply(tube_stats(tube, now_ns))


# -- tubes


def use(session: Session, args: bytes, _now_ns: int) -> bytes:
    name = arguments.parse_name(args)
    if name is None:
        return BAD_FORMAT
    session.counters.use += 1
    session.engine.clients.use(session.client, name)
    return b"USING %b\r\n" % name


def watch(session: Session, args: bytes, _now_ns: int) -> bytes:
    name = arguments.parse_name(args)
    if name is None:
        return BAD_FORMAT
    session.counters.watch += 1
    return b"WATCHING %d\r\n" % session.engine.clients.watch(session.client, name)


def ignore(session: Session, args: bytes, _now_ns: int) -> bytes:
    name = arguments.parse_name(args)
    if name is None:
        return BAD_FORMAT
    session.counters.ignore += 1
    watched = session.engine.clients.ignore(session.client, name)
    return b"NOT_IGNORED\r\n" if watched is None else b"WATCHING %d\r\n" % watched


def list_tubes(session: Session, _args: bytes, _now_ns: int) -> bytes:
    session.counters.list_tubes += 1
    return session.ok_reply(tube_list(list(session.engine.tubes)))


def list_tube_used(session: Session, _args: bytes, _now_ns: int) -> bytes:
    session.counters.list_tube_used += 1
    return b"USING %b\r\n" % session.client.use.name


def list_tubes_watched(session: Session, _args: bytes, _now_ns: int) -> bytes:
    session.counters.list_tubes_watched += 1
    return session.ok_reply(tube_list([tube.name for tube in session.client.watched]))


def pause_tube(session: Session, args: bytes, now_ns: int) -> bytes:
    given = arguments.parse_pause(args)
    if given is None:
        return BAD_FORMAT
    session.counters.pause_tube += 1  # the reference looks at the name only then
    name, pause_s = given
    if arguments.parse_name(name) is None:
        return BAD_FORMAT
    if not session.engine.pause(name, pause_s, now_ns):
        return NOT_FOUND
    session.waits = True
    return b"PAUSED\r\n"
