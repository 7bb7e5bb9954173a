"""Replaces a database file by a new one while no server can open it.

Whenever this is killed, a server that starts finds either the old database or the new one, complete. For that, the
files that SQLite keeps beside the old database must be gone: its -wal would be taken for the new database's.
"""

import fcntl
import os
import sqlite3
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from beanlite.errors import BeanliteError, JournalLocked, JournalRefused
from beanlite.host import signals
from beanlite.journal.sqlite.file.database import lock_file
from beanlite.journal.sqlite.file.fileformat import (
    HEADER_BYTES,
    is_damage,
    journal_of,
    refused,
    shm_of,
    text_of,
    wal_of,
    wal_size,
)
from beanlite.journal.sqlite.file.replay import count_jobs
from beanlite.journal.sqlite.file.wholefile import lock_byte, sync
from beanlite.journal.sqlite.tools.backup import copy
from beanlite.journal.sqlite.tools.reading import reading
from beanlite.journal.sqlite.tools.verify import check_results, reading_whole

# How long to wait for others who have the file open: most of them only look at it for a moment.
_WAIT_S: Final = 1.0
_LOOKS: Final = 20
# The bytes of a database file that each program that has it open locks (https://sqlite.org/src/file/src/os.h), and the
# one that it locks for a moment before.
_SHARED_FIRST: Final = 0x40000002
_PENDING: Final = 0x40000000
_SHARED_BYTES: Final = 510
# The header of the old file once it is replaced: no program takes it for a database, or for one that it has cached.
_LAST_HEADER: Final = b"This database was replaced; the new one has its name.".ljust(HEADER_BYTES)


class Lock(NamedTuple):
    """A database file out of which servers are locked."""

    descriptor: int
    """The file, opened."""
    undo: ExitStack
    """Lets servers in again, and removes the file if it was not there before."""


@contextmanager
def replacing(target: Path) -> Iterator[Lock]:
    """Lock servers out of the target, creating it if it is missing, until the end of the block or ``take_place``.

    JournalRefused: a server holds the target. BeanliteError: the target can't be replaced.
    """
    try:
        with ExitStack() as undo:
            with refused(target):
                descriptor = lock_file(target, undo)
            yield Lock(descriptor, undo)
    except OSError as error:
        raise BeanliteError(f"{target} was not replaced: {error.strerror or text_of(error)}") from error


def written_at(target: Path) -> list[tuple[int, int]]:
    """Return when the file and its -wal were last written, and their sizes; who only reads changes none of that."""
    times = []
    for file in (target, wal_of(target)):
        with suppress(FileNotFoundError):
            status = file.stat()
            if status.st_size:  # who reads may make an empty -wal
                times.append((status.st_mtime_ns, status.st_size))
    return times


def take_place(
    partial: Path,
    target: Path,
    lock: Lock,
    times: list[tuple[int, int]],
    adopt: Callable[[sqlite3.Connection], None] | None = lambda _: None,
) -> bool:
    """Give a new file the target's name, owner and mode, unless ``written_at`` no longer is ``times``.

    Returns whether the old file was sound as far as SQLite can tell.

    ``adopt`` is called with a connection to the target once nobody else can write to it, and may change the new file.
    If it is None, SQLite does not read the target: it would remove a -wal of which it can recover only a part, at the
    latest when it closes the target, so that this would be lost even if the target is not replaced then.
    JournalRefused: another program has the target open, or has written to it. BeanliteError: it failed, or came too
    late to keep the target, as the text says then; ``partial`` is gone then.
    """
    before = os.fstat(lock.descriptor)
    partial.chmod(stat.S_IMODE(before.st_mode))
    give_to_owner(partial, before)
    new = os.open(partial, os.O_RDWR | os.O_CLOEXEC)
    lock.undo.callback(os.close, new)
    fcntl.flock(new, fcntl.LOCK_EX)  # otherwise a server could start before the following steps are done
    with refused(target):
        connection = sqlite3.connect(target, timeout=_WAIT_S, isolation_level=None)
    with closing(connection):
        will_change = journal_of(target).exists()  # SQLite rolls back what that holds before it locks the file
        if adopt is None:
            _lock_unread(target, lock)
            is_sound = False
        else:
            is_sound = before.st_size == 0 or _lock_out_others(connection, target)
        if not will_change and written_at(target) != times:
            raise JournalRefused(f"another program has written to {target} meanwhile; try again")
        if adopt is not None:
            adopt(connection)
        sync(partial)
        if not (is_sound and _move_wal(connection, target)):
            # The old file is damaged, so no server could start on it; nor on the new file while the old -wal is there.
            journal_of(target).unlink(missing_ok=True)
        sync(target.parent)
        # Until the old -wal is gone, a program that opened the new file would have SQLite put that -wal into it.
        lock_byte(new, _PENDING, fcntl.F_WRLCK)
        _rename(partial, target, lock, connection, new)
    return is_sound


