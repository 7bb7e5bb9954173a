"""The group commit: no reply leaves before what it acknowledges is durable.

Whatever the connections change within one turn of the loop becomes one batch. While the journal makes a batch durable,
the next one gathers by itself: there is no timer, and no delay is added.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from beanlite.commit.latencies import Latencies
from beanlite.core.engine import Engine
from beanlite.core.events import Event
from beanlite.errors import JournalFailed
from beanlite.journal.base import Journal

# A reservation, a touch or a timeout is in the journal after this time, unless another batch takes it there sooner.
DEFER_S: Final = 0.02
# So is what has been counted after this time.
TOTALS_S: Final = 1.0
# A batch with more changed jobs, bytes of bodies or events would keep others waiting while it is being written.
BATCH_JOBS: Final = 1000
BATCH_BYTES: Final = 4 << 20
BATCH_EVENTS: Final = 2000
# At the stop, the longest time without progress, and how often it is checked. Checks are counted, not seconds, because
# the process itself may have been halted meanwhile.
FLUSH_S: Final = 10.0
LOOK_S: Final = 0.1


class Holder(Protocol):
    """A connection, as far as the group commit knows it."""

    def release(self, replies: bytes) -> None:
        """What these replies acknowledge is durable: send them."""


class GroupCommit:
    """Gathers changes and the replies that wait for them, and hands them to the journal batch by batch.

    It is the journal's ``Listener``. Its attributes are those whom it works with, the replies that wait, and what the
    next batch is to take along.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        engine: Engine,
        journal: Journal,
        tell_failure: Callable[[Exception], None],
        tell_taken: Callable[[], None],
        tell_events: Callable[[list[Event]], None],
        latencies: Latencies | None = None,
    ) -> None:
        """``tell_failure`` hears of the end, ``tell_taken`` that a batch was taken and the next one has room.

        ``tell_events`` hears of what has happened when it is durable. ``latencies``: they are measured.
        """
        self._loop = loop
        self._engine = engine
        self._journal = journal
        self._tell_failure = tell_failure
        self._tell_taken = tell_taken
        self._tell_events = tell_events
        self._latencies = latencies
        self._held: list[tuple[Holder, bytes]] = []
        """Replies that wait for the batch being gathered."""
        self._committing: deque[tuple[int, list[tuple[Holder, bytes]], list[Event]]] = deque()
        """The batches that the journal has and that are not durable yet: their numbers, the replies that wait, and what
        has happened."""
        self._turn_due = False
        self.deferring = False
        """A batch will be made before long, for the sake of what nobody waits for."""
        self._deferred_due = False
        """The next batch takes deferred changes along."""
        self._totals_wait = False
        """They will be taken before long."""
        self._totals_due = False
        """The next batch takes totals along."""
        self.in_doubt = False
        """Another server may have taken over: no reply leaves without a batch."""
        self._closed = False
        self._progress = asyncio.Event()
        """Set whenever something has happened that ``flush`` may have waited for."""
        journal.attach(self)

    # -- what connections ask of it

    def hold(self, holder: Holder, replies: bytes) -> None:
        """Release the replies to the holder when everything that has changed so far is durable."""
        self._held.append((holder, replies))
        if not self._turn_due and not self._journal.busy:
            self._turn_due = True
            self._loop.call_soon(self._turn)

    @property
    def full(self) -> bool:
        """Whether the batch being gathered is so large that writing it would keep others waiting.

        Never true while nobody waits for it. When it has been taken, ``tell_taken`` is called.
        """
        engine = self._engine
        ledger = engine.ledger
        return bool(self._held) and (
            len(ledger.changed) > BATCH_JOBS
            or engine.admission.used_bytes > BATCH_BYTES
            or len(ledger.events) > BATCH_EVENTS
        )

    def look(self) -> None:
        """See whether the journal is in doubt; to be called before anything is answered in a turn of the loop."""
        self.in_doubt = self._journal.in_doubt

    def turn_ends(self, began_ns: int, now_ns: int, served: int) -> None:
        """A turn of the loop that has begun then is over, in which so many clients were served."""
        if self._latencies is not None:
            self._latencies.turn_ends(began_ns, now_ns, served, len(self._held))

    @property
    def idle(self) -> bool:
        """Whether nothing waits for the journal, be it a client or what is deferred."""
        return not (self._held or self._committing or self._deferred_due)

    @property
    def syncing(self) -> bool:
        """Whether a batch is on its way that ``poll`` hurries on."""
        return self._journal.syncing

    def poll(self) -> None:
        """Look whether the batch under way has become durable; to be called while ``syncing``."""
        self._journal.poll()

    def defer(self) -> None:
        """Something has changed that nobody waits for: have it committed soon. Not to be called while ``deferring``."""
        self.deferring = True
        self._loop.call_later(DEFER_S, self._take_deferred)

    def _take_deferred(self) -> None:
        self.deferring = False
        self._deferred_due = True
        self._turn()

    def _take_totals(self) -> None:
        self._totals_wait = False
        self._totals_due = True
        self._turn()

    # -- batch by batch

    def _turn(self) -> None:
        """The end of a turn of the loop: what has gathered becomes a batch."""
        self._turn_due = False
        if self._journal.busy or self._closed:
            return  # ``ready`` will bring us back here
        engine = self._engine
        ledger = engine.ledger
        changes = engine.take_changes(deferred=self._deferred_due, totals=self._totals_due)
        self._deferred_due = self._deferred_due and ledger.has_deferred
        self._totals_due = self._totals_due and bool(ledger.tallied)
        if ledger.tallied and not self._totals_wait:
            self._totals_wait = True
            self._loop.call_later(TOTALS_S, self._take_totals)
        held, self._held = self._held, []
        self._tell_taken()
        if held or changes.jobs or changes.pauses or changes.events or changes.tallies:
            if self._latencies is not None:
                self._latencies.batch_taken(changes.batch, len(held))
            self._committing.append((changes.batch, held, changes.events))
            self._journal.commit(changes)
        else:
            self.ready()

    def durable(self, batch: int, last_id: int) -> None:
        """What the journal says when batches are durable: the replies that waited leave, whatever has come since."""
        self._engine.stored(batch, last_id)
        self._progress.set()
        self.look()
        if self._latencies is not None:
            self._latencies.batch_durable(batch)
        try:
            while self._committing and self._committing[0][0] <= batch:
                _, held, events = self._committing.popleft()
                for holder, replies in held:
                    holder.release(replies)
                if events:
                    self._tell_events(events)
        except Exception as bug:  # noqa: BLE001 - this may be called amid the commands of any client
            self.failed(bug)

    def ready(self) -> None:
        """What the journal says when it takes another batch: one is made if there is something for it.

        It is made at the end of the loop's next turn, not of this one: what clients have sent during the last sync is
        read first, which makes the batches larger and the server faster.
        """
        self._progress.set()
        if not self._turn_due and (self._held or self._deferred_due or self._totals_due):
            self._turn_due = True
            self._loop.call_soon(self._loop.call_soon, self._turn)

    def failed(self, error: Exception) -> None:
        """What the journal says when nothing more becomes durable."""
        self.close()
        self._tell_failure(error)

    # -- the end

    def close(self) -> None:
        """Commit nothing more: what is not durable is not acknowledged, now or later."""
        self._closed = True
        self._progress.set()

    async def flush(self) -> None:
        """Commit and release everything there is; to be called at the stop. JournalFailed: that can't be done."""
        self._journal.begin_stop()
        await self._until_idle()
        self._totals_due = True
        self._take_deferred()
        await self._until_idle()
        if not self._closed:
            await self._journal.flush()

    async def _until_idle(self) -> None:
        ledger = self._engine.ledger
        stored, looks = ledger.stored_batch, 0
        while not self._closed and (
            self._journal.busy or self._turn_due or self._deferred_due or self._totals_due or self._committing
        ):
            if ledger.stored_batch != stored:
                stored, looks = ledger.stored_batch, 0
            if looks * LOOK_S >= FLUSH_S:
                raise JournalFailed(
                    f"the last batch could not be stored within {FLUSH_S:.0f} s; nobody was told it was"
                )
            self._progress.clear()
            try:
                async with asyncio.timeout(LOOK_S):
                    await self._progress.wait()
            except TimeoutError:
                looks += 1
