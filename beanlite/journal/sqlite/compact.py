"""Giving back what a stopped database takes on the disk beyond what it holds."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from beanlite.errors import JournalRefused
from beanlite.journal.sqlite.fileformat import wal_size
from beanlite.journal.sqlite.reading import check_readable
from beanlite.journal.sqlite.replace import copy_checked, replacing


@dataclass(frozen=True, slots=True)
class CompactResult:
    """What has become smaller."""

    jobs: int
    before: int
    """The size of the file, in bytes."""
    after: int


def compact(path: Path, progress: Callable[[int], None] | None = None) -> CompactResult:
    """Put a copy of the database without gaps in its place, checked and synced; `progress` is called as for a backup.

    JournalRefused: a server holds the file, or has been killed on it; or it is not ours, or damaged. BeanliteError:
    there is no room, or the like. After both the file is as it was.
    """
    path = Path(os.path.realpath(path))
    check_readable(path)
    with replacing(path) as (partial, held):
        if wal_size(path):
            raise JournalRefused(f"{path} has a -wal, as a killed server leaves it; start the server and stop it first")
        before = os.fstat(held).st_size
        jobs = copy_checked(path, partial, progress)
        after = partial.stat().st_size
    return CompactResult(jobs, before, after)
