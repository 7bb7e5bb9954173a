"""The start on a file: opens it, fills the engine with its jobs, and makes what writes to it."""

import asyncio
import time
from collections.abc import Callable, Generator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from beanlite.core.engine import Engine
from beanlite.core.memory import JOB_BYTES
from beanlite.core.restore import StoredJob
from beanlite.errors import JournalBusy, JournalFailed, JournalFull, JournalLocked, JournalRefused, NoRoom
from beanlite.host import log, signals, systemd
from beanlite.host.clock import Clock
from beanlite.journal.event_rows import HistoryBounds
from beanlite.journal.rows import fit
from beanlite.journal.sqlite.file.database import Database, check_body_size, open_database
from beanlite.journal.sqlite.file.fileformat import damaged
from beanlite.journal.sqlite.file.heartbeat import read_last_seen, set_clock
from beanlite.journal.sqlite.file.note_table import read_notes
from beanlite.journal.sqlite.file.replay import (
    BELOW_ALL,
    QueueState,
    check_count,
    check_jobs,
    check_names,
    check_pages,
    count_jobs,
    guess_jobs,
    read_jobs,
    read_state,
)
from beanlite.journal.sqlite.served.batch import Batch, batch_of
from beanlite.journal.sqlite.served.bodies import BodyReader
from beanlite.journal.sqlite.served.writer import Writer

# How often progress is logged, and how often the loop runs so that signals are handled.
PROGRESS_S: Final = 1.0
HEAR_S: Final = 0.05
# How long a start waits for other programs' locks on the file, before it has jobs and after. Each try takes a second.
LOCK_WAIT_S: Final = 10.0
# Jobs are counted before they are read if they might take more than this fraction of the memory limit: an eighth.
FEW_JOBS: Final = 8

_Result = TypeVar("_Result")


class Recovery:
    """The recovery of a server with these settings.

    It makes ``writer`` and ``bodies``, and keeps them even if it fails: after a failed commit the connection must not
    be closed, which would write.
    """

    def __init__(self, path: Path, fsync: str, max_job_size: int, address: str, history: HistoryBounds) -> None:
        """``fsync`` is the setting, to be noted in the file's mark; ``address`` is where the server listens."""
        self._path = path
        self._fsync = fsync
        self._max_job_size = max_job_size
        self._address = address
        self._history = history

    async def run(self, engine: Engine, clock: Clock, stopped: asyncio.Event) -> bool:
        """Open the file and fill the engine with its jobs; see ``Journal.recover``."""
        try:
            return await self._run(engine, clock, stopped)
        except JournalLocked as error:
            raise JournalBusy(str(error)) from error  # unlike a refusal, this may be different at the next start
        except NoRoom as error:
            raise JournalFull(str(error)) from error  # as may this
        except MemoryError as error:
            engine.forget_jobs()  # frees memory for the error path
            raise JournalRefused(f"there is not enough memory for what {self._path} holds") from error

    async def _run(self, engine: Engine, clock: Clock, stopped: asyncio.Event) -> bool:
        began_s = time.monotonic()
        check_body_size(self._max_job_size)
        database = await _once_unlocked(lambda: open_database(self._path, fsync=self._fsync), stopped)
        if database is None:
            return False
        if database.damaged_wal is not None:
            log.error("damaged -wal: commits lost", commits=database.lost_batches, copy=database.damaged_wal)
        elif database.lost_batches:
            log.warning("commits not synced before the power failure are lost", commits=database.lost_batches)
        state = read_state(database.connection, database.path)
        set_clock(clock, read_last_seen(database.connection, database.path))
        now_ns = clock()
        engine.restore_policies(state.policies)
        jobs = await _restore_jobs(database, engine, now_ns, stopped)
        if jobs is None:
            database.close()
            return False
        _restore_others(engine, state, database.path)
        engine.recovered(state.last_id, state.batch)
        self.writer = writer = Writer(database, self._address, self._history, clock, jobs)
        self.bodies = bodies = BodyReader(database.path)
        has_room = await _once_unlocked(writer.prepare, stopped)
        if has_room is None:
            database.close()
            return False
        if has_room and engine.ledger.recording:
            await _record_restart(writer, engine, now_ns, stopped)
        signals.hold()  # the threads started here inherit the mask; signals are for the loop's thread
        try:
            await writer.start()
            await bodies.open()
        except RuntimeError as error:  # from threading; the process must end at once, as one thread may have started
            raise JournalFailed(f"no thread can be started: {error}") from error
        finally:
            signals.hear()
        if not has_room:
            log.warning("disk full: puts are refused until there is room again")
            engine.admission.refuse_puts()
        log.info("recovered", file=database.path, jobs=jobs, seconds=round(time.monotonic() - began_s, 3))
        return True


