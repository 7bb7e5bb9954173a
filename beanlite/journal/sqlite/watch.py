"""Whether the files are still the ones that were opened, and whether only the server has changed the queue in them."""

import os
import sqlite3
import time
from pathlib import Path
from typing import Final, NamedTuple

from beanlite import log
from beanlite.errors import JournalFailed
from beanlite.journal.sqlite.fileformat import HEADER_BYTES, claimed_size, failing, read_at, wal_of
from beanlite.journal.sqlite.wal import Progress, last_frame_offset, min_wal_size, read_frame_count, read_progress

# Everything that belongs to our tables, in the order in which it was made, so that something dropped and made again is
# noticed. (VACUUM puts tables first.)
_SHAPE: Final = """
    SELECT type, name, tbl_name, sql FROM sqlite_schema
    WHERE type <> 'index' AND tbl_name IN (SELECT value FROM json_each(?)) ORDER BY type <> 'table', rowid
"""
# Properties of the file that nobody may change either.
_FORMAT: Final = ("application_id", "user_version", "auto_vacuum", "encoding")
# How often the -wal is compared with its index before it counts as cut short.
_CUT_TRIES: Final = 3
# What a frame that is nothing but a hole has in the place of its page's number.
_NO_PAGE: Final = bytes(4)
# Longer than the tick of any kernel's clock: files that were changed longer ago have an unmistakable time.
_TICK_NS: Final = 1_000_000_000


class _Written(NamedTuple):
    """What the file began with, which tells of each change of its size, and how far the -wal had been moved then."""

    progress: Progress
    header: bytes


