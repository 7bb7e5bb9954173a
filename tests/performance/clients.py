"""Compares Python's clients in one run: what a command costs each of them on its core.

::

    python -m tests.performance.clients [--server beanstalkd] [--rounds 20]

The server has the first core and the clients the second one. Each round gives all clients a turn; of each client the
best and the median round are shown, as the CPU time of a put, or of a reserve and a delete, and as how many of these
there are in a second. ``aiostalk`` is compared if it is installed.
"""

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import greenstalk

from beanlite.client import BlockingQueue, Queue, connect, connect_blocking
from tests.support.servers import RunningServer, start_beanlite, start_beanstalkd

try:
    import aiostalk
except ImportError:
    aiostalk = None

BODY = b"x" * 100
JOBS = 500
TASKS = 50
AHEAD = 63


class Figures:
    """The rounds of each kind of work: CPU time and time in seconds, by its name."""

    def __init__(self):
        self._rounds: dict[str, list[tuple[float, float]]] = {}

    async def measure(self, name: str, work: Callable[[], Awaitable[object] | None]) -> None:
        """Do some work with all JOBS jobs."""
        began_s, busy_s = time.perf_counter(), time.process_time()
        doing = work()
        if doing is not None:
            await doing
        self._rounds.setdefault(name, []).append((time.process_time() - busy_s, time.perf_counter() - began_s))

    def print(self) -> None:
        """Print a line for each kind of work."""
        print(f"{'':44}{'us of CPU: best':>16}{'median':>8}{'per second: best':>18}{'median':>8}")
        for name, rounds in self._rounds.items():
            cpu_us = [cpu_s / JOBS * 1e6 for cpu_s, _ in rounds]
            rates = [JOBS / took_s for _, took_s in rounds]
            best, median = min(cpu_us), statistics.median(cpu_us)
            print(f"{name:44}{best:16.1f}{median:8.1f}{max(rates):18.0f}{statistics.median(rates):8.0f}")


async def with_greenstalk(figures: Figures, queue: greenstalk.Client) -> None:
    def put():
        for _ in range(JOBS):
            queue.put(BODY)

    def work():
        for _ in range(JOBS):
            queue.delete(queue.reserve())

    await figures.measure("put, one by one: greenstalk", put)
    await figures.measure("work, one by one: greenstalk", work)


async def with_blocking(figures: Figures, queue: BlockingQueue) -> None:
    def put():
        for _ in range(JOBS):
            queue.put(BODY)

    def put_many():
        queue.put_many([BODY] * JOBS)

    def work():
        for _ in range(JOBS):
            queue.reserve().delete()

    def work_ahead():
        for _, job in zip(range(JOBS), queue.jobs(ahead=AHEAD), strict=False):
            job.delete()

    await figures.measure("put, one by one: blocking", put)
    await figures.measure("work, one by one: blocking", work)
    await figures.measure("put, many: blocking", put_many)
    await figures.measure(f"work, {AHEAD} ahead: blocking", work_ahead)


async def with_aiostalk(figures: Figures, clients: list) -> None:
    async def put(client, jobs=JOBS):
        for _ in range(jobs):
            await client.put(BODY)

    async def work(client, jobs=JOBS):
        for _ in range(jobs):
            await client.delete(await client.reserve())

    async def together(what):
        await asyncio.gather(*(what(client, JOBS // TASKS) for client in clients))

    await figures.measure("put, one by one: aiostalk", lambda: put(clients[0]))
    await figures.measure("work, one by one: aiostalk", lambda: work(clients[0]))
    await figures.measure(f"put, {TASKS} tasks: aiostalk, {TASKS} clients", lambda: together(put))
    await figures.measure(f"work, {TASKS} tasks: aiostalk, {TASKS} clients", lambda: together(work))


async def with_asyncio(figures: Figures, queue: Queue) -> None:
    async def put(jobs=JOBS):
        for _ in range(jobs):
            await queue.put(BODY)

    async def work(jobs=JOBS):
        for _ in range(jobs):
            await (await queue.reserve()).delete()

    async def together(what):
        await asyncio.gather(*(what(JOBS // TASKS) for _ in range(TASKS)))

    async def work_ahead():
        tasks = set()
        left = JOBS
        async for job in queue.jobs(ahead=AHEAD):
            tasks.add(asyncio.create_task(job.delete()))
            left -= 1
            if left == 0 or len(tasks) > 2 * AHEAD:
                await asyncio.wait(tasks)
                tasks.clear()
            if left == 0:
                return

    await figures.measure("put, one by one: asyncio", put)
    await figures.measure("work, one by one: asyncio", work)
    await figures.measure(f"put, {TASKS} tasks: asyncio", lambda: together(put))
    await figures.measure(f"work, {TASKS} tasks: asyncio", lambda: together(work))
    await figures.measure("put, many: asyncio", lambda: queue.put_many([BODY] * JOBS))
    await figures.measure(f"work, {AHEAD} ahead: asyncio", work_ahead)


async def compare(server: RunningServer, rounds: int) -> Figures:
    """Give all clients their turns."""
    figures = Figures()
    url, place = f"beanlite://{server.host}:{server.port}", (server.host, server.port)
    async with AsyncExitStack() as stack:
        theirs = stack.enter_context(greenstalk.Client(place, encoding=None, use="g", watch="g"))
        blocking = stack.enter_context(connect_blocking(url, use="b", watch="b"))
        ours = await stack.enter_async_context(connect(url, use="c", watch="c"))
        others = []
        for _ in range(TASKS if aiostalk else 0):
            client = aiostalk.Client(place, encoding=None, use="a", watch="a")
            others.append(await stack.enter_async_context(client))
        for _ in range(rounds):
            await with_greenstalk(figures, theirs)
            await with_blocking(figures, blocking)
            if others:
                await with_aiostalk(figures, others)
            await with_asyncio(figures, ours)
    return figures


def main() -> None:
    """Compare, and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", choices=["beanlite", "beanstalkd"], default="beanlite")
    parser.add_argument("--rounds", type=int, default=20)
    asked = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[:1])  # the server inherits it
    with tempfile.TemporaryDirectory() as folder:
        start = start_beanstalkd if asked.server == "beanstalkd" else start_beanlite
        flags = [] if asked.server == "beanstalkd" else ["--no-journal"]
        with start(Path(folder), *flags) as server:
            os.sched_setaffinity(0, cores[-1:])
            asyncio.run(compare(server, asked.rounds)).print()


if __name__ == "__main__":
    main()
