"""The commit barrier: no reply leaves before what it acknowledges is stored.

All that the connections change within one turn of the loop becomes one batch. While a batch is being synced the next
one gathers by itself: the group commit; no timer, no delay added.

A batch is committed on the loop's own thread: a matter of memory. Its sync is left to the kernel (``journal.sync``),
while the loop serves on, unless other processes keep the core busy. A thread for either would starve for the GIL beside
busy clients (measured on one core, 50 clients in put, reserve, delete beside 50 that keep the loop busy: 9 k ops/s of
45 k alone).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine
from os import sched_yield
from typing import TYPE_CHECKING, Final

from beanlite import log
from beanlite.errors import JournalBusy, JournalFailed, JournalFull

if TYPE_CHECKING:
    from beanlite.core.engine import Engine
    from beanlite.journal.sqlite.writer import Batch, Journal
    from beanlite.net.connection import Connection

LAG_S: Final = (
    0.02  # a reservation, touch or timeout is in the file after this time, if nothing carries it there sooner
)
BATCH_JOBS: Final = 1000  # some 3 ms to write; and ...
BATCH_BYTES: Final = 4 << 20  # ... of bodies: who has sent much of it then waits for the next
WAY_EVERY: Final = 8  # commands
AUDIT_EVERY_S: Final = 0.01  # from slice to slice
AWAKE_S: Final = 0.0005  # the loop does not sleep for the end of a sync that should take no longer
BUSY_RETRY_S: Final = 0.005
DRAIN_S: Final = 10.0  # a stop waits no longer for a full disk
LOOK_S: Final = 0.1  # no more of it is counted from one look to the next: the process itself may have been halted
FULL_RETRY_S: Final = 1.0
LOOSE_LOOK_S: Final = 1.0  # from one look at what the file has free to the next
SHRINK_EVERY_S: Final = 0.01  # and from slice to slice, once that is worth giving back
SHRINK_PAGES_MAX: Final = 100  # in a slice; less if that takes longer than ...
SHRINK_S: Final = 0.001
SHRINK_REST: Final = 9  # times as long nothing is given back
SLOW_SYNC_S: Final = 0.5  # worth a line in the log
WAL_FRAMES_MAX: Final = 50_000  # 200 MB; worth one, too

_Held = list[tuple["Connection", bytes]]


class Barrier:
    """Gathers changes and the connections that wait for them, and hands them to the journal batch by batch."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        engine: Engine,
        journal: Journal | None,
        fsync_ms: int | None,
        fail: Callable[[Exception], None],
        took: Callable[[], None],
    ) -> None:
        """``fsync_ms``: 0 syncs each batch before it is acknowledged, None never.

        ``fail`` hears of the end, ``took`` when a batch has been taken, and who is ahead may go on.
        """
        self._loop = loop
        self._engine = engine
        self._journal = journal
        self._fsync_ms = fsync_ms
        self._tell = fail
        self._took = took
        self._closed = False
        """No more batches are written, and so nothing more is acknowledged."""
        self._held: _Held = []
        self._turn_due = False
        self.lag_due = False
        self._lagging = False
        """The next batch takes what lags, too."""
        self._busy = False
        """No batch is written: one is being synced, a checkpoint goes on, or the last write has to be tried again."""
        self.syncing = False
        """A batch is with the kernel."""
        self._room_bytes = engine.room_bytes
        """What the engine had when the batch being gathered began."""
        self._sync_s = 0.0
        """How long the last sync took."""
        self._awake = False
        self._awake_until_s = 0.0
        self._served = 0
        self._slow_syncs = log.Seldom()
        self._waits_for_room = log.Seldom()
        self._waits_for_lock = log.Seldom()
        self._warned_frames = 0
        """In the -wal when the log last told of a reader that keeps it from shrinking; 0: not since it has shrunk."""
        self._auditing = False
        self._draining = False
        self._sync_timer: asyncio.Task[None] | None = None
        self._synced = True
        self._syncing_by_time = False
        if journal is not None and fsync_ms:
            self._sync_timer = self._begin(self._sync_by_time(journal, fsync_ms / 1000))
        if journal is not None:
            self._begin(self._shrink_by_and_by(journal))
        if journal is not None and engine.full:
            self._begin(self._await_room(journal))

    def hold(self, connection: Connection, replies: bytes) -> None:
        """Release the replies to the connection when what has changed so far is stored."""
        self._held.append((connection, replies))
        if not self._turn_due and not self._busy:
            self._turn_due = True
            self._loop.call_soon(self._turn)

    @property
    def full(self) -> bool:
        """Whether the batch being gathered has become so large that others would notice it.

        Not unless somebody waits for it: then it will be taken, and ``took`` be called.
        """
        engine = self._engine
        return bool(self._held) and (
            len(engine.changed) > BATCH_JOBS or self._room_bytes - engine.room_bytes > BATCH_BYTES
        )

    def served(self) -> None:
        """To be called after each command while ``syncing``."""
        self._served += 1
        if not self._served % WAY_EVERY:
            self.give_way()

    def give_way(self) -> None:
        """Let the kernel go on with the sync, and see whether that has ended; to be called while ``syncing``.

        The kernel syncs on the core that asked for it. Beside clients that keep this process busy it would get that
        core some milliseconds later: beside the 50 of above that is half the speed. And to look for the end here, not
        when all of them have been served, is 1.37 times the speed.
        """
        sched_yield()
        if self._journal is not None:
            self._journal.see_syncs()

    def lag(self) -> None:
        """Something has changed that nobody waits for: write it before long. To be called unless ``lag_due``."""
        self.lag_due = True
        self._loop.call_later(LAG_S, self._lag_is_over)

    async def drain(self) -> None:
        """Write, sync and release all there is; to be called at the end. JournalFailed: it can't be."""
        self._draining = True
        await self._until_idle()
        if self._sync_timer is not None:
            while self._syncing_by_time and not self._closed:  # noqa: ASYNC110 - once, at the end
                await asyncio.sleep(0.001)
            self._sync_timer.cancel()
            self._sync_timer = None
        self._lag_is_over()
        await self._until_idle()
        if self._journal is not None and not self._closed:
            await self._journal.sync()

    async def _until_idle(self) -> None:
        stored, left_s = -1, DRAIN_S
        looked_s = time.monotonic()
        while (self._busy or self._turn_due or self._lagging) and not self._closed:
            now_s = time.monotonic()
            left_s -= min(now_s - looked_s, LOOK_S)
            looked_s = now_s
            if self._engine.stored_batch != stored:
                stored, left_s = self._engine.stored_batch, DRAIN_S
            if left_s < 0:
                raise JournalFailed(
                    f"the last batch could not be stored within {DRAIN_S:.0f} s; nobody was told it was"
                )
            await asyncio.sleep(0.001)

    def close(self) -> None:
        """Write nothing more: what is not stored is not acknowledged, now or later."""
        self._closed = True

    def _fail(self, error: Exception) -> None:
        self.close()
        self._tell(error)

    def _lag_is_over(self) -> None:
        self.lag_due = False
        self._lagging = True
        self._turn()

    def _turn(self) -> None:
        """The end of the loop's turn: what has gathered becomes a batch."""
        self._turn_due = False
        if self._busy or self._closed:
            return  # the end of what goes on calls here
        changes = self._engine.take_changes(lagging=self._lagging)
        self._lagging = self._lagging and self._engine.lags
        held, self._held = self._held, []
        self._room_bytes = self._engine.room_bytes
        self._took()
        journal = self._journal
        if journal is None or not (held or changes.jobs or changes.pauses):
            self._see_turn()  # more may lag
            return
        batch = journal.batch_of(changes)
        try:
            try:
                journal.write(batch)
            except (JournalBusy, JournalFull) as error:
                self._go_aside(self._write_again(journal, batch, held, error))
            else:
                self._written(journal, batch, held)
        except Exception as error:  # noqa: BLE001 - whatever it is, nothing may be acknowledged any more
            self._fail(error)

    def _written(self, journal: Journal, batch: Batch, held: _Held) -> None:
        """A batch is committed: sync it, if that is what its acknowledgement says, and release who waits for it."""
        if journal.others_came and not self._auditing:
            self._auditing = True
            self._begin(self._audit(journal))
        self._engine.room_bytes = self._room_bytes = journal.room.for_bodies()
        if self._fsync_ms != 0:
            journal.check()
            self._synced = False
            self._stored(journal, batch, held)
            return
        self._busy = self.syncing = True
        began_s = time.monotonic()

        def synced(error: JournalFailed | None) -> None:
            self.syncing = False
            if error is not None:
                self._fail(error)
                return
            self._sync_s = time.monotonic() - began_s
            if self._sync_s > SLOW_SYNC_S:
                self._slow_syncs.warning("slow sync", seconds=round(self._sync_s, 3))
            self._busy = False
            try:
                self._stored(journal, batch, held)
            except Exception as bug:  # noqa: BLE001 - it may be amid the commands of any client that this is called
                self._fail(bug)

        journal.begin_sync(synced)
        if self.syncing and self._sync_s < AWAKE_S:
            self._awake_until_s = began_s + AWAKE_S
            if not self._awake:
                self._awake = True
                self._loop.call_soon(self._stay_awake)

    def _stay_awake(self) -> None:
        """Keep the loop turning until a sync that should be a short one has ended; others get the core meanwhile.

        A processor that has gone to sleep, above all a virtual one, is slow to wake, and then does its work slowly: one
        client alone has 1.13 times the speed so, five have 1.17; with fifty it makes no difference.
        """
        if self.syncing and time.monotonic() < self._awake_until_s:
            self.give_way()
            self._loop.call_soon(self._stay_awake)
        else:
            self._awake = False

    def _stored(self, journal: Journal, batch: Batch, held: _Held) -> None:
        """A batch is safe: its replies leave, and the next one can be written."""
        self._engine.stored_batch = batch.number
        self._engine.stored_id = batch.last_id
        for connection, replies in held:
            connection.release(replies)
        if journal.checkpoint_due or self._engine.full:  # on a full disk, a -wal that grew would eat up what is left
            self._go_aside(self._checkpoint(journal))
        else:
            self._see_turn()

    def _see_turn(self) -> None:
        """Have a batch made at the end of the loop's next turn, if there is something for it.

        Not of this one: what clients have sent while the last batch was synced is read first. With 20 and 50 clients in
        put, reserve, delete that is 1.1 times the speed, and more or fewer are as fast as without.
        """
        if not self._turn_due and (self._held or self._lagging):
            self._turn_due = True
            self._loop.call_soon(self._loop.call_soon, self._turn)

    # -- what takes long, one at a time

    def _begin(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        task.add_done_callback(self._see_failure)
        return task

    def _see_failure(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._fail(error if isinstance(error, Exception) else RuntimeError(repr(error)))

    def _go_aside(self, work: Coroutine[None, None, None]) -> None:
        self._busy = True
        self._begin(work)

    def _come_back(self) -> None:
        self._busy = False
        self._see_turn()

    async def _write_again(self, journal: Journal, batch: Batch, held: _Held, error: JournalFailed) -> None:
        """The disk is full, or another program has the file locked: nobody is told anything until it goes."""
        since_s = time.monotonic()
        warned = False
        while True:
            if isinstance(error, JournalFull):
                if not self._engine.full:
                    self._disk_full(journal)
                elif not journal.room.give_up_reserve():  # else the disk was full at the start, and a reserve was left
                    if not warned:
                        warned = True
                        self._waits_for_room.warning("commits wait: the disk is full to the last byte")
                    await asyncio.sleep(FULL_RETRY_S)
                await self._move_wal(journal)  # so that the -wal is used from its beginning, and needs no more room
            else:
                if not warned and time.monotonic() - since_s > SLOW_SYNC_S:
                    warned = True
                    self._waits_for_lock.warning("commits wait", why=str(error))
                await asyncio.sleep(BUSY_RETRY_S)
            try:
                journal.write(batch)
            except (JournalBusy, JournalFull) as again:
                error = again
            else:
                break
        self._busy = False
        self._written(journal, batch, held)

    def _disk_full(self, journal: Journal) -> None:
        """Refuse puts, and use the reserve for what has been accepted and for what makes room: deletes."""
        log.warning("disk full: puts are refused until there is room again")
        self._engine.full = True
        journal.room.give_up_reserve()
        self._begin(self._await_room(journal))

    async def _await_room(self, journal: Journal) -> None:
        while self._engine.full:
            await asyncio.sleep(FULL_RETRY_S)
            if self._engine.full and not self._busy and not self._draining:
                self._go_aside(self._make_room(journal))

    async def _make_room(self, journal: Journal) -> None:
        await self._move_wal(journal)
        with contextlib.suppress(JournalFull, JournalBusy):
            await journal.shrink()
        if journal.room.take_reserve():
            self._engine.full = False
            self._engine.room_bytes = self._room_bytes = journal.room.for_bodies()
            log.info("disk has room again: puts are accepted")
        self._come_back()

    async def _checkpoint(self, journal: Journal) -> None:
        await self._move_wal(journal)
        self._come_back()

    async def _shrink_by_and_by(self, journal: Journal) -> None:
        """Give the room of what is gone back to the disk, a little at a time and beside all else.

        SQLite seeks each page at the file's end among all the free ones. Of 650 MB, a hundred take 0.5 ms if the newest
        jobs were deleted last, and 75 if they were the first.
        """
        shrinking = False
        pages, took_s = 1, 0.0
        while True:
            await asyncio.sleep(max(SHRINK_EVERY_S, SHRINK_REST * took_s) if shrinking else LOOSE_LOOK_S)
            if self._draining:
                return
            if self._busy and not self.syncing:
                continue
            if journal.loose:
                if not shrinking:
                    shrinking, pages = True, 1  # the last backlog may have gone in another order
                began_s = time.monotonic()
                with contextlib.suppress(JournalFull, JournalBusy):
                    journal.give_back(pages)
                took_s = time.monotonic() - began_s
                pages = min(2 * pages, SHRINK_PAGES_MAX) if took_s < SHRINK_S else int(pages * SHRINK_S / took_s) or 1
            if shrinking and not self._busy:
                shrinking = journal.loose
                if journal.checkpoint_due or not shrinking:
                    self._go_aside(self._checkpoint(journal))

    async def _audit(self, journal: Journal) -> None:
        """See that the file holds what we have written, after another program has been at it."""
        while journal.others_came:
            journal.others_came = False
            for _ in journal.audit(self._engine):
                await asyncio.sleep(AUDIT_EVERY_S)
                while self._busy and not self.syncing:  # noqa: ASYNC110 - for moments, but for a full disk
                    await asyncio.sleep(AUDIT_EVERY_S)
                if self._draining:
                    return
        self._auditing = False

    async def _move_wal(self, journal: Journal) -> None:
        try:
            await journal.checkpoint()
        except JournalFull:
            if not self._engine.full:
                self._disk_full(journal)
        except JournalBusy:
            pass  # a reader is just recovering or closing; the next batch tries again
        if journal.wal_frames <= WAL_FRAMES_MAX:
            self._warned_frames = 0
        elif journal.pinned and journal.wal_frames >= 2 * self._warned_frames:
            self._warned_frames = journal.wal_frames
            log.warning("a reader keeps the -wal from shrinking", wal_bytes=journal.wal_bytes)

    async def _sync_by_time(self, journal: Journal, interval_s: float) -> None:
        """Sync at least every so often, whether or not anything more comes."""
        while True:
            await asyncio.sleep(interval_s)
            if not self._synced:
                self._synced = self._syncing_by_time = True
                await journal.sync()
                self._syncing_by_time = False