async def _record_restart(writer: Writer, engine: Engine, now_ns: int, stopped: asyncio.Event) -> None:
    """Write the changes that the start itself made to jobs, and their history, slice by slice."""
    ledger = engine.ledger
    while ledger.has_deferred:
        changes = ledger.take_restarted(now_ns)
        attempt = partial(_write, writer, batch_of(changes, writer.chronicle.history))
        try:
            why = None if await _once_unlocked(attempt, stopped) else "stopped"
        except JournalFull:
            why = "disk full"
        if why is not None:
            ledger.deferred.update((job.id, job) for job in changes.jobs)
            log.warning(f"{why}: jobs made ready by the restart are missing in the history")
            return
        await writer.sync()
        engine.stored(changes.batch, changes.last_id)


def _write(writer: Writer, batch: Batch) -> bool:
    writer.write(batch)
    return True


async def _restore_jobs(database: Database, engine: Engine, now_ns: int, stopped: asyncio.Event) -> int | None:
    """Restore all notes and jobs, and return the number of jobs, or None if a stop was requested meanwhile."""
    for notes in read_notes(database.connection, database.path):  # first, since they leave less room for bodies
        engine.notes.restore(notes)
        await asyncio.sleep(0)
    jobs = of = 0
    progress_s = signals_s = time.monotonic()
    with closing(_read_jobs(database, engine)) as chunks:
        for rows in chunks:
            try:
                engine.restore(rows, now_ns)
            except (TypeError, ValueError):
                check_jobs(database.connection, database.path)
                check_pages(database.connection, database.path)
                raise  # the file is sound, so this is a bug of ours
            jobs += len(rows)
            now_s = time.monotonic()
            if now_s - progress_s > PROGRESS_S:
                progress_s = now_s
                of = of or count_jobs(database.connection, database.path)
                log.info("recovering", jobs=jobs, of=of)
                systemd.recovering(jobs, of)
            if now_s - signals_s > HEAR_S:
                signals_s = now_s
                await asyncio.sleep(0)
                if stopped.is_set():
                    return None
    check_names(engine.tubes, database.path)
    check_count(database.connection, database.path, jobs)
    return jobs


def _restore_others(engine: Engine, state: QueueState, path: Path) -> None:
    """Restore what the engine takes after the jobs. JournalRefused: the file is damaged."""
    job_id = engine.notes.stray_id()
    if job_id is not None:
        raise damaged(path, f"the note of job {job_id} has no job")
    for name, pause_s, until_ns in state.pauses:
        engine.restore_pause(name, pause_s, until_ns)
    for schedule in state.schedules:
        engine.restore_schedule(schedule)


async def _once_unlocked(attempt: Callable[[], _Result], stopped: asyncio.Event) -> _Result | None:
    """Return the result of an attempt, made again while another program has a lock; None: a stop was requested."""
    loop = asyncio.get_running_loop()
    ends_s = None
    while True:
        try:
            return attempt()
        except (JournalLocked, JournalBusy):
            if ends_s is None:
                ends_s = loop.time() + LOCK_WAIT_S
                log.warning("start is waiting: another program has locked the file")
            elif loop.time() > ends_s:
                raise
        await asyncio.sleep(HEAR_S)
        if stopped.is_set():
            return None


def _read_jobs(database: Database, engine: Engine) -> Generator[list[StoredJob], None, None]:
    """Read all jobs: with their bodies while there is ample memory for them, then without."""
    connection, path = database.connection, database.path
    memory = engine.memory
    jobs = guess_jobs(connection, path)
    if jobs * JOB_BYTES > memory.max_bytes // FEW_JOBS:
        jobs = count_jobs(connection, path)
    room = memory.body_room_beside(jobs * JOB_BYTES)
    last_id = BELOW_ALL
    for rows in read_jobs(connection, path):
        last_id = rows[-1][0]
        yield fit(rows, room - memory.body_bytes)
        if memory.body_bytes > room - room // 4:
            break
    yield from read_jobs(connection, path, last_id, bodies=False)
