"""The client that blocks, for programs without asyncio.

::

    with connect_blocking("beanlite://127.0.0.1:11300", watch=["mail"]) as queue:
        for job in queue.jobs():
            print(job.text)
            job.delete()

It has one connection, which is for one thread at a time. If anything interrupts a command, be it Ctrl-C, the connection
is closed, and the jobs that were reserved on it go back; the next command makes a new one.
"""

import math
import random
import ssl
import time
from collections import deque
from collections.abc import Generator, Iterable
from contextlib import suppress
from types import TracebackType
from typing import Final, Self, TypeVar

from beanlite.client import calls
from beanlite.client.calls import AHEAD_MAX, BATCH_MAX, PRI, TTR_S, Call, PeekedJob, Statistics
from beanlite.client.dialogue import DEFAULT
from beanlite.client.errors import (
    CannotConnect,
    ClientError,
    ConnectionLost,
    NotIgnored,
    NotSent,
    SomePutsFailed,
    TimedOut,
    cannot_connect,
)
from beanlite.client.reserved_blocking import BlockingJob, give_back
from beanlite.client.target import Target, failed_in_row, targets, wait_s
from beanlite.client.wire import Wire, connect_wire

T = TypeVar("T")

_CLOSED: Final = "the queue is closed"


class BlockingQueue:
    """A client of one server; `connect_blocking` makes it."""

    def __init__(
        self, where: tuple[Target, ...], use: str, watch: str | Iterable[str], timeout_s: float | None
    ) -> None:
        calls.use(use)
        if timeout_s is not None and not timeout_s > 0:
            raise ValueError(f"timeout_s is more than 0, not {timeout_s}")
        self._targets = where
        """The one to be tried next comes first."""
        self._timeout_s = timeout_s
        self._used = use
        self._watched = calls.tubes(watch)
        self._left: deque[BlockingJob] = deque()
        """Jobs that go back before the next command."""
        self._is_closed = False
        self._failures = 0
        """How many connections in a row could not be made, or ended, before this one."""
        self._wire = self._begin()
        try:
            if use != DEFAULT:
                self._wire.ask(calls.use(use), use)
            self._wire.watch(self._watched)
        except ConnectionLost as error:
            raise cannot_connect(self._targets[0], error) from error
        except BaseException:
            self._wire.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection: jobs that are not finished are ready again."""
        self._is_closed = True
        self._wire.close()

    # -- putting

    def put(
        self, body: bytes | str, tube: str | None = None, *, pri: int = PRI, delay_s: int = 0, ttr_s: int = TTR_S
    ) -> int:
        """Put a job, and return its id; None: into the tube that `use` has named.

        PutUnknown: the connection ended before the answer came. JobTooBig, Draining, OutOfMemory, Unauthorized.
        """
        return self._ask(calls.put(body, pri, delay_s, ttr_s), self._used if tube is None else tube)

    def put_many(
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
        results: list[int | ClientError] = []
        for at in range(0, len(puts), BATCH_MAX):
            part = puts[at : at + BATCH_MAX]
            try:
                results += self._ask_all(part, self._used if tube is None else tube)
            except ClientError as error:  # there is no connection: the others would wait for one again, each in vain
                results += [error] * (len(puts) - at)
                break
        ids, errors = calls.outcome(results)
        if errors:
            raise SomePutsFailed(ids, errors)
        return [job_id for job_id in ids if job_id is not None]

    def use(self, tube: str) -> None:
        """Put into this tube from now on, also after the connection was made again. Unauthorized, OutOfMemory."""
        self._ask(calls.use(tube), tube)
        self._used = tube

    # -- reserving

    def watch(self, tube: str) -> int:
        """Reserve from this tube as well from now on, and return how many there are. Unauthorized, OutOfMemory."""
        return self._set_watched(self._watched | {tube})

    def ignore(self, tube: str) -> int:
        """Reserve from this tube no more, and return how many are left. NotIgnored: it is the only one."""
        others = self._watched - {tube}
        if not others:
            raise NotIgnored(f"{tube} is the only tube that is watched")
        return self._set_watched(others)

    def reserve(self, timeout_s: int | None = None) -> BlockingJob:
        """Return the next job of the tubes that are watched; wait for it so long, or as long as it takes.

        TimedOut: no job came. DeadlineSoon: a job that we have is in the last second of its ttr.
        """
        if timeout_s is not None:
            calls.check_wait(timeout_s)
        until = None if timeout_s is None else time.monotonic() + timeout_s
        (job,) = self._reserved(self._watched, until)
        return job

    def reserve_job(self, job_id: int) -> BlockingJob:
        """Reserve the job of this id, be it ready, delayed or buried. NotFound."""
        (job,) = self._reserved(self._watched, call=calls.reserve_job(job_id))
        return job

    def jobs(self, *tubes: str, ahead: int = 0) -> Generator[BlockingJob, None, None]:
        """Yield jobs of these tubes, or of those that are watched, as they come, without an end.

        Up to ``ahead`` jobs are reserved before their turn, which saves time if there are many short jobs. Their ttr
        runs meanwhile. When the loop ends they go back to the server.
        """
        calls.in_range("ahead", ahead, AHEAD_MAX)
        watched = calls.tubes(tubes or self._watched)
        waiting: deque[BlockingJob] = deque()
        try:
            while True:
                if not waiting:
                    waiting.extend(self._reserved(watched, ahead=ahead))
                job = waiting.popleft()
                if not job.is_lost:
                    yield job
        finally:
            if self._wire.is_asking:  # the garbage collector, or the handler of a signal, ends the loop amid a command
                self._left.extend(waiting)
            else:
                give_back(waiting)

    def _reserved(
        self,
        watched: frozenset[str],
        until: float | None = None,
        *,
        ahead: int = 0,
        call: Call[tuple[int, bytes]] | None = None,
    ) -> list[BlockingJob]:
        """Return the next job, or that which another call reserves, and those ahead that there are."""
        over: type[ClientError] = TimedOut
        if call is not None:
            until, over = self._until(), CannotConnect
        while True:
            try:
                wire = self._connection(until)
            except CannotConnect as error:
                if until is None or call is not None:
                    raise
                raise TimedOut(str(error)) from None
            left_s = 0 if call is not None else None if until is None else math.ceil(max(0, until - time.monotonic()))
            first = call or (calls.RESERVE if left_s is None else calls.reserve(left_s))
            try:
                if wire.watched != watched:
                    wire.watch(watched)
                results = wire.reserve_several(ahead + 1) if ahead else [wire.ask(first, None, left_s)]
            except NotSent:
                results = []
            if wire.is_lost:  # with all that it has reserved
                wire.raise_if_last(until, over)
                continue
            jobs = [BlockingJob(wire, *result) for result in results if not isinstance(result, ClientError)]
            wire.held += len(jobs)
            if jobs:
                return jobs
            assert isinstance(results[0], ClientError)
            raise results[0]

    def _set_watched(self, tubes: frozenset[str]) -> int:
        until = self._until()
        while True:
            wire = self._connection(until)
            try:
                wire.watch(tubes)
            except NotSent:
                wire.raise_if_last(until, CannotConnect)
                continue
            self._watched = tubes
            return len(tubes)

    # -- other jobs and tubes

    def delete(self, job_id: int) -> None:
        """Delete a job that nobody has reserved, or this client. NotFound."""
        self._ask(calls.delete(job_id))

    def kick(self, bound: int, tube: str | None = None) -> int:
        """Have up to ``bound`` buried jobs ready, or if there is none delayed ones, and return how many there were."""
        return self._ask(calls.kick(bound), self._used if tube is None else tube)

    def kick_job(self, job_id: int) -> None:
        """Have a buried or delayed job ready. NotFound: it is neither."""
        self._ask(calls.kick_job(job_id))

    def peek(self, job_id: int) -> PeekedJob:
        """Return a job without reserving it. NotFound."""
        return self._ask(calls.peek(job_id))

    def peek_ready(self, tube: str | None = None) -> PeekedJob:
        """Return the job of a tube that is next to be reserved. NotFound: there is none."""
        return self._ask(calls.PEEK_READY, self._used if tube is None else tube)

    def peek_delayed(self, tube: str | None = None) -> PeekedJob:
        """Return the job of a tube whose delay ends first. NotFound: there is none."""
        return self._ask(calls.PEEK_DELAYED, self._used if tube is None else tube)

    def peek_buried(self, tube: str | None = None) -> PeekedJob:
        """Return the job of a tube that was buried first. NotFound: there is none."""
        return self._ask(calls.PEEK_BURIED, self._used if tube is None else tube)

    def stats(self) -> Statistics:
        """Return the statistics of the server."""
        return self._ask(calls.stats())

    def stats_job(self, job_id: int) -> Statistics:
        """Return the statistics of a job. NotFound."""
        return self._ask(calls.stats_job(job_id))

    def stats_tube(self, tube: str) -> Statistics:
        """Return the statistics of a tube. NotFound."""
        return self._ask(calls.stats_tube(tube))

    def pause_tube(self, tube: str, pause_s: int) -> None:
        """Have no job of a tube reserved for so long; 0 ends a pause. NotFound."""
        self._ask(calls.pause_tube(tube, pause_s))

    def list_tubes(self) -> list[str]:
        """Return the names of all tubes."""
        return self._ask(calls.list_tubes())

    # -- the connection

    def _until(self) -> float | None:
        """Return when the time of a command that begins now is over."""
        return None if self._timeout_s is None else time.monotonic() + self._timeout_s

    def _ask(self, call: Call[T], tube: str | None = None) -> T:
        until = self._until()
        while True:
            wire = self._wire
            # What is in doubt when its answer is lost should not be sent in vain.
            if wire.is_lost or self._left or call[1].lost is not NotSent:
                wire = self._connection(until)
            try:
                return wire.ask(call, tube)
            except NotSent:
                wire.raise_if_last(until, CannotConnect)

    def _ask_all(self, puts: list[Call[int]], tube: str) -> list[int | ClientError]:
        until = self._until()
        while True:
            wire = self._connection(until)
            results = wire.ask_all(puts, tube)
            if not isinstance(results[0], NotSent):  # then all were held back
                return results
            wire.raise_if_last(until, CannotConnect)

    def _connection(self, until: float | None = None) -> Wire:
        """Return the connection, or a new one if it has ended; try that for so long."""
        wire = self._wire
        wire.notice_end()
        if self._left:
            left = deque(job for job in self._left if not job.is_lost)
            self._left.clear()
            give_back(left)  # which may close the connection
        if not wire.is_lost:
            return wire
        if until is None:
            until = self._until()
        failures = 0
        if wire.failure is not None:
            since_s = time.monotonic() - wire.made_at
            failures = failed_in_row(self._failures, since_s, has_answered=wire.has_answered)
        while True:
            if failures and not self._is_closed:
                chance = random.random()  # noqa: S311 - no secret
                pause_s = wait_s(failures, chance, len(self._targets))
                time.sleep(pause_s if until is None else max(0, min(pause_s, until - time.monotonic())))
            try:
                self._wire = self._connect()
            except CannotConnect:
                failures += 1
                if until is not None and time.monotonic() > until:
                    raise
            else:
                self._failures = failures
                return self._wire

    def _begin(self) -> Wire:
        """Return the first connection, to whichever server there is. CannotConnect; Unauthorized."""
        for _ in self._targets[1:]:
            with suppress(CannotConnect):
                return self._connect()
        return self._connect()

    def _connect(self) -> Wire:
        """Return a new connection. CannotConnect; Unauthorized; ConnectionLost: a signal's handler has closed it."""
        if self._is_closed:
            raise ConnectionLost(_CLOSED)
        try:
            wire = connect_wire(self._targets[0], self._timeout_s)
        except CannotConnect:
            self._targets = (*self._targets[1:], self._targets[0])
            raise
        if self._is_closed:  # meanwhile
            wire.close()
            raise ConnectionLost(_CLOSED)
        return wire


