"""Whether puts are accepted: that depends on the operator, on the disk and on memory."""

from __future__ import annotations

from typing import Final

from beanlite.core.memory import BODY_BYTES, JOB_BYTES, NO_BOUND, Memory

# What a put takes beside the bytes of the body.
PUT_BYTES: Final = JOB_BYTES + BODY_BYTES


class Admission:
    """What a put is checked against. Only the methods change anything, but for ``Engine.put``, which uses room up."""

    __slots__ = ("_disk_bytes", "_memory", "disk_full", "draining", "granted_bytes", "room_bytes")

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self.draining = False
        """No puts are wanted any more."""
        self.disk_full = False
        """The disk has no room for another job."""
        self._disk_bytes = NO_BOUND
        """How large the bodies may be for which the disk has room."""
        self.room_bytes = NO_BOUND
        """How large the bodies may be that are put before the next batch; negative if not even an empty one may."""
        self.granted_bytes = NO_BOUND
        """What that was when the batch being gathered began."""

    @property
    def used_bytes(self) -> int:
        """How much has been put since then: bodies, and PUT_BYTES for each job."""
        return self.granted_bytes - self.room_bytes

    def take(self, jobs: int) -> int:
        """A batch with so many new jobs is taken, and the next one begins; returns how large their bodies are."""
        put_bytes = self.used_bytes - jobs * PUT_BYTES
        self._disk_bytes -= put_bytes
        self.granted_bytes = self.room_bytes  # none of it is used yet
        return put_bytes

    def grant(self) -> None:
        """See how much room there is now."""
        used_bytes = self.used_bytes
        self.granted_bytes = -1 if self.disk_full else min(self._disk_bytes, self._memory.room_bytes)
        self.room_bytes = self.granted_bytes - used_bytes

    def refuse_puts(self) -> None:
        """The disk is full."""
        self.disk_full = True
        self.grant()

    def accept_puts(self, room_bytes: int) -> None:
        """The disk has room for so many bytes of bodies, until this is called again."""
        self.disk_full = False
        self._disk_bytes = room_bytes
        self.grant()

    def lack_room(self) -> None:
        """A put has been refused because there is no room for it."""
        if not self.disk_full and self._memory.room_bytes <= self._disk_bytes:
            self._memory.refuse()

    def drain(self) -> None:
        """Refuse puts from now on, as the operator asked."""
        self.draining = True
