"""All jobs of a server, by id."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final

from beanlite.core.job import Job

# How many ids are probed at most for each that is found.
_PROBES_EACH: Final = 4
# The number of jobs among the newest. A dict that grows stalls the server while Python moves it into one twice as
# large: for some milliseconds at this size, for seconds at some millions of jobs. This is below such a step, by the few
# thousand that may be added before there is room again.
NEWEST_MAX: Final = 40_000
# A list has a place for each id, whether there is still a job or not; a dict takes about eight times as much for a job.
_PLACES_MAX: Final = 8
# A dict that shrinks keeps its memory; it is copied to give that back when it is down to one of these sizes.
_SHRINK_AT: Final = {NEWEST_MAX >> bits for bits in range(2, 15, 2)}


class Segment:
    """Jobs that are no longer among the newest, and only become fewer.

    They are in a list, in the place of their id, until most places are empty.
    """

    __slots__ = ("_few", "_first_id", "_places", "count")

    def __init__(self, jobs: dict[int, Job]) -> None:
        """Take over these jobs, of which there is at least one, in ascending order of id."""
        self._first_id = next(iter(jobs))
        self._places: list[Job | None] = []
        """The jobs from the first id on; empty if they are in ``_few``."""
        self._few: dict[int, Job] = {}
        self.count = len(jobs)
        """How many jobs there are."""
        end = next(reversed(jobs)) + 1
        if end - self._first_id <= 2 * self.count:
            self._places = [jobs.get(job_id) for job_id in range(self._first_id, end)]
        else:
            self._few = dict(jobs)

    def find(self, job_id: int) -> Job | None:
        """Return the job with this id, or None."""
        if not self._places:
            return self._few.get(job_id)
        place = job_id - self._first_id
        return self._places[place] if 0 <= place < len(self._places) else None

    def replace(self, job: Job) -> None:
        """Put a job in the place of the one with its id, which must be there."""
        if self._places:
            self._places[job.id - self._first_id] = job
        else:
            self._few[job.id] = job

    def remove(self, job_id: int) -> None:
        """Remove a job, which must be there."""
        self.count -= 1
        if self._places:
            self._places[job_id - self._first_id] = None
            if self.count * _PLACES_MAX < len(self._places):
                self._few = {job.id: job for job in self._places if job is not None}
                self._places = []
        else:
            del self._few[job_id]
            if self.count in _SHRINK_AT:
                self._few = dict(self._few)

    def jobs(self) -> list[Job]:
        """Return all jobs, in ascending order of id."""
        return [job for job in self._places if job is not None] or list(self._few.values())

    def __iter__(self) -> Iterator[int]:
        """Iterate over the ids, ascending."""
        return iter([job.id for job in self._places if job is not None] or self._few)

    def ids_after(self, job_id: int, most: int) -> list[int]:
        """Return the next ``most`` ids above this one, ascending; fewer if there are no more."""
        if not self._places:
            return _ids_after(self._few, job_id, most)
        found: list[int] = []
        for place in range(max(0, job_id + 1 - self._first_id), len(self._places)):
            if self._places[place] is not None:
                found.append(self._first_id + place)
                if len(found) == most:
                    break
        return found


class JobTable:
    """Finds a job by its id.

    The newest jobs are in one dict, to which new ones are added; if there are very many jobs, older ones are in
    segments that only shrink. ``newest`` is public for the hot path, which looks into it without a call: with fewer
    than NEWEST_MAX jobs that costs no more than a plain dict.
    """

    __slots__ = ("_last_ids", "_older", "_segments", "newest")

    def __init__(self) -> None:
        self.newest: dict[int, Job] = {}
        self._segments: list[Segment] = []
        self._last_ids: list[int] = []
        """The last id of each segment, ascending, since ids are given out in ascending order."""
        self._older = 0
        """How many jobs are in segments."""

    def __len__(self) -> int:
        """How many jobs there are in all."""
        return len(self.newest) + self._older

    def __getitem__(self, job_id: int) -> Job:
        """Return the job with this id. Raises KeyError if there is none."""
        job = self.find(job_id)
        if job is None:
            raise KeyError(job_id)
        return job

    def find(self, job_id: int) -> Job | None:
        """Return the job with this id, or None."""
        return self.newest.get(job_id) or self.find_older(job_id)

    def find_older(self, job_id: int) -> Job | None:
        """Return the job with this id if it is in a segment, else None."""
        number = bisect_left(self._last_ids, job_id)
        return self._segments[number].find(job_id) if number < len(self._segments) else None

    def replace(self, job: Job) -> None:
        """Put a job in the place of the one with its id, which must be there."""
        if job.id in self.newest:
            self.newest[job.id] = job
        else:
            self._segments[bisect_left(self._last_ids, job.id)].replace(job)

    def remove(self, job_id: int) -> None:
        """Remove a job, which must be there."""
        if self.newest.pop(job_id, None) is None:
            self.remove_older(job_id)

    def remove_older(self, job_id: int) -> None:
        """Remove a job, which must be in a segment."""
        number = bisect_left(self._last_ids, job_id)
        segment = self._segments[number]
        segment.remove(job_id)
        self._older -= 1
        if not segment.count:
            del self._segments[number], self._last_ids[number]

    def make_room(self) -> None:
        """Make a segment of the newest jobs if there are many; to be called at least every few thousand jobs added."""
        if len(self.newest) >= NEWEST_MAX:
            self._segments.append(Segment(self.newest))
            self._last_ids.append(next(reversed(self.newest)))
            self._older += len(self.newest)
            self.newest.clear()

    def in_order(self) -> Iterator[Job]:
        """Return all jobs, in ascending order of id; nothing may be changed meanwhile."""
        return chain(chain.from_iterable(map(Segment.jobs, self._segments)), self.newest.values())

    def segments(self) -> list[tuple[int, Iterable[int]]]:
        """Return the ids of all jobs, the newest first, in ascending parts, each with the id that it is above."""
        parts: list[Iterable[int]] = [*self._segments, self.newest]
        return list(zip([0, *self._last_ids], parts, strict=True))[::-1]

    @property
    def newest_id(self) -> int:
        """An id that no job exceeds, and that none did before that is there still."""
        if self.newest:
            return next(reversed(self.newest))
        return self._last_ids[-1] if self._last_ids else 0

    def ids_after(self, job_id: int, most: int) -> list[int]:
        """Return the next ``most`` ids above this one, ascending; fewer only if there are no more."""
        found: list[int] = []
        for segment in self._segments[bisect_right(self._last_ids, job_id) :]:
            found += segment.ids_after(job_id, most - len(found))
            if len(found) >= most:
                return found
        return found + _ids_after(self.newest, job_id, most - len(found)) if self.newest else found

    def take(self, table: JobTable) -> None:
        """Take over all jobs of another table, which is not used any more; there are none here yet."""
        self.newest.update(table.newest)
        self._segments, self._last_ids, self._older = table._segments, table._last_ids, table._older

    def free_part(self) -> bool:
        """Free a part of a table that is not used any more; returns False if there is nothing left."""
        if not self._segments:
            self.newest.clear()
            return False
        self._segments.pop()
        return True

    def clear(self) -> None:
        """Remove all jobs."""
        self.newest.clear()
        self._segments.clear()
        self._last_ids.clear()
        self._older = 0


def _ids_after(jobs: dict[int, Job], job_id: int, most: int) -> list[int]:
    """Return the next ``most`` ids of a dict, in which there is at least one.

    Where ids are dense they are probed one by one, so that no list is made.
    """
    found: list[int] = []
    first_id, last_id = next(iter(jobs)), next(reversed(jobs))
    stop = max(job_id, first_id - 1)
    if last_id - first_id < _PROBES_EACH * len(jobs):
        begin, stop = stop + 1, min(last_id, stop + _PROBES_EACH * most)
        for each in range(begin, stop + 1):
            if each in jobs:
                found.append(each)
                if len(found) == most:
                    return found
    rest = list(jobs)
    at = bisect_right(rest, stop)
    return found + rest[at : at + most - len(found)]
