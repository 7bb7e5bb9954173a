"""Filling an empty database with jobs from elsewhere: with all of them or with none."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from beanlite.errors import BeanliteError, JournalFailed, JournalRefused
from beanlite.journal.sqlite.database import open_database
from beanlite.journal.sqlite.fileformat import said, shm_of, wal_of
from beanlite.journal.sqlite.rows import INLINE_MAX

_INSERT = """
    INSERT INTO jobs (id, tube, state, pri, delay_s, ttr_s, created_at, due_at, buried_seq,
                      reserves, timeouts, releases, buries, kicks, crc32, body)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_INSERT_BODY = "INSERT INTO bodies (id, body) VALUES (?, ?)"


class NewJob(NamedTuple):
    """A job as its columns have it. Times are UTC seconds since 1970."""

    id: int
    tube: str
    state: str
    pri: int
    delay_s: int
    ttr_s: int
    created_at: float
    due_at: float | None
    """Delayed: when it becomes ready."""
    buried_seq: int | None
    """Buried: its place in the order of burials."""
    reserves: int
    timeouts: int
    releases: int
    buries: int
    kicks: int
    body: bytes


class Filling:
    """The one transaction by which a database is filled."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.left: str | None = None
        """In the end: what is left beside the file and why, None if nothing is."""

    def add(self, job: NewJob) -> None:
        """Add a job. This is quickest by rising id."""
        body = job.body
        is_inline = len(body) <= INLINE_MAX
        self._connection.execute(_INSERT, (*job[:-1], crc32(body), body if is_inline else None))
        if not is_inline:
            self._connection.execute(_INSERT_BODY, (job.id, body))

    def set_last_id(self, last_id: int) -> None:
        """Have the ids of later jobs begin above this one."""
        self._connection.execute("UPDATE meta SET last_id = max(last_id, ?)", (last_id,))


@contextmanager
def filling(path: Path) -> Iterator[Filling]:
    """Open a database without jobs, made if it is missing, to be filled within the block.

    If the block raises, nothing has been added, and a file that was made is gone. JournalRefused: it can't be used, or
    has jobs. BeanliteError: it could not be written. The file takes its size again beside it until the end.
    """
    path = Path(os.path.realpath(path))
    is_new = not path.exists()
    database = open_database(path)
    connection = database.connection
    queue = Filling(connection)
    try:
        _check_empty(connection, path)
        connection.execute("BEGIN IMMEDIATE")
        yield queue
        connection.execute("COMMIT")
    except BaseException as error:
        with suppress(sqlite3.Error, JournalFailed):  # an open transaction is never in the file, whatever fails here
            connection.rollback()
            database.close()
        if is_new:
            for file in (path, wal_of(path), shm_of(path)):
                file.unlink(missing_ok=True)
        if isinstance(error, sqlite3.Error):
            raise BeanliteError(f"nothing was added to {path}: {said(error)}") from error
        raise
    queue.left = database.close()


def _check_empty(connection: sqlite3.Connection, path: Path) -> None:
    if connection.execute("SELECT EXISTS (SELECT 1 FROM jobs)").fetchone()[0]:
        raise JournalRefused(f"{path} has jobs already; name a new file, or an empty queue")
