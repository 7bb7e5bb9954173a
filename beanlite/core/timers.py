"""Who has to be looked at when: one timer for each tube and client, all in one heap."""

from __future__ import annotations

from typing import Final

from beanlite.core.heap import KeyHeap

# Later than anything that is ever due.
NEVER_NS: Final = 1 << 100

# A key of the heap is the time, and below it the owner's serial number in so many bits.
_SERIAL_BITS: Final = 64
_SERIAL_MASK: Final = (1 << _SERIAL_BITS) - 1


class Timed:
    """Whatever can have a timer."""

    __slots__ = ("serial", "timer_ns")

    def __init__(self, serial: int) -> None:
        self.serial = serial
        """Its own among all owners of timers."""
        self.timer_ns = NEVER_NS
        """When its timer expires; only ``Timers`` changes it."""


class Timers:
    """At most one timer for each owner, whatever it holds: the earliest time at which it could have something to do.

    A timer is only ever moved forward. When it expires and there is nothing to do yet (the job whose ttr it was set for
    has been deleted), its owner sets it again. So a job that comes and goes within its ttr costs no timer at all, and a
    hundred thousand reservations a second leave nothing behind.
    """

    __slots__ = ("_heap", "_owners", "next_ns")

    def __init__(self) -> None:
        self._heap = KeyHeap()
        self._owners: dict[int, Timed] = {}
        self.next_ns = NEVER_NS
        """When the next one expires."""

    def set(self, owner: Timed, when_ns: int) -> None:
        """Have the owner looked at by ``when_ns`` at the latest."""
        if when_ns >= owner.timer_ns:
            return
        self.cancel(owner)
        owner.timer_ns = when_ns
        self._owners[owner.serial] = owner
        self._heap.push(when_ns << _SERIAL_BITS | owner.serial)
        self._update_next()

    def cancel(self, owner: Timed) -> None:
        """Forget the owner's timer, if it has one."""
        if self._owners.pop(owner.serial, None) is not None:
            self._heap.remove(owner.timer_ns << _SERIAL_BITS | owner.serial)
            owner.timer_ns = NEVER_NS
            self._update_next()

    def pop(self) -> Timed:
        """Take out the next timer to expire, and return its owner. IndexError if there is none."""
        owner = self._owners.pop(self._heap.pop() & _SERIAL_MASK)
        owner.timer_ns = NEVER_NS
        self._update_next()
        return owner

    def _update_next(self) -> None:
        keys = self._heap.keys
        self.next_ns = keys[0] >> _SERIAL_BITS if keys else NEVER_NS
