"""A client's session with the router: bytes in, commands to servers, and their replies in the order of the commands.

It does no I/O and has no clock. What it has to send is in ``out``, for the client, and in the lanes that are ``dirty``;
for those that are ``opening`` a connection is to be made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from beanlite.protocol.replies import BAD_FORMAT, UNKNOWN_COMMAND
from beanlite.protocol.strangers import UNKNOWN_MAX, is_foreign
from beanlite.router.any_wait import NEVER_S
from beanlite.router.asks import ReserveAsk
from beanlite.router.commands import BARE, RESERVES, WITH_ARGUMENTS, Function, auth
from beanlite.router.known import Map
from beanlite.router.lane import CLOSED, InternalAsk, Lane
from beanlite.router.routed import Routed
from beanlite.router.state import ORDER_MAX, SAID_MAX
from beanlite.router.wait import STALL_S, Wait

LINE_MAX: Final = 224
# A client may send so many bytes ahead while its commands wait, as many as to a server. Beyond that it is not read
# from, nor is it noticed that it has gone.
READ_AHEAD_MAX: Final = 1 << 18
# A small part of the input is joined to the one before it until that has this many bytes: a part by itself takes some
# tens of bytes more than it has.
PART_BYTES: Final = 1 << 12
SMALL_PART: Final = 1 << 9
# A line without an end closes the connection at this size.
LONG_LINE_MAX: Final = 1 << 20
_PAUSE_TUBE: Final = b"pause-tube"


class RouterSession(Routed):
    """What the connection of a client calls."""

    __slots__ = ("_end_s", "_ending", "_is_replete", "_parts", "_skipped_bytes", "_stuck", "_wanted", "pending")

    def __init__(self, servers: Map, own_stats: Callable[[], Mapping[str, str]], *, tokens_pass: bool = False) -> None:
        """Begin with an empty input."""
        super().__init__(servers, own_stats, tokens_pass=tokens_pass)
        self._parts: list[bytes] = []
        self.pending = 0
        """How many bytes have come that are not carried out."""
        self._wanted = 0
        """With fewer there is nothing to do."""
        self._skipped_bytes = 0
        """How much of a line was skipped that is too long."""
        self._ending: Lane | None = None
        """The lane on which a reserve was waiting when the client has half-closed."""
        self._end_s = NEVER_S
        """When that wait is to be ended even though the client has sent more commands."""
        self._stuck = False
        """The next command waits for replies."""
        self._is_replete = False
        """It waits for replies to be sent."""

    # -- from the client

    def receive(self, data: bytes, now_s: float) -> None:
        """Take bytes from the client, and carry out what is complete."""
        self.now_s = now_s
        if self.is_over:
            return
        if self._parts:
            self._keep(data)
            if self._stuck or self.pending < self._wanted:
                return
            data = self._take_parts()
        self._carry_out(data)
        self.release()
        self._carry_on()

    def half_close(self, now_s: float) -> None:
        """Note that the client sends no more, but may still read: none of its reserves waits from now on."""
        self.now_s = now_s
        self.half_closed = True
        self.doubt_servers()
        if self.wait is not None:
            self.wait.half_close()
        self._ending, self._end_s = self.waits_on, now_s + STALL_S
        self._go_on()

    def take_ending(self) -> Lane | None:
        """Return, once, a lane to be told that nothing more comes, which ends the reserve that waits there.

        If there are more commands, that is done late, since the client's jobs go back with the connection.
        """
        lane = self._ending
        if lane is not self.waits_on:  # the server had a job
            self._ending = lane = None
        if lane is None or lane.out or not self.is_open(lane) or (self._stuck and self.now_s < self._end_s):
            return None
        self._ending = None
        lane.ended = True
        return lane

    @property
    def wants_more(self) -> bool:
        """Whether to read more from the client."""
        if self.is_over:  # what comes is not looked at, but it is noticed that the client goes
            return True
        if not all(lane.takes_more for lane in self.lanes.values()):
            return False
        lane = self.body_lane
        if self.body_bytes and lane is not None and not self.is_open(lane):
            return False
        return not self._stuck or self.pending <= READ_AHEAD_MAX

    @property
    def is_done(self) -> bool:
        """Whether the connection is to be closed once the replies are sent."""
        if self.order or self.wait is not None:
            return False
        return self.is_over or (self.half_closed and not self._stuck)

    @property
    def can_go_on(self) -> bool:
        """Whether commands have only waited for replies to be sent: ``tick`` carries them out."""
        return self._is_replete and not self._is_barred()

    # -- from the servers

    def opened(self, lane: Lane, now_s: float, *, is_private: bool = True) -> bytes:
        """Note that a connection is made, which nobody may be able to overhear; return what is to be sent first."""
        self.now_s = now_s
        data = lane.opened(is_private=is_private)
        self._go_on_with(lane)
        return data

    def failed(self, lane: Lane, now_s: float) -> None:
        """Note that no connection could be made."""
        self.now_s = now_s
        self._settle_body(lane)
        for ask in self.close_lane(lane):
            ask.fail(lane)
        if self.wait is not None:
            self.wait.failed(lane)
        self._go_on()

    def came(self, lane: Lane, data: bytes, now_s: float) -> bool:
        """Take bytes from a server; return False if they are no replies: the connection is then to be closed."""
        self.heard(lane, now_s)
        greets = not self.is_open(lane)
        try:
            is_sound = lane.receive(data)
        except (IndexError, ValueError):  # a command has lost its reply
            is_sound = False
            self._break_off()
        # Such as UNAUTHORIZED, before it closes the connection; but not for a token that it was not shown.
        if lane.last_line and not self.is_over and not lane.withholds:
            self.drop_body()
            self.say(lane.last_line)
            self.is_over = True
        if lane.state == CLOSED and self.wait is not None:  # it has refused the greeting
            self.wait.failed(lane)
        if greets:
            self._go_on_with(lane)
        else:
            self._go_on()
        return is_sound

    def lost(self, lane: Lane, now_s: float) -> None:
        """Note that a connection was lost. What is not known any more costs the client its own."""
        self.now_s = now_s
        self._settle_body(lane)
        asks = self.close_lane(lane)
        if self.wait is not None:
            self.wait.lost(lane)
        has_reserve = False
        for ask in asks:
            known = (not has_reserve or isinstance(ask, InternalAsk | ReserveAsk)) and ask.lose(lane)
            has_reserve = has_reserve or isinstance(ask, ReserveAsk)
            if not known:
                self._break_off()
                return
        self._go_on()

    def come_back(self, now_s: float) -> None:
        """Note that a server can be reached again."""
        if self.wait is not None:
            self.now_s = now_s
            self.wait.come_back()
            self._go_on()

    def look_again(self, now_s: float) -> None:
        """Note that tubes may have moved; a reserve may be ``misplaced`` then."""
        self.now_s = now_s
        self.watch_again()
        if self.wait is not None:
            self.wait.look_again()
        self._go_on()

    def tick(self, now_s: float) -> None:
        """Do what is due."""
        self.now_s = now_s
        if self.wait is not None and self.wait.due_s <= now_s:
            self.wait.tick()
        self._go_on()

    @property
    def due_s(self) -> float:
        """When ``tick`` has something to do."""
        if self._ending is not None and self.now_s < self._end_s:
            return self._end_s
        return NEVER_S if self.wait is None else self.wait.due_s

    # -- replies

    def _go_on_with(self, lane: Lane) -> None:
        if self.is_open(lane) and self.wait is not None:
            self.wait.opened(lane)
        self._go_on()

    def _go_on(self) -> None:
        """Let replies go, and carry out the commands that have waited for them."""
        self.release()
        if self.orphans:
            self._adopt()
        self._carry_on()
        if self.half_closed and self.body_bytes and not self._stuck:  # the rest of the body will never come
            self.drop_body()

    def _carry_on(self) -> None:
        """Carry out what has waited, as far as that goes: a reserve may be answered while it begins to wait."""
        left = -1
        while self._stuck and not self._is_barred() and self.pending != left:
            left = self.pending
            self._stuck = False
            self._carry_out(self._take_parts())
            self.release()
        self._is_replete = self._stuck and self.said_bytes > SAID_MAX

    def _is_barred(self) -> bool:
        return (
            self.barrier is not None
            or self.wait is not None
            or len(self.order) >= ORDER_MAX
            or self.said_bytes > SAID_MAX
        )

    def _settle_body(self, lane: Lane) -> None:
        """Skip the rest of a body that was being passed on to a lane: its command was not carried out."""
        if self.body_lane is lane and self.body_ask is not None:
            self.body_lane = None
            if self.body_ask in lane.asks:  # else the server has answered it before the body was there
                lane.asks.remove(self.body_ask)
                self.body_ask.fail(lane)

    def _adopt(self) -> None:
        """Wait for the server, or for others, with the reserves whose lane was lost."""
        wait = Wait(self)
        for ask in self.orphans:
            if isinstance(ask, ReserveAsk):
                wait.add(ask)
        self.orphans = []
        self.wait = wait
        wait.begin()
        self.release()

    def _break_off(self) -> None:
        """Give the replies that are known, and close the connection."""
        self.body_ask = None
        self.release()
        self.order.clear()
        self.orphans.clear()
        self.wait = None
        self.is_over = True

    def leave(self) -> None:
        """Forget everything, because the client is gone: what refers to each other would never be freed."""
        self.doubt_servers()
        self._break_off()
        self.out.clear()
        self.lanes.clear()
        self.late.clear()
        self.dirty.clear()
        self.opening.clear()
        self.waits_on = self.barrier = self._home = self._ending = None

    # -- from bytes to commands

    def _keep(self, data: bytes) -> None:
        parts = self._parts
        if parts and len(data) < SMALL_PART and len(parts[-1]) < PART_BYTES:
            parts[-1] += data
        elif data:
            parts.append(data)
        self.pending += len(data)

    def _take_parts(self) -> bytes:
        data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts.clear()
        self.pending = self._wanted = 0
        return data

    def _carry_out(self, data: bytes) -> None:
        at, size = 0, len(data)
        if self._skipped_bytes:
            at = self._skip_long_line(data, 0)
        while at < size and not self.is_over:
            if self.body_bytes:
                at = self._pass_body(data, at)
                continue
            if self.barrier is not None or len(self.order) >= ORDER_MAX or self.said_bytes > SAID_MAX:
                self._stuck = True
                break
            end = data.find(b"\r\n", at, at + LINE_MAX)
            if end < 0:
                if size - at < LINE_MAX:
                    self._wanted = size - at + 1
                    break
                at = self._skip_long_line(data, at)
            elif self._give(data[at:end]):
                at = end + 2
            else:
                self._stuck = True
                break
        if not self.is_over:
            self._keep(data[at:])
        wait = self.wait
        if isinstance(wait, Wait) and wait.is_new:
            wait.begin()

    def _pass_body(self, data: bytes, at: int) -> int:
        part = data[at : at + self.body_bytes]
        self.body_bytes -= len(part)
        lane = self.body_lane
        if lane is not None:
            lane.pass_on(part)
            if not self.body_bytes:
                lane.end_body()
        if not self.body_bytes:
            self.body_ask = self.body_lane = None
        return at + len(part)

    def _give(self, line: bytes) -> bool:
        """Carry out a line; return False if it has to wait."""
        word, blank, args = line.partition(b" ")
        function = WITH_ARGUMENTS.get(word) if blank else BARE.get(word)
        if self.wait is not None and function not in RESERVES:
            return False
        if function is None or not self.is_known:
            return self._give_odd(line, word, args, function)
        return function(self, args)

    def _give_odd(  # noqa: PLR0911 - a case each
        self, line: bytes, word: bytes, args: bytes, function: Function | None
    ) -> bool:
        """Carry out a line that is no command, or the first of a client."""
        if word == b"auth" and not self.is_known:
            return auth(self, args)
        if not self.is_known and is_foreign(line):
            return self._note_stranger(line, UNKNOWN_COMMAND)
        if function is not None:
            self.is_known = True
            return function(self, args)
        if b"\0" in line:
            return self._note_stranger(line, BAD_FORMAT)
        if line.startswith(b"quit"):
            self.is_known = self.is_over = True
            return True
        if line.startswith(_PAUSE_TUBE):
            self.is_known = True
            return WITH_ARGUMENTS[_PAUSE_TUBE](self, line[len(_PAUSE_TUBE) :])
        if line.startswith(tuple(BARE)):
            self.is_known = True
            return self.say(BAD_FORMAT)
        return self._note_stranger(line, UNKNOWN_COMMAND)

    def _note_stranger(self, line: bytes, reply: bytes) -> bool:
        """Answer a line of no command; the connection is closed if it is another protocol's, or one too many."""
        self.say(reply)
        if not self.is_known:
            self.unknown += 1
            self.is_over = self.unknown >= UNKNOWN_MAX or is_foreign(line)
        return True

    def _skip_long_line(self, data: bytes, at: int) -> int:
        """Skip what has come of a line that is too long; return where the next line begins."""
        if not self._skipped_bytes and not self.is_known and is_foreign(data[at : at + LINE_MAX]):
            self._note_stranger(data[at : at + LINE_MAX], BAD_FORMAT)
            return len(data)
        end = data.find(b"\r\n", at)
        if end >= 0:
            self._skipped_bytes = 0
            self._note_stranger(b"", BAD_FORMAT)
            return end + 2
        self._skipped_bytes += len(data) - at
        if self._skipped_bytes >= LONG_LINE_MAX:
            self.say(BAD_FORMAT)
            self.is_over = True
        elif data.endswith(b"\r"):
            self._keep(b"\r")
            self._wanted = 2
        return len(data)
