"""Jobs that are offered to a client, which takes or declines them: until it takes one, nothing has happened to it."""

from __future__ import annotations

from beanlite.core.bodies import Bodies
from beanlite.core.fairness import Fairness
from beanlite.core.job import ID_MASK, Job
from beanlite.core.queues import Queues
from beanlite.core.rulings import Rulings
from beanlite.core.tube import Client


class Offering:
    """What a client can do about offers; ``Ticker.end_offers`` ends those that it does not answer."""

    __slots__ = ("_bodies", "_fairness", "_queues", "_rulings")

    def __init__(self, queues: Queues, rulings: Rulings, bodies: Bodies, fairness: Fairness) -> None:
        self._queues = queues
        self._rulings = rulings
        self._bodies = bodies
        self._fairness = fairness

    def offer(self, client: Client, now_ns: int) -> Job | None:
        """Offer a client the job that it would reserve now, if any."""
        tube = self._fairness.choose(client, now_ns)
        if tube is None:
            return None
        job = self._queues.jobs[tube.ready.keys[0] & ID_MASK]
        self._queues.leave_state(job, now_ns)
        self._queues.make_offered(job, client, now_ns)
        return job

    def take(self, client: Client, job_id: int, now_ns: int) -> bool:
        """Reserve a job that is offered to the client."""
        job = self._offered_to(client, job_id)
        if job is None:
            return False
        self._queues.leave_state(job, now_ns)
        self._queues.make_reserved(job, client, now_ns)
        if self._bodies.ahead:
            self._bodies.note_delivery(job)
        return True

    def decline(self, client: Client, job_id: int, now_ns: int) -> bool:
        """Have a job that is offered to the client go back."""
        job = self._offered_to(client, job_id)
        if job is None:
            return False
        self._rulings.go_back(job, now_ns)
        return True

    def _offered_to(self, client: Client, job_id: int) -> Job | None:
        job = self._queues.jobs.find(job_id)
        return job if job is not None and job.holder is not None and job.holder is client.offers else None
