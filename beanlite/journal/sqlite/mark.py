"""A note kept at the file itself: who served it last, and whether that came to an orderly end.

It is an extended attribute, because it has to outlive what it is about: it is there under each name that the file has,
and when the file has been emptied, but not at a copy. On a file system without such attributes there is none, and what
it would tell is not noticed.
"""

import contextlib
import errno
import os
from pathlib import Path
from typing import NamedTuple, Self

from beanlite.errors import JournalRefused
from beanlite.journal.sqlite.fileformat import WAL_MODE, wal_of, wal_size
from beanlite.journal.sqlite.wal import commit_frames, read_index

ATTRIBUTE = "user.beanlite"
_SERVING, _STOPPED = "serving", "stopped"
_UNKNOWN = "-"
_NOT_TO_BE_HAD = (errno.ENODATA, errno.ENOTSUP, errno.EPERM)


class Mark(NamedTuple):
    """What the attribute says, in this order and with blanks in between."""

    state: str
    """``serving`` from before the first commit on, ``stopped`` when all is in the one file."""
    inode: int
    """Of the file: a copy that took the attribute along has another."""
    boot_id: str
    """Of the kernel: the same one has not lost what was written and not yet synced."""
    fsync: str
    """``always``, or another setting, with which a power failure may take the last commits along."""
    path: str
    """The name that the file was served under; its -wal is beside that one."""

    @classmethod
    def read(cls, descriptor: int) -> Self | None:
        """The note at an open file; None if there is none that can be read, or it is about another file."""
        try:
            state, inode, boot_id, fsync, path = os.fsdecode(os.getxattr(descriptor, ATTRIBUTE)).split(" ", 4)
            mark = cls(state, int(inode), boot_id, fsync, path)
        except OSError as error:
            if error.errno not in _NOT_TO_BE_HAD:
                raise
            return None
        except ValueError:
            return None
        return mark if mark.inode == os.fstat(descriptor).st_ino else None

    def write(self, descriptor: int) -> None:
        """Leave this note at an open file, if that can be done."""
        with contextlib.suppress(OSError):  # not supported, or no room: then less is noticed, and nothing is lost
            os.setxattr(descriptor, ATTRIBUTE, os.fsencode(" ".join(map(str, self))))

    @property
    def is_of_this_boot(self) -> bool:
        """Whether the server that wrote it was killed, if it was: what it had written is all there."""
        return self.state == _SERVING and self.boot_id == _boot_id() != _UNKNOWN

    @property
    def has_unsynced(self) -> bool:
        """Whether it may rightly be that the last commits, though acknowledged, did not outlive a power failure."""
        return self.fsync != "always" and not self.is_of_this_boot


def serving(descriptor: int, path: Path, fsync: str) -> Mark:
    """The note of a server that is about to write."""
    return Mark(_SERVING, os.fstat(descriptor).st_ino, _boot_id(), fsync, str(path))


def stopped(descriptor: int, path: Path) -> Mark:
    """The note that everything is in the file."""
    return Mark(_STOPPED, os.fstat(descriptor).st_ino, _boot_id(), "always", str(path))


def check_mark(mark: Mark, descriptor: int, path: Path) -> None:
    """Raise JournalRefused unless all is there that belongs to the file, by what was noted of it.

    To be called before SQLite opens the file, which forgets what the -shm says.
    """
    if not os.fstat(descriptor).st_size:
        raise JournalRefused(f"{path} is empty, but held a queue; put it back, or remove it to begin with an empty one")
    if mark.state != _SERVING or os.pread(descriptor, 2, 18) != WAL_MODE:  # restored in its place, and not served yet
        return
    if mark.path != str(path) and _may_be_left(Path(mark.path), path):
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


def _may_be_left(theirs: Path, path: Path) -> bool:
    """Whether the -wal that belongs to the file is beside the name that it was served under, as far as we can see."""
    try:
        if not theirs.parent.is_dir():  # in another container, or on another machine
            return not wal_size(path)
        if not wal_size(theirs) or (wal_size(path) and wal_of(theirs).samefile(wal_of(path))):
            return False
        return not theirs.exists() or theirs.samefile(path)  # else that -wal is another queue's
    except OSError:  # out of our reach
        return not wal_size(path)


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:  # no /proc: then every end counts as a power failure
        return _UNKNOWN
