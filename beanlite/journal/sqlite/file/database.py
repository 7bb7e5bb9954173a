"""Opening and closing the database file.

Two kinds of locks protect the file. Ours (flock) keeps a second server out, and is taken before SQLite opens the file.
SQLite's own locks (fcntl) are lost as soon as this process closes any descriptor of the file. The descriptor that holds
our lock therefore stays open until SQLite has closed the file, and nothing else here opens it.
"""

import fcntl
import glob
import os
import shutil
import sqlite3
import time
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path

from beanlite.errors import ConfigError, JournalFailed, JournalRefused, NoRoom
from beanlite.journal.migrations import FOLDER, find_migrations
from beanlite.journal.sqlite.file.fileformat import (
    PAGE_SIZE,
    WAL_MODE,
    check_file,
    check_version,
    damaged,
    is_full,
    open_regular,
    refused,
    shm_of,
    stray_wal,
    text_of,
    wal_of,
    wal_size,
)
from beanlite.journal.sqlite.file.filesystem import write_in_place
from beanlite.journal.sqlite.file.mark import Mark, check_mark, serving_mark, stopped_mark
from beanlite.journal.sqlite.file.migrations import (
    allow_writing,
    check_foreign,
    check_schema,
    check_texts,
    migrate,
    read_version,
)
from beanlite.journal.sqlite.file.page_map import check_page_map
from beanlite.journal.sqlite.file.room import Room
from beanlite.journal.sqlite.file.stray import forget, has_stray_wal, moved_away
from beanlite.journal.sqlite.file.wal import commit_frames, index_size, min_wal_size, read_frame_count, read_index
from beanlite.journal.sqlite.file.wholefile import lock_byte, sync, written_whole

# The first version with STRICT tables.
_OLDEST_SQLITE = (3, 37, 0)
# More than a row needs apart from its body.
ROW_BYTES = 1000
# How long to wait for a reader's lock. Readers hold one only briefly, to recover the -wal or as the last to close.
# During this wait no signal is heeded, so a start waits for a writer's lock by trying again.
_BUSY_TIMEOUT_S = 1.0
# How many commits in the -wal may be unsynced, and therefore unacknowledged, at the same time: a batch, and a slice of
# the upkeep that runs alongside.
UNSYNCED_MAX = 2
# The unit of st_blocks, whatever the file system's block size is.
_BLOCK_BYTES = 512
# SQLite locks this byte of the -shm for as long as it uses it.
_INDEX_LOCK = 128
# The disk space that SQLite needs to start a -wal.
_NEW_WAL_BYTES = 32 << 10
# A checkpoint truncates the -wal to this size. It is several times the growth between two checkpoints, so that the -wal
# is truncated only after a reader has held checkpoints up for long.
WAL_BYTES_MAX = 64 << 20
# How the connection is set up. The writer decides when to checkpoint. Debian builds SQLite with secure_delete on, which
# makes deleting large bodies slow. The cache (in KiB) is large enough for a whole batch, because a batch that does not
# fit is written to the -wal twice. The guard triggers refer to a function of ours, which only a trusted schema may do.
_PRAGMAS = (
    "synchronous = FULL",
    "wal_autocheckpoint = 0",
    f"journal_size_limit = {WAL_BYTES_MAX}",
    "secure_delete = OFF",
    "mmap_size = 0",
    "temp_store = MEMORY",
    f"cache_size = {-8 << 10}",
    "trusted_schema = ON",
)


@dataclass(slots=True)
class Database:
    """An open database file that no other server can open and no other program can write to."""

    connection: sqlite3.Connection
    """In autocommit mode; may be used from any thread, but only from one at a time."""
    path: Path
    """Absolute, symbolic links resolved."""
    lost_batches: int
    """How many batches are in the -wal after the point where SQLite's recovery ended."""
    damaged_wal: Path | None
    """A copy of that -wal; None if nothing is lost but what a power failure may legitimately lose."""
    objects: frozenset[str]
    """The names of our tables and views."""
    room: Room
    file: int
    """The file descriptor that holds our lock."""
    index: int
    """A descriptor of the -shm, SQLite's index of the -wal."""

    def close(self) -> str | None:
        """Move everything into a single file and close it; returns what is left beside it and why, or None.

        JournalFailed: the disk failed meanwhile. Not to be called after a failed commit, because it writes: the process
        must then end without calling this, and the next start recovers.
        """
        rest = None
        try:
            self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        except sqlite3.Error as error:
            if not is_full(error, self.path):
                raise JournalFailed(f"the last checkpoint of {self.path} failed: {text_of(error)}") from error
            rest = "a -wal, because the disk is full"
        finally:
            self.connection.close()
            os.close(self.index)
            if not wal_size(self.path):
                rest = None
                stopped_mark(self.file, self.path).write(self.file)
            os.close(self.file)
        return rest or ("a -wal that a reader is using" if wal_size(self.path) else None)


