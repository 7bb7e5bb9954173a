"""The interface of every journal.

A journal takes the engine's changes batch by batch, makes each batch durable, and at the next start fills the engine
with the stored state. The group commit (``beanlite/commit``) drives it. What durable means (synced always, at
intervals or never; replicated) is the journal's own business, and so is all upkeep of its storage.

The life cycle of a journal, with its calls to the listener in brackets::

    recover ──► attach ──► commit ──► (durable, ready) ──► commit ──► … ──► begin_stop ──► flush ──► close
                                  └─► (failed): the server ends

To write a new one, subclass ``Journal``, have ``server.make_journal`` choose it, and add it to the contract tests in
``tests/journal/test_base.py``.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from beanlite.core.engine import Engine
from beanlite.core.ledger import Changes
from beanlite.host.clock import Clock


class Standby(NamedTuple):
    """A standby of the database that a journal is in."""

    name: str
    address: str
    state: str
    sync_state: str
    """``sync`` or ``quorum``: commits wait for it; else ``potential``, ``async``, or ``unknown``."""
    lag_s: float | None
    """How long it took until the last changes could be read there; None: that is not known, or nothing was changed."""
    lag_bytes: int | None
    """How much of the log it has not stored; None: that is not known."""


class DatabaseFigures(NamedTuple):
    """How the database that a journal is in is doing."""

    size_bytes: int
    oldest_transaction_s: float
    """For how long the oldest transaction has been open; 0 if there is none."""
    oldest_snapshot: int
    """How many transactions have begun since the oldest one that may still read old versions of rows."""
    oldest_holder: str | None
    """The process, slot or prepared transaction to which that belongs, for people; None if there is none."""
    is_synchronous: bool
    """Whether commits wait for a standby."""
    dead_rows: dict[str, int]
    """How many old versions of rows each table has, by the database's own estimate."""
    standbys: list[Standby]


class Tenure(NamedTuple):
    """The lease that a server has."""

    database: str
    """The address of the database, without its password."""
    node: str
    address: str
    epoch: int
    takeovers: int
    """How often a lease was taken that had not been given back, as of when this one was taken."""


class JournalFacts(NamedTuple):
    """Statistics about a journal; 0 where a value does not apply to it."""

    keeps_jobs: bool
    """Whether jobs survive the process."""
    records: int
    """Rows written since the start."""
    log_bytes: int
    """Size of the log, with what has been moved into the tables since the log was last emptied."""
    log_bytes_max: int
    """Size to which that log is truncated."""
    unsynced_s: float | None = None
    """Age of the oldest commit that is not synced yet; None: syncing is left to the operating system."""
    history_bodies_max: int = 0
    """Bytes of the history in which bodies of deleted jobs are kept; 0: they are not kept."""
    tenure: Tenure | None = None
    """The lease, where servers take turns."""
    database: DatabaseFigures | None = None
    """The database as of some seconds ago; None: there is none, or it does not answer."""


class Observer(Protocol):
    """The callbacks of a journal's user, which report what has become of its commits. All run in the loop's thread."""

    def durable(self, batch: int, last_id: int) -> None:
        """Note that all batches up to this one and all jobs up to this id are durable: their replies may be sent.

        One call may cover several batches.
        """

    def ready(self) -> None:
        """Note that the journal is not ``busy`` and accepts another batch. Superfluous calls do no harm."""

    def failed(self, error: Exception) -> None:
        """Note that nothing more becomes durable: the disk has failed, or the right to write is lost. The server ends.

        The call may come at any time, and is the last one: neither ``durable`` nor ``ready`` follows. Batches that were
        committed but never reported durable may or may not be stored. The error is a JournalFailed, whose text is shown
        to the operator; any other exception counts as a bug of ours.
        """


