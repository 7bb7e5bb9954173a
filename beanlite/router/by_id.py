"""Commands about one job: the server is in its id."""

from __future__ import annotations

from collections.abc import Callable

from beanlite.protocol.arguments import parse_bury, parse_id, parse_id_and_size, parse_release
from beanlite.protocol.replies import BAD_FORMAT, NOT_FOUND, UNKNOWN_COMMAND
from beanlite.router.asks import FinishAsk, ReserveJobAsk
from beanlite.router.ids import NUMBER_BITS
from beanlite.router.lane import Ask
from beanlite.router.looks import JobStatsAsk, ShowAsk
from beanlite.router.routed import Routed


def _by_id(session: Routed, job_id: int | None, make: Callable[[int], tuple[bytes, Ask]]) -> bool:
    if job_id is None:
        return session.say(BAD_FORMAT)
    lane = session.lane_of(job_id)
    if lane is None:
        return session.say(NOT_FOUND)
    data, ask = make(job_id >> NUMBER_BITS)
    return session.ask(lane, data, ask)


def delete(session: Routed, args: bytes) -> bool:
    return _by_id(session, parse_id(args), lambda inner: (b"delete %d\r\n" % inner, FinishAsk(inner)))


def release(session: Routed, args: bytes) -> bool:
    given = parse_release(args)
    if given is None:
        return session.say(BAD_FORMAT)
    job_id, pri, delay_s = given
    return _by_id(session, job_id, lambda inner: (b"release %d %d %d\r\n" % (inner, pri, delay_s), FinishAsk(inner)))


def bury(session: Routed, args: bytes) -> bool:
    given = parse_bury(args)
    if given is None:
        return session.say(BAD_FORMAT)
    job_id, pri = given
    return _by_id(session, job_id, lambda inner: (b"bury %d %d\r\n" % (inner, pri), FinishAsk(inner)))


def touch(session: Routed, args: bytes) -> bool:
    return _by_id(session, parse_id(args), lambda inner: (b"touch %d\r\n" % inner, FinishAsk(inner)))


def kick_job(session: Routed, args: bytes) -> bool:
    return _by_id(session, parse_id(args), lambda inner: (b"kick-job %d\r\n" % inner, Ask()))


def reserve_job(session: Routed, args: bytes) -> bool:
    return _by_id(session, parse_id(args), lambda inner: (b"reserve-job %d\r\n" % inner, ReserveJobAsk(inner)))


def peek(session: Routed, args: bytes) -> bool:
    def make(inner: int) -> tuple[bytes, Ask]:
        data = b"peek %d\r\n" % inner
        return data, ShowAsk(data)

    return _by_id(session, parse_id(args), make)


def stats_job(session: Routed, args: bytes) -> bool:
    def make(inner: int) -> tuple[bytes, Ask]:
        data = b"stats-job %d\r\n" % inner
        return data, JobStatsAsk(data)

    return _by_id(session, parse_id(args), make)


def note(session: Routed, args: bytes) -> bool:
    given = parse_id_and_size(args)
    if given is None:
        return session.say(BAD_FORMAT)
    job_id, size = given
    lane, inner = session.lane_of(job_id), job_id >> NUMBER_BITS
    if lane is not None and lane.asks:  # one of the replies may be this job
        return False
    if lane is None or inner not in lane.held:
        # A server takes the router for an operator if it is on the same machine, and an operator leaves notes on any
        # job: so it is asked about none. It is one that has a job of the client: another one may be halted.
        holders = [each for each in session.lanes.values() if each.held]
        lane, inner = lane or (holders[0] if holders else session.home), 0
    if not lane.server.knows_notes:
        return session.say(UNKNOWN_COMMAND)
    ask = FinishAsk(inner)
    if not session.ask(lane, b"note %d %d\r\n" % (inner, size), ask):
        return False
    session.expect_body(ask, lane, size + 2)
    return True
