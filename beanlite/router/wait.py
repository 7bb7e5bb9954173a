"""A reserve over several servers, or over some that are away.

First each server is asked for a job that is ready, one after the other, with ``reserve-with-timeout 0``. If none has
one, all are asked to ``offer`` one: the first offer is taken, others are declined, which counts for nothing. Servers
that don't know these words are asked again and again. Reserves that follow each other directly are asked for together.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from beanlite.protocol.replies import BAD_FORMAT, DEADLINE_SOON, TIMED_OUT, UNKNOWN_COMMAND
from beanlite.router.any_wait import NEVER_S, AnyWait
from beanlite.router.asks import ReserveAsk, reserved
from beanlite.router.ids import inner_id
from beanlite.router.lane import CLOSED, OPEN, InternalAsk, Lane
from beanlite.router.late import take_late
from beanlite.router.state import ClientState

# How often servers that can't offer a job are asked for one.
POLL_S: Final = 0.1
# A server that does not answer for so long is passed over.
STALL_S: Final = 1.0
# The longest timeout of the protocol: the router itself ends the wait.
_OFFER: Final = b"offer 2147483647\r\n"
_CANCEL: Final = b"decline 0\r\n"
TAKEN: Final = b"TAKEN\r\n"


class Wait(AnyWait):
    """The reserves, and what servers have been asked for them."""

    __slots__ = (
        "_again_s",
        "_asks",
        "_offers",
        "_open_by_s",
        "_polls",
        "_session",
        "_soon",
        "_stall_s",
        "_taking",
        "_to_poll",
        "is_new",
    )

    def __init__(self, session: ClientState) -> None:
        self._session = session
        self._asks: deque[ReserveAsk] = deque()
        self.is_new = True
        """Further reserves may be added."""
        self._to_poll: list[Lane] = []
        self._open_by_s = 0.0
        """Until then no reserve ends before servers are asked to which connections are being made."""
        self._polls: list[PollAsk] = []
        """What one server has been asked, and has not answered."""
        self._stall_s = NEVER_S
        self._soon = False
        """A server has said DEADLINE_SOON."""
        self._offers: dict[Lane, OfferAsk] = {}
        self._taking: TakeAsk | None = None
        self._again_s = NEVER_S

    def add(self, ask: ReserveAsk) -> None:
        """Take one more reserve."""
        self._asks.append(ask)
        self._asks[0].begin()

    def begin(self) -> None:
        """Ask the servers."""
        self.is_new = False
        self._session.turn += 1
        self._open_by_s = self._session.now_s + STALL_S
        self._poll_all()

    @property
    def due_s(self) -> float:
        """When ``tick`` has something to do."""
        asked = self._asked
        if asked is not None:
            return NEVER_S if asked.unread else self._stall_s
        until_s = self._session.now_s if self._last_word() else self._asks[0].until_s
        if self._is_connecting():
            until_s = max(until_s, self._open_by_s)
        return min(until_s, self._again_s)

    @property
    def _asked(self) -> Lane | None:
        """The lane to the server that has been asked for jobs, and has to answer in time."""
        ask = self._polls[0] if self._polls else self._taking
        return None if ask is None else ask.lane

    def _last_word(self) -> bytes:
        """Return what the first reserve is answered if no server has a job now; nothing if it may wait for one."""
        is_over = self._session.half_closed or self._asks[0].until_s <= self._session.now_s
        return DEADLINE_SOON if self._soon else TIMED_OUT if is_over else b""

    def _is_connecting(self) -> bool:
        """Whether a server can't be asked for a job that is ready only because the connection is being made."""
        lanes = [lane for lane in self._to_poll if lane.state not in {CLOSED, OPEN} and not lane.server.away]
        return bool(lanes) and self._session.now_s < self._open_by_s

    # -- what is ready

    def _poll_all(self) -> None:
        if not self._asks:
            self._end()
            return
        self._soon = False
        self._list_lanes()
        self._poll_next()

    def _list_lanes(self) -> None:
        self._to_poll = list(self._session.reserve_lanes())
        for lane in self._to_poll:
            if not lane.server.away:
                lane.ensure()

    def _poll_next(self) -> None:
        session = self._session
        for lane in self._to_poll:
            if session.is_open(lane) and lane not in session.late and lane not in self._offers:
                self._to_poll.remove(lane)
                self._polls = [PollAsk(session, self, lane) for _ in self._asks]
                self._stall_s = session.now_s + STALL_S
                for poll in self._polls:
                    lane.send(b"reserve-with-timeout 0\r\n", poll)
                return
        self._polled_all()

    def polled(self, poll: PollAsk, lane: Lane, line: bytes, body: bytes) -> None:
        """Take a reply to one of the polls."""
        self._polls.remove(poll)
        if line.startswith(b"RESERVED "):
            self._answer(reserved(lane, line, body))
        elif line == DEADLINE_SOON:
            self._soon = True
        elif line != TIMED_OUT:
            self._answer(line)
        if self._polls:
            return
        if self._asks:
            self._poll_next()
        else:
            self._end()

    def _answer(self, reply: bytes) -> None:
        self._asks.popleft().reply = reply
        if self._asks:
            self._asks[0].begin()

    def _polled_all(self) -> None:
        """Go on when no server has a job that is ready."""
        session = self._session
        offer = next(iter([each for each in self._offers.values() if each.job]), None)
        if offer is not None:
            self._take(offer)
            return
        while self._asks and (reply := self._last_word()):
            if self._is_connecting():
                return
            self._answer(reply)
        if not self._asks:
            self._end()
            return
        self._again_s = NEVER_S
        for lane in session.reserve_lanes():
            self.opened(lane)

    # -- what is offered

    def opened(self, lane: Lane) -> None:
        """Ask a server for an offer, if it can be asked."""
        session = self._session
        if self._polls or self._taking is not None or self.is_new or lane not in session.reserve_lanes():
            return
        if lane.state == CLOSED and not lane.server.away:
            lane.ensure()
        if not session.is_open(lane) or lane in session.late or lane in self._offers:
            return
        if lane in self._to_poll and self._last_word():
            self._poll_next()
        elif lane.server.knows_offers:
            offer = self._offers[lane] = OfferAsk(self, lane)
            lane.send(_OFFER, offer)
        else:
            self._again_s = min(self._again_s, session.now_s + POLL_S)

    def heard(self, lane: Lane) -> None:
        """Give a server more time: a large job takes long on a slow link, or to a client that reads slowly."""
        if lane is self._asked:
            self._stall_s = self._session.now_s + STALL_S

    def come_back(self) -> None:
        """Connect to a server that was away."""
        for lane in self._session.reserve_lanes():
            self.opened(lane)

    def failed(self, lane: Lane) -> None:
        """Try again to connect to a server that does not seem to be away."""
        self._lose(lane, STALL_S)

    def lost(self, lane: Lane) -> None:
        """Connect again."""
        self._lose(lane, POLL_S)

    def _lose(self, lane: Lane, again_s: float) -> None:
        """Forget what was offered on a connection, which has gone back with it."""
        self._offers.pop(lane, None)
        self._again_s = min(self._again_s, self._session.now_s + again_s)

    def offered(self, offer: OfferAsk, line: bytes) -> None:
        """Take a reply to an offer: a job, or that there is none."""
        lane = offer.lane
        if line.startswith(b"OFFERED "):
            if not self._polls and self._taking is None:
                self._take(offer)
            return
        del self._offers[lane]
        if self._polls:  # which answer the reserves for now; then the server is asked again
            return
        if line == DEADLINE_SOON:
            self._conclude(DEADLINE_SOON)
        elif line == TIMED_OUT:
            self._again_s = min(self._again_s, self._session.now_s + POLL_S)
        elif line in {UNKNOWN_COMMAND, BAD_FORMAT}:
            lane.server.knows_offers = False
            self.opened(lane)
        else:
            self._conclude(line)

    def _take(self, offer: OfferAsk) -> None:
        del self._offers[offer.lane]
        self._cancel()
        self._taking = TakeAsk(self._session, self, offer)
        self._stall_s = self._session.now_s + STALL_S
        offer.lane.send(b"take %d\r\n" % inner_id(offer.job), self._taking)

    def taken(self, take: TakeAsk, lane: Lane, line: bytes) -> None:
        """Take the reply to a take; the offer may have lapsed."""
        self._taking = None
        if line == TAKEN:
            self._answer(reserved(lane, take.job, take.body))
        self._poll_all()

    def _cancel(self) -> None:
        """Want no offers any more."""
        for lane, offer in self._offers.items():
            offer.cancel(lane)
        self._offers.clear()

    def _conclude(self, reply: bytes) -> None:
        """Answer the first reserve, whatever is offered."""
        self._cancel()
        self._answer(reply)
        self._poll_all()

    def _end(self) -> None:
        self._cancel()
        self._session.wait = None

    # -- what may come in between

    def half_close(self) -> None:
        """Wait no longer, because the client sends no more."""
        if not self._polls and self._taking is None:
            self._polled_all()

    def look_again(self) -> None:
        """Begin anew, because tubes may have moved, but hear out a server that is asked already."""
        self._cancel()
        if self._asked is None:
            self._poll_all()
        else:
            self._list_lanes()

    def tick(self) -> None:
        """Do what is due."""
        session = self._session
        if self._polls:
            if self._stall_s <= session.now_s:
                for poll in self._polls:
                    poll.pass_over()
                self._polls = []
                self._poll_next()
        elif self._taking is not None:
            if self._stall_s <= session.now_s:
                self._taking.pass_over()
                self._taking = None
                self._poll_all()
        elif (reply := self._last_word()) and not self._is_connecting():
            self._conclude(reply)
        elif self._again_s <= session.now_s:
            self._again_s = NEVER_S
            self._soon = False
            self._to_poll = [lane for lane in session.reserve_lanes() if lane not in self._offers]
            self._poll_next()

    def use_late(self, lane: Lane, line: bytes, body: bytes) -> bool:
        """Take a job that a server gives late; return False if none is waited for."""
        if self._polls or self._taking is not None:
            return False
        self._conclude(reserved(lane, line, body))
        return True


