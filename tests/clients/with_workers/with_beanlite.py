"""What `tests.clients.soak` does with beanlite's own client: ``python with_beanlite.py ROLE URL ARGUMENTS``.

Each role writes a line into a log for what it has done. SIGTERM ends it.
"""

import asyncio
import itertools
import json
import random
import signal
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

from beanlite.client import JobLost, PutUnknown, TimedOut, connect, connect_blocking

PAUSE_S = 0.25
TOGETHER = 20
FEW = 5  # jobs for more reserves, so that some wait


def note(word, key):
    with Path("log").open("ab", buffering=0) as log:
        log.write(f"{word} {key} {time.monotonic()}\n".encode())


def task(key):
    return json.dumps({"key": key, "kind": "quick", "cents": 3})


def tube(name, number):
    return f"{name}.{('mail', 'reports')[number % 2]}"


@contextmanager
def put_noted(key):
    """Note a put, and whether it was answered: if the program is ended amid it there may be a job."""
    try:
        yield
    except PutUnknown:
        note("unknown", key)
    except BaseException:
        note("unknown", key)
        raise
    else:
        note("put", key)


def do(job):
    key = json.loads(job.body)["key"]
    note("begin", key)
    note("end", key)
    return key


# -- blocking


def produce_blocking(url, *names):
    with connect_blocking(url) as queue:
        for number in itertools.count():
            for name in names:
                key = f"blocking-{number}"
                with put_noted(f"{name}/{key}"):
                    queue.put(task(key), tube(name, number))
            time.sleep(PAUSE_S)


def work_blocking(url, name):
    with connect_blocking(url, watch=[tube(name, 0), tube(name, 1)]) as queue:
        for job in queue.jobs(ahead=2):
            key = do(job)
            with suppress(JobLost):
                job.delete()
                note("deleted", key)


# -- asyncio


async def produce_asyncio(url, *names):
    async def put(queue, name, number):
        key = f"asyncio-{number}"
        with put_noted(f"{name}/{key}"):
            await queue.put(task(key), tube(name, number))

    async with connect(url) as queue:
        for number in itertools.count():
            await asyncio.gather(*(put(queue, name, number) for name in names))
            await asyncio.sleep(PAUSE_S)


async def work_asyncio(url, name):
    async def work(queue, ahead):
        async for job in queue.jobs(tube(name, 0), tube(name, 1), ahead=ahead):
            key = do(job)
            with suppress(JobLost):
                await job.delete()
                note("deleted", key)

    async with connect(url) as queue, asyncio.TaskGroup() as tasks:
        for ahead in (0, 0, 5):
            tasks.create_task(work(queue, ahead))


async def cancel_asyncio(url, seconds, cancels):
    """Cancel reserves at any moment; at the end all jobs of theirs are ready, and can be done."""
    chance = random.Random(1)
    rounds = max(1, int(cancels) // TOGETHER)
    async with connect(url, use="cancels", watch="cancels") as queue:
        await queue.put_many(["x"] * FEW, ttr_s=3600)
        for number in range(rounds):
            await asyncio.gather(*(cancel_one(queue, chance) for _ in range(TOGETHER)))
            note("cancelled", number)
            await asyncio.sleep(float(seconds) / rounds)
        async with asyncio.timeout(60):
            while not is_at_rest(await queue.stats_tube("cancels")):
                await asyncio.sleep(0.1)
        for number in range(FEW):
            await (await queue.reserve(30)).delete()
            note("end", number)


async def cancel_one(queue, chance):
    reserve = asyncio.create_task(queue.reserve(*chance.choice([(), (0,), (9,)])))
    for _ in range(chance.randrange(6)):
        await asyncio.sleep(0)
    if chance.random() < 0.3:
        await asyncio.sleep(chance.random() * 0.01)
    reserve.cancel()
    with suppress(asyncio.CancelledError, TimedOut, JobLost):
        await (await reserve).release(pri=1024)


def is_at_rest(stats):
    states = ("current-jobs-ready", "current-jobs-reserved", "current-waiting")
    return [stats[state] for state in states] == [FEW, 0, 0]


async def until_terminated(work):
    work = asyncio.ensure_future(work)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, work.cancel)
    with suppress(asyncio.CancelledError):
        await work


if __name__ == "__main__":
    role = globals()[sys.argv[1]]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    work = role(*sys.argv[2:])
    if asyncio.iscoroutine(work):
        asyncio.run(until_terminated(work))
