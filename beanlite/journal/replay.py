"""Reading the whole state back at start."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

from beanlite.errors import JournalRefused
from beanlite.journal.fileformat import refused

_CHUNK = 1000
_JOBS = """
    SELECT id, tube, state, pri, delay_s, ttr_s, created_at, due_at, buried_seq,
           reserves, timeouts, releases, buries, kicks,
           coalesce(body, (SELECT bodies.body FROM bodies WHERE bodies.id = jobs.id)), crc32
    FROM jobs ORDER BY id
"""


class State(NamedTuple):
    """What the file holds beside the jobs."""

    batch: int
    """The number of the last group commit."""
    last_id: int
    """The highest id ever given out."""
    pauses: list[tuple[str, int, float]]
    """tube, pause_s, and until when (UTC seconds), those that have ended included."""


def read_state(connection: sqlite3.Connection, path: Path) -> State:
    """Everything but the jobs. JournalRefused: the file is damaged."""
    with refused(path):
        meta = connection.execute("SELECT batch, last_id FROM meta").fetchone()
        if meta is None:
            raise JournalRefused(f"{path} is damaged: its meta table is empty; restore a backup")
        pauses = connection.execute("SELECT tube, pause_s, until FROM pauses").fetchall()
    batch, last_id = meta
    return State(batch, last_id, pauses)


def count_jobs(connection: sqlite3.Connection, path: Path) -> int:
    """How many jobs there are to read. JournalRefused: the file is damaged."""
    with refused(path):
        count: int = connection.execute("SELECT count(*) FROM jobs").fetchone()[0]
    return count


def read_jobs(connection: sqlite3.Connection, path: Path) -> Iterator[list[tuple[Any, ...]]]:
    """All jobs by rising id, in lists of up to 1000, each a row as _JOBS has it, with its body and without the crc32.

    JournalRefused: the file is damaged, or a body is not the one that was put.
    """
    with refused(path):
        cursor = connection.execute(_JOBS)
        while rows := cursor.fetchmany(_CHUNK):
            jobs = []
            for row in rows:
                body = row[14]
                if body is None or crc32(body) != row[15]:
                    raise JournalRefused(f"{path} is damaged: the body of job {row[0]} has changed; restore a backup")
                jobs.append(row[:15])
            yield jobs
