"""Room on the disk: how much is left, and the reserve that is kept for when none is."""

import os
from pathlib import Path
from typing import Final

from beanlite.errors import JournalFailed

# Kept free on the disk, given up when the disk is full, so that what was promised can still be stored and the queue can
# drain.
RESERVE_BYTES: Final = 8 << 20


class Room:
    """The disk on which a database is, and the reserve beside it."""

    def __init__(self, path: Path, descriptor: int) -> None:
        """``descriptor``: of the database."""
        self._path = path
        self._reserve = Path(f"{path}-reserve")
        self._descriptor = descriptor

    def take_reserve(self) -> bool:
        """Have the reserve allocated; False if the disk has no room for it, and for as much again.

        One that a killed server has left is kept in any case, for when it is needed.
        """
        return self._free_bytes() >= 2 * RESERVE_BYTES and self._take(RESERVE_BYTES)

    def give_up_reserve(self) -> bool:
        """Free what the reserve takes; False if there is none. JournalFailed: the disk does not let us."""
        try:
            self._reserve.unlink()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise JournalFailed(f"{self._reserve} can't be removed: {error.strerror}") from error
        return True

    def for_bodies(self) -> int:
        """How many bytes more can be put: a body needs its room in the -wal first, and in the file later."""
        return (self._free_bytes() + RESERVE_BYTES) // 2

    def is_there_for(self, size: int) -> bool:
        """Whether so many bytes can be had, if need be with what a killed server kept in reserve, now given up."""
        if not size or self._free_bytes() >= RESERVE_BYTES:
            return True
        self.give_up_reserve()
        there = self._take(size)  # what is free may not be for us to take
        self.give_up_reserve()
        return there

    def _take(self, size: int) -> bool:
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
