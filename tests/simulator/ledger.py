"""The replies that clients got, and what must therefore be true; it knows nothing of the server but these."""

from dataclasses import dataclass, field
from typing import Any

from tests.simulator.rules import AGAIN, SCHEDULED

READY, DELAYED, BURIED, ABSENT = "ready", "delayed", "buried", "absent"
FOREVER = 1 << 60  # later than any moment


class BrokenPromiseError(Exception):
    """The server did something that it must not do."""


def must(truth, what: str) -> None:
    if not truth:
        raise BrokenPromiseError(what)


@dataclass(eq=False)
class Change:
    """A change of a job that a client has asked for: when (moments are numbered), and the states it may result in."""

    what: str
    outcome: frozenset[str]
    sent: int
    told: int = FOREVER
    """When it was acknowledged; FOREVER: not yet."""
    weak: bool = False
    """Whether earlier states remain possible: it may be lost, or be followed by a change that nobody asked for."""


@dataclass(eq=False)
class Known:
    """A job, and the states that it may be in."""

    body: bytes
    tube: bytes
    changes: list[Change] = field(default_factory=list)
    holder: Any = None
    held_until_s: float = 0.0
    """No other client may get it before then, unless its holder lets it go."""
    held_from: int = 0
    held_told: int = 0
    """When the holder asked for it, and when it got the reply."""

    def outcomes(self) -> set[str]:
        if any(change.what == "delete" and change.told < FOREVER for change in self.changes):
            return {ABSENT}
        last = max((change.sent for change in self.changes if not change.weak and change.told < FOREVER), default=-1)
        possible: set[str] = set()
        for change in self.changes:
            if change.told > last:
                possible |= change.outcome
        return possible

    def all_outcomes(self) -> set[str]:
        """Return the states that it may have been in at any time, for a restart that may have lost changes."""
        return set().union(*(change.outcome for change in self.changes))


