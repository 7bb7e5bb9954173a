"""Copies a database file, whether a server is running on it or not.

To be used in a separate process: in the server's own, closing the source would drop SQLite's locks on it.
"""

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path

from beanlite.errors import BeanliteError
from beanlite.journal.migrations import find_migrations
from beanlite.journal.sqlite.file.fileformat import is_damage, journal_of, refused, text_of, wal_of
from beanlite.journal.sqlite.file.migrations import check_schema, read_version
from beanlite.journal.sqlite.file.replay import check_count, check_jobs, read_jobs, read_state
from beanlite.journal.sqlite.file.wholefile import not_linked, unserved, vacuum_into, written_whole
from beanlite.journal.sqlite.tools.reading import reading
from beanlite.journal.sqlite.tools.verify import reading_whole

# The number of virtual machine steps between SQLite's calls of the progress handler: about a hundred jobs.
_STEPS_PER_CALL = 500
# The copy is synced each time this much has been written: little enough for each sync to be short.
_SYNC_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class BackupResult:
    """The contents of a finished backup, which holds the state between two batches."""

    jobs: int
    size: int
    """In bytes."""


def backup(
    source: Path, dest: Path, progress: Callable[[int], None] | None = None, *, replace: bool = False
) -> BackupResult:
    """Copy the present state to a new file `dest` of mode 0600, which appears once it has been synced and read back.

    The source is only read. `progress` is called every few MiB with the number of bytes written so far. With `replace`
    the copy may replace an existing file. JournalRefused: the source is not ours, or damaged. BeanliteError: `dest`
    exists, is being served, has a -wal or a -journal, or can't be written.
    """
    source, dest = Path(os.path.realpath(source)), not_linked(dest)
    for beside in (wal_of(dest), journal_of(dest)):
        if os.path.lexists(beside) and not os.path.lexists(dest):
            raise BeanliteError(f"no backup was made to {dest}: {beside} would be taken for a part of it; remove that")
    try:
        with (
            reading_whole(source) as connection,
            unserved(dest, source) if replace else nullcontext() as there,
            written_whole(dest, replace=there) as partial,
        ):
            copy(connection, source, partial, progress)
            return _read_back(partial, source)
    except OSError as error:
        raise BeanliteError(f"no backup was made to {dest}: {error.strerror}") from error


def copy(connection: sqlite3.Connection, source: Path, partial: Path, progress: Callable[[int], None] | None) -> None:
    """Write the snapshot of one read transaction; a plain copy of a file that is being written to would be torn."""
    with closing(_Syncs(partial, progress)) as syncs:
        connection.set_progress_handler(syncs, _STEPS_PER_CALL)
        try:
            vacuum_into(connection, partial)
        except (sqlite3.Error, UnicodeDecodeError) as error:
            if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_INTERRUPT:
                # A signal that arrives just as SQLite calls the handler raises before its first line, and SQLite
                # swallows the exception.
                raise syncs.error or KeyboardInterrupt from error
            if is_damage(error):
                with refused(source):
                    raise
            raise BeanliteError(f"the copy of {source} to {partial.parent} failed: {text_of(error)}") from error
        finally:
            connection.set_progress_handler(None, 0)


class _Syncs:
    """Syncs a file while SQLite writes it; SQLite calls it regularly.

    Otherwise everything would go to the disk at once at the end, and the server's commits would have to wait.
    """

    def __init__(self, file: Path, progress: Callable[[int], None] | None) -> None:
        self._descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        self._progress = progress
        self._synced_bytes = 0
        self.error: BaseException | None = None

    def __call__(self) -> bool:
        """Sync if that is due; returns whether SQLite has to abort the copy because of ``error``."""
        try:
            size = os.fstat(self._descriptor).st_size
            if size >= self._synced_bytes + _SYNC_BYTES:
                os.fdatasync(self._descriptor)
                self._synced_bytes = size
                if self._progress is not None:
                    self._progress(size)
        except BaseException as error:  # noqa: BLE001 - SQLite would turn any of them into "interrupted"
            self.error = error
        return self.error is not None

    def close(self) -> None:
        os.close(self._descriptor)


def _read_back(copy: Path, source: Path) -> BackupResult:
    """Read the copy as a server would at its start; any fault in the copy is a fault of the source."""
    with reading(copy) as connection, refused(source):
        check_schema(connection, source, find_migrations()[: read_version(connection)])
        read_state(connection, source)
        check_jobs(connection, source)
        jobs = sum(map(len, read_jobs(connection, source)))
        check_count(connection, source, jobs)
    return BackupResult(jobs, copy.stat().st_size)
