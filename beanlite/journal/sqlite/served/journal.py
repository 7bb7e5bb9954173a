"""The journal in an SQLite file: stores batches of changes on disk and replays them at the start."""

import asyncio
from collections.abc import Sequence
from os import sched_yield
from pathlib import Path

from beanlite.core.engine import Engine
from beanlite.core.ledger import Changes
from beanlite.errors import JournalBusy, JournalFull
from beanlite.host.clock import Clock
from beanlite.journal.base import Journal, JournalFacts, Observer
from beanlite.journal.event_rows import HistoryBounds
from beanlite.journal.sqlite.file.database import WAL_BYTES_MAX
from beanlite.journal.sqlite.served.awake import StayAwake
from beanlite.journal.sqlite.served.batch import batch_of
from beanlite.journal.sqlite.served.leisure import Leisure
from beanlite.journal.sqlite.served.recovery import Recovery
from beanlite.journal.sqlite.served.timing import Timing
from beanlite.journal.sqlite.served.under_way import UnderWay
from beanlite.journal.sqlite.served.upkeep import APART_BYTES, Upkeep


class SqliteJournal(Journal):
    """A journal that commits each batch as one transaction, and syncs it before it is durable, at intervals, or not."""

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
        self._recovery = Recovery(path, fsync, max_job_size, address, history)
        self._sync_interval_ms = sync_interval_ms

    async def recover(self, engine: Engine, clock: Clock, stopped: asyncio.Event) -> bool:
        """Open the file and fill the engine with its jobs; see ``Journal.recover``."""
        if not await self._recovery.run(engine, clock, stopped):
            return False
        self._engine = engine
        self._writer = self._recovery.writer
        self._bodies = self._recovery.bodies
        return True

    def attach(self, listener: Observer) -> None:
        """Start committing on behalf of the listener."""
        loop = asyncio.get_running_loop()
        self._listener = listener
        self._under_way = UnderWay()
        self._upkeep = Upkeep(self._writer, self._engine, self._under_way, loop, listener.ready, listener.failed)
        self._awake = StayAwake(loop, self.poll)
        self._timing = Timing(self._engine.ledger.measures)
        interval_ms = self._sync_interval_ms
        self._upkeep.start(interval_ms / 1000 if interval_ms else None)
        Leisure(self._writer, self._upkeep, self._under_way, syncs=interval_ms == 0).start()

    # -- batch by batch

    @property
    def busy(self) -> bool:
        """Whether no batch may be committed at the moment."""
        return self._under_way.busy

    @property
    def working(self) -> bool:
        """Whether a thread is moving the -wal into the file, or writing a large batch."""
        return self._under_way.working

    @property
    def syncing(self) -> bool:
        """Whether a batch is being synced."""
        return self._under_way.syncing

    def commit(self, changes: Changes) -> None:
        """Write a batch, and sync it if the ``fsync`` setting requires that; see ``Journal.commit``."""
        self._under_way.write(changes.batch, changes.last_id)
        batch = batch_of(changes, self._writer.chronicle.history)
        self._under_way.jobs, self._under_way.body_bytes = batch.jobs, batch.body_bytes
        if batch.body_bytes > APART_BYTES:
            self._upkeep.write_apart(batch, self._after_write)
            return
        try:
            try:
                self._writer.write(batch)
            except (JournalBusy, JournalFull) as error:
                self._upkeep.try_again(batch, error, self._after_write)
            else:
                self._after_write()
        except Exception as error:  # noqa: BLE001 - after any error, nothing more may be acknowledged
            self._listener.failed(error)

    def _after_write(self) -> None:
        """Have the batch synced, if that is wanted, now that it is written."""
        under_way = self._under_way
        self._timing.note_write(under_way)
        self._upkeep.note_commit(under_way.began_s, under_way.body_bytes)
        if self._sync_interval_ms == 0:
            under_way.sync()
            self._awake.sync_begins(under_way.since_s)
            self._writer.begin_sync(self._after_sync)
            if under_way.syncing:
                self._awake.sync_waits()
        else:
            self._writer.check()
            under_way.tell()
            self._durable()

    def _after_sync(self, error: Exception | None) -> None:
        """Report the batch durable, unless its sync has failed."""
        try:
            took_s = self._under_way.tell()
            self._awake.sync_ended(took_s)
            self._writer.check_sync(error)
            self._timing.note_sync(took_s)
            self._durable()
        except Exception as failure:  # noqa: BLE001 - this may run between the commands of an unrelated client
            self._listener.failed(failure)

    def _durable(self) -> None:
        under_way = self._under_way
        self._timing.note_durable(under_way)
        self._listener.durable(under_way.batch, under_way.last_id)
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

    def give_up(self) -> bool:
        """Give up the batch that waits for another program's lock; see ``Journal.give_up``."""
        return self._upkeep.give_up()

    async def flush(self) -> None:
        """Sync everything that has been committed."""
        await self._upkeep.flush()

    def reconfigure(self, history_s: int | None, history_bytes: int, *, history_bodies: bool) -> None:
        """Apply new settings for the history and for the logging of commits; see ``Journal.reconfigure``."""
        self._timing.heed_log()
        self._writer.chronicle.history.bound(HistoryBounds(history_s, history_bytes, history_bodies))

    def facts(self) -> JournalFacts:
        """Return statistics about the file and its -wal."""
        return JournalFacts(
            keeps_jobs=True,
            records=self._writer.records,
            log_bytes=self._writer.wal_bytes,
            log_bytes_max=WAL_BYTES_MAX,
            unsynced_s=self._unsynced_s(),
            history_bodies_max=self._writer.chronicle.history.bodies_max,
        )

    def _unsynced_s(self) -> float | None:
        if self._sync_interval_ms != 0:
            return None if self._sync_interval_ms is None else self._upkeep.unsynced_s
        return self._under_way.for_s if self._under_way.syncing else 0.0

    async def close(self) -> str | None:
        """Close the journal, leaving a single file that holds everything; see ``Journal.close``."""
        await self._bodies.close()
        return await self._writer.close()