class TimedAsk(InternalAsk):
    """A poll or a take, which a server may not answer in time."""

    __slots__ = ("_session", "_wait", "lane")

    def __init__(self, session: ClientState, wait: Wait, lane: Lane) -> None:
        super().__init__()
        self._session = session
        self._wait: Wait | None = wait
        """None: nobody waits for the answer any more."""
        self.lane = lane

    def fail(self, lane: Lane) -> None:
        """Take it for lost."""
        self.lose(lane)

    def lose(self, lane: Lane) -> bool:
        """Take it that there is no job: one that was given went back with the connection."""
        if self._wait is None:
            self._session.end_late(lane)
        else:
            self.answer(lane, TIMED_OUT, b"")
        return True

    def pass_over(self) -> None:
        """Wait for it no longer."""
        self._wait = None
        self._session.begin_late(self.lane)
        self.lane.server.doubt()


class PollAsk(TimedAsk):
    """A reserve-with-timeout 0 of the router's own."""

    __slots__ = ()

    def answer(self, lane: Lane, line: bytes, body: bytes) -> None:
        """Take the reply."""
        if self._wait is None:
            take_late(self._session, lane, line, body)
        else:
            self._wait.polled(self, lane, line, body)


class OfferAsk(InternalAsk):
    """The question for an offer."""

    __slots__ = ("_wait", "body", "job", "lane")

    def __init__(self, wait: Wait, lane: Lane) -> None:
        super().__init__()
        self._wait: Wait | None = wait
        """None: it is not wanted any more."""
        self.lane = lane
        self.job = b""
        """The line of the job that is offered."""
        self.body = b""

    def cancel(self, lane: Lane) -> None:
        """Want it no more."""
        self._wait = None
        if self.job:
            lane.send(b"decline %d\r\n" % inner_id(self.job), InternalAsk())
        else:
            lane.send(_CANCEL, InternalAsk())

    def answer(self, lane: Lane, line: bytes, body: bytes) -> None:
        """Take the reply, and decline an offer that is not wanted any more."""
        if self._wait is None:
            if line.startswith(b"OFFERED "):
                lane.send(b"decline %d\r\n" % inner_id(line), InternalAsk())
            return
        if line.startswith(b"OFFERED "):
            self.job, self.body = line, body
        self._wait.offered(self, line)


class TakeAsk(TimedAsk):
    """The acceptance of an offer."""

    __slots__ = ("body", "job")

    def __init__(self, session: ClientState, wait: Wait, offer: OfferAsk) -> None:
        super().__init__(session, wait, offer.lane)
        self.job = b"RESERVED " + offer.job.partition(b" ")[2]
        self.body = offer.body

    def answer(self, lane: Lane, line: bytes, body: bytes) -> None:
        """Take the reply."""
        if self._wait is None:
            take_late(self._session, lane, self.job if line == TAKEN else line, self.body)
        else:
            self._wait.taken(self, lane, line)
