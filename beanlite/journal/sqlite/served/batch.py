"""Converts a batch of changes to rows and statements: each job once, in its latest state, however often it changed.

A job that was put and deleted within the same batch is never written at all.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple
from zlib import crc32

from beanlite.core.job import GONE, NO_PAST, READY, Job
from beanlite.core.ledger import Changes
from beanlite.core.totals import Tally
from beanlite.host.clock import utc_s
from beanlite.journal.checksum import checksum_of_put, checksum_of_row, with_id
from beanlite.journal.columns import JOB, NAMES, PUT, as_list
from beanlite.journal.event_rows import WIDTH, Row
from beanlite.journal.policy_rows import row_of_policy
from beanlite.journal.rows import row_of
from beanlite.journal.schedule_rows import row_of_schedule
from beanlite.journal.sqlite.file.note_table import SET_NOTE, UNSET_NOTE, row_of_note
from beanlite.journal.sqlite.file.policy_tables import SET_POLICY, SET_SCHEDULE, UNSET_POLICY, UNSET_SCHEDULE
from beanlite.journal.sqlite.file.rows import COLUMNS, INLINE_MAX, INSERT_BODY, INSERT_JOB, SET_PAUSE, UNSET_PAUSE
from beanlite.journal.sqlite.served.history import (
    AT_ONCE,
    FETCH_BODY,
    INSERT,
    INSERT_SEVERAL,
    PRUNED_EACH,
    STORE_BODY,
    History,
)
from beanlite.journal.totals import KEPT_S

Statement = tuple[str, int, Sequence[Sequence[object]]]
"""A statement, how many rows it has to change in all, and the parameters of each execution."""

# The parameters of the row as which most jobs are first written, ready since they were put: binding fewer of them, and
# several rows per statement, is much cheaper.
_PUT: Final = (*(column.name for column in PUT), "row_crc32", "crc32", "body")
_READY_PARAMETERS: Final = len(_PUT)


def _insert_ready(rows: int) -> str:
    """Return a statement that inserts this many such rows."""
    values = []
    for first in range(1, rows * _READY_PARAMETERS, _READY_PARAMETERS):
        numbers = {name: f"?{number}" for number, name in enumerate(_PUT, first)}
        row = [column.ready or column.name for column in JOB] + ["row_crc32", "crc32", "body"]
        values.append(f"({as_list(tuple(numbers.get(value, value) for value in row))})")
    return f"INSERT INTO jobs ({COLUMNS}) VALUES {', '.join(values)}"


_INSERT_READY: Final = _insert_ready(1)
_INSERT_SEVERAL: Final = _insert_ready(AT_ONCE)
_SET: Final = as_list(tuple(f"{name} = ?{number}" for number, name in enumerate((*NAMES[1:], "row_crc32"), 2)))
_UPDATE: Final = f"UPDATE jobs SET {_SET} WHERE id = ?1"
# Jobs are mostly deleted in the order of their ids, so runs of consecutive ids are deleted by one statement.
_DELETE: Final = "DELETE FROM jobs WHERE id BETWEEN ? AND ?"
_DELETE_BODY: Final = "DELETE FROM bodies WHERE id = ?"

# These give an upper bound on the frames (pages of the -wal) that a transaction takes.
BODY_BYTES_PER_FRAME: Final = 4000
FRAMES_PER_ROW: Final = 3
FRAMES_BESIDE_ROWS: Final = 50


class Batch(NamedTuple):
    """The rows of a batch, as of when it was taken: the jobs may change again before the batch is stored."""

    number: int
    last_id: int
    jobs: int
    growth: int
    """By how much the batch changes the number of stored jobs; negative if it falls."""
    changes: list[Statement]
    settings: list[tuple[str, Row]]
    """Statements about pauses, policies, schedules and notes, each with its parameters."""
    tallies: list[Tally]
    """The amounts to be added to the totals."""
    events: int
    """How many rows the batch adds to the history."""
    frames: int
    """The most frames that the batch can take in the -wal."""
    body_bytes: int
    """The total size of its large bodies."""


def _runs(ids: list[int]) -> list[tuple[int, int]]:
    """Return the first and the last id of each run of consecutive ids."""
    ids.sort()
    runs = []
    first = last = 0  # no id
    for job_id in ids:
        if job_id != last + 1:
            if last:
                runs.append((first, last))
            first = job_id
        last = job_id
    if last:
        runs.append((first, last))
    return runs


def _add(statements: list[Statement], statement: str, rows: list[Row]) -> None:
    if rows:
        statements.append((statement, len(rows), rows))


def _add_several(statements: list[Statement], several: str, one: str, values: list[object], width: int) -> None:
    """Split the values of rows into parameters for ``several``, which takes AT_ONCE rows, and for ``one``."""
    rows = len(values) // width
    most = rows // AT_ONCE * AT_ONCE
    if most:
        step, end = AT_ONCE * width, most * width
        statements.append((several, most, [values[at : at + step] for at in range(0, end, step)]))
        values = values[end:]
    if rows > most:
        statements.append((one, rows - most, [values[at : at + width] for at in range(0, len(values), width)]))


def _are_alike(job: Job, other: Job) -> bool:
    """Whether two jobs were put at the same time with the same tube, pri, delay and ttr."""
    return (
        job.created_ns == other.created_ns
        and job.tube is other.tube
        and job.pri == other.pri
        and job.delay_s == other.delay_s
        and job.ttr_s == other.ttr_s
    )


def batch_of(changes: Changes, history: History) -> Batch:
    """Convert changes to a batch of rows."""
    statements: list[Statement] = []
    settings, settings_bytes = _settings_of(changes)
    rows = len(changes.jobs) + len(settings) + len(KEPT_S) * len(changes.tallies)
    events = body_bytes = 0
    if changes.events:
        past = history.rows_of(changes.events)
        events, body_bytes = past.rows, past.body_bytes
        rows += (1 + PRUNED_EACH) * events
        _add_several(statements, INSERT_SEVERAL, INSERT, past.values, WIDTH)
        _add(statements, STORE_BODY, past.bodies)
        _add(statements, FETCH_BODY, past.to_fetch)  # before the job is deleted
    frames = FRAMES_BESIDE_ROWS + FRAMES_PER_ROW * rows + (body_bytes + settings_bytes) // BODY_BYTES_PER_FRAME
    large_bytes, growth = _add_jobs(statements, changes)
    if large_bytes:
        frames += sum(job.size for job in changes.jobs if job.id >= changes.first_id) // BODY_BYTES_PER_FRAME
    return Batch(
        changes.batch,
        changes.last_id,
        len(changes.jobs),
        growth,
        statements,
        settings,
        changes.tallies,
        events,
        frames,
        body_bytes + large_bytes,
    )


def _add_jobs(statements: list[Statement], changes: Changes) -> tuple[int, int]:
    """Add the statements for the jobs; returns the size of their large bodies, and the growth of the file in jobs."""
    ready: list[object] = []
    inserts: list[Row] = []
    updates: list[Row] = []
    deletes: list[int] = []
    bodies: list[Row] = []
    body_deletes: list[Row] = []
    alike: Job | None = None  # the last job unchanged since its put; jobs put along with it share most of its values
    put_values: tuple[object, ...] = ()
    put_checksum = 0
    first_id = changes.first_id
    large_bytes = 0
    for job in changes.jobs:
        state = job.state
        if state is GONE:
            deletes.append(job.id)
            if job.size > INLINE_MAX:
                body_deletes.append((job.id,))
            continue
        if job.id < first_id:
            row = row_of(job)
            updates.append((*row, checksum_of_row(row)))
            continue
        body = job.body
        assert body is not None  # a body stays in memory at least until it is stored
        checksum = crc32(body)
        inline: bytearray | None = None
        if job.size <= INLINE_MAX:
            inline = bytearray(body)  # sqlite3 searches for an adapter of bytes, which takes longer than this copy
        else:
            bodies.append((job.id, body))
            large_bytes += job.size
        if state is READY and not job.reserves and job.past is NO_PAST and job.since_ns == job.created_ns:
            if not (alike is not None and _are_alike(job, alike)):
                alike = job
                as_put = (job.pri, job.delay_s, job.ttr_s, utc_s(job.created_ns))
                put_values = (job.tube.name.decode(), *as_put)
                put_checksum = checksum_of_put(job.tube.name, *as_put)
            ready.append(job.id)  # appending each value is cheaper than building one tuple
            ready += put_values
            ready += (with_id(job.id, put_checksum), checksum, inline)
        else:
            row = row_of(job)
            inserts.append((*row, checksum_of_row(row), checksum, inline))
    _add_several(statements, _INSERT_SEVERAL, _INSERT_READY, ready, _READY_PARAMETERS)
    _add(statements, INSERT_JOB, inserts)
    _add(statements, INSERT_BODY, bodies)
    _add(statements, _UPDATE, updates)
    if deletes:
        statements.append((_DELETE, len(deletes), _runs(deletes)))
    _add(statements, _DELETE_BODY, body_deletes)
    return large_bytes, len(ready) // _READY_PARAMETERS + len(inserts) - len(deletes)


def _settings_of(changes: Changes) -> tuple[list[tuple[str, Row]], int]:
    """Return the statements about everything but jobs, and the size of the bodies and notes in them."""
    statements: list[tuple[str, Row]] = []
    body_bytes = 0
    for tube in changes.pauses:
        name = tube.name.decode()
        if tube.pause_until_ns:
            statements.append((SET_PAUSE, (name, tube.pause_s, utc_s(tube.pause_until_ns))))
        else:
            statements.append((UNSET_PAUSE, (name,)))
    for (pattern, key), policy in changes.policies:
        if policy is not None:
            statements.append((SET_POLICY, row_of_policy(policy)))
        else:
            statements.append((UNSET_POLICY, (pattern.decode(), key)))
    for name, schedule in changes.schedules:
        if schedule is not None:
            statements.append((SET_SCHEDULE, row_of_schedule(schedule)))
            body_bytes += len(schedule.body)
        else:
            statements.append((UNSET_SCHEDULE, (name,)))
    for job_id, note in changes.notes:
        if note:
            statements.append((SET_NOTE, row_of_note(job_id, note)))
            body_bytes += len(note)
        else:
            statements.append((UNSET_NOTE, (job_id,)))
    return statements, body_bytes
