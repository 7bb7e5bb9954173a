"""A job as a row has it, in whatever database: its values in the order of the columns."""

from typing import cast

from beanlite.clock import utc_s
from beanlite.core.job import BURIED, ID_BITS, READY, Job
from beanlite.core.memory import BODY_BYTES
from beanlite.core.restore import StoredJob


def condition_of(job: Job) -> tuple[object, ...]:
    """The columns that change in a job's life, after its state: from due_at to why."""
    due_at: float | None = None
    buried_seq: int | None = None
    if job.state is BURIED:
        buried_seq = job.key >> ID_BITS
    elif job.state is not READY:
        due_at = utc_s(job.key >> ID_BITS)
    holder: str | None = None
    holder_conn: int | None = None
    peer = job.last_holder
    if peer is not None:
        holder = peer.address
        holder_conn = peer.number
    past = job.past
    # One tuple: putting it together from parts would cost more than all that is in it.
    return (
        due_at, buried_seq, job.reserves, past.timeouts, past.releases, past.buries, past.kicks, utc_s(job.since_ns),
        holder, holder_conn, job.why,
    )  # fmt: skip


def row_of(job: Job) -> tuple[object, ...]:
    """All columns but checksums and those that are about the body."""
    # _value_ is .value without a call.
    put = (job.id, job.tube.name.decode(), job.state._value_, job.pri, job.delay_s, job.ttr_s, utc_s(job.created_ns))
    return put + condition_of(job)


def fitted(rows: list[StoredJob], room: int) -> list[StoredJob]:
    """The same jobs, but from the first one on for whose body there is no room in memory without their bodies."""
    for at, row in enumerate(rows):
        body = row[13]  # rows are read by position
        if isinstance(body, bytes):
            room -= len(body) + BODY_BYTES
            if room < 0:
                return rows[:at] + [_without_body(each) for each in rows[at:]]
    return rows


def _without_body(row: StoredJob) -> StoredJob:
    body = row[13]
    if not isinstance(body, bytes):
        return row
    values: list[object] = list(row)  # nobody has looked at their types yet, and compiled code would
    values[13] = len(body)
    return cast(StoredJob, tuple(values))
