"""The client for asyncio.

::

    async with connect("beanlite://127.0.0.1:11300") as queue:
        await queue.put("welcome ann", tube="mail")
        async for job in queue.jobs("mail"):
            print(job.text)
            await job.delete()

Commands share one connection, on which those of several tasks are under way at the same time. A reserve that waits
keeps a connection from doing anything else, and the jobs that a connection has reserved are finished on it. So each
reserve takes a connection on which no job is reserved, from those that are free, or a new one. If the reserve is
cancelled its connection is closed: a job that was on its way is ready again at once, and counts neither as released nor
as done.
"""

import asyncio
import math
import ssl
from collections import deque
from collections.abc import AsyncGenerator, Iterable
from types import TracebackType
from typing import Self, TypeVar

from beanlite.client import calls
from beanlite.client.calls import AHEAD_MAX, BATCH_MAX, PRI, TTR_S, Call, PeekedJob, Statistics
from beanlite.client.dialogue import DEFAULT
from beanlite.client.errors import (
    ClientError,
    ConnectionLost,
    Declined,
    NotIgnored,
    NotSent,
    SomePutsFailed,
)
from beanlite.client.pool import Pool
from beanlite.client.reserved import Job, give_back
from beanlite.client.target import Target, targets

T = TypeVar("T")


class Queue:
    """A client of one server; `connect` makes it."""

    def __init__(self, where: tuple[Target, ...], use: str, watch: str | Iterable[str]) -> None:
        calls.use(use)
        self._pool = Pool(where)
        self._used = use
        self._watched = calls.tubes(watch)

    async def __aenter__(self) -> Self:
        channel = await self._pool.begin()
        try:
            if self._used != DEFAULT:
                await channel.ask(calls.use(self._used), self._used)
            await channel.watch(self._watched)
        except ConnectionLost as error:
            raise self._pool.cannot_connect(error) from error
        except BaseException:
            channel.abort()
            raise
        self._pool.put_back(channel)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections: jobs that are not finished are ready again."""
        await self._pool.close()

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection to a server now; if not, one is being made, or will be for the next command."""
        return self._pool.is_connected

    # -- putting

    async def put(
        self, body: bytes | str, tube: str | None = None, *, pri: int = PRI, delay_s: int = 0, ttr_s: int = TTR_S
    ) -> int:
        """Put a job, and return its id; None: into the tube that `use` has named.

        PutUnknown: the connection ended before the answer came. JobTooBig, Draining, OutOfMemory, Unauthorized.
        """
        return await self._ask(calls.put(body, pri, delay_s, ttr_s), self._used if tube is None else tube)

    async def put_many(
        self,
        bodies: Iterable[bytes | str],
        tube: str | None = None,
        *,
        pri: int = PRI,
        delay_s: int = 0,
        ttr_s: int = TTR_S,
    ) -> list[int]:
        """Put several jobs without waiting for each, and return their ids. SomePutsFailed: it says which."""
        puts = calls.puts(bodies, pri, delay_s, ttr_s)
        tube = self._used if tube is None else tube
        results: list[int | ClientError] = []
        for at in range(0, len(puts), BATCH_MAX):
            part = puts[at : at + BATCH_MAX]
            try:
                results += await self._ask_all(part, tube)
            except ClientError as error:  # there is no connection: the others would wait for one again, each in vain
                results += [error] * (len(puts) - at)
                break
        ids, errors = calls.outcome(results)
        if errors:
            raise SomePutsFailed(ids, errors)
        return [job_id for job_id in ids if job_id is not None]

    async def use(self, tube: str) -> None:
        """Put into this tube from now on, also after the connection was made again. Unauthorized, OutOfMemory."""
        await self._ask(calls.use(tube), tube)
        self._used = tube

    # -- reserving

    async def watch(self, tube: str) -> int:
        """Reserve from this tube as well from now on, and return how many there are. Unauthorized, OutOfMemory."""
        await self._try_to_watch(self._watched | {tube})
        self._watched |= {tube}  # another task may have changed it
        return len(self._watched)

    async def ignore(self, tube: str) -> int:
        """Reserve from this tube no more, and return how many are left. NotIgnored: it is the only one."""
        others = self._watched - {tube}
        if not others:
            raise NotIgnored(f"{tube} is the only tube that is watched")
        self._watched = others  # of what remains all is allowed
        return len(others)

    async def _try_to_watch(self, tubes: frozenset[str]) -> None:
        """Have the server say whether these tubes may be watched."""
        self._pool.put_back(await self._pool.take(tubes))

    async def reserve(self, timeout_s: int | None = None) -> Job:
        """Return the next job of the tubes that are watched; wait for it so long, or as long as it takes.

        TimedOut: no job came. If this is cancelled, no job stays reserved.
        """
        if timeout_s is not None:
            calls.check_wait(timeout_s)
        until = None if timeout_s is None else asyncio.get_running_loop().time() + timeout_s
        (job,) = await self._reserved(self._watched, until)
        return job

    async def reserve_job(self, job_id: int) -> Job:
        """Reserve the job of this id, be it ready, delayed or buried. NotFound."""
        (job,) = await self._reserved(self._watched, call=calls.reserve_job(job_id))
        return job

    async def jobs(self, *tubes: str, ahead: int = 0) -> AsyncGenerator[Job, None]:
        """Yield jobs of these tubes, or of those that are watched, as they come, without an end.

        Up to ``ahead`` jobs are reserved before their turn, which saves time if there are many short jobs. Their ttr
        runs meanwhile. When the loop ends they go back to the server; to be sure of the moment, use
        ``contextlib.aclosing``.
        """
        calls.in_range("ahead", ahead, AHEAD_MAX)
        watched = calls.tubes(tubes or self._watched)
        waiting: deque[Job] = deque()
        try:
            while True:
                if not waiting:
                    waiting.extend(await self._reserved(watched, ahead=ahead))
                job = waiting.popleft()
                if not job.is_lost:
                    yield job
                del job
        finally:
            await give_back(waiting)

    async def _reserved(
        self,
        watched: frozenset[str],
        until: float | None = None,
        *,
        ahead: int = 0,
        call: Call[tuple[int, bytes]] | None = None,
    ) -> list[Job]:
        """Return the next job, or that which another call reserves, and those ahead that there are."""
        while True:
            channel = await self._pool.take(watched, until)
            try:
                first = call or _reserve(until)
                results = await channel.reserve_several(ahead + 1) if ahead else [await channel.ask(first)]
            except NotSent:
                results = []
            except Declined:
                self._pool.put_back(channel)
                raise
            except BaseException:
                channel.abort()
                raise
            if channel.is_lost:  # with all that it has reserved
                channel.raise_if_last(until)
                continue
            jobs = [Job(channel, *result) for result in results if not isinstance(result, ClientError)]
            channel.held = len(jobs)
            if jobs:
                return jobs
            self._pool.put_back(channel)
            assert isinstance(results[0], ClientError)
            raise results[0]

    # -- other jobs and tubes

    async def delete(self, job_id: int) -> None:
        """Delete a job that nobody has reserved. NotFound."""
        await self._ask(calls.delete(job_id))

    async def kick(self, bound: int, tube: str | None = None) -> int:
        """Have up to ``bound`` buried jobs ready, or if there is none delayed ones, and return how many there were."""
        return await self._ask(calls.kick(bound), self._used if tube is None else tube)

    async def kick_job(self, job_id: int) -> None:
        """Have a buried or delayed job ready. NotFound: it is neither."""
        await self._ask(calls.kick_job(job_id))

    async def peek(self, job_id: int) -> PeekedJob:
        """Return a job without reserving it. NotFound."""
        return await self._ask(calls.peek(job_id))

    async def peek_ready(self, tube: str | None = None) -> PeekedJob:
        """Return the job of a tube that is next to be reserved. NotFound: there is none."""
        return await self._ask(calls.PEEK_READY, self._used if tube is None else tube)

    async def peek_delayed(self, tube: str | None = None) -> PeekedJob:
        """Return the job of a tube whose delay ends first. NotFound: there is none."""
        return await self._ask(calls.PEEK_DELAYED, self._used if tube is None else tube)

    async def peek_buried(self, tube: str | None = None) -> PeekedJob:
        """Return the job of a tube that was buried first. NotFound: there is none."""
        return await self._ask(calls.PEEK_BURIED, self._used if tube is None else tube)

    async def stats(self) -> Statistics:
        """Return the statistics of the server."""
        return await self._ask(calls.stats())

    async def stats_job(self, job_id: int) -> Statistics:
        """Return the statistics of a job. NotFound."""
        return await self._ask(calls.stats_job(job_id))

    async def stats_tube(self, tube: str) -> Statistics:
        """Return the statistics of a tube. NotFound."""
        return await self._ask(calls.stats_tube(tube))

    async def pause_tube(self, tube: str, pause_s: int) -> None:
        """Have no job of a tube reserved for so long; 0 ends a pause. NotFound."""
        await self._ask(calls.pause_tube(tube, pause_s))

    async def list_tubes(self) -> list[str]:
        """Return the names of all tubes."""
        return await self._ask(calls.list_tubes())

    # -- connections

    async def _ask(self, call: Call[T], tube: str | None = None) -> T:
        while True:
            channel = self._pool.main
            if channel is None or channel.is_lost or channel.is_full:
                channel = await self._pool.usable()
            try:
                return await channel.ask(call, tube)
            except NotSent:
                continue

    async def _ask_all(self, puts: list[Call[int]], tube: str) -> list[int | ClientError]:
        """Send several puts at once; those that were not sent before the connection ended are sent again."""
        while True:
            channel = await self._pool.usable()
            try:
                results = await channel.ask_all(puts, tube)
            except NotSent:
                continue
            if not isinstance(results[0], NotSent):  # then all were held back
                return results


