"""A journal that stores nothing: jobs are lost when the process ends."""

import asyncio

from beanlite.core.engine import Engine
from beanlite.core.ledger import Changes
from beanlite.host.clock import Clock
from beanlite.journal.base import Journal, JournalFacts, Observer


class MemoryJournal(Journal):
    """A journal that stores nothing, so everything is at once as durable as it will ever be."""

    immediate = True

    @property
    def busy(self) -> bool:
        """Whether no batch may be committed: never."""
        return False

    @property
    def syncing(self) -> bool:
        """Whether a batch is being synced: never."""
        return False

    async def recover(self, engine: Engine, clock: Clock, stopped: asyncio.Event) -> bool:  # noqa: ARG002 - nothing to recover
        """Return True: there is nothing to recover."""
        return True

    def attach(self, listener: Observer) -> None:
        """Set the listener, to which each batch is reported as durable."""
        self._listener = listener

    def commit(self, changes: Changes) -> None:
        """Forget the batch."""
        self._listener.durable(changes.batch, changes.last_id)
        self._listener.ready()

    def poll(self) -> None:
        """Do nothing: no batch is ever under way."""

    def begin_stop(self) -> None:
        """Do nothing: there is no upkeep."""

    async def flush(self) -> None:
        """Do nothing: there is nothing to flush."""

    def facts(self) -> JournalFacts:
        """Report that no jobs are kept."""
        return JournalFacts(keeps_jobs=False, records=0, log_bytes=0, log_bytes_max=0)

    async def close(self) -> str | None:
        """Do nothing: there is nothing to close."""
        return None
