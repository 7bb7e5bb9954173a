"""Syncing a file without standing still."""

import asyncio
import contextlib
import errno
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Final

Done = Callable[[Exception | None], None]

LATE_S: Final = 0.002  # syncs aside that take longer may wait for a core, a matter of some 3 ms: the other way is tried
STALL_S: Final = 0.02  # but nobody is to be held up for so long by a sync on the spot
BEGIN_BELOW: Final = 0.6  # of what those aside take: then those on the spot are worth it, and ...
END_ABOVE: Final = 0.75  # ... then no more
TRIALS: Final = 6  # syncs in a row: so many are late before a trial, and a trial ends when the half have failed
STEP: Final = 1.125  # by which what is typical follows each sync, up or down: a stall counts for no more than that
RETRY_S: Final = 0.1  # from one trial to the next; twice as long each time that it was in vain, up to ...
RETRY_MAX_S: Final = 2.0


class KernelSync:
    """The kernel's own asynchronous sync: no thread, no GIL.

    Measured, 16 KiB written before each: 41 µs of our time, where fdatasync takes 65 to 90 and one in a thread 150 to
    200, at the same 240 µs from start to end. 50 clients in put, reserve, delete: 61 k ops/s, with fdatasync 52 k.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """ImportError: this is not Linux, or the kernel does not let us. SystemError: not any more."""
        from caio.linux_aio import Context, Operation  # noqa: PLC0415 - not to be had everywhere

        self._loop = loop
        self._operation = Operation
        self._context = Context(max_requests=8)
        self._ended: list[tuple[Done, int]] = []
        loop.add_reader(self._context.fileno, self._on_ends)

    def __call__(self, descriptor: int, done: Done) -> None:
        """Write what the kernel has of a file to the medium; ``done`` hears in the loop that it is, or why not.

        A sync that the kernel does not take, for want of room or for whatever reason, is done on the spot: that says
        for sure whether it can be done at all, and ``done`` hears of it before this returns.
        """
        operation = self._operation.fdsync(descriptor)
        # Not ``done`` itself: caio would swallow what it raises. And no closure over the operation: that is garbage.
        operation.set_callback(partial(self._note_end, done))
        try:
            begun = self._context.submit(operation) == 1
        except (OSError, OverflowError, SystemError, ValueError):  # what caio makes of an errno
            begun = False
        if not begun:
            done(_sync_here(descriptor))

    def _note_end(self, done: Done, result: int) -> None:
        self._ended.append((done, result))

    def _on_ends(self) -> None:
        with contextlib.suppress(BlockingIOError):  # the ends that this is about have been seen already
            self._context.poll()
        self.see_ends()

    def see_ends(self) -> None:
        """Tell of syncs that have ended, without waiting for the loop to do so."""
        try:
            self._context.process_events()
        except SystemError as error:
            if error.args[:1] != (errno.EINTR,):
                raise
            # A signal, or a process that was stopped and goes on. The kernel has not told of any end, but what woke the
            # loop to hear of one may be used up.
            self._loop.call_soon(self.see_ends)
            return
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


def aside_sync() -> KernelSync | ThreadSync:
    """The best way to sync aside that works here; to be called in a loop."""
    loop = asyncio.get_running_loop()
    try:
        return KernelSync(loop)
    except (ImportError, OSError, SystemError):
        return ThreadSync(loop)


class SoonestSync:
    """Syncs aside, or on the spot while that is much sooner: beside processes that keep the core busy.

    A sync aside then waits some milliseconds for the core, as does the loop for its end; who calls fdatasync is let
    back in at once. Beside an endless loop on the same core that makes 7 times the speed of one client in put, reserve,
    delete, 3.4 of 20, 2 of 50, the same of 200. Syncing on the spot alone would have 0.8 to 0.95 on a calm core.
    """

    def __init__(self, aside: Callable[[int, Done], None], clock: Callable[[], float] = time.monotonic) -> None:
        """``clock`` tells seconds."""
        self._aside = aside
        self._clock = clock
        self._here = False
        self._late = 0
        """How many syncs aside in a row have been late."""
        self._typical_s = 0.0
        """What a sync takes, the way that is not just a trial: about the median of the latest, whatever the worst."""
        self._won = self._lost = 0
        """How many syncs of the trial that goes on have been quick enough, and how many not; 0 and 0: none goes on."""
        self._retry_s = RETRY_S
        self._retry_at_s = 0.0

    def __call__(self, descriptor: int, done: Done) -> None:
        """As ``KernelSync``, but ``done`` may be told before this returns."""
        began_s = self._clock()
        here = self._here is not self._try_other(began_s)

        def ended(error: Exception | None) -> None:
            now_s = self._clock()
            if here is self._here:
                self._learn(now_s - began_s, now_s)
            else:
                self._learn_of_other(now_s - began_s, now_s)
            done(error)

        if here:
            ended(_sync_here(descriptor))
        else:
            self._aside(descriptor, ended)

    def _try_other(self, now_s: float) -> bool:
        if self._won or self._lost:
            return True
        return now_s >= self._retry_at_s and (self._here or (self._late >= TRIALS and self._typical_s < STALL_S))

    def _learn(self, took_s: float, now_s: float) -> None:
        if not self._typical_s:
            self._typical_s = took_s
        self._typical_s *= STEP if took_s > self._typical_s else 1 / STEP
        # Each of them late: a disk that is slow now and then is no busy core.
        self._late = self._late + 1 if took_s > LATE_S else 0
        if self._here and took_s > STALL_S:
            self._turn_to(here=False, took_s=took_s, now_s=now_s)

    def _learn_of_other(self, took_s: float, now_s: float) -> None:
        if took_s <= (max(LATE_S, self._typical_s / END_ABOVE) if self._here else BEGIN_BELOW * self._typical_s):
            self._won += 1
        else:
            self._lost += 1
        if self._lost == TRIALS // 2 or (not self._here and took_s > STALL_S):
            self._won = self._lost = 0
            self._retry_s = min(2 * self._retry_s, RETRY_MAX_S)
            self._retry_at_s = now_s + self._retry_s
        elif self._won + self._lost == TRIALS:
            self._turn_to(here=not self._here, took_s=took_s, now_s=now_s)

    def _turn_to(self, *, here: bool, took_s: float, now_s: float) -> None:
        self._here = here
        self._typical_s = took_s
        self._late = self._won = self._lost = 0
        self._retry_s = RETRY_S
        self._retry_at_s = now_s + RETRY_S


def _sync_here(descriptor: int) -> OSError | None:
    try:
        os.fdatasync(descriptor)
    except OSError as error:
        return error
    return None
