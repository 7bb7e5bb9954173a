"""Database files with jobs in them, for the tests of the journal, and a writer in a process of its own.

``python -m tests.support.journal_files FILE`` writes batches to FILE until it is killed; ``FILE idle`` writes ten, and
then keeps FILE open. A line on stdout reports that the first ten are written.
"""

import itertools
import re
import resource
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from zlib import crc32

from beanlite.errors import JournalRefused
from beanlite.journal.checksum import checksum_of_row
from beanlite.journal.columns import DEFAULTS, NAMES
from beanlite.journal.event_rows import HistoryBounds
from beanlite.journal.migrations import find_migrations
from beanlite.journal.sqlite.file import wholefile
from beanlite.journal.sqlite.file.database import open_database
from beanlite.journal.sqlite.file.migrations import allow_writing
from beanlite.journal.sqlite.file.replay import read_state
from beanlite.journal.sqlite.tools import dump

ROOT = Path(__file__).parents[2]
VERSION = len(find_migrations())  # of the files that this version makes
KEPT_BATCHES = 50
NO_HISTORY = HistoryBounds(None, 1 << 30, bodies=False)
LARGE = b"large" * 1000


def put(connection, number, body=b"body", large=False, **fields):
    """Insert a job outside of any batch; fields that are not given are those of a job that has just been put."""
    as_put = {"id": number, "tube": "default", "state": "ready", "pri": 0, "delay_s": 0, "ttr_s": 60}
    times = {"created_at": 1.7e9, "since": 1.7e9}
    job = DEFAULTS | as_put | times | {"crc32": crc32(body), "body": None if large else body} | fields
    job.setdefault("row_crc32", checksum_of_row(tuple(job[name] for name in NAMES)))
    values = ", ".join(":" + name for name in job)
    connection.execute(f"INSERT INTO jobs ({', '.join(job)}) VALUES ({values})", job)  # noqa: S608
    if large:
        connection.execute("INSERT INTO bodies VALUES (?, ?)", (number, body))


def put_by_chance(connection, number, chance, sizes, dues):
    """Insert a job in the state that is its number's turn, with a body and a due time, if it has one, out of these."""
    state = ("ready", "delayed", "reserved", "buried")[number % 4]
    body = chance.randbytes(chance.choice(sizes))
    put(
        connection,
        number,
        body,
        large=len(body) > 1024,
        tube=chance.choice(["default", "a", "other-tube"]),
        state=state,
        pri=chance.choice([0, 1, 1000, 2**32 - 1]),
        delay_s=chance.choice([0, 1, 100]),
        due_at=chance.choice(dues) if state in {"delayed", "reserved"} else None,
        buried_seq=number if state == "buried" else None,
        reserves=number % 3,
        **({"timeouts": number % 3, "kicks": 1} if number % 5 == 0 else {}),
        **({"holder": "10.0.0.1:7", "holder_conn": number} if state == "reserved" else {}),
    )


def write_batch(connection, batch):
    """Commit batch number `batch`: put three jobs with that pri, the last one large, and delete the oldest ones."""
    connection.execute("BEGIN IMMEDIATE")
    for number in range(3 * batch - 2, 3 * batch + 1):
        put(connection, number, LARGE if number % 3 == 0 else b"small", large=number % 3 == 0, pri=batch)
    connection.execute("DELETE FROM bodies WHERE id IN (SELECT id FROM jobs WHERE pri = ?)", (batch - KEPT_BATCHES,))
    connection.execute("DELETE FROM jobs WHERE pri = ?", (batch - KEPT_BATCHES,))
    connection.execute("UPDATE meta SET batch = ?, last_id = ?", (batch, 3 * batch))
    connection.execute("COMMIT")


def make(path, batches=0):
    """Make a database that was stopped in an orderly way after this many batches."""
    database = open_database(path)
    for batch in range(1, batches + 1):
        write_batch(database.connection, batch)
    assert database.close() is None


