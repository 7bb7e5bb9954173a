"""Calls in threads, of which only some of a kind run at the same time."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


async def in_thread(free: asyncio.Semaphore, call: Callable[..., Result], *args: object) -> Result:
    """Return what a call returns that is made in a thread once one of the places is free.

    A request that is cancelled ends its wait, but a thread can't be stopped: the call keeps its place to its end.
    """
    await free.acquire()
    work = asyncio.get_running_loop().run_in_executor(None, call, *args)

    def end(work: asyncio.Future[Result]) -> None:
        free.release()
        if not work.cancelled():
            work.exception()  # perhaps nobody waits for it any more: asyncio would log it

    work.add_done_callback(end)
    return await asyncio.shield(work)
