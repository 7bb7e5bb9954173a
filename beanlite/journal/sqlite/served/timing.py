"""Measures how long commits take, for the log and for the metrics."""

import time
from typing import Final

from beanlite.core.job import SECOND_NS
from beanlite.core.measures import Measures
from beanlite.host import log
from beanlite.journal.sqlite.served.under_way import UnderWay

# A sync that takes longer than this is logged.
SLOW_SYNC_S: Final = 0.5


class Timing:
    """A stopwatch that follows one batch after another."""

    def __init__(self, measures: Measures | None) -> None:
        self._measures = measures
        self._slow_syncs = log.Seldom()
        self.heed_log()

    def heed_log(self) -> None:
        """Log commits or not, according to the log level."""
        self._logs = log.is_debug()

    def note_write(self, under_way: UnderWay) -> None:
        """Note that the batch has been written."""
        if self._measures is not None:
            self._measures.batch_jobs.note(under_way.jobs)
            self._measures.commits.note(round((time.monotonic() - under_way.began_s) * SECOND_NS))

    def note_sync(self, took_s: float) -> None:
        """Note that the sync of the batch has ended."""
        if self._measures is not None:
            self._measures.syncs.note(round(took_s * SECOND_NS))
        if took_s > SLOW_SYNC_S:
            self._slow_syncs.warning("slow sync", seconds=round(took_s, 3))

    def note_durable(self, under_way: UnderWay) -> None:
        """Note that the batch is durable."""
        if self._logs:
            log.debug(
                "commit", batch=under_way.batch, jobs=under_way.jobs, seconds=time.monotonic() - under_way.began_s
            )
