"""What a session knows of the servers: which there are, which of them has a tube, and what each one understands."""

from __future__ import annotations

from collections.abc import Callable

from beanlite.fleet.servers import Fleet


def _nobody() -> None:
    pass


class KnownServer:
    """A server, as the router last saw it."""

    __slots__ = ("away", "doubt", "knows_notes", "knows_offers", "max_job_size", "name", "number")

    def __init__(self, number: int, name: str) -> None:
        self.number = number
        self.name = name
        self.away = False
        """It can't be reached at any of its addresses."""
        self.knows_offers = False
        """It understands ``offer``, ``take`` and ``decline``."""
        self.knows_notes = False
        """It understands ``note``."""
        self.max_job_size: int | None = None
        """The largest body that it takes; None: it has not been asked."""
        self.doubt: Callable[[], None] = _nobody
        """To be called when a client goes, or goes on, without a reply that the server owes: it may be halted."""


class Map:
    """The servers of the router, which all sessions share."""

    __slots__ = ("edition", "fleet", "servers")

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.servers: dict[int, KnownServer] = {}
        """The servers by their numbers."""
        self.edition = 0
        """How often it has changed."""
        self._take_servers()

    def change(self, fleet: Fleet) -> None:
        """Take another file of servers; each session is then told by ``look_again``."""
        self.fleet = fleet
        self.edition += 1
        self._take_servers()

    def _take_servers(self) -> None:
        before = self.servers
        self.servers = {}
        for member in self.fleet.members:
            server = before.get(member.number)
            if server is None or server.name != member.name:
                server = KnownServer(member.number, member.name)
            self.servers[member.number] = server
