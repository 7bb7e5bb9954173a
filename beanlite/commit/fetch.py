"""Fetching bodies from the journal, for clients that wait for them and ahead of need.

Like the group commit it works in rounds: while one round is under way, requests for the next gather, so that a round
fetches for many clients.
"""

import asyncio
from collections.abc import Callable, Iterator
from typing import Final, Protocol

from beanlite.core.engine import Engine
from beanlite.core.job import Job
from beanlite.journal.base import Journal

# A round is full with the body that brings it to this many bytes, or with this many jobs.
ROUND_BYTES: Final = 8 << 20
ROUND_JOBS: Final = 1000
# Bodies handed over in one go, before other clients get their turn.
AT_ONCE: Final = 100


class Waiter(Protocol):
    """The part of a connection that the fetcher knows: it waits for a body."""

    def resume(self, body: bytes | None) -> None:
        """Continue with the body, or with None if the job is gone."""

    def lack_memory(self) -> None:
        """Do without the body: there is no memory for it."""


class Fetcher:
    """The reader of bodies, which works round by round."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        engine: Engine,
        journal: Journal,
        tell_failure: Callable[[Exception], None],
    ) -> None:
        self._loop = loop
        self._engine = engine
        self._journal = journal
        self._tell_failure = tell_failure
        self._waiters: dict[Job, list[Waiter]] = {}
        """Jobs whose bodies clients wait for, and these clients' connections."""
        self._round_jobs = ROUND_JOBS
        """How many jobs the next round may have; fewer after memory was short."""
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        engine.bodies.attach(self._begin)

    def fetch(self, job: Job, waiter: Waiter) -> None:
        """Fetch the body of a job for a client that waits for it."""
        self._waiters.setdefault(job, []).append(waiter)
        self._engine.bodies.note_miss(job)
        self._begin()

    def _begin(self) -> None:
        if self._task is None and not self._closed:
            self._task = self._loop.create_task(self._fetch_all())
            self._task.add_done_callback(self._on_end)

    def _on_end(self, task: asyncio.Task[None]) -> None:
        self._task = None
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._closed = True
            self._tell_failure(error if isinstance(error, Exception) else RuntimeError(repr(error)))
        elif self._waiters or self._engine.bodies.due:  # requested while the task was about to end
            self._begin()

    async def _fetch_all(self) -> None:
        while True:
            jobs = self._next_round()
            if not jobs:
                break
            try:
                bodies = await self._journal.fetch([job.id for job in jobs])
            except MemoryError:
                self._lack_memory(jobs)
                continue
            self._round_jobs = min(2 * self._round_jobs, ROUND_JOBS)
            for count, _ in enumerate(self._hand_over(jobs, bodies), 1):
                if not count % AT_ONCE:
                    await asyncio.sleep(0)
            await asyncio.sleep(0)

    def _hand_over(self, jobs: list[Job], bodies: list[bytes | None]) -> Iterator[None]:
        """Pass the bodies on to the clients that wait for them, one client at a time; the others were fetched ahead."""
        engine = self._engine
        for job, body in zip(jobs, bodies, strict=True):
            engine.memory.fetched += body is not None
            waiting = self._waiters.pop(job, None)
            if waiting is None:
                if body is not None:
                    engine.bodies.load(job, body)
                yield
            else:
                for waiter in waiting:
                    waiter.resume(body)
                    yield

    def _lack_memory(self, jobs: list[Job]) -> None:
        """Fetch fewer in the next round. If there was no room for a single body, its clients do without it."""
        self._round_jobs = max(1, len(jobs) // 2)
        if len(jobs) == 1:
            for waiter in self._waiters.pop(jobs[0], ()):
                waiter.lack_memory()

    def _next_round(self) -> list[Job]:
        """Return the jobs whose bodies clients wait for; if there are none, those whose bodies will be needed next."""
        jobs: list[Job] = []
        size = 0
        for job in self._waiters:
            if size >= ROUND_BYTES or len(jobs) >= self._round_jobs:
                break
            size += job.size
            jobs.append(job)
        return jobs or self._engine.bodies.take_due()

    async def close(self) -> None:
        """Fetch no more."""
        self._closed = True
        if self._task is not None:
            await asyncio.wait({self._task})
