"""Reading the whole state back at start."""

import sqlite3
from collections.abc import Generator
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from beanlite.clock import EPOCH_S, clock_ns
from beanlite.errors import JournalRefused
from beanlite.journal.fileformat import refused
from beanlite.states import StoredJob

_CHUNK = 1000
# What the engine needs is made by SQLite, in C: names as bytes, times as the clock has them, and what most jobs don't
# have left out: each column costs some 0.08 µs of the 2.5 a job takes to be restored.
# (printf: format() came with 3.38.)
_JOBS = f"""
    SELECT id, CAST(tube AS BLOB), nullif(state, 'ready'), pri, delay_s, ttr_s,
           CAST((created_at - {EPOCH_S}) * 1e9 AS INTEGER),
           coalesce(buried_seq, CAST((due_at - {EPOCH_S}) * 1e9 AS INTEGER)),
           reserves,
           iif(timeouts | releases | buries | kicks, printf('%d %d %d %d', timeouts, releases, buries, kicks), NULL),
           coalesce(body, (SELECT bodies.body FROM bodies WHERE bodies.id = jobs.id)), crc32
    FROM jobs ORDER BY id
"""  # noqa: S608 - a number of our own
_body = itemgetter(10)
_crc32 = itemgetter(11)


class State(NamedTuple):
    """What the file holds beside the jobs."""

    batch: int
    """The number of the last group commit."""
    last_id: int
    """The highest id ever given out."""
    pauses: list[tuple[bytes, int, int]]
    """tube, pause_s, and until_ns, those that have ended included."""


def read_state(connection: sqlite3.Connection, path: Path) -> State:
    """Everything but the jobs. JournalRefused: the file is damaged."""
    with refused(path):
        meta = connection.execute("SELECT batch, last_id FROM meta").fetchone()
        if meta is None:
            raise JournalRefused(f"{path} is damaged: its meta table is empty; restore a backup")
        pauses = connection.execute("SELECT tube, pause_s, until FROM pauses").fetchall()
    batch, last_id = meta
    return State(batch, last_id, [(tube.encode(), pause_s, clock_ns(until)) for tube, pause_s, until in pauses])


def count_jobs(connection: sqlite3.Connection, path: Path) -> int:
    """How many jobs there are to read. JournalRefused: the file is damaged."""
    with refused(path):
        count: int = connection.execute("SELECT count(*) FROM jobs").fetchone()[0]
    return count


def read_jobs(connection: sqlite3.Connection, path: Path) -> Generator[list[StoredJob], None, None]:
    """All jobs by rising id, in lists of up to 1000.

    JournalRefused: the file is damaged, or a body is not the one that was put.
    """
    with refused(path):
        cursor = connection.execute(_JOBS)
        while rows := cursor.fetchmany(_CHUNK):
            try:
                sound = list(map(crc32, map(_body, rows))) == list(map(_crc32, rows))
            except TypeError:  # a body that is missing
                sound = False
            if not sound:
                bad = next(row for row in rows if _body(row) is None or crc32(_body(row)) != _crc32(row))
                raise JournalRefused(f"{path} is damaged: the body of job {bad[0]} has changed; restore a backup")
            yield rows
