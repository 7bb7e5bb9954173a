"""Checks that the file still holds what the server wrote, after another program has written to it.

The triggers keep other programs from changing our rows, but can't stop a program that is determined to. Comparing all
rows takes long, so it is done in slices while clients are served.
"""

import sqlite3
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TypeGuard
from zlib import crc32

from beanlite.core.engine import Engine
from beanlite.core.job import Job
from beanlite.core.tube import without_claim
from beanlite.errors import JournalFailed
from beanlite.journal import policy_rows, schedule_rows
from beanlite.journal.checksum import checksum_of_row
from beanlite.journal.policy_rows import row_of_policy
from beanlite.journal.rows import row_of
from beanlite.journal.schedule_rows import row_of_schedule
from beanlite.journal.sqlite.file.fileformat import failing
from beanlite.journal.sqlite.file.rows import COLUMNS, INLINE_MAX, WHOLE

# A slice ends after this many jobs or pauses, or when its bodies or schedules add up to more than this many bytes.
SLICE_JOBS: Final = 500
SLICE_BYTES: Final = 1 << 20
# Times in the file are rounded, and may differ from those in memory by less than this.
_NEAR_S: Final = 0.001

_ROWS: Final = f"SELECT {COLUMNS} FROM jobs WHERE id > ? AND id <= ?"
_BODIES: Final = "SELECT id, body FROM bodies WHERE id > ? AND id <= ?"
_NOTES: Final = "SELECT id, note FROM notes WHERE id > ? AND id <= ?"
_PAUSES: Final = "SELECT CAST(tube AS BLOB), pause_s FROM pauses WHERE tube >= CAST(? AS TEXT) ORDER BY tube LIMIT ?"
_PAUSE: Final = "SELECT pause_s FROM pauses WHERE tube = CAST(? AS TEXT)"
_SCHEDULE: Final = f"SELECT {schedule_rows.COLUMNS} FROM schedules WHERE name = ?"
_Row = tuple[object, ...]
# Their index in a row.
_SINCE: Final = WHOLE.index("since")
_HOLDER: Final = WHOLE.index("holder")
_ROW_CRC32: Final = WHOLE.index("row_crc32")


def audit(connection: sqlite3.Connection, path: Path, engine: Engine, promised_id: int) -> Iterator[None]:
    """Compare the file with memory, one slice per step, to be run while no batch is being written.

    JournalFailed: another program has changed the file.
    """
    try:
        with failing(path):
            yield from _slices(connection, engine, promised_id)
    except _Different as error:
        raise JournalFailed(f"another program has changed {error} in {path}; it no longer is what was served") from None


class _Different(Exception):
    """Something in the file is not what the server wrote; the text names it."""


def _slices(connection: sqlite3.Connection, engine: Engine, promised_id: int) -> Iterator[None]:
    if connection.execute("SELECT last_id FROM meta").fetchall() != [(promised_id,)]:
        raise _Different("the last id")
    if connection.execute("SELECT 1 FROM jobs WHERE id > ? LIMIT 1", (engine.ledger.taken_id,)).fetchone():
        raise _Different("jobs")
    yield from _compare_pauses(connection, engine)
    _compare_policies(connection, engine)
    yield
    yield from _compare_schedules(connection, engine)
    last_id = engine.ledger.taken_id
    for before_id, jobs in engine.jobs.segments():
        ids = list(jobs)
        del ids[bisect_right(ids, last_id) :]  # jobs put since the audit began
        above_id = before_id
        for part in _parts(engine, ids):
            _compare_jobs(connection, engine, above_id, part[-1], part)
            above_id = part[-1]
            yield
        _compare_jobs(connection, engine, above_id, last_id, [])  # there may be rows without a job
        last_id = before_id


def _parts(engine: Engine, ids: list[int]) -> Iterator[list[int]]:
    """Yield the ids in slices small enough that clients don't notice the time they take."""
    part: list[int] = []
    size = 0
    for job_id in ids:
        job = engine.jobs.find(job_id)
        size += job.size if job is not None else 0
        part.append(job_id)
        if len(part) >= SLICE_JOBS or size > SLICE_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part