class Journal(ABC):
    """The contract between the group commit and the storage of its batches."""

    immediate: bool = False
    """Whether replies are sent at once instead of waiting for a batch, because no job outlives the process."""

    fetches: bool = False
    """Whether ``fetch`` can read bodies back, so that they need not all be kept in memory."""

    stands_by: bool = False
    """Whether ``recover`` is waiting because another server is active."""

    @property
    @abstractmethod
    def busy(self) -> bool:
        """Whether no batch may be committed, because another is under way or upkeep is running.

        When that ends, the journal calls the listener's ``ready``. A journal that can have several batches under way
        need not be busy while it has one.
        """

    @property
    def in_doubt(self) -> bool:
        """Whether another server may have gained the right to write. If so, replies are only sent along with a batch.

        This is read in each iteration of the loop, and whenever a batch has become durable.
        """
        return False

    @property
    def is_elsewhere(self) -> bool:
        """Whether the storage can be unreachable through no fault of this process, so that a restart would not help."""
        return False

    @property
    @abstractmethod
    def syncing(self) -> bool:
        """Whether ``poll`` can speed up the batch that is under way; False where it has nothing to do."""

    @property
    def working(self) -> bool:
        """Whether the batch or the upkeep under way takes long by itself, and waits for no lock, room or sync."""
        return False

    @abstractmethod
    async def recover(self, engine: Engine, clock: Clock, stopped: asyncio.Event) -> bool:
        """Open the stored state and fill the engine with it; afterwards the journal is ready to write.

        The journal passes the engine all jobs through ``restore``, some thousand at a time, each pause through
        ``restore_pause``, and finally, through ``recovered``, the highest id ever given out and the number of the last
        batch. It checks what it reads as described at ``core.restore.StoredJob``. From then on it reports to the engine
        how much room there is for bodies: through ``accept_puts`` again and again, since puts use the room up, or
        never, if there is no limit; and through ``refuse_puts`` when there is none left.

        ``clock`` is the server's clock, and shows the machine's UTC. If the stored times are by another clock, the
        journal sets ``clock`` before it fills the engine. It yields to the loop often enough for signals to be handled,
        and returns False, with nothing left open, if ``stopped`` is set meanwhile. Raises JournalRefused if the stored
        state can't be used, and JournalFailed if it may be usable the next time; the process then ends.
        """

    @abstractmethod
    def attach(self, listener: Observer) -> None:
        """Report all further events to the listener; called once, in the loop, after ``recover``."""

    @abstractmethod
    def commit(self, changes: Changes) -> None:
        """Store a batch; not to be called while ``busy``.

        This does not raise. It is not awaited, so it should not block for longer than clients may be kept waiting. The
        listener's ``durable`` and ``ready`` are called, in either order, or its ``failed``; perhaps before this
        returns. Batches become durable in the order of their numbers. The jobs may change again as soon as this has
        returned, so everything that is to be stored has to be copied from them here.
        """

    async def fetch(self, job_ids: Sequence[int]) -> list[bytes | None]:
        """Read the bodies of stored jobs, in the order given; None for a job that has been deleted meanwhile.

        Called at any time between ``attach`` and ``close``, also while batches are committed, but one call at a time;
        only clients that need these bodies wait for it. After ``begin_stop``, when no client is told any more, None may
        also stand for a body that can't be read. Raises JournalFailed.
        """
        raise NotImplementedError

    @abstractmethod
    def poll(self) -> None:
        """Check whether the batch under way has become durable; called between commands while ``syncing``."""

    @abstractmethod
    def begin_stop(self) -> None:
        """Start no more upkeep: the server is about to stop. A few batches follow, then ``flush`` and ``close``."""

    def give_up(self) -> bool:
        """Give up the batch under way, for which no client waits, because another program has the file locked.

        False: that is not what it waits for. After True only ``flush`` and ``close`` follow.
        """
        return False

    @abstractmethod
    async def flush(self) -> None:
        """Sync batches that were reported durable on a weaker promise, such as syncs at intervals.

        Called when every batch has been reported durable. Raises JournalFailed.
        """

    def reconfigure(  # noqa: B027 - most journals have nothing to do
        self, history_s: int | None, history_bytes: int, *, history_bodies: bool
    ) -> None:
        """Apply settings that were changed while the server runs; a journal without a history has none.

        Called in the loop, after ``attach``. Whether commits are logged may have changed as well.
        """

    @abstractmethod
    def facts(self) -> JournalFacts:
        """Return statistics about the journal; may be called at any time after ``recover``."""

    @abstractmethod
    async def close(self) -> str | None:
        """Close in good order; returns what could not be tidied up and why, or None. Raises JournalFailed.

        Not called after ``failed``: the process then simply ends, and the next start recovers.
        """
