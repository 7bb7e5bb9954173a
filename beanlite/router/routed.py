"""A session as commands see it: the state, and what the router tells of itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from beanlite.router.asks import ReserveAsk
from beanlite.router.known import Map
from beanlite.router.lane import GREETING, OPEN, InternalAsk, Lane
from beanlite.router.state import ClientState


class Routed(ClientState):
    """The state, and what ``stats`` tells of the router."""

    __slots__ = ("_own_stats",)

    def __init__(self, servers: Map, own_stats: Callable[[], Mapping[str, str]], *, tokens_pass: bool = False) -> None:
        """``own_stats`` returns what ``stats`` tells of this process."""
        super().__init__(servers, tokens_pass=tokens_pass)
        self._own_stats = own_stats

    def own_stats(self) -> Mapping[str, str]:
        """Return what takes the place of what servers tell of themselves."""
        return self._own_stats()

    def more_stats(self) -> Mapping[str, str]:
        """Return what ``stats`` tells of the router."""
        servers = self.map.servers.values()
        return {
            "router-servers": str(len(servers)),
            "router-servers-away": str(sum(server.away for server in servers)),
            "router-map-version": str(self.map.fleet.version),
        }

    def heard(self, lane: Lane, now_s: float) -> None:
        """Give a server more time to answer: it is saying something, or is read from again."""
        self.now_s = now_s
        if self.wait is not None:
            self.wait.heard(lane)

    def doubt_servers(self) -> None:
        """Have those servers looked at that owe replies, because the client sends no more, or is gone."""
        for lane in self.lanes.values():
            if lane.asks:
                lane.server.doubt()

    def misplaced(self) -> Lane | None:
        """Return a lane whose connection is to be closed, to end a reserve there, because the file has changed."""
        lane = self.waits_on
        return lane if lane is not None and self.reserve_lanes() != [lane] and self.may_lose(lane) else None

    def is_spare(self, lane: Lane) -> bool:
        """Whether the client can do without a connection that has been made."""
        return lane.state == GREETING or (lane.state == OPEN and self.may_lose(lane))

    def connect_again(self, lane: Lane) -> None:
        """Have another connection made in place of one on which nothing but the greeting was sent."""
        lane.server = self.map.servers.get(lane.number, lane.server)
        lane.connect_again()

    def may_lose(self, lane: Lane) -> bool:
        """Whether its loss costs the client nothing: it has no job there, and its commands can be given again."""
        return not lane.held and all(isinstance(ask, InternalAsk | ReserveAsk) for ask in lane.asks)
