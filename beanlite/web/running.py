"""Changes that run slice by slice in the background."""

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from beanlite.console import units
from beanlite.console.changes import DONE_WORDS, Result, slices
from beanlite.console.filters import Record, filter_text
from beanlite.console.live import Live
from beanlite.errors import BeanliteError
from beanlite.protocol.operators.filters import Filter

# How many changes are remembered, and how many may run at a time.
CHANGES_MAX: Final = 50
AT_ONCE: Final = 4
# The word in messages for the jobs that a change has changed.
WORDS: Final = {**DONE_WORDS, "undo": "brought back", "again": "put again"}
# What makes a change, slice by slice, as ``slices`` does.
Steps = Callable[[Live, Record, Filter, Result], Iterator[Result]]


def description(which: Filter) -> str:
    """Describe the jobs that a filter selects."""
    if which.ids is None:
        return f"all jobs {filter_text(which)}"
    begin = f"job {which.ids[0]}" if len(which.ids) == 1 else f"{units.jobs(len(which.ids))} one by one"
    more = filter_text(which)
    return f"{begin}, as far as still {more}" if more else begin


@dataclass(slots=True)
class Running:
    """A change, and its progress."""

    number: int
    do: str
    """What is done to the jobs, as the operators' commands name it, or ``undo`` or ``again``."""
    title: str
    back: str
    """The page on which it was requested."""
    person: str
    """The user for whom it is made."""
    undo: str = ""
    """The token by which it can be undone; empty if it can't."""
    outcome: Result = field(default_factory=Result)
    error: str = ""
    ended: bool = False


class Ongoing:
    """The changes that were begun here, by number."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._last = int(time.time())  # so that numbers are not reused after a restart
        self.all: dict[int, Running] = {}

    def begin(
        self, live: Live, what: Record, which: Filter, back: str, steps: Steps = slices
    ) -> tuple[Running, asyncio.Task[None]]:
        """Begin a change, on a connection of its own. BeanliteError: too many are running."""
        if len(self._tasks) >= AT_ONCE:
            live.close()
            raise BeanliteError(f"{AT_ONCE} changes are under way; wait until one of them has ended")
        self._last += 1
        title = f"{WORDS[what['do']]}: {description(which)}"
        running = self.all[self._last] = Running(self._last, what["do"], title, back, live.person)
        while len(self.all) > CHANGES_MAX:
            del self.all[next(iter(self.all))]
        task = asyncio.create_task(_run(steps(live, what, which, running.outcome), live, running))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return running, task

    async def close(self) -> None:
        """Stop all changes; the slices that are done stay done."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _run(steps: Iterator[Result], live: Live, running: Running) -> None:
    try:
        while await asyncio.to_thread(next, steps, None) is not None:
            pass
    except BeanliteError as error:
        running.error = str(error)
    finally:
        running.ended = True
        live.close()
