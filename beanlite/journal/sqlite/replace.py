"""Replaces a database file by a new one while no server can open it.

Whenever this is killed, a server that starts finds either the old database or the new one, complete. For that, the
files that SQLite keeps beside the old database must be gone: its -wal would be taken for the new database's.
"""

import fcntl
import os
import sqlite3
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from beanlite import signals
from beanlite.errors import BeanliteError, JournalRefused
from beanlite.journal.sqlite.backup import copy
from beanlite.journal.sqlite.database import lock_file
from beanlite.journal.sqlite.fileformat import journal_of, refused, said, shm_of, wal_of, wal_size
from beanlite.journal.sqlite.reading import reading
from beanlite.journal.sqlite.replay import count_jobs
from beanlite.journal.sqlite.verify import findings, reading_whole
from beanlite.journal.sqlite.wholefile import sync


class Held(NamedTuple):
    """A database file out of which servers are locked."""

    descriptor: int
    """The file, opened."""
    undo: ExitStack
    """Lets servers in again, and removes the file if it was not there before."""


@contextmanager
def replacing(target: Path) -> Iterator[Held]:
    """Lock servers out of the target, creating it if it is missing, until the end of the block or ``take_place``.

    JournalRefused: a server holds the target. BeanliteError: the target can't be replaced.
    """
    try:
        with ExitStack() as undo:
            with refused(target):
                descriptor = lock_file(target, undo)
            yield Held(descriptor, undo)
    except OSError as error:
        raise BeanliteError(f"{target} was not replaced: {error.strerror or said(error)}") from error


def take_place(partial: Path, target: Path, held: Held) -> None:
    """Give a new file the target's name, owner and mode.

    BeanliteError: that failed, or came too late to keep the target, as the text says then; ``partial`` is gone then.
    """
    before = os.fstat(held.descriptor)
    if before.st_size:
        partial.chmod(stat.S_IMODE(before.st_mode))
        give_to_owner(partial, before)
    sync(partial)
    new = os.open(partial, os.O_RDONLY | os.O_CLOEXEC)
    held.undo.callback(os.close, new)
    fcntl.flock(new, fcntl.LOCK_EX)  # otherwise a server could start before the following steps are done
    if not _move_wal(target):
        # The old file is damaged, so no server could start on it; nor on the new file while the old -wal is there.
        journal_of(target).unlink(missing_ok=True)
    sync(target.parent)
    with signals.unheard():  # an interrupted command would look as if it had changed nothing
        partial.rename(target)
        held.undo.pop_all()
        try:
            sync(target.parent)
            for beside in (wal_of(target), shm_of(target), journal_of(target)):
                beside.unlink(missing_ok=True)
            sync(target.parent)
        except OSError as error:
            why = error.strerror or said(error)
            raise BeanliteError(f"{target} is replaced, but a power failure may undo that: {why}") from error
        finally:
            os.close(new)
            os.close(held.descriptor)


def give_to_owner(copy: Path, original: os.stat_result) -> None:
    """Give a copy the original's owner and group. BeanliteError: this user may not."""
    try:
        os.chown(copy, original.st_uid, original.st_gid)
    except PermissionError as error:
        owner = f"{original.st_uid}:{original.st_gid}"
        raise BeanliteError(f"the new file can't be given the old one's owner and group ({owner}); be root") from error


def _move_wal(target: Path) -> bool:
    """Let SQLite move everything that it keeps beside the old file into it; returns whether that succeeded."""
    if wal_size(target) or journal_of(target).exists():
        with suppress(sqlite3.Error, UnicodeDecodeError), closing(sqlite3.connect(target, timeout=0)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    return not wal_size(target) and not journal_of(target).exists()


def copy_checked(source: Path, partial: Path, progress: Callable[[int], None] | None) -> int:
    """Copy the source into the partial file, check the copy as verify does, and return the number of jobs.

    JournalRefused: the source is not ours, or damaged.
    """
    with reading_whole(source) as connection:
        copy(connection, source, partial, progress)
    with reading(partial) as connection:
        for finding in findings(connection, source):
            if not finding.sound:
                raise JournalRefused(finding.said)
        return count_jobs(connection, source)
