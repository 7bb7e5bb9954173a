"""Syncs a file to the disk without keeping clients waiting longer than necessary."""

import asyncio
import errno
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

Report = Callable[[Exception | None], None]
"""Called with None when a file has been synced to the disk, or with the error."""

# A background sync that takes longer may have waited for a core, which takes some milliseconds.
LATE_S: Final = 0.002
# An inline sync that blocks all clients for longer than this ends the use of inline syncs.
STALL_S: Final = 0.02
# Inline syncs come into use when they take less than this fraction of the time of background syncs ...
BEGIN_BELOW: Final = 0.6
# ... and go out of use when they take more than this fraction.
END_ABOVE: Final = 0.75
# This many late syncs in a row start a trial of the other method, and a trial takes this many syncs.
TRIALS: Final = 6
# The factor by which each sync moves the typical time up or down, so that a single stall has no greater effect.
STEP: Final = 1.125
# The time from one trial to the next, which doubles after each unsuccessful trial, and its maximum.
RETRY_S: Final = 0.1
RETRY_MAX_S: Final = 2.0


class BackgroundSync(Protocol):
    """A method of syncing that does not block the loop."""

    def __call__(self, descriptor: int, report: Report) -> None:
        """Sync a file's data; ``report`` is called at the end, in the loop or before this returns."""

    def poll(self) -> None:
        """Report completed syncs at once, without waiting for the loop to do so."""


class KernelSync:
    """The kernel's own asynchronous sync, which needs no thread and therefore does not wait for the GIL."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Set up the kernel's interface. ImportError, SystemError: it is not available, or not permitted, here."""
        from caio.linux_aio import Context, Operation  # noqa: PLC0415 - not available everywhere

        self._loop = loop
        self._operation = Operation
        self._context = Context(max_requests=8)
        self._ends: list[tuple[Report, int]] = []
        loop.add_reader(self._context.fileno, self._on_ends)

    def __call__(self, descriptor: int, report: Report) -> None:
        """Sync a file's data; see ``BackgroundSync``.

        If the kernel does not accept the request, for want of room or any other reason, the file is synced inline,
        which shows for certain whether it can be synced at all.
        """
        operation = self._operation.fdsync(descriptor)
        # Not ``report`` itself, since caio swallows its exceptions; and no closure over the operation, which would be a
        # reference cycle that only the garbage collector can free.
        operation.set_callback(partial(self._note_end, report))
        try:
            begun = self._context.submit(operation) == 1
        except (OSError, OverflowError, SystemError, ValueError):  # the exceptions to which caio converts an errno
            begun = False
        if not begun:
            report(_sync_inline(descriptor))

    def _note_end(self, report: Report, result: int) -> None:
        self._ends.append((report, result))

    def _on_ends(self) -> None:
        try:  # noqa: SIM105 - it would take as long as the rest
            self._context.poll()
        except BlockingIOError:  # ``poll`` has already handled the event
            pass
        self.poll()

    def poll(self) -> None:
        """Report completed syncs."""
        try:
            self._context.process_events()
        except SystemError as error:
            if error.args[:1] != (errno.EINTR,):
                raise
            # A signal has arrived, or the process was stopped and continued. The event that would wake the loop may
            # have been consumed, although the kernel has not reported any completion.
            self._loop.call_soon(self.poll)
            return
        ends, self._ends = self._ends, []
        for report, result in ends:
            report(_error_of(result) if result else None)


def _error_of(result: int) -> OSError:
    number = (1 << 64) - result  # the kernel's negative errno, which caio treats as unsigned
    return OSError(number, os.strerror(number))


class ThreadSync:
    """A sync in a thread, where the kernel's asynchronous sync is not available."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def __call__(self, descriptor: int, report: Report) -> None:
        """Sync a file's data; see ``BackgroundSync``."""
        future = self._loop.run_in_executor(None, os.fdatasync, descriptor)
        future.add_done_callback(lambda sync: report(sync.exception()))  # type: ignore[arg-type]

    def poll(self) -> None:
        """Do nothing: only the loop can report completed syncs."""