def connect_blocking(
    url: str,
    *,
    tls: ssl.SSLContext | bool | None = None,
    token: str | None = None,
    name: str | None = None,
    use: str = DEFAULT,
    watch: str | Iterable[str] = DEFAULT,
    timeout_s: float | None = None,
) -> BlockingQueue:
    """Connect, and return a client. ValueError: an argument can't be.

    ``url``: ``beanlite://HOST:PORT``, ``beanlites://HOST:PORT`` with TLS, or ``unix:PATH``; of servers that take over
    from each other: ``beanlite://HOST:PORT,HOST:PORT``.
    ``tls``: the context for TLS; True: TLS with the authorities of the system.
    ``token``: shown to the server, over TLS and a Unix socket only.
    ``name``: what the client calls itself, for the people who look at the queue; beanstalkd is not told.
    ``use``, ``watch``: the tubes that are used and watched at first.
    ``timeout_s``: how long to wait for a connection, and for an answer, beyond the time of a reserve; None: as long as
    it takes. A command that changes nothing is repeated until that is over, then once more, and raises CannotConnect.

    CannotConnect: no server can be reached. Unauthorized: the token is not accepted. After that a connection that ends
    is made again, with waits that grow to some seconds.
    """
    return BlockingQueue(targets(url, tls=tls, token=token, name=name), use, watch, timeout_s)
