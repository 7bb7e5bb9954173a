"""Opening and closing the database file.

Two locks of two kinds are on it: ours (flock) keeps a second server out and is taken before SQLite sees the file;
SQLite's own (fcntl) are lost as soon as this process closes any descriptor of the file, so the one that holds our lock
stays open until SQLite has closed, and nothing else here opens the file.
"""

import fcntl
import os
import shutil
import sqlite3
import time
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path

from beanlite.errors import ConfigError, JournalFailed, JournalRefused
from beanlite.journal.sqlite.fileformat import (
    PAGE_SIZE,
    check_file,
    check_version,
    is_full,
    refused,
    said,
    shm_of,
    wal_of,
    wal_size,
)
from beanlite.journal.sqlite.mark import Mark, check_mark, serving, stopped
from beanlite.journal.sqlite.migrations import (
    FOLDER,
    allow_writing,
    check_schema,
    find_migrations,
    migrate,
    read_version,
)
from beanlite.journal.sqlite.room import Room
from beanlite.journal.sqlite.wal import commit_frames, frames_of, index_bytes, read_index
from beanlite.journal.sqlite.wholefile import sync, written_whole

_OLDEST_SQLITE = (3, 37, 0)  # STRICT tables
ROW_BYTES = 1000  # of a row, more than what is not its body
_BUSY_TIMEOUT_S = 1.0  # a reader locks others out for moments only: when it recovers the -wal, or is the last to close
_BLOCK_BYTES = 512  # of st_blocks, whatever the disk's
_NEW_WAL_BYTES = 32 << 10  # what SQLite needs to begin a -wal
# The -wal is cut back to this at a checkpoint: several times what it grows to between two, so that it is cut only after
# a reader has held it for long.
WAL_BYTES_MAX = 64 << 20
_PRAGMAS = (
    "synchronous = FULL",
    "wal_autocheckpoint = 0",  # the writer says when
    f"journal_size_limit = {WAL_BYTES_MAX}",
    "secure_delete = OFF",  # on in Debian's builds, and makes deletes of large bodies four times slower
    "mmap_size = 0",
    "temp_store = MEMORY",
    f"cache_size = {-8 << 10}",  # KiB; a batch that doesn't fit is written to the -wal twice
    "trusted_schema = ON",  # the guard triggers name a function of ours
)


@dataclass(slots=True)
class Database:
    """An open database file that no other server can open, and that no other program can write to."""

    connection: sqlite3.Connection
    """In autocommit mode; may be used from any thread, one at a time."""
    path: Path
    """Absolute, symbolic links resolved."""
    created: bool
    """The file was missing or empty."""
    lost_batches: int
    """Batches that stand in the -wal behind a place where SQLite's recovery ended."""
    damaged_wal: Path | None
    """A copy of that -wal. None if no more is lost than a power failure may take along."""
    objects: frozenset[str]
    """The names of our tables and views."""
    room: Room
    file: int
    """A descriptor of the file; it holds our lock."""
    index: int
    """A descriptor of the -shm, SQLite's index of the -wal."""

    def close(self) -> str | None:
        """Move everything into the one file and close it; what is left beside it if that can't be done, and why.

        JournalFailed: the disk failed meanwhile. Not to be called after a failed commit: it would write on. Then the
        process ends as it is, and the next start recovers.
        """
        left = None
        try:
            self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        except sqlite3.Error as error:
            if not is_full(error):
                raise JournalFailed(f"the last checkpoint of {self.path} failed: {said(error)}") from error
            left = "a -wal, because the disk is full"
        finally:
            self.connection.close()
            os.close(self.index)
            if not wal_size(self.path):
                left = None
                stopped(self.file, self.path).write(self.file)
            os.close(self.file)
        return left or ("a -wal that a reader is using" if wal_size(self.path) else None)


def open_database(path: Path, migrations_folder: Path = FOLDER, *, fsync: str = "always") -> Database:
    """Lock, check and open the database file, recovered and of the newest version; a missing or empty one is made.

    ``fsync`` is the setting with which it is going to be served; the next start has to know. JournalRefused: it can't
    be used, and was not written to. A process may not have the same file open twice.
    """
    _check_sqlite()
    migrations = find_migrations(migrations_folder)
    path = Path(os.path.realpath(path))
    with refused(path), ExitStack() as undo:
        file = _lock(path, undo)
        check_file(file, path, len(migrations))
        mark = Mark.read(file)
        if mark is not None:
            check_mark(mark, file, path)
        commits = commit_frames(path)
        index_before = read_index(path) if mark is not None and mark.is_of_this_boot else None
        room = Room(path, file)
        if not room.is_there_for(_bytes_to_start(path)):
            raise JournalRefused(f"there is no room on the disk of {path}, not even to read it; make some")
        after_sqlite = undo.enter_context(ExitStack())
        keeper = undo.enter_context(ExitStack())
        connection = sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
        undo.callback(connection.close)
        _set_up(connection)
        if commits:
            _keep_open(path, keeper)
        version = read_version(connection)
        check_version(path, version, len(migrations))
        check_schema(connection, path, migrations[:version])
        index = _open_index(path, after_sqlite) if commits else -1
        lost_batches = _lost_batches(commits, frames_of(index), index_before and index_before.frames) if commits else 0
        damaged_wal = _keep_wal(path) if lost_batches and not (mark is not None and mark.has_unsynced) else None
        keeper.close()
        _move_wal(connection)
        if version == 0:
            connection.execute(f"PRAGMA page_size = {PAGE_SIZE}")
        migrate(connection, path, migrations)
        objects = check_schema(connection, path, migrations)
        _switch_to_wal(connection, path)
        sync(path.parent)  # no rollback journal may come back that would undo this
        if index < 0:
            index = _open_index(path, after_sqlite)
        serving(file, path, fsync).write(file)
        undo.pop_all()
    return Database(connection, path, version == 0, lost_batches, damaged_wal, objects, room, file, index)