def background_sync() -> BackgroundSync:
    """Return the best available method of syncing in the background; to be called in a loop."""
    loop = asyncio.get_running_loop()
    try:
        return KernelSync(loop)
    except (ImportError, OSError, SystemError):
        return ThreadSync(loop)


class SyncChoice:
    """The choice whether the next sync is done in the background or inline, based on how long previous syncs took.

    When other processes keep the core busy, a background sync has to wait for the core, and so has the loop once it is
    complete, while an inline fdatasync is given the core back at once. On an idle core, background syncs are faster.
    """

    def __init__(self) -> None:
        self.inline = False
        """The method in use, as opposed to the one on trial."""
        self._late = 0
        """How many background syncs in a row have been late."""
        self._typical_s = 0.0
        """About the median time of the latest syncs, not counting trials."""
        self._wins = self._losses = 0
        """How many syncs of the current trial were fast enough, and how many were not; both 0 if there is no trial."""
        self._retry_s = RETRY_S
        self.retry_at_s = 0.0
        """The earliest time of the next trial."""

    def next_is_inline(self, now_s: float) -> bool:
        """Whether to do the next sync inline."""
        if self._wins or self._losses:
            return not self.inline
        due = now_s >= self.retry_at_s and (self.inline or (self._late >= TRIALS and self._typical_s < STALL_S))
        return self.inline is not due

    def learn(self, took_s: float, now_s: float, *, inline: bool) -> None:
        """Learn from a sync that has ended and took this long."""
        if inline is self.inline:
            self._learn(took_s, now_s)
        else:
            self._learn_of_trial(took_s, now_s)

    def _learn(self, took_s: float, now_s: float) -> None:
        if not self._typical_s:
            self._typical_s = took_s
        self._typical_s *= STEP if took_s > self._typical_s else 1 / STEP
        # Late syncs count only if consecutive: a disk that is slow now and then does not mean a busy core.
        self._late = self._late + 1 if took_s > LATE_S else 0
        if self.inline and took_s > STALL_S:
            self._change(inline=False, took_s=took_s, now_s=now_s)

    def _learn_of_trial(self, took_s: float, now_s: float) -> None:
        if took_s <= (max(LATE_S, self._typical_s / END_ABOVE) if self.inline else BEGIN_BELOW * self._typical_s):
            self._wins += 1
        else:
            self._losses += 1
        if self._losses == TRIALS // 2 or (not self.inline and took_s > STALL_S):
            self._wins = self._losses = 0
            self._retry_s = min(2 * self._retry_s, RETRY_MAX_S)
            self.retry_at_s = now_s + self._retry_s
        elif self._wins + self._losses == TRIALS:
            self._change(inline=not self.inline, took_s=took_s, now_s=now_s)

    def _change(self, *, inline: bool, took_s: float, now_s: float) -> None:
        self.inline = inline
        self._typical_s = took_s
        self._late = self._wins = self._losses = 0
        self._retry_s = RETRY_S
        self.retry_at_s = now_s + RETRY_S


class SoonestSync:
    """A sync by whichever method completes sooner, in the background or inline."""

    def __init__(self, background: BackgroundSync, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock`` returns seconds."""
        self.background = background
        self._clock = clock
        self.choice = SyncChoice()

    def __call__(self, descriptor: int, report: Report) -> None:
        """Sync a file's data; ``report`` is called at the end, in the loop or before this returns."""
        began_s = self._clock()
        inline = self.choice.next_is_inline(began_s)

        def learn(error: Exception | None) -> None:
            now_s = self._clock()
            self.choice.learn(now_s - began_s, now_s, inline=inline)
            report(error)

        if inline:
            learn(_sync_inline(descriptor))
        else:
            self.background(descriptor, learn)


def _sync_inline(descriptor: int) -> OSError | None:
    try:
        os.fdatasync(descriptor)
    except OSError as error:
        return error
    return None
