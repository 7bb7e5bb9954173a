"""The state of a session: the client's tubes, its lanes to the servers, and the order of its replies.

This is what commands see and change. ``conversation`` turns bytes into commands.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from beanlite.fleet.servers import Member
from beanlite.protocol.replies import NOT_IGNORED
from beanlite.router.any_wait import AnyWait
from beanlite.router.ids import NUMBER_MASK
from beanlite.router.known import Map
from beanlite.router.lane import AUTH, CLOSED, DEFAULT, OPEN, Ask, InternalAsk, Lane, Owner

# With more commands without a reply, the client has to wait.
ORDER_MAX: Final = 1000
# Likewise with so many bytes of the router's own replies that are not sent.
SAID_MAX: Final = 1 << 16


class ClientState(Owner):
    """What the router knows of a client."""

    __slots__ = (
        "_by_number",
        "_by_number_edition",
        "_home",
        "_home_edition",
        "barrier",
        "body_ask",
        "body_bytes",
        "body_lane",
        "claim",
        "half_closed",
        "is_known",
        "is_over",
        "lanes",
        "late",
        "map",
        "now_s",
        "order",
        "orphans",
        "out",
        "reserves",
        "said_bytes",
        "token",
        "tokens_pass",
        "turn",
        "unknown",
        "used",
        "wait",
        "waits_on",
        "watched",
    )

    def __init__(self, servers: Map, *, tokens_pass: bool = False) -> None:
        """``tokens_pass``: nobody can overhear the client, so that its token may be passed on."""
        super().__init__()
        self.map = servers
        self.tokens_pass = tokens_pass
        self.now_s = 0.0
        """The time, of a clock that never goes back."""
        self.lanes: dict[int, Lane] = {}
        """The connections to servers, by their numbers."""
        self.out: list[bytes] = []
        """The replies that are to be sent."""
        self.said_bytes = 0
        """How much of them, and of those that wait for others, is the router's own."""
        self.order: deque[Ask] = deque()
        """The commands that are not answered, or whose turn has not come."""
        self.used = DEFAULT
        self.watched: dict[bytes, None] = {DEFAULT: None}
        self._home: Lane | None = None
        # The tubes that the client watches, by the number of each server that has them.
        self._by_number: dict[int, dict[bytes, None]] = {}
        self._home_edition = self._by_number_edition = -1
        self.token = b""
        """The token that the client has shown, and that was accepted."""
        self.claim = b""
        """What the client calls itself."""
        self.is_known = False
        """The client has given a command."""
        self.unknown = 0
        """How many lines have come before the first command."""
        self.barrier: Ask | None = None
        """The command whose reply the next one waits for."""
        self.waits_on: Lane | None = None
        """The lane on which a reserve waits: the others may be asked nothing until it is answered."""
        self.reserves = 0
        """How many reserves are not answered there."""
        self.wait: AnyWait | None = None
        """A reserve over several servers, or over some that are away."""
        self.orphans: list[Ask] = []
        """Reserves whose lane was lost."""
        self.late: dict[Lane, int] = {}
        """Lanes that may not be asked for a job now, and how many replies about jobs that come late they owe."""
        self.turn = 0
        """Which server is asked first; rises with each reserve over several."""
        self.body_ask: Ask | None = None
        """The command whose body is being passed on, or skipped."""
        self.body_lane: Lane | None = None
        """The lane to which it is passed on; None: it is skipped."""
        self.body_bytes = 0
        """How many bytes of it are still to come."""
        self.half_closed = False
        self.is_over = False
        """No more commands are carried out; the connection is closed after the replies so far."""

    # -- lanes

    def lane(self, number: int) -> Lane | None:
        """Return the lane to the server with this number; None: there is no such server.

        One that is not in the file any more has a lane as long as the client has a connection to it, and perhaps jobs.
        """
        server, lane = self.map.servers.get(number), self.lanes.get(number)
        if server is None:
            return lane if lane is not None and lane.state == OPEN else None
        if lane is None:
            lane = self.lanes[number] = Lane(self, server)
        elif lane.state == CLOSED:
            lane.server = server
        return lane

    def lane_to(self, member: Member) -> Lane:
        """Return the lane to a server."""
        lane = self.lane(member.number)
        assert lane is not None
        return lane

    def lane_of(self, job_id: int) -> Lane | None:
        """Return the lane to the server of a job; None: there is none."""
        return self.lane(job_id & NUMBER_MASK)

    @property
    def home(self) -> Lane:
        """The lane to the server into which the client puts."""
        home = self._home
        if home is None or self._home_edition != self.map.edition:
            self._home = home = self.lane_to(self.map.fleet.home(self.used))
            self._home_edition = self.map.edition
        return home

    def use(self, tube: bytes) -> None:
        """Have the client use another tube."""
        self.used = tube
        self._home = None

    @property
    def sole(self) -> Lane | None:
        """The lane to the only server; None: there are several, or it is away."""
        members = self.map.fleet.members
        lane = self.lane_to(members[0]) if len(members) == 1 else None
        return None if lane is None or lane.server.away else lane

    def homes(self, tube: bytes) -> list[Lane]:
        """Return the lanes to the servers from which jobs of a tube are reserved."""
        return [self.lane_to(member) for member in self.map.fleet.homes(tube)]

    def near(self, lanes: list[Lane]) -> list[Lane]:
        """Return those of these lanes whose server can be asked; all of them if none can."""
        return [lane for lane in lanes if self.is_open(lane) or not lane.server.away] or lanes

    def has_tube(self, lane: Lane, tube: bytes) -> bool:
        """Whether jobs of a tube are reserved from the server of a lane."""
        return any(member.number == lane.number for member in self.map.fleet.homes(tube))

    def may_ask(self, lane: Lane) -> bool:
        """Whether a lane may be asked now, rather than once the reserve on another one is answered."""
        return (self.waits_on is None or self.waits_on is lane) and not lane.ended

    def reserve_lanes(self) -> list[Lane]:
        """Return the lanes to the servers of the tubes that the client watches, first the one whose turn it is.

        Of a tube that has moved the old server comes before the new one.
        """
        members = self.map.fleet.by_number
        lanes = [self.lane_to(members[number]) for number, tubes in self._watched_by_number().items() if tubes]
        if len(lanes) == 1:
            return lanes
        at = self.turn % len(lanes)
        lanes = lanes[at:] + lanes[:at]
        moved, watched = self.map.fleet.moved, self.watched
        for tube in moved if len(moved) < len(watched) else watched:
            if tube in moved and tube in watched:
                old, new = self.homes(tube)
                if lanes.index(old) > lanes.index(new):
                    lanes.remove(old)
                    lanes.insert(lanes.index(new), old)
        return lanes

    def watch_tube(self, tube: bytes) -> None:
        """Have the client watch a tube."""
        if tube not in self.watched:
            self.watched[tube] = None
            if self._by_number_edition == self.map.edition:
                self._note_watched(tube)

    def ignore_tube(self, tube: bytes) -> None:
        """Have it watch a tube no more."""
        if tube in self.watched:
            del self.watched[tube]
            for tubes in self._by_number.values():
                tubes.pop(tube, None)

    def _note_watched(self, tube: bytes) -> None:
        for member in self.map.fleet.homes(tube):
            self._by_number.setdefault(member.number, {})[tube] = None

    def _watched_by_number(self) -> dict[int, dict[bytes, None]]:
        """Return the tubes that the client watches, by server; after another file, anew."""
        if self._by_number_edition != self.map.edition:
            self._by_number_edition = self.map.edition
            self._by_number.clear()
            for tube in self.watched:
                self._note_watched(tube)
        return self._by_number

    def begin_late(self, lane: Lane) -> None:
        """Note that a lane owes one more reply about a job that comes late."""
        self.late[lane] = self.late.get(lane, 0) + 1

    def end_late(self, lane: Lane) -> None:
        """Note that it is there, or will never be."""
        left = self.late.pop(lane, 1) - 1
        if left:
            self.late[lane] = left

    # -- what a new connection is told

    def greeting(self, lane: Lane) -> list[bytes]:
        """Return the lines that a new connection begins with, which may be to another server than the one before."""
        lane.server = self.map.servers.get(lane.number, lane.server)
        lines = [b"%b%b\r\n" % (AUTH, self.token)] if self.token else []
        if self.claim:
            lines.append(b"name %b\r\n" % self.claim)
        if self.used != DEFAULT and self.home is lane:
            lines.append(b"use %b\r\n" % self.used)
            lane.used = self.used
        wanted = self._watched_by_number().get(lane.number, {})
        lane.placeholder = not wanted
        watches = [b"watch %b\r\n" % tube for tube in wanted if tube != DEFAULT]
        if wanted:
            lane.watched = set(wanted)
            if DEFAULT not in lane.watched:  # behind the first: all of them and default may be more than are allowed
                watches.insert(1, b"ignore default\r\n")
        return lines + watches

    def refused(self, lane: Lane, line: bytes) -> None:
        """Answer what was to be sent on a lane with the refusal of its greeting; a reserve waits for other servers."""
        if self.body_lane is lane:
            self.body_lane = None
        for ask in self.close_lane(lane):
            ask.refuse(lane, line)

    def close_lane(self, lane: Lane) -> list[Ask]:
        """Forget a lane's connection; return the commands that have no reply. By now the server may be another one."""
        asks = lane.close()
        lane.server = self.map.servers.get(lane.number, lane.server)
        return asks

    # -- tubes that are watched

    def watch_more(self, lane: Lane, tube: bytes) -> None:
        """Note that a lane watches one more tube, and have it ignore the one that was only in its place."""
        if tube == lane.last:
            lane.last = b""
        if lane.placeholder:
            lane.placeholder = False
            for other in lane.watched - {tube}:
                lane.watched.discard(other)
                lane.send(b"ignore %b\r\n" % other, IgnoreAsk(self, other))
        lane.watched.add(tube)

    def keep_one(self, lane: Lane, tube: bytes) -> bool:
        """Have a lane watch default if this tube, which is to be ignored, is its last; False: it is default itself."""
        if lane.watched != {tube}:
            return True
        lane.placeholder = True
        if tube == DEFAULT:
            return False
        lane.last = tube
        lane.watched.add(DEFAULT)
        lane.send(b"watch default\r\n", InternalAsk())
        return True

    def stays_last(self, lane: Lane, tube: bytes) -> bool:
        """Whether a server does not ignore a tube only because it has refused default in its place: it stays there."""
        if tube != lane.last:
            return False
        if lane.placeholder:
            lane.watched = {tube}
        else:  # by now the client watches another one
            lane.send(b"ignore %b\r\n" % tube, InternalAsk())
        return True

    def ignore_on(self, lane: Lane, tube: bytes, ask: Ask) -> bool:
        """Have a lane watch a tube no more; return False if nothing has to be sent."""
        if lane.state == CLOSED or tube not in lane.watched or not self.keep_one(lane, tube):
            return False
        lane.watched.discard(tube)
        lane.send(b"ignore %b\r\n" % tube, ask)
        return True

    def watch_again(self) -> None:
        """Have each lane watch what it should, because tubes may have moved."""
        for lane in self.lanes.values():
            if lane.state == CLOSED or lane.ended or lane.number not in self.map.servers:
                continue
            wanted = self._watched_by_number().get(lane.number, {}).keys()
            if not wanted.isdisjoint(lane.watched):  # from now on that is not only in place of another tube
                lane.placeholder = False
            for tube in wanted - lane.watched:
                lane.send(b"watch %b\r\n" % tube, InternalAsk())
                self.watch_more(lane, tube)
            for tube in lane.watched - wanted:
                if not lane.placeholder:
                    self.ignore_on(lane, tube, IgnoreAsk(self, tube))

    # -- replies

    def say(self, reply: bytes) -> bool:
        """Answer a command that no server has to be asked for."""
        self.said_bytes += len(reply)
        if self.order:
            ask = Ask()
            ask.reply = reply
            self.order.append(ask)
        else:
            self.out.append(reply)
        return True

    def ask(self, lane: Lane, data: bytes, ask: Ask) -> bool:
        """Send a command to a server, and have its reply in its place; return False if it may not be asked now."""
        if not self.may_ask(lane):
            return False
        self.order.append(ask)
        lane.send(data, ask)
        return True

    def release(self) -> None:
        """Let all replies go whose turn has come."""
        order, out = self.order, self.out
        while order:
            ask = order[0]
            reply = ask.reply
            if reply is None or ask is self.body_ask:
                break
            out.append(reply)
            order.popleft()

    def take(self) -> bytes:
        """Return the replies that are to be sent now, once."""
        out = self.out
        data = out[0] if len(out) == 1 else b"".join(out)
        out.clear()
        if not self.order:
            self.said_bytes = 0
        return data

    def expect_body(self, ask: Ask, lane: Lane | None, size: int) -> None:
        """Have so many bytes passed on to a lane, or skipped, before the reply is given."""
        self.body_ask = ask
        self.body_lane = lane
        self.body_bytes = size
        if lane is not None:
            lane.begin_body()

    def drop_body(self) -> None:
        """Take a command for not given the rest of whose body never comes, or is not looked at."""
        ask, lane = self.body_ask, self.body_lane
        self.body_ask = self.body_lane = None
        self.body_bytes = 0
        if ask is not None and ask in self.order:
            self.order.remove(ask)
            if lane is not None:
                lane.disown(ask)

    def is_open(self, lane: Lane) -> bool:
        """Whether a lane can be asked without waiting for a connection."""
        return lane.state == OPEN and not lane.ended


class IgnoreAsk(InternalAsk):
    """An ignore of the router's own."""

    __slots__ = ("_session", "_tube")

    def __init__(self, session: ClientState, tube: bytes) -> None:
        super().__init__()
        self._session = session
        self._tube = tube

    def answer(self, lane: Lane, line: bytes, body: bytes) -> None:
        """Take the reply."""
        if line == NOT_IGNORED:
            self._session.stays_last(lane, self._tube)
