"""Checks that the files are still those that were opened, and that only the server has changed the queue in them."""

import json
import os
import sqlite3
import time
from pathlib import Path
from typing import Final, NamedTuple

from beanlite.errors import JournalFailed
from beanlite.host import log
from beanlite.journal.migrations import find_migrations
from beanlite.journal.sqlite.file.fileformat import HEADER_BYTES, claimed_size, failing, read_at, refused, wal_of
from beanlite.journal.sqlite.file.migrations import check_foreign, describe_foreign, meddling
from beanlite.journal.sqlite.file.wal import Progress, last_frame_offset, min_wal_size, read_frame_count, read_progress

# Everything that belongs to our tables, in order of creation, so that dropping and recreating an object is noticed.
# (VACUUM puts tables first. The table of a trigger is kept as it was typed.)
_SHAPE: Final = """
    SELECT type, name, tbl_name, CAST(sql AS BLOB) FROM sqlite_schema
    WHERE type <> 'index' AND lower(tbl_name) IN (SELECT lower(value) FROM json_each(?)) ORDER BY type <> 'table', rowid
"""
# Properties of the file that must not change either.
_FORMAT: Final = ("application_id", "user_version", "auto_vacuum", "encoding")
# How often the -wal is compared with its index before it counts as truncated.
_CUT_TRIES: Final = 3
# The page number in a frame that is a hole.
_NO_PAGE: Final = bytes(4)
# As constants of this module, which compiled code need not look up: these are called for each batch.
_stat: Final = os.stat
_lseek: Final = os.lseek
_pread: Final = os.pread
_END: Final[int] = os.SEEK_END
# Longer than the tick of any kernel's clock: once a modification time is older than this, no new change can share it.
_TICK_NS: Final = 1_000_000_000


class _FileState(NamedTuple):
    """The file's header, which changes whenever its size does, and the progress of checkpoints at that time."""

    progress: Progress
    header: bytes


class Watch:
    """A check that the written data is where the next start will look for it.

    This is checked after each sync, before anything is acknowledged. Removing, renaming or linking a file changes the
    modification time of the folder, so one system call shows whether the files have to be checked by name. The folder
    itself is looked at by name, since nothing else shows that it was moved or unmounted.
    """

    def __init__(self, path: Path, file: int, wal: int, index: int) -> None:
        """``file``, ``wal`` and ``index`` are file descriptors of the file, its -wal and its -shm."""
        self._path = str(path)
        self._wal_path = str(wal_of(path))
        self._file = file
        self._wal = wal
        self._index = index
        self._folder_path = str(path.parent)
        self._folder_inode = _inode(path.parent.stat())
        self._folder_ns = 0
        """The folder's modification time at the last check of the names; 0: they have to be checked again."""
        self._inode = _inode(os.fstat(file))
        self._wal_inode = _inode(os.fstat(wal))
        self._state = self._read_state()
        self._size = self._hole = 0
        """The size of the file, and the offset of its first hole."""
        self.note_size()

    def note_size(self) -> None:
        """Record the file's size after a checkpoint. JournalFailed: the file was truncated and has grown again.

        A page in the file never becomes a hole by itself. But after a truncation, a checkpoint writes only some of the
        missing pages, and leaves holes for the others.
        """
        with failing(self._path):
            size = os.fstat(self._file).st_size
            hole = os.lseek(self._file, 0, os.SEEK_HOLE) if size else 0  # the end, if there is none
        if hole < min(self._hole, size):
            raise JournalFailed(f"{self._path} was cut short while it was served")
        self._size, self._hole = size, hole
        self._state = self._read_state()

    def check_commit(self, rest: int, *, anew: bool) -> None:
        """Check the -wal after a commit, which has left ``rest`` earlier frames in it, or restarted it if ``anew``.

        JournalFailed: the -wal was truncated.
        """
        self._check_no_hole(rest)
        state = self._state
        if anew or state.progress.may_begin_anew:
            with failing(self._path):
                progress = read_progress(self._index)
                if read_at(self._file, HEADER_BYTES, 0) == state.header:  # else ``check`` needs the previous state
                    self._state = _FileState(progress, state.header)

    def check(self, frames: int) -> None:
        """Raise JournalFailed unless all files are intact, given the number of frames committed in the -wal."""
        try:
            folder = _stat(self._folder_path)
            size = _lseek(self._file, 0, _END)
            header = _pread(self._file, HEADER_BYTES, 0)
        except OSError as error:
            raise self._failure(error) from error
        if folder.st_mtime_ns != self._folder_ns or _inode(folder) != self._folder_inode:
            self.check_names()
        if size < self._size:
            self._check_shorter_file()
        if header != self._state.header:
            self._check_state()
        self.check_wal(frames)

    def check_wal(self, frames: int) -> None:
        """Raise JournalFailed if the -wal is too short for this many frames."""
        try:
            size = _lseek(self._wal, 0, _END)
        except OSError as error:
            raise JournalFailed(f"{self._wal_path} can't be looked at: {error.strerror}") from error
        if size < min_wal_size(frames):
            self._check_shorter_wal()

    def _check_no_hole(self, frames: int) -> None:
        """Raise JournalFailed if the -wal was truncated when it had this many frames, and has grown again since."""
        try:
            has_hole = frames and _pread(self._wal, len(_NO_PAGE), last_frame_offset(frames)) == _NO_PAGE
        except OSError as error:
            raise JournalFailed(f"{self._wal_path} can't be looked at: {error.strerror}") from error
        if has_hole:
            raise JournalFailed(f"{self._wal_path} was cut short while it was served")

    def check_names(self) -> None:
        """Raise JournalFailed unless each name refers to the file that is open, and no other name does."""
        try:
            folder, file, wal = _stat(self._folder_path), _stat(self._path), _stat(self._wal_path)
            index_links = os.fstat(self._index).st_nlink
        except OSError as error:
            raise self._failure(error) from error
        if _inode(file) != self._inode or _inode(folder) != self._folder_inode:  # even if its files have followed it
            raise JournalFailed(f"{self._path} was replaced while it was served")
        if file.st_nlink != 1:
            raise JournalFailed(f"{self._path} was given another name (a hard link) while it was served; remove that")
        if _inode(wal) != self._wal_inode or not index_links:
            raise JournalFailed(f"the -wal or the -shm of {self._path} was removed or replaced while it was served")
        # Another change within the same tick of the kernel's clock would not change the folder's modification time.
        folder_ns = folder.st_mtime_ns
        self._folder_ns = folder_ns if time.time_ns() - folder_ns > _TICK_NS else 0

    def _failure(self, error: OSError) -> JournalFailed:
        """Return the failure to raise for an error of a look at the files."""
        name = error.filename or self._path
        if isinstance(error, FileNotFoundError):
            return JournalFailed(f"{name} was removed or renamed while it was served")
        return JournalFailed(f"{name} can't be looked at: {error.strerror}")

    def _read_state(self) -> _FileState:
        with failing(self._path):
            # In this order, because a checkpoint is noted in the index before it writes to the file.
            progress = read_progress(self._index)
            return _FileState(progress, read_at(self._file, HEADER_BYTES, 0))

    def _check_state(self) -> None:
        """Raise JournalFailed if the header of the file has changed without a checkpoint."""
        before = self._state
        self._state = self._read_state()
        progress, header = self._state
        if header == before.header or progress != before.progress or progress.moved < progress.to_move:
            return
        with failing(self._path):
            at_rest = read_progress(self._index) == progress  # else the header was read while it was being written
        if at_rest:
            raise JournalFailed(f"{self._path} was overwritten while it was served")

    def _check_shorter_wal(self) -> None:
        """Raise JournalFailed unless another program has legitimately emptied the -wal."""
        with failing(self._wal_path):
            for _ in range(_CUT_TRIES):
                # In this order, because a program that empties the -wal notes that in the index first. But between the
                # two reads, the -wal may have been emptied and restarted: hence several tries.
                size = os.fstat(self._wal).st_size
                if size >= min_wal_size(read_frame_count(self._index)):
                    return
        raise JournalFailed(f"{self._wal_path} was cut short while it was served")

    def _check_shorter_file(self) -> None:
        """Raise JournalFailed unless, by its header, another program's checkpoint legitimately truncated the file."""
        with failing(self._path):
            size = os.fstat(self._file).st_size
            header = read_at(self._file, HEADER_BYTES, 0)
        if not header or size < claimed_size(header):
            raise JournalFailed(f"{self._path} was cut short while it was served")
        self._size, self._hole = size, min(size, self._hole)