def _check_sqlite() -> None:
    if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
        raise JournalRefused(f"this Python has SQLite {sqlite3.sqlite_version}; 3.37 or newer is needed")
    if sqlite3.threadsafety != 3:
        raise JournalRefused("this Python's SQLite was built without thread safety (serialized mode), which is needed")


def check_body_size(max_job_size: int) -> None:
    """ConfigError: this Python's SQLite can't store such a body."""
    with closing(sqlite3.connect(":memory:")) as connection:
        most = connection.getlimit(sqlite3.SQLITE_LIMIT_LENGTH) - ROW_BYTES
    if max_job_size > most:
        raise ConfigError(
            f"max_job_size = {max_job_size} is more than this Python's SQLite can store; it may be {most} at most"
        )


def _lock(path: Path, undo: ExitStack) -> int:
    """Open the file, making it if there is none, and lock it against other servers; the descriptor holds the lock."""
    created = False
    try:
        try:
            lock = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            created = True
    except OSError as error:
        needed = "it must be a file to read and write, in a directory that exists and is writable"
        raise JournalRefused(f"{path} can't be opened: {error.strerror}; {needed}") from error
    undo.callback(os.close, lock)
    if created:
        undo.callback(path.unlink)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise JournalRefused(f"another server holds {path}; stop it, or name another file") from error
    if not os.access(path.parent, os.W_OK | os.X_OK, effective_ids=True):
        raise JournalRefused(f"the directory {path.parent} is not writable; SQLite must keep files beside {path} there")
    return lock


def _set_up(connection: sqlite3.Connection) -> None:
    for pragma in _PRAGMAS:
        connection.execute(f"PRAGMA {pragma}").fetchall()
    allow_writing(connection)


def _bytes_to_start(path: Path) -> int:
    """How much room on the disk SQLite takes to read the file, and to write the first bit, beyond what it has."""
    wal_bytes = wal_size(path)
    needed = index_bytes(wal_bytes // PAGE_SIZE) + (0 if wal_bytes else _NEW_WAL_BYTES)
    with suppress(FileNotFoundError):
        needed -= shm_of(path).stat().st_blocks * _BLOCK_BYTES  # SQLite makes it anew
    return max(0, needed)


def _open_index(path: Path, after_sqlite: ExitStack) -> int:
    """A descriptor of the -shm, to be closed when SQLite has closed its own: else its locks would be lost."""
    index = os.open(shm_of(path), os.O_RDWR | os.O_CLOEXEC)
    after_sqlite.callback(os.close, index)
    return index


def _keep_open(path: Path, keeper: ExitStack) -> None:
    """Have somebody beside us at the file: the last one to close it would move the -wal into it, be it refused or not.

    One that only reads never does.
    """
    reader = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=_BUSY_TIMEOUT_S)
    keeper.callback(reader.close)
    reader.execute("SELECT 1 FROM sqlite_schema").fetchone()


def _lost_batches(commits: list[int], recovered: int, written: int | None) -> int:
    """How many of these commits SQLite did not recover, being at frame ``recovered``.

    After a kill it is known how many frames were ``written``, unless somebody has looked at the file since, and SQLite
    has noted what it recovered then. Else 0 if it is only one commit: that was being written when the power failed.
    """
    if written is not None and recovered < written:
        return sum(recovered < number <= written for number in commits)
    lost = sum(number > recovered for number in commits)
    return lost if lost > 1 else 0


def _move_wal(connection: sqlite3.Connection) -> None:
    """Have the -wal used from its beginning, which takes no room, unless there is none for what is in it."""
    try:
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    except sqlite3.Error as error:
        if not is_full(error):
            raise


def _keep_wal(path: Path) -> Path:
    """Copy the -wal before it is used anew."""
    wal = wal_of(path)
    copy = wal.with_name(f"{wal.name}.damaged-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}")
    for partial in path.parent.glob(f".{wal.name}.damaged-*.partial"):  # of a start that was killed just here
        partial.unlink()
    try:
        with written_whole(copy) as partial:
            shutil.copyfile(wal, partial)
    except OSError as error:
        raise JournalRefused(f"{wal} is damaged, and can't be copied to {copy}: {error.strerror}") from error
    return copy


def _switch_to_wal(connection: sqlite3.Connection, path: Path) -> None:
    """Last of all, so that the schema and what it is recorded by are in the file itself before there is a -wal."""
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise JournalRefused(f"{path} can't have a write-ahead log where it is; put it on a local disk")
    connection.execute("SELECT 1 FROM sqlite_schema").fetchone()  # so that the -shm exists
