"""What becomes of a job by the rules of its tube: when it comes back from a client, and when it becomes too old."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final
from zlib import crc32

from beanlite.core.bodies import Bodies
from beanlite.core.events import BURY, CLIENT_GONE, MOVE, RELEASE, Event
from beanlite.core.job import (
    BURIED_FOR_AGE,
    BURIED_FOR_TRIES,
    DELAYED,
    ID_BITS,
    ID_MASK,
    READY,
    RESERVED,
    SECOND_NS,
    SLICE,
    U32_MAX,
    Job,
)
from beanlite.core.ledger import BYTES_AT_ONCE
from beanlite.core.queues import Queues
from beanlite.core.ruled import BYTES_PER_JOB
from beanlite.core.rules import WAITING, Rules
from beanlite.core.timers import NEVER_NS
from beanlite.core.tube import Client, Peer, Tube

BY_MAX_TRIES: Final = Peer("policy max_tries", 0)
BY_TTL: Final = Peer("policy ttl", 0)
# Of what is added to a delay, at most a tenth, so that jobs that failed together do not come back together.
_SPREAD: Final = 10
# With so many jobs in the batch being gathered, or BYTES_AT_ONCE, no more are deleted, or all that expire while a slow
# disk syncs would be one batch; and how long until that is looked at again.
EXPIRING_MAX: Final = 4 * SLICE
_LOOK_NS: Final = SECOND_NS // 100
# Doubled as often as this, any delay is longer than all that are allowed.
_DOUBLED_MAX: Final = 40


class Rulings:
    """What rules do to jobs."""

    __slots__ = ("_bodies", "_delete", "_ledger", "_queues")

    def __init__(self, queues: Queues, bodies: Bodies, delete: Callable[[Client, int, int], bool]) -> None:
        """``delete`` deletes a job, as ``Engine.delete`` does."""
        self._queues = queues
        self._ledger = queues.ledger
        self._bodies = bodies
        self._delete = delete

    # -- coming back

    def come_back(self, job: Job, rules: Rules, what: str, delay_s: int, now_ns: int, event: Event | None) -> int:
        """Give a state to a job that a client no longer has; returns the cost, as ``make_ready``.

        ``what``: RELEASE, with the delay that the client wants, TTR_OVER or CLIENT_GONE. ``event``: what has been
        recorded of that, if anything; a delay by the rules is entered there.
        """
        tries = job.tries
        if rules.max_tries and tries >= rules.max_tries:
            self._ledger.tally(job.tube).dead += 1
            tube = job.tube
            deferred = what is not RELEASE
            cost = self._end(job, rules.then_to, BY_MAX_TRIES, BURIED_FOR_TRIES, now_ns, deferred=deferred)
            self._queues.drop_if_unused(tube)
            return cost
        if self._expires(job, rules, now_ns):
            return 1
        due_ns = now_ns + delay_s * SECOND_NS
        if rules.retry_s and not delay_s:
            # A client may leave because it is deployed anew: only one that leaves again and again is held against it.
            due_ns += _retry_ns(job, rules, tries - (what is CLIENT_GONE))
        if due_ns > now_ns:
            job.delay_s = (due_ns - now_ns) // SECOND_NS
            if event is not None:
                event.delay_s = job.delay_s
            self._ledger.tally(job.tube).left += 1
            self._queues.make_delayed(job, due_ns, now_ns)
            return 1
        return self._queues.make_ready(job, now_ns)

    def go_back(self, job: Job, now_ns: int) -> int:
        """Have a job that was offered be ready as if it had been so all the time; returns the cost, as ``make_ready``.

        The first client that waits gets it.
        """
        self._queues.leave_state(job, now_ns)
        rules, since_ns = job.tube.rules, job.since_ns
        if rules is not None and not self._queues.stopping and self._expires(job, rules, now_ns):
            self._ledger.deferred[job.id] = job
            return 1
        cost = self._queues.make_ready(job, now_ns)
        if job.state is not RESERVED:
            job.since_ns = since_ns
        return cost

    # -- becoming too old

    def _expires(self, job: Job, rules: Rules, now_ns: int) -> bool:
        """Whether a job that comes back is too old; then the next tick does with it what is done with all that are."""
        if not rules.ttl_ns or job.past.kicks or job.created_ns + rules.ttl_ns > now_ns:
            return False
        self._queues.ruled.enter(job, None)
        self._ledger.tally(job.tube).left += 1
        self._queues.make_delayed(job, now_ns + SECOND_NS, now_ns)  # so that nobody gets it before
        return True

    def expire(self, tube: Tube, budget: int, now_ns: int) -> int:
        """End jobs that have become too old until that has cost about ``budget``; returns the cost.

        A tube that is not used any more is dropped with its last job.
        """
        rules, kept = tube.rules, tube.kept
        if rules is None or kept is None:
            return 0
        keys = kept.expiries.keys
        cost = 0
        while keys and keys[0] >> ID_BITS <= now_ns and cost < budget and not self._puts_off(rules):
            job = self._queues.jobs[keys[0] & ID_MASK]
            self._queues.ruled.forget_expiry(kept, job.id)
            # One that is reserved is looked at when it comes back, and one that was kicked is wanted.
            if (job.state is READY or job.state is DELAYED) and not job.past.kicks:
                cost += self._expire(job, rules, now_ns)
            else:
                cost += 1
        if keys:
            look_ns = now_ns + _LOOK_NS if self._puts_off(rules) else now_ns
            self._queues.timers.set(tube, max(keys[0] >> ID_BITS, look_ns))
        return cost

    def _puts_off(self, rules: Rules) -> bool:
        ledger = self._ledger
        return rules.expired_deletes and (len(ledger.changed) >= EXPIRING_MAX or ledger.event_bytes >= BYTES_AT_ONCE)

    def _expire(self, job: Job, rules: Rules, now_ns: int) -> int:
        self._ledger.tally(job.tube).expired += 1
        if rules.expired_deletes:
            self._delete(Client(job.tube, 0, BY_TTL), job.id, now_ns)
            return 1
        self._queues.leave_state(job, now_ns)
        to = None if self._moves_on(job, rules.expired_to, now_ns) else rules.expired_to
        tube = job.tube
        cost = self._end(job, to, BY_TTL, BURIED_FOR_AGE, now_ns, deferred=True)
        self._queues.drop_if_unused(tube)
        return cost

    def _moves_on(self, job: Job, to: bytes | None, now_ns: int) -> bool:
        """Whether a job would be too old for another tube as well, and leave that at once: perhaps for this one."""
        return to is not None and job.created_ns <= self._moved_on_ns(to, now_ns)

    def _moved_on_ns(self, to: bytes, now_ns: int) -> int:
        """Return when a job was put at the latest that would leave a tube at once for another."""
        tube = self._queues.tubes.get(to)
        there = self._queues.ruled.policies.rules_of(to) if tube is None else tube.rules
        if there is None or not there.ttl_ns or there.expired_to is None or there.expired_to == to:
            return -NEVER_NS
        return now_ns - there.ttl_ns

    # -- the end of both

    def _end(self, job: Job, to: bytes | None, by: Peer, why: str, now_ns: int, *, deferred: bool) -> int:
        """Move a job that is in no state to another tube, where it is ready, or bury it if there is none.

        Returns the cost.
        """
        if to is not None and to != job.tube.name:
            return self._move(job, to, by, now_ns, deferred=deferred)
        self._bodies.unload_ahead(job)
        self._queues.past_of(job).buries += 1
        self._ledger.tally(job.tube).buried += 1
        self._note(job, BURY, by, now_ns, deferred=deferred)
        self._queues.bury(job, why, now_ns)
        return 1

    def _move(self, job: Job, to: bytes, by: Peer, now_ns: int, *, deferred: bool) -> int:
        queues = self._queues
        # It is made even where clients may not make one: there are no more of these than policies.
        tube = queues.tubes.get(to) or queues.make_tube(to)
        checksum = queues.ruled.checksum_for(tube.rules, job)
        self._bodies.unload_ahead(job)
        queues.ruled.leave(job)
        self._ledger.tally(job.tube).left += job.state is not DELAYED
        self._ledger.tally(tube).came += 1
        job.tube = tube
        job.forgive()
        self._note(job, MOVE, by, now_ns, deferred=deferred)
        cost = queues.make_ready(job, now_ns)
        if tube.rules is not None:
            queues.ruled.enter(job, checksum)
        return cost if checksum is None else cost + job.size // BYTES_PER_JOB

    def _note(self, job: Job, what: str, by: Peer, now_ns: int, *, deferred: bool) -> None:
        ledger = self._ledger
        if deferred:
            ledger.deferred[job.id] = job
            if ledger.recording:
                ledger.record_deferred(job, what, by, now_ns)
        elif ledger.recording:
            ledger.record(job, what, by, now_ns)

    # -- bodies that are there already

    def is_lost(self, job: Job, now_ns: int) -> bool:
        """Whether a job is too old and will be deleted, although its turn has not come yet."""
        rules = job.tube.rules
        return rules is not None and rules.expired_deletes and _is_over(job, rules, now_ns)

    def _leaves_from_ns(self, tube: Tube, rules: Rules, now_ns: int) -> int:
        """Return from when on a job was put that will not be one that puts repeat, if it is too old.

        Its turn has not come yet. That is the same for all jobs of a tube, and not found out for each.
        """
        if rules.expired_deletes or rules.unique == WAITING:
            return -NEVER_NS
        to = rules.expired_to
        if to is None or to == tube.name:
            return now_ns
        return self._moved_on_ns(to, now_ns) + 1

    def twin(
        self, tube: Tube, body: bytes, late_bodies: Mapping[Job, bytes | None], now_ns: int
    ) -> tuple[Job | None, Job | None]:
        """Return the job that a put with this body would repeat, if the rules of the tube forbid that.

        If that takes a body that is not in memory, nor among ``late_bodies``, its job is the second result.
        """
        rules, kept = tube.rules, tube.kept
        if rules is None or kept is None or not rules.unique:
            return None, None
        leaves_from_ns: int | None = None
        for job_id in kept.twins(kept.twin_key(len(body), crc32(body))):
            job = self._queues.jobs[job_id]
            if _is_over(job, rules, now_ns):
                if leaves_from_ns is None:
                    leaves_from_ns = self._leaves_from_ns(tube, rules, now_ns)
                if job.created_ns >= leaves_from_ns:
                    continue
            if job.body is None and job not in late_bodies:
                return None, job
            if (late_bodies[job] if job.body is None else job.body) == body:
                return job, None
        return None, None


def _is_over(job: Job, rules: Rules, now_ns: int) -> bool:
    """Whether a job waits that is too old by these rules."""
    if not rules.ttl_ns or job.past.kicks or job.created_ns + rules.ttl_ns > now_ns:
        return False
    return job.state is READY or job.state is DELAYED


def _retry_ns(job: Job, rules: Rules, tries: int) -> int:
    """Return for how long a job is delayed after so many tries; the same job is always delayed alike."""
    if tries <= 0:
        return 0
    delay_s = min(rules.retry_s << min(tries - 1, _DOUBLED_MAX), rules.retry_most_s)
    scattered = (job.id * 0x9E3779B97F4A7C15 + tries * 0xBF58476D1CE4E5B9) >> 29 & 0xFFFF
    delay_ns = delay_s * SECOND_NS + delay_s * SECOND_NS // _SPREAD * scattered // 0xFFFF
    return min(delay_ns, U32_MAX * SECOND_NS)  # the longest delay that a file may hold