def open_database(
    path: Path, migrations_folder: Path = FOLDER, *, fsync: str = "always", whole: bool = False
) -> Database:
    """Lock, check, recover and migrate the database file; create it if it is missing or empty.

    ``fsync`` is the setting under which the file will be served, noted for the next start. JournalRefused: the file
    can't be used, and has not been written to. With ``whole`` this includes a file that has lost commits with its -wal.
    JournalLocked: another program writes to the file, or keeps it from being read. A process must not have
    the same file open twice.
    """
    _check_sqlite()
    migrations = find_migrations(migrations_folder)
    path = Path(os.path.realpath(path))
    with refused(path), ExitStack() as undo:
        file = lock_file(path, undo)
        mark = _check_unopened(file, path, len(migrations))
        commits = commit_frames(path)
        index_before = read_index(path) if mark is not None and mark.is_of_this_boot else None
        room = Room(path, file)
        if not room.has_room_for(_bytes_to_start(path)):
            raise NoRoom(f"no space left on the disk of {path}, not even to read it")
        after_sqlite = undo.enter_context(ExitStack())
        bystander = undo.enter_context(ExitStack())
        index = _empty_index(path, file, after_sqlite)
        connection = sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
        undo.callback(connection.close)
        _set_up(connection)
        if commits:
            _open_bystander(path, bystander)
        version = read_version(connection)
        check_version(path, version, len(migrations))
        check_schema(connection, path, migrations[:version])
        check_foreign(connection, path, migrations[:version])
        check_texts(connection, path, migrations[:version])
        index = _open_index(path, after_sqlite) if index < 0 and shm_of(path).exists() else index
        frames = index_before.frames if index_before is not None else None
        lost_batches = _lost_batches(commits, read_frame_count(index), frames) if commits else 0
        if version:  # otherwise this would already make a first page, without auto_vacuum
            _check_pages(connection, path, file, index)
        damaged_wal = None
        if lost_batches and not _has_unsynced(mark, fsync):
            if whole:
                raise damaged(path, f"{lost_batches} commits follow a damaged frame of its -wal")
            damaged_wal = _keep_wal(path)
        bystander.close()
        if commits and commits[-1] > read_frame_count(index):
            _cut_off(connection, path, index)
        _move_wal(connection, path)
        if version == 0:
            connection.execute(f"PRAGMA page_size = {PAGE_SIZE}")
        migrate(connection, path, migrations)
        objects = check_schema(connection, path, migrations)
        _switch_to_wal(connection, path)
        sync(path.parent)  # a rollback journal that came back after a power failure would undo this
        if index < 0:
            index = _open_index(path, after_sqlite)
        serving_mark(file, path, fsync).write(file)
        os.fsync(file)  # after a power failure, the mark determines which commits may legitimately be lost
        undo.pop_all()
    return Database(connection, path, lost_batches, damaged_wal, objects, room, file, index)


def _check_sqlite() -> None:
    if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
        raise JournalRefused(f"this Python has SQLite {sqlite3.sqlite_version}; 3.37 or newer is needed")
    if sqlite3.threadsafety != 3:
        raise JournalRefused("this Python's SQLite was built without thread safety (serialized mode), which is needed")


def check_body_size(max_job_size: int) -> None:
    """Raise ConfigError if this Python's SQLite can't store bodies of this size."""
    with closing(sqlite3.connect(":memory:")) as connection:
        most = connection.getlimit(sqlite3.SQLITE_LIMIT_LENGTH) - ROW_BYTES
    if max_job_size > most:
        raise ConfigError(
            f"max_job_size = {max_job_size} is more than this Python's SQLite can store; it may be {most} at most"
        )


