"""Timers: at most one for each tube and client, and one for all schedules; all in one heap."""

from typing import Final

from beanlite.core.heap import KeyHeap

# Later than any time at which something can be due.
NEVER_NS: Final = 1 << 100

# A key of the heap is the time, followed by the owner's serial number in this many low bits.
_SERIAL_BITS: Final = 64
_SERIAL_MASK: Final = (1 << _SERIAL_BITS) - 1


class TimerOwner:
    """The base of everything that can have a timer."""

    __slots__ = ("serial", "timer_ns")

    def __init__(self, serial: int) -> None:
        self.serial = serial
        """Unique among all owners of timers."""
        self.timer_ns = NEVER_NS
        """When its timer expires; only ``Timers`` changes it."""


class Chore(TimerOwner):
    """Work that is done in slices when its timer expires."""

    __slots__ = ()

    def carry_out(self, budget: int, now_ns: int) -> int:
        """Do a slice of it, set the timer if there is more to do, and return the cost, counted in jobs moved."""
        raise NotImplementedError


class Timers:
    """At most one timer for each owner, however many jobs it has: set to when something could first be due.

    A timer is only ever moved to an earlier time. If nothing is due yet when it expires (say, because the job whose ttr
    it was set for has been deleted), its owner sets it again. So a job that comes and goes within its ttr needs no
    timer, and a hundred thousand reservations a second leave nothing behind.
    """

    __slots__ = ("_heap", "_owners", "next_ns")

    def __init__(self) -> None:
        self._heap = KeyHeap()
        self._owners: dict[int, TimerOwner] = {}
        self.next_ns = NEVER_NS
        """When the next timer expires."""

    def set(self, owner: TimerOwner, when_ns: int) -> None:
        """Have the owner's timer expire by ``when_ns`` at the latest."""
        if when_ns >= owner.timer_ns:
            return
        self.cancel(owner)
        owner.timer_ns = when_ns
        self._owners[owner.serial] = owner
        self._heap.push(when_ns << _SERIAL_BITS | owner.serial)
        self._update_next()

    def cancel(self, owner: TimerOwner) -> None:
        """Remove the owner's timer, if it has one."""
        if self._owners.pop(owner.serial, None) is not None:
            self._heap.remove(owner.timer_ns << _SERIAL_BITS | owner.serial)
            owner.timer_ns = NEVER_NS
            self._update_next()

    def pop(self) -> TimerOwner:
        """Remove the next timer to expire, and return its owner. Raises IndexError if there is none."""
        owner = self._owners.pop(self._heap.pop() & _SERIAL_MASK)
        owner.timer_ns = NEVER_NS
        self._update_next()
        return owner

    def _update_next(self) -> None:
        keys = self._heap.keys
        self.next_ns = keys[0] >> _SERIAL_BITS if keys else NEVER_NS