@contextmanager
def without_stray_wal(partial: Path, target: Path, lock: Lock, wal: Path, moved_to: Path) -> Iterator[None]:
    """Move a -wal that belongs to another file away from the target, and back unless ``partial`` takes its place.

    SQLite would put that -wal into the target. One that an interrupted restore has moved away only gets another name:
    beside the target, a start could take it for the target's own after a reboot. JournalLocked: another program has the
    target open.
    """
    _lock_unread(target, lock)
    try:
        wal.rename(moved_to)
        shm_of(target).unlink(missing_ok=True)
        sync(target.parent)
        yield
    except BaseException:
        if partial.exists():
            with signals.unheard(), suppress(FileNotFoundError):
                moved_to.rename(wal)
        raise


def _rename(partial: Path, target: Path, lock: Lock, connection: sqlite3.Connection, new: int) -> None:
    signals.finish()  # an interrupted command would look as if it had changed nothing
    has_wal = wal_size(target) > 0
    partial.rename(target)
    lock.undo.pop_all()
    try:
        sync(target.parent)
        unmarked = _mark_replaced(lock.descriptor)
        for beside in (wal_of(target), shm_of(target), journal_of(target)):
            beside.unlink(missing_ok=True)
        sync(target.parent)
        # This ends the locks of the old file. It may remove the -wal by its name, which no server has made yet.
        connection.close()
    except OSError as error:
        outcome = "but a power failure may undo that"
        if has_wal and os.path.lexists(wal_of(target)):
            outcome = "but no server starts on it, as the old -wal is still there; restore again"
        raise BeanliteError(f"{target} is replaced, {outcome}: {error.strerror or text_of(error)}") from error
    finally:
        os.close(new)
        os.close(lock.descriptor)
    if unmarked is not None:
        outcome = "but what a program writes that had the old file open is lost"
        raise BeanliteError(f"{target} is replaced, {outcome}: {unmarked.strerror}") from unmarked


def _mark_replaced(old: int) -> OSError | None:
    """Have no program write to the old file that opened it before it lost its name, and has waited for a lock since.

    Returns why that failed.
    """
    try:
        os.pwrite(old, _LAST_HEADER, 0)
    except OSError as error:
        return error
    return None


def give_to_owner(copy: Path, original: os.stat_result) -> None:
    """Give a copy the original's owner and group. BeanliteError: this user may not."""
    try:
        os.chown(copy, original.st_uid, original.st_gid)
    except PermissionError as error:
        owner = f"{original.st_uid}:{original.st_gid}"
        raise BeanliteError(f"the new file can't be given the old one's owner and group ({owner}); be root") from error


def _lock_out_others(connection: sqlite3.Connection, target: Path) -> bool:
    """Have nobody else use the file while the connection is open, since what they wrote would be lost.

    Returns whether the file is sound as far as SQLite can tell; to one that is not, nobody else can write either.
    JournalRefused: another program has it open, or it can't be read for another reason than damage.
    """
    try:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE").fetchone()
        connection.execute("BEGIN EXCLUSIVE")
        connection.execute("ROLLBACK")  # the lock remains
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise_unless_damage(error, target)
        return False
    return True


def raise_unless_damage(error: sqlite3.Error | UnicodeDecodeError, path: Path) -> None:
    """Raise JournalRefused if it is for another reason than damage that a file can't be read."""
    if not is_damage(error) and getattr(error, "sqlite_errorcode", 0) != sqlite3.SQLITE_ERROR:
        with refused(path):
            raise error


def _lock_unread(target: Path, lock: Lock) -> None:
    """Have nobody else use the file, without reading it. JournalLocked: another program has it open.

    The lock is lost when this process closes the file.
    """
    for _ in range(_LOOKS):
        with suppress(BlockingIOError):
            fcntl.lockf(lock.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, _SHARED_BYTES, _SHARED_FIRST)
            return
        time.sleep(_WAIT_S / _LOOKS)
    raise JournalLocked(f"another program has {target} open: end what that does there, and try again")


def _move_wal(connection: sqlite3.Connection, target: Path) -> bool:
    """Let SQLite move everything that it keeps beside the old file into it; returns whether that succeeded."""
    # The connection does without the -shm, as nobody else uses the file. By that of a killed server, the next start
    # would miss in the -wal what has been moved, if this ended too soon.
    shm_of(target).unlink(missing_ok=True)
    with suppress(sqlite3.Error, UnicodeDecodeError):
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    with suppress(FileNotFoundError):
        sync(wal_of(target))  # SQLite leaves it to the system when the truncation reaches the disk
    return not wal_size(target) and not journal_of(target).exists()


def copy_checked(source: Path, partial: Path, progress: Callable[[int], None] | None) -> int:
    """Copy the source into the partial file, check the copy as verify does, and return the number of jobs.

    JournalRefused: the source is not ours, or damaged.
    """
    with reading_whole(source) as connection:
        copy(connection, source, partial, progress)
    with reading(partial) as connection:
        for result in check_results(connection, source):
            if not result.sound:
                raise JournalRefused(result.said)
        return count_jobs(connection, source)