def lock_file(path: Path, undo: ExitStack) -> int:
    """Open the file, creating it if necessary, and lock it against other servers; the descriptor holds the lock.

    JournalRefused: the file can't be opened, or a server has locked it.
    """
    is_new = False
    try:
        try:
            lock = open_regular(path, os.O_RDWR)
        except FileNotFoundError:
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            is_new = True
    except OSError as error:
        advice = "it must be a file to read and write, in a directory that exists and is writable"
        raise JournalRefused(f"{path} can't be opened: {error.strerror}; {advice}") from error
    undo.callback(os.close, lock)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:  # although it may be new: another first start was quicker
        raise JournalRefused(f"a server or another command holds {path}; stop it, or name another file") from error
    except OSError:  # the file system has no locks
        if is_new:
            path.unlink()
        raise
    if is_new:
        undo.callback(path.unlink)
    if not os.path.samestat(os.fstat(lock), path.stat()):
        raise JournalRefused(f"{path} has just been replaced; try again")
    if not os.access(path.parent, os.W_OK | os.X_OK, effective_ids=True):
        raise JournalRefused(f"the directory {path.parent} is not writable; SQLite must keep files beside {path} there")
    return lock


def _check_unopened(file: int, path: Path, newest: int) -> Mark | None:
    """Check a locked file before SQLite opens it, which may change it; returns its mark, if it has one."""
    check_file(file, path, newest)
    mark = Mark.read(file)
    if mark is not None:
        check_mark(mark, file, path)
    if has_stray_wal(file, path):
        raise stray_wal(path)
    wal = moved_away(path)
    if wal is not None:
        raise JournalRefused(
            f"a restore of {path} was interrupted: run it again, or, to go on with what was there before, move"
            f" {wal.name} to another folder, and keep it"
        )
    if not os.fstat(file).st_size:
        # A first start that failed may have emptied it without a sync. SQLite deletes the journal beside an empty file,
        # and then nothing would empty the file again if some of its pages came back after a power failure.
        os.fsync(file)
        sync(path.parent)
    return mark


def _set_up(connection: sqlite3.Connection) -> None:
    for pragma in _PRAGMAS:
        connection.execute(f"PRAGMA {pragma}").fetchall()
    allow_writing(connection)