class Ledger:
    """All jobs of a run, across all lives of its server."""

    def __init__(self) -> None:
        self.moment = 0
        self.jobs: dict[int, Known] = {}
        self.put_unknown: dict[bytes, list[Change]] = {}
        """The puts that were not acknowledged, by body."""
        self.tube_of: dict[bytes, bytes] = {}
        self.kicks_due: list[Change] = []
        self.unique = ""
        """What operators have set for bodies that are put again, if anything: ``waiting`` or ``present``."""
        self.put_ids: set[int] = set()
        self.last_id = 0
        """The highest id that any client has seen."""
        self.strict = True
        """Whether everything that was acknowledged has to be found at the next restart."""
        self._early: dict[int, list[Change]] = {}
        """What policies have done to jobs that no client knows of yet."""
        self._told: set[int] = set()
        """The jobs of which an event has told: such a thing is durable."""
        self._told_deleted: set[int] = set()

    def tick(self) -> int:
        self.moment += 1
        return self.moment

    # -- puts

    def puts(self, body: bytes, tube: bytes, delay_s: int) -> Change:
        change = Change("put", frozenset({DELAYED, READY} if delay_s else {READY}), self.tick())
        must(body not in self.put_unknown or body.startswith(AGAIN), "the simulator puts a body twice")
        self.put_unknown.setdefault(body, []).append(change)
        self.tube_of[body] = tube
        return change

    def put(self, body: bytes, change: Change, job_id: int, floor: int) -> None:
        if body.startswith(AGAIN):
            self._put_again(body, change, job_id)
            return
        must(job_id not in self.put_ids, f"id {job_id} was given out twice")
        must(job_id > floor, f"id {job_id} was given out after {floor}")
        self.put_ids.add(job_id)
        self.last_id = max(self.last_id, job_id)
        job = self._meet(job_id, body)
        change.told = self.tick()
        if change not in job.changes:
            job.changes.append(change)

    def _put_again(self, body: bytes, change: Change, job_id: int) -> None:
        """Enter a put whose job may be an earlier one with the same body."""
        job = self._meet(job_id, body, change)
        self.put_refused(body, change)
        self.put_ids.add(job_id)
        must(self._may_exist(job, change.sent), f"a put was answered with job {job_id}, which was deleted")
        was_ready = Change(
            "again", frozenset({DELAYED, READY}), change.sent, self.tick(), weak=self.unique != "waiting"
        )
        job.changes.append(was_ready)

    def put_refused(self, body: bytes, change: Change) -> None:
        changes = self.put_unknown.get(body, [])
        if change in changes:
            changes.remove(change)
            if not changes:
                del self.put_unknown[body]

    def _meet(self, job_id: int, body: bytes, change: Change | None = None) -> Known:
        job = self.jobs.get(job_id)
        if job is None:
            if body in SCHEDULED.values():
                change, self.tube_of[body] = Change("schedule", frozenset({READY}), self.moment), b""
            if change is None:
                must(body in self.put_unknown, f"job {job_id} has a body that nobody has put, or that another job has")
                change = self.put_unknown[body][0]
            self.put_refused(body, change)
            job = self.jobs[job_id] = Known(body, self.tube_of[body], [change, *self._early.pop(job_id, [])])
            self.last_id = max(self.last_id, job_id)
        must(job.body == body, f"job {job_id} has the body of another one")
        return job

    # -- what is done with jobs

    def asks(self, job_id: int, what: str, *outcome: str, weak: bool = False) -> Change:
        change = Change(what, frozenset(outcome), self.tick(), weak=weak)
        if job_id in self.jobs:
            self.jobs[job_id].changes.append(change)
        return change

    def refused(self, job_id: int, change: Change) -> None:
        if job_id in self.jobs and change in self.jobs[job_id].changes:
            self.jobs[job_id].changes.remove(change)

    def done(self, job_id: int, change: Change) -> None:
        job = self.jobs.get(job_id)
        if job is None:
            return
        if change.what == "delete":
            others = [each for each in job.changes if each.what == "delete" and each.told < FOREVER]
            must(not others, f"job {job_id} was deleted twice")
        else:
            must(self._may_exist(job, change.sent), f"{change.what} of job {job_id}, which was deleted")
        if change not in job.changes:
            job.changes.append(change)
        change.told = self.tick()

    def _may_exist(self, job: Known, sent: int) -> bool:
        return not any(each.what == "delete" and each.told < sent for each in job.changes)

    def kicks(self) -> Change:
        """Enter a kick: any job may be ready afterwards, even one that is put before the kick is carried out."""
        change = Change("kick", frozenset({READY}), self.tick(), weak=True)
        self.kicks_due.append(change)
        return change

    def kicked(self, change: Change) -> None:
        self.kicks_due.remove(change)
        change.told = self.tick()
        for job in self.jobs.values():
            job.changes.append(change)

    def reserved(
        self, job_id: int, body: bytes, client: Any, sent: int, sent_s: float, now_s: float, ttr_s: int
    ) -> None:
        job = self._meet(job_id, body)
        must(self._may_exist(job, sent), f"job {job_id} was reserved after it was deleted")
        held = job.holder is not None and job.holder is not client and now_s < job.held_until_s
        freed = any(each.told > job.held_from for each in job.changes if each.what != "reserve")
        asked_since = sent > job.held_told  # else this may be the earlier reservation, whose reply came late
        must(
            not (held and asked_since) or freed, f"job {job_id} was given to a second client, and the first one has it"
        )
        job.holder = client
        job.held_from, job.held_told = sent, self.tick()
        job.held_until_s = sent_s + ttr_s
        job.changes.append(Change("reserve", frozenset({READY}), sent, self.tick(), weak=True))

    def lets_go(self, job_id: int) -> None:
        if job_id in self.jobs:
            self.jobs[job_id].holder = None

    def leaves(self, client: Any) -> None:
        for job in self.jobs.values():
            if job.holder is client:
                job.holder = None

    def by_policy(self, job_id: int, *outcome: str) -> None:
        """Enter what a policy does to a job."""
        moment = self.tick()
        change = Change("policy", frozenset(outcome), moment, moment, weak=True)
        job = self.jobs.get(job_id)
        (self._early.setdefault(job_id, []) if job is None else job.changes).append(change)

    def event(self, job_id: int, what: str) -> None:
        """Enter an event that a client was sent."""
        (self._told_deleted if what == "delete" else self._told).add(job_id)

    # -- after a restart

    def outcomes(self, job: Known) -> set[str]:
        """Return the states that a job may be in now."""
        possible = job.outcomes()
        return possible | {READY} if self.kicks_due and possible & {BURIED, DELAYED} else possible

    def compare(self, found: dict[int, tuple[bytes | None, str]]) -> None:
        """Check what a restart has found: for each id the body, if it was read, and the state."""
        several = (AGAIN, *SCHEDULED.values())
        bodies = [body for body, _ in found.values() if body is not None and not body.startswith(several)]
        must(len(bodies) == len(set(bodies)), "a job is there twice")
        for job_id, job in self.jobs.items():
            possible = self.outcomes(job)
            is_there = found.get(job_id)
            if is_there is None:
                must(not self.strict or ABSENT in possible, f"job {job_id} was lost: it may be {possible}")
                continue
            body, state = is_there
            must(body is None or body == job.body, f"job {job_id} has the body of another one")
            must(not self.strict or state in possible, f"job {job_id} is {state}: it may be {possible}")
        for job_id in found.keys() - self.jobs.keys():
            body, _ = found[job_id]
            if body is not None:
                self._meet(job_id, body)
        self._compare_events(found)
        self._begin_anew(found)

    def _compare_events(self, found: dict[int, tuple[bytes | None, str]]) -> None:
        """Check that a restart has undone nothing of which an event had told."""
        if self.strict:
            back = self._told_deleted & found.keys()
            must(not back, f"events told of the deletion of jobs {back}, which are there")
            for job_id in self._told - self._told_deleted - found.keys():
                must(self._may_be_gone(job_id), f"an event told of job {job_id}, which was lost")
        else:
            self._told_deleted.clear()
        self._told &= found.keys()

    def _may_be_gone(self, job_id: int) -> bool:
        """Whether a job may be gone; of one that only events have told of, what policies did is known."""
        if job_id in self.jobs:
            return ABSENT in self.outcomes(self.jobs[job_id])
        return any(ABSENT in change.outcome for change in self._early.get(job_id, ()))

    def _begin_anew(self, found: dict[int, tuple[bytes | None, str]]) -> None:
        """Take what was found as the truth from now on."""
        possible = {job_id: self.outcomes(job) for job_id, job in self.jobs.items()}
        for job_id, job in self.jobs.items():
            now = found.get(job_id)
            deleted = [change for change in job.changes if change.what == "delete" and change.told < FOREVER]
            if now is None:
                job.changes = deleted[:1] or [Change("delete", frozenset({ABSENT}), self.moment, self.tick())]
            else:
                # If the clock is set back, a delay applies again, unless its end has been stored, and not lost since.
                delayed = DELAYED in (possible[job_id] if self.strict else job.all_outcomes())
                again = {DELAYED} if delayed and now[1] == READY else set()
                outcome = frozenset({DELAYED, READY} if now[1] == DELAYED else {now[1]} | again)
                job.changes = [Change("restart", outcome, self.moment, self.tick())]
            job.holder = None
        self.kicks_due.clear()
        self._early.clear()
        if all(body is not None for body, _ in found.values()):
            for body in [each for each in self.put_unknown if each.startswith(AGAIN)]:
                del self.put_unknown[body]  # what was put and is not there will not be
        if not self.strict:
            # The lost jobs were never promised, so their ids may be given out again.
            self.put_ids &= found.keys()
            self.jobs = {job_id: job for job_id, job in self.jobs.items() if job_id in found}
            self.last_id = max(found, default=0)
        self.strict = True
