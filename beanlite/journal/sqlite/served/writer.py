"""The hot path of the journal: each batch of changes is one transaction on the state table.

There is no separate log: the table is the journal.

Batches are written on the caller's thread, because that only fills the page cache; in a thread of its own a batch would
wait too long for the GIL while clients are busy. Long operations, such as a checkpoint or a batch with large bodies,
are awaited and run in aiosqlite's thread on the same connection. Only one connection writes and checkpoints, because
SQLite before 3.51.3 can corrupt the file when two do. While such an operation is awaited, nothing may be written; a
sync is the exception.
"""

import asyncio
import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

import aiosqlite

from beanlite.core.engine import Engine
from beanlite.errors import JournalBusy, JournalFailed, JournalFull
from beanlite.host.clock import Clock
from beanlite.journal.event_rows import HistoryBounds
from beanlite.journal.sqlite.file.database import Database
from beanlite.journal.sqlite.file.fileformat import failed, failing, refused, wal_of, wal_size
from beanlite.journal.sqlite.file.stray import CHANGE_HEADER, Tie
from beanlite.journal.sqlite.served.audit import audit
from beanlite.journal.sqlite.served.batch import FRAMES_BESIDE_ROWS, FRAMES_PER_ROW, Batch
from beanlite.journal.sqlite.served.chronicle import Chronicle
from beanlite.journal.sqlite.served.failures import disagreement, failure_of
from beanlite.journal.sqlite.served.frames import CHECKPOINT_FRAMES, Frames
from beanlite.journal.sqlite.served.guards import switch_off_triggers
from beanlite.journal.sqlite.served.sync import Report, SoonestSync, background_sync
from beanlite.journal.sqlite.served.watch import Outsiders, Watch

# Ids are promised this many at a time, because writing the last id with each batch would add a page to the batch, which
# a lone client would notice.
IDS_AHEAD: Final = 1000

# Pages given back at a time while the disk is full. If there is no room for that, fewer are tried, down to the minimum.
SHRINK_PAGES: Final = 2000
SHRINK_PAGES_MIN: Final = 20
# Free pages are kept up to this many times the number in use, since giving pages back means moving those in use ...
LOOSE_TIMES: Final = 3
# ... and in any case up to this number, for the next backlog.
SPARE_PAGES: Final = 2000

# The errors that can end a transaction without there being a bug of ours.
_FAILURES: Final = (sqlite3.Error, OSError, MemoryError)
# The facts about the last batch; the table has one row.
_UPDATE_META: Final = "UPDATE meta SET batch = ?, last_id = ?"


_Result = TypeVar("_Result")


