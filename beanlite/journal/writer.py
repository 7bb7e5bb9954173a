"""The hot end of the journal: each batch of changes is one transaction on the state table.

There is no log beside the table: the table is the journal. A job is written in its latest state only, once a batch,
however often it changed within; one that was put and deleted within a batch is never written at all.

All statements run on the caller's thread. What takes long (a checkpoint) is awaited, and runs in aiosqlite's thread on
the same connection: one alone writes and checkpoints, because SQLite before 3.51.3 can corrupt the file when two do.
Nothing may be written meanwhile.
"""

import asyncio
import contextlib
import os
import sqlite3
import sys
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple
from zlib import crc32

import aiosqlite

from beanlite.clock import utc_s
from beanlite.engine import Changes
from beanlite.errors import JournalBusy, JournalFailed, JournalFull
from beanlite.job import BURIED, GONE, ID_BITS, NO_PAST, READY, Job
from beanlite.journal.database import WAL_BYTES_MAX, Database
from beanlite.journal.fileformat import shm_of, wal_of, wal_size
from beanlite.journal.sync import SoonestSync, aside_sync

# Larger bodies stand in a table of their own, so that a change of state does not write them again: at 64 KiB that makes
# reserve, release and bury some ten times cheaper. Smaller ones would only cost a second page in each put and delete.
INLINE_MAX: Final = 1024

# A checkpoint is due when so many frames (pages of 4 KiB) have come into the -wal: the time it takes grows with them,
# and commits wait for it.
CHECKPOINT_FRAMES: Final = 1000
# How many there are is in the header of the -shm, SQLite's index of the -wal (https://sqlite.org/walformat.html): no
# statement tells it without a checkpoint.
_FRAMES_AT: Final = 16
_FRAMES_BYTES: Final = 4

# Ids are promised so many at once: to write the last one with each batch is a page more in it, and that is a third of
# what one client alone waits for its commits to be written (1.09 times as fast without).
IDS_AHEAD: Final = 1000

# Kept free on the disk, given up when the disk is full, so that what was promised can still be stored and the queue can
# drain.
RESERVE_BYTES: Final = 8 << 20

_Parameters = Sequence[tuple[object, ...]]

SHRINK_PAGES: Final = 2000  # given back in one go when the disk is full
# Kept free are so many times what is in use, because pages in use have to be moved when others are given back, and ...
LOOSE_TIMES: Final = 3
SPARE_PAGES: Final = 2000  # ... so many pages in any case.


_INSERT: Final = "INSERT INTO jobs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
# What most jobs are when they are first written. Eight parameters less are 0.9 µs of 2.8; several at once, 0.4 of 2.1.
_READY: Final = "(?, ?, 'ready', ?, ?, ?, ?, NULL, NULL, 0, 0, 0, 0, 0, ?, ?)"
_INSERT_READY: Final = f"INSERT INTO jobs VALUES {_READY}"  # noqa: S608 - our own words
_AT_ONCE: Final = 16
_INSERT_SEVERAL: Final = f"INSERT INTO jobs VALUES {', '.join([_READY] * _AT_ONCE)}"  # noqa: S608 - likewise
_INSERT_BODY: Final = "INSERT INTO bodies VALUES (?, ?)"
_UPDATE: Final = """
    UPDATE jobs SET state = ?, pri = ?, delay_s = ?, due_at = ?, buried_seq = ?,
           reserves = ?, timeouts = ?, releases = ?, buries = ?, kicks = ? WHERE id = ?
"""
# Ids that follow each other go at once: jobs are mostly deleted in the order in which they came, and a statement for
# each of a hundred costs three times as much as one for all.
_DELETE: Final = "DELETE FROM jobs WHERE id BETWEEN ? AND ?"
_DELETE_BODY: Final = "DELETE FROM bodies WHERE id = ?"
_UPDATE_META: Final = "UPDATE meta SET batch = ?, last_id = ?"


