"""A job as a row has it, in whatever database: its values in the order of the columns."""

from typing import cast

from beanlite.clock import utc_s
from beanlite.core.job import BURIED, ID_BITS, READY, Job
from beanlite.core.memory import BODY_BYTES
from beanlite.core.restore import StoredJob


def place(job: Job) -> tuple[float | None, int | None]:
    """The columns due_at and buried_seq."""
    if job.state is READY:
        return None, None
    if job.state is BURIED:
        return None, job.key >> ID_BITS
    return utc_s(job.key >> ID_BITS), None


def counters(job: Job) -> tuple[int, int, int, int, int]:
    """The columns reserves, timeouts, releases, buries and kicks."""
    past = job.past
    return job.reserves, past.timeouts, past.releases, past.buries, past.kicks


def facts(job: Job) -> tuple[float, str | None, int | None, str | None]:
    """The columns since, holder, holder_conn and why."""
    peer = job.last_holder
    if peer is None:
        return utc_s(job.since_ns), None, None, job.why
    return utc_s(job.since_ns), peer.address, peer.number, job.why


def row_of(job: Job) -> tuple[object, ...]:
    """All columns but checksums and those that are about the body."""
    put = (job.pri, job.delay_s, job.ttr_s, utc_s(job.created_ns))
    # _value_ is .value without a call.
    return job.id, job.tube.name.decode(), job.state._value_, *put, *place(job), *counters(job), *facts(job)


def fitted(rows: list[StoredJob], room: int) -> list[StoredJob]:
    """The same jobs, but from the first one on for whose body there is no room in memory without their bodies."""
    for at, row in enumerate(rows):
        body = row[13]  # rows are read by position
        if body is not None:
            room -= len(body) + BODY_BYTES
            if room < 0:
                return rows[:at] + [_without_body(each) for each in rows[at:]]
    return rows


def _without_body(row: StoredJob) -> StoredJob:
    body = row[13]
    if body is None:
        return row
    values: list[object] = list(row)  # nobody has looked at their types yet, and compiled code would
    values[13], values[15] = None, len(body)
    return cast(StoredJob, tuple(values))
