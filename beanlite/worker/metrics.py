"""The metrics of a worker, and whether it is ready, served at an address as those of a server."""

import asyncio
from typing import Final

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, Counter, Gauge, Histogram, generate_latest

from beanlite.net.health import Health
from beanlite.worker.outcomes import JobOutcome
from beanlite.worker.worker import Worker

_BUCKETS_S: Final = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 3000)


class WorkerMetrics:
    """The counts of the jobs of a worker, beside whatever else the program counts with this library."""

    def __init__(self) -> None:
        self._jobs = Counter("beanlite_worker_jobs", "Jobs that were begun, by outcome.", ["tube", "outcome"])
        self._seconds = Histogram("beanlite_worker_job_seconds", "How long jobs took.", ["tube"], buckets=_BUCKETS_S)
        self._in_hand = Gauge("beanlite_worker_jobs_in_hand", "Jobs that are being done.")

    def count(self, ended: JobOutcome) -> None:
        """Count a job."""
        self._jobs.labels(ended.tube, ended.outcome).inc()
        self._seconds.labels(ended.tube).observe(ended.seconds)

    async def serve(self, worker: Worker, host: str, port: int) -> None:
        """Serve the metrics from now on. ListenError: that fails."""
        self._in_hand.set_function(lambda: worker.jobs_in_hand)

        async def page() -> bytes:
            return generate_latest()

        def readiness() -> tuple[bool, str]:
            if worker.is_stopping:
                return False, "stopping"
            return worker.is_connected, "ready" if worker.is_connected else "waiting for the server"

        await Health(asyncio.get_running_loop(), readiness, page, CONTENT_TYPE_PLAIN_0_0_4).open(host, port)
