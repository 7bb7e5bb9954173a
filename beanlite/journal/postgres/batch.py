"""A batch of changes as one statement, which takes effect as a whole or not at all.

The first part of the statement is the fence: it locks the row of the lease, and appends the row of the batch only if
this server still has the lease, the previous batch was stored, and this one was not. All other parts depend on it. If
any part changes a different number of rows than it should, the statement ends with a division by zero, and nothing of
the batch is stored.
"""

from typing import Final, NamedTuple, cast
from zlib import crc32

from beanlite.core.events import DELETE, Event
from beanlite.core.job import GONE, NO_PAST, READY
from beanlite.core.ledger import Changes
from beanlite.core.tube import Tube
from beanlite.host.clock import utc_s
from beanlite.journal import event_rows, note_rows, policy_rows, schedule_rows
from beanlite.journal.checksum import checksum_of_put, checksum_of_row, with_id
from beanlite.journal.columns import JOB, NAMES, PUT, as_list
from beanlite.journal.event_rows import EventRows
from beanlite.journal.policy_rows import row_of_policy
from beanlite.journal.postgres.schema import NOW
from beanlite.journal.rows import row_of
from beanlite.journal.schedule_rows import row_of_schedule
from beanlite.journal.totals import Totals

Parameters = list[object]

# The parameters of every statement begin with the epoch, the numbers of the last batch and this one, and the last id.
# The row of the lease is not changed: as long as some transaction is open its old versions could not be removed. Once
# the row is locked, its epoch and its batch are read anew if another transaction has changed them meanwhile. An earlier
# copy of this batch that was stored meanwhile is a conflict, or was deleted, and is then not above the row's batch.
# Standbys read the ids of the jobs.
_FENCE: Final = f"""
    fence AS (
        INSERT INTO batches (number, beat, last_id, seen_at, before, changed, gone)
        SELECT $3, 0, $4, {NOW}, $2, {{changed}}, {{gone}}
        FROM (SELECT batch FROM lease WHERE epoch = $1 AND batch < $3 FOR NO KEY UPDATE) AS ours
        WHERE greatest(batch, (SELECT max(number) FROM batches)) = $2
        ON CONFLICT DO NOTHING
        RETURNING number
    )
"""
_FENCE_PARAMETERS: Final = 4
_FENCED: Final = "WHERE EXISTS (SELECT FROM fence)"


class _Part(NamedTuple):
    """A part of the statement."""

    name: str
    types: tuple[str, ...]
    """The types of its parameters; each parameter is an array that holds one column of values."""
    sql: str
    """The SQL, with ``{rows}`` for the ``unnest`` of all parameters, or ``{array}`` for the only parameter."""
    counted: str
    """The expression that counts the rows that it has changed; empty if the number is not checked."""


