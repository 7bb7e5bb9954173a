"""Syncing a file without standing still."""

import asyncio
import contextlib
import os
from collections.abc import Callable
from functools import partial

Done = Callable[[Exception | None], None]


class KernelSync:
    """The kernel's own asynchronous sync: no thread, no GIL.

    Measured, 16 KiB written before each: 41 µs of our time, where fdatasync takes 65 to 90 and one in a thread 150 to
    200, at the same 240 µs from start to end. 50 clients in put, reserve, delete: 61 k ops/s, with fdatasync 52 k.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """ImportError: this is not Linux, or the kernel does not let us. SystemError: not any more."""
        from caio.linux_aio import Context, Operation  # noqa: PLC0415 - not to be had everywhere

        self._operation = Operation
        self._context = Context(max_requests=8)
        self._ended: list[tuple[Done, int]] = []
        loop.add_reader(self._context.fileno, self._on_ends)

    def __call__(self, descriptor: int, done: Done) -> None:
        """Write what the kernel has of a file to the medium; ``done`` hears in the loop that it is, or why not."""
        operation = self._operation.fdsync(descriptor)
        # Not ``done`` itself: caio would swallow what it raises. And no closure over the operation: that is garbage.
        operation.set_callback(partial(self._note_end, done))
        try:
            self._context.submit(operation)
        except (OSError, ValueError) as error:
            done(error)
        except SystemError as error:  # what caio makes of an errno
            done(OSError(*error.args))

    def _note_end(self, done: Done, result: int) -> None:
        self._ended.append((done, result))

    def _on_ends(self) -> None:
        with contextlib.suppress(BlockingIOError):  # the ends that this is about have been seen already
            self._context.poll()
        self.see_ends()

    def see_ends(self) -> None:
        """Tell of syncs that have ended, without waiting for the loop to do so."""
        self._context.process_events()
        ended, self._ended = self._ended, []
        for done, result in ended:
            number = (1 << 64) - result  # the kernel's negative errno, which caio takes for unsigned
            done(OSError(number, os.strerror(number)) if result else None)


class ThreadSync:
    """What has to do where the kernel can't."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def __call__(self, descriptor: int, done: Done) -> None:
        """As ``KernelSync``."""
        future = self._loop.run_in_executor(None, os.fdatasync, descriptor)
        future.add_done_callback(lambda ended: done(ended.exception()))  # type: ignore[arg-type]

    def see_ends(self) -> None:
        """Nothing to be seen before the loop does."""


def best_sync() -> KernelSync | ThreadSync:
    """The fastest way that works here; to be called in a loop."""
    loop = asyncio.get_running_loop()
    try:
        return KernelSync(loop)
    except (ImportError, OSError, SystemError):
        return ThreadSync(loop)
