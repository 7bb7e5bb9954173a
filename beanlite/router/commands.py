"""What each command of a client does: which servers it goes to, and how. ``by_id`` and ``fanned`` have some of them.

A command's function takes the session and the arguments, and returns False if it has to wait for replies to earlier
commands; it is then called again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from beanlite.protocol.arguments import parse_claim, parse_kick, parse_name, parse_put, parse_timeout
from beanlite.protocol.replies import (
    BAD_FORMAT,
    JOB_TOO_BIG,
    NAMED,
    NOT_IGNORED,
    UNAUTHORIZED,
    UNKNOWN_COMMAND,
    USING,
    WATCHING,
)
from beanlite.router.any_wait import NEVER_S
from beanlite.router.asks import (
    AuthAsk,
    LargestBodyAsk,
    NameAsk,
    PutAsk,
    ReserveAsk,
    SwitchAsk,
    UseAsk,
    WatchAsk,
)
from beanlite.router.by_id import bury, delete, kick_job, note, peek, release, reserve_job, stats_job, touch
from beanlite.router.fanned import list_tubes, pause_tube, stats, stats_tube
from beanlite.router.joint import KickBothAsk, PeekBothAsk
from beanlite.router.lane import AUTH, CLOSED, Ask, InternalAsk, Lane
from beanlite.router.looks import LookAsk, TubeAsk
from beanlite.router.routed import Routed
from beanlite.router.sums import merged_tubes
from beanlite.router.wait import Wait

Function = Callable[[Routed, bytes], bool]

# A client can't make the router watch more tubes than this for it, even while their servers are away.
WATCHED_MAX: Final = 10_000
# Each server refuses and counts it, and takes nothing behind it for its body.
_BAD_PUT: Final = b"put 0 0 0 0 x\r\n"


# -- putting, and the tube that is used


def put(session: Routed, args: bytes) -> bool:
    line = parse_put(args)
    if line is None:
        return session.say(BAD_FORMAT)
    lane = session.home
    if not session.may_ask(lane) or not _is_used(session, lane):
        return False
    ask = PutAsk()
    if not line.ends_well:  # the body of such a put is skipped only if it is too large
        if lane.server.max_job_size is None:
            session.barrier = question = LargestBodyAsk(session)
            lane.send(b"stats\r\n", question)
            return False
        # It is not passed on: the server, whose limit may be another one by now, would take a body for commands, and
        # perhaps for those of an operator.
        if line.size <= lane.server.max_job_size:
            session.ask(lane, _BAD_PUT, LookAsk(_BAD_PUT))
            return True
        ask.reply = JOB_TOO_BIG
        session.order.append(ask)
        session.expect_body(ask, None, line.size + 2)
    elif lane.refusal:
        ask.reply = _refusal(lane)
        session.order.append(ask)
        session.expect_body(ask, None, line.size + 2)
    else:
        session.ask(lane, b"put %b\r\n" % args, ask)
        session.expect_body(ask, lane, line.size + 2)
    return True


def _is_used(session: Routed, lane: Lane) -> bool:
    """Whether the server of a lane knows the tube that the client uses; if not, it is told, and the command waits."""
    if lane.refusal:
        return True
    lane.ensure()
    if lane.used == session.used:
        return True
    switch = SwitchAsk(session, session.used)
    session.barrier = switch
    lane.send(b"use %b\r\n" % session.used, switch)
    return False


def _refusal(lane: Lane) -> bytes:
    refusal, lane.refusal = lane.refusal, b""
    return refusal


def use(session: Routed, args: bytes) -> bool:
    name = parse_name(args)
    if name is None:
        return session.say(BAD_FORMAT)
    lane = session.lane_to(session.map.fleet.home(name))
    if not session.may_ask(lane):
        return False
    if lane.server.away and not session.is_open(lane):
        session.use(name)
        return session.say(b"%b%b\r\n" % (USING, name))
    lane.ensure()
    ask = UseAsk(session, name)
    session.ask(lane, b"use %b\r\n" % name, ask)
    if lane is session.home:
        session.use(name)
        lane.used = name
    else:
        session.barrier = ask
    return True


def list_tube_used(session: Routed, _none: bytes) -> bool:
    sole, data = session.sole, b"list-tube-used\r\n"
    if sole is None:
        return session.say(b"%b%b\r\n" % (USING, session.used))
    return session.ask(sole, data, TubeAsk(session, data))


def kick(session: Routed, args: bytes) -> bool:
    bound = parse_kick(args)
    if bound is None:
        return session.say(BAD_FORMAT)
    return _ask_homes(session, b"kick %b\r\n" % args, Ask(), lambda second: KickBothAsk(session, bound, second))


def _near_homes(session: Routed) -> list[Lane]:
    """Return the lanes to the servers of the tube that the client uses, without one that is away if it has two."""
    homes = session.homes(session.used)
    near = session.near(homes)
    for lane in homes:
        if lane not in near:
            lane.refusal = b""  # nobody is told that it is away
    return near


def peek_ready(session: Routed, _none: bytes) -> bool:
    return _peek_first(session, b"peek-ready\r\n")


def peek_delayed(session: Routed, _none: bytes) -> bool:
    return _peek_first(session, b"peek-delayed\r\n")


def peek_buried(session: Routed, _none: bytes) -> bool:
    return _peek_first(session, b"peek-buried\r\n")


def _peek_first(session: Routed, data: bytes) -> bool:
    return _ask_homes(session, data, TubeAsk(session, data), lambda second: PeekBothAsk(session, data, second))


def _ask_homes(session: Routed, data: bytes, alone: Ask, of_both: Callable[[Lane], Ask]) -> bool:
    """Ask the server of the tube that the client uses; of a tube that has moved, the old one and then the new one."""
    lanes = _near_homes(session)
    for lane in lanes:
        if not session.may_ask(lane) or not _is_used(session, lane):
            return False
        if lane.refusal:
            return session.say(_refusal(lane))
    if len(lanes) == 1:
        return session.ask(lanes[0], data, alone)
    ask = of_both(lanes[1])
    session.barrier = ask
    return session.ask(lanes[0], data, ask)


# -- reserving, and the tubes that are watched


def reserve(session: Routed, _none: bytes) -> bool:
    return _reserve(session, b"reserve\r\n", NEVER_S)


def reserve_with_timeout(session: Routed, args: bytes) -> bool:
    timeout_s = parse_timeout(args)
    if timeout_s is None:
        return session.say(BAD_FORMAT)
    return _reserve(session, b"reserve-with-timeout %b\r\n" % args, timeout_s)


def _reserve(session: Routed, data: bytes, timeout_s: float) -> bool:
    ask = ReserveAsk(session, timeout_s)
    lanes = session.reserve_lanes()
    wait = session.wait
    if wait is None and len(lanes) == 1 and not lanes[0].server.away and lanes[0] not in session.late:
        lane = lanes[0]
        if not session.may_ask(lane):
            return False
        if not session.reserves:
            ask.begin()
        session.waits_on = lane
        session.reserves += 1
        if session.half_closed:
            data = b"reserve-with-timeout 0\r\n"
        return session.ask(lane, data, ask)
    if wait is None:
        if session.waits_on is not None:
            return False
        session.wait = wait = Wait(session)
    if not isinstance(wait, Wait) or not wait.is_new:
        return False
    session.order.append(ask)
    wait.add(ask)
    return True


def watch(session: Routed, args: bytes) -> bool:
    name = parse_name(args)
    if name is None:
        return session.say(BAD_FORMAT)
    if name in session.watched and session.sole is None:
        return session.say(WATCHING % len(session.watched))
    if len(session.watched) >= WATCHED_MAX:
        return session.say(b"OUT_OF_MEMORY\r\n")
    lanes = [lane for lane in session.homes(name) if lane.state != CLOSED or not lane.server.away]
    if not all(session.may_ask(lane) for lane in lanes):
        return False
    for lane in lanes:
        lane.ensure()
    session.watch_tube(name)
    if not lanes:
        return session.say(WATCHING % len(session.watched))
    ask = WatchAsk(session, name, len(lanes), ignores=False)
    session.order.append(ask)
    for lane in lanes:
        lane.send(b"watch %b\r\n" % name, ask)
        session.watch_more(lane, name)
    return True


def ignore(session: Routed, args: bytes) -> bool:
    name = parse_name(args)
    if name is None:
        return session.say(BAD_FORMAT)
    sole = session.sole
    if session.watched.keys() == {name} or name not in session.watched:
        if sole is not None:
            return session.ask(sole, b"ignore %b\r\n" % name, Ask())
        return session.say(WATCHING % len(session.watched) if name not in session.watched else NOT_IGNORED)
    lanes = [lane for lane in session.homes(name) if name in lane.watched]
    if not all(session.may_ask(lane) for lane in lanes):
        return False
    session.ignore_tube(name)
    ask = WatchAsk(session, name, len(lanes), ignores=True)
    sent = sum(session.ignore_on(lane, name, ask) for lane in lanes)
    if not sent:
        return session.say(WATCHING % len(session.watched))
    ask.left = sent
    session.order.append(ask)
    return True


def list_tubes_watched(session: Routed, _none: bytes) -> bool:
    sole = session.sole
    if sole is None:
        return session.say(merged_tubes([b"".join(b"- %b\n" % tube for tube in session.watched)]))
    # It is not sent again after a lost connection: the client may watch other tubes by then.
    return session.ask(sole, b"list-tubes-watched\r\n", Ask())


# -- who the client is


def name(session: Routed, args: bytes) -> bool:
    if parse_claim(args) is None:
        return session.say(BAD_FORMAT)
    sole, data = session.sole, b"name %b\r\n" % args
    if sole is not None:
        if not session.may_ask(sole):
            return False
        sole.ensure()
    for lane in session.lanes.values():
        if lane is not sole and lane.state != CLOSED and not lane.ended:  # its greeting may be on the way already
            lane.send(data, InternalAsk())
    session.claim = args
    # Of several servers any may be halted, and have nothing to do with what the client is about to do.
    return session.say(NAMED) if sole is None else session.ask(sole, data, NameAsk())


def auth(session: Routed, token: bytes) -> bool:
    if session.is_known or session.unknown or session.order:
        return session.say(UNKNOWN_COMMAND)
    if not session.tokens_pass:
        session.is_over = True
        return session.say(UNAUTHORIZED)
    session.unknown = 1  # so that it is not tried again
    ask = AuthAsk(session, token)
    session.barrier = ask
    return session.ask(session.home, b"%b%b\r\n" % (AUTH, token), ask)


# The words without arguments, and those with.
BARE: Final[dict[bytes, Function]] = {
    b"reserve": reserve,
    b"peek-ready": peek_ready,
    b"peek-delayed": peek_delayed,
    b"peek-buried": peek_buried,
    b"stats": stats,
    b"list-tubes": list_tubes,
    b"list-tube-used": list_tube_used,
    b"list-tubes-watched": list_tubes_watched,
}
WITH_ARGUMENTS: Final[dict[bytes, Function]] = {
    b"put": put,
    b"reserve-with-timeout": reserve_with_timeout,
    b"delete": delete,
    b"release": release,
    b"bury": bury,
    b"touch": touch,
    b"reserve-job": reserve_job,
    b"peek": peek,
    b"kick": kick,
    b"kick-job": kick_job,
    b"use": use,
    b"watch": watch,
    b"ignore": ignore,
    b"stats-job": stats_job,
    b"stats-tube": stats_tube,
    b"pause-tube": pause_tube,
    b"note": note,
    b"name": name,
}
RESERVES: Final = (reserve, reserve_with_timeout)