class Writer:
    """A writer of batches to a database that no other writer uses; it also gives unneeded space back."""

    def __init__(self, database: Database, address: str, bounds: HistoryBounds, clock: Clock, jobs: int) -> None:
        """``address`` is where the server listens, ``clock`` is its clock, and ``jobs`` is how many jobs are stored."""
        self._database = database
        self.chronicle = Chronicle(database.connection, address, bounds, clock)
        self._db = database.connection
        self._worker = aiosqlite.Connection(lambda: database.connection, iter_chunk_size=64)
        self.room = database.room
        self.frames = Frames(database.index)
        # The kernel tells each open file of a failed write just once: if two syncs of one are under way, the second to
        # end seems to have gone well. Therefore slices are synced by an open file of their own.
        self._wal = self._wal_of_slices = -1  # file descriptors of the -wal
        self._promised_id = 0
        """The last id according to the file: no id above it has been given out."""
        self._last: tuple[int, int] | None = None
        """The number of the last batch, and the last id in it."""
        self.others_came = False
        """Another program has committed something, and the file should be audited. The audit's caller resets this."""
        self.records = 0
        """How many rows were written."""
        self._rows_before = 0
        """How many rows this connection had changed when the batch was begun."""
        self._jobs = jobs
        """How many jobs are in the file."""
        self._outsiders = Outsiders(database.connection, database.path, database.objects)

    def prepare(self) -> bool:
        """Prepare to write. False: no room for the reserve. JournalRefused: impossible; JournalLocked: try again."""
        path = self._database.path
        # synchronous = NORMAL leaves syncing commits to us, while checkpoints are still synced. Check constraints are
        # off because SQLite would rebuild the list of states for each row, to check values that can't be wrong.
        switch_off_triggers(self._db)
        with refused(path):
            self._db.executescript("PRAGMA synchronous = NORMAL; PRAGMA ignore_check_constraints = ON")
            (self._promised_id,) = self._db.execute("SELECT last_id FROM meta").fetchone()
            self.frames.allocate(CHECKPOINT_FRAMES)
            self._db.execute("UPDATE meta SET jobs = NULL")  # creates the -wal; it takes no additional space
            # SQLite takes no locks on the -wal and keeps using the same file, so another descriptor does no harm.
            self._wal, self._wal_of_slices = (os.open(wal_of(path), os.O_RDONLY | os.O_CLOEXEC) for _ in range(2))
            self._tie = Tie(self._db, self._database.file, self._wal)
            has_room = self.room.take_reserve()
            self._db.execute("BEGIN IMMEDIATE")  # of more commits, a power failure could lose more than a start expects
            self.chronicle.begin(has_room=has_room)
            if has_room:
                self._db.execute(CHANGE_HEADER)
            self._db.execute("COMMIT")
            if has_room:
                self._tie.begin()
            self._watch = Watch(path, self._database.file, self._wal, self._database.index)
            os.fdatasync(self._wal)  # so that a power failure loses no more than a batch and a slice
        self._sync = SoonestSync(background_sync())
        return has_room

    async def start(self) -> None:
        """Start the worker thread, which only ``close`` ends; ``prepare`` has done everything that can fail."""
        self._db.execute("PRAGMA busy_timeout = 0")  # only now: a start waits for a lock that is held briefly
        await self._worker

    def write(self, batch: Batch) -> None:
        """Commit a batch. It then survives the end of this process, and once synced, a power failure too.

        JournalFull and JournalBusy leave nothing behind, and the same batch may be tried again. After any other
        JournalFailed the batch may or may not be in the file.
        """
        cursor = self._db.cursor()  # one for all statements, since making it takes as long as a short one of them
        try:
            cursor.execute("BEGIN IMMEDIATE")
            self._begin(batch.frames)
            for statement, jobs, parameters in batch.changes:
                rows = cursor.executemany(statement, parameters).rowcount
                if rows != jobs:
                    raise disagreement(self._database, self._outsiders, statement, jobs, rows)
            promised_id = self._end(batch)
            cursor.execute("COMMIT")
        except _FAILURES as error:
            raise self._undo(error) from error
        finally:
            cursor.close()  # a traceback may outlive this, and a connection with an open cursor would not be closed
        self._note_commit(batch, promised_id)

    async def write_apart(self, batch: Batch) -> None:
        """Write as ``write`` does, but in the worker thread, so that only clients waiting for a commit have to wait."""
        worker = self._worker
        try:
            self._db.execute("BEGIN IMMEDIATE")
            self._begin(batch.frames)
            for statement, jobs, parameters in batch.changes:
                cursor = await worker.executemany(statement, parameters)
                rows = cursor.rowcount
                await cursor.close()
                if rows != jobs:
                    raise disagreement(self._database, self._outsiders, statement, jobs, rows)
            promised_id = self._end(batch)
            await worker.execute_fetchall("COMMIT")
        except _FAILURES as error:
            raise self._undo(error) from error
        self._note_commit(batch, promised_id)

    def _begin(self, frames: int) -> None:
        """Check that everything is as it was left, and make room for so many frames."""
        self._rows_before = self._db.total_changes
        if not self.frames.are_ours():
            self._look_for_others()
            self.frames.trust()
        self._watch.check_wal(self.frames.committed)  # before writing, which would extend a truncated -wal again
        self.frames.allocate(frames)

    def _look_for_others(self) -> bool:
        """Return whether other programs have committed something since the last call."""
        if self.frames.are_ours() or not self._outsiders.check():
            return False
        self.others_came = True
        self._tie.base = None  # they may have begun the -wal anew
        self.frames.read()
        return True

    def _end(self, batch: Batch) -> int:
        """Write the parts of the batch that are not about jobs; returns the last promised id after this batch."""
        for statement, parameters in batch.settings:
            self._db.execute(statement, parameters)
        promised_id = self._promised_id
        if batch.last_id > promised_id:
            promised_id = batch.last_id + IDS_AHEAD
            self._db.execute(_UPDATE_META, (batch.number, promised_id))
        self.chronicle.write(batch)
        return promised_id

    def _note_commit(self, batch: Batch, promised_id: int) -> None:
        self._promised_id = promised_id
        self._last = batch.number, batch.last_id
        self.records += batch.jobs
        self._jobs += batch.growth
        if self._db.total_changes == self._rows_before:
            self.frames.distrust()  # nothing was written, and another program's commit would be taken for this one
        self._count_frames()

    def begin_sync(self, report: Report) -> None:
        """Sync everything that is committed to the disk, then call ``report``, which has to call ``check_sync``.

        ``report`` may be called before this returns, or later in the loop. More may be written meanwhile.
        """
        self._sync(self._wal, report)

    def poll(self) -> None:
        """Report a completed sync at once, without waiting for the loop to do so."""
        self._sync.background.poll()

    def check(self) -> None:
        """Raise JournalFailed unless the files are still the ones that were written to.

        To be called before a commit that was not synced is acknowledged. A sync includes this check.
        """
        self._watch.check(self.frames.committed)

    async def sync(self) -> None:
        """Sync while no batch is being synced. JournalFailed: the sync failed."""
        await self._sync_in_background(self._wal)

    async def sync_slice(self) -> None:
        """Sync a slice, also while a batch is being synced, but no other slice. JournalFailed: the sync failed."""
        await self._sync_in_background(self._wal_of_slices)

    async def _sync_in_background(self, descriptor: int) -> None:
        end: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self._sync.background(descriptor, end.set_result)
        self.check_sync(await end)

    def check_sync(self, error: Exception | None) -> None:
        """Raise JournalFailed if a sync has failed with an error, or the files are not those that were written to."""
        if error is not None:
            raise JournalFailed(f"syncing the -wal of {self._database.path} failed: {error}")
        self.check()

    def _count_frames(self) -> None:
        before = self.frames.committed
        try:
            rest = self.frames.count()
            if self._tie.base is not None:
                self._tie.note_commit(self._promised_id, self._look_for_others)
        except (OSError, sqlite3.Error) as error:
            raise failed(error, self._database.path) from error
        self._watch.check_commit(rest, anew=rest < before)

    def audit(self, engine: Engine) -> Iterator[None]:
        """Compare the file with the engine's state, one slice per step, to be run while no batch is being written.

        JournalFailed: another program has changed the file.
        """
        yield
        yield from audit(self._db, self._database.path, engine, self._promised_id)

    async def checkpoint(self) -> None:
        """Move the -wal into the database file, as far as readers allow."""
        self._watch.check_names()
        self.check()
        self.frames.begin_checkpoint()
        try:
            ((_, frames, moved),) = await self._worker.execute_fetchall("PRAGMA wal_checkpoint(PASSIVE)")
        except sqlite3.Error as error:
            raise self._undo(error) from error
        self._watch.note_size()
        self.frames.end_checkpoint(frames, moved)
        with failing(self._database.path):
            self._tie.note_checkpoint(frames, moved)
        if 0 < frames == moved:
            await self._begin_wal()

    async def _begin_wal(self) -> None:
        """Have a heartbeat begin the -wal anew, and sync it; to be called once all frames are in the file.

        SQLite syncs the new header, and may truncate the -wal, in the commit that begins it: if that were a batch,
        clients that need no commit would wait. The heartbeat is synced, for UNSYNCED_MAX is a batch and a slice.
        """
        try:
            self._db.execute("BEGIN IMMEDIATE")
            self._begin(FRAMES_BESIDE_ROWS)
            self.chronicle.beat(0.0)
            await self._worker.execute_fetchall("COMMIT")
        except _FAILURES as error:
            failure = self._undo(error)
            if not isinstance(failure, JournalBusy | JournalFull):
                raise failure from error
            return  # the next batch begins it
        self._count_frames()
        await self.sync()

    @property
    def loose(self) -> bool:
        """Whether enough pages of the file are free for some to be worth giving back."""
        with failing(self._database.path):
            free, pages = (self._db.execute(f"PRAGMA {each}_count").fetchone()[0] for each in ("freelist", "page"))
        return bool(free > max(SPARE_PAGES, LOOSE_TIMES * (pages - free)))

    def give_back(self, pages: int) -> None:
        """Free some pages at the end of the file, which the next checkpoint truncates. Raises what ``write`` raises."""
        vacuum = f"PRAGMA incremental_vacuum({pages})"
        self.write_slice(pages, lambda: self._db.executescript(vacuum))  # execute() would free only one page

    def write_slice(self, rows: int, write: Callable[[], _Result]) -> _Result:
        """Call ``write``, for at most ``rows`` rows or pages, and return its result. Raises as ``give_back`` does."""
        try:
            self.frames.allocate(FRAMES_PER_ROW * rows + FRAMES_BESIDE_ROWS)
            result = write()
        except _FAILURES as error:
            raise self._undo(error) from error
        self.frames.distrust()  # nobody has looked for others in the transaction of the slice
        self._count_frames()
        return result

    async def shrink(self) -> None:
        """Give free pages of the file, and the -wal, back to the file system; to be called after a checkpoint.

        Every page has to be written to the -wal first, so on a full disk there may be room for only some of them.
        """
        pages = SHRINK_PAGES
        self._tie.base = None  # what is given back is committed as well
        while True:
            try:
                self.frames.allocate(FRAMES_PER_ROW * pages + FRAMES_BESIDE_ROWS)
                await self._worker.executescript(f"PRAGMA incremental_vacuum({pages})")
                ((_, frames, moved),) = await self._worker.execute_fetchall("PRAGMA wal_checkpoint(TRUNCATE)")
                self._tie.note_checkpoint(frames, moved)
            except _FAILURES as error:
                failure = self._undo(error)
                pages //= 4
                if not isinstance(failure, JournalFull) or pages < SHRINK_PAGES_MIN:
                    raise failure from error
            else:
                break
        self._watch.note_size()
        await self._begin_wal()

    @property
    def wal_bytes(self) -> int:
        """Size of the -wal file."""
        with failing(self._database.path):
            return wal_size(self._database.path)

    def give_up_reserve(self) -> bool:
        """Remove the reserve, unless it may be another server's by now; see ``Room``."""
        self._watch.check_names()
        return self.room.give_up_reserve()

    async def close(self) -> str | None:
        """Leave one file with everything in it; returns what else is left and why.

        JournalFailed: the disk failed, or the files are no longer those that were opened, and all are left as they are:
        SQLite would remove by name the -wal and the -shm that another server may have there by now.
        """
        self._watch.check_names()
        failure: Exception | None = None
        rest = None
        try:
            self.room.give_up_reserve()
        except JournalFailed as error:  # raised below, once everything else has been stored
            failure = error
        try:
            with contextlib.suppress(JournalBusy, JournalFull):  # the only cost is a gap before the next ids
                self.write_slice(0, self._note_end)
            with failing(self._database.path):
                for descriptor in (self._wal, self._wal_of_slices):
                    os.close(descriptor)
                rest = self._database.close()
        except Exception as error:  # noqa: BLE001 - raised below, once the thread has ended
            failure = error
        await self._worker.close()
        if failure is not None:
            raise failure
        return rest

    def _note_end(self) -> None:
        self._db.execute("BEGIN IMMEDIATE")  # of several commits, a power failure could lose more than a start expects
        if self._last is not None:
            self._db.execute(_UPDATE_META, self._last)
        self._db.execute("UPDATE meta SET jobs = ?", (self._jobs,))
        self.chronicle.end()
        self._db.execute("COMMIT")

    def _undo(self, error: sqlite3.Error | OSError | MemoryError) -> JournalFailed:
        if self._db.in_transaction:
            with failing(self._database.path):
                self._db.execute("ROLLBACK")
        failure = failure_of(error, self._database.path)
        self._outsiders.may_be_us |= not isinstance(failure, JournalBusy)
        return failure