def _reserve(until: float | None) -> Call[tuple[int, bytes]]:
    if until is None:
        return calls.RESERVE
    return calls.reserve(math.ceil(max(0, until - asyncio.get_running_loop().time())))


def connect(
    url: str,
    *,
    tls: ssl.SSLContext | bool | None = None,
    token: str | None = None,
    name: str | None = None,
    use: str = DEFAULT,
    watch: str | Iterable[str] = DEFAULT,
) -> Queue:
    """Return a client, to be entered with ``async with``. ValueError: an argument can't be.

    ``url``: ``beanlite://HOST:PORT``, ``beanlites://HOST:PORT`` with TLS, or ``unix:PATH``; of servers that take over
    from each other: ``beanlite://HOST:PORT,HOST:PORT``.
    ``tls``: the context for TLS; True: TLS with the authorities of the system.
    ``token``: shown to the server, over TLS and a Unix socket only.
    ``name``: what the client calls itself, for the people who look at the queue; beanstalkd is not told.
    ``use``, ``watch``: the tubes that are used and watched at first.

    Entering raises CannotConnect if no server can be reached, and Unauthorized if the token is not accepted. After that
    a connection that ends is made again, for as long as it takes, with waits that grow to some seconds.
    """
    return Queue(targets(url, tls=tls, token=token, name=name), use, watch)
