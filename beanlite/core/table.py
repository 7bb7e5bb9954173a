"""All jobs of a server, by id."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from beanlite.core.job import Job

# A dict that grows stops everybody while Python moves it into one twice as large: 10 ms at 175 thousand jobs, 61 at 1.4
# million, 781 at 5.6 and 2,406 at 11.2. So before that they are set aside, which takes some 8.
NEWEST_MAX: Final = 170_000
# A dict keeps the room of all that it held; that of one that stands aside is given back when so few are left.
_SHRINK_AT: Final = {NEWEST_MAX >> bits for bits in range(2, 17, 2)}


class Jobs(dict[int, Job]):
    """The dict itself holds the newest jobs; older ones, if there are so many, stand aside in dicts of their own.

    ``jobs[id]`` is for a job that is there, ``find`` for one that may not be. Among fewer than NEWEST_MAX jobs what is
    hot costs no more than with a plain dict.
    """

    __slots__ = ("_aside", "_last_ids")

    def __init__(self) -> None:
        super().__init__()
        self._aside: list[dict[int, Job]] = []
        self._last_ids: list[int] = []
        """Each one's, rising: ids are given out in this order."""

    def __missing__(self, job_id: int) -> Job:
        job = self.older(job_id)
        if job is None:
            raise KeyError(job_id)
        return job

    def find(self, job_id: int) -> Job | None:
        """A job, if there is one of this id."""
        return self.get(job_id) or self.older(job_id)

    def older(self, job_id: int) -> Job | None:
        """A job that stands aside."""
        place = bisect_left(self._last_ids, job_id)
        return self._aside[place].get(job_id) if place < len(self._aside) else None

    def remove_older(self, job_id: int) -> None:
        """Forget a job that stands aside."""
        place = bisect_left(self._last_ids, job_id)
        jobs = self._aside[place]
        del jobs[job_id]
        if not jobs:
            del self._aside[place], self._last_ids[place]
        elif len(jobs) in _SHRINK_AT:
            self._aside[place] = dict(jobs)

    def set_aside(self) -> None:
        """To be called before another few thousand are added."""
        if len(self) >= NEWEST_MAX:
            self._aside.append(dict(self))
            self._last_ids.append(next(reversed(self)))
            self.clear()

    def parts(self) -> list[tuple[int, dict[int, Job]]]:
        """All of them, the newest first: dicts by rising id, and with each the id above which these are."""
        return list(zip([0, *self._last_ids], [*self._aside, self], strict=True))[::-1]

    @property
    def count(self) -> int:
        """How many there are in all."""
        return len(self) + sum(map(len, self._aside))
