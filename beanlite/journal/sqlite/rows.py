"""A job as its row in the table has it."""

from typing import Final

from beanlite.clock import utc_s
from beanlite.core.job import BURIED, ID_BITS, READY, Job

# Larger bodies have a table of their own, so that a change of a job's state does not write its body again. For smaller
# ones that would only cost a second page in each put and delete.
INLINE_MAX: Final = 1024


# The columns that ``row_of`` makes, in its order, and after them those that are about the body.
COLUMNS: Final = """
    id, tube, state, pri, delay_s, ttr_s, created_at, due_at, buried_seq, reserves, timeouts, releases, buries, kicks,
    since, holder, holder_conn, why, crc32, body
"""


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
    """All columns but the last two, which are about the body."""
    put = (job.pri, job.delay_s, job.ttr_s, utc_s(job.created_ns))
    return job.id, job.tube.name.decode(), job.state.value, *put, *place(job), *counters(job), *facts(job)
