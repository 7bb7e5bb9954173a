"""A worker: reserves jobs, calls a function for each, and touches the job meanwhile.

A *slot* is a task that has one job in hand at most; the next one is reserved when that is finished. A function that is
not async is called in one of as many threads.
"""

import asyncio
import contextlib
import os
import random
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, NamedTuple

from beanlite.client import CannotConnect, ClientError, ConnectionLost, Job, NotFound, Queue, Statistics, Unauthorized
from beanlite.client.target import wait_s
from beanlite.core.phrases import age
from beanlite.errors import BeanliteError
from beanlite.host import log
from beanlite.host.signals import STOPS
from beanlite.host.stderr import last_words
from beanlite.worker.function import CallInThread, JobInThread, call_async, is_async, line_of
from beanlite.worker.outcomes import GIVEN_BACK, LOST, NOT_NOW, OWN, JobOutcome, finish, tell_of_lost

# A job that takes no longer is not touched at all.
_FIRST_TOUCH_S: Final = 0.25
# What is cancelled at the end of the grace has this time to end, and what is printed then to be read.
_CANCEL_S: Final = 1.0
# While so many lines are not written no job is reserved.
_UNWRITTEN_MAX: Final = 100
# If none of them is written for so long, that is told.
_UNREAD_S: Final = 1.0
# So many reasons why there is no server are told.
_REASONS_MAX: Final = 10
# What the function has left behind has what remains of the grace, and this at least.
_LEFT_S: Final = 3.0
# A sleep takes no times of centuries.
_SLEEP_MAX_S: Final = 1e9


class Limits(NamedTuple):
    """How many jobs at a time, how long each, how often, and how long those in hand at the stop."""

    concurrency: int
    timeout_s: float
    tries: int
    grace_s: float


