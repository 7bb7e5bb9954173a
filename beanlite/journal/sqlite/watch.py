"""Whether the files are still the ones that were opened, and the queue in them what the server has written."""

import os
import sqlite3
import time
from pathlib import Path

from beanlite import log
from beanlite.errors import JournalFailed
from beanlite.journal.sqlite.fileformat import failing, size_told, wal_of
from beanlite.journal.sqlite.wal import frames_of, last_frame_at, log_bytes

# In the order in which they were made: who drops one and makes it anew is seen, too. (VACUUM puts tables first.)
_SHAPE = """
    SELECT type, name, tbl_name, sql FROM sqlite_schema
    WHERE type <> 'index' AND tbl_name IN (SELECT value FROM json_each(?)) ORDER BY type <> 'table', rowid
"""
_FORMAT = ("application_id", "user_version", "auto_vacuum", "encoding")
_CUT_LOOKS = 3
_NO_PAGE = bytes(4)  # where a frame has the number of its page
_TICK_NS = 1_000_000_000


class Watch:
    """Asked after each sync, before anything is acknowledged: what was written has to stand where it is looked for.

    Whatever is removed, renamed or linked changes the time of the folder, so that one call of the system tells whether
    each file has to be looked at: a lone job's batch is so short that more would be felt.
    """

    def __init__(self, path: Path, file: int, wal: int, index: int) -> None:
        """Descriptors of the file, its -wal and its -shm."""
        self._path = str(path)
        self._wal_path = str(wal_of(path))
        self._file = file
        self._wal = wal
        self._index = index
        self._folder = os.open(path.parent, os.O_PATH | os.O_CLOEXEC)
        self._folder_ns = 0
        self._inode = _inode(os.fstat(file))
        self._wal_inode = _inode(os.fstat(wal))
        self._size = self._hole = 0
        self.see_size()

    def close(self) -> None:
        """To be called when nothing is written any more."""
        os.close(self._folder)

    def see_size(self) -> None:
        """The file has its right size, after a checkpoint. JournalFailed: it was cut meanwhile, and is long again.

        A page that was once in the file is never a hole again, and the checkpoint has written only some.
        """
        with failing(self._path):
            size = os.fstat(self._file).st_size
            hole = os.lseek(self._file, 0, os.SEEK_HOLE) if size else 0  # the end, if there is none
        if hole < min(self._hole, size):
            raise JournalFailed(f"{self._path} was cut short while it was served")
        self._size, self._hole = size, hole

    def look(self, frames: int) -> None:
        """Raise JournalFailed unless all is as it was, with so many frames committed in the -wal."""
        try:
            folder_ns = os.fstat(self._folder).st_mtime_ns
            size = os.lseek(self._file, 0, os.SEEK_END)
        except OSError as error:
            raise JournalFailed(f"{self._path} can't be looked at: {error.strerror}") from error
        if folder_ns != self._folder_ns:
            self.look_closely()
        if size < self._size:
            self._see_shorter()
        self.look_at_wal(frames)

    def look_at_wal(self, frames: int) -> None:
        """Raise JournalFailed if the -wal is too short for so many frames."""
        try:
            size = os.lseek(self._wal, 0, os.SEEK_END)
        except OSError as error:
            raise JournalFailed(f"{self._wal_path} can't be looked at: {error.strerror}") from error
        if size < log_bytes(frames):
            self._look_for_cut()

    def look_for_hole(self, frames: int) -> None:
        """Raise JournalFailed if the -wal was cut when it had so many frames, and is long again by what came behind."""
        try:
            has_hole = frames and os.pread(self._wal, len(_NO_PAGE), last_frame_at(frames)) == _NO_PAGE
        except OSError as error:
            raise JournalFailed(f"{self._wal_path} can't be looked at: {error.strerror}") from error
        if has_hole:
            raise JournalFailed(f"{self._wal_path} was cut short while it was served")

    def look_closely(self) -> None:
        """Raise JournalFailed unless each name leads to the file that is open, and no other name does."""
        try:
            folder_ns = os.fstat(self._folder).st_mtime_ns
            file, wal = Path(self._path).stat(), Path(self._wal_path).stat()
            index_links = os.fstat(self._index).st_nlink
        except FileNotFoundError as error:
            raise JournalFailed(f"{error.filename} was removed or renamed while it was served") from error
        except OSError as error:
            raise JournalFailed(f"{error.filename or self._path} can't be looked at: {error.strerror}") from error
        if _inode(file) != self._inode:
            raise JournalFailed(f"{self._path} was replaced while it was served")
        if file.st_nlink != 1:
            raise JournalFailed(f"{self._path} was given another name (a hard link) while it was served; remove that")
        if _inode(wal) != self._wal_inode or not index_links:
            raise JournalFailed(f"the -wal or the -shm of {self._path} was removed or replaced while it was served")
        # One more change in the same tick of the kernel's clock would not be seen.
        self._folder_ns = folder_ns if time.time_ns() - folder_ns > _TICK_NS else 0

    def _look_for_cut(self) -> None:
        """Others may empty the -wal rightly."""
        with failing(self._wal_path):
            for _ in range(_CUT_LOOKS):
                # In this order: who empties the -wal notes that first. But it may be empty, noted, and begun anew by
                # then.
                size = os.fstat(self._wal).st_size
                if size >= log_bytes(frames_of(self._index)):
                    return
        raise JournalFailed(f"{self._wal_path} was cut short while it was served")

    def _see_shorter(self) -> None:
        """Another program's checkpoint cuts the file rightly, to the size that it says it has."""
        with failing(self._path):
            size = os.fstat(self._file).st_size
            header = os.pread(self._file, 100, 0)
        if not header or size < size_told(header):
            raise JournalFailed(f"{self._path} was cut short while it was served")
        self._size, self._hole = size, min(size, self._hole)


def _inode(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


class Outsiders:
    """Notices that another program has committed, or moved the -wal into the file.

    Our rows can hardly have changed as long as the triggers that guard them are what they were; all else may.
    """

    def __init__(self, connection: sqlite3.Connection, path: Path, objects: frozenset[str]) -> None:
        """``objects``: the names of our tables and views."""
        self._connection = connection
        self._path = path
        self._objects = "[" + ", ".join(f'"{name}"' for name in sorted(objects)) + "]"
        self._version = self._read_version()
        self._shape = self._read_shape()
        self._seen = 0
        self.may_be_us = False
        """A transaction of ours has failed; that can count as a change, too."""

    def look(self) -> bool:
        """Whether there was somebody; to be called in each transaction.

        JournalFailed: the queue may no longer be what was served.
        """
        version = self._read_version()
        if version == self._version:
            return False
        if self._read_shape() != self._shape:
            raise JournalFailed(f"another program has changed {self._path}; it no longer is what was served")
        self._version = version
        if self.may_be_us:
            self.may_be_us = False
            return True
        self._seen += 1
        if self._seen & (self._seen - 1) == 0:  # the 1st, 2nd, 4th, 8th …
            log.warning("another program has been at the file, but not at the queue", times=self._seen)
        return True

    def _read_version(self) -> int:
        version: int = self._connection.execute("PRAGMA data_version").fetchone()[0]
        return version

    def _read_shape(self) -> list[tuple[object, ...]]:
        execute = self._connection.execute
        formats = [execute(f"PRAGMA {name}").fetchone() for name in _FORMAT]
        return formats + execute(_SHAPE, (self._objects,)).fetchall()
