"""Converts a batch of changes to rows and statements: each job once, in its latest state, however often it changed.

A job that was put and deleted within the same batch is never written at all.
"""

from collections.abc import Sequence
from typing import Final
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
from beanlite.journal.sqlite.file.rows import IN_TABLE, INLINE_MAX, INSERT_BODY, INSERT_JOB, SET_PAUSE, UNSET_PAUSE
from beanlite.journal.sqlite.served.history import (
    AT_ONCE,
    FETCH_BODY,
    INSERTS,
    PRUNED_EACH,
    STORE_BODY,
    History,
)
from beanlite.journal.totals import KEPT_S

Statement = tuple[str, int, Sequence[Sequence[object]]]
"""A statement, how many rows it has to change in all, and the parameters of each execution."""

# The parameters of the row as which most jobs are first written, ready since they were put: those that jobs mostly have
# in common, and those that each has for itself. Binding fewer of them, and several rows per statement, is much cheaper.
_OWN: Final = ("id", "created_at", "row_crc32", "crc32", "body")
_COMMON: Final = tuple(column.name for column in PUT if column.name not in _OWN)
_OWN_PARAMETERS: Final = len(_OWN)
_READY_PARAMETERS: Final = len(_COMMON) + _OWN_PARAMETERS
_READY_VALUES: Final = {column.name: column.ready or column.name for column in JOB}
# So many rows with the same common parameters have them once, in a statement of their own.
_ALIKE_LEAST: Final = 4


def _insert_ready(rows: int, common: tuple[str, ...]) -> str:
    """Return a statement that inserts this many such rows; ``common``: the parameters that all of them share."""
    numbers = {name: f"?{number}" for number, name in enumerate(common, 1)}
    own = [name for name in (*_COMMON, *_OWN) if name not in common]
    values = []
    for first in range(1 + len(common), 1 + len(common) + rows * len(own), len(own)):
        numbers |= {name: f"?{number}" for number, name in enumerate(own, first)}
        row = [_READY_VALUES.get(name, name) for name in IN_TABLE]
        values.append(f"({as_list(tuple(numbers.get(value, value) for value in row))})")
    return f"INSERT INTO jobs ({as_list(IN_TABLE)}) VALUES {', '.join(values)}"


_INSERTS_READY: Final = [_insert_ready(rows, ()) for rows in range(1, AT_ONCE + 1)]
_INSERTS_ALIKE: Final = [_insert_ready(rows, _COMMON) for rows in range(1, AT_ONCE + 1)]
_SET: Final = as_list(tuple(f"{name} = ?{number}" for number, name in enumerate((*NAMES[1:], "row_crc32"), 2)))
_UPDATE: Final = f"UPDATE jobs SET {_SET} WHERE id = ?1"
# Jobs are mostly deleted in the order of their ids, so runs of consecutive ids are deleted by one statement.
_DELETE: Final = "DELETE FROM jobs WHERE id BETWEEN ? AND ?"
_DELETE_BODY: Final = "DELETE FROM bodies WHERE id = ?"

# What the low byte of an id changes in a checksum, whatever comes before it and whatever the other bytes are: a CRC is
# linear. To look it up costs a part of a call of crc32.
_LOW: Final = 255
_OF_LOW: Final = [with_id(low, 0) ^ with_id(0, 0) for low in range(_LOW + 1)]

# These give an upper bound on the frames (pages of the -wal) that a transaction takes.
BODY_BYTES_PER_FRAME: Final = 4000
# To free the pages of a large body takes such a part of the time of writing one.
FREED_PART: Final = 16
FRAMES_PER_ROW: Final = 3
FRAMES_BESIDE_ROWS: Final = 50


class Batch:
    """The rows of a batch, as of when it was taken: the jobs may change again before the batch is stored."""

    __slots__ = (
        "body_bytes",
        "changes",
        "events",
        "frames",
        "growth",
        "jobs",
        "last_id",
        "number",
        "settings",
        "tallies",
    )

    def __init__(
        self,
        number: int,
        last_id: int,
        jobs: int,
        growth: int,
        changes: list[Statement],
        settings: list[tuple[str, Row]],
        tallies: list[Tally],
        events: int,
        frames: int,
        body_bytes: int,
    ) -> None:
        self.number = number
        self.last_id = last_id
        self.jobs = jobs
        self.growth = growth
        """By how much the batch changes the number of stored jobs; negative if it falls."""
        self.changes = changes
        self.settings = settings
        """Statements about pauses, policies, schedules and notes, each with its parameters."""
        self.tallies = tallies
        """The amounts to be added to the totals."""
        self.events = events
        """How many rows the batch adds to the history."""
        self.frames = frames
        """The most frames that the batch can take in the -wal."""
        self.body_bytes = body_bytes
        """The total size of its large bodies, of those that it deletes a part."""


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


