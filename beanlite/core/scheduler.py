"""Puts the jobs of all schedules when they are due.

Each schedule has a next time, its *tick*, which moves on with the put, in the same batch. So a tick comes once, however
often the server is killed, and whichever server of several is active. Ticks are in UTC, by the machine's clock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from beanlite.core.admission import Admission
from beanlite.core.clients import Clients, Refusal
from beanlite.core.job import SECOND_NS, Job
from beanlite.core.ledger import BYTES_AT_ONCE
from beanlite.core.memory import Memory
from beanlite.core.queues import Queues
from beanlite.core.recurrence import next_after
from beanlite.core.rules import MAX_JOBS
from beanlite.core.rulings import Rulings
from beanlite.core.schedules import Schedule
from beanlite.core.timers import Chore
from beanlite.core.tube import Client, Peer, Tube

SCHEDULES_MAX: Final = 1000
BODY_MAX: Final = 64 << 10
# A tick that is later than this is missed; one that is less late is carried out as if it were in time.
GRACE_S: Final = 60.0
# How long until a put that was refused is tried again, and how often the machine's clock is looked at again.
RETRY_S: Final = 1.0
LOOK_S: Final = 60.0
# How long until the next one has its turn if the batch being gathered has enough bodies; so even those that must wait
# for a slow disk are carried out before they are missed.
CROWDED_S: Final = 0.01
# If the machine's clock has been set back by more, it had been wrong: ticks go on from what it shows now. If by less,
# it shows ticks again that have been carried out, and they are not repeated.
BACK_S: Final = 3 * 3600.0
# The timer may come a little early, since UTC in seconds is not exact.
_EARLY_S: Final = 0.001
# What a tick costs, counted in jobs moved.
_TICK_COST: Final = 20
# What a schedule takes in memory in addition to its body, at most.
_SCHEDULE_BYTES: Final = 3000


class Scheduler(Chore):
    """All schedules, and the one timer that they share."""

    __slots__ = (
        "_admission",
        "_back_s",
        "_clients",
        "_doubtful",
        "_due",
        "_latest_at",
        "_memory",
        "_put_job",
        "_queues",
        "_refused",
        "_rulings",
        "errors",
        "refused",
        "schedules",
        "utc_s",
    )

    def __init__(
        self,
        queues: Queues,
        clients: Clients,
        admission: Admission,
        memory: Memory,
        rulings: Rulings,
        put: Callable[[Client, int, int, int, bytes, int], Job],
    ) -> None:
        """``put`` is that of the engine."""
        super().__init__(0)  # queues count from 1
        self._queues = queues
        self._clients = clients
        self._admission = admission
        self._memory = memory
        self._rulings = rulings
        self._put_job = put
        self.schedules: dict[str, Schedule] = {}
        """By name."""
        self.errors: dict[str, str] = {}
        """Why schedules that are due can't be carried out on this machine, by name."""
        self._refused: set[str] = set()
        """Names of schedules whose tick has been refused, and counts as that, however often it is tried again."""
        self.refused: Callable[[str], None] = _nobody
        """Called with the limit that refuses a put."""
        self.utc_s: Callable[[int], float] = _as_seconds
        """Converts a time of the server's clock to UTC."""
        self._latest_at = float("inf")
        """The time of the last look; infinite before the first one, which is as after a clock that was set back."""
        self._doubtful: list[Schedule] = []
        """Schedules that may have moved on by a clock that was wrong."""
        self._due: list[Schedule] = []
        """Those that were due at the last look and are still to be carried out, the next one last."""
        self._back_s = 0.0
        """By how much a clock that was right may have been ahead of the one of now when they moved on."""

    # -- what operators do

    def set(self, schedule: Schedule, by: Peer, text: bytes, now_ns: int) -> None:
        """Set a schedule, or change the one of that name. ``text`` says what was set, for the history."""
        before = self.schedules.get(schedule.name)
        if before is not None:
            schedule.last_at, schedule.last_job = before.last_at, before.last_job
            if (before.when, before.zone) == (schedule.when, schedule.zone):
                schedule.next_at = before.next_at
            self._count(before, -1)
        self._queues.ledger.note_schedule(schedule)
        self._record(schedule, by, text, now_ns)
        self.restore(schedule)
        self._admission.use_disk(len(schedule.body))

    def unset(self, schedule: Schedule, by: Peer, text: bytes, now_ns: int) -> None:
        """Remove a schedule; the jobs that it has put stay."""
        del self.schedules[schedule.name]
        self.errors.pop(schedule.name, None)
        self._refused.discard(schedule.name)
        self._count(schedule, -1)
        self._queues.ledger.schedules[schedule.name] = None
        self._record(schedule, by, text, now_ns)

    def run(self, schedule: Schedule, person: str, now_ns: int) -> Job | None:
        """Put a schedule's job now, on behalf of a person, whether it is due or not; None if that is refused."""
        return self._put(schedule, person, now_ns)

    def restore(self, schedule: Schedule) -> None:
        """Take over a schedule, without noting it for the journal."""
        self.schedules[schedule.name] = schedule
        self.errors.pop(schedule.name, None)
        self._refused.discard(schedule.name)
        self._count(schedule, 1)
        self._queues.timers.set(self, 0)

    def _count(self, schedule: Schedule, sign: int) -> None:
        self._memory.schedule_bytes += sign * (_SCHEDULE_BYTES + len(schedule.body))

    def _record(self, schedule: Schedule, by: Peer, text: bytes, now_ns: int) -> None:
        tube = self._queues.tubes.get(schedule.tube) or Tube(schedule.tube, 0)
        self._queues.ledger.record_schedule(tube, schedule.pri, text, by, now_ns)

    # -- time

    def carry_out(self, budget: int, now_ns: int) -> int:
        """Carry out ticks that are due until that has cost about ``budget``; returns the cost.

        The rest follows in later calls.
        """
        if self._queues.stopping or not self.schedules:
            return 1
        utc_s = self.utc_s(now_ns)
        if utc_s < self._latest_at - BACK_S:
            self._doubtful = list(self.schedules.values())
            self._back_s = 0.0 if self._latest_at < float("inf") else BACK_S
        self._latest_at = utc_s
        cost = 1
        while self._doubtful and cost < budget:
            cost += self._go_back(self._doubtful.pop(), utc_s)
        if not (self._doubtful or self._due):
            self._due = [each for each in self.schedules.values() if each.next_at <= utc_s + _EARLY_S]
            self._due.reverse()
        wait_s = 0.0
        while self._due and cost < budget and not wait_s:
            schedule = self._due.pop()
            if self.schedules.get(schedule.name) is schedule and schedule.next_at <= utc_s + _EARLY_S:
                cost += _TICK_COST
                if self._carry_out(schedule, utc_s, now_ns):
                    self._due.append(schedule)  # the next tick may be due as well
                if self._admission.used_bytes + self._queues.ledger.schedule_bytes >= BYTES_AT_ONCE:
                    wait_s = CROWDED_S
        if not (self._doubtful or self._due):
            wait_s = self._wait_s(utc_s)
        self._queues.timers.set(self, now_ns + round(wait_s * SECOND_NS))
        return cost

    def _wait_s(self, utc_s: float) -> float:
        """Return in how many seconds the schedules are to be looked at again, once all that are due have been."""
        wait_s = LOOK_S
        for schedule in self.schedules.values():
            if schedule.next_at > utc_s + _EARLY_S:
                wait_s = min(wait_s, schedule.next_at - utc_s)
            elif schedule.name not in self.errors:
                wait_s = min(wait_s, RETRY_S)
        return wait_s

    def _carry_out(self, schedule: Schedule, utc_s: float, now_ns: int) -> bool:
        """Put a schedule's job if it should be, and move on to the next tick; False: it has to be tried again."""
        missed = utc_s - schedule.next_at >= GRACE_S
        try:
            next_at = next_after(schedule.when, schedule.zone, utc_s - GRACE_S if missed else schedule.next_at)
            # Of several that were missed, the last counts for all, unless there is one by now that was not.
            wanted = not missed or (
                schedule.once_if_missed and next_at > utc_s + _EARLY_S and _is_behind(schedule, utc_s)
            )
        except ValueError as why:  # this machine does not have the zone
            self.errors[schedule.name] = str(why)
            return False
        self.errors.pop(schedule.name, None)
        if wanted and schedule.if_absent and self._is_present(schedule, now_ns):
            wanted = False
        if wanted and self._put(schedule, "", now_ns, again=schedule.name in self._refused) is None:
            self._refused.add(schedule.name)
            return False
        self._refused.discard(schedule.name)
        schedule.next_at = next_at
        self._queues.ledger.note_schedule(schedule)
        return True

    def _is_present(self, schedule: Schedule, now_ns: int) -> bool:
        """Whether the last job of a schedule is still there, and not about to be deleted because it is too old."""
        job = None if schedule.last_job is None else self._queues.jobs.find(schedule.last_job)
        return job is not None and not self._rulings.is_lost(job, now_ns + SECOND_NS)

    def _put(self, schedule: Schedule, person: str, now_ns: int, *, again: bool = False) -> Job | None:
        """Put a schedule's job and note that; None if puts are refused at the moment.

        A refusal is counted as that of a client's put, unless it is tried ``again``.
        """
        admission = self._admission
        if admission.draining:
            return None
        if len(schedule.body) > admission.room_bytes:
            if not again:
                admission.lack_room()
            return None
        tube = self._clients.tube(schedule.tube)
        if isinstance(tube, Refusal):
            if not again:
                self.refused(tube.value)
            return None
        ledger = self._queues.ledger
        job, rules = self._twin(tube, schedule.body, now_ns), tube.rules
        if job is None:
            if rules is not None and rules.max_jobs and tube.jobs >= rules.max_jobs:
                if not again:
                    ledger.tally(tube).refused += 1
                    self.refused(MAX_JOBS)
                return None
            client = Client(tube, 0, Peer(f"schedule {schedule.name}", 0, person))
            job = self._put_job(client, schedule.pri, 0, schedule.ttr_s, schedule.body, now_ns)
        else:
            ledger.tally(tube).duplicates += 1
            if not ledger.is_stored(job.id):
                ledger.hasten(job)  # or a crash could leave the tick without a job that waits
        schedule.last_at, schedule.last_job = self.utc_s(now_ns), job.id
        ledger.note_schedule(schedule)
        return job

    def _twin(self, tube: Tube, body: bytes, now_ns: int) -> Job | None:
        """Return the job that a put would repeat, where the rules of a tube allow only one.

        A body that is not in memory is not fetched for that: its size and checksum are enough.
        """
        twin, unknown = self._rulings.twin(tube, body, {}, now_ns + SECOND_NS)
        return twin or unknown

    def _go_back(self, schedule: Schedule, utc_s: float) -> int:
        """Have a schedule that has moved on by a wrong clock go on from this time; returns the cost."""
        if self.schedules.get(schedule.name) is not schedule or schedule.next_at <= utc_s + self._back_s:
            return 0
        try:
            passed_at = next_after(schedule.when, schedule.zone, utc_s + self._back_s)
            if schedule.next_at > passed_at:
                schedule.next_at = next_after(schedule.when, schedule.zone, utc_s)
                self._queues.ledger.note_schedule(schedule)
        except ValueError:  # as above
            pass
        return _TICK_COST


def _is_behind(schedule: Schedule, utc_s: float) -> bool:
    """Whether a time has come since the last job; if none has, the clock was only wrong in between, and none is missed.

    ValueError: this machine does not have the zone.
    """
    last_at = schedule.last_at
    if last_at is None or last_at > utc_s:
        return True
    return next_after(schedule.when, schedule.zone, last_at + _EARLY_S) <= utc_s


def _as_seconds(clock_ns: int) -> float:
    """Return the time of a clock that counts from 1970."""
    return clock_ns / SECOND_NS


def _nobody(_limit: str) -> None:
    """Tell nobody of a refusal."""
