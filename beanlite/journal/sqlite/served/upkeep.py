"""What the file needs besides commits: checkpoints, handling of a full disk, syncs at intervals, audits.

``UnderWay`` says when it may use the writer.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Final

from beanlite.core.engine import Engine
from beanlite.core.job import SECOND_NS
from beanlite.errors import JournalBusy, JournalFailed, JournalFull
from beanlite.host import log
from beanlite.journal.sqlite.served.batch import Batch
from beanlite.journal.sqlite.served.under_way import UnderWay
from beanlite.journal.sqlite.served.writer import Writer

# How long to wait before a batch is retried while another program has the file locked.
BUSY_RETRY_S: Final = 0.005
# The same while the disk is full, and how often a full disk is checked for room.
FULL_RETRY_S: Final = 1.0
# How often the room on the disk is measured while there is some.
MEASURE_S: Final = 0.01
# A batch whose large bodies add up to more than this is written in the worker thread.
APART_BYTES: Final = 6 << 20
# The pause between two slices of an audit.
AUDIT_REST_S: Final = 0.01
# A commit that waits longer than this for another program is logged.
LOCKED_S: Final = 0.5


class Upkeep:
    """The maintenance of a database while it is served."""

    def __init__(
        self,
        writer: Writer,
        engine: Engine,
        under_way: UnderWay,
        loop: asyncio.AbstractEventLoop,
        tell_ready: Callable[[], None],
        tell_failure: Callable[[Exception], None],
    ) -> None:
        """``tell_ready`` is called whenever the writer is free for the next batch, ``tell_failure`` on a failure."""
        self._writer = writer
        self._engine = engine
        self._loop = loop
        self._tell_ready = tell_ready
        self._tell_failure = tell_failure
        self._under_way = under_way
        self.stopping = False
        """The server is about to stop: no new upkeep is started."""
        self._auditing = False
        self._writing: asyncio.Task[None] | None = None
        """The last batch that was not written at once."""
        self._lock: JournalBusy | None = None
        """Why that batch waits, unless it waits for room on the disk."""
        self._unsynced_since_s = 0.0
        """Time of the first commit since the last timed sync began; 0: there has been none."""
        self._syncing_since_s = 0.0
        """Time of the first commit that the current timed sync covers; 0: no timed sync is under way."""
        self._timed_sync: asyncio.Task[None] | None = None
        self._no_timed_sync = asyncio.Event()
        """Set while the task waits for the next interval."""
        self._no_timed_sync.set()
        self._awaiting_room: asyncio.Task[None] | None = None
        self._room_due = False
        """It is time to look for room on the full disk, once the batch that is under way has ended."""
        self._measure_at_s = 0.0
        """When the room on the disk is to be measured next; between, puts without large bodies are taken off."""
        self._oddities = log.Seldom()

    def start(self, sync_interval_s: float | None) -> None:
        """Start the timed syncs if there is an interval, and the wait for room if the disk is full."""
        if sync_interval_s:
            self._timed_sync = self.begin(self._sync_by_time(sync_interval_s))
        if self._engine.admission.disk_full:
            self._begin_to_await_room()

    def begin_stop(self) -> None:
        """Start nothing more."""
        self.stopping = True

    async def flush(self) -> None:
        """Sync everything that has been committed. Raises JournalFailed."""
        if self._timed_sync is not None:
            await self._no_timed_sync.wait()
            if self._timed_sync.done():
                await self._timed_sync  # it has failed; a sync after that would prove nothing
            self._timed_sync.cancel()
            self._timed_sync = None
        await self._writer.sync()

    # -- around each batch

    def note_unsynced(self) -> None:
        """Note that something has been committed that the next timed sync is to cover."""
        if not self._unsynced_since_s:
            self._unsynced_since_s = time.monotonic()

    @property
    def unsynced_s(self) -> float:
        """How long the oldest commit that is not yet synced has been waiting for a timed sync."""
        since_s = self._syncing_since_s or self._unsynced_since_s
        return time.monotonic() - since_s if since_s else 0.0

    def note_commit(self, now_s: float, body_bytes: int) -> None:
        """Note that a batch has been written; it may still have to be synced."""
        self.note_unsynced()
        if self._writer.others_came and not self._auditing:
            self._auditing = True
            self.begin(self._audit())
        if (body_bytes or now_s >= self._measure_at_s) and not self._engine.admission.disk_full:
            self._measure_at_s = now_s + MEASURE_S
            self._engine.admission.accept_puts(self._writer.room.for_bodies())

    def batch_ends(self) -> None:
        """Free the writer after a batch has become durable, or begin the upkeep that is due."""
        if self._room_due and self._engine.admission.disk_full and not self.stopping:
            self._begin_alone(self._make_room())
        # While the disk is full, a growing -wal would use up the remaining room.
        elif self._writer.frames.checkpoint_due or self._engine.admission.disk_full:
            self.begin_checkpoint()
        else:
            self._free()

    def write_apart(self, batch: Batch, then: Callable[[], None]) -> None:
        """Write a batch that takes long while commands that need no commit are served; call ``then`` after it."""
        self._writing = self.begin(self._write_apart(batch, then))

    async def _write_apart(self, batch: Batch, then: Callable[[], None]) -> None:
        failure = await self._write(batch)
        if failure is None:
            then()
        else:
            await self._write_again(batch, failure, then)

    async def _write(self, batch: Batch) -> JournalFailed | None:
        """Write a batch, apart if it takes long; return None, or why it has to be tried again."""
        try:
            if batch.body_bytes > APART_BYTES:
                self._under_way.write_apart()
                await self._writer.write_apart(batch)
            else:
                self._writer.write(batch)
        except (JournalBusy, JournalFull) as error:
            self._under_way.wait()
            return error
        return None

    def try_again(self, batch: Batch, error: JournalFailed, then: Callable[[], None]) -> None:
        """Retry a batch that could not be written because the disk is full or the file is locked, until it is written.

        Nothing is reported to the listener meanwhile; ``then`` is called at the end.
        """
        self._writing = self.begin(self._write_again(batch, error, then))

    async def _write_again(self, batch: Batch, error: JournalFailed, then: Callable[[], None]) -> None:
        since_s = time.monotonic()
        warned = False
        while True:
            self._lock = error if isinstance(error, JournalBusy) else None
            if isinstance(error, JournalFull):
                if not self._engine.admission.disk_full:
                    self._disk_full()
                elif not self._writer.give_up_reserve():  # the server may have started on a full disk
                    if not warned:
                        warned = True
                        self._oddities.warning("commits are waiting: disk full")
                    await asyncio.sleep(FULL_RETRY_S)
                await self._move_wal()  # the -wal is then reused from its beginning, and needs no more room
            else:
                if not warned and time.monotonic() - since_s > LOCKED_S:
                    warned = True
                    self._oddities.warning("commits wait", why=str(error))
                await asyncio.sleep(BUSY_RETRY_S)
            self._lock = None
            again = await self._write(batch)
            if again is None:
                break
            error = again
        then()

    def give_up(self) -> bool:
        """Have a batch that waits for another program's lock written no more; False: none does."""
        if self._writing is None or self._lock is None:
            return False
        self._writing.cancel()  # it only sleeps, until it tries again
        log.warning("what no client waited for was not stored", why=str(self._lock))
        return True

    # -- tasks

    def begin(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Start a task whose failure ends the server."""
        task = self._loop.create_task(work)
        task.add_done_callback(self._hear_of_failure)
        return task

    def _hear_of_failure(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._tell_failure(error if isinstance(error, Exception) else RuntimeError(repr(error)))

    def _begin_alone(self, work: Coroutine[None, None, None]) -> None:
        """Start upkeep during which no batch may be written, and which has to end with ``_free``."""
        self._under_way.keep_up()
        self.begin(work)

    def _free(self) -> None:
        self._under_way.end()
        self._tell_ready()

    # -- checkpoints

    def begin_checkpoint(self) -> None:
        """Begin to move the -wal into the file; nothing else may be under way."""
        self._begin_alone(self._checkpoint())

    async def _checkpoint(self) -> None:
        await self._move_wal()
        self._free()

    async def _move_wal(self) -> None:
        """Move the -wal into the file as far as readers allow, so that it is reused from its beginning."""
        began_s = time.monotonic()
        try:
            await self._writer.checkpoint()
        except JournalFull:
            if not self._engine.admission.disk_full:
                self._disk_full()
        except JournalBusy:
            pass  # a reader is recovering or closing the file; the next checkpoint will move what this one could not
        measures = self._engine.ledger.measures
        if measures is not None:
            measures.checkpoints.note(round((time.monotonic() - began_s) * SECOND_NS))
        if self._writer.frames.is_warning_due():
            log.warning("a reader keeps the -wal from shrinking", wal_bytes=self._writer.wal_bytes)

    # -- a full disk

    def _disk_full(self) -> None:
        """Refuse puts, and give up the reserve: accepted changes need it, and so do deletes, which make room."""
        log.warning("disk full: puts are refused until there is room again")
        self._engine.admission.refuse_puts()
        self._writer.give_up_reserve()
        self._begin_to_await_room()

    def _begin_to_await_room(self) -> None:
        # It may wait still, if there was room for less than a second.
        if self._awaiting_room is None or self._awaiting_room.done():
            self._awaiting_room = self.begin(self._await_room())

    async def _await_room(self) -> None:
        while self._engine.admission.disk_full:
            await asyncio.sleep(FULL_RETRY_S)
            if self._engine.admission.disk_full and not self.stopping:
                self._room_due = self._under_way.busy  # with many clients it may be so at each look
                if not self._room_due:
                    self._begin_alone(self._make_room())

    async def _make_room(self) -> None:
        self._room_due = False
        await self._move_wal()
        if not await self._shrink() and self._writer.give_up_reserve():
            await self._shrink()
        if self._writer.room.take_reserve():  # even if it is not enough: another program may take what there is
            self._engine.admission.accept_puts(self._writer.room.for_bodies())
            log.info("disk has room again: puts are accepted")
        self._room_due = False  # a look may have found this under way: batches come first
        self._free()

    async def _shrink(self) -> bool:
        """Give back what the file and the -wal do not need; False: there is not even the room that this takes."""
        try:
            await self._writer.shrink()
        except (JournalFull, JournalBusy) as error:
            return isinstance(error, JournalBusy)
        return True

    # -- other programs, and timed syncs

    async def _audit(self) -> None:
        """Verify that the file still holds what was written, after another program has committed something."""
        while self._writer.others_came:
            self._writer.others_came = False
            for _ in self._writer.audit(self._engine):
                await asyncio.sleep(AUDIT_REST_S)
                while not self._under_way.may_write:  # noqa: ASYNC110 - this is brief, except on a full disk
                    await asyncio.sleep(AUDIT_REST_S)
                if self.stopping:
                    return
        self._auditing = False

    async def _sync_by_time(self, interval_s: float) -> None:
        """Sync once per interval if anything was committed in it, whether or not more commits follow."""
        took_s = 0.0
        while True:
            await asyncio.sleep(max(0.0, interval_s - took_s))
            took_s = 0.0
            if self._unsynced_since_s:
                self._syncing_since_s, self._unsynced_since_s = self._unsynced_since_s, 0.0
                began_s = time.monotonic()
                self._no_timed_sync.clear()
                try:
                    await self._writer.sync()
                finally:
                    self._syncing_since_s = 0.0
                    self._no_timed_sync.set()
                took_s = time.monotonic() - began_s
                measures = self._engine.ledger.measures
                if measures is not None:
                    measures.syncs.note(round(took_s * SECOND_NS))