class Worker:
    """A worker; `run` is its life."""

    def __init__(
        self,
        function: Callable[[Any], Any],
        connect: Callable[[], Queue],
        limits: Limits,
        record: Callable[[JobOutcome], Future[None]],
    ) -> None:
        """``record`` is called with each job that was begun, and returns what is done when that is written."""
        self._function = function
        self._is_async = is_async(function)
        self._connect = connect
        self._limits = limits
        self._record = record
        self._threads = ThreadPoolExecutor(limits.concurrency, "job")
        self._calls: set[Future[BaseException | None] | asyncio.Task[BaseException | None]] = set()
        """The calls of the function that have not ended."""
        self._idle: set[asyncio.Task[Any]] = set()
        """The tasks without a job in hand: they wait for a server, for a job, or for a call that hangs."""
        self._hung = 0
        self._unwritten: deque[asyncio.Future[None]] = deque()
        """The records that are not written yet, the oldest first."""
        self._is_unread_told = False
        self._stopped = asyncio.Event()
        self._stopped_at_s = time.monotonic()
        self._error: Exception | None = None
        self.jobs_in_hand = 0
        self._queue: Queue | None = None

    @property
    def is_stopping(self) -> bool:
        """Whether no more jobs are begun."""
        return self._stopped.is_set()

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection to the server."""
        return self._queue is not None and self._queue.is_connected

    async def run(self) -> int:
        """Work until a signal, and return the exit code. BeanliteError: the server refuses something.

        Threads and tasks that the function has left behind do not keep the process longer than the grace.
        """
        try:
            exit_code = await self._live()
        except Exception as error:
            self._cut_off_in_time(error, 1)
            raise
        self._cut_off_in_time(None, exit_code)
        return exit_code

    async def _live(self) -> int:
        loop = asyncio.get_running_loop()
        for number in STOPS:
            loop.add_signal_handler(number, self._hear)
        os.register_at_fork(after_in_child=_leave_signals)
        opening = asyncio.create_task(self._open())
        self._idle.add(opening)
        await asyncio.wait({opening})
        self._idle.discard(opening)
        if opening.cancelled():
            return 0
        try:
            queue = opening.result()
        except ClientError as refusal:
            raise _in_our_words(refusal) from refusal
        log.info("reserving jobs", at_a_time=self._limits.concurrency)
        slots = [asyncio.create_task(self._fill(queue)) for _ in range(self._limits.concurrency)]
        await self._stopped.wait()
        late = await self._end(slots)
        await queue.close()
        await self._wait_for_lines()
        error = None if self._error is None else _in_our_words(self._error)
        exit_code = 1 if error is not None or late else 0
        if self._calls or late or self._unwritten:
            self._cut_off(error, exit_code)
        if error is not None:
            raise error
        return exit_code

    async def _end(self, slots: list[asyncio.Task[None]]) -> set[asyncio.Task[None]]:
        """Let the jobs in hand be finished within the grace, and return the slots of those that are not."""
        _, late = await asyncio.wait(slots, timeout=self._limits.grace_s)
        for slot in late:
            slot.cancel()
        if late:
            log.warning("jobs are given back unfinished", jobs=len(late), grace_seconds=self._limits.grace_s)
            calls = list(self._calls)  # at once: threads take theirs out
            await asyncio.wait({*late, *(each for each in calls if isinstance(each, asyncio.Task))}, timeout=_CANCEL_S)
        return late

    async def _wait_for_lines(self) -> None:
        """Let what becomes of the jobs be written within the grace."""
        left_s = max(_CANCEL_S, self._stopped_at_s + self._limits.grace_s - time.monotonic())
        if self._unwritten:
            await asyncio.wait(self._unwritten, timeout=left_s)
        if self._unwritten:
            log.warning("stdout is not read, and lines are lost", lines=len(self._unwritten))

    def _cut_off_in_time(self, error: Exception | None, exit_code: int) -> None:
        """End the process when the grace is over, if it has not ended by itself then."""
        loop = asyncio.get_running_loop()
        left_s = max(_LEFT_S, self._stopped_at_s + self._limits.grace_s - time.monotonic())
        left_s = min(left_s, _SLEEP_MAX_S)

        def cut_off() -> None:
            time.sleep(left_s)
            log.warning("what the function has left behind does not end, and is cut off")
            self._cut_off(None if loop.is_closed() else error, exit_code)  # once it is closed the error is told

        threading.Thread(target=cut_off, daemon=True).start()

    def _cut_off(self, error: Exception | None, exit_code: int) -> None:
        """End the process, in which something goes on, or may go on, that can't be stopped."""
        if error is not None:
            last_words(f"beanlite: {error}")
        flushing = threading.Thread(target=_flush, daemon=True)
        flushing.start()
        flushing.join(_CANCEL_S)  # nobody may read it
        os._exit(exit_code)

    # -- stopping

    def _hear(self) -> None:
        """Stop; another signal ends the process at once, and the server gives its jobs to others."""
        for number in STOPS:
            asyncio.get_running_loop().remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)
        log.info("stopping", jobs_in_hand=self.jobs_in_hand, grace_seconds=self._limits.grace_s)
        self.stop()

    def stop(self, error: Exception | None = None) -> None:
        """Begin no more jobs."""
        if not self._stopped.is_set():
            self._error = error
            self._stopped_at_s = time.monotonic()
            self._stopped.set()
            for task in self._idle:
                task.cancel()

    # -- working

    async def _open(self) -> Queue:
        """Return a client of the server, however long it takes. ClientError: the server refuses it."""
        failures = 0
        told: set[str] = set()
        while True:
            try:
                queue = await self._connect().__aenter__()
            except (CannotConnect, ConnectionLost, *NOT_NOW) as error:
                reason = str(error)
                if reason not in told and len(told) < _REASONS_MAX:  # it may be another one by now
                    told.add(reason)
                    log.warning("waiting for the server", reason=reason)
                failures += 1
                await asyncio.sleep(wait_s(failures, random.random()))  # noqa: S311 - no secret
            else:
                self._queue = queue
                return queue

    async def _fill(self, queue: Queue) -> None:
        """Be a slot."""
        task = asyncio.current_task()
        assert task is not None
        refusals = 0
        try:
            while not self.is_stopping:
                self._idle.add(task)
                await self._wait_for_room()
                refusal = await self._do_one(queue, task)
                if refusal is None:
                    refusals = 0
                elif not self.is_stopping:
                    if not refusals:
                        log.warning("waiting for the server", reason=str(refusal))
                    refusals += 1
                    self._idle.add(task)
                    await asyncio.sleep(wait_s(refusals, random.random()))  # noqa: S311 - no secret
        except asyncio.CancelledError:
            self.stop(BeanliteError("the function has cancelled a task of the worker"))  # unless we have stopped
            raise
        except Exception as error:  # noqa: BLE001 - it ends the worker, with the jobs in hand finished
            self.stop(error)

    async def _do_one(self, queue: Queue, task: asyncio.Task[Any]) -> ClientError | None:
        """Reserve a job and do it; return the refusal of a server that can't do a part of that now.

        A job that could not be finished is ready again when nothing refers to it any more.
        """
        try:
            job = await queue.reserve()
            self._idle.discard(task)
            return await self._work(job, task)
        except NOT_NOW as refusal:
            return refusal.with_traceback(None)  # its frames have the job

    async def _wait_for_room(self) -> None:
        """Wait while too many lines are not written: their reader is slow, or does not read at all."""
        while len(self._unwritten) >= _UNWRITTEN_MAX:
            _, unread = await asyncio.wait({self._unwritten[0]}, timeout=_UNREAD_S)
            if unread and not self._is_unread_told:
                self._is_unread_told = True
                log.warning("waiting until stdout is read", lines=len(self._unwritten))

    async def _work(self, job: Job, task: asyncio.Task[Any]) -> ClientError | None:
        """Call the function for a job, and finish that; return the refusal if it can't be. Raises NOT_NOW before."""
        try:
            stats = await job.stats()
        except (ConnectionLost, NotFound) as lost:
            tell_of_lost(job, lost)
            return None
        if self.is_stopping:
            return None
        running, call = self._begin(job)
        began_s = time.monotonic()
        outcome, error, refusal, ends = GIVEN_BACK, None, None, False
        self.jobs_in_hand += 1
        touching = asyncio.create_task(_keep(job, int(stats["ttr"])))
        try:
            done, _ = await asyncio.wait({running}, timeout=self._limits.timeout_s)
            error = _error_of(running) if done else await self._late(running, call)
            touching.cancel()
            ends = True
            outcome = await finish(job, stats, error, self._limits.tries)
        except NOT_NOW as lost:
            outcome, refusal = LOST, lost.with_traceback(None)
            tell_of_lost(job, lost, tube=stats["tube"])
        except asyncio.CancelledError:
            running.cancel()
            if job.is_finished:  # by a command whose reply we have not heard, unless the function did it
                outcome = LOST if ends else OWN
            raise
        finally:
            touching.cancel()
            self.jobs_in_hand -= 1
            writing = asyncio.wrap_future(
                self._record(_outcome(job, stats, outcome, time.monotonic() - began_s, error))
            )
            self._unwritten.append(writing)
            writing.add_done_callback(self._unwritten.remove)
        if not running.done():
            await self._wait_for_end(running, task)
        return refusal

    def _begin(self, job: Job) -> "tuple[asyncio.Future[BaseException | None], CallInThread | None]":
        """Call the function, and return what will be its error; and the call if it is one in a thread."""
        if self._is_async:
            task = asyncio.create_task(call_async(self._function, job))
            self._calls.add(task)
            task.add_done_callback(self._calls.discard)
            return task, None
        call = CallInThread(self._function, JobInThread(job, asyncio.get_running_loop()))
        future = self._threads.submit(call)
        self._calls.add(future)
        future.add_done_callback(self._calls.discard)
        return asyncio.wrap_future(future), call

    async def _late(self, running: "asyncio.Future[BaseException | None]", call: CallInThread | None) -> TimeoutError:
        """Stop a function that has had its time, if that is possible, and return the error of its job."""
        error = TimeoutError(f"not done within {age(self._limits.timeout_s)}")
        if call is not None:
            error.add_note(f"The thread can't be stopped, and is at:\n{call.stack()}")
            return error
        running.cancel()
        done, _ = await asyncio.wait({running}, timeout=_CANCEL_S)
        if done:
            error.__cause__ = _error_of(running)
        else:
            error.add_note("It was cancelled, and goes on.")
        return error

    async def _wait_for_end(self, running: "asyncio.Future[BaseException | None]", task: asyncio.Task[Any]) -> None:
        """Wait for a call whose job is given up; a worker with no other slot ends."""
        self._hung += 1
        slots = self._limits.concurrency
        if self._hung == slots:
            self.stop(BeanliteError(f"all calls of the function ({slots}) have taken longer than --timeout"))
        if not self.is_stopping:
            self._idle.add(task)
            await asyncio.wait({running})
            self._hung -= 1


