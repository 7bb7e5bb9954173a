"""What the connections of clients know of the router."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from beanlite.beanstalk.client import Server
from beanlite.router.known import Map
from beanlite.router.lane import Lane
from beanlite.router.parting import Partings
from beanlite.router.upstream import Upstream

# The connection of a client.
Client = TypeVar("Client")


@dataclass(slots=True)
class RouterHost(Generic[Client]):
    """What a connection knows of the router."""

    map: Map
    upstreams: dict[int, Upstream]
    own_stats: Callable[[], Mapping[str, str]]
    admit: Callable[[Client], bool]
    """Called with a new connection; returns False if there are too many."""
    forget: Callable[[Client], None]
    relays: bool
    """Servers are told for whom each connection asks."""
    partings: Partings

    def is_gone(self, lane: Lane, address: Server | None) -> bool:
        """Whether the server of a lane does not answer at this address any more, but at another one."""
        upstream = self.upstreams.get(lane.number)
        return upstream is not None and upstream.is_gone_from(address)

    def is_stray(self, lane: Lane, address: Server | None) -> bool:
        """Whether a connection to this address is not one to the server of a lane any more."""
        upstream = self.upstreams.get(lane.number)
        return upstream is None or upstream.server is not lane.server or address not in upstream.addresses