def _compare_pauses(connection: sqlite3.Connection, engine: Engine) -> Iterator[None]:
    first = b""
    while rows := connection.execute(_PAUSES, (first, SLICE_JOBS)).fetchall():
        for name, pause_s in rows:
            _compare_pause(engine, name, pause_s)
        first = name + b"\0"  # the next name that there can be
        yield
    paused = [name for name, tube in engine.tubes.items() if tube.pause_until_ns]
    for at in range(0, len(paused), SLICE_JOBS):
        for name in paused[at : at + SLICE_JOBS]:
            row = connection.execute(_PAUSE, (name,)).fetchone()
            _compare_pause(engine, name, None if row is None else row[0])
        yield


def _compare_pause(engine: Engine, name: bytes, pause_s: object) -> None:
    """Compare the pause of a tube in the file, None if there is none, with that in memory."""
    tube = engine.tubes.get(name)
    original = tube.pause_s if tube is not None and tube.pause_until_ns else None
    if name not in engine.ledger.pauses and pause_s != original:
        raise _Different(f"the pause of {name!r}")


def _compare_policies(connection: sqlite3.Connection, engine: Engine) -> None:
    rows = {row[:2]: row for row in connection.execute(f"SELECT {policy_rows.COLUMNS} FROM policies")}
    originals = {(name.decode(), key): row_of_policy(row) for (name, key), row in engine.policies.rows.items()}
    pending = {(name.decode(), key) for name, key in engine.ledger.policies}
    for each in (rows.keys() | originals.keys()) - pending:
        if rows.get(each) != originals.get(each):
            raise _Different(f"the policy {each[1]} of {each[0]}")


def _compare_schedules(connection: sqlite3.Connection, engine: Engine) -> Iterator[None]:
    size = 0
    for name in {name for (name,) in connection.execute("SELECT name FROM schedules")} | engine.schedules.keys():
        schedule = engine.schedules.get(name)
        row = connection.execute(_SCHEDULE, (name,)).fetchone()
        if name not in engine.ledger.schedules and row != (None if schedule is None else row_of_schedule(schedule)):
            raise _Different(f"the schedule {name}")
        size += 0 if schedule is None else len(schedule.body)
        if size > SLICE_BYTES:
            size = 0
            yield
    yield


def _compare_jobs(connection: sqlite3.Connection, engine: Engine, above_id: int, to_id: int, ids: list[int]) -> None:
    """Compare the jobs with these ids to all rows above ``above_id`` and up to ``to_id``."""
    rows: dict[object, _Row] = {row[0]: row for row in connection.execute(_ROWS, (above_id, to_id))}
    bodies = dict(connection.execute(_BODIES, (above_id, to_id)))
    notes = dict(connection.execute(_NOTES, (above_id, to_id)))
    for job_id in {*ids, *rows, *bodies, *notes}:
        job = engine.jobs.find(job_id)
        if not engine.ledger.is_stored(job_id):
            continue  # its row is about to be written or deleted
        row, body = rows.get(job_id), bodies.get(job_id)
        if job is None:
            sound = row is None and body is None and job_id not in notes
        else:
            content = body if job.size > INLINE_MAX else (row[-1] if row is not None and body is None else None)
            sound = row is not None and _is_body(content, job) and all(map(_alike, row, _row_with(row, job, content)))
        if not sound:
            raise _Different(f"job {job_id}")
        if job is not None and notes.get(job_id, "") != engine.notes.text(job).decode():
            raise _Different(f"the note of job {job_id}")


def _row_with(row: _Row, job: Job, body: bytes) -> _Row:
    """Return the row as it should be.

    Until the job changes, a row that was imported may lack the time since when the job is in its state, and one that an
    older version wrote the checksum as well; and a client may call itself something else than when the row was written.
    """
    checksum = None if row[_ROW_CRC32] is None else checksum_of_row(row[:_ROW_CRC32])
    values = row_of(job)
    held, holder = row[_HOLDER], values[_HOLDER]
    if isinstance(held, str) and isinstance(holder, str) and without_claim(held) == without_claim(holder):
        values = (*values[:_HOLDER], held, *values[_HOLDER + 1 :])
    if row[_SINCE] is None:
        values = (*values[:_SINCE], None, *values[_SINCE + 1 :])
    return *values, checksum, crc32(body)


def _is_body(content: object, job: Job) -> TypeGuard[bytes]:
    """Whether this may be the body of a job; if the body is not in memory, the checksum settles the rest."""
    return content == job.body if job.body is not None else isinstance(content, bytes) and len(content) == job.size


def _alike(value: object, original: object) -> bool:
    if isinstance(original, float):
        return isinstance(value, float) and abs(value - original) < _NEAR_S
    return value == original
