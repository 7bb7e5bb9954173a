"""What has been done in a tube, counted: for the totals that outlive a restart."""

from __future__ import annotations


class Tally:
    """Counts from the moment when the one before it was handed out; it has an attribute for each thing counted."""

    __slots__ = (
        "buried",
        "deleted",
        "held_ns",
        "kicked",
        "name",
        "put",
        "released",
        "reserved",
        "timed_out",
        "waited_ns",
    )

    def __init__(self, name: bytes) -> None:
        self.name = name
        """The tube's."""
        self.put = 0
        self.reserved = 0
        self.deleted = 0
        self.released = 0
        self.timed_out = 0
        self.buried = 0
        self.kicked = 0
        self.waited_ns = 0
        """How long the jobs that were reserved had been ready, in all."""
        self.held_ns = 0
        """How long the jobs that were given back or deleted had been reserved, in all."""

    def add(self, other: Tally) -> None:
        """Count what another one has counted, too."""
        self.put += other.put
        self.reserved += other.reserved
        self.deleted += other.deleted
        self.released += other.released
        self.timed_out += other.timed_out
        self.buried += other.buried
        self.kicked += other.kicked
        self.waited_ns += other.waited_ns
        self.held_ns += other.held_ns
