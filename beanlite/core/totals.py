"""Counts of what is done in a tube, for the totals that survive a restart."""

from __future__ import annotations

from typing import Final

# Of so many reservations the waits are noted at most: of each, or else of one in two, one in four and so on, by chance,
# as reservations may take turns.
WAITS_MAX: Final = 32
# The chance, which is the same each time.
_FACTOR: Final = 1_103_515_245
_MORE: Final = 12_345
_CHANCES: Final = 1 << 31
_LOW_BITS: Final = 16


class Tally:
    """Counts since the previous tally of the tube was taken."""

    __slots__ = (
        "_chance",
        "buried",
        "came",
        "client_gone",
        "dead",
        "delay_over",
        "deleted",
        "duplicates",
        "expired",
        "held",
        "held_ns",
        "kicked",
        "left",
        "name",
        "put",
        "refused",
        "released",
        "reserved",
        "timed_out",
        "wait_at",
        "waited_ns",
        "waits",
        "waits_apart",
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
        self.came = 0
        """Ready or reserved jobs that were moved here."""
        self.left = 0
        """Ready or reserved jobs that were moved to another tube, or delayed."""
        self.waited_ns = 0
        """How long the jobs that were reserved had been ready before, in total."""
        self.held = 0
        """How many reservations ended, in whatever way."""
        self.held_ns = 0
        """How long jobs had been reserved when their reservations ended, in total."""
        self.waits: list[int] = []
        """How long some of the jobs that were reserved had been ready."""
        self.waits_apart = 1
        """How many reservations there are from one of these to the next, on average."""
        self.wait_at = 1
        """The number of the reservation whose wait is noted next."""
        self._chance = 1

    @property
    def is_told(self) -> bool:
        """Whether it counts what operators are told of each tube, even where nobody measures."""
        by_rules = self.dead or self.expired or self.refused or self.duplicates  # which may have been unset since
        return bool(by_rules or self.released or self.timed_out or self.buried or self.client_gone or self.delay_over)

    @property
    def is_moved(self) -> bool:
        """Whether anybody has moved a job on: one that has become too old, and is deleted or buried, goes by itself."""
        return bool(self.reserved or self.released or self.deleted + self.buried > self.expired)

    def choose_wait(self) -> None:
        """Choose the reservation whose wait is noted next; if there are too many waits, keep one of each two."""
        waits = self.waits
        if len(waits) >= WAITS_MAX:
            self.waits = [waits[at + self._throw(2)] for at in range(0, len(waits), 2)]
            self.waits_apart *= 2
        self.wait_at = self.reserved + 1 + self._throw(2 * self.waits_apart - 1)

    def _throw(self, sides: int) -> int:
        """Return a number from 0 on, below ``sides``, by chance."""
        self._chance = (self._chance * _FACTOR + _MORE) % _CHANCES
        return (self._chance >> _LOW_BITS) % sides

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
        self.came += other.came
        self.left += other.left
        self.waited_ns += other.waited_ns
        self.held += other.held
        self.held_ns += other.held_ns
