"""The jobs that a client on asyncio has reserved."""

from collections import deque
from collections.abc import Awaitable
from typing import TypeVar

from beanlite.client import calls
from beanlite.client.calls import Call, Statistics
from beanlite.client.channel import Channel
from beanlite.client.errors import Buried, ClientError, ConnectionLost, JobLost, NotFound

T = TypeVar("T")


class Job:
    """A job that this client has reserved; it is finished once, by `delete`, `release` or `bury`.

    A job that is thrown away unfinished goes back to the server, as do all when the queue is closed.
    """

    __slots__ = {"_channel": None, "body": "The body as bytes.", "id": "The id."}

    def __init__(self, channel: Channel, job_id: int, body: bytes) -> None:
        self._channel: Channel | None = channel
        self.id = job_id
        self.body = body

    def __repr__(self) -> str:
        return f"<Job {self.id}: {self.body[:60]!r}>"

    def __del__(self) -> None:
        if self._channel is not None:
            self._channel.forget_soon()

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode()

    async def delete(self) -> None:
        """Delete the job: it is done. JobLost, NotFound: it is not ours any more."""
        await self._finish(calls.delete(self.id))

    async def release(self, pri: int | None = None, delay_s: int = 0, note: str = "") -> None:
        """Give the job back: it is ready again, after a delay. None: its pri stays. JobLost, NotFound, Buried.

        ``note`` says why, as that of `bury`.
        """
        call = calls.release(self.id, await self._pri() if pri is None else pri, delay_s)
        if note:
            await self._await(self._ours().note(self.id, note))
        await self._finish(call)

    async def bury(self, pri: int | None = None, note: str = "") -> None:
        """Set the job aside until somebody kicks it. None: its pri stays. JobLost, NotFound.

        ``note`` says why, for the people who look at it: beanlite keeps it with the job, of a long one the last 4096
        bytes; beanstalkd has no notes, and does not get it.
        """
        call = calls.bury(self.id, await self._pri() if pri is None else pri)
        if note:
            await self._await(self._ours().note(self.id, note))
        await self._finish(call)

    async def touch(self) -> None:
        """Have the ttr begin anew. JobLost, NotFound: the job is not ours any more."""
        await self._ask(calls.touch(self.id))

    async def stats(self) -> Statistics:
        """Return the statistics of the job. JobLost, NotFound."""
        return await self._ask(calls.stats_job(self.id))

    @property
    def is_finished(self) -> bool:
        """Whether it was deleted, released or buried, or that was answered NOT_FOUND."""
        return self._channel is None

    @property
    def is_lost(self) -> bool:
        """Whether its connection is gone, so that others may have it by now."""
        return self._channel is not None and self._channel.is_lost

    async def _pri(self) -> int:
        return int((await self.stats())["pri"])

    def _ours(self) -> Channel:
        if self._channel is None:
            raise NotFound(f"job {self.id} is finished already")
        if self._channel.is_lost:
            raise JobLost(f"the connection on which job {self.id} was reserved is gone")
        return self._channel

    async def _ask(self, call: Call[T]) -> T:
        return await self._await(self._ours().ask(call))

    async def _await(self, answer: Awaitable[T]) -> T:
        try:
            return await answer
        except ConnectionLost as error:
            raise JobLost(f"job {self.id}: {error}") from error

    async def _finish(self, call: Call[None]) -> None:
        channel = self._ours()
        try:
            await channel.ask(call)
        except (NotFound, Buried):
            self._let_go(channel)
            raise
        except ConnectionLost as error:
            raise JobLost(f"job {self.id}: {error}") from error
        except ClientError:  # it is still ours, or its connection is gone
            raise
        except BaseException:  # cancelled: what has been sent will be carried out
            self._let_go(channel)
            raise
        self._let_go(channel)

    def _let_go(self, channel: Channel) -> None:
        if self._channel is not None:
            self._channel = None
            channel.let_go()


async def stats_tube(job: Job, tube: str) -> Statistics:
    """Return the statistics of a tube, if the connection of a job is still there. JobLost, Declined."""
    return await job._ask(calls.stats_tube(tube))  # noqa: SLF001 - a job's own module


async def give_back(jobs: deque[Job]) -> None:
    """Give back jobs of one connection that nobody has begun."""
    channel = jobs[0]._channel if jobs else None  # noqa: SLF001 - a job's own module
    if channel is None or channel.is_lost:
        return
    if channel.held == len(jobs):
        for job in jobs:
            job._channel = None  # noqa: SLF001 - as above
        channel.abort()
        return
    for job in jobs:
        try:
            await job.release()
        except ClientError:
            continue
