"""A note kept with the file: how it was last served, and whether that server stopped in an orderly way.

The mark is an extended attribute: it stays with the file under each of its names, and when the file is emptied, but a
copy does not have it. On a file system without extended attributes there is no mark, and the faults that it would
reveal go unnoticed.
"""

import contextlib
import errno
import os
from pathlib import Path
from typing import NamedTuple, Self

from beanlite.errors import JournalRefused
from beanlite.journal.sqlite.file.fileformat import WAL_MODE, wal_of, wal_size
from beanlite.journal.sqlite.file.wal import commit_frames, read_index

# The name of the extended attribute.
ATTRIBUTE = "user.beanlite"
# The two states of a mark.
_SERVING, _STOPPED = "serving", "stopped"
# The id of a boot whose real id is unknown.
_UNKNOWN = "-"
# The errors of a file that has no such attribute, or can't have one.
_UNAVAILABLE = (errno.ENODATA, errno.ENOTSUP, errno.EPERM, errno.ENOSYS)


class Mark(NamedTuple):
    """The contents of the attribute: these values, in this order, separated by spaces."""

    state: str
    """``serving`` from before the first commit, ``stopped`` once everything is in a single file."""
    inode: int
    """The file's inode number; a copy that includes the attribute has a different one."""
    boot_id: str
    """The kernel's boot id; while it is the same, unsynced writes are not lost."""
    fsync: str
    """``always``, or another setting, with which a power failure may lose the last commits."""
    path: str
    """The name under which the file was served; its -wal is beside that name."""

    @classmethod
    def read(cls, descriptor: int) -> Self | None:
        """Read the mark of an open file; None if there is none, it is malformed, or it belongs to another file."""
        try:
            state, inode, boot_id, fsync, path = os.fsdecode(os.getxattr(descriptor, ATTRIBUTE)).split(" ", 4)
            mark = cls(state, int(inode), boot_id, fsync, path)
        except OSError as error:
            if error.errno not in _UNAVAILABLE:
                raise
            return None
        except ValueError:
            return None
        return mark if mark.inode == os.fstat(descriptor).st_ino else None

    def write(self, descriptor: int) -> None:
        """Attach this mark to an open file, if the file system allows that."""
        with contextlib.suppress(OSError):  # not supported, or no room: fewer faults are noticed, but nothing is lost
            os.setxattr(descriptor, ATTRIBUTE, os.fsencode(" ".join(map(str, self))))

    @property
    def is_of_this_boot(self) -> bool:
        """Whether the server was killed but the kernel kept running, so that everything it had written is there."""
        return self.state == _SERVING and self.boot_id == boot_id() is not None

    @property
    def has_unsynced(self) -> bool:
        """Whether a power failure may legitimately have lost the last commits, although they were acknowledged."""
        return self.fsync != "always" and not self.is_of_this_boot


def serving_mark(descriptor: int, path: Path, fsync: str) -> Mark:
    """Return the mark of a server that is about to write."""
    return Mark(_SERVING, os.fstat(descriptor).st_ino, boot_id() or _UNKNOWN, fsync, str(path))


def stopped_mark(descriptor: int, path: Path) -> Mark:
    """Return the mark of a server that has moved everything into the file."""
    return Mark(_STOPPED, os.fstat(descriptor).st_ino, boot_id() or _UNKNOWN, "always", str(path))


def check_mark(mark: Mark, descriptor: int, path: Path) -> None:
    """Raise JournalRefused unless everything that belongs to the file, according to its mark, is there.

    To be called before SQLite opens the file, because SQLite discards the contents of the -shm.
    """
    if not os.fstat(descriptor).st_size:
        raise JournalRefused(f"{path} is empty, but held a queue; put it back, or remove it to begin with an empty one")
    if mark.state != _SERVING or os.pread(descriptor, 2, 18) != WAL_MODE:
        return  # in the second case, a backup was copied over the file and has not been served yet
    if mark.path != str(path) and _wal_may_be_at(Path(mark.path), path):
        raise JournalRefused(
            f"{path} was last served as {mark.path}, and its -wal may be beside that name: serve it under that name, or"
            " bring the -wal; if there is none, serve a copy of the file"
        )
    index = read_index(path) if mark.is_of_this_boot else None
    if index is not None and index.frames and index.frames not in commit_frames(path, index.salts):
        raise JournalRefused(
            f"{wal_of(path)} is missing or cut short, with commits that were acknowledged; put it back, or remove the"
            " -shm beside it to go on without them"
        )


def _wal_may_be_at(theirs: Path, path: Path) -> bool:
    """Whether the file's -wal may be beside the name under which it was served, as far as this process can see."""
    try:
        if not theirs.parent.is_dir():  # it was served in another container, or on another machine
            return not wal_size(path)
        if not wal_size(theirs) or (wal_size(path) and wal_of(theirs).samefile(wal_of(path))):
            return False
        return not theirs.exists() or theirs.samefile(path)  # otherwise that -wal belongs to another queue
    except OSError:  # that folder is not accessible
        return not wal_size(path)


def boot_id() -> str | None:
    """Return the kernel's id of this boot."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:  # without /proc, every unclean end counts as a power failure
        return None
