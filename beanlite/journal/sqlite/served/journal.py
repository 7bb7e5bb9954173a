"""The journal in an SQLite file: stores batches of changes on disk and replays them at the start."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from os import sched_yield
from pathlib import Path
from typing import Final, TypeVar

from beanlite.core.engine import Engine
from beanlite.core.ledger import Changes
from beanlite.core.memory import JOB_BYTES
from beanlite.core.restore import StoredJob
from beanlite.errors import JournalBusy, JournalFailed, JournalFull, JournalLocked, JournalRefused
from beanlite.host import log, signals, systemd
from beanlite.host.clock import Clock
from beanlite.journal.base import Journal, JournalFacts, Observer
from beanlite.journal.rows import fitted
from beanlite.journal.sqlite.file.database import WAL_BYTES_MAX, Database, check_body_size, open_database
from beanlite.journal.sqlite.file.heartbeat import read_last_seen, set_clock
from beanlite.journal.sqlite.file.replay import (
    BELOW_ALL,
    check_count,
    check_jobs,
    check_names,
    check_pages,
    count_jobs,
    guess_jobs,
    read_jobs,
    read_state,
)
from beanlite.journal.sqlite.served.awake import StayAwake
from beanlite.journal.sqlite.served.batch import Batch, batch_of
from beanlite.journal.sqlite.served.bodies import BodyReader
from beanlite.journal.sqlite.served.history import HistoryBounds
from beanlite.journal.sqlite.served.leisure import Leisure
from beanlite.journal.sqlite.served.timing import Timing
from beanlite.journal.sqlite.served.upkeep import Upkeep
from beanlite.journal.sqlite.served.writer import Writer

# During recovery: how often progress is logged, and how often the loop runs so that signals are handled.
PROGRESS_S: Final = 1.0
HEAR_S: Final = 0.05
# How long a start waits for other programs' locks on the file, before it has jobs and after. Each try takes a second.
LOCK_WAIT_S: Final = 10.0
# Jobs are counted before they are read if they might take more than this fraction of the memory limit: an eighth.
FEW_JOBS: Final = 8
# A batch whose large bodies add up to more than this is written in the worker thread.
APART_BYTES: Final = 6 << 20

_Result = TypeVar("_Result")


class SqliteJournal(Journal):
    """Commits each batch as one transaction, and syncs it before it is acknowledged, at intervals, or not at all."""

    fetches = True

    def __init__(
        self,
        path: Path,
        fsync: str,
        sync_interval_ms: int | None,
        max_job_size: int,
        address: str,
        history: HistoryBounds,
    ) -> None:
        """``fsync`` is the setting as given, to be noted in the file's mark; ``sync_interval_ms`` is its meaning.

        A ``sync_interval_ms`` of 0 syncs each batch before it is reported durable; None leaves syncing to the
        operating system. ``address`` is where the server listens.
        """
        self._path = path
        self._fsync = fsync
        self._sync_interval_ms = sync_interval_ms
        self._max_job_size = max_job_size
        self._address = address
        self._history = history

    # -- the start

    async def recover(self, engine: Engine, clock: Clock, stopped: asyncio.Event) -> bool:
        """Open the file and fill the engine with its jobs; see ``Journal.recover``."""
        try:
            return await self._recover(engine, clock, stopped)
        except JournalLocked as error:
            raise JournalBusy(str(error)) from error  # unlike a refusal, this may be different at the next start
        except MemoryError as error:
            engine.forget_jobs()  # frees memory for the error path
            raise JournalRefused(f"there is not enough memory for what {self._path} holds") from error

    async def _recover(self, engine: Engine, clock: Clock, stopped: asyncio.Event) -> bool:
        began_s = time.monotonic()
        check_body_size(self._max_job_size)
        database = await _unlocked(lambda: open_database(self._path, fsync=self._fsync), stopped)
        if database is None:
            return False
        if database.damaged_wal is not None:
            log.error("damaged -wal: commits lost", commits=database.lost_batches, copy=database.damaged_wal)
        elif database.lost_batches:
            log.warning("commits not synced before the power failure are lost", commits=database.lost_batches)
        state = read_state(database.connection, database.path)
        set_clock(clock, read_last_seen(database.connection, database.path))
        now_ns = clock()
        jobs = await self._restore_jobs(database, engine, now_ns, stopped)
        if jobs is None:
            database.close()
            return False
        for name, pause_s, until_ns in state.pauses:
            engine.restore_pause(name, pause_s, until_ns)
        engine.recovered(state.last_id, state.batch)
        self._engine = engine
        self._writer = Writer(database, self._address, self._history, clock, jobs)
        self._bodies = BodyReader(database.path)
        has_room = await _unlocked(self._writer.prepare, stopped)
        if has_room is None:
            database.close()
            return False
        if has_room and engine.ledger.recording:
            await self._record_restart(engine, now_ns)
        signals.hold()  # the threads started here inherit the mask; signals are for the loop's thread
        try:
            await self._writer.start()
            await self._bodies.open()
        except RuntimeError as error:  # from threading; the process must end at once, as one thread may have started
            raise JournalFailed(f"no thread can be started: {error}") from error
        finally:
            signals.hear()
        if not has_room:
            log.warning("disk full: puts are refused until there is room again")
            engine.admission.refuse_puts()
        log.info("recovered", file=database.path, jobs=jobs, seconds=round(time.monotonic() - began_s, 3))
        return True

    async def _record_restart(self, engine: Engine, now_ns: int) -> None:
        """Write the changes that the start itself made to jobs, and their history, slice by slice."""
        ledger = engine.ledger
        while ledger.has_deferred:
            changes = ledger.take_restarted(now_ns)
            try:
                self._writer.write(batch_of(changes, self._writer.chronicle.history))
            except JournalFull:
                ledger.deferred.update((job.id, job) for job in changes.jobs)
                log.warning("disk full: jobs made ready by the restart are missing in the history")
                return
            await self._writer.sync()
            engine.stored(changes.batch, changes.last_id)

    async def _restore_jobs(
        self, database: Database, engine: Engine, now_ns: int, stopped: asyncio.Event
    ) -> int | None:
        """Restore all jobs and return their number, or None if a stop was requested meanwhile."""
        jobs = of = 0
        shown_s = heard_s = time.monotonic()
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
                if now_s - shown_s > PROGRESS_S:
                    shown_s = now_s
                    of = of or count_jobs(database.connection, database.path)
                    _tell_progress(jobs, of)
                if now_s - heard_s > HEAR_S:
                    heard_s = now_s
                    await asyncio.sleep(0)
                    if stopped.is_set():
                        return None
        check_names(engine.tubes, database.path)
        check_count(database.connection, database.path, jobs)
        return jobs

    def attach(self, listener: Observer) -> None:
        """Start committing on behalf of the listener."""
        loop = asyncio.get_running_loop()
        self._listener = listener
        self._upkeep = Upkeep(self._writer, self._engine, loop, listener.ready, listener.failed)
        self._awake = StayAwake(loop, self.poll)
        self._timing = Timing(self._engine.ledger.measures)
        interval_ms = self._sync_interval_ms
        self._upkeep.start(interval_ms / 1000 if interval_ms else None)
        Leisure(self._writer, self._upkeep, syncs=interval_ms == 0).start()

    # -- batch by batch

    @property
    def busy(self) -> bool:
        """Whether no batch may be committed at the moment."""
        return self._upkeep.busy

    @property
    def syncing(self) -> bool:
        """Whether a batch is being synced."""
        return self._upkeep.syncing

    def commit(self, changes: Changes) -> None:
        """Write a batch, and sync it if the ``fsync`` setting requires that; see ``Journal.commit``."""
        self._upkeep.busy = True
        self._timing.begins()
        batch = batch_of(changes, self._writer.chronicle.history)
        if batch.body_bytes > APART_BYTES:
            self._upkeep.write_apart(batch, self._written)
            return
        try:
            try:
                self._writer.write(batch)
            except (JournalBusy, JournalFull) as error:
                self._upkeep.try_again(batch, error, self._written)
            else:
                self._written(batch)
        except Exception as error:  # noqa: BLE001 - after any error, nothing more may be acknowledged
            self._listener.failed(error)

    def _written(self, batch: Batch) -> None:
        upkeep = self._upkeep
        self._timing.written(batch)
        upkeep.committed()
        if self._sync_interval_ms != 0:
            self._writer.check()
            self._durable(batch)
            return
        upkeep.syncing = True
        self._awake.sync_begins()

        def synced(error: JournalFailed | None) -> None:
            upkeep.syncing = False
            took_s = self._awake.sync_ended()
            if error is not None:
                self._listener.failed(error)
                return
            self._timing.synced(took_s)
            try:
                self._durable(batch)
            except Exception as bug:  # noqa: BLE001 - this may run between the commands of an unrelated client
                self._listener.failed(bug)

        self._writer.begin_sync(synced)
        if upkeep.syncing:
            self._awake.sync_waits()

    def _durable(self, batch: Batch) -> None:
        self._timing.durable(batch)
        self._listener.durable(batch.number, batch.last_id)
        self._upkeep.batch_ends()

    async def fetch(self, job_ids: Sequence[int]) -> list[bytes | None]:
        """Read bodies while other clients are served; see ``Journal.fetch``."""
        return await self._bodies.read(job_ids)

    def poll(self) -> None:
        """Let the kernel continue with the sync, and check whether it has completed.

        The kernel performs the sync on the core that requested it. While clients keep this process busy, the kernel
        would otherwise get that core only some milliseconds later.
        """
        sched_yield()
        self._writer.poll()

    # -- the end

    def begin_stop(self) -> None:
        """Start no more upkeep."""
        self._upkeep.begin_stop()

    async def flush(self) -> None:
        """Sync everything that has been committed."""
        await self._upkeep.flush()

    def reconfigure(self, history_s: int | None, history_bytes: int, *, history_bodies: bool) -> None:
        """Apply new settings for the history and for the logging of commits; see ``Journal.reconfigure``."""
        self._timing.heed_log()
        self._writer.chronicle.history.bound(HistoryBounds(history_s, history_bytes, history_bodies))

    def facts(self) -> JournalFacts:
        """Statistics about the file and its -wal."""
        return JournalFacts(
            keeps_jobs=True,
            records=self._writer.records,
            log_bytes=self._writer.wal_bytes,
            log_bytes_max=WAL_BYTES_MAX,
            unsynced_s=self._unsynced_s(),
        )

    def _unsynced_s(self) -> float | None:
        if self._sync_interval_ms != 0:
            return None if self._sync_interval_ms is None else self._upkeep.unsynced_s
        return self._awake.syncing_s if self._upkeep.syncing else 0.0

    async def close(self) -> str | None:
        """Close the journal, leaving a single file that holds everything; see ``Journal.close``."""
        await self._bodies.close()
        return await self._writer.close()


async def _unlocked(attempt: Callable[[], _Result], stopped: asyncio.Event) -> _Result | None:
    """Return the result of an attempt, made again while it raises JournalLocked; None: a stop was requested."""
    loop = asyncio.get_running_loop()
    ends_s = None
    while True:
        try:
            return attempt()
        except JournalLocked:
            if ends_s is None:
                ends_s = loop.time() + LOCK_WAIT_S
                log.warning("start is waiting: another program has locked the file")
            elif loop.time() > ends_s:
                raise
        await asyncio.sleep(HEAR_S)
        if stopped.is_set():
            return None


def _tell_progress(jobs: int, of: int) -> None:
    log.info("recovering", jobs=jobs, of=of)
    systemd.recovering(jobs, of)


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
        yield fitted(rows, room - memory.body_bytes)
        if memory.body_bytes > room - room // 4:
            break
    yield from read_jobs(connection, path, last_id, bodies=False)
