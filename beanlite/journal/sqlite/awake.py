"""Staying awake for the end of a short sync."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

# A sync that should take no longer than this is worth staying awake for.
AWAKE_S: Final = 0.0005


class StayAwake:
    """Keeps the loop turning until a sync that should be short has ended.

    A processor that has gone to sleep, above all a virtual one, is slow to wake and then works slowly for a while. With
    few clients that takes longer than the sync itself. ``poll`` lets other processes have the core meanwhile.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, poll: Callable[[], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``poll`` looks for the end of the sync; ``clock`` tells seconds."""
        self._loop = loop
        self._poll = poll
        self._clock = clock
        self._began_s = 0.0
        self._until_s = 0.0
        """When to give up; in the past if no sync is under way."""
        self._last_s = 0.0
        """How long the last sync took."""
        self._turning = False

    def sync_begins(self) -> None:
        """A sync begins."""
        self._began_s = self._clock()
        self._until_s = self._began_s + AWAKE_S if self._last_s < AWAKE_S else 0.0

    def sync_waits(self) -> None:
        """The sync that has begun is under way."""
        if self._until_s and not self._turning:
            self._turning = True
            self._loop.call_soon(self._turn)

    def sync_ended(self) -> float:
        """It has ended; returns how many seconds it took."""
        self._until_s = 0.0
        self._last_s = self._clock() - self._began_s
        return self._last_s

    @property
    def syncing_s(self) -> float:
        """For how long a sync has been under way, while one is."""
        return self._clock() - self._began_s

    def _turn(self) -> None:
        if self._clock() < self._until_s:
            self._poll()
            self._loop.call_soon(self._turn)
        else:
            self._turning = False