_ALL: Final = as_list((*NAMES, "row_crc32", "crc32", "body"))
# The types of both checksums, and of the body.
_CHECKED: Final = ("bigint", "bigint", "bytea")
# Most jobs are first written this way: they have been in the ready state ever since they were put.
_PUT: Final = _Part(
    "put",
    (*(column.type for column in PUT), *_CHECKED),
    f"""
    INSERT INTO jobs ({_ALL})
    SELECT {as_list(tuple(column.ready or column.name for column in JOB))}, row_crc32, crc32, body
    FROM {{rows}} AS new ({as_list(tuple(column.name for column in PUT))}, row_crc32, crc32, body) {_FENCED}
    RETURNING 1
    """,
    "count(*)",
)
_PUT_OTHERWISE: Final = _Part(
    "put_otherwise",
    (*(column.type for column in JOB), *_CHECKED),
    f"INSERT INTO jobs ({_ALL}) SELECT * FROM {{rows}} AS new {_FENCED} RETURNING 1",
    "count(*)",
)
# An insert that always conflicts, instead of an update that joins: if the table was empty when it was last analysed,
# the planner would choose to compare each row of the table with each row of the batch.
_CHANGED: Final = _Part(
    "changed",
    (*(column.type for column in JOB), "bigint"),
    f"""
    INSERT INTO jobs ({_ALL}) SELECT *, 0, '' FROM {{rows}} AS new {_FENCED}
    ON CONFLICT (id) DO UPDATE SET {as_list(tuple(f"{name} = excluded.{name}" for name in (*NAMES[1:], "row_crc32")))}
    RETURNING xmax
    """,
    "count(*) FILTER (WHERE xmax <> 0)",  # only if the row existed before
)
_GONE: Final = _Part(
    "gone",
    ("bigint",),
    "DELETE FROM jobs WHERE id = ANY ({array}) AND EXISTS (SELECT FROM fence) RETURNING 1",
    "count(*)",
)
_PAUSED: Final = _Part(
    "paused",
    ("text", "bigint", "float8"),
    f"""
    INSERT INTO pauses (tube, pause_s, until) SELECT * FROM {{rows}} AS new {_FENCED}
    ON CONFLICT (tube) DO UPDATE SET pause_s = excluded.pause_s, until = excluded.until
    RETURNING 1
    """,
    "count(*)",
)
_RESUMED: Final = _Part(
    "resumed",
    ("text",),
    "DELETE FROM pauses WHERE tube = ANY ({array}) AND EXISTS (SELECT FROM fence)",
    "",  # a pause may have begun and ended within one batch
)
_POLICIES_SET: Final = _Part(
    "policies_set",
    ("text", "text", "text", "float8", "text"),
    f"""
    INSERT INTO policies ({policy_rows.COLUMNS}) SELECT * FROM {{rows}} AS new {_FENCED}
    ON CONFLICT (pattern, key) DO UPDATE SET {policy_rows.REPLACED}
    RETURNING 1
    """,
    "count(*)",
)
_POLICIES_UNSET: Final = _Part(
    "policies_unset",
    ("text", "text"),
    "DELETE FROM policies WHERE (pattern, key) IN (SELECT * FROM {rows} AS old) AND EXISTS (SELECT FROM fence)",
    "",  # likewise
)
_SCHEDULES_SET: Final = _Part(
    "schedules_set",
    (
        *("text",) * 4, "bytea", "bigint", "bigint", "boolean", "boolean", "float8", "float8", "bigint", "float8",
        "text", "bigint",
    ),
    f"""
    INSERT INTO schedules ({schedule_rows.COLUMNS}) SELECT * FROM {{rows}} AS new {_FENCED}
    ON CONFLICT (name) DO UPDATE SET {schedule_rows.REPLACED}
    RETURNING 1
    """,
    "count(*)",
)  # fmt: skip
_SCHEDULES_UNSET: Final = _Part(
    "schedules_unset",
    ("text",),
    "DELETE FROM schedules WHERE name = ANY ({array}) AND EXISTS (SELECT FROM fence)",
    "",  # likewise
)
_NOTES_SET: Final = _Part(
    "notes_set",
    ("bigint", "text"),
    f"""
    INSERT INTO notes ({note_rows.COLUMNS}) SELECT * FROM {{rows}} AS new {_FENCED}
    ON CONFLICT (id) DO UPDATE SET note = excluded.note
    RETURNING 1
    """,
    "count(*)",
)
_NOTES_UNSET: Final = _Part(
    "notes_unset",
    ("bigint",),
    "DELETE FROM notes WHERE id = ANY ({array}) AND EXISTS (SELECT FROM fence)",
    "",  # likewise
)
_TOTALS: Final = _Part(
    "added",
    ("bigint", "bigint", "text", *("bigint",) * 7, "float8", "float8", *("bigint",) * 6),
    f"""
    INSERT INTO totals AS old SELECT * FROM {{rows}} AS new {_FENCED}
    ON CONFLICT (span_s, at, tube) DO UPDATE SET
        put = old.put + excluded.put, reserved = old.reserved + excluded.reserved,
        deleted = old.deleted + excluded.deleted, released = old.released + excluded.released,
        timed_out = old.timed_out + excluded.timed_out, buried = old.buried + excluded.buried,
        kicked = old.kicked + excluded.kicked,
        waited_s = old.waited_s + excluded.waited_s, held_s = old.held_s + excluded.held_s,
        dead = old.dead + excluded.dead, expired = old.expired + excluded.expired,
        refused = old.refused + excluded.refused, duplicates = old.duplicates + excluded.duplicates,
        client_gone = old.client_gone + excluded.client_gone, delay_over = old.delay_over + excluded.delay_over
    RETURNING clock_timestamp() AS at
    """,
    "count(*)",
)
# From the first row to the last one. The server writes totals less often if they take long.
_TOTALS_TIME: Final = """
    (SELECT count(*) FROM added) AS totals,
    (SELECT extract(epoch FROM max(at) - min(at))::float8 FROM added) AS totals_s
"""
_NO_TOTALS: Final = "0 AS totals, 0::float8 AS totals_s"
_EVENT: Final = ("bigint", "float8", "bigint", "text", "text", "text", "bigint", "bigint", "bigint")
_EVENTS: Final = _Part(
    "events",
    _EVENT,
    f"INSERT INTO history ({event_rows.COLUMNS}) SELECT *, NULL FROM {{rows}} AS new {_FENCED} RETURNING 1",
    "count(*)",
)
# The body of a deleted job is copied from its row, if it has one, which is still there for all parts.
_EVENTS_WITH_BODIES: Final = _Part(
    "events_with_bodies",
    (*_EVENT, "bytea"),
    f"""
    INSERT INTO history ({event_rows.COLUMNS})
    SELECT n, at, job, tube, what, by, conn, pri, delay_s, coalesce(body, (SELECT body FROM jobs WHERE id = job))
    FROM {{rows}} AS new ({event_rows.COLUMNS}) {_FENCED}
    RETURNING 1
    """,
    "count(*)",
)
_PARTS: Final = (
    _PUT, _PUT_OTHERWISE, _CHANGED, _GONE, _PAUSED, _RESUMED, _POLICIES_SET, _POLICIES_UNSET, _SCHEDULES_SET,
    _SCHEDULES_UNSET, _NOTES_SET, _NOTES_UNSET, _TOTALS, _EVENTS, _EVENTS_WITH_BODIES,
)  # fmt: skip


