"""Counts of what is done in a tube, for the totals that survive a restart."""

from __future__ import annotations

from typing import Final

# Of so many reservations the waits are noted at most: of each, or else of every second, every fourth and so on.
WAITS_MAX: Final = 32


class Tally:
    """Counts since the previous tally of the tube was taken."""

    __slots__ = (
        "buried",
        "client_gone",
        "dead",
        "delay_over",
        "deleted",
        "duplicates",
        "expired",
        "held_ns",
        "kicked",
        "name",
        "put",
        "refused",
        "released",
        "reserved",
        "timed_out",
        "waited_ns",
        "waits",
        "waits_full",
        "waits_mask",
    )

    def __init__(self, name: bytes) -> None:
        self.name = name
        """The name of the tube."""
        self.put = 0
        self.reserved = 0
        self.deleted = 0
        self.released = 0
        self.timed_out = 0
        self.buried = 0
        self.kicked = 0
        self.dead = 0
        """Jobs that came back after too many tries."""
        self.expired = 0
        """Jobs that became too old."""
        self.refused = 0
        """Puts that would have been too many jobs."""
        self.duplicates = 0
        """Puts whose job was there already."""
        self.client_gone = 0
        """Reservations that ended because their client left."""
        self.delay_over = 0
        """Delayed jobs that became ready by themselves."""
        self.waited_ns = 0
        """How long the jobs that were reserved had been ready before, in total."""
        self.held_ns = 0
        """How long jobs had been reserved when their reservations ended, in total."""
        self.waits: list[int] = []
        """How long some of the jobs that were reserved had been ready: those of whose number no bit is in the mask."""
        self.waits_mask = 0
        self.waits_full = WAITS_MAX
        """With that many reservations ``waits`` are as many as there may be."""

    @property
    def is_told(self) -> bool:
        """Whether it counts what operators are told of each tube, even where nobody measures."""
        return bool(self.released or self.timed_out or self.buried or self.client_gone or self.delay_over)

    def thin_waits(self) -> None:
        """Keep every second of the waits, and note only as many from now on."""
        self.waits = self.waits[1::2]
        self.waits_mask = 2 * self.waits_mask + 1
        self.waits_full *= 2

    def add(self, other: Tally) -> None:
        """Add the counts of another tally, but no waits."""
        self.put += other.put
        self.reserved += other.reserved
        self.deleted += other.deleted
        self.released += other.released
        self.timed_out += other.timed_out
        self.buried += other.buried
        self.kicked += other.kicked
        self.dead += other.dead
        self.expired += other.expired
        self.refused += other.refused
        self.duplicates += other.duplicates
        self.client_gone += other.client_gone
        self.delay_over += other.delay_over
        self.waited_ns += other.waited_ns
        self.held_ns += other.held_ns