class Watch:
    """Checks that what has been written stands where the next start will look for it.

    It is asked after each sync, before anything is acknowledged. Whatever is removed, renamed or linked changes the
    time of the folder, so that one system call tells whether each of the files has to be looked at.
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
        """The time of the folder at the last check of the names; 0: they have to be checked again."""
        self._inode = _inode(os.fstat(file))
        self._wal_inode = _inode(os.fstat(wal))
        self._written = self._read_written()
        self._size = self._hole = 0
        """How long the file is, and where its first hole is."""
        self.note_size()

    def close(self) -> None:
        """To be called when nothing more will be written."""
        os.close(self._folder)

    def note_size(self) -> None:
        """Remember how long the file is after a checkpoint. JournalFailed: it was cut short meanwhile, and has grown.

        A page that has once been in the file never becomes a hole, and the checkpoint has written only some pages.
        """
        with failing(self._path):
            size = os.fstat(self._file).st_size
            hole = os.lseek(self._file, 0, os.SEEK_HOLE) if size else 0  # the end, if there is none
        if hole < min(self._hole, size):
            raise JournalFailed(f"{self._path} was cut short while it was served")
        self._size, self._hole = size, hole
        self._written = self._read_written()

    def committed(self, kept: int, *, anew: bool) -> None:
        """To be called after a commit: so many frames from before it are left, or it has begun the -wal ``anew``.

        JournalFailed: the -wal was cut short.
        """
        self._check_no_hole(kept)
        written = self._written
        if anew or written.progress.may_begin_anew:
            with failing(self._path):
                progress = read_progress(self._index)
                if read_at(self._file, HEADER_BYTES, 0) == written.header:  # else ``check`` has to see what it was
                    self._written = _Written(progress, written.header)

    def check(self, frames: int) -> None:
        """Raise JournalFailed unless everything is as it was, with this many frames committed in the -wal."""
        try:
            folder_ns = os.fstat(self._folder).st_mtime_ns
            size = os.lseek(self._file, 0, os.SEEK_END)
            header = os.pread(self._file, HEADER_BYTES, 0)
        except OSError as error:
            raise JournalFailed(f"{self._path} can't be looked at: {error.strerror}") from error
        if folder_ns != self._folder_ns:
            self.check_names()
        if size < self._size:
            self._check_shorter_file()
        if header != self._written.header:
            self._check_written()
        self.check_wal(frames)

    def check_wal(self, frames: int) -> None:
        """Raise JournalFailed if the -wal is too short for this many frames."""
        try:
            size = os.lseek(self._wal, 0, os.SEEK_END)
        except OSError as error:
            raise JournalFailed(f"{self._wal_path} can't be looked at: {error.strerror}") from error
        if size < min_wal_size(frames):
            self._check_shorter_wal()

    def _check_no_hole(self, frames: int) -> None:
        """Raise JournalFailed if the -wal was cut short when it had this many frames, and has grown again since."""
        try:
            has_hole = frames and os.pread(self._wal, len(_NO_PAGE), last_frame_offset(frames)) == _NO_PAGE
        except OSError as error:
            raise JournalFailed(f"{self._wal_path} can't be looked at: {error.strerror}") from error
        if has_hole:
            raise JournalFailed(f"{self._wal_path} was cut short while it was served")

    def check_names(self) -> None:
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
        # Another change within the same tick of the kernel's clock would leave the folder's time as it is.
        self._folder_ns = folder_ns if time.time_ns() - folder_ns > _TICK_NS else 0

    def _read_written(self) -> _Written:
        with failing(self._path):
            # In this order, because whoever moves the -wal into the file notes that in the index first.
            progress = read_progress(self._index)
            return _Written(progress, read_at(self._file, HEADER_BYTES, 0))

    def _check_written(self) -> None:
        """Raise JournalFailed if the file has another header, and nobody has moved anything from the -wal into it."""
        before = self._written
        self._written = self._read_written()
        progress, header = self._written
        if header == before.header or progress != before.progress or progress.moved < progress.to_move:
            return
        with failing(self._path):
            at_rest = read_progress(self._index) == progress  # else it was read while it was being written
        if at_rest:
            raise JournalFailed(f"{self._path} was overwritten while it was served")

    def _check_shorter_wal(self) -> None:
        """Raise JournalFailed unless another program has rightly emptied the -wal."""
        with failing(self._wal_path):
            for _ in range(_CUT_TRIES):
                # In this order, because a program that empties the -wal notes that in the index first. But when the
                # index is read, the -wal may have been emptied and begun anew: hence the tries.
                size = os.fstat(self._wal).st_size
                if size >= min_wal_size(read_frame_count(self._index)):
                    return
        raise JournalFailed(f"{self._wal_path} was cut short while it was served")

    def _check_shorter_file(self) -> None:
        """Raise JournalFailed unless a checkpoint of another program has rightly cut the file: its header tells."""
        with failing(self._path):
            size = os.fstat(self._file).st_size
            header = read_at(self._file, HEADER_BYTES, 0)
        if not header or size < claimed_size(header):
            raise JournalFailed(f"{self._path} was cut short while it was served")
        self._size, self._hole = size, min(size, self._hole)


def _inode(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


class Outsiders:
    """Notices that another program has committed something, or moved the -wal into the file.

    As long as the triggers that guard them are unchanged, our rows can hardly have changed; anything else may have.
    """

    def __init__(self, connection: sqlite3.Connection, path: Path, objects: frozenset[str]) -> None:
        """``objects``: the names of our tables and views."""
        self._connection = connection
        self._path = path
        self._objects = "[" + ", ".join(f'"{name}"' for name in sorted(objects)) + "]"
        self._version = self._read_version()
        self._shape = self._read_shape()
        self._times = 0
        """How often other programs have been noticed."""
        self.may_be_us = False
        """A transaction of ours has failed, which may count as a change, too."""

    def check(self) -> bool:
        """Whether there has been a change since the last check; to be called in each transaction.

        JournalFailed: the queue may no longer be the one that was served.
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
        self._times += 1
        if self._times & (self._times - 1) == 0:  # the 1st, 2nd, 4th, 8th … time
            log.warning("another program has been at the file, but not at the queue", times=self._times)
        return True

    def _read_version(self) -> int:
        version: int = self._connection.execute("PRAGMA data_version").fetchone()[0]
        return version

    def _read_shape(self) -> list[tuple[object, ...]]:
        execute = self._connection.execute
        formats = [execute(f"PRAGMA {name}").fetchone() for name in _FORMAT]
        return formats + execute(_SHAPE, (self._objects,)).fetchall()
