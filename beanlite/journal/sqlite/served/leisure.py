"""Upkeep of the file that is done in slices between batches, so that clients don't wait for it."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Final

from beanlite.errors import JournalBusy, JournalFull
from beanlite.journal.sqlite.file.heartbeat import IDLE_S
from beanlite.journal.sqlite.served.history import PRUNED_MAX
from beanlite.journal.sqlite.served.under_way import UnderWay
from beanlite.journal.sqlite.served.upkeep import Upkeep
from beanlite.journal.sqlite.served.writer import Writer

# How often to check whether the file has pages to give back, and the pause between two slices while it has: at least
# this long, and at least this many times as long as the slice took.
LOOSE_LOOK_S: Final = 1.0
SHRINK_REST_S: Final = 0.01
SHRINK_REST_TIMES: Final = 9
# How often to look for rows that are too old.
PRUNE_LOOK_S: Final = 60.0
# The most pages in a slice, and the time that a slice should not exceed, which may reduce their number.
SHRINK_PAGES_MAX: Final = 100
SHRINK_S: Final = 0.001


class Leisure:
    """Tasks that run as long as the server.

    One slice is written at a time, and synced before the next if ``syncs``, so that a power failure loses at most one.
    """

    def __init__(self, writer: Writer, upkeep: Upkeep, under_way: UnderWay, *, syncs: bool) -> None:
        self._writer = writer
        self._upkeep = upkeep
        self._under_way = under_way
        self._syncs = syncs
        self._one_at_a_time = asyncio.Lock()

    def start(self) -> None:
        """Start the tasks."""
        self._upkeep.begin(self._shrink_by_and_by())
        self._upkeep.begin(self._beat())
        self._upkeep.begin(self._prune_by_and_by())

    async def _write(self, write: Callable[[], bool]) -> float | None:
        """Write a slice, and return the seconds taken; None: nothing was written.

        ``write`` returns whether it wrote.
        """
        async with self._one_at_a_time:
            if not self._under_way.may_write:
                return None
            began_s = time.monotonic()
            written = False
            with contextlib.suppress(JournalFull, JournalBusy):
                written = write()
            took_s = time.monotonic() - began_s
            if written:
                self._upkeep.note_unsynced()
                if self._syncs:
                    await self._writer.sync_slice()
        return took_s if written else None

    def _checkpoint_if_due(self) -> None:
        if self._writer.frames.checkpoint_due and not self._under_way.busy:
            self._upkeep.begin_checkpoint()

    async def _shrink_by_and_by(self) -> None:
        """Give free pages back to the disk, a few at a time.

        SQLite searches all free pages for each page at the end of the file, so the time this takes depends on the order
        in which the jobs were deleted.
        """
        writer, upkeep = self._writer, self._upkeep
        shrinking = False
        pages, took_s = 1, 0.0

        def give_back() -> bool:
            writer.give_back(pages)
            return True

        while True:
            await asyncio.sleep(max(SHRINK_REST_S, SHRINK_REST_TIMES * took_s) if shrinking else LOOSE_LOOK_S)
            if upkeep.stopping:
                return
            if not self._under_way.may_write:
                continue
            if writer.loose:
                if not shrinking:
                    shrinking, pages = True, 1  # this backlog may have been deleted in a different order from the last
                slice_s = await self._write(give_back)
                if slice_s is not None:
                    took_s = slice_s
                    is_fast = took_s < SHRINK_S
                    pages = min(2 * pages, SHRINK_PAGES_MAX) if is_fast else int(pages * SHRINK_S / took_s) or 1
            if shrinking and not self._under_way.busy:
                shrinking = writer.loose
                if writer.frames.checkpoint_due or not shrinking:
                    upkeep.begin_checkpoint()

    async def _prune_by_and_by(self) -> None:
        """Delete totals and history that are too old, as far as batches have not done so."""
        writer = self._writer
        more, took_s = False, 0.0

        def prune() -> bool:
            nonlocal more
            more = writer.write_slice(4 * PRUNED_MAX, writer.chronicle.prune)
            return True

        while True:
            await asyncio.sleep(max(SHRINK_REST_S, SHRINK_REST_TIMES * took_s) if more else PRUNE_LOOK_S)
            if self._upkeep.stopping:
                return
            took_s = await self._write(prune) or 0.0
            self._checkpoint_if_due()

    async def _beat(self) -> None:
        """Write a heartbeat for readers of the file while no batches do."""
        writer = self._writer
        while True:
            await asyncio.sleep(IDLE_S)
            if self._upkeep.stopping:
                return
            await self._write(lambda: writer.write_slice(0, writer.chronicle.beat))
            self._checkpoint_if_due()
