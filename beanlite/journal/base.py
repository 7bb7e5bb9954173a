"""What any journal does.

A journal takes the changes of the engine batch by batch, makes each batch durable, and fills the engine with what it
holds at the next start. The group commit (``beanlite/commit``) drives it. What durable means (synced always, every so
often or never; replicated) is the journal's own business, and so is all upkeep of what it writes to.

The life of a journal::

    recover ──► attach ──► commit ──► durable, ready ──► commit ──► … ──► begin_stop ──► flush ──► close
                                  └─► failed: the server ends

To write another one, subclass ``Journal``, and give it its turn in ``server.make_journal``.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import NamedTuple, Protocol

from beanlite.core.engine import Engine
from beanlite.core.ledger import Changes


class JournalFacts(NamedTuple):
    """What the statistics say of a journal; 0 for what it does not have."""

    keeps_jobs: bool
    """Whether jobs survive the process."""
    records: int
    """Rows written since the start."""
    log_bytes: int
    """Size of the log that has not been moved into the tables yet."""
    log_bytes_max: int
    """Size to which that log is cut back."""


class Listener(Protocol):
    """Who commits to a journal, and hears what becomes of it. All calls come in the thread of the loop."""

    def durable(self, batch: int, last_id: int) -> None:
        """All batches up to this one are durable, and with them all jobs up to this id: their replies may leave."""

    def ready(self) -> None:
        """The journal is no longer ``busy``: it takes another batch."""

    def failed(self, error: Exception) -> None:
        """Nothing more becomes durable: the disk has failed, or the right to write is lost. The server has to end.

        What was committed and never called durable may or may not be stored.
        """


class Journal(ABC):
    """The contract between the group commit and what stores its batches."""

    immediate: bool = False
    """Whether nothing ever has to wait: replies leave at once, and batches are committed without anybody waiting."""

    @property
    @abstractmethod
    def busy(self) -> bool:
        """Whether no batch may be committed now, because another is under way or the journal is tidying up."""

    @property
    @abstractmethod
    def syncing(self) -> bool:
        """Whether the batch that is under way is one that ``poll`` can hurry on."""

    @abstractmethod
    async def recover(self, engine: Engine, now_ns: int, stopped: asyncio.Event) -> bool:
        """Open what is stored and fill the engine with it; afterwards the journal is ready to write.

        It yields to the loop often enough for signals to be heard. Returns False, with nothing left open, if
        ``stopped`` was set meanwhile. The engine is told what was the last id (``Engine.recovered``), and from then on
        how much room there is for bodies (``accept_puts`` and ``refuse_puts``). JournalRefused: it can't be used.
        """

    @abstractmethod
    def attach(self, listener: Listener) -> None:
        """Tell the listener of everything that happens from now on; called once, in the loop, after ``recover``."""

    @abstractmethod
    def commit(self, changes: Changes) -> None:
        """Store a batch; not to be called while ``busy``.

        It does not raise and it does not wait: the listener hears that the batch is ``durable`` (perhaps before this
        returns), that the journal is ``ready`` for the next one (never before), or that it has ``failed``. Batches
        become durable in the order of their numbers. The jobs may change again as soon as this has returned.
        """

    @abstractmethod
    def poll(self) -> None:
        """Look whether the batch under way has become durable; called between commands while ``syncing``."""

    @abstractmethod
    def begin_stop(self) -> None:
        """The server is about to stop: begin no more upkeep. Batches still come."""

    @abstractmethod
    async def flush(self) -> None:
        """Make durable whatever has been committed but was called durable for a weaker promise. JournalFailed."""

    @abstractmethod
    def facts(self) -> JournalFacts:
        """What the statistics say of it."""

    @abstractmethod
    async def close(self) -> str | None:
        """Leave everything in order; returns what could not be tidied up and why, None if all is. JournalFailed.

        Not called after ``failed``: then the process ends as it is, and the next start recovers.
        """
