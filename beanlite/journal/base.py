"""What any journal does.

A journal takes the changes of the engine batch by batch, makes each batch durable, and fills the engine with what it
holds at the next start. The group commit (``beanlite/commit``) drives it. What durable means (synced always, every so
often or never; replicated) is the journal's own business, and so is all upkeep of what it writes to.

The life of a journal, with what it tells its listener in brackets::

    recover ──► attach ──► commit ──► (durable, ready) ──► commit ──► … ──► begin_stop ──► flush ──► close
                                  └─► (failed): the server ends

To write another one, subclass ``Journal``, have ``server.make_journal`` choose it, and add it to the contract tests in
``tests/journal/test_base.py``.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from beanlite.clock import Clock
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
    unsynced_s: float | None = None
    """For how long something has been committed that is not synced yet; None: that is left to the system."""


class Listener(Protocol):
    """Who commits to a journal, and hears what becomes of it. All calls come in the thread of the loop."""

    def durable(self, batch: int, last_id: int) -> None:
        """All batches up to this one are durable, and with them all jobs up to this id: their replies may leave.

        One call may stand for several batches.
        """

    def ready(self) -> None:
        """The journal is not ``busy``, or no longer: it takes another batch. One call too many does no harm."""

    def failed(self, error: Exception) -> None:
        """Nothing more becomes durable: the disk has failed, or the right to write is lost. The server has to end.

        It may come at any time, and is the last call: neither ``durable`` nor ``ready`` follows. What was committed and
        never called durable may or may not be stored. The error is a JournalFailed, whose text the operator reads;
        anything else counts as a bug of ours.
        """


class Journal(ABC):
    """The contract between the group commit and what stores its batches."""

    immediate: bool = False
    """Whether no reply waits for a batch, because no job outlives the process: each leaves at once."""

    fetches: bool = False
    """Whether ``fetch`` can read bodies back, so that memory need not hold all of them."""

    stands_by: bool = False
    """Whether ``recover`` waits because another server is active."""

    @property
    @abstractmethod
    def busy(self) -> bool:
        """Whether no batch may be committed now, because another is under way or the journal is tidying up.

        When that ends, the listener hears ``ready``. A journal that can have several batches under way
        need not be busy meanwhile.
        """

    @property
    def in_doubt(self) -> bool:
        """Whether another server may have the right to write by now. Then no reply leaves but with a batch.

        It is asked in each turn of the loop, and whenever a batch has become durable.
        """
        return False

    @property
    def is_elsewhere(self) -> bool:
        """Whether it can be out of reach without any fault of this process, so that a restart would not help."""
        return False

    @property
    @abstractmethod
    def syncing(self) -> bool:
        """Whether ``poll`` can hurry on the batch that is under way; False where it has nothing to do."""

    @abstractmethod
    async def recover(self, engine: Engine, clock: Clock, stopped: asyncio.Event) -> bool:
        """Open what is stored and fill the engine with it; afterwards the journal is ready to write.

        The engine is given all jobs by ``restore``, some thousand at a time, each pause by ``restore_pause``, and at
        last, by ``recovered``, the highest id ever given out and the number of the last batch. The journal checks what
        it reads, as ``core.restore.StoredJob`` says. From then on it tells the engine how much room there is for
        bodies: by ``accept_puts`` after each batch, since puts use the room up, or never, if there is no limit; and by
        ``refuse_puts`` when there is none left.

        ``clock`` is the server's, and shows UTC as the machine has it. The journal sets it before it fills the engine
        if the times of what is stored are by another clock. It yields to the loop often enough for signals to be
        heard, and returns False, with nothing left open, if ``stopped`` was set meanwhile. Raises JournalRefused if
        what is stored can't be used; the process then ends.
        """

    @abstractmethod
    def attach(self, listener: Listener) -> None:
        """Tell the listener of everything that happens from now on; called once, in the loop, after ``recover``."""

    @abstractmethod
    def commit(self, changes: Changes) -> None:
        """Store a batch; not to be called while ``busy``.

        It does not raise. It is not awaited, and should take no longer than others may be kept waiting. The listener
        hears that the batch is ``durable`` and that the journal is ``ready`` for the next one, in either order, or that
        it has ``failed``; perhaps before this returns. Batches become durable in the order of their numbers. The jobs
        may change again as soon as this has returned, so what is to be stored of them has to be taken from them here.
        """

    async def fetch(self, job_ids: Sequence[int]) -> list[bytes | None]:
        """Read the bodies of stored jobs, in this order; None for one that has been deleted meanwhile.

        Called at any time between ``attach`` and ``close``, while batches are committed, one call at a time; only those
        who need these bodies wait for it. Raises JournalFailed.
        """
        raise NotImplementedError

    @abstractmethod
    def poll(self) -> None:
        """Look whether the batch under way has become durable; called between commands while ``syncing``."""

    @abstractmethod
    def begin_stop(self) -> None:
        """The server is about to stop: begin no more upkeep. A few more batches come, then ``flush`` and ``close``."""

    @abstractmethod
    async def flush(self) -> None:
        """Sync what was called durable for a weaker promise, such as a sync every so often. Raises JournalFailed.

        It is called when every batch has been called durable.
        """

    def reconfigure(  # noqa: B027 - most journals have nothing to do
        self, history_s: int | None, history_bytes: int, *, history_bodies: bool
    ) -> None:
        """Take over settings that were changed while the server serves; a journal without a history has none.

        It is called in the loop, after ``attach``. Whether commits are logged may have changed as well.
        """

    @abstractmethod
    def facts(self) -> JournalFacts:
        """What the statistics say of it; to be asked at any time after ``recover``."""

    @abstractmethod
    async def close(self) -> str | None:
        """Leave everything in order; returns what could not be tidied up and why, or None. Raises JournalFailed.

        Not called after ``failed``: then the process ends as it is, and the next start recovers.
        """
