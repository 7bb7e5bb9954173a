"""Reads a database file without changing it, whether a server is running on it or not.

To be used in a separate process: in the server's own, closing the file would drop SQLite's locks on it.
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from beanlite.errors import JournalRefused, NotOurs
from beanlite.journal.migrations import find_migrations
from beanlite.journal.sqlite.file.fileformat import (
    check_file,
    journal_of,
    open_regular,
    refused,
    stray_wal,
    wal_of,
    wal_size,
)
from beanlite.journal.sqlite.file.migrations import stand_in
from beanlite.journal.sqlite.file.stray import has_stray_wal

# How long to wait for a lock on the file, which others hold only briefly.
_BUSY_TIMEOUT_S = 30.0


@contextmanager
def reading(path: Path, wait_s: float = _BUSY_TIMEOUT_S) -> Iterator[sqlite3.Connection]:
    """Yield a read-only connection in autocommit mode. A file of an older version appears to have the current columns.

    What a killed program has left half done is rolled back first, as SQLite does whenever it reads a file.
    JournalRefused: the file can't be opened, is empty, or is not ours; or another program locks it for ``wait_s``.
    """
    check_readable(path)
    roll_back(path, wait_s)
    try:
        # A read-only connection never checkpoints, not even if it is the last to close, so a -wal that a killed server
        # has left remains for the checks of the next start.
        with refused(path):
            connection = sqlite3.connect(read_only(path), uri=True, timeout=wait_s, isolation_level=None)
        with closing(connection):
            with refused(path):
                connection.execute("SELECT 1 FROM sqlite_schema").fetchone()
                stand_in(connection, find_migrations())
            yield connection
    finally:
        tidy(path)


def roll_back(path: Path, wait_s: float = _BUSY_TIMEOUT_S) -> None:
    """Undo the change of which a rollback journal was left, which a connection that only reads can't."""
    if journal_of(path).exists() and not wal_size(path):  # closing this connection would move a -wal into the file
        with refused(path), closing(sqlite3.connect(path, timeout=wait_s)) as connection:
            connection.execute("SELECT 1 FROM sqlite_schema").fetchone()
        check_readable(path)  # what a first start had begun is gone, and the file is empty


def read_only(path: Path) -> str:
    """Return the URI with which SQLite only reads a file.

    SQLite makes a -wal and a -shm even to read a file that was stopped in order. It can't where the folder is not
    writable, as in a snapshot; and where the file is not, it leaves them behind, and the server of another user could
    not write to them. If there is no -wal, the file has everything, and can be read without them.
    """
    is_writable = all(os.access(each, os.W_OK, effective_ids=True) for each in (path.parent, path))
    return f"{path.as_uri()}?{'mode=ro' if is_writable or wal_of(path).exists() else 'immutable=1'}"


def check_readable(path: Path) -> None:
    """Raise JournalRefused unless the file can be opened, has content, and is ours, and of no newer version."""
    try:
        descriptor = open_regular(path)
    except OSError as error:
        raise JournalRefused(f"{path} can't be opened: {error.strerror}") from error
    with refused(path), os.fdopen(descriptor):
        check_file(descriptor, path, len(find_migrations()), to_read=True)
        if not os.fstat(descriptor).st_size:
            raise NotOurs(f"{path} is empty; there is nothing in it")
        if has_stray_wal(descriptor, path):
            raise stray_wal(path)


def tidy(path: Path) -> None:
    """Remove the empty -wal that SQLite may have left."""
    if wal_of(path).exists() and not wal_size(path):
        # No server is running, or one has only just started. The empty -wal may be our own, and then nothing else will
        # remove it. A connection that may write removes it on closing, if it is the last; there is nothing to
        # checkpoint. If the file is damaged or in use, the -wal stays, so as not to hide the outcome of the reading.
        with suppress(sqlite3.Error, UnicodeDecodeError), closing(sqlite3.connect(path, timeout=0)) as connection:
            connection.execute("SELECT 1 FROM sqlite_schema").fetchone()
