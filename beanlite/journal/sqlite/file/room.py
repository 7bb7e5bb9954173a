"""The room on the disk: how much is left for jobs, and a reserve that lets deletes go on when there is none."""

import errno
import os
import stat
from pathlib import Path
from typing import Final

from beanlite.errors import JournalFailed
from beanlite.host import log
from beanlite.journal.sqlite.file.fileformat import has_used_up_quota

# The size of the reserve: enough to store accepted changes on a full disk, and to let deletes make room.
RESERVE_BYTES: Final = 8 << 20
# With less than this there is no reserve.
_LEAST_BYTES: Final = 1 << 20
# The errors that tell that something else has the name of the reserve; with any other it may still be ours.
_NOT_OURS: Final = {errno.EACCES, errno.EPERM, errno.EISDIR, errno.ELOOP, errno.ENXIO, errno.ETXTBSY}


class Room:
    """The disk that a database is on, and the reserve file beside it."""

    def __init__(self, path: Path, descriptor: int) -> None:
        """``descriptor`` is an open file descriptor of the database."""
        self._path = path
        self._reserve = Path(f"{path}-reserve")
        self._descriptor = descriptor
        self._is_unusable = False
        """Something that is not ours has the name of the reserve, and can't be removed."""

    def take_reserve(self) -> bool:
        """Take the reserve, or half of what there is towards it; returns whether there is room for jobs beside it.

        What is there of it already, such as a reserve left by a killed server, is kept in any case.
        """
        size = self._reserve_size()
        room = size + self._free_bytes()
        if room < _LEAST_BYTES:
            return False
        goal = min(RESERVE_BYTES, max(room // 2, _LEAST_BYTES))
        is_whole = self._allocate(goal)
        while not is_whole and goal > max(size, _LEAST_BYTES):  # a quota may be smaller than the disk
            goal //= 2
            if self._allocate(goal):
                break
        return room >= 2 * RESERVE_BYTES and is_whole

    def give_up_reserve(self) -> bool:
        """Remove the reserve; returns False if there is none. JournalFailed: it can't be removed."""
        try:
            self._reserve.unlink()
        except FileNotFoundError:
            return False
        except (PermissionError, IsADirectoryError) as error:
            self._go_without(error)
            return False
        except OSError as error:
            raise JournalFailed(f"{self._reserve} can't be removed: {error.strerror}") from error
        return True

    def for_bodies(self) -> int:
        """Return how many bytes of bodies can still be put; each takes room in the -wal, and later in the file."""
        return (self._free_bytes() + RESERVE_BYTES) // 2

    def has_room_for(self, size: int) -> bool:
        """Whether this many bytes are free, if necessary after taking them from a reserve left by a killed server."""
        if not size or (self._free_bytes() >= RESERVE_BYTES and not has_used_up_quota(self._path, size)):
            return True
        reserve = self._reserve_size()
        has_room = self._allocate(reserve + size)  # free space need not be available to us
        rest = reserve
        if not has_room:
            rest = max(0, reserve - size - _LEAST_BYTES)  # reading the file takes a little more
            self._cut(rest)
            has_room = self._allocate(rest + size)
        self._cut(rest)
        return has_room

    def _reserve_size(self) -> int:
        """Return the size of the reserve in bytes."""
        try:
            return 0 if self._is_unusable else self._reserve.stat(follow_symlinks=False).st_size
        except OSError:
            return 0

    def _cut(self, size: int) -> None:
        """Cut the reserve to this size. Raises as ``give_up_reserve``."""
        if size:
            try:
                os.truncate(self._reserve, size)
            except OSError as error:
                raise JournalFailed(f"{self._reserve} can't be cut: {error.strerror}") from error
        else:
            self.give_up_reserve()

    def _allocate(self, size: int) -> bool:
        """Enlarge the reserve to this size. False: that is not possible at present, and it is as it was."""
        size_before = self._reserve_size()
        try:
            descriptor = self._open()
        except OSError as error:
            if error.errno not in _NOT_OURS:
                return False
            self._go_without(error)
            return True
        try:
            os.posix_fallocate(descriptor, 0, size)
        except OSError:
            self._cut(size_before)
            return False
        finally:
            os.close(descriptor)
        return True

    def _open(self) -> int:
        """Open the reserve, and in place of what is not ours a new one. OSError: it can't be opened."""
        try:
            return self._open_file()
        except OSError as error:
            if self._is_unusable or error.errno not in _NOT_OURS:
                raise
            self._reserve.unlink()
            return self._open_file()

    def _open_file(self) -> int:
        # To read as well: where the file system can't allocate, glibc writes to each block, once it has read what is
        # there. Without O_NONBLOCK, we might have to wait for what is no file.
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(self._reserve, flags, 0o600)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(errno.ENXIO, "it is not a regular file", str(self._reserve))
        return descriptor

    def _go_without(self, error: OSError) -> None:
        if not self._is_unusable:
            self._is_unusable = True
            why = error.strerror or str(error)
            log.warning("no reserve for a full disk: another file has its name", file=self._reserve, error=why)

    def _free_bytes(self) -> int:
        try:
            disk = os.fstatvfs(self._descriptor)
        except OSError as error:
            raise JournalFailed(f"the disk of {self._path} does not report its free space: {error.strerror}") from error
        return disk.f_bavail * disk.f_frsize
