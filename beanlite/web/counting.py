"""Counts of jobs by value, which go on in the background for as long as somebody looks at them."""

import asyncio
import time
from collections.abc import Callable, Generator, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Final

from beanlite.console.filters import Record
from beanlite.console.grouping import Groups, Summary, slices
from beanlite.console.several import Servers
from beanlite.errors import BeanliteError
from beanlite.protocol.operators.filters import Filter

# How many counts may run at a time, and how many are remembered.
AT_ONCE: Final = 4
COUNTS_MAX: Final = 20
# For how long a page waits for a count before it shows how far it is; and for how long a count goes on, and is kept,
# after nobody has asked for it any more.
WAIT_S: Final = 0.5
UNASKED_S: Final = 20.0
# A count is reused by another page for as long, and for as long as it took.
KEEP_S: Final = 5.0
# How many values are shown; and for how long slices are counted before this is brought up to date.
ROWS_MAX: Final = 200
_STEP_S: Final = 0.2
# How long the end of the page waits for counts to end.
_STOP_S: Final = 1.0


@dataclass(slots=True)
class GroupCount:
    """A count, and how far it is."""

    summary: Summary = field(default_factory=Summary)
    error: str = ""
    began_s: float = field(default_factory=time.monotonic)
    asked_s: float = field(default_factory=time.monotonic)
    ended_s: float | None = None
    stops: bool = False
    """Whether it is to end at once."""
    task: asyncio.Task[None] | None = None

    @property
    def is_fresh(self) -> bool:
        """Whether it is under way, or has just ended."""
        if self.ended_s is None:
            return True
        return not self.error and time.monotonic() < self.ended_s + KEEP_S + (self.ended_s - self.began_s)

    @property
    def is_wanted(self) -> bool:
        """Whether somebody has asked for it lately."""
        return not self.stops and time.monotonic() < self.asked_s + UNASKED_S


class GroupCounts:
    """The counts of a server, or of several, by who asked for what."""

    def __init__(self, connect: Callable[[str], Servers]) -> None:
        """``connect`` makes a connection that acts for a person."""
        self._connect = connect
        self._all: dict[Hashable, GroupCount] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def of(self, key: Hashable, person: str, which: Filter, by: Record, *, again: bool) -> GroupCount:
        """Return a count, as far as it is after WAIT_S at most; with ``again``, a new one if the last is not fresh.

        BeanliteError: too many are under way.
        """
        self._forget()
        count = self._all.get((person, key))
        if count is None or (again and not count.is_fresh):
            if len(self._tasks) >= AT_ONCE:
                raise BeanliteError(f"{AT_ONCE} counts are under way; wait until one of them has ended")
            count = self._all[person, key] = GroupCount()
            count.task = asyncio.create_task(_run(count, _groups(self._connect, person, which, by)))
            self._tasks.add(count.task)
            count.task.add_done_callback(self._tasks.discard)
        count.asked_s = time.monotonic()
        if count.task is not None:
            await asyncio.wait([count.task], timeout=WAIT_S)
        return count

    def _forget(self) -> None:
        """Forget the counts that nobody has asked for lately, and the oldest if they are too many."""
        kept = {key: count for key, count in self._all.items() if count.is_wanted}
        while len(kept) >= COUNTS_MAX:
            del kept[next(iter(kept))]
        for key, count in self._all.items():
            count.stops = key not in kept
        self._all = kept

    async def close(self) -> None:
        """Stop all counts."""
        for count in self._all.values():
            count.stops = True
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_STOP_S)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _run(count: GroupCount, steps: Generator[Groups, None, None]) -> None:
    """Count step by step. A connection belongs to a step, not to this task: it is opened and used in threads."""
    try:
        while count.is_wanted:
            summary = await asyncio.to_thread(_step, steps)
            if summary is None:
                break
            count.summary = summary
        steps.close()
    except BeanliteError as error:
        count.error = str(error)
    finally:
        count.ended_s = time.monotonic()


def _groups(connect: Callable[[str], Servers], person: str, which: Filter, by: Record) -> Generator[Groups, None, None]:
    with connect(person) as live:
        yield from slices(live, which, by)


def _step(steps: Iterator[Groups]) -> Summary | None:
    """Count for some time, and return what to show; None if nothing is left to count."""
    until_s = time.monotonic() + _STEP_S
    groups: Groups | None = None
    while groups is None or time.monotonic() < until_s:
        slice_ = next(steps, None)
        if slice_ is None:
            break
        groups = slice_
    return None if groups is None else groups.summary(ROWS_MAX)
