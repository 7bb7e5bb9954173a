"""A broker for dramatiq, which keeps its messages as jobs.

::

    dramatiq.set_broker(BeanliteBroker("beanlite://127.0.0.1:11300"))

A queue is a tube. A delayed message waits in the server, in the tube of dramatiq's delay queue, until less than a
second is left of its delay. A message that is rejected is buried, with the traceback as its note. While a message is
held its job is touched; how long an actor may take is for dramatiq's own time limit.
"""

import asyncio
import contextlib
import logging
import os
import ssl
import threading
import time
import traceback
from collections.abc import Coroutine, Iterable
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar

from dramatiq import Broker, Consumer, Message, MessageProxy, Middleware
from dramatiq.common import current_millis, dq_name
from dramatiq.errors import ConnectionClosed, ConnectionFailed, QueueJoinTimeout, QueueNotFound

from beanlite.client import CannotConnect, ClientError, ConnectionLost, Job, JobLost, NotFound, Queue, connect

T = TypeVar("T")

_LOG: Final = logging.getLogger("beanlite.dramatiq")
# How long the server waits for a worker that is gone without a word.
_TTR_S: Final = 60
# Each message that is held takes a connection.
_PREFETCH_MAX: Final = 100
_STATES: Final = ("ready", "reserved", "delayed")


class BeanliteBroker(Broker):
    """A broker over one server."""

    def __init__(
        self,
        url: str,
        *,
        middleware: list[Middleware] | None = None,
        tls: ssl.SSLContext | bool | None = None,
        token: str | None = None,
        name: str | None = None,
    ) -> None:
        """``url``, ``tls``, ``token``, ``name``: as those of `beanlite.client.connect`."""
        super().__init__(middleware=middleware)
        self._make = lambda: connect(url, tls=tls, token=token, name=name)
        self._make()  # what is wrong with the address is told now
        self._lock = threading.Lock()
        self._pid = 0
        self._loop: asyncio.AbstractEventLoop
        self._queue: Queue

    def close(self) -> None:
        """Close all connections: what is held is ready again."""
        with self._lock:
            if self._pid == os.getpid():
                self._wait_for(self._queue.close())
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._pid = 0

    def run(self, command: "Coroutine[Any, Any, T]") -> T:
        """Run what needs the client in its thread, and wait for it. ConnectionFailed, ConnectionClosed."""
        try:
            return self._wait_for(command)
        except ConnectionLost as error:
            raise ConnectionClosed(error) from error

    @property
    def client(self) -> Queue:
        """The client; after a fork it is another one. ConnectionFailed."""
        with self._lock:
            if self._pid != os.getpid():
                loop = asyncio.new_event_loop()
                threading.Thread(target=loop.run_forever, name="beanlite", daemon=True).start()
                self._loop = loop
                queue = self._make()
                try:
                    self._wait_for(queue.__aenter__())
                except CannotConnect as error:
                    loop.call_soon_threadsafe(loop.stop)
                    raise ConnectionFailed(error) from error
                self._queue = queue
                self._pid = os.getpid()
            return self._queue

    def _wait_for(self, command: "Coroutine[Any, Any, T]") -> T:
        return asyncio.run_coroutine_threadsafe(command, self._loop).result()

    # -- queues

    def declare_queue(self, queue_name: str) -> None:
        """Declare a queue, and its delay queue."""
        if queue_name in self.queues:
            return
        self.emit_before("declare_queue", queue_name)
        self.queues[queue_name] = None
        self.emit_after("declare_queue", queue_name)
        delay_name = dq_name(queue_name)
        self.delay_queues.add(delay_name)
        self.emit_after("declare_delay_queue", delay_name)

    def _check(self, queue_name: str) -> None:
        if queue_name not in self.queues and queue_name not in self.delay_queues:
            raise QueueNotFound(queue_name)

    def enqueue(self, message: "Message[Any]", *, delay: int | None = None) -> "Message[Any]":
        """Put a message, after a delay in milliseconds. ConnectionClosed: it may be there, or may not."""
        queue_name, delay_s = message.queue_name, 0
        if delay is not None:
            queue_name, delay_s = dq_name(queue_name), delay // 1000
            message = message.copy(queue_name=queue_name, options={"eta": current_millis() + delay})
        self._check(queue_name)
        self.emit_before("enqueue", message, delay)
        self.run(self.client.put(message.encode(), queue_name, delay_s=delay_s, ttr_s=_TTR_S))
        self.emit_after("enqueue", message, delay)
        return message

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 30_000) -> "BeanliteConsumer":
        """Return what gives out the messages of a queue; it waits so many milliseconds for one."""
        self._check(queue_name)
        return BeanliteConsumer(self, queue_name, min(prefetch, _PREFETCH_MAX), timeout)

    def flush(self, queue_name: str) -> None:
        """Delete the messages of a queue that nobody holds, delayed and buried ones included."""
        for tube in (queue_name, dq_name(queue_name)):
            for peek in (self.client.peek_ready, self.client.peek_delayed, self.client.peek_buried):
                with contextlib.suppress(NotFound):
                    while True:
                        self.run(self.client.delete(self.run(peek(tube)).id))

    def flush_all(self) -> None:
        """Do so for all queues that are declared."""
        for queue_name in self.queues:
            self.flush(queue_name)

    def join(self, queue_name: str, *, timeout: int | None = None) -> None:
        """Wait until a queue is empty, for so many milliseconds at most. QueueJoinTimeout."""
        self._check(queue_name)
        end_s = None if timeout is None else time.monotonic() + timeout / 1000
        empty = 0
        while empty < 2:  # a message may have gone from one to the other meanwhile
            empty = 0 if any(map(self._has_messages, (dq_name(queue_name), queue_name))) else empty + 1
            if end_s is not None and time.monotonic() > end_s:
                raise QueueJoinTimeout(queue_name)
            time.sleep(0.01)

    def _has_messages(self, tube: str) -> bool:
        try:
            stats = self.run(self.client.stats_tube(tube))
        except NotFound:
            return False
        return any(stats[f"current-jobs-{state}"] for state in _STATES)


