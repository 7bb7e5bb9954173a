"""Policies that have changed, slice by slice: for all tubes, and for the jobs that are in them."""

from __future__ import annotations

from typing import Final

from beanlite.core.job import SLICE
from beanlite.core.policies import is_glob
from beanlite.core.queues import Queues
from beanlite.core.ruled import BYTES_PER_JOB
from beanlite.core.timers import Chore
from beanlite.core.tube import Tube
from beanlite.core.wide import PART

# To match a name with this many globs costs as much as to move a job.
GLOBS_PER_JOB: Final = 4
# To free so many entries of a dict costs as much as to move a job.
FREED_PER_JOB: Final = 16


class Applying(Chore):
    """What is still to be done since policies were changed."""

    __slots__ = ("_jobs_up_to_id", "_last_id", "_names", "_queues", "_tubes")

    def __init__(self, queues: Queues) -> None:
        super().__init__(queues.new_serial())
        self._queues = queues
        self._names: list[bytes] = []
        """Names of tubes that are still to be given their rules."""
        self._tubes: set[Tube] = set()
        """Tubes whose jobs are still to be entered."""
        self._last_id = 0
        """The id of the last job that was looked at for that."""
        self._jobs_up_to_id = 0
        """The id of the last job that was there when all of these tubes had their rules."""

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to do."""
        return not (self._names or self._tubes or self._queues.ruled.waste)

    def begin(self, patterns: set[bytes], now_ns: int) -> None:
        """Begin to give the tubes that patterns may match the rules that policies have for them now: a first slice."""
        if any(map(is_glob, patterns)):
            self._names = list(self._queues.tubes)
        else:
            self._names += patterns
        self.carry_out(SLICE, now_ns)

    def carry_out(self, budget: int, now_ns: int) -> int:
        """Do a slice of it; returns what it has cost, counted in jobs moved."""
        cost = 0
        queues = self._queues
        while self._names and cost < budget:
            cost += 1 + queues.ruled.policies.globs // GLOBS_PER_JOB
            tube = queues.tubes.get(self._names.pop())
            if tube is not None and queues.ruled.give_rules(tube):
                self._tubes.add(tube)
                self._last_id = 0
        if not self._names and self._tubes and cost < budget:
            cost += self._enter_jobs(budget - cost)
        waste = queues.ruled.waste
        while waste and cost < budget:
            cost += PART // FREED_PER_JOB
            if not waste[-1].free_part():
                waste.pop()
        if not self.is_done:
            queues.timers.set(self, now_ns)
        return cost

    def _enter_jobs(self, budget: int) -> int:
        queues = self._queues
        if not self._last_id:
            self._jobs_up_to_id = queues.jobs.newest_id
        ids = queues.jobs.ids_after(self._last_id, budget)
        cost = 0
        for job_id in ids:
            if cost >= budget:
                return cost
            job = queues.jobs[job_id]
            rules = job.tube.rules
            cost += 1
            if job.tube in self._tubes and rules is not None:
                checksum = queues.ruled.checksum_for(rules, job)
                queues.ruled.enter(job, checksum)
                if checksum is not None:
                    cost += job.size // BYTES_PER_JOB
            self._last_id = job_id
        if len(ids) < budget or self._last_id >= self._jobs_up_to_id:
            self._tubes.clear()
        return cost
