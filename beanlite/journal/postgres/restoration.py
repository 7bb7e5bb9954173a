"""Gives the engine all jobs and notes at the start: those that were read ahead, or else all that the database has."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterable
from itertools import islice
from typing import Final, TypeVar

from beanlite.core.copy import Copy
from beanlite.core.engine import Engine
from beanlite.core.memory import JOB_BYTES
from beanlite.errors import JournalRefused
from beanlite.host import log, systemd
from beanlite.host.clock import Clock
from beanlite.journal.postgres.ahead import Ahead
from beanlite.journal.postgres.lease import Lease
from beanlite.journal.postgres.recovery import Reader
from beanlite.journal.rows import fit

_T = TypeVar("_T")
# How many of what has no bound are looked at before the lease can be renewed.
_AT_ONCE: Final = 5000
# How often the log reports the progress of the recovery.
_PROGRESS_S: Final = 1.0


async def _slices(things: Iterable[_T]) -> AsyncGenerator[list[_T], None]:
    """Yield things some at a time, and let the rest of the server have its turn in between."""
    rest = iter(things)
    while some := list(islice(rest, _AT_ONCE)):
        yield some
        await asyncio.sleep(0)


class Restoration:
    """The jobs and notes on their way into the engine."""

    def __init__(
        self, name: str, reader: Reader, engine: Engine, clock: Clock, is_cut_short: Callable[[], bool]
    ) -> None:
        """``name`` is the database's name for people; ``is_cut_short`` tells whether the server is to end."""
        self._name = name
        self._reader = reader
        self._engine = engine
        self._clock = clock
        self._is_cut_short = is_cut_short
        self._shown_s = time.monotonic()

    async def run(self, ahead: Ahead, lease: Lease, unchecked_id: int) -> bool:
        """Restore all; return False if that was cut short. Rows up to ``unchecked_id`` may lack a checksum.

        JournalRefused: a row is damaged. JournalFailed: nothing can be read.
        """
        copy = await ahead.finish(lease.ended, lease.reign, self._reader.fetch, self._tell)
        return await (self._read(unchecked_id) if copy is None else self._enter(copy))

    async def _read(self, unchecked_id: int) -> bool:
        engine = self._engine
        async for notes in self._reader.notes():  # first, since they leave less room for bodies
            engine.notes.restore(notes)
            if self._is_cut_short():
                return False
        of = await self._reader.count()
        memory = engine.memory
        room = memory.body_room_beside(of * JOB_BYTES)
        async for rows in self._reader.jobs(lambda: memory.body_bytes <= room - room // 4, unchecked_id):
            try:
                engine.restore(fit(rows, room - memory.body_bytes), self._clock())
            except (TypeError, ValueError) as error:
                raise JournalRefused(f"{self._name} is damaged: {error}; restore a backup") from error
            self._tell(len(engine.jobs), of)
            if self._is_cut_short():
                return False
        return True

    async def _enter(self, copy: Copy) -> bool:
        self._engine.take_copy(copy)
        while copy.enter(self._clock()):
            await asyncio.sleep(0)
            if self._is_cut_short():
                return False
        return True

    async def finish(self) -> None:
        """Check the names of tubes and the notes, and resume pauses. JournalRefused: one is damaged.

        Raises JournalFailed.
        """
        engine, reader = self._engine, self._reader
        async for names in _slices(engine.tubes):
            reader.check_names(names)
        async for job_ids in _slices(engine.notes.each_id()):
            job_id = engine.notes.stray_id(job_ids)
            if job_id is not None:
                raise JournalRefused(f"{self._name} is damaged: the note of job {job_id} has no job; restore a backup")
        async for pauses in _slices(await reader.pauses()):
            for pause in pauses:
                engine.restore_pause(*pause)

    def _tell(self, jobs: int, of: int) -> None:
        if time.monotonic() - self._shown_s > _PROGRESS_S:
            self._shown_s = time.monotonic()
            log.info("recovering", jobs=jobs, of=of)
            systemd.recovering(jobs, of)
