"""A note kept with the file: who served it last, and whether that server stopped in an orderly way.

It is an extended attribute: it stays with the file under each of its names, and when the file is emptied, but a copy
does not have it. On a file system without such attributes there is no mark, and what it would tell goes unnoticed.
"""

import contextlib
import errno
import os
from pathlib import Path
from typing import NamedTuple, Self

from beanlite.errors import JournalRefused
from beanlite.journal.sqlite.fileformat import WAL_MODE, wal_of, wal_size
from beanlite.journal.sqlite.wal import commit_frames, read_index

# The name of the extended attribute.
ATTRIBUTE = "user.beanlite"
# The two states of a mark.
_SERVING, _STOPPED = "serving", "stopped"
# The id of a boot whose real id is unknown.
_UNKNOWN = "-"
# The errors of a file that has no such attribute, or can't have one.
_UNAVAILABLE = (errno.ENODATA, errno.ENOTSUP, errno.EPERM)


class Mark(NamedTuple):
    """What the attribute says, in this order, separated by blanks."""

    state: str
    """``serving`` from before the first commit, ``stopped`` when everything is in the one file."""
    inode: int
    """Of the file; a copy that took the attribute along has another one."""
    boot_id: str
    """Of the kernel; as long as it is the same, what was written but not yet synced is not lost."""
    fsync: str
    """``always``, or another setting, which lets a power failure take the last commits."""
    path: str
    """The name that the file was served under; its -wal is beside that one."""

    @classmethod
    def read(cls, descriptor: int) -> Self | None:
        """The mark of an open file; None if there is none, it makes no sense, or it is about another file."""
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
        """Leave this mark at an open file, if the file system allows it."""
        with contextlib.suppress(OSError):  # not supported, or no room: less is noticed then, but nothing is lost
            os.setxattr(descriptor, ATTRIBUTE, os.fsencode(" ".join(map(str, self))))

    @property
    def is_of_this_boot(self) -> bool:
        """Whether its server was killed, but the kernel was not: everything that it had written is there."""
        return self.state == _SERVING and self.boot_id == boot_id() is not None

    @property
    def has_unsynced(self) -> bool:
        """Whether a power failure may rightly have taken the last commits, although they were acknowledged."""
        return self.fsync != "always" and not self.is_of_this_boot


def serving_mark(descriptor: int, path: Path, fsync: str) -> Mark:
    """The mark of a server that is about to write."""
    return Mark(_SERVING, os.fstat(descriptor).st_ino, boot_id() or _UNKNOWN, fsync, str(path))


def stopped_mark(descriptor: int, path: Path) -> Mark:
    """The mark of a server that has moved everything into the file."""
    return Mark(_STOPPED, os.fstat(descriptor).st_ino, boot_id() or _UNKNOWN, "always", str(path))


def check_mark(mark: Mark, descriptor: int, path: Path) -> None:
    """Raise JournalRefused unless everything that belongs to the file, according to its mark, is there.

    To be called before SQLite opens the file, because it forgets what the -shm says.
    """
    if not os.fstat(descriptor).st_size:
        raise JournalRefused(f"{path} is empty, but held a queue; put it back, or remove it to begin with an empty one")
    if mark.state != _SERVING or os.pread(descriptor, 2, 18) != WAL_MODE:
        return  # in the second case a backup was copied over the file, and has not been served yet
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
    """Whether the -wal of the file may be beside the name that it was served under, as far as can be seen from here."""
    try:
        if not theirs.parent.is_dir():  # it was served in another container, or on another machine
            return not wal_size(path)
        if not wal_size(theirs) or (wal_size(path) and wal_of(theirs).samefile(wal_of(path))):
            return False
        return not theirs.exists() or theirs.samefile(path)  # otherwise that -wal is another queue's
    except OSError:  # that place is out of our reach
        return not wal_size(path)


def boot_id() -> str | None:
    """The kernel's id of this boot."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:  # no /proc: then every end counts as a power failure
        return None
