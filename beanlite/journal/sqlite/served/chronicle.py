"""What the file records about the past and about the server itself: totals, history, and a heartbeat."""

import sqlite3
import time

from beanlite.host.clock import Clock
from beanlite.journal.event_rows import HistoryBounds
from beanlite.journal.sqlite.file.heartbeat import BUSY_S, IDLE_S, Heartbeat
from beanlite.journal.sqlite.served.batch import Batch
from beanlite.journal.sqlite.served.history import PRUNED_EACH, PRUNED_MAX, History
from beanlite.journal.sqlite.served.totals import add_totals, prune_totals, resume_totals
from beanlite.journal.totals import Totals


class Chronicle:
    """The writer of these records on a connection when its caller may use it: with a batch, or in a separate slice."""

    def __init__(self, connection: sqlite3.Connection, address: str, bounds: HistoryBounds, clock: Clock) -> None:
        """``address`` is where the server listens."""
        self._db = connection
        self._heartbeat = Heartbeat(connection, address, clock)
        self._totals = Totals()
        self.history = History(bounds, clock)

    def begin(self, *, has_room: bool) -> None:
        """Begin to record for this server, with a heartbeat if there is room."""
        self.history.read(self._db)
        resume_totals(self._db, self._totals, time.time())
        if has_room:
            self.beat()

    def write(self, batch: Batch) -> None:
        """Write the records that go with a batch, in the transaction of its rows."""
        if batch.tallies:
            add_totals(self._db, self._totals.rows(batch.tallies, time.time()))
        if batch.events:
            self.history.prune(self._db, PRUNED_EACH * batch.events, time.time())
        self._heartbeat.beat(BUSY_S)

    def beat(self, every_s: float = IDLE_S) -> bool:
        """Write a heartbeat, unless the last one is less than ``every_s`` old; returns whether one was written."""
        return self._heartbeat.beat(every_s)

    def prune(self) -> bool:
        """Delete a slice of the records that are too old; returns whether there may be more."""
        now_s = time.time()
        self._db.execute("BEGIN IMMEDIATE")  # of several commits, a power failure could lose more than a start expects
        more_totals = prune_totals(self._db, now_s)
        more_history = self.history.prune(self._db, PRUNED_MAX, now_s)
        self._db.execute("COMMIT")
        return more_totals or more_history

    def end(self) -> None:
        """Record the orderly stop of the server."""
        self._heartbeat.end()
