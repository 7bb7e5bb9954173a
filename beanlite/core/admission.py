"""Whether puts are accepted, which depends on the operator, on the disk and on memory."""

from typing import Final

from beanlite.core.memory import BODY_BYTES, JOB_BYTES, NO_BOUND, Memory

# What a put takes in addition to the bytes of its body.
PUT_BYTES: Final = JOB_BYTES + BODY_BYTES


class Admission:
    """What a put is checked against. Only its methods change anything, except that ``Engine.put`` uses up room."""

    __slots__ = ("_disk_bytes", "_memory", "disk_full", "draining", "granted_bytes", "room_bytes")

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self.draining = False
        """Puts are refused because the operator asked for that."""
        self.disk_full = False
        """The disk has no room for another job."""
        self._disk_bytes = NO_BOUND
        """Bytes of bodies for which the disk has room."""
        self.room_bytes = NO_BOUND
        """Bytes of bodies that may be put before the next batch; negative if there is no room even for an empty one."""
        self.granted_bytes = NO_BOUND
        """``room_bytes`` at the start of the batch being gathered."""

    @property
    def used_bytes(self) -> int:
        """What puts have used up in the batch being gathered: their bodies, and PUT_BYTES for each job."""
        return self.granted_bytes - self.room_bytes

    def take(self, jobs: int) -> int:
        """Begin the next batch: the one being taken has this many new jobs. Returns the size of their bodies."""
        put_bytes = self.used_bytes - jobs * PUT_BYTES
        self._disk_bytes -= put_bytes
        self.granted_bytes = self.room_bytes  # none of it is used yet
        return put_bytes

    def grant(self) -> None:
        """Update how much room there is."""
        used_bytes = self.used_bytes
        self.granted_bytes = -1 if self.disk_full else min(self._disk_bytes, self._memory.room_bytes)
        self.room_bytes = self.granted_bytes - used_bytes

    def use_disk(self, size: int) -> None:
        """Note that something other than a put takes so many bytes on the disk, and has taken memory."""
        self._disk_bytes -= size
        self.grant()

    def refuse_puts(self) -> None:
        """Refuse puts because the disk is full."""
        self.disk_full = True
        self.grant()

    def accept_puts(self, room_bytes: int) -> None:
        """Accept puts again: the disk has room for this many bytes of bodies until the next call."""
        self.disk_full = False
        self._disk_bytes = room_bytes
        self.grant()

    def lack_room(self) -> None:
        """Note that a put has been refused for lack of room."""
        if not self.disk_full and self._memory.room_bytes <= self._disk_bytes:
            self._memory.refuse()

    def drain(self) -> None:
        """Refuse puts from now on, as the operator asked."""
        self.draining = True
