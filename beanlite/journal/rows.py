"""A job as a database row, whatever the database: its values in the order of the columns."""

from typing import cast

from beanlite.core.job import BURIED, ID_BITS, OFFERED, READY, Job
from beanlite.core.memory import BODY_BYTES
from beanlite.core.restore import BODY_AT, StoredJob
from beanlite.host.clock import utc_s


def row_of(job: Job) -> tuple[object, ...]:
    """Return the values of all columns except the checksums and those about the body."""
    state = job.state
    due_at: float | None = None
    buried_seq: int | None = None
    if state is BURIED:
        buried_seq = job.key >> ID_BITS
    elif state is OFFERED:
        state = READY
    elif state is not READY:
        due_at = utc_s(job.key >> ID_BITS)
    holder: str | None = None
    holder_conn: int | None = None
    peer = job.last_holder
    if peer is not None:
        holder = peer.address
        holder_conn = peer.number
    past = job.past
    # A single tuple: assembling it from parts would cost as much as computing all its values. _value_ is .value without
    # a call.
    return (
        job.id, job.tube.name.decode(), state._value_, job.pri, job.delay_s, job.ttr_s, utc_s(job.created_ns), due_at,
        buried_seq, job.reserves, past.timeouts, past.releases, past.buries, past.kicks, utc_s(job.since_ns), holder,
        holder_conn, past.why, past.forgiven,
    )  # fmt: skip


def fit(rows: list[StoredJob], room: int) -> list[StoredJob]:
    """Return the same jobs, but without bodies from the first on that does not fit into ``room`` bytes of memory."""
    for at, row in enumerate(rows):
        body = row[BODY_AT]  # rows are read by position
        if isinstance(body, bytes):
            room -= len(body) + BODY_BYTES
            if room < 0:
                return rows[:at] + [_without_body(each) for each in rows[at:]]
    return rows


def _without_body(row: StoredJob) -> StoredJob:
    body = row[BODY_AT]
    if not isinstance(body, bytes):
        return row
    values: list[object] = list(row)  # the types are unchecked so far, and compiled code would check them
    values[BODY_AT] = len(body)
    return cast(StoredJob, tuple(values))
