"""Room on the disk: how much is left, and the reserve kept for when there is none."""

import os
from pathlib import Path
from typing import Final

from beanlite.errors import JournalFailed
from beanlite.journal.sqlite.fileformat import has_used_up_quota

# The size of the reserve: enough to store accepted changes on a full disk, and to let deletes make room.
RESERVE_BYTES: Final = 8 << 20


class Room:
    """The disk that a database is on, and the reserve file beside it."""

    def __init__(self, path: Path, descriptor: int) -> None:
        """``descriptor`` is an open file descriptor of the database."""
        self._path = path
        self._reserve = Path(f"{path}-reserve")
        self._descriptor = descriptor

    def take_reserve(self) -> bool:
        """Allocate the reserve. False: the disk has less than twice as much room.

        A reserve left by a killed server is kept even then, since it may be needed soon.
        """
        return self._free_bytes() >= 2 * RESERVE_BYTES and self._allocate(RESERVE_BYTES)

    def give_up_reserve(self) -> bool:
        """Remove the reserve; returns False if there is none. JournalFailed: it can't be removed."""
        try:
            self._reserve.unlink()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise JournalFailed(f"{self._reserve} can't be removed: {error.strerror}") from error
        return True

    def for_bodies(self) -> int:
        """How many more bytes of bodies can be put; a body needs room first in the -wal, and later in the file."""
        return (self._free_bytes() + RESERVE_BYTES) // 2

    def has_room_for(self, size: int) -> bool:
        """Whether this many bytes are free, if necessary after giving up a reserve left by a killed server."""
        if not size or (self._free_bytes() >= RESERVE_BYTES and not has_used_up_quota(self._path, size)):
            return True
        self.give_up_reserve()
        has_room = self._allocate(size)  # free space need not be available to us
        self.give_up_reserve()
        return has_room

    def _allocate(self, size: int) -> bool:
        try:
            descriptor = os.open(self._reserve, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(descriptor, 0, size)
            finally:
                os.close(descriptor)
        except OSError:
            self.give_up_reserve()
            return False
        return True

    def _free_bytes(self) -> int:
        try:
            disk = os.fstatvfs(self._descriptor)
        except OSError as error:
            raise JournalFailed(f"the disk of {self._path} can't be asked for its room: {error.strerror}") from error
        return disk.f_bavail * disk.f_frsize
