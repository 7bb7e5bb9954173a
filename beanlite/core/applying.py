"""Policies that have changed, slice by slice: for all tubes, and for the jobs that are in them."""

from __future__ import annotations

from zlib import crc32

from beanlite.core.job import SLICE
from beanlite.core.queues import Queues
from beanlite.core.timers import Chore
from beanlite.core.tube import Tube


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
        """The id of the last job that was there before."""

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to do."""
        return not (self._names or self._tubes)

    def begin(self, names: list[bytes], last_id: int, now_ns: int) -> None:
        """Begin to give tubes the rules that policies have for them now, and do a first slice.

        ``last_id`` is that of the last job.
        """
        self._names = list({**dict.fromkeys(self._names), **dict.fromkeys(names)})
        self._last_id = 0
        self._jobs_up_to_id = last_id
        self.carry_out(SLICE, now_ns)

    def carry_out(self, budget: int, now_ns: int) -> int:
        """Do a slice of it; returns what it has cost, counted in jobs moved."""
        cost = 0
        queues = self._queues
        while self._names and cost < budget:
            cost += 1
            tube = queues.tubes.get(self._names.pop())
            if tube is not None and queues.ruled.give_rules(tube):
                self._tubes.add(tube)
                self._last_id = 0
        if not self._names and self._tubes and cost < budget:
            cost += self._enter_jobs(budget - cost)
        if not self.is_done:
            queues.timers.set(self, now_ns)
        return cost

    def _enter_jobs(self, budget: int) -> int:
        queues = self._queues
        ids = queues.jobs.ids_after(self._last_id, budget)
        for job_id in ids:
            job = queues.jobs[job_id]
            if job.tube in self._tubes and job.tube.rules is not None:
                queues.ruled.enter(job, None if job.body is None else crc32(job.body))
        if ids:
            self._last_id = ids[-1]
        if len(ids) < budget or self._last_id >= self._jobs_up_to_id:
            self._tubes.clear()
        return len(ids)
