"""Puts deleted jobs again, as new jobs, where the history keeps their bodies."""

import contextlib
import math
import time
from base64 import b64encode
from collections.abc import Iterator
from typing import Final, NamedTuple

from beanlite.beanstalk.client import Unreachable
from beanlite.console.changes import Result, change_all, parts_of, slices
from beanlite.console.filters import Record, after, filter_by
from beanlite.console.listing import slices as slices_of_list
from beanlite.console.live import Live, telling_doubt
from beanlite.console.putting import new_of, newest_id
from beanlite.console.stored import Location, PastView, looking_at
from beanlite.core.job import SLICE
from beanlite.errors import BeanliteError
from beanlite.protocol.operators.filters import Filter
from beanlite.protocol.operators.requests import CHANGED_MAX

# How many jobs the changes that can be undone may have in all.
JOBS_MAX: Final = 100_000
# How many jobs are deleted without a question, and which part of the history their bodies may take: they are to be kept
# for a while.
UNASKED_MAX: Final = 1000
_PART_OF_HISTORY: Final = 4
# The most bytes of a body, and of the bodies of one request: as base64 they fit into the body of a request.
BODY_MAX: Final = 700_000
_BODIES_MAX: Final = 600_000
# How long a job is delayed that is about to be buried again.
_MEANWHILE_H: Final = 24
# How many ids a message names.
_IDS_TOLD: Final = 10
# No event has this number.
_NO_END: Final = (1 << 63) - 1


class _OldJob(NamedTuple):
    """What a job was before it was deleted."""

    tube: str
    state: str
    pri: int
    ttr_s: int
    due_at: int | None
    """When its delay was to end, in UTC seconds."""


def _facts(job: Record) -> _OldJob:
    due_at = math.ceil(time.time() + job["left_s"]) if job["state"] == "delayed" else None
    return _OldJob(job["tube"], job["state"], job["pri"], job["ttr_s"], due_at)


class PutAgain:
    """A deletion of jobs that can be put again."""

    do = "again"

    def __init__(self, db: Location) -> None:
        self._db = db
        self._jobs: dict[int, _OldJob] = {}
        """Those that were deleted, and are not back as they were."""
        self._unburied: dict[int, int] = {}
        """The new ids of those that were put again, and are still to be buried."""
        self._after = 0
        """The end of the history before the deletion."""
        self._end = _NO_END
        """Its end after the deletion."""

    @property
    def label(self) -> str:
        """What the button says; empty if there is nothing to put again."""
        return "Put them again" if self._jobs else ""

    @property
    def most(self) -> int:
        """How many jobs it has to remember."""
        return len(self._jobs)

    @property
    def ids(self) -> list[int]:
        """The ids of the jobs that can be put again."""
        return sorted(self._jobs)

    def change(self, live: Live, what: Record, which: Filter, outcome: Result) -> Iterator[Result]:
        """Delete jobs as ``slices`` does, and remember what they were, unless they are too many."""
        self._after = self._end_of_history()
        began_s = time.monotonic()
        try:
            for jobs in jobs_of(live, which):
                aged = after(which, time.monotonic() - began_s)
                if len(self._jobs) + len(jobs) > JOBS_MAX:
                    self._jobs.clear()
                    yield from slices(live, what, aged, outcome)
                    return
                by_state: dict[str, dict[int, _OldJob]] = {}
                for job in jobs:
                    by_state.setdefault(job["state"], {})[job["id"]] = _facts(job)
                for state, part in by_state.items():
                    alike = aged.model_copy(update={"ids": list(part), "state": state})
                    self._delete(live, what, alike, part, outcome)
                yield outcome
        finally:
            with contextlib.suppress(BeanliteError):  # of what is deleted, something can be put again
                self._end = self._end_of_history()

    def _delete(self, live: Live, what: Record, which: Filter, part: dict[int, _OldJob], outcome: Result) -> None:
        """Delete jobs, unless they have ceased to be what they were."""
        outcome.changed.clear()
        skipped = outcome.skipped
        try:
            change_all(live, what, which, outcome)
        finally:
            self._jobs |= {job_id: part[job_id] for job_id in outcome.changed}
        outcome.skipped = skipped + len(part) - len(outcome.changed)

    def _end_of_history(self) -> int:
        with looking_at(self._db) as look:
            return look.end_of_history()

    def undo(self, live: Live, person: Record, outcome: Result) -> Iterator[Result]:
        """Put the jobs again that the history has bodies of. ``person`` is a part of the requests."""
        self._bury(live, person, outcome)
        with looking_at(self._db) as look:
            rows = {job_id: (n, size) for job_id, n, size in look.deletions(self._after, self._end)}
        part: list[int] = []
        bytes_of_part = 0
        for job_id in [job_id for job_id in self.ids if job_id in rows and rows[job_id][1] <= BODY_MAX]:
            size = rows[job_id][1]
            if part and (len(part) == SLICE or bytes_of_part + size > _BODIES_MAX):
                self._put(live, person, {each: rows[each][0] for each in part}, outcome)
                yield outcome
                part, bytes_of_part = [], 0
            part.append(job_id)
            bytes_of_part += size
        if part:
            self._put(live, person, {each: rows[each][0] for each in part}, outcome)
        outcome.skipped = len(self._jobs)
        yield outcome

    def _put(self, live: Live, person: Record, rows: dict[int, int], outcome: Result) -> None:
        """Put jobs again that have their bodies in these rows of the history."""
        with looking_at(self._db) as look:
            bodies = look.bodies(list(rows.values()))
        ids = [job_id for job_id in rows if rows[job_id] in bodies]
        request = [_new_job(self._jobs[job_id], bodies[rows[job_id]]) for job_id in ids]
        last_id = newest_id(live)
        doubt = f"these were put again: {_told(ids)}"
        if any(self._jobs[job_id].state == "buried" for job_id in ids):
            doubt += f"; what was buried of them would run in {_MEANWHILE_H} h: bury it"
        try:
            with telling_doubt(doubt):
                new_ids = live.ask("put-jobs", {"jobs": request, **person})["ids"]
        except Unreachable:  # the next attempt must not put them twice
            for job_id in ids:
                del self._jobs[job_id]
            raise
        new = new_of(new_ids, last_id)
        number_of = dict(zip(reversed(new_ids), reversed(ids), strict=True))  # of the first, if one comes twice
        outcome.unchanged_ids.update(set(ids) - {number_of[new_id] for new_id in new})
        self._unburied = {number_of[each]: each for each in new if self._jobs[number_of[each]].state == "buried"}
        outcome.done += len(new) - len(self._unburied)
        for job_id in set(ids) - self._unburied.keys():
            del self._jobs[job_id]
        self._bury(live, person, outcome)

    def _bury(self, live: Live, person: Record, outcome: Result) -> None:
        """Bury those that were put again to be buried; if that fails, the next attempt begins with it."""
        if not self._unburied:
            return
        new_ids = sorted(self._unburied.values())
        try:
            change_all(live, {"do": "bury", **person}, filter_by(ids=new_ids, state="delayed"))
        except BeanliteError as error:
            why = f"these were put again, and run in {_MEANWHILE_H} h unless they are buried: {_told(new_ids)}"
            raise type(error)(f"{error}; {why}") from error
        for job_id in self._unburied:
            del self._jobs[job_id]
        outcome.done += len(new_ids)
        self._unburied = {}


