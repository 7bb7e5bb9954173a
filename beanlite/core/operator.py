"""What operators do to jobs, whichever client has them, apart from deleting jobs and putting copies.

Each change is recorded as an event, whether a history is kept or not.
"""

from typing import Final

from beanlite.core.bodies import Bodies
from beanlite.core.events import BURY, COPY, DELAY, DELETE, KICK, MOVE, NOTE, RELEASE, REPRIORITISE
from beanlite.core.job import (
    BURIED,
    BURIED_BY_OPERATOR,
    DELAYED,
    ID_BITS,
    OFFERED,
    READY,
    RESERVED,
    SECOND_NS,
    Job,
    State,
)
from beanlite.core.queues import Queues
from beanlite.core.tube import Peer, Tube

_ANY: Final = (READY, DELAYED, RESERVED, BURIED)
# To jobs in which states each change can be made.
CONCERNS: Final[dict[str, tuple[State, ...]]] = {
    KICK: (BURIED, DELAYED),
    BURY: (READY, DELAYED, RESERVED),
    DELETE: _ANY,
    RELEASE: (RESERVED,),
    MOVE: _ANY,
    COPY: _ANY,
    REPRIORITISE: _ANY,
    DELAY: (READY, DELAYED),
    NOTE: _ANY,
}


def concerns(do: str, job: Job) -> bool:
    """Whether a change can be made to a job. An offered one counts as ready: its client has not taken it yet."""
    return (READY if job.state is OFFERED else job.state) in CONCERNS[do]


class Operator:
    """The changes. ``concerns`` must be true of the change and the job."""

    __slots__ = ("_bodies", "_ledger", "_queues")

    def __init__(self, queues: Queues, bodies: Bodies) -> None:
        self._queues = queues
        self._ledger = queues.ledger
        self._bodies = bodies

    def kick(self, job: Job, by: Peer, now_ns: int) -> None:
        """Make a buried or delayed job ready."""
        self._queues.leave_state(job, now_ns)
        self._queues.past_of(job).kicks += 1
        self._ledger.tally(job.tube).kicked += 1
        self._record(job, KICK, by, now_ns, 0)
        self._queues.make_ready(job, now_ns)

    def bury(self, job: Job, pri: int, by: Peer, now_ns: int) -> None:
        """Bury a job that is not buried, at the end of its tube's buried queue."""
        self._bodies.unload_ahead(job)
        self._queues.leave_state(job, now_ns)
        job.pri = pri
        self._queues.past_of(job).buries += 1
        self._ledger.tally(job.tube).buried += 1
        self._record(job, BURY, by, now_ns, 0)
        self._queues.bury(job, BURIED_BY_OPERATOR, now_ns)

    def release(self, job: Job, pri: int, delay_s: int, by: Peer, now_ns: int) -> None:
        """Take a job from the client that has it reserved, and make it ready or delayed."""
        self._queues.leave_state(job, now_ns)
        job.pri = pri
        job.own_past().releases += 1
        job.spare()  # it was not given the time
        self._ledger.tally(job.tube).released += 1
        self._delay_or_make_ready(job, RELEASE, delay_s, by, now_ns)

    def delay(self, job: Job, delay_s: int, by: Peer, now_ns: int) -> None:
        """Delay a ready or delayed job from now on."""
        self._bodies.unload_ahead(job)
        self._queues.leave_state(job, now_ns)
        self._delay_or_make_ready(job, DELAY, delay_s, by, now_ns)

    def reprioritise(self, job: Job, pri: int, by: Peer, now_ns: int) -> None:
        """Give a job another pri; its state stays the same."""
        if job.state is READY:
            self._queues.leave_state(job, now_ns)
            job.pri = pri
            self._record(job, REPRIORITISE, by, now_ns, 0)
            self._still_ready(job, now_ns)
        else:
            job.pri = pri
            self._record(job, REPRIORITISE, by, now_ns, _delay_s(job))

    def move(self, job: Job, tube: Tube, by: Peer, now_ns: int) -> None:
        """Move a job to another tube in its state. A reserved one stays with its client."""
        queues, before, state, place, since_ns = self._queues, job.tube, job.state, job.key >> ID_BITS, job.since_ns
        delay_s = _delay_s(job)
        checksum = queues.ruled.checksum_for(tube.rules, job)
        self._bodies.unload_ahead(job)
        if state is RESERVED:
            before.reserved -= 1
            tube.reserved += 1
        else:
            why = job.why
            queues.leave_state(job, now_ns)
        if state is not DELAYED and state is not BURIED:
            self._ledger.tally(before).left += 1
            self._ledger.tally(tube).came += 1
        if before.rules is not None:
            queues.ruled.leave(job)
            queues.timers.set(before, now_ns)  # another one may be reserved from it
        job.tube = tube
        job.forgive()
        self._record(job, MOVE, by, now_ns, delay_s)
        if state is READY or state is OFFERED:
            self._still_ready(job, now_ns)
        elif state is DELAYED:
            queues.make_delayed(job, place, since_ns)
        elif state is BURIED:
            queues.make_buried(job, place, why, since_ns)
        if tube.rules is not None:
            queues.ruled.enter(job, checksum)
        if state is RESERVED:
            queues.ruled.hold_back(tube, now_ns)
        queues.drop_if_unused(before)

    def record_copy(self, job: Job, by: Peer, now_ns: int) -> None:
        """Record that this job was put as a copy of another one."""
        self._record(job, COPY, by, now_ns, _delay_s(job))

    def _still_ready(self, job: Job, now_ns: int) -> None:
        """Put a job that was ready before into its tube's ready queue, unless a client waits for it."""
        since_ns = job.since_ns
        self._queues.make_ready(job, now_ns)
        if job.state is not RESERVED:
            job.since_ns = since_ns

    def _delay_or_make_ready(self, job: Job, what: str, delay_s: int, by: Peer, now_ns: int) -> None:
        job.delay_s = delay_s
        self._record(job, what, by, now_ns, delay_s)
        if delay_s:
            if job.state is not DELAYED:
                self._ledger.tally(job.tube).left += 1
            self._queues.make_delayed(job, now_ns + delay_s * SECOND_NS, now_ns)
        else:
            self._queues.make_ready(job, now_ns)
        if job.tube.rules is not None:
            self._queues.ruled.enter(job, None)  # it may have become too old while a client had it, or an offer of it

    def _record(self, job: Job, what: str, by: Peer, now_ns: int, delay_s: int) -> None:
        self._ledger.note(job)
        self._ledger.record(job, what, by, now_ns, delay_s=delay_s, by_operator=True)


def _delay_s(job: Job) -> int:
    """Return the delay of a job that is delayed; 0 of any other."""
    return job.delay_s if job.state is DELAYED else 0
