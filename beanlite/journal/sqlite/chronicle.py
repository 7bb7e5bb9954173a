"""What the file tells of the past, and of the server itself: totals, history, and a sign of life."""

from __future__ import annotations

import sqlite3
import time

from beanlite.clock import Clock
from beanlite.journal.sqlite.batch import Batch
from beanlite.journal.sqlite.heartbeat import BUSY_S, IDLE_S, Heartbeat
from beanlite.journal.sqlite.history import PRUNED_EACH, PRUNED_MAX, History, HistoryBounds
from beanlite.journal.sqlite.totals import add_totals, prune_totals
from beanlite.journal.totals import Totals


class Chronicle:
    """Writes it on a connection, whenever the caller may use that: with a batch, or in a slice of its own."""

    def __init__(self, connection: sqlite3.Connection, address: str, bounds: HistoryBounds, clock: Clock) -> None:
        """``address`` is where the server listens."""
        self._db = connection
        self._heartbeat = Heartbeat(connection, address, clock)
        self._totals = Totals()
        self.history = History(bounds, clock)

    def begin(self, *, has_room: bool) -> None:
        """The server has the file from now on, and writes so if there is room."""
        self.history.read(self._db)
        if has_room:
            self.beat()

    def write(self, batch: Batch) -> None:
        """Write what goes with a batch, in its transaction, beside its rows."""
        if batch.tallies:
            add_totals(self._db, self._totals.rows(batch.tallies, time.time()))
        if batch.events:
            self.history.prune(self._db, PRUNED_EACH * batch.events, time.time())
        self._heartbeat.beat(BUSY_S)

    def beat(self) -> bool:
        """Tell that the server lives, if no batch has done so lately; returns whether."""
        return self._heartbeat.beat(IDLE_S)

    def prune(self) -> bool:
        """Take a slice of what is too old away; returns whether there may be more."""
        now_s = time.time()
        more_totals = prune_totals(self._db, now_s)
        return self.history.prune(self._db, PRUNED_MAX, now_s) or more_totals

    def end(self) -> None:
        """The server stops in an orderly way."""
        self._heartbeat.end()