def _told(ids: list[int]) -> str:
    more = f" and {len(ids) - _IDS_TOLD:,} more" if len(ids) > _IDS_TOLD else ""
    return f"{', '.join(map(str, ids[:_IDS_TOLD]))}{more}"


def _new_job(facts: _OldJob, body: bytes) -> Record:
    """Return a job as ``put-jobs`` takes it; no worker gets one that is to be buried."""
    delay_s = 0
    if facts.state == "buried":
        delay_s = _MEANWHILE_H * 3600
    elif facts.due_at is not None:
        delay_s = max(0, math.ceil(facts.due_at - time.time()))
    new = {"tube": facts.tube, "pri": facts.pri, "delay_s": delay_s, "ttr_s": facts.ttr_s}
    return {**new, "base64": b64encode(body).decode()}


def jobs_of(live: Live, which: Filter) -> Iterator[list[Record]]:
    """Yield the jobs that a filter selects as of now, as many at a time as can be changed."""
    began_s = time.monotonic()
    for part in parts_of(which):
        request = {**after(part, time.monotonic() - began_s).criteria(), "limit": CHANGED_MAX}
        for jobs, _ in slices_of_list(live.list_jobs, request, "jobs"):
            yield jobs
            request |= after(part, time.monotonic() - began_s).criteria()


def not_kept(live: Live, which: Filter, number: int, history_bytes: int, until_s: float) -> int:
    """Return how many of the ``number`` jobs that are to be deleted could not be put again as they are.

    What is not known by a moment of the monotonic clock could not be.
    """
    if number > UNASKED_MAX:
        return number
    size = reserved = 0
    for jobs in jobs_of(live, which):
        if time.monotonic() >= until_s or any(job["size"] > BODY_MAX for job in jobs):
            return number
        size += sum(job["size"] for job in jobs)
        reserved += sum(job["state"] == "reserved" for job in jobs)
    return number if size > history_bytes // _PART_OF_HISTORY else reserved


def is_of(look: PastView, pid: object) -> bool:
    """Whether a file is the one that the server with this process id has, and no copy of it."""
    return look.alive().items() >= {"status": "serving", "pid": pid}.items()