def _add_several(
    statements: list[Statement], inserts: list[str], common: list[object], values: list[object], width: int
) -> None:
    """Split the values of rows into parameters for ``inserts``: statements for one row and more, up to AT_ONCE.

    ``common`` are the parameters before them that all rows share.
    """
    rows = len(values) // width
    most = rows // AT_ONCE * AT_ONCE
    if most:
        step, end = AT_ONCE * width, most * width
        statements.append((inserts[-1], most, [common + values[at : at + step] for at in range(0, end, step)]))
        values = values[end:]
    if rows > most:
        statements.append((inserts[rows - most - 1], rows - most, [common + values]))


class _Ready:
    """Makes statements of jobs that are ready and unchanged since their put, in the order in which they are added."""

    __slots__ = (
        "_checksum",
        "_common",
        "_created",
        "_created_ns",
        "_last",
        "_near_checksum",
        "_near_id",
        "_own",
        "_statements",
        "_whole",
        "rows",
    )

    def __init__(self, statements: list[Statement]) -> None:
        self.rows = 0
        """How many have been added."""
        self._statements = statements
        self._whole: list[object] = []
        """All parameters of the first jobs that no statement has yet ..."""
        self._own: list[object] = []
        """... and those that each of the others has for itself: they were put alike."""
        self._common: list[object] = []
        """The parameters that these have in common."""
        self._last: Job | None = None
        """One of these."""
        self._created_ns = -1
        """When the last one was put, and the same as a parameter."""
        self._created: object = 0.0
        self._checksum = 0
        """What jobs have in their checksum that were put with the last one."""
        self._near_id = -1
        """Ids that differ from this one only in the low byte have this checksum, changed by that byte."""
        self._near_checksum = 0

    def add(self, job: Job, crc32_of_body: int, body: bytearray | None) -> None:
        """Add a job."""
        last = self._last
        if last is None or not (
            job.tube is last.tube and job.pri == last.pri and job.delay_s == last.delay_s and job.ttr_s == last.ttr_s
        ):
            self._end_alike()
            self._last = job
            self._common = [job.tube.name.decode(), job.pri, job.delay_s, job.ttr_s]
            self._created_ns = -1
        if job.created_ns != self._created_ns:
            self._created_ns = job.created_ns
            created_s = utc_s(job.created_ns)
            self._created = created_s
            self._checksum = checksum_of_put(job.tube.name, job.pri, job.delay_s, job.ttr_s, created_s)
            self._near_id = -1
        low = job.id & _LOW
        if job.id - low != self._near_id:
            self._near_id = job.id - low
            self._near_checksum = with_id(self._near_id, self._checksum)
        own = self._own
        own.append(job.id)  # appending each value is cheaper than building a tuple
        own.append(self._created)
        own.append(self._near_checksum ^ _OF_LOW[low])
        own.append(crc32_of_body)
        own.append(body)
        self.rows += 1

    def _end_alike(self) -> None:
        own = self._own
        if len(own) >= _ALIKE_LEAST * _OWN_PARAMETERS:
            self._end_whole()
            _add_several(self._statements, _INSERTS_ALIKE, self._common, own, _OWN_PARAMETERS)
        elif own:
            for at in range(0, len(own), _OWN_PARAMETERS):
                self._whole += self._common
                self._whole += own[at : at + _OWN_PARAMETERS]
        self._own = []

    def _end_whole(self) -> None:
        if self._whole:
            _add_several(self._statements, _INSERTS_READY, [], self._whole, _READY_PARAMETERS)
            self._whole = []

    def end(self) -> None:
        """Make statements of all that have been added."""
        self._end_alike()
        self._end_whole()


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
        _add_several(statements, INSERTS, [], past.values, WIDTH)
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
        body_bytes + settings_bytes + large_bytes,
    )


def _add_jobs(statements: list[Statement], changes: Changes) -> tuple[int, int]:
    """Add the statements for the jobs; returns their share of ``body_bytes``, and the growth of the file in jobs."""
    ready = _Ready(statements)
    inserts: list[Row] = []
    updates: list[Row] = []
    deletes: list[int] = []
    bodies: list[Row] = []
    body_deletes: list[Row] = []
    first_id = changes.first_id
    large_bytes = 0
    for job in changes.jobs:
        state = job.state
        if state is GONE:
            deletes.append(job.id)
            if job.size > INLINE_MAX:
                body_deletes.append((job.id,))
                large_bytes += job.size // FREED_PART
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
            ready.add(job, checksum, inline)
        else:
            row = row_of(job)
            inserts.append((*row, checksum_of_row(row), checksum, inline))
    ready.end()
    _add(statements, INSERT_JOB, inserts)
    _add(statements, INSERT_BODY, bodies)
    _add(statements, _UPDATE, updates)
    if deletes:
        statements.append((_DELETE, len(deletes), _runs(deletes)))
    _add(statements, _DELETE_BODY, body_deletes)
    return large_bytes, ready.rows + len(inserts) - len(deletes)


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
