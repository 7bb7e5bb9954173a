"""Gives back the disk space that a stopped database occupies but does not use."""

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from beanlite.errors import JournalRefused
from beanlite.journal.sqlite.fileformat import refused, wal_size
from beanlite.journal.sqlite.reading import check_readable
from beanlite.journal.sqlite.replace import copy_checked, replacing, take_place
from beanlite.journal.sqlite.wholefile import partial_of


@dataclass(frozen=True, slots=True)
class CompactResult:
    """The result of compacting a database."""

    jobs: int
    before: int
    """The size of the file, in bytes."""
    after: int


def compact(path: Path, progress: Callable[[int], None] | None = None) -> CompactResult:
    """Replace the database by a compact copy, checked and synced; `progress` is called as for a backup.

    JournalRefused: a server holds the file, or was killed while holding it; another program has it open, or has written
    to it meanwhile; or the file is not ours, or damaged.
    BeanliteError: the copy could not be made, for want of room for example. Both leave the file as it was.
    """
    path = Path(os.path.realpath(path))
    check_readable(path)
    with replacing(path) as held, partial_of(path) as partial:
        if wal_size(path):
            raise JournalRefused(f"{path} has a -wal, as a killed server leaves it; start the server and stop it first")
        before = os.fstat(held.descriptor)
        jobs = copy_checked(path, partial, progress)
        after = partial.stat().st_size
        with _alone(path):
            if wal_size(path) or os.fstat(held.descriptor).st_mtime_ns != before.st_mtime_ns:
                raise JournalRefused(f"another program has written to {path} meanwhile; try again")
            take_place(partial, path, held)
    return CompactResult(jobs, before.st_size, after)


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Lock all other programs out of the file, since what they wrote to it from now on would be lost."""
    with refused(path):
        connection = sqlite3.connect(path, timeout=0, isolation_level=None)
    with closing(connection):
        with refused(path):
            connection.execute("PRAGMA locking_mode = EXCLUSIVE").fetchone()
            connection.execute("BEGIN EXCLUSIVE")
        yield