class BeanliteMessage(MessageProxy):
    """A message, and its job."""

    def __init__(self, job: Job) -> None:
        super().__init__(Message.decode(job.body))
        self.job = job


class BeanliteConsumer(Consumer):
    """What gives out the messages of a queue."""

    def __init__(self, broker: BeanliteBroker, tube: str, prefetch: int, timeout_ms: int) -> None:
        self._broker = broker
        self._tube = tube
        self._timeout_s = timeout_ms / 1000
        self._jobs: SimpleQueue[Job | Exception] = SimpleQueue()
        """What was reserved and not given out; and why no more will come."""
        self._held: set[Job] = set()
        self._room = asyncio.Semaphore(prefetch)
        client = broker.client
        self._tasks = broker.run(self._begin(client))

    async def _begin(self, client: Queue) -> "list[asyncio.Task[None]]":
        return [asyncio.create_task(self._reserve(client)), asyncio.create_task(self._touch())]

    async def _reserve(self, client: Queue) -> None:
        jobs = client.jobs(self._tube)
        try:
            while True:
                await self._room.acquire()
                job = await anext(jobs)
                self._held.add(job)
                self._jobs.put(job)
        except ClientError as error:
            self._jobs.put(ConnectionClosed(error))

    async def _touch(self) -> None:
        while True:
            await asyncio.sleep(_TTR_S / 3)
            for job in list(self._held):
                with contextlib.suppress(ClientError):  # told when it is finished
                    await job.touch()

    def __next__(self) -> BeanliteMessage | None:
        try:
            job = self._jobs.get(timeout=self._timeout_s)
        except Empty:
            return None
        if isinstance(job, Exception):
            raise job
        return BeanliteMessage(job)

    def ack(self, message: BeanliteMessage) -> None:  # type: ignore[override, unused-ignore]
        """Delete a message that is done."""
        self._broker.run(self._finish(message.job, message.job.delete()))

    def nack(self, message: BeanliteMessage) -> None:  # type: ignore[override, unused-ignore]
        """Bury a message that has failed for good."""
        error = message._exception  # noqa: SLF001 - where dramatiq keeps it
        note = "" if error is None else "".join(traceback.format_exception(error))
        self._broker.run(self._finish(message.job, message.job.bury(note=note)))

    def requeue(self, messages: "Iterable[BeanliteMessage]") -> None:  # type: ignore[override, unused-ignore]
        """Give back messages."""
        for message in messages:
            self._broker.run(self._finish(message.job, message.job.release()))

    async def _finish(self, job: Job, command: "Coroutine[Any, Any, None]") -> None:
        self._held.discard(job)
        self._room.release()
        try:
            await command
        except (JobLost, NotFound) as lost:
            _LOG.warning("a message is not ours any more, and will come again: %s", lost)

    def close(self) -> None:
        """Give back what was not given out."""
        self._broker.run(self._close())

    async def _close(self) -> None:
        for task in self._tasks:
            task.cancel()
        while not self._jobs.empty():
            job = self._jobs.get()
            if isinstance(job, Job):
                with contextlib.suppress(ClientError):
                    await job.release()
