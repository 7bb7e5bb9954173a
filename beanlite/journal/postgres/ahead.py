"""Reads all jobs ahead while this server stands by, so that it has little to read when it takes over.

The copy is made in slices, in the order of ids. Each step first reads which jobs the batches since the last step have
changed, and reads those of them again that are in the copy; then it reads the next jobs. New jobs have ids above all
before them, and so come last. A step reads in one transaction, from one snapshot: after it, all jobs up to the last id
are as they were after the last batch of that snapshot.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import asyncpg

from beanlite.core.copy import Copy
from beanlite.core.memory import Memory
from beanlite.errors import JournalRefused
from beanlite.host import log
from beanlite.journal.postgres.link import TROUBLE, Link, beside, text_of
from beanlite.journal.postgres.schema import has_checksums
from beanlite.journal.postgres.selects import (
    NOTES_OF_THESE,
    NOTES_UP_TO,
    SINCE_NS,
    THESE_JOBS,
    WITH_BODIES,
    WITHOUT_BODIES,
    Fetch,
    jobs_of,
    notes_of,
)

# How many jobs, and how many batches, are read at a time.
_CHUNK: Final = 1000
_LARGE_CHUNK: Final = 5000
_BATCHES: Final = 500
# How many changed jobs are looked up or removed before the rest of the server has its turn.
_TURN: Final = 5000
# How often the copy is brought up to date; also the pause after an error, and before all is read anew.
_EVERY_S: Final = 0.5
_AGAIN_S: Final = 5.0
# While there is more to read, half of the time is left to the database.
_PAUSE_LEAST_S: Final = 0.01

_SNAPSHOT: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_CHANGES: Final = f"""
    SELECT epoch, started_at, (SELECT unchecked_id FROM lease), batch, number, before, changed, gone
    FROM lease_now LEFT JOIN (
        SELECT number, before, changed, gone FROM batches
        WHERE number > $1 AND beat = 0 ORDER BY number LIMIT {_BATCHES}
    ) AS next_ones ON true
    ORDER BY number
"""
_JOBS: Final = "SELECT count(*) AS jobs FROM jobs"
# What a copy has to agree with: to compare all of it would take as long as to read all.
_SUMS: Final = f"""
    SELECT count(*)::text, coalesce(sum(id), 0)::text, coalesce(sum({SINCE_NS}), 0)::text,
           (SELECT count(*) FROM notes)::text
    FROM jobs
"""
# All rows are read for that, which is faster in the order of the table.
_SEQUENTIALLY: Final = "SELECT set_config('enable_seqscan', $1, false)"


class Reign(NamedTuple):
    """The time for which one server has the lease. Within it, the number of a batch says what is in the database."""

    epoch: int
    started_at: float


class _Outdated(Exception):
    """The copy can't be brought up to date."""


