"""Commands that several servers answer."""

from __future__ import annotations

from collections.abc import Callable

from beanlite.core.tube import is_tube_name
from beanlite.protocol.arguments import parse_name, parse_pause
from beanlite.protocol.replies import BAD_FORMAT
from beanlite.router.joint import MergedAsk, PartAsk, PauseAsk
from beanlite.router.lane import Ask, Lane
from beanlite.router.looks import LookAsk
from beanlite.router.routed import Routed
from beanlite.router.sums import merged_stats, merged_tubes


def stats(session: Routed, _none: bytes) -> bool:
    members = session.map.fleet.members
    own = session.own_stats() if len(members) > 1 else {}
    more = session.more_stats()
    return _merge(session, b"stats\r\n", _all(session), lambda bodies: merged_stats(bodies, own, more))


def list_tubes(session: Routed, _none: bytes) -> bool:
    return _merge(session, b"list-tubes\r\n", _all(session), merged_tubes)


def stats_tube(session: Routed, args: bytes) -> bool:
    name = parse_name(args)
    if name is None:
        return session.say(BAD_FORMAT)
    lanes = session.homes(name)
    data = b"stats-tube %b\r\n" % name
    if len(lanes) > 1:
        new_first = lanes[::-1]
        return _merge(session, data, new_first, lambda bodies: merged_stats(bodies, {}, {}))
    return session.ask(lanes[0], data, LookAsk(data))


def _all(session: Routed) -> list[Lane]:
    return [session.lane_to(member) for _, member in sorted(session.map.fleet.by_number.items())]


def _merge(session: Routed, data: bytes, lanes: list[Lane], combine: Callable[[list[bytes]], bytes]) -> bool:
    if not all(session.may_ask(lane) for lane in lanes):
        return False
    near = session.near(lanes)
    merge = MergedAsk(session, [lane.number for lane in near], combine)
    if len(near) > 1:
        session.barrier = merge
    session.order.append(merge)
    for lane in near:
        lane.send(data, PartAsk(merge, data))
    return True


def pause_tube(session: Routed, args: bytes) -> bool:
    given = parse_pause(args)
    if given is None:
        return session.say(BAD_FORMAT)
    name, pause_s = given
    # A name that no tube can have is a server's to refuse, which counts the command.
    lanes = session.near(session.homes(name)) if is_tube_name(name) else [session.home]
    if not all(session.may_ask(lane) for lane in lanes):
        return False
    data = b"pause-tube %b %d\r\n" % (name, pause_s)
    if len(lanes) == 1:
        return session.ask(lanes[0], data, Ask())
    ask = PauseAsk(len(lanes))
    session.order.append(ask)
    for lane in lanes:
        lane.send(data, ask)
    return True
