"""The functions that workers of the tests call. Each writes a line into a log when it begins and one when it ends."""

import asyncio
import io
import multiprocessing
import os
import subprocess
import sys
import threading
import time
import types
from pathlib import Path

STREAMS = {"print": sys.stdout, "print-original": sys.__stdout__}


def note(word, key):
    with Path("log").open("ab", buffering=0) as log:
        log.write(f"{word} {key}\n".encode())


def is_over(kind, key):
    return kind != "waits" or Path(f"end-{key}").exists()


def act(job):
    """Return the kind of a job, and its key; or fail."""
    kind, key = job.text.split()
    note("begin", key)
    if kind == "fails":
        raise ValueError("as it is meant to")
    if kind == "exits":
        sys.exit("as it is meant to")
    if kind == "odd":
        raise Odd(5)
    if kind == "leaving":
        raise Leaving
    if kind == "noted":
        raise Noted
    return kind, key


class Odd(Exception):
    def __str__(self):
        return self.args[0]


class Leaving(Exception):
    def __str__(self):
        return str(sys.exit(3))


class Noted(Leaving):
    @property
    def __notes__(self):  # type: ignore[override]  # as odd as can be
        sys.exit(3)


def stay(key):
    note("stay", key)
    time.sleep(100)


def generate(job):
    yield act(job)


@types.coroutine
def rest():
    yield


async def holds_on():
    try:
        await rest()
    finally:
        sys.exit(3)


class Unbound:
    """A proxy of something that is gone."""

    @property  # type: ignore[misc]  # as odd as can be
    def __class__(self):
        raise RuntimeError("nothing is there")


def return_oddly(job):
    if job.text == "proxy":
        return Unbound()
    begun = holds_on()
    begun.send(None)
    return begun


async def return_oddly_async(job):
    return return_oddly(job)


def work(job):
    kind, key = act(job)
    if kind == "generates":
        return generate(job)
    if kind == "forks":
        child = multiprocessing.get_context("fork").Process(target=stay, args=(key,))
        child.start()
        while b"stay" not in Path("log").read_bytes():
            time.sleep(0.005)
        child.terminate()
        child.join(10)
        note("child", str(child.exitcode))
        child.kill()
    if kind == "leaves":
        child = multiprocessing.get_context("fork").Process(target=stay, args=(key,))
        child.start()
        note("left", str(child.pid))
        time.sleep(100)
    if kind == "threads":
        threading.Thread(target=time.sleep, args=(100,)).start()
    if kind == "prints":
        print(key, end="")  # noqa: T201 - as functions do
    while not is_over(kind, key):
        time.sleep(0.005)
    if kind == "buries":
        job.touch()
        job.bury(note=f"{key} of {job.stats()['tube']}")
    note("end", key)
    return work_async(job) if kind == "async" else key


async def work_async(job):
    kind, key = act(job)
    if kind == "generates":
        return generate(job)
    if kind == "async":
        return work_async(job)
    if kind == "threads":
        await asyncio.to_thread(time.sleep, 100)
    while kind == "stays":
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            note("cancelled", key)
    try:
        while not is_over(kind, key):
            await asyncio.sleep(0.005)
    except asyncio.CancelledError:
        note("cancelled", key)
        if key == "returns":
            return None
        raise
    if kind == "buries":
        await job.touch()
        await job.bury(note=f"{key} of {(await job.stats())['tube']}")
    note("end", key)
    return None


async def cancel_tasks(job):
    kind, _ = act(job)
    if kind == "own":
        asyncio.current_task().cancel()
    if kind == "slots":
        for task in asyncio.all_tasks():
            if task.get_coro().__qualname__ == "Worker._fill":
                task.cancel()
        await asyncio.sleep(100)


async def leave_task(job):
    task = asyncio.create_task(stay_on())
    task.add_done_callback(print)
    note("end", job.text)


async def stay_on():
    while True:
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            note("cancelled", "task")


async def work_in_task(job):
    await asyncio.gather(work_async(job))


def fail_late(job):
    work(job)
    raise ValueError("as it is meant to")


def print_on(key):
    for _ in range(50):
        print(key)  # noqa: T201 - likewise
        time.sleep(0.01)


def print_oddly(job):
    kind, key = act(job)
    if kind in STREAMS:
        print(key, file=STREAMS[kind])
    if kind == "floods":
        print(key * 1_000_000)  # noqa: T201 - likewise
    if kind == "waits":
        print(key)  # noqa: T201 - likewise
    if kind == "print-elsewhere":
        os.write(1, f"{key}\n".encode())
    if kind == "prints-on":
        threading.Thread(target=print_on, args=(key,)).start()
    if kind == "print-in-child":
        subprocess.run(["echo", key], check=True)
    while not is_over(kind, key):
        time.sleep(0.005)
    if kind == "closes":
        sys.stdout.close()
    if kind == "replaces":
        sys.stdout = io.StringIO()
        sys.stdout.close()
    note("end", key)


class Tee:
    """An object in the place of stdout that is no file."""

    def __init__(self, file):
        self._file = file

    def write(self, text):
        return self._file.write(text)

    def flush(self):
        self._file.flush()


class Caller:
    async def __call__(self, job):
        await work_async(job)


called = Caller()
