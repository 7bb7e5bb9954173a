"""The statements that read jobs and notes, and the check of what they have read."""

from collections.abc import Awaitable, Callable, Sequence
from operator import itemgetter
from typing import Final, cast
from zlib import crc32

import asyncpg

from beanlite.core.restore import BODY_AT, StoredJob, crc32_of
from beanlite.errors import JournalRefused
from beanlite.host.clock import EPOCH_S
from beanlite.journal import note_rows
from beanlite.journal.checksum import find_changed
from beanlite.journal.columns import stored_job
from beanlite.journal.note_rows import note_of

# How many bytes of bodies are read at a time (but at least one body).
_CHUNK_BYTES: Final = 4 << 20
# As host.clock.clock_ns computes it.
_TIME_NS: Final = f"trunc(({{}} - {EPOCH_S}) * 1e9)::bigint"
SINCE_NS: Final = _TIME_NS.format("since")
_body = itemgetter(BODY_AT)

Fetch = Callable[..., Awaitable[list[asyncpg.Record]]]
"""Returns the rows of a query, with its parameters."""


def _jobs(body: str, rows: str) -> str:
    job = stored_job(tube="tube::bytea", time=_TIME_NS, body=body, row_crc32="row_crc32")
    return f"SELECT {job} FROM {rows} ORDER BY id"


_NEXT: Final = "(SELECT * FROM jobs WHERE id > $1 ORDER BY id LIMIT $2) AS next_ones"
_FEW_BYTES: Final = f"""
    (SELECT *, sum(length(body)) OVER (ORDER BY id) - length(body) AS before_it FROM {_NEXT}) AS few_ones
    WHERE before_it < {_CHUNK_BYTES}
"""
# The next jobs above an id, at most so many. PostgreSQL knows the size of a body without reading the body.
WITH_BODIES: Final = _jobs("body", _FEW_BYTES)
WITHOUT_BODIES: Final = _jobs("length(body)::bigint", _NEXT)
THESE_JOBS: Final = _jobs("length(body)::bigint", "jobs WHERE id = ANY ($1)")
NOTES: Final = f"SELECT {note_rows.COLUMNS} FROM notes WHERE id > $1 ORDER BY id LIMIT $2"
NOTES_UP_TO: Final = f"SELECT {note_rows.COLUMNS} FROM notes WHERE id > $1 AND id <= $2"
NOTES_OF_THESE: Final = f"SELECT {note_rows.COLUMNS} FROM notes WHERE id = ANY ($1)"


def jobs_of(rows: list[asyncpg.Record], name: str, unchecked_id: int) -> list[StoredJob]:
    """Return rows as jobs; up to ``unchecked_id`` they may lack a checksum. ``name`` is the database's.

    JournalRefused: a row or a body is not what was written.
    """
    jobs = cast(list[StoredJob], list(map(tuple, rows)))  # fields are read by position
    job_id = find_changed(jobs, unchecked_id)
    if job_id is not None:
        raise JournalRefused(f"{name} is damaged: the row of job {job_id} has changed; restore a backup")
    has_bodies = bool(jobs) and isinstance(_body(jobs[0]), bytes)
    if has_bodies and list(map(crc32, map(_body, jobs))) != list(map(crc32_of, jobs)):
        bad = next(job for job in jobs if crc32(_body(job)) != crc32_of(job))
        raise JournalRefused(f"{name} is damaged: the body of job {bad[0]} has changed; restore a backup")
    return jobs


def notes_of(rows: Sequence[asyncpg.Record], name: str) -> list[tuple[int, bytes]]:
    """Return rows as notes, with the ids of their jobs. JournalRefused: one is none."""
    try:
        return [note_of(*row) for row in rows]
    except ValueError as error:
        raise JournalRefused(f"{name} is damaged: {error}; restore a backup") from error