class Batch(NamedTuple):
    """A batch, as of the moment when it was taken: the jobs may change again before it is stored."""

    number: int
    last_id: int
    jobs: int
    statement: str
    parameters: Parameters
    """All but the first two, the epoch and the number of the last batch."""


_statements: dict[tuple[bool, ...], str] = {}


def _statement(present: tuple[bool, ...]) -> str:
    """Return the statement with those parts that are present; cached, so that each connection prepares it only once."""
    statement = _statements.get(present)
    if statement is None:
        number = _FENCE_PARAMETERS
        parts, counts = [""], ["true"]
        ids = {"changed": "NULL", "gone": "NULL"}
        for part, is_present in zip(_PARTS, present, strict=True):
            if is_present:
                arrays = [f"${number + at}::{kind}[]" for at, kind in enumerate(part.types, 1)]
                number += len(arrays)
                sql = part.sql.format(rows=f"unnest({', '.join(arrays)})", array=arrays[0])
                parts.append(f"{part.name} AS ({sql})")
                if part.name in ids:
                    ids[part.name] = arrays[0]
                if part.counted:
                    counts.append(f"(SELECT {part.counted} FROM {part.name}) = cardinality({arrays[0]})")
        parts[0] = _FENCE.format_map(ids)
        time = _TOTALS_TIME if present[_PARTS.index(_TOTALS)] else _NO_TOTALS
        statement = _statements[present] = (
            f"WITH {', '.join(parts)} SELECT 1 / ({' AND '.join(counts)})::integer, {time} FROM fence"
        )
    return statement