def _bytes_to_start(path: Path) -> int:
    """Return how much more disk space SQLite needs to read the file and to begin writing."""
    wal_bytes = wal_size(path)
    more_bytes = index_size(wal_bytes // PAGE_SIZE) + (0 if wal_bytes else _NEW_WAL_BYTES)
    with suppress(FileNotFoundError):
        more_bytes -= shm_of(path).stat().st_blocks * _BLOCK_BYTES  # these blocks are kept
    return max(0, more_bytes)


def _empty_index(path: Path, file: int, after_sqlite: ExitStack) -> int:
    """Open the -shm of a killed server, emptied, with all the blocks that SQLite needs to read the file; -1: no -shm.

    SQLite itself would cut it first. On a full disk another program may then take the blocks, and the file can't be
    read any more; or, where blocks are smaller than 4 KiB, the process dies of SIGBUS. SQLite does not cut a -shm that
    others have locked as it does itself.
    """
    shm = shm_of(path)
    try:
        index = open_regular(shm, os.O_RDWR | os.O_NOFOLLOW)  # SQLite follows no link either
    except FileNotFoundError:
        if os.pread(file, 2, 18) == WAL_MODE:  # else SQLite uses one only once it changes to this mode
            _make_index(path)
        return -1
    except OSError as error:
        raise JournalRefused(f"{shm} can't be opened: {error.strerror}") from error
    after_sqlite.callback(os.close, index)
    with suppress(FileNotFoundError):
        if lock_byte(index, _INDEX_LOCK, fcntl.F_WRLCK) and os.path.samestat(os.fstat(index), shm.stat()):
            size = max(index_size(wal_size(path) // PAGE_SIZE), os.fstat(index).st_size)
            os.posix_fallocate(index, 0, size)
            os.pwrite(index, bytes(size), 0)
            lock_byte(index, _INDEX_LOCK, fcntl.F_RDLCK)
            return index
    return -1  # another program uses it, and may yet replace it, or has just removed it


def _make_index(path: Path) -> None:
    """Make an empty -shm if there is none. SQLite gives it the owner and the mode of the file, as one of its own."""
    with suppress(FileExistsError):
        index = os.open(shm_of(path), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        write_in_place(index)
        os.close(index)


def _open_index(path: Path, after_sqlite: ExitStack) -> int:
    """Open the -shm; closed only after SQLite has closed its own descriptor, whose locks would be lost otherwise."""
    index = os.open(shm_of(path), os.O_RDWR | os.O_CLOEXEC)
    after_sqlite.callback(os.close, index)
    return index


def _open_bystander(path: Path, bystander: ExitStack) -> None:
    """Open the file a second time, read-only, until the file has been accepted.

    Otherwise a refusal would close the last connection to the file, and that moves the -wal into it. When a read-only
    connection is the last to close, it never does so.
    """
    reader = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=_BUSY_TIMEOUT_S)
    bystander.callback(reader.close)
    reader.execute("SELECT 1 FROM sqlite_schema").fetchone()


def _has_unsynced(mark: Mark | None, fsync: str) -> bool:
    """Whether a power failure may legitimately have lost the last commits; ``fsync`` decides if there is no mark."""
    return fsync != "always" if mark is None else mark.has_unsynced


def _lost_batches(commits: list[int], end: int, frames: int | None) -> int:
    """Return how many of these commits SQLite has not recovered, given that its recovery ended at frame ``end``.

    ``frames`` is the number of frames that a killed server had written, if known; if another program has opened the
    file since, it is the number that SQLite recovered then. Where ``frames`` is of no use, up to UNSYNCED_MAX missing
    commits do not count as lost: they were being written when the power failed.
    """
    if frames is not None and end < frames:
        return sum(end < number <= frames for number in commits)
    count = sum(number > end for number in commits)
    return count if count > UNSYNCED_MAX else 0


def _cut_off(connection: sqlite3.Connection, path: Path, index: int) -> None:
    """Shorten the -wal to the frames that SQLite knows of, according to the open -shm.

    Otherwise, if this start ended before it wrote anything, or if the -wal can't be moved because the disk is full or
    somebody reads, the next start would take the lost commits for commits of this one. That holds also for those few
    that were being written when the power failed, and don't count as lost.
    """
    connection.execute("BEGIN IMMEDIATE")  # so that no other program appends to it meanwhile
    try:
        with wal_of(path).open("r+b", buffering=0) as wal:
            forget(wal.fileno())  # what is cut off may have been moved into the file
            os.ftruncate(wal.fileno(), min_wal_size(read_frame_count(index)))
    finally:
        connection.execute("ROLLBACK")


def _check_pages(connection: sqlite3.Connection, path: Path, file: int, index: int) -> None:
    """Check where the pages are while nobody can write; nothing is begun before that a lock would then interrupt."""
    connection.execute("BEGIN IMMEDIATE")
    check_page_map(connection, path, file, index)
    connection.execute("ROLLBACK")


def _move_wal(connection: sqlite3.Connection, path: Path) -> None:
    """Checkpoint, so that the -wal is reused from its beginning and takes no more room; skipped if the disk is full."""
    try:
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    except sqlite3.Error as error:
        if not is_full(error, path):
            raise


def _keep_wal(path: Path) -> Path:
    """Copy the -wal before it is emptied."""
    wal = wal_of(path)
    copy = wal.with_name(f"{wal.name}.damaged-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}")
    for partial in path.parent.glob(f".{glob.escape(wal.name)}.damaged-*.partial"):  # of a start that was killed here
        partial.unlink()
    try:
        with written_whole(copy) as partial:
            shutil.copyfile(wal, partial)
    except OSError as error:
        raise JournalRefused(f"{wal} is damaged, and can't be copied to {copy}: {error.strerror}") from error
    return copy


def _switch_to_wal(connection: sqlite3.Connection, path: Path) -> None:
    """Switch to WAL mode; done last, so that the schema and its version are in the file itself before a -wal exists."""
    _make_index(path)
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise JournalRefused(f"{path} can't have a write-ahead log where it is; put it on a local disk")
    connection.execute("SELECT 1 FROM sqlite_schema").fetchone()  # this creates the -shm
