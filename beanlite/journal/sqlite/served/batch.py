"""Converts a batch of changes to rows and statements: each job once, in its latest state, however often it changed.

A job that was put and deleted within the same batch is never written at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple
from zlib import crc32

from beanlite.core.job import GONE, NO_PAST, READY, Job
from beanlite.core.ledger import Changes
from beanlite.core.totals import Tally
from beanlite.host.clock import utc_s
from beanlite.journal.columns import JOB, NAMES, PUT, listed
from beanlite.journal.rows import row_of
from beanlite.journal.sqlite.file.checksum import checksum_of_put, checksum_of_row, with_id
from beanlite.journal.sqlite.file.rows import COLUMNS, INLINE_MAX, INSERT_BODY, INSERT_JOB
from beanlite.journal.sqlite.served.history import (
    AT_ONCE,
    FETCH_BODY,
    INSERT,
    INSERT_SEVERAL,
    PRUNED_EACH,
    STORE_BODY,
    WIDTH,
    History,
)
from beanlite.journal.totals import KEPT_S

Parameters = Sequence[Sequence[object]]

# The parameters of the row as which most jobs are first written, ready since they were put: binding fewer of them, and
# several rows per statement, is much cheaper.
_PUT: Final = (*(column.name for column in PUT), "row_crc32", "crc32", "body")
_READY_PARAMETERS: Final = len(_PUT)


def _insert_ready(rows: int) -> str:
    """A statement that inserts this many such rows."""
    values = []
    for first in range(1, rows * _READY_PARAMETERS, _READY_PARAMETERS):
        numbers = {name: f"?{number}" for number, name in enumerate(_PUT, first)}
        row = [column.ready or column.name for column in JOB] + ["row_crc32", "crc32", "body"]
        values.append(f"({listed(tuple(numbers.get(value, value) for value in row))})")
    return f"INSERT INTO jobs ({COLUMNS}) VALUES {', '.join(values)}"


_INSERT_READY: Final = _insert_ready(1)
_INSERT_SEVERAL: Final = _insert_ready(AT_ONCE)
_SET: Final = listed(tuple(f"{name} = ?{number}" for number, name in enumerate((*NAMES[1:], "row_crc32"), 2)))
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
    changes: list[tuple[str, int, Parameters]]
    """Each statement, how many rows it has to change in all, and its parameters."""
    pauses: list[tuple[str, tuple[int, float] | None]]
    """Each tube, with its pause_s and until, or with None if the pause is over."""
    tallies: list[Tally]
    """The amounts to be added to the totals."""
    events: int
    """How many rows the batch adds to the history."""
    frames: int
    """The most frames that the batch can take in the -wal."""
    body_bytes: int
    """The total size of its large bodies."""


def _runs(ids: list[int]) -> list[tuple[int, int]]:
    """The first and the last id of each run of consecutive ids."""
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


def _several(several: str, one: str, values: list[object], width: int) -> list[tuple[str, int, Parameters]]:
    """Split the values of rows into parameters for ``several``, which takes AT_ONCE rows, and for ``one``."""
    rows = len(values) // width
    most = rows // AT_ONCE * AT_ONCE
    step, end = AT_ONCE * width, most * width
    together = [values[at : at + step] for at in range(0, end, step)]
    rest = [values[at : at + width] for at in range(end, len(values), width)]
    return [(several, most, together), (one, rows - most, rest)]


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
    past = history.rows_of(changes.events)
    ready: list[object] = []
    inserts: list[tuple[object, ...]] = []
    updates: list[tuple[object, ...]] = []
    deleted: list[int] = []
    bodies: list[tuple[object, ...]] = []
    body_deletes: list[tuple[object, ...]] = []
    alike: Job | None = None  # the last job unchanged since its put; jobs put along with it share most of its values
    put: tuple[object, ...] = ()
    of_put = 0
    first_id = changes.first_id
    body_bytes = past.body_bytes
    for job in changes.jobs:
        state = job.state
        if state is GONE:
            deleted.append(job.id)
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
        inline = body if job.size <= INLINE_MAX else None
        if inline is None:
            bodies.append((job.id, body))
            body_bytes += job.size
        if state is READY and not job.reserves and job.past is NO_PAST and job.since_ns == job.created_ns:
            if not (alike is not None and _are_alike(job, alike)):
                alike = job
                as_put = (job.pri, job.delay_s, job.ttr_s, utc_s(job.created_ns))
                put = (job.tube.name.decode(), *as_put)
                of_put = checksum_of_put(job.tube.name, *as_put)
            ready.append(job.id)  # appending each value is cheaper than building one tuple
            ready += put
            ready += (with_id(job.id, of_put), checksum, inline)
        else:
            row = row_of(job)
            inserts.append((*row, checksum_of_row(row), checksum, inline))
    all_rows: tuple[tuple[str, int, Parameters], ...] = (
        *_several(INSERT_SEVERAL, INSERT, past.values, WIDTH),
        (STORE_BODY, len(past.bodies), past.bodies),
        (FETCH_BODY, len(past.to_fetch), past.to_fetch),
        *_several(_INSERT_SEVERAL, _INSERT_READY, ready, _READY_PARAMETERS),
        (INSERT_JOB, len(inserts), inserts),
        (INSERT_BODY, len(bodies), bodies),
        (_UPDATE, len(updates), updates),
        (_DELETE, len(deleted), _runs(deleted)),
        (_DELETE_BODY, len(body_deletes), body_deletes),
    )
    pauses = [
        (tube.name.decode(), (tube.pause_s, utc_s(tube.pause_until_ns)) if tube.pause_until_ns else None)
        for tube in changes.pauses
    ]
    rows = len(changes.jobs) + len(pauses) + len(KEPT_S) * len(changes.tallies) + (1 + PRUNED_EACH) * past.rows
    frames = FRAMES_BESIDE_ROWS + FRAMES_PER_ROW * rows + past.body_bytes // BODY_BYTES_PER_FRAME
    if bodies:
        frames += sum(job.size for job in changes.jobs if job.id >= first_id) // BODY_BYTES_PER_FRAME
    changed = [each for each in all_rows if each[1]]
    growth = len(ready) // _READY_PARAMETERS + len(inserts) - len(deleted)
    return Batch(
        changes.batch,
        changes.last_id,
        len(changes.jobs),
        growth,
        changed,
        pauses,
        changes.tallies,
        past.rows,
        frames,
        body_bytes,
    )
