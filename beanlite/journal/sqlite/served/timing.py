"""Measures how long commits take, for the log and for the metrics."""

from __future__ import annotations

import time
from typing import Final

from beanlite.core.job import SECOND_NS
from beanlite.core.measures import Measures
from beanlite.host import log
from beanlite.journal.sqlite.served.batch import Batch

# A sync that takes longer than this is logged.
SLOW_SYNC_S: Final = 0.5


class Timing:
    """Follows one batch after another. The clock is read only if the times are logged or measured."""

    def __init__(self, measures: Measures | None) -> None:
        self._measures = measures
        self._slow_syncs = log.Seldom()
        self.heed_log()

    def heed_log(self) -> None:
        """Log commits or not, according to the log level."""
        self._logs = log.is_debug()
        self._began_s = time.monotonic()  # a batch may be under way

    def begins(self) -> None:
        """A batch is about to be written."""
        if self._logs or self._measures is not None:
            self._began_s = time.monotonic()

    def written(self, batch: Batch) -> None:
        """The batch has been written."""
        if self._measures is not None:
            self._measures.batch_jobs.note(batch.jobs)
            self._measures.commits.note(round((time.monotonic() - self._began_s) * SECOND_NS))

    def synced(self, took_s: float) -> None:
        """The sync of the batch has ended."""
        if self._measures is not None:
            self._measures.syncs.note(round(took_s * SECOND_NS))
        if took_s > SLOW_SYNC_S:
            self._slow_syncs.warning("slow sync", seconds=round(took_s, 3))

    def durable(self, batch: Batch) -> None:
        """The batch is durable."""
        if self._logs:
            log.debug("commit", batch=batch.number, jobs=batch.jobs, seconds=time.monotonic() - self._began_s)
