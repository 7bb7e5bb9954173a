"""Who has to be looked at when: one alarm for each tube and client, all in one heap."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from beanlite.core.heap import KeyHeap

if TYPE_CHECKING:
    from beanlite.core.client import Client
    from beanlite.core.tube import Tube

NEVER_NS: Final = 1 << 100

_SERIAL_BITS: Final = 64
_SERIAL_MASK: Final = (1 << _SERIAL_BITS) - 1


class Alarms:
    """At most one alarm an owner, whatever it owns: the soonest time at which it could have something to do.

    An alarm is only moved forward. When it rings and there is nothing to do yet (the job whose ttr it was for has been
    deleted), its owner sets it again. So a job that comes and goes within its ttr costs no alarm at all, and a hundred
    thousand reservations a second leave nothing behind.
    """

    __slots__ = ("_heap", "_owners", "next_ns")

    def __init__(self) -> None:
        self._heap = KeyHeap()
        self._owners: dict[int, Client | Tube] = {}
        self.next_ns = NEVER_NS
        """When the soonest rings."""

    def set(self, owner: Client | Tube, when_ns: int) -> None:
        """Have the owner looked at by ``when_ns`` at the latest."""
        if when_ns >= owner.alarm_ns:
            return
        self.cancel(owner)
        owner.alarm_ns = when_ns
        self._owners[owner.serial] = owner
        self._heap.push(when_ns << _SERIAL_BITS | owner.serial)
        self._see_next()

    def cancel(self, owner: Client | Tube) -> None:
        """Forget the owner's alarm, if it has one."""
        if self._owners.pop(owner.serial, None) is not None:
            self._heap.remove(owner.alarm_ns << _SERIAL_BITS | owner.serial)
            owner.alarm_ns = NEVER_NS
            self._see_next()

    def ring(self) -> Client | Tube:
        """The owner of the soonest alarm, which has now no alarm any more."""
        owner = self._owners.pop(self._heap.pop() & _SERIAL_MASK)
        owner.alarm_ns = NEVER_NS
        self._see_next()
        return owner

    def _see_next(self) -> None:
        keys = self._heap.keys
        self.next_ns = keys[0] >> _SERIAL_BITS if keys else NEVER_NS
