"""What is done for the file in slices, whenever no batch is just being written: nobody waits for it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Final

from beanlite.errors import JournalBusy, JournalFull
from beanlite.journal.sqlite.heartbeat import IDLE_S
from beanlite.journal.sqlite.history import PRUNED_MAX
from beanlite.journal.sqlite.upkeep import Upkeep
from beanlite.journal.sqlite.writer import Writer

# How often to look whether the file has pages to give back, and the rest between two slices while it has: at least this
# long, and in any case this many times as long as the slice took.
LOOSE_LOOK_S: Final = 1.0
SHRINK_REST_S: Final = 0.01
SHRINK_REST_TIMES: Final = 9
# How often to look for what is too old.
PRUNE_LOOK_S: Final = 60.0
# The most pages in a slice; fewer if that takes longer than the time given here.
SHRINK_PAGES_MAX: Final = 100
SHRINK_S: Final = 0.001


class Leisure:
    """Tasks that last as long as the server."""

    def __init__(self, writer: Writer, upkeep: Upkeep) -> None:
        self._writer = writer
        self._upkeep = upkeep

    def start(self, *, syncs: bool) -> None:
        """Begin them. ``syncs``: whatever is committed is to be synced at once."""
        self._upkeep.begin(self._shrink_by_and_by())
        self._upkeep.begin(self._beat(syncs=syncs))
        self._upkeep.begin(self._prune_by_and_by())

    async def _shrink_by_and_by(self) -> None:
        """Give free pages back to the disk, a few at a time.

        SQLite looks for each page at the end of the file among all the free ones, so that the time this takes depends
        on the order in which the jobs were deleted.
        """
        writer, upkeep = self._writer, self._upkeep
        shrinking = False
        pages, took_s = 1, 0.0
        while True:
            await asyncio.sleep(max(SHRINK_REST_S, SHRINK_REST_TIMES * took_s) if shrinking else LOOSE_LOOK_S)
            if upkeep.stopping:
                return
            if not upkeep.may_write:
                continue
            if writer.loose:
                if not shrinking:
                    shrinking, pages = True, 1  # this backlog may have been deleted in another order than the last
                began_s = time.monotonic()
                with contextlib.suppress(JournalFull, JournalBusy):
                    writer.give_back(pages)
                took_s = time.monotonic() - began_s
                pages = min(2 * pages, SHRINK_PAGES_MAX) if took_s < SHRINK_S else int(pages * SHRINK_S / took_s) or 1
            if shrinking and not upkeep.busy:
                shrinking = writer.loose
                if writer.frames.checkpoint_due or not shrinking:
                    upkeep.begin_checkpoint()

    async def _prune_by_and_by(self) -> None:
        """Take away the totals and the history that are too old: what batches leave of it."""
        writer, upkeep = self._writer, self._upkeep
        more, took_s = False, 0.0
        while True:
            await asyncio.sleep(max(SHRINK_REST_S, SHRINK_REST_TIMES * took_s) if more else PRUNE_LOOK_S)
            if upkeep.stopping:
                return
            if not upkeep.may_write:
                continue
            began_s = time.monotonic()
            with contextlib.suppress(JournalFull, JournalBusy):
                more = writer.write_slice(4 * PRUNED_MAX, writer.chronicle.prune)
                upkeep.note_unsynced()
            took_s = time.monotonic() - began_s
            if writer.frames.checkpoint_due and not upkeep.busy:
                upkeep.begin_checkpoint()

    async def _beat(self, *, syncs: bool) -> None:
        """Tell those who read the file that the server lives, while no batch does so."""
        writer, upkeep = self._writer, self._upkeep
        while True:
            await asyncio.sleep(IDLE_S)
            if upkeep.stopping:
                return
            if not upkeep.may_write:
                continue
            with contextlib.suppress(JournalFull, JournalBusy):
                if writer.write_slice(0, writer.chronicle.beat):
                    upkeep.note_unsynced()
                    if syncs:
                        await writer.sync()
            if writer.frames.checkpoint_due and not upkeep.busy:
                upkeep.begin_checkpoint()
