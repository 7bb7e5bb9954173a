"""Keeps the processor awake until a short sync has ended."""

import asyncio
import time
from collections.abc import Callable
from typing import Final

# The loop stays awake for syncs that are expected to take no longer than this.
AWAKE_S: Final = 0.0005


class StayAwake:
    """A means to keep the loop running, without blocking, until a sync that is expected to be short has ended.

    A processor that has gone to sleep, above all a virtual one, is slow to wake and then runs slowly for a while. With
    few clients, that takes longer than the sync itself. ``poll`` yields the core to other processes meanwhile.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, poll: Callable[[], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``poll`` checks whether the sync has ended; ``clock`` returns seconds."""
        self._loop = loop
        self._poll = poll
        self._clock = clock
        self._until_s = 0.0
        """When to stop staying awake; 0.0, or in the past, if there is nothing to stay awake for."""
        self._last_s = 0.0
        """How long the last sync took."""
        self._turning = False

    def sync_begins(self, now_s: float) -> None:
        """Note that a sync begins."""
        self._until_s = now_s + AWAKE_S if self._last_s < AWAKE_S else 0.0

    def sync_waits(self) -> None:
        """Stay awake, if worthwhile, because the sync has not ended at once."""
        if self._until_s and not self._turning:
            self._turning = True
            self._loop.call_soon(self._turn)

    def sync_ended(self, took_s: float) -> None:
        """Note that the sync has ended, and how long it took."""
        self._until_s = 0.0
        self._last_s = took_s

    def _turn(self) -> None:
        if self._clock() < self._until_s:
            self._poll()
            self._loop.call_soon(self._turn)
        else:
            self._turning = False