class Batch(NamedTuple):
    """The rows of a batch, as they were when it was taken: the jobs may change again before it is stored."""

    number: int
    last_id: int
    jobs: int
    changes: list[tuple[str, int, _Parameters]]
    """Statements, how many jobs each must meet, and their parameters."""
    pauses: list[tuple[str, tuple[int, float] | None]]
    """Tubes, and their pause_s and until; None: the pause is over."""


def _place(job: Job) -> tuple[float | None, int | None]:
    """due_at and buried_seq."""
    if job.state is READY:
        return None, None
    if job.state is BURIED:
        return None, job.key >> ID_BITS
    return utc_s(job.key >> ID_BITS), None


def _counters(job: Job) -> tuple[int, int, int, int, int]:
    past = job.past
    return job.reserves, past.timeouts, past.releases, past.buries, past.kicks


def _runs(ids: list[int]) -> list[tuple[int, int]]:
    """The first and the last of each run of ids that follow each other."""
    ids.sort()
    runs = []
    first = last = 0  # no id
    for job_id in ids:
        if job_id != last + 1:
            if last:
                runs.append((first, last))
            first = job_id
        last = job_id
    if last:
        runs.append((first, last))
    return runs


class Journal:
    """The journal of a running server, on a database that it has to itself."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._db = database.connection
        self._aside = aiosqlite.Connection(lambda: database.connection, iter_chunk_size=64)
        self._reserve = Path(f"{database.path}-reserve")
        self._wal = self._shm = -1
        self._data_version: int = 0
        self._promised_id = 0
        """No id above it has been given out, by what is in the file."""
        self._last: tuple[int, int] | None = None
        """The number of the last batch, and the last id by then."""
        self._frames = 0
        """In the -wal after the last commit."""
        self._new_frames = 0
        """Those that have come since the last checkpoint."""
        self.records = 0
        """Rows written."""
        self.wal_frames = 0
        """Pages in the -wal when it was last checkpointed."""
        self.pinned = False
        """A reader kept the last checkpoint from reaching the end of the -wal, which therefore grows."""

    async def start(self) -> bool:
        """Make ready to write. False: there is no room on the disk for the reserve. JournalFailed: nor for anything."""
        await self._aside
        self._sync_aside = aside_sync()
        self._sync_soonest = SoonestSync(self._sync_aside)
        self.see_syncs = self._sync_aside.see_ends
        # The synchronous setting NORMAL leaves the sync of a commit to ``sync``; checkpoints are synced all the same.
        # SQLite would build the list of states anew for each row to check it: 1.6 µs of 4.4, for what can't be wrong.
        try:
            for pragma in ("synchronous = NORMAL", "busy_timeout = 0", "ignore_check_constraints = ON"):
                self._db.execute(f"PRAGMA {pragma}")
            self._data_version = self._read_data_version()
            (self._promised_id,) = self._db.execute("SELECT last_id FROM meta").fetchone()
            self._db.execute("UPDATE meta SET batch = batch")  # so that the -wal exists
        except sqlite3.Error as error:
            raise self._undo(error) from error
        # SQLite takes no locks on the -wal, and keeps the same file while it is open: a descriptor of it does no harm.
        self._wal = os.open(wal_of(self._database.path), os.O_RDONLY | os.O_CLOEXEC)
        # On the -shm it does: this one is closed after SQLite's.
        self._shm = os.open(shm_of(self._database.path), os.O_RDONLY | os.O_CLOEXEC)
        return self.take_reserve()

    @staticmethod
    def batch_of(changes: Changes) -> Batch:
        """Make the rows of a batch."""
        ready: list[tuple[object, ...]] = []
        inserts: list[tuple[object, ...]] = []
        updates: list[tuple[object, ...]] = []
        deleted: list[int] = []
        bodies: list[tuple[object, ...]] = []
        body_deletes: list[tuple[object, ...]] = []
        first_id = changes.first_id
        for job in changes.jobs:
            state = job.state
            if state is GONE:
                deleted.append(job.id)
                if len(job.body) > INLINE_MAX:
                    body_deletes.append((job.id,))
                continue
            if job.id < first_id:
                updates.append((state, job.pri, job.delay_s, *_place(job), *_counters(job), job.id))
                continue
            body: bytes | None = job.body
            if len(job.body) > INLINE_MAX:
                bodies.append((job.id, job.body))
                body = None
            put = (job.pri, job.delay_s, job.ttr_s, utc_s(job.created_ns))
            if state is READY and not job.reserves and job.past is NO_PAST:
                ready.append((job.id, job.tube.name.decode(), *put, crc32(job.body), body))
            else:
                rest = (*_place(job), *_counters(job), crc32(job.body), body)
                inserts.append((job.id, job.tube.name.decode(), state, *put, *rest))
        most = len(ready) // _AT_ONCE * _AT_ONCE
        several = [tuple(chain.from_iterable(ready[at : at + _AT_ONCE])) for at in range(0, most, _AT_ONCE)]
        all_rows: tuple[tuple[str, int, _Parameters], ...] = (
            (_INSERT_SEVERAL, most, several),
            (_INSERT_READY, len(ready) - most, ready[most:]),
            (_INSERT, len(inserts), inserts),
            (_INSERT_BODY, len(bodies), bodies),
            (_UPDATE, len(updates), updates),
            (_DELETE, len(deleted), _runs(deleted)),
            (_DELETE_BODY, len(body_deletes), body_deletes),
        )
        pauses = [
            (tube.name.decode(), (tube.pause_s, utc_s(tube.pause_until_ns)) if tube.pause_until_ns else None)
            for tube in changes.pauses
        ]
        return Batch(changes.batch, changes.last_id, len(changes.jobs), [each for each in all_rows if each[1]], pauses)

    def write(self, batch: Batch) -> None:
        """Commit a batch; it survives this process from now on, and a power failure from the next ``sync`` on.

        JournalFull and JournalBusy leave nothing behind, and the same batch may be tried again. After any other
        JournalFailed it may or may not be in the file.
        """
        db = self._db
        try:
            db.execute("BEGIN IMMEDIATE")
            if self._read_data_version() != self._data_version:
                raise JournalFailed(
                    f"another program has changed {self._database.path}; it no longer is what was served"
                )
            for statement, jobs, parameters in batch.changes:
                changed = db.executemany(statement, parameters).rowcount
                if changed != jobs:  # memory and file have come apart
                    raise RuntimeError(f"{jobs} jobs to change, {changed} found: {statement}")
            for name, pause in batch.pauses:
                db.execute("DELETE FROM pauses WHERE tube = ?", (name,))
                if pause is not None:
                    db.execute("INSERT INTO pauses VALUES (?, ?, ?)", (name, *pause))
            promised_id = self._promised_id
            if batch.last_id > promised_id:
                promised_id = batch.last_id + IDS_AHEAD
                db.execute(_UPDATE_META, (batch.number, promised_id))
            db.execute("COMMIT")
        except sqlite3.Error as error:
            raise self._undo(error) from error
        self._promised_id = promised_id
        self._last = batch.number, batch.last_id
        self.records += batch.jobs
        self._count_frames()

    def begin_sync(self, done: Callable[[JournalFailed | None], None]) -> None:
        """Write all that is committed to the medium; ``done`` is told that it is there, or why not.

        That may be before this returns, or later, in the loop; until then it may go on beside ``write``.
        """
        self._sync_soonest(self._wal, lambda error: done(self._sync_failure(error)))

    async def sync(self) -> None:
        """The same, always aside: no client waits for it. JournalFailed: it failed."""
        ended: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self._sync_aside(self._wal, ended.set_result)
        failure = self._sync_failure(await ended)
        if failure is not None:
            raise failure

    def _sync_failure(self, error: Exception | None) -> JournalFailed | None:
        return None if error is None else JournalFailed(f"syncing the -wal of {self._database.path} failed: {error}")

    @property
    def checkpoint_due(self) -> bool:
        """Whether enough has come into the -wal."""
        return self._new_frames >= CHECKPOINT_FRAMES

    def _count_frames(self) -> None:
        frames = int.from_bytes(os.pread(self._shm, _FRAMES_BYTES, _FRAMES_AT), sys.byteorder)
        # Fewer than before: all were in the database file, and SQLite has begun the -wal anew.
        self._new_frames += frames - self._frames if frames >= self._frames else frames
        self._frames = frames

    async def checkpoint(self) -> None:
        """Move the -wal into the database file, as far as readers allow."""
        self._new_frames = 0
        try:
            ((_, frames, done),) = await self._aside.execute_fetchall("PRAGMA wal_checkpoint(PASSIVE)")
        except sqlite3.Error as error:
            raise self._undo(error) from error
        self.wal_frames = frames
        self.pinned = done < frames

    @property
    def loose(self) -> bool:
        """Whether so much of the file is free that some of it is worth giving back."""
        (free,) = self._db.execute("PRAGMA freelist_count").fetchone()
        (pages,) = self._db.execute("PRAGMA page_count").fetchone()
        return bool(free > max(SPARE_PAGES, LOOSE_TIMES * (pages - free)))

    def give_back(self, pages: int) -> None:
        """Free pages at the end of the file; the next checkpoint cuts them off. Raises as ``write`` does."""
        try:
            self._db.executescript(f"PRAGMA incremental_vacuum({pages})")  # execute() would do only one page
        except sqlite3.Error as error:
            raise self._undo(error) from error
        self._count_frames()

    async def shrink(self) -> None:
        """Give free pages of the file, and the -wal, back to the disk; to be called after a checkpoint."""
        try:
            await self._aside.executescript(f"PRAGMA incremental_vacuum({SHRINK_PAGES})")
            await self._aside.execute_fetchall("PRAGMA wal_checkpoint(TRUNCATE)")
        except sqlite3.Error as error:
            raise self._undo(error) from error

    def take_reserve(self) -> bool:
        """Have the reserve allocated; False if the disk has no room for it, and for as much again."""
        if self._free_bytes() < 2 * RESERVE_BYTES:
            return False
        try:
            descriptor = os.open(self._reserve, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(descriptor, 0, RESERVE_BYTES)
            finally:
                os.close(descriptor)
        except OSError:
            self.give_up_reserve()
            return False
        return True

    def give_up_reserve(self) -> None:
        """Free the reserve's room on the disk."""
        self._reserve.unlink(missing_ok=True)

    wal_bytes_max: Final = WAL_BYTES_MAX

    def room_bytes(self) -> int:
        """How much more can be put: a body needs its room in the -wal first, and in the file later."""
        return (self._free_bytes() + RESERVE_BYTES) // 2

    @property
    def wal_bytes(self) -> int:
        """Size of the -wal file."""
        return wal_size(self._database.path)

    async def close(self) -> bool:
        """Leave one file with all in it; False if a reader has the -wal in use. JournalFailed: the disk failed."""
        os.close(self._wal)
        self.give_up_reserve()
        try:
            if self._last is not None:
                with contextlib.suppress(JournalBusy, JournalFull):  # then ids go on a little higher
                    self._note_last_id(*self._last)
            return self._database.close()
        finally:
            os.close(self._shm)
            await self._aside.close()

    def _note_last_id(self, batch: int, last_id: int) -> None:
        try:
            self._db.execute(_UPDATE_META, (batch, last_id))
        except sqlite3.Error as error:
            raise self._undo(error) from error

    def _free_bytes(self) -> int:
        disk = os.fstatvfs(self._shm)
        return disk.f_bavail * disk.f_frsize

    def _read_data_version(self) -> int:
        """Changes when anybody else has committed to the file."""
        version: int = self._db.execute("PRAGMA data_version").fetchone()[0]
        return version

    def _undo(self, error: sqlite3.Error) -> JournalFailed:
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")
        code = error.sqlite_errorcode & 0xFF
        if code == sqlite3.SQLITE_FULL or error.sqlite_errorcode == sqlite3.SQLITE_IOERR_SHMSIZE:
            return JournalFull(f"no room on the disk of {self._database.path}")
        if code == sqlite3.SQLITE_BUSY:
            return JournalBusy(f"another program holds the write lock of {self._database.path}")
        return JournalFailed(f"writing to {self._database.path} failed: {error}")