def make_killed(path, batches, last=""):
    """Make the database of a killed server, with these batches and the change of a last statement in its -wal."""
    origin = path.parent / "origin"
    origin.mkdir()
    database = open_database(origin / path.name)
    for batch in range(1, batches + 1):
        write_batch(database.connection, batch)
    database.connection.execute(last)
    for file in (path, Path(f"{path}-wal")):
        shutil.copy(origin / file.name, file)
    database.close()
    shutil.rmtree(origin)


def make_interrupted(path, batches):
    """Make a database that somebody has taken out of WAL mode, killed amid a transaction: it has a rollback journal."""
    make(path, batches)
    interrupt(path)


def interrupt(path):
    """Do the same to a file that is there."""
    origin = path.with_name("origin")
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE").fetchone()
        connection.execute("PRAGMA cache_size = 2")
        connection.execute("BEGIN")
        connection.execute("CREATE TABLE theirs AS SELECT randomblob(50000)")
        shutil.copy(path, origin)
        shutil.copy(f"{path}-journal", f"{origin}-journal")
        connection.execute("ROLLBACK")
    origin.rename(path)
    Path(f"{origin}-journal").rename(f"{path}-journal")


@contextmanager
def unchecked(path):
    """A connection that can write any value into such a file, as otherwise only damage can."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        shape = connection.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'table'").fetchall()
        connection.execute("PRAGMA writable_schema = ON")
        for name, sql in shape:
            loose = sql.replace("STRICT", "").replace(" NOT NULL", "").replace(") ,", ")")
            # Generated columns become plain ones, whose values stay as they are.
            loose = re.sub(r"AS \(.*\) STORED", "", loose, flags=re.DOTALL)
            connection.execute("UPDATE sqlite_schema SET sql = ? WHERE name = ?", (loose, name))
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        allow_writing(connection)
        connection.execute("PRAGMA ignore_check_constraints = ON")
        yield connection
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        for name, sql in shape:
            connection.execute("UPDATE sqlite_schema SET sql = ? WHERE name = ?", (sql, name))


def flip(path, offset):
    """Damage one byte of a file."""
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0xFF]))


def refusal(path):
    """The line that says why the file can't be opened."""
    try:
        open_database(path).close()
    except JournalRefused as error:
        line = str(error)
        assert "\n" not in line
        return line
    raise AssertionError(f"{path} was opened")


def batch_in(path):
    """Return the number of a file's last batch, as a server that starts reads it."""
    database = open_database(path)
    batch = read_state(database.connection, path).batch
    assert database.close() is None
    return batch


def snapshot(folder):
    """Return everything in a folder: names, modification times, contents."""
    return {file.name: (file.stat().st_mtime_ns, file.is_file() and file.read_bytes()) for file in folder.iterdir()}


@contextmanager
def files_of_at_most(size):
    """As on a full disk, no file can grow beyond this size."""
    previous = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, previous[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, previous)


def sync_that_fails_once_replaced(path):
    """Return a stand-in for ``wholefile.sync`` that fails from the moment at which another file is at the path."""
    inode, sync = path.stat().st_ino, wholefile.sync

    def failing(synced):
        if path.stat().st_ino != inode:
            raise OSError(5, "Input/output error")
        sync(synced)

    return failing


@contextmanager
def writer(path, *options):
    """Another process that has the file open and has written ten batches; it goes on writing unless it is "idle"."""
    command = [sys.executable, "-m", "tests.support.journal_files", str(path), *options]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout.readline() == b"ready\n"
            yield process
        finally:
            process.kill()


def main(path, idle=""):
    connection = open_database(Path(path)).connection
    for batch in itertools.count(1):
        write_batch(connection, batch)
        if batch % 20 == 0:
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        if batch == 10:
            sys.stdout.write("ready\n")
            sys.stdout.flush()
            if idle:
                sys.stdin.read()


def export_to_file(source, dest, progress=None, *, replace=False):
    """Export a database into a file, as ``beanlite export`` does."""
    return dump.export_to_file(partial(dump.export, source, progress=progress), dest, source, replace=replace)


if __name__ == "__main__":
    main(*sys.argv[1:])
