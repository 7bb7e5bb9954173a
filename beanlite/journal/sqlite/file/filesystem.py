"""What the server and SQLite need of a file system, and whether a folder's has it."""

import fcntl
import mmap
import os
import struct
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

# The file systems that are known to have everything, as advice.
_SUITABLE: Final = "put the database on a file system of this machine, such as ext4 or XFS"

# FS_IOC_GETFLAGS, FS_IOC_SETFLAGS and FS_NOCOW_FL of <linux/fs.h>. Where the numbers are others, nothing is set.
_FLAGS: Final = struct.Struct("=i")
_GET_FLAGS: Final = 0x80006601 | struct.calcsize("l") << 16
_SET_FLAGS: Final = 0x40006602 | struct.calcsize("l") << 16
_NO_COPY: Final = 0x00800000

_LOCK: Final = fcntl.LOCK_EX | fcntl.LOCK_NB


def _map(descriptor: int) -> None:
    os.ftruncate(descriptor, mmap.PAGESIZE)
    mmap.mmap(descriptor, mmap.PAGESIZE).close()


# What is needed, and a trial of it on a new file.
_NEEDS: Final[tuple[tuple[str, Callable[[int], None]], ...]] = (
    ("locks by flock", lambda descriptor: fcntl.flock(descriptor, _LOCK)),
    ("locks by fcntl", lambda descriptor: fcntl.lockf(descriptor, _LOCK)),
    ("shared memory in files (mmap)", _map),
)


def lack_of(folder: Path) -> str | None:
    """Return what the file system of a folder lacks, and what to do, as the end of a message.

    None if it lacks nothing, or if no file can be made in the folder.
    """
    try:
        with tempfile.TemporaryFile(dir=folder) as probe:
            for what, attempt in _NEEDS:
                try:
                    attempt(probe.fileno())
                except OSError as error:
                    kind = _kind_of(os.fstat(probe.fileno()).st_dev)
                    return f"its file system{kind} has no {what} ({error.strerror}): {_SUITABLE}"
    except OSError:
        return None
    return None


def write_in_place(empty_file: int) -> None:
    """Have an open file, which must be empty, changed where its blocks are.

    Btrfs writes each change to other blocks otherwise: on a full disk, one that a process makes through memory (mmap)
    ends the process by SIGBUS, although the blocks of the file are allocated. Linux before 6.17 does that in any case.
    """
    with suppress(OSError):  # other file systems do so anyway
        (flags,) = _FLAGS.unpack(fcntl.ioctl(empty_file, _GET_FLAGS, bytes(_FLAGS.size)))
        fcntl.ioctl(empty_file, _SET_FLAGS, _FLAGS.pack(flags | _NO_COPY))


def _kind_of(device: int) -> str:
    """Return the kind of a mounted file system, in brackets; empty if it can't be told."""
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        for line in Path("/proc/self/mountinfo").read_text(errors="replace").splitlines():
            mount, _, how = line.partition(" - ")  # proc(5)
            if mount.split()[2] == number:
                return f" ({how.split()[0]})"
    except (OSError, IndexError):
        pass
    return ""
