"""GroupCounts of jobs by value, which go on in the background for as long as somebody looks at them."""

import asyncio
import time
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Final

from beanlite.beanstalk.client import Server
from beanlite.console.filters import Record
from beanlite.console.grouping import Groups, Summary, slices
from beanlite.console.live import Live
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


@dataclass(slots=True)
class GroupCount:
    """A count, and how far it is."""

    summary: Summary = field(default_factory=Summary)
    error: str = ""
    began_s: float = field(default_factory=time.monotonic)
    asked_s: float = field(default_factory=time.monotonic)
    ended_s: float | None = None
    task: asyncio.Task[None] | None = None

    @property
    def is_fresh(self) -> bool:
        """Whether it is under way, or has just ended."""
        if self.ended_s is None:
            return True
        return not self.error and time.monotonic() < self.ended_s + KEEP_S + (self.ended_s - self.began_s)


class GroupCounts:
    """The counts of one server, by who asked for what."""

    def __init__(self, address: Server) -> None:
        self._address = address
        self._all: dict[Hashable, GroupCount] = {}

    async def of(self, key: Hashable, person: str, which: Filter, by: Record, *, again: bool) -> GroupCount:
        """Return a count, as far as it is after WAIT_S at most; with ``again``, a new one if the last is not fresh.

        BeanliteError: too many are under way.
        """
        self._forget()
        count = self._all.get((person, key))
        if count is None or (again and not count.is_fresh):
            if sum(each.ended_s is None for each in self._all.values()) >= AT_ONCE:
                raise BeanliteError(f"{AT_ONCE} counts are under way; wait until one of them has ended")
            count = self._all[person, key] = GroupCount()
            count.task = asyncio.create_task(self._run(count, person, which, by))
        count.asked_s = time.monotonic()
        if count.task is not None:
            await asyncio.wait([count.task], timeout=WAIT_S)
        return count

    def _forget(self) -> None:
        """Forget the counts that nobody has asked for lately, and the oldest if they are too many."""
        now_s = time.monotonic()
        kept = {key: count for key, count in self._all.items() if now_s < count.asked_s + UNASKED_S}
        while len(kept) >= COUNTS_MAX:
            del kept[next(iter(kept))]
        for key, count in self._all.items():
            if key not in kept and count.task is not None:
                count.task.cancel()
        self._all = kept

    async def _run(self, count: GroupCount, person: str, which: Filter, by: Record) -> None:
        live: Live | None = None
        try:
            live = await asyncio.to_thread(Live, self._address, person)
            steps: Iterator[Groups] = slices(live, which, by)
            while time.monotonic() < count.asked_s + UNASKED_S:
                summary = await asyncio.to_thread(_step, steps)
                if summary is None:
                    break
                count.summary = summary
        except BeanliteError as error:
            count.error = str(error)
        finally:
            count.ended_s = time.monotonic()
            if live is not None:
                live.close()

    async def close(self) -> None:
        """Stop all counts."""
        tasks = [count.task for count in self._all.values() if count.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _step(steps: Iterator[Groups]) -> Summary | None:
    """GroupCount for some time, and return what to show; None if nothing is left to count."""
    until_s = time.monotonic() + _STEP_S
    groups: Groups | None = None
    while groups is None or time.monotonic() < until_s:
        slice_ = next(steps, None)
        if slice_ is None:
            break
        groups = slice_
    return None if groups is None else groups.summary(ROWS_MAX)
