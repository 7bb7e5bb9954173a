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
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Final, NamedTuple
from zlib import crc32

import aiosqlite

from beanlite.clock import utc_s
from beanlite.core.engine import Changes, Engine
from beanlite.core.job import GONE, NO_PAST, READY
from beanlite.errors import JournalBusy, JournalFailed, JournalFull
from beanlite.journal.sqlite.audit import audit
from beanlite.journal.sqlite.database import WAL_BYTES_MAX, Database
from beanlite.journal.sqlite.fileformat import failing, is_full, refused, said, wal_of, wal_size
from beanlite.journal.sqlite.rows import INLINE_MAX, counters, place
from beanlite.journal.sqlite.sync import SoonestSync, aside_sync
from beanlite.journal.sqlite.wal import frames_of, index_bytes
from beanlite.journal.sqlite.watch import Outsiders, Watch

# A checkpoint is due when so many frames (pages of 4 KiB) have come into the -wal: the time it takes grows with them,
# and commits wait for it.
CHECKPOINT_FRAMES: Final = 1000

# Ids are promised so many at once: to write the last one with each batch is a page more in it, and that is a third of
# what one client alone waits for its commits to be written (1.09 times as fast without).
IDS_AHEAD: Final = 1000

_Parameters = Sequence[tuple[object, ...]]

SHRINK_PAGES: Final = 2000  # given back in one go when the disk is full; if there is no room for that, fewer ...
SHRINK_PAGES_MIN: Final = 20  # ... but so many at least
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

# How many frames a transaction may take: one for so many bytes of large bodies, and for each row so many; and some.
_BODY_BYTES_A_FRAME: Final = 4000
_FRAMES_A_ROW: Final = 3
_FRAMES_BESIDE: Final = 50