def _error_of(running: "asyncio.Future[BaseException | None]") -> BaseException | None:
    """Return the error of a call that has ended; a function may have cancelled its own task."""
    if running.cancelled():
        return asyncio.CancelledError("the function has cancelled its own task")
    return running.result()


def _flush() -> None:
    with contextlib.suppress(Exception):  # its reader is gone, or whatever the function has made of it
        sys.stdout.flush()


def _leave_signals() -> None:
    """Let signals end a fork of this process, such as one of multiprocessing: the handlers would tell this one."""
    signal.set_wakeup_fd(-1)
    for number in STOPS:
        signal.signal(number, signal.SIG_DFL)


async def _keep(job: Job, ttr_s: int) -> None:
    """Touch a job in time."""
    pause_s = _FIRST_TOUCH_S
    while True:
        await asyncio.sleep(pause_s)
        try:
            await job.touch()
        except NOT_NOW:
            pass
        except ClientError as error:
            if not job.is_finished:
                log.warning("job is not ours any more, and goes on", id=job.id, reason=str(error))
            return
        pause_s = ttr_s / 2


def _outcome(job: Job, stats: Statistics, outcome: str, seconds: float, error: BaseException | None) -> JobOutcome:
    what = None if error is None else line_of(error)
    return JobOutcome(job.id, str(stats["tube"]), outcome, round(seconds, 6), int(stats["reserves"]), what)


def _in_our_words(error: Exception) -> Exception:
    if isinstance(error, Unauthorized):
        return BeanliteError(f"the server refuses: {error}; a worker needs the role worker in its tubes")
    if isinstance(error, ClientError):
        return BeanliteError(f"the server can't be worked with: {error}")
    return error