def _inode(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


class Outsiders:
    """A detector of other programs that have committed something, or moved the -wal into the file.

    As long as their guard triggers are unchanged, our rows are unlikely to have changed; anything else may have.
    """

    def __init__(self, connection: sqlite3.Connection, path: Path, objects: frozenset[str]) -> None:
        """``objects`` are the names of our tables and views. JournalRefused: the file can't be read."""
        self._connection = connection
        self._path = path
        self._objects = sorted(objects)
        with refused(path):
            self._version = self._read_version()
            check_foreign(connection, path, find_migrations())  # it may have come since the file was opened
            self._meddling = meddling(connection, objects)
            self._shape = self._read_shape()
        self._times = 0
        """How often other programs have been detected."""
        self.may_be_us = False
        """A transaction of ours has failed, which may count as a change too."""

    @property
    def came(self) -> bool:
        """Whether another program has ever been detected."""
        return self._times > 0

    def check(self) -> bool:
        """Return whether there has been a change since the last check; to be called in each transaction.

        JournalFailed: the queue may no longer be the one that was served.
        """
        version = self._read_version()
        if version == self._version:
            return False
        foreign = sorted(meddling(self._connection, self._objects) - self._meddling)
        if foreign:
            raise JournalFailed(f"{self._path} {describe_foreign(self._path, foreign[0])}")
        if self._read_shape() != self._shape:
            raise JournalFailed(f"another program has changed {self._path}; it no longer is what was served")
        self._version = version
        if self.may_be_us:
            self.may_be_us = False
            return True
        self._times += 1
        if log.is_rare(self._times):
            log.warning("another program wrote to the file; the queue is unchanged", times=self._times)
        return True

    def _read_version(self) -> int:
        version: int = self._connection.execute("PRAGMA data_version").fetchone()[0]
        return version

    def _read_shape(self) -> list[tuple[object, ...]]:
        execute = self._connection.execute
        formats = [execute(f"PRAGMA {name}").fetchone() for name in _FORMAT]
        return formats + execute(_SHAPE, (json.dumps(self._objects),)).fetchall()