def _events_of(
    events: list[Event], rows: EventRows, first_id: int
) -> tuple[list[tuple[object, ...]], list[tuple[object, ...]]]:
    """Return the rows of events without a body, and of those with one; None is the body that the job's row has.

    Jobs below ``first_id`` have a row. Any number of these may be deleted at once, with more bytes of bodies than
    PostgreSQL takes in a statement.
    """
    if not events:
        return [], []
    made = rows.rows_of(events)
    values = [tuple(made.values[at : at + event_rows.WIDTH]) for at in range(0, len(made.values), event_rows.WIDTH)]
    bodies = dict.fromkeys([n for (n,) in made.to_fetch]) | {n: body for body, n in made.bodies}
    for row in values:
        if row[4] == DELETE and row[0] in bodies and cast(int, row[2]) < first_id:
            bodies[row[0]] = None
    if not bodies:
        return values, []
    return (
        [row for row in values if row[0] not in bodies],
        [(*row, bodies[row[0]]) for row in values if row[0] in bodies],
    )


def batch_of(changes: Changes, totals: Totals, now_s: float, rows_of_events: EventRows) -> Batch:
    """Make the statement of a batch and its parameters. ``now_s`` is UTC by the database's clock."""
    puts: list[tuple[object, ...]] = []
    other_puts: list[tuple[object, ...]] = []
    updates: list[tuple[object, ...]] = []
    deletes: list[tuple[object, ...]] = []
    first_id = changes.first_id
    alike: tuple[Tube, int, int, int, int] | None = None
    put_values: tuple[str, int, int, int, float] = ("", 0, 0, 0, 0.0)
    put_checksum = 0
    for job in changes.jobs:
        state = job.state
        if state is GONE:
            deletes.append((job.id,))
            continue
        if job.id < first_id:
            row = row_of(job)
            updates.append((*row, checksum_of_row(row)))
            continue
        body = job.body
        assert body is not None  # a body stays in memory at least until it is stored
        if state is READY and not job.reserves and job.past is NO_PAST and job.since_ns == job.created_ns:
            as_put = job.tube, job.pri, job.delay_s, job.ttr_s, job.created_ns
            if as_put != alike:  # jobs put along with the last one share most of its values
                alike = as_put
                put_values = (job.tube.name.decode(), job.pri, job.delay_s, job.ttr_s, utc_s(job.created_ns))
                put_checksum = checksum_of_put(job.tube.name, *put_values[1:])
            puts.append((job.id, *put_values, with_id(job.id, put_checksum), crc32(body), body))
        else:
            row = row_of(job)
            other_puts.append((*row, checksum_of_row(row), crc32(body), body))
    pauses = [
        (tube.name.decode(), tube.pause_s, utc_s(tube.pause_until_ns)) for tube in changes.pauses if tube.pause_until_ns
    ]
    resumes = [(tube.name.decode(),) for tube in changes.pauses if not tube.pause_until_ns]
    rows = (
        puts,
        other_puts,
        updates,
        deletes,
        pauses,
        resumes,
        [row_of_policy(policy) for _, policy in changes.policies if policy is not None],
        [(pattern.decode(), key) for (pattern, key), policy in changes.policies if policy is None],
        [row_of_schedule(schedule) for _, schedule in changes.schedules if schedule is not None],
        [(name,) for name, schedule in changes.schedules if schedule is None],
        [(job_id, note.decode()) for job_id, note in changes.notes if note],
        [(job_id,) for job_id, note in changes.notes if not note],
        totals.rows(changes.tallies, now_s),
        *_events_of(changes.events, rows_of_events, first_id),
    )
    parameters: Parameters = [changes.batch, changes.last_id]
    for part_rows in rows:
        parameters += zip(*part_rows, strict=True)
    return Batch(changes.batch, changes.last_id, len(changes.jobs), _statement(tuple(map(bool, rows))), parameters)
