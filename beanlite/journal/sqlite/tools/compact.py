"""Gives back the disk space that a stopped database occupies but does not use."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from beanlite.errors import JournalRefused
from beanlite.journal.sqlite.file.fileformat import check_names, wal_size
from beanlite.journal.sqlite.file.wholefile import partial_of
from beanlite.journal.sqlite.tools.reading import check_readable, roll_back
from beanlite.journal.sqlite.tools.replace import copy_checked, replacing, take_place, written_at


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
    with replacing(path) as lock, partial_of(path) as partial:
        check_names(lock.descriptor, path)
        if wal_size(path):
            raise JournalRefused(f"{path} has a -wal, as a killed server leaves it; start the server and stop it first")
        roll_back(path)  # or reading the file would, and that would be taken for another program's doing
        times, before = written_at(path), os.fstat(lock.descriptor).st_size
        jobs = copy_checked(path, partial, progress)
        after = partial.stat().st_size
        take_place(partial, path, lock, times)
    return CompactResult(jobs, before, after)
