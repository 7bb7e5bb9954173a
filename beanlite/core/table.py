"""All jobs of a server, by id."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Final

from beanlite.core.job import Job

# The number of jobs in a segment. A dict that grows stalls the server while Python moves it into one twice as large:
# for some milliseconds at this size, for seconds at some millions of jobs. This is just below such a step.
NEWEST_MAX: Final = 170_000
# A dict that shrinks keeps its memory; a segment is copied to give it back when it is down to one of these sizes.
_SHRINK_AT: Final = {NEWEST_MAX >> bits for bits in range(2, 17, 2)}


class JobTable:
    """Finds a job by its id.

    The newest jobs are in one dict, to which new ones are added; if there are very many jobs, older ones are in
    segments that only shrink. ``newest`` is public for the hot path, which looks into it without a call: with fewer
    than NEWEST_MAX jobs that costs no more than a plain dict.
    """

    __slots__ = ("_last_ids", "_segments", "newest")

    def __init__(self) -> None:
        self.newest: dict[int, Job] = {}
        self._segments: list[dict[int, Job]] = []
        self._last_ids: list[int] = []
        """The last id of each segment, ascending, since ids are given out in ascending order."""

    def __len__(self) -> int:
        """How many jobs there are in all."""
        jobs = len(self.newest)
        for segment in self._segments:
            jobs += len(segment)
        return jobs

    def __getitem__(self, job_id: int) -> Job:
        """The job with this id. Raises KeyError if there is none."""
        job = self.find(job_id)
        if job is None:
            raise KeyError(job_id)
        return job

    def find(self, job_id: int) -> Job | None:
        """The job with this id, or None."""
        return self.newest.get(job_id) or self.find_older(job_id)

    def find_older(self, job_id: int) -> Job | None:
        """The job with this id if it is in a segment, else None."""
        place = bisect_left(self._last_ids, job_id)
        return self._segments[place].get(job_id) if place < len(self._segments) else None

    def remove_older(self, job_id: int) -> None:
        """Remove a job, which must be in a segment."""
        place = bisect_left(self._last_ids, job_id)
        jobs = self._segments[place]
        del jobs[job_id]
        if not jobs:
            del self._segments[place], self._last_ids[place]
        elif len(jobs) in _SHRINK_AT:
            self._segments[place] = dict(jobs)

    def make_room(self) -> None:
        """Make a segment of the newest jobs if there are many; to be called at least every few thousand jobs added."""
        if len(self.newest) >= NEWEST_MAX:
            self._segments.append(dict(self.newest))
            self._last_ids.append(next(reversed(self.newest)))
            self.newest.clear()

    def segments(self) -> list[tuple[int, dict[int, Job]]]:
        """All jobs, the newest first: dicts in ascending order of id, each with the id that its jobs are above."""
        return list(zip([0, *self._last_ids], [*self._segments, self.newest], strict=True))[::-1]

    def ids_after(self, job_id: int, most: int) -> list[int]:
        """The next ``most`` ids above this one, ascending; fewer only if there are no more."""
        found: list[int] = []
        for place in range(bisect_right(self._last_ids, job_id), len(self._segments) + 1):
            jobs = self._segments[place] if place < len(self._segments) else self.newest
            if jobs:
                found += _ids_after(jobs, job_id, most - len(found))
            if len(found) >= most:
                break
        return found

    def clear(self) -> None:
        """Remove all jobs."""
        self.newest.clear()
        self._segments.clear()
        self._last_ids.clear()


def _ids_after(jobs: dict[int, Job], job_id: int, most: int) -> list[int]:
    """The next ``most`` ids of a segment. Where ids are dense they are probed one by one, so that no list is made."""
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
