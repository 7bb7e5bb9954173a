"""Recognises a -wal beside a file to which it does not belong, because a copy was put in the place of its own.

A backup is not in WAL mode before it is first served, so a -wal beside one is not its own. Any other copy may look as
if it were: SQLite would put the -wal into it, which damages it, or undoes what the copy was meant to bring back. So
each server makes the file differ from all copies that were made before, and notes on the -wal what its file has, at
least. The note is an extended attribute, as is the mark. Where there is none, as on a copy of the -wal, nothing is
known.
"""

import contextlib
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple, Self

from beanlite.journal.sqlite.fileformat import HEADER_BYTES, WAL_MODE, journal_of, read_at, wal_of, wal_size
from beanlite.journal.sqlite.mark import ATTRIBUTE

# What the server that has the file now, or had it last, has written into it, at its start and ever since.
_STAMP: Final = "SELECT (SELECT started_at FROM server), (SELECT batch FROM meta)"
# SQLite adds 1 to the first salt whenever it begins the -wal anew. The server writes the note again each time; other
# programs may do this as well.
_SALT: Final = 16
_SALT_BYTES: Final = 4
_SALTS: Final = 1 << 32
_ANEW_MAX: Final = 1000


class Stamp(NamedTuple):
    """What tells a file from copies that were made of it before."""

    started_at: str
    """When its server started."""
    batch: int
    """A batch that has been moved from the -wal into the file."""

    @classmethod
    def read(cls, connection: sqlite3.Connection) -> Self:
        """Read the stamp of an open database. Raises sqlite3.Error."""
        started_at, batch = connection.execute(_STAMP).fetchone()
        return cls(repr(started_at), int(batch))


class _Note(NamedTuple):
    """The contents of the attribute: these values, in this order, separated by spaces."""

    inode: int
    """The inode number of the -wal; a copy that includes the attribute has a different one."""
    salt: int
    """The first salt of the -wal; if another -wal is copied over this one, it has a different one."""
    stamp: Stamp

    @classmethod
    def read(cls, wal: Path) -> Self | None:
        """Read the note on a -wal; None if there is none that belongs to it. OSError: the -wal can't be read."""
        descriptor = os.open(wal, os.O_RDONLY | os.O_CLOEXEC)
        try:
            inode, salt, started_at, batch = os.getxattr(descriptor, ATTRIBUTE).decode().split(" ")
            note = cls(int(inode), int(salt), Stamp(started_at, int(batch)))
            anew = (_first_salt(descriptor) - note.salt) % _SALTS
            is_own = note.inode == os.fstat(descriptor).st_ino and anew <= _ANEW_MAX
        except (OSError, ValueError):  # there is none, or there can't be one
            return None
        finally:
            os.close(descriptor)
        return note if is_own else None


def _first_salt(wal: int) -> int:
    return int.from_bytes(read_at(wal, _SALT_BYTES, _SALT))


class Tie:
    """Keeps the note on a -wal right while a server writes to it."""

    def __init__(self, connection: sqlite3.Connection, wal: int) -> None:
        """``wal`` is a file descriptor of the -wal. OSError: the note of an earlier server can't be removed."""
        self._db = connection
        self._wal = wal
        self._is_noted = False
        self.is_due = False
        """The next batch is to write its number: the file then differs from copies made before the last checkpoint."""
        try:
            os.removexattr(wal, ATTRIBUTE)
        except OSError:
            return  # there is none, or there can't be one
        os.fsync(wal)  # or a power failure could bring it back, when the file has what this server has written

    def begin(self, *, has_room: bool) -> None:
        """Move what this server has written at its start into the file, if there is room: no older copy has that.

        Raises sqlite3.Error.
        """
        if not has_room:
            return
        try:
            _, frames, moved = self._db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF not in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_FULL}:
                raise
            return
        if 0 <= frames == moved:
            self._note(Stamp.read(self._db))
            self._is_noted = True

    def begin_checkpoint(self) -> Stamp | None:
        """What the file will have after a checkpoint; None: that is not noted. Raises sqlite3.Error."""
        return Stamp.read(self._db) if self._is_noted else None

    def end_checkpoint(self, stamp: Stamp | None, frames: int, moved: int) -> None:
        """Note what the file has now, if all frames have been moved into it."""
        if stamp is not None and 0 <= frames == moved:
            self._note(stamp)
            self.is_due = True

    def _note(self, stamp: Stamp) -> None:
        words = (os.fstat(self._wal).st_ino, _first_salt(self._wal), *stamp)
        with contextlib.suppress(OSError):  # not supported, or no room: nothing is known then
            os.setxattr(self._wal, ATTRIBUTE, " ".join(map(str, words)).encode())


def has_stray_wal(descriptor: int, path: Path) -> bool:
    """Whether the -wal beside an open file of ours belongs to another file. OSError: the -wal can't be read.

    To be called before SQLite opens the file, since its locks would be lost.
    """
    header = read_at(descriptor, HEADER_BYTES, 0)
    if not header or not wal_size(path) or journal_of(path).exists():
        return False
    if header[18:20] != WAL_MODE:
        return True
    noted = _Note.read(wal_of(path))
    if noted is None:
        return False
    stamp = _stamp_without_wal(path)
    if stamp is None or (stamp.started_at == noted.stamp.started_at and stamp.batch >= noted.stamp.batch):
        return False
    return _Note.read(wal_of(path)) == noted  # otherwise a server has started meanwhile


def _stamp_without_wal(path: Path) -> Stamp | None:
    """The stamp of the file itself; None if that can't be read: the file is damaged, or is being written to."""
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?immutable=1", uri=True)) as connection:
            return Stamp.read(connection)
    except (sqlite3.Error, UnicodeDecodeError, TypeError, ValueError) as error:
        is_older = getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_ERROR  # before there was such a table
        return Stamp("", 0) if is_older else None
