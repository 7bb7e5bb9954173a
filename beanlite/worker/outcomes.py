"""What becomes of a job when its function has ended."""

import contextlib
import random
from typing import Final, NamedTuple

from beanlite.client import (
    Buried,
    ClientError,
    ConnectionLost,
    Declined,
    InternalError,
    Job,
    NotFound,
    OutOfMemory,
    Statistics,
)
from beanlite.client.calls import NOTE_BYTES_MAX
from beanlite.client.reserved import stats_tube
from beanlite.host import log
from beanlite.worker.function import line_of

# The outcomes.
DONE: Final = "done"
RELEASED: Final = "released"
BURIED: Final = "buried"
OWN: Final = "own"  # the function has finished the job itself
LOST: Final = "lost"  # the job was not ours any more, or the server could not finish it
GIVEN_BACK: Final = "given back"  # at the stop

# What the server answers that may do it later; a router answers the first while one of its servers is away.
NOT_NOW: Final = (InternalError, OutOfMemory)

# The delay before the next try doubles up to the longest; up to a tenth is added, so that jobs that failed together do
# not come back together.
LONGEST_DELAY_S: Final = 3600
_SPREAD: Final = 0.1


class JobOutcome(NamedTuple):
    """What has become of a job."""

    id: int
    tube: str
    outcome: str
    seconds: float
    tries: int
    error: str | None
    """The last line of the traceback."""


async def finish(job: Job, stats: Statistics, error: BaseException | None, tries_max: int) -> str:
    """Finish a job after its function, and return the outcome."""
    if error is not None:
        log.error("job failed", id=job.id, tube=stats["tube"], tries=stats["reserves"], exc=error)
    try:
        if job.is_finished:
            return OWN
        if error is None:
            await job.delete()
            return DONE
        return await _give_up(job, stats, error, tries_max)
    except Buried:
        return BURIED
    except (ConnectionLost, NotFound) as lost:
        tell_of_lost(job, lost, tube=stats["tube"])
        return LOST


def tell_of_lost(job: Job, error: ClientError, **facts: object) -> None:
    """Log that we can't finish a job, or not begin it."""
    what = "job could not be finished, and comes back" if isinstance(error, NOT_NOW) else "job is not ours any more"
    log.warning(what, id=job.id, **facts, reason=str(error))


async def _give_up(job: Job, stats: Statistics, error: BaseException, tries_max: int) -> str:
    """Release the job, or bury it if it has failed too often; what a policy of its tube says about that holds.

    Its pri is that of now: an operator may have changed it meanwhile.
    """
    note = note_of(error)
    tries = int(stats["reserves"])
    policy: Statistics = {}
    with contextlib.suppress(Declined):  # the tube is gone, or not ours to see
        policy = await stats_tube(job, str(stats["tube"]))
    if tries >= tries_max and "policy-max-tries" not in policy:
        await job.bury(note=note)
        return BURIED
    await job.release(None, 0 if "policy-retry" in policy else delay_s(tries), note)
    return RELEASED


def note_of(error: BaseException) -> str:
    """Return the note about a failure: its line first, by which notes are grouped, then the end of the traceback."""
    told = log.traceback_of(error)
    line = line_of(error)
    if told.startswith(line):  # there is no traceback
        return told
    head = line.encode(errors="replace")[: NOTE_BYTES_MAX // 4] + b"\n\n"
    tail = told.encode(errors="replace")[len(head) - NOTE_BYTES_MAX :]
    return (head + tail).decode(errors="ignore")


def delay_s(tries: int) -> int:
    """Return the delay before the next try after so many."""
    longest = min(1 << min(tries, 30), LONGEST_DELAY_S)
    return longest + int(longest * _SPREAD * random.random())  # noqa: S311 - no secret
