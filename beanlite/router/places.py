"""What a session knows of the servers: which there are, which of them has a tube, and what each one understands."""

from __future__ import annotations

from beanlite.fleet.servers import Fleet


class Place:
    """A server, as the router last saw it."""

    __slots__ = ("away", "knows_notes", "knows_offers", "max_job_size", "name", "number")

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


class Map:
    """The servers of the router, which all sessions share."""

    __slots__ = ("edition", "fleet", "places")

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.places: dict[int, Place] = {}
        """The servers by their numbers."""
        self.edition = 0
        """How often it has changed."""
        self._take_places()

    def change(self, fleet: Fleet) -> None:
        """Take another file of servers; each session is then told by ``look_again``."""
        self.fleet = fleet
        self.edition += 1
        self._take_places()

    def _take_places(self) -> None:
        before = self.places
        self.places = {}
        for member in self.fleet.members:
            place = before.get(member.number)
            if place is None or place.name != member.name:
                place = Place(member.number, member.name)
            self.places[member.number] = place