class Ahead:
    """The copy, and how far it has come."""

    def __init__(self, memory: Memory, name: str) -> None:
        """``memory`` is that of the engine which is to have the jobs; ``name`` is the database's name for people."""
        self._memory = memory
        self._name = name
        self._link: Link | None = None
        self._task: asyncio.Task[None] | None = None
        self._oddities = log.Seldom()
        self._copy: Copy | None = None
        self._reign: Reign | None = None
        self._batch = 0
        """All jobs up to the last id of the copy are as this batch, or a later one, has left them."""
        self._seen = 0
        """The last batch of which something may be in the copy."""
        self._compared = -1
        """The batch after which the copy was last compared with the database."""
        self.is_takeover_near = False
        """Whether the active server has been silent for so long that the copy had better be compared now."""
        self._jobs = 0
        """How many jobs there were when the copy was begun."""
        self._read = 0
        """How many rows have been read."""
        self._unchecked_id = 0
        """Rows up to this id may lack a checksum."""

    # -- while standing by

    def begin(self, link: Link) -> None:
        """Keep the copy up to date from now on, over a connection beside this one, until ``stop``."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._follow(link))

    async def stop(self) -> None:
        """Read nothing more for now. The copy remains."""
        if self._task is not None:
            if self._link is not None:
                self._link.drop()  # or asyncpg would have the database cancel the query, over another connection
            self._task.cancel()
            await asyncio.wait({self._task})
            task, self._task = self._task, None
            if not task.cancelled() and (error := task.exception()) is not None:  # a bug of ours: all can still be read
                log.error("reading ahead has failed", exc=error)
                self._copy = None

    async def _follow(self, watched: Link) -> None:
        while True:
            try:
                async with beside(watched) as link:
                    self._link = link
                    if await has_checksums(link, self._name):
                        await self._keep(link)
            except (*TROUBLE, asyncpg.PostgresError) as error:
                self._oddities.warning("could not read jobs ahead", database=self._name, error=text_of(error))
            except _Outdated as error:
                log.info(f"jobs are read ahead anew: {error}", database=self._name)
                await self._forget()
            except (JournalRefused, MemoryError, TypeError, ValueError) as error:  # a takeover tells more of it
                log.warning("jobs can't be read ahead", database=self._name, error=text_of(error))
                await self._forget()
                return
            finally:
                self._link = None
            await asyncio.sleep(_AGAIN_S)

    async def _keep(self, link: Link) -> None:
        began_s = time.monotonic()
        was_whole = False
        while True:
            step_s = time.monotonic()
            await link.rows(_SNAPSHOT)
            is_whole = not await self._step(link.rows, _CHUNK)
            if is_whole and self.is_takeover_near:
                await self._compare(link.rows)
            await link.rows("COMMIT")
            if is_whole and not was_whole:
                assert self._copy is not None
                seconds = round(time.monotonic() - began_s, 3)
                log.info("jobs are read ahead", database=self._name, jobs=len(self._copy.jobs), seconds=seconds)
                was_whole = True
            await self._make_room()
            await asyncio.sleep(_EVERY_S if is_whole else max(_PAUSE_LEAST_S, time.monotonic() - step_s))

    async def _make_room(self) -> None:
        """Drop bodies if those of new jobs, or the jobs themselves, have left too little room: the last ones first."""
        copy = self._copy
        assert copy is not None
        if copy.body_bytes > copy.body_room_bytes(self._most):
            for _, job_ids in copy.jobs.segments():
                copy.drop_bodies(job_ids, self._most)
                await asyncio.sleep(0)

    async def _forget(self) -> None:
        copy, self._copy = self._copy, None
        is_whole = copy is None
        while copy is not None and not is_whole:
            is_whole = not copy.free_part()
            await asyncio.sleep(0)

    # -- the takeover

    async def finish(self, ended: Reign, reign: Reign, fetch: Fetch, tell: Callable[[int, int], None]) -> Copy | None:
        """Return the copy, brought up to date and compared with the database; None if all has to be read.

        ``reign`` has begun, and nothing has been stored in it; ``ended`` is the one before it. ``tell`` is called with
        the number of jobs that are in the copy, and of all. JournalFailed: nothing can be read.
        """
        if self._copy is None:
            return None
        try:
            copy = await self._finish(self._copy, ended, reign, fetch, tell)
        except (_Outdated, JournalRefused, TypeError, ValueError) as error:
            log.warning(f"what was read ahead is not used: {error}", database=self._name)
            await self._forget()
            return None
        self._copy = None
        return copy

    async def _finish(
        self, copy: Copy, ended: Reign, reign: Reign, fetch: Fetch, tell: Callable[[int, int], None]
    ) -> Copy:
        if self._reign != ended:
            raise _Outdated("another server had taken over")
        self._reign = reign
        self._read = 0
        while await self._step(fetch, _LARGE_CHUNK):
            tell(len(copy.jobs), self._most)
        await self._compare(fetch)
        log.info("jobs were read ahead", database=self._name, jobs=len(copy.jobs), read_now=self._read)
        return copy

    async def _compare(self, fetch: Fetch) -> None:
        """Compare the copy, of which nothing is missing, with the database, unless that was done after the same batch.

        _Outdated: they differ.
        """
        copy = self._copy
        assert copy is not None
        if self._compared == self._batch:
            return
        await fetch(_SEQUENTIALLY, "on")
        theirs = tuple((await fetch(_SUMS))[0])
        await fetch(_SEQUENTIALLY, "off")
        ours = str(len(copy.jobs)), str(copy.ids), str(copy.sinces_ns), str(len(copy.notes))
        if theirs != ours:
            raise _Outdated(f"jobs, sums and notes are {', '.join(theirs)}, and {', '.join(ours)} in the copy")
        self._compared = self._batch

    # -- a step

    @property
    def _most(self) -> int:
        """How many jobs there are, or were when the copy was begun."""
        return self._jobs if self._copy is None else max(self._jobs, len(self._copy.jobs))

    async def _step(self, fetch: Fetch, chunk: int) -> bool:
        """Bring the copy up to date, and read the next jobs; returns False if there were none.

        _Outdated: it can't be brought up to date. Raises JournalRefused, TypeError or ValueError if a row is damaged.
        """
        rows = await fetch(_CHANGES, self._batch)
        reign, last_batch = Reign(rows[0]["epoch"], rows[0]["started_at"]), rows[0]["batch"]
        self._unchecked_id = rows[0]["unchecked_id"]
        copy = self._copy
        if copy is None:
            self._jobs = (await fetch(_JOBS))[0]["jobs"]
            self._copy = copy = Copy(self._memory)
            self._reign, self._batch, self._seen, self._compared = reign, last_batch, last_batch, -1
        elif reign != self._reign:
            raise _Outdated("another server has taken over")
        elif last_batch < self._seen:
            raise _Outdated("the database lacks commits that it had")
        else:
            self._seen = last_batch
            await self._renew(copy, fetch, rows, last_batch)
            self._batch = last_batch
        return await self._read_next(copy, fetch, chunk)

    async def _renew(self, copy: Copy, fetch: Fetch, rows: Sequence[asyncpg.Record], last_batch: int) -> None:
        """Apply the batches up to this one, of which the rows are the first."""
        batch = self._batch
        removed = 0
        changed: set[int] = set()
        while batch < last_batch:
            if not rows or rows[0]["number"] is None:
                raise _Outdated("too much has changed since")
            for *_, number, before, changed_ids, gone_ids in rows:
                if before != batch:
                    raise _Outdated("too much has changed since")
                batch = number
                changed.update(changed_ids or ())
                for job_id in gone_ids or ():
                    copy.remove(job_id)
                    removed += 1
                    if removed % _TURN == 0:
                        await asyncio.sleep(0)
            await asyncio.sleep(0)
            if batch < last_batch:
                rows = await fetch(_CHANGES, batch)
        in_order = sorted(changed)
        job_ids: list[int] = []
        for at in range(0, len(in_order), _TURN):
            job_ids += [job_id for job_id in in_order[at : at + _TURN] if copy.jobs.find(job_id) is not None]
            await asyncio.sleep(0)
        for at in range(0, len(job_ids), _CHUNK):
            await self._read_again(copy, fetch, job_ids[at : at + _CHUNK])

    async def _read_again(self, copy: Copy, fetch: Fetch, job_ids: Sequence[int]) -> None:
        jobs = jobs_of(await fetch(THESE_JOBS, job_ids), self._name, self._unchecked_id)
        notes = dict(notes_of(await fetch(NOTES_OF_THESE, job_ids), self._name))
        if len(jobs) != len(job_ids):
            raise _Outdated("another program has deleted jobs")
        copy.replace(jobs, 0)
        for job_id in job_ids:
            copy.note(job_id, notes.get(job_id, b""))
        self._read += len(jobs)

    async def _read_next(self, copy: Copy, fetch: Fetch, chunk: int) -> bool:
        statement = WITH_BODIES if copy.wants_bodies(self._most) else WITHOUT_BODIES
        jobs = jobs_of(await fetch(statement, copy.last_id, chunk), self._name, self._unchecked_id)
        if not jobs:
            return False
        notes = notes_of(await fetch(NOTES_UP_TO, copy.last_id, jobs[-1][0]), self._name)
        copy.add(jobs, 0)
        for note in notes:
            copy.note(*note)
        self._read += len(jobs)
        return True
