"""Adds jobs from elsewhere to a database that no server has open: all of them or none."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final
from zlib import crc32

from beanlite.errors import BeanliteError, JournalFailed, JournalRefused, JournalUnreadable
from beanlite.host import signals
from beanlite.journal.checksum import checksum_of_row
from beanlite.journal.columns import DEFAULTS, NAMES, TIMES
from beanlite.journal.migrations import find_migrations
from beanlite.journal.schedule_rows import row_of_schedule
from beanlite.journal.sqlite.file.database import Database, open_database
from beanlite.journal.sqlite.file.fileformat import (
    APPLICATION_ID,
    HEADER_BYTES,
    open_regular,
    read_at,
    refused,
    shm_of,
    text_of,
    wal_of,
    wal_size,
)
from beanlite.journal.sqlite.file.heartbeat import read_ahead_s
from beanlite.journal.sqlite.file.policy_tables import SET_SCHEDULE, read_schedules
from beanlite.journal.sqlite.file.rows import INLINE_MAX, INSERT_BODY, INSERT_JOB
from beanlite.journal.sqlite.file.wal import commit_frames, read_frame_count

_GONE: Final = "SELECT last_job FROM schedules WHERE last_job NOT IN (SELECT id FROM jobs)"
_HAS_OTHER_JOB: Final = "SELECT 1 FROM jobs WHERE id = ? AND NOT (tube = ? AND crc32 = ?)"

JobRow = dict[str, Any]
"""A job by its columns and its "body", as it is to be stored; times are UTC seconds since 1970."""


class Filling:
    """The single transaction that adds jobs to a database."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self._ahead_s = read_ahead_s(connection)
        self.new_schedules: set[str] = set()
        """The names of schedules that are set here."""
        self.leftover: str | None = None
        """Set at the end: what is left beside the file and why, None if nothing is."""

    def has_jobs(self) -> bool:
        """Whether the database holds any jobs, including those just added."""
        return bool(self.connection.execute("SELECT EXISTS (SELECT 1 FROM jobs)").fetchone()[0])

    def is_unused(self) -> bool:
        """Whether the database has never held a job."""
        return not self.connection.execute("SELECT last_id FROM meta").fetchone()[0]

    @contextmanager
    def keeping_schedules(self, path: Path) -> Iterator[None]:
        """Have no job that is added in this block pass for the last one of a schedule, which would wait for its end.

        A new schedule comes with its last job. JournalRefused: a schedule is damaged.
        """
        gone = {last_job for (last_job,) in self.connection.execute(_GONE)}
        yield
        for schedule in read_schedules(self.connection, path) if gone else ():
            if schedule.last_job not in gone or schedule.name in self.new_schedules:
                continue
            job = (schedule.last_job, schedule.tube.decode(), crc32(schedule.body))
            if self.connection.execute(_HAS_OTHER_JOB, job).fetchone():
                schedule.last_job = None
                self.connection.execute(SET_SCHEDULE, row_of_schedule(schedule))

    def add(self, job: JobRow) -> None:
        """Add a job. This is fastest in the order of ascending ids."""
        values: JobRow = DEFAULTS | job
        values |= {name: values[name] + self._ahead_s for name in TIMES if values[name] is not None}
        row = tuple(values[name] for name in NAMES)
        body = job["body"]
        is_large = len(body) > INLINE_MAX
        self.connection.execute(INSERT_JOB, (*row, checksum_of_row(row), crc32(body), None if is_large else body))
        if is_large:
            self.connection.execute(INSERT_BODY, (job["id"], body))

    def set_last_id(self, last_id: int) -> None:
        """Make the ids of later jobs start above this one."""
        self.connection.execute("UPDATE meta SET last_id = max(last_id, ?)", (last_id,))


def _remove_empty(path: Path) -> None:
    """Remove what SQLite has left beside a file that is gone, unless something is in it."""
    with suppress(OSError):
        if not wal_size(path):
            for file in (wal_of(path), shm_of(path)):
                file.unlink(missing_ok=True)


def _has_unknown_commit(database: Database) -> bool:
    """Whether the -wal has a commit of which SQLite does not know, as its sync has failed: a recovery would find it."""
    try:
        return max(commit_frames(database.path), default=0) > read_frame_count(database.index)
    except (OSError, JournalUnreadable):
        return True


def _refuse_older(path: Path) -> None:
    """Raise JournalRefused for a file of an older version: what adds nothing is not to migrate it, nor without a copy.

    By the header alone: a server that was killed may have migrated it in the -wal, and the next one finishes that.
    """
    try:
        descriptor = open_regular(path)
    except OSError:
        return  # it is new, or ``open_database`` tells what is wrong
    with os.fdopen(descriptor, "rb", buffering=0):
        header = read_at(descriptor, HEADER_BYTES, 0)
    version = int.from_bytes(header[60:64])
    if int.from_bytes(header[68:72]) == APPLICATION_ID and 0 < version < len(find_migrations()):
        raise JournalRefused(
            f"{path} has version {version}, and jobs can be added to it when a server of this version has served it"
        )


@contextmanager
def filling(path: Path) -> Iterator[Filling]:
    """Open a database, creating it if it is missing, for a transaction that is committed at the end of the block.

    If the block raises, nothing is added, and a newly created file is removed. JournalRefused: the database can't be
    used. BeanliteError: it can't be written; if the commit can't be synced, the text may say that it is not known what
    was added. JournalFailed: everything was added, and then the disk failed. Until the end, the -wal takes as much room
    as what has been added.
    """
    path = Path(os.path.realpath(path))
    is_new = not os.path.exists(path)  # noqa: PTH110 - Path.exists raises an error if access is denied
    _refuse_older(path)
    try:
        database = open_database(path, whole=True)  # only a server tells what is lost, and keeps a copy
    except BaseException:
        if is_new and not os.path.lexists(path):  # it was begun, and removed
            _remove_empty(path)
        raise
    queue = Filling(database.connection)
    is_new = is_new and queue.is_unused()  # another program may have made it just before it was locked
    with ExitStack() as finishing:
        try:
            with refused(path):
                finishing.callback(os.close, os.dup(database.file))  # keeps our lock until a new file is removed again
            database.connection.execute("BEGIN IMMEDIATE")
            database.connection.execute("UPDATE meta SET jobs = NULL")
            with queue.keeping_schedules(path):
                yield queue
            finishing.enter_context(signals.unheard())  # to be interrupted now would look as if nothing had been added
            database.connection.execute("COMMIT")
        except BaseException as error:
            in_doubt = isinstance(error, sqlite3.Error) and not is_new and _has_unknown_commit(database)
            with suppress(sqlite3.Error, JournalFailed):  # even if this fails, nothing uncommitted is in the file
                database.connection.rollback()
                database.close()
            if is_new:
                for file in (path, wal_of(path), shm_of(path)):
                    file.unlink(missing_ok=True)
            if not isinstance(error, sqlite3.Error):
                raise
            what = f"nothing was added to {path}: {text_of(error)}"
            if in_doubt and wal_size(path):
                what = f"it is not known whether everything was added to {path}, or nothing: {text_of(error)}"
                what += "; see what is there before you try again"
            raise BeanliteError(what) from error
        try:
            queue.leftover = database.close()
        except JournalFailed as error:
            raise JournalFailed(f"everything was added to {path}, but {error}") from error
