"""All jobs of a server, by id."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Final

from beanlite.core.job import Job

# So many jobs make a segment. A dict that grows stops everybody while Python moves it into one twice as large: some
# milliseconds at this size, seconds at some millions of jobs. This is just below such a step.
NEWEST_MAX: Final = 170_000
# A dict keeps the room of all that it ever held; a segment gives it back when it is down to one of these sizes.
_SHRINK_AT: Final = {NEWEST_MAX >> bits for bits in range(2, 17, 2)}


class JobTable:
    """Finds a job by its id.

    The newest jobs are in one dict, to which new ones are added; older ones, if there are very many, are in segments
    that only shrink. ``newest`` is there for the hot path, which looks into it without a call: among fewer than
    NEWEST_MAX jobs that costs no more than a plain dict.
    """

    __slots__ = ("_last_ids", "_segments", "newest")

    def __init__(self) -> None:
        self.newest: dict[int, Job] = {}
        self._segments: list[dict[int, Job]] = []
        self._last_ids: list[int] = []
        """The last id of each segment, rising: ids are given out in this order."""

    def __len__(self) -> int:
        """How many jobs there are in all."""
        return len(self.newest) + sum(map(len, self._segments))

    def __getitem__(self, job_id: int) -> Job:
        """A job that is there. KeyError: it isn't."""
        job = self.find(job_id)
        if job is None:
            raise KeyError(job_id)
        return job

    def find(self, job_id: int) -> Job | None:
        """The job of this id, if there is one."""
        return self.newest.get(job_id) or self.find_older(job_id)

    def find_older(self, job_id: int) -> Job | None:
        """The job of this id, if there is one in a segment."""
        place = bisect_left(self._last_ids, job_id)
        return self._segments[place].get(job_id) if place < len(self._segments) else None

    def remove_older(self, job_id: int) -> None:
        """Forget a job that is in a segment."""
        place = bisect_left(self._last_ids, job_id)
        jobs = self._segments[place]
        del jobs[job_id]
        if not jobs:
            del self._segments[place], self._last_ids[place]
        elif len(jobs) in _SHRINK_AT:
            self._segments[place] = dict(jobs)

    def make_room(self) -> None:
        """Make a segment of the newest jobs if they are many; to be called before another few thousand are added."""
        if len(self.newest) >= NEWEST_MAX:
            self._segments.append(dict(self.newest))
            self._last_ids.append(next(reversed(self.newest)))
            self.newest.clear()

    def segments(self) -> list[tuple[int, dict[int, Job]]]:
        """All jobs, the newest first: dicts by rising id, each with the id above which its jobs are."""
        return list(zip([0, *self._last_ids], [*self._segments, self.newest], strict=True))[::-1]

    def ids_after(self, job_id: int, most: int) -> list[int]:
        """The ids of the next jobs above this one, by rising id; fewer than ``most`` only if there are no more."""
        found: list[int] = []
        for place in range(bisect_right(self._last_ids, job_id), len(self._segments) + 1):
            jobs = self._segments[place] if place < len(self._segments) else self.newest
            if jobs:
                found += _ids_after(jobs, job_id, most - len(found))
            if len(found) >= most:
                break
        return found

    def clear(self) -> None:
        """Forget all jobs."""
        self.newest.clear()
        self._segments.clear()
        self._last_ids.clear()


def _ids_after(jobs: dict[int, Job], job_id: int, most: int) -> list[int]:
    """Up to ``most`` ids of a segment. Where they stand close they are tried one by one, so that no list is made."""
    found: list[int] = []
    stop = min(next(reversed(jobs)), job_id + 4 * most)
    for each in range(job_id + 1, stop + 1):
        if each in jobs:
            found.append(each)
            if len(found) == most:
                return found
    rest = list(jobs)
    at = bisect_right(rest, stop)
    return found + rest[at : at + most - len(found)]
