"""The jobs that a blocking client has reserved."""

from collections import deque
from typing import TypeVar

from beanlite.client import calls
from beanlite.client.calls import Call, Statistics
from beanlite.client.errors import Buried, ClientError, ConnectionLost, JobLost, NotFound
from beanlite.client.wire import Wire

T = TypeVar("T")


class BlockingJob:
    """A job that this client has reserved; it is finished once, by `delete`, `release` or `bury`."""

    __slots__ = {"_wire": None, "body": "The body as bytes.", "id": "The id."}

    def __init__(self, wire: Wire, job_id: int, body: bytes) -> None:
        self._wire: Wire | None = wire
        self.id = job_id
        self.body = body

    def __repr__(self) -> str:
        return f"<BlockingJob {self.id}: {self.body[:60]!r}>"

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode()

    def delete(self) -> None:
        """Delete the job: it is done. JobLost, NotFound: it is not ours any more."""
        self._finish(calls.delete(self.id))

    def release(self, pri: int | None = None, delay_s: int = 0, note: str = "") -> None:
        """Give the job back: it is ready again, after a delay. None: its pri stays. JobLost, NotFound, Buried.

        ``note`` says why, as that of `bury`.
        """
        call = calls.release(self.id, self._pri() if pri is None else pri, delay_s)
        if note:
            self._leave(note)
        self._finish(call)

    def bury(self, pri: int | None = None, note: str = "") -> None:
        """Set the job aside until somebody kicks it. None: its pri stays. JobLost, NotFound.

        ``note`` says why, for the people who look at it: beanlite keeps it with the job, of a long one the last 4096
        bytes; beanstalkd has no notes, and does not get it.
        """
        call = calls.bury(self.id, self._pri() if pri is None else pri)
        if note:
            self._leave(note)
        self._finish(call)

    def touch(self) -> None:
        """Have the ttr begin anew. JobLost, NotFound: the job is not ours any more."""
        self._ask(calls.touch(self.id))

    def stats(self) -> Statistics:
        """Return the statistics of the job. JobLost, NotFound."""
        return self._ask(calls.stats_job(self.id))

    @property
    def is_finished(self) -> bool:
        """Whether it was deleted, released or buried, or that was answered NOT_FOUND."""
        return self._wire is None

    @property
    def is_lost(self) -> bool:
        """Whether its connection is gone, so that others may have it by now."""
        return self._wire is not None and self._wire.is_lost

    def _pri(self) -> int:
        return int(self.stats()["pri"])

    def _ours(self) -> Wire:
        if self._wire is None:
            raise NotFound(f"job {self.id} is finished already")
        if self._wire.is_lost:
            raise JobLost(f"the connection on which job {self.id} was reserved is gone")
        return self._wire

    def _leave(self, note: str) -> None:
        wire = self._ours()
        try:
            wire.note(self.id, note)
        except ConnectionLost as error:
            raise JobLost(f"job {self.id}: {error}") from error

    def _ask(self, call: Call[T]) -> T:
        wire = self._ours()
        try:
            return wire.ask(call)
        except ConnectionLost as error:
            raise JobLost(f"job {self.id}: {error}") from error

    def _finish(self, call: Call[None]) -> None:
        wire = self._ours()
        try:
            wire.ask(call)
        except (NotFound, Buried):
            self._let_go(wire)
            raise
        except ConnectionLost as error:
            raise JobLost(f"job {self.id}: {error}") from error
        self._let_go(wire)

    def _let_go(self, wire: Wire) -> None:
        self._wire = None
        wire.held -= 1


def give_back(jobs: deque[BlockingJob]) -> None:
    """Give back jobs of one connection that nobody has begun."""
    wire = jobs[0]._wire if jobs else None  # noqa: SLF001 - a job's own module
    if wire is None or wire.is_lost:
        return
    if wire.held == len(jobs):
        wire.close()
        return
    for job in jobs:
        try:
            job.release()
        except ClientError:
            continue
