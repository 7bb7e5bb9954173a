"""Changes that go on slice by slice, whether or not somebody looks."""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from beanlite.errors import BeanliteError
from beanlite.operators import units
from beanlite.operators.changes import DONE_WORDS, Outcome, slices
from beanlite.operators.filters import Filter, Record
from beanlite.operators.live import Live

# How many are remembered, and how many may be under way.
KEPT: Final = 50
AT_ONCE: Final = 4


def described(which: Filter) -> str:
    """The jobs that are meant, in words."""
    if which.ids is None:
        return f"all jobs {which}"
    chosen = f"job {which.ids[0]}" if len(which.ids) == 1 else f"{units.jobs(len(which.ids))} one by one"
    more = str(replace(which, ids=None))
    return f"{chosen}, as far as still {more}" if more else chosen


@dataclass(slots=True)
class Running:
    """One of them."""

    number: int
    title: str
    back: str
    """The page that it was asked for on."""
    outcome: Outcome = field(default_factory=Outcome)
    error: str = ""
    ended: bool = False


class Changes:
    """Those that were begun here, by number."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._last = int(time.time())  # so that after a new start no number means another one
        self.all: dict[int, Running] = {}

    def begin(self, live: Live, what: Record, which: Filter, back: str) -> tuple[Running, asyncio.Task[None]]:
        """Begin one, on a connection of its own. BeanliteError: there are too many."""
        if len(self._tasks) >= AT_ONCE:
            live.close()
            raise BeanliteError(f"{AT_ONCE} changes are under way; wait until one of them has ended")
        self._last += 1
        running = self.all[self._last] = Running(self._last, f"{DONE_WORDS[what['do']]}: {described(which)}", back)
        while len(self.all) > KEPT:
            del self.all[next(iter(self.all))]
        task = asyncio.create_task(_run(live, slices(live, what, which, running.outcome), running))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return running, task

    async def close(self) -> None:
        """Go no further; what has been done of each stays done."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _run(live: Live, steps: Iterator[Outcome], running: Running) -> None:
    try:
        while await asyncio.to_thread(next, steps, None) is not None:
            pass
    except BeanliteError as error:
        running.error = str(error)
    finally:
        running.ended = True
        live.close()
