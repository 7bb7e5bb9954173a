"""Samples of each tube's last hour, taken while pages are served: jobs ready, jobs put and jobs deleted."""

import asyncio
import time
from array import array
from collections.abc import Iterable
from typing import Final

from beanlite.console.filters import Record
from beanlite.console.listing import every_tube
from beanlite.console.live import Live
from beanlite.errors import BeanliteError
from beanlite.web.questions import Questions

# The interval between samples; but if the server takes long to answer, it rests for ten times as long.
EVERY_S: Final = 10.0
REST: Final = 10
KEEP_S: Final = 3600
# With more tubes than this, only those are sampled whose pages were viewed within KEEP_S.
TUBES_MAX: Final = 1000
# The span of a point of a curve: several samples, so that a late one leaves no gap.
POINT_S: Final = 30
# The numbers of a sample: its time, the jobs ready, and the jobs put and deleted since the tube was made.
_WIDTH: Final = 4
_TRIM: Final = 60 * _WIDTH


class Samples:
    """The samples of each tube. Times are wall-clock times, in seconds."""

    def __init__(self) -> None:
        self._of: dict[str, array[float]] = {}
        self._looked_at: dict[str, float] = {}

    def note(self, tubes: Iterable[Record], now_s: float) -> None:
        """Add a sample of each of these tubes."""
        for tube in tubes:
            row = self._of.setdefault(tube["name"], array("d"))
            row.extend((now_s, tube["ready"], tube["total_jobs"], tube["deletes"]))
            if len(row) > _TRIM and row[_TRIM] < now_s - KEEP_S:
                del row[:_TRIM]
        if len(self._of) > TUBES_MAX:
            self._of = {name: row for name, row in self._of.items() if row[-_WIDTH] >= now_s - KEEP_S}

    def look_at(self, name: str, now_s: float) -> None:
        """Note that a tube's page is viewed."""
        self._looked_at.pop(name, None)
        self._looked_at[name] = now_s
        if len(self._looked_at) > TUBES_MAX:
            del self._looked_at[next(iter(self._looked_at))]

    def looked_at(self, now_s: float) -> list[str]:
        """Return the tubes whose pages were viewed within KEEP_S."""
        return [name for name, at_s in self._looked_at.items() if at_s >= now_s - KEEP_S]

    def rates(self, name: str, now_s: float) -> tuple[float, float] | None:
        """Return the rates of puts and deletes per second between the last two samples; None if they are not known."""
        row = self._of.get(name, array("d"))
        if len(row) < 2 * _WIDTH or row[-_WIDTH] < now_s - KEEP_S:
            return None
        before_s, _, put_before, deleted_before, at_s, _, put, deleted = row[-2 * _WIDTH :]
        if put < put_before:  # it was dropped and made again
            return None
        return (put - put_before) / (at_s - before_s), (deleted - deleted_before) / (at_s - before_s)

    def points(self, name: str) -> list[Record]:
        """Return the points of a tube's curves: jobs ready, and jobs put and deleted per second."""
        row = self._of.get(name, array("d"))
        last = {row[at] // POINT_S: row[at : at + _WIDTH] for at in range(0, len(row), _WIDTH)}
        points = []
        for point, (at_s, ready, put, deleted) in last.items():
            record: Record = {"at": int(point) * POINT_S, "ready": int(ready)}
            before = last.get(point - 1)
            if before is not None and put >= before[2]:
                record["put"] = (put - before[2]) / (at_s - before[0])
                record["deleted"] = (deleted - before[3]) / (at_s - before[0])
            points.append(record)
        return points


async def sample(questions: Questions, samples: Samples) -> None:
    """Take samples until cancelled. While the server can't be reached there are none, and the curves have a gap."""
    while True:
        began_s = time.monotonic()
        try:
            tubes = await questions.ask("", lambda live: _tubes(live, samples.looked_at(time.time())))
        except BeanliteError:
            pass
        else:
            samples.note(tubes, time.time())
        await asyncio.sleep(max(EVERY_S, REST * (time.monotonic() - began_s)))


def _tubes(live: Live, looked_at: list[str]) -> list[Record]:
    """Return the current state of the tubes to sample."""
    if live.stats()["current-tubes"] <= TUBES_MAX:
        return every_tube(live, {"limit": 200})
    return every_tube(live, {"names": looked_at, "limit": 200}) if looked_at else []