class Batch(NamedTuple):
    """The rows of a batch, as they were when it was taken: the jobs may change again before it is stored."""

    number: int
    last_id: int
    jobs: int
    changes: list[tuple[str, int, _Parameters]]
    """Statements, how many jobs each must meet, and their parameters."""
    pauses: list[tuple[str, tuple[int, float] | None]]
    """Tubes, and their pause_s and until; None: the pause is over."""
    frames: int
    """How many it takes in the -wal at most."""


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
        self.room = database.room
        self._index = database.index
        self._wal = -1
        self._promised_id = 0
        """No id above it has been given out, by what is in the file."""
        self._last: tuple[int, int] | None = None
        """The number of the last batch, and the last id by then."""
        self._frames = 0
        """In the -wal after the last commit."""
        self._new_frames = 0
        """Those that have come since the last checkpoint."""
        self._index_frames = 0
        """For so many there is room in the -shm, and it is ours."""
        self.others_came = False
        """Another program has been at the file: what is in it should be looked at. Whoever does so resets it."""
        self.records = 0
        """Rows written."""
        self.wal_frames = 0
        """Pages in the -wal when it was last checkpointed."""
        self.pinned = False
        """A reader kept the last checkpoint from reaching the end of the -wal, which therefore grows."""

    async def start(self) -> bool:
        """Make ready to write. False: the disk has no room for the reserve. JournalRefused: nor for anything else."""
        self._sync_aside = aside_sync()
        self._sync_soonest = SoonestSync(self._sync_aside)
        self.see_syncs = self._sync_aside.see_ends
        path = self._database.path
        # The synchronous setting NORMAL leaves the sync of a commit to ``sync``; checkpoints are synced all the same.
        # SQLite would build the list of states anew for each row to check it: 1.6 µs of 4.4, for what can't be wrong.
        with refused(path):
            for pragma in ("synchronous = NORMAL", "busy_timeout = 0", "ignore_check_constraints = ON"):
                self._db.execute(f"PRAGMA {pragma}")
            self._outsiders = Outsiders(self._db, path, self._database.objects)
            (self._promised_id,) = self._db.execute("SELECT last_id FROM meta").fetchone()
            self._allot_index(CHECKPOINT_FRAMES)
            self._db.execute("UPDATE meta SET batch = batch")  # so that the -wal exists
            # SQLite takes no locks on the -wal, and keeps the same file while it is open: a descriptor does no harm.
            self._wal = os.open(wal_of(path), os.O_RDONLY | os.O_CLOEXEC)
            self._watch = Watch(path, self._database.file, self._wal, self._index)
        await self._aside
        with refused(path):
            return self.room.take_reserve()

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
                updates.append((state, job.pri, job.delay_s, *place(job), *counters(job), job.id))
                continue
            body: bytes | None = job.body
            if len(job.body) > INLINE_MAX:
                bodies.append((job.id, job.body))
                body = None
            put = (job.pri, job.delay_s, job.ttr_s, utc_s(job.created_ns))
            if state is READY and not job.reserves and job.past is NO_PAST:
                ready.append((job.id, job.tube.name.decode(), *put, crc32(job.body), body))
            else:
                rest = (*place(job), *counters(job), crc32(job.body), body)
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
        rows = len(changes.jobs) + len(pauses)
        frames = _FRAMES_BESIDE + _FRAMES_A_ROW * rows
        if bodies:
            frames += sum(len(job.body) for job in changes.jobs if job.id >= first_id) // _BODY_BYTES_A_FRAME
        changed = [each for each in all_rows if each[1]]
        return Batch(changes.batch, changes.last_id, len(changes.jobs), changed, pauses, frames)

    def write(self, batch: Batch) -> None:
        """Commit a batch; it survives this process from now on, and a power failure from the next ``sync`` on.

        JournalFull and JournalBusy leave nothing behind, and the same batch may be tried again. After any other
        JournalFailed it may or may not be in the file.
        """
        db = self._db
        try:
            db.execute("BEGIN IMMEDIATE")
            if self._outsiders.look():
                self.others_came = True
                self._frames = frames_of(self._index)
            self._watch.look_at_wal(self._frames)  # now: what is written behind a cut makes it long again
            self._allot_index(self._frames + batch.frames)
            for statement, jobs, parameters in batch.changes:
                changed = db.executemany(statement, parameters).rowcount
                if changed != jobs:  # memory and file have come apart
                    self._check_file()
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
        except (sqlite3.Error, OSError) as error:
            raise self._undo(error) from error
        self._promised_id = promised_id
        self._last = batch.number, batch.last_id
        self.records += batch.jobs
        self._count_frames()

    def begin_sync(self, done: Callable[[JournalFailed | None], None]) -> None:
        """Write all that is committed to the medium; ``done`` is told that it is there, or why not.

        That may be before this returns, or later, in the loop; until then it may go on beside ``write``.
        """
        self._sync_soonest(self._wal, lambda error: done(self._see_sync(error)))

    def check(self) -> None:
        """Raise JournalFailed unless what was written stands where it will be looked for.

        To be called before a commit is acknowledged that was not synced; the sync sees to it itself.
        """
        self._watch.look(self._frames)

    async def sync(self) -> None:
        """The same, always aside: no client waits for it. JournalFailed: it failed."""
        ended: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self._sync_aside(self._wal, ended.set_result)
        failure = self._see_sync(await ended)
        if failure is not None:
            raise failure

    def _see_sync(self, error: Exception | None) -> JournalFailed | None:
        if error is not None:
            return JournalFailed(f"syncing the -wal of {self._database.path} failed: {error}")
        try:
            self.check()
        except JournalFailed as failure:
            return failure
        return None

    @property
    def checkpoint_due(self) -> bool:
        """Whether enough has come into the -wal."""
        return self._new_frames >= CHECKPOINT_FRAMES

    def _check_file(self) -> None:
        """Raise JournalFailed if the file is damaged: SQLite does not find what it has."""
        (found,) = self._db.execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            raise JournalFailed(f"{self._database.path} is damaged ({said(found)}); restore a backup")

    def _count_frames(self) -> None:
        with failing(self._database.path):
            frames = frames_of(self._index)
        # Fewer than before: all were in the database file, and SQLite has begun the -wal anew.
        self._new_frames += frames - self._frames if frames >= self._frames else frames
        self._watch.look_for_hole(min(frames, self._frames))
        self._frames = frames

    def audit(self, engine: Engine) -> Iterator[None]:
        """Compare the file with what the engine holds: a slice each time, when no batch waits to be written.

        JournalFailed: another program has changed it.
        """
        yield
        yield from audit(self._db, self._database.path, engine, self._promised_id)

    def _allot_index(self, frames: int) -> None:
        """Have the -shm take the room on the disk that it needs for so many frames. OSError: there is none.

        SQLite does that for blocks of 4 KiB. If they are smaller, and the disk is full when it writes to one that is
        not there yet, the process dies of SIGBUS.
        """
        if frames > self._index_frames:
            os.posix_fallocate(self._index, 0, index_bytes(frames))
            self._index_frames = frames

    async def checkpoint(self) -> None:
        """Move the -wal into the database file, as far as readers allow."""
        self._watch.look_closely()
        self.check()
        self._new_frames = 0
        try:
            ((_, frames, done),) = await self._aside.execute_fetchall("PRAGMA wal_checkpoint(PASSIVE)")
        except sqlite3.Error as error:
            raise self._undo(error) from error
        self._watch.see_size()
        self.wal_frames = frames
        self.pinned = done < frames

    @property
    def loose(self) -> bool:
        """Whether so much of the file is free that some of it is worth giving back."""
        with failing(self._database.path):
            (free,) = self._db.execute("PRAGMA freelist_count").fetchone()
            (pages,) = self._db.execute("PRAGMA page_count").fetchone()
        return bool(free > max(SPARE_PAGES, LOOSE_TIMES * (pages - free)))

    def give_back(self, pages: int) -> None:
        """Free pages at the end of the file; the next checkpoint cuts them off. Raises as ``write`` does."""
        try:
            self._allot_index(self._frames + _FRAMES_A_ROW * pages + _FRAMES_BESIDE)
            self._db.executescript(f"PRAGMA incremental_vacuum({pages})")  # execute() would do only one page
        except (sqlite3.Error, OSError) as error:
            raise self._undo(error) from error
        self._count_frames()

    async def shrink(self) -> None:
        """Give free pages of the file, and the -wal, back to the disk; to be called after a checkpoint.

        As many as there is room for: each has to be written to the -wal first.
        """
        pages = SHRINK_PAGES
        while True:
            try:
                self._allot_index(self._frames + _FRAMES_A_ROW * pages + _FRAMES_BESIDE)
                await self._aside.executescript(f"PRAGMA incremental_vacuum({pages})")
                await self._aside.execute_fetchall("PRAGMA wal_checkpoint(TRUNCATE)")
            except (sqlite3.Error, OSError) as error:
                failure = self._undo(error)
                pages //= 4
                if not isinstance(failure, JournalFull) or pages < SHRINK_PAGES_MIN:
                    raise failure from error
            else:
                break
        self._watch.see_size()

    wal_bytes_max: Final = WAL_BYTES_MAX

    @property
    def wal_bytes(self) -> int:
        """Size of the -wal file."""
        with failing(self._database.path):
            return wal_size(self._database.path)

    async def close(self) -> str | None:
        """Leave one file with all in it; returns what else is left, and why. JournalFailed: the disk failed."""
        self._watch.close()
        failure = None
        try:
            self.room.give_up_reserve()
        except JournalFailed as error:  # first all else is stored
            failure = error
        try:
            if self._last is not None:
                with contextlib.suppress(JournalBusy, JournalFull):  # then ids go on a little higher
                    self._note_last_id(*self._last)
            with failing(self._database.path):
                os.close(self._wal)
                left = self._database.close()
        finally:
            await self._aside.close()
        if failure is not None:
            raise failure
        return left

    def _note_last_id(self, batch: int, last_id: int) -> None:
        try:
            self._db.execute(_UPDATE_META, (batch, last_id))
        except sqlite3.Error as error:
            raise self._undo(error) from error

    def _undo(self, error: sqlite3.Error | OSError) -> JournalFailed:
        if self._db.in_transaction:
            with failing(self._database.path):
                self._db.execute("ROLLBACK")
        code = getattr(error, "sqlite_errorcode", 0)  # neither the system nor Python's own layer gives one
        if code & 0xFF == sqlite3.SQLITE_BUSY:
            return JournalBusy(f"another program holds the write lock of {self._database.path}")
        self._outsiders.may_be_us = True
        if is_full(error):
            return JournalFull(f"no room on the disk of {self._database.path}")
        return JournalFailed(f"writing to {self._database.path} failed: {said(error)}")
