"""The group commit: no reply leaves before the change that it acknowledges is durable.

All changes that connections make within one turn of the loop become one batch. While the journal makes a batch durable,
the changes that arrive form the next one. There is no timer; but a few clients that have just been answered are given
the moment that they need to send their next commands: they share a batch again, rather than take turns.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from os import sched_yield
from typing import Final, Protocol

from beanlite.commit.batch_wait import BatchWait
from beanlite.commit.latencies import Latencies
from beanlite.core.engine import Engine
from beanlite.core.events import Event
from beanlite.errors import JournalFailed
from beanlite.journal.base import Journal

# Reservations, touches and timeouts go to the journal after this time, unless an earlier batch takes them along.
DEFER_S: Final = 0.02
# Totals go to the journal after this time.
TOTALS_S: Final = 1.0
# A batch with more changed jobs, paused tubes, bytes of bodies or events than this would take so long to write that
# others wait; and if a commit can't be carried out for a long time, more replies than this would fill the memory.
BATCH_JOBS: Final = 1000
BATCH_BYTES: Final = 4 << 20
BATCH_EVENTS: Final = 2000
BATCH_REPLIES: Final = 2000
# If more events than this wait for a batch that can't be carried out, nobody is served: clients that come, reserve and
# leave wait for no reply, but what they do is recorded, too. The first few of each job don't count.
EVENTS_MAX: Final = 50_000
# At the stop, the longest time without progress, and the interval of the checks for it. Checks are counted rather than
# seconds, because the process itself may have been halted meanwhile. None counts while the journal itself is at work.
FLUSH_S: Final = 10.0
LOOK_S: Final = 0.1
# At the stop, how many slices of deferred changes and of totals a batch has: hardly a client is left to be spared.
FLUSH_SLICES: Final = 10


class Holder(Protocol):
    """The part of a connection that the group commit knows."""

    def release(self, replies: bytes) -> None:
        """Send these replies: what they acknowledge is durable."""


class GroupCommit:
    """The collector of changes and of replies that wait for them; it gives the journal changes batch by batch.

    It is the journal's ``Observer``.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        engine: Engine,
        journal: Journal,
        *,
        tell_failure: Callable[[Exception], None],
        tell_room: Callable[[], None],
        tell_events: Callable[[list[Event]], None],
        clock: Callable[[], int],
        latencies: Latencies | None = None,
    ) -> None:
        """``tell_failure`` is called when nothing more can be committed, ``tell_room`` when there may be room again.

        ``tell_events`` is called with the events of each batch that has become durable. ``latencies``, if given,
        measures how long replies take.
        """
        self._loop = loop
        self._engine = engine
        self._journal = journal
        self._tell_failure = tell_failure
        self._tell_room = tell_room
        self._tell_events = tell_events
        self._clock = clock
        self._latencies = latencies
        self._held: list[tuple[Holder, bytes]] = []
        """Replies that wait for the batch being gathered."""
        self._memory = engine.memory
        self._committing: deque[tuple[int, int, list[tuple[Holder, bytes]], int, list[Event]]] = deque()
        """The batches that the journal is making durable: for each its number, when it was made, the replies that wait,
        the size of these, and its events."""
        self._turn_due = False
        self._wait = BatchWait()
        self.deferring = False
        """Whether a timer is running that will make a batch of deferred changes."""
        self._deferred_due = False
        """Whether the next batch includes deferred changes."""
        self._totals_wait = False
        """Whether a timer is running that will take the totals."""
        self._totals_due = False
        """Whether the next batch includes totals."""
        self.in_doubt = False
        """Whether another server may have taken over: if so, no reply leaves without a batch."""
        self._closed = False
        self._gave_up = False
        """Whether something that no client waited for could not be stored at the stop."""
        self._progress: asyncio.Event | None = None
        """Set whenever something happens that ``flush`` may be waiting for; None before."""
        journal.attach(self)

    # -- for connections and turns

    def hold(self, holder: Holder, replies: bytes) -> bool:
        """Hold these replies until everything changed so far is durable, then release them to the holder.

        Returns whether so many are held now that nobody can be served.
        """
        self._held.append((holder, replies))
        self._memory.gathered_bytes += len(replies)
        if not self._turn_due and not self._journal.busy:
            self._turn_due = True
            self._loop.call_soon(self._end_turn)
        return self._brims

    def count(self, more_bytes: int) -> bool:
        """Count replies that wait for those that are held as well; returns the same as ``hold``."""
        self._memory.held_bytes += more_bytes
        return self._brims

    @property
    def _brims(self) -> bool:
        memory = self._memory
        return memory.held_bytes + memory.gathered_bytes > memory.held_max_bytes

    @property
    def full(self) -> bool:
        """Whether the batch being gathered is so large that clients that pipeline have to wait for the next one.

        Never true while nothing waits for the batch. ``tell_room`` is called when the batch has been taken.
        """
        engine = self._engine
        ledger = engine.ledger
        return (
            bool(self._held)
            and (
                len(ledger.changed) > BATCH_JOBS
                or len(ledger.pauses) > BATCH_JOBS
                or len(self._held) > BATCH_REPLIES
                or self._memory.gathered_bytes > BATCH_BYTES
                or engine.admission.used_bytes > BATCH_BYTES
                or ledger.event_bytes + ledger.schedule_bytes > BATCH_BYTES
                or len(ledger.events) > BATCH_EVENTS
                or self._tubes_pile_up
            )
        ) or self.flooded

    @property
    def _tubes_pile_up(self) -> bool:
        """Whether so many tubes are gone, such as one for each reply, that their totals can't wait for TOTALS_S."""
        engine = self._engine
        return len(engine.ledger.tallied) > len(engine.tubes) + BATCH_JOBS

    @property
    def flooded(self) -> bool:
        """Whether so many events or replies wait that all clients have to wait for a batch.

        Never true for events unless the next batch takes deferred changes. ``tell_room`` is called afterwards.
        """
        ledger = self._engine.ledger
        return self._brims or (self._deferred_due and len(ledger.events) + ledger.waiting_events > EVENTS_MAX)

    def look(self) -> None:
        """Update ``in_doubt``; to be called in each turn of the loop before any command is answered."""
        self.in_doubt = self._journal.in_doubt

    def turn_ends(self, began_ns: int, now_ns: int, clients: int) -> None:
        """Note that a turn of the loop has ended, when it began, and how many clients were served in it."""
        self._wait.note_served(clients)
        if self._latencies is not None:
            self._latencies.turn_ends(began_ns, now_ns, clients, len(self._held))

    @property
    def idle(self) -> bool:
        """Whether neither a client nor a deferred change that is due waits for the journal."""
        return not (self._held or self._committing or self._deferred_due)

    @property
    def syncing(self) -> bool:
        """Whether a batch is under way that ``poll`` may finish sooner."""
        return self._journal.syncing

    def poll(self) -> None:
        """Check whether the batch under way has become durable; to be called while ``syncing``."""
        self._journal.poll()

    def defer(self) -> None:
        """Have deferred changes committed soon; not to be called while ``deferring``."""
        self.deferring = True
        self._loop.call_later(DEFER_S, self._take_deferred)

    def _take_deferred(self) -> None:
        self.deferring = False
        self._deferred_due = True
        self._turn()

    def await_totals(self) -> None:
        """Have totals taken after a while if there are new ones, even if nothing else is to be stored."""
        if self._engine.ledger.tallied and not self._totals_wait:
            self._totals_wait = True
            self._loop.call_later(TOTALS_S, self._take_totals)

    def _take_totals(self) -> None:
        self._totals_wait = False
        self._totals_due = True
        self._turn()

    # -- batch by batch

    def _end_turn(self) -> None:
        """Make a batch, unless clients are expected that have just been answered; called at the end of a turn."""
        if not self._turn_due:  # a timer has made it
            return
        began_ns = self._clock()
        if self._wait.lasts(len(self._held), began_ns) and not self.full:
            sched_yield()  # the clients may be on the same core
            now_ns = self._clock()
            self._wait.note_yield(now_ns - began_ns, now_ns)
            self._loop.call_soon(self._end_turn)
        else:
            self._turn()

    def _turn(self) -> None:
        """Make a batch of what has gathered."""
        self._turn_due = False
        if self._journal.busy or self._closed:
            return  # ``ready`` will bring us back here
        engine, memory = self._engine, self._memory
        ledger = engine.ledger
        now_ns = self._clock()
        totals = self._totals_due or self._tubes_pile_up
        changes = engine.take_changes(deferred=self._deferred_due, totals=totals, now_ns=now_ns)
        self._deferred_due = self._deferred_due and ledger.has_deferred
        self._totals_due = self._totals_due and bool(ledger.tallied)
        self.await_totals()
        held, self._held = self._held, []
        held_bytes, memory.gathered_bytes = memory.gathered_bytes, 0
        memory.held_bytes += held_bytes
        self._tell_room()
        if held or changes.has_content:
            if self._latencies is not None:
                self._latencies.batch_taken(changes.batch, len(held))
            self._committing.append((changes.batch, now_ns, held, held_bytes, changes.events))
            self._journal.commit(changes)
        else:
            self.ready()

    def durable(self, batch: int, last_id: int) -> None:
        """Release the replies of batches that the journal reports durable, whatever has changed since."""
        self._engine.stored(batch, last_id)
        self._note_progress()
        self.look()
        brimmed = self._brims
        answered = made_ns = 0
        if self._latencies is not None:
            self._latencies.batch_durable(batch)
        try:
            while self._committing and self._committing[0][0] <= batch:
                _, made_ns, held, held_bytes, events = self._committing.popleft()
                self._memory.held_bytes -= held_bytes
                answered += len(held)
                for holder, replies in held:
                    holder.release(replies)
                if events:
                    self._tell_events(events)
        except Exception as bug:  # noqa: BLE001 - this may be called in the middle of any client's commands
            self.failed(bug)
        now_ns = self._clock()
        self._wait.begin(len(self._held) + answered, now_ns - made_ns, now_ns)
        if brimmed:
            self._tell_room()

    def ready(self) -> None:
        """Have a batch made if there is something to commit: the journal can take another one.

        The batch is made at the end of the loop's next turn rather than this one, so that what clients sent during the
        last sync is read first. That makes batches larger and the server faster.
        """
        self._note_progress()
        if self._turn_due:
            return
        if self._held or self.flooded:
            self._turn_due = True
            self._loop.call_soon(self._loop.call_soon, self._end_turn)
        elif (self._deferred_due or self._totals_due) and self._progress is not None:
            self._turn_due = True
            self._loop.call_soon(self._end_turn)
        elif (self._deferred_due or self._totals_due) and not self.deferring:
            # Nobody waits for these, but clients that have just been answered would have to wait for their sync.
            self.defer()

    def failed(self, error: Exception) -> None:
        """Commit nothing more, because the journal reports that nothing more will become durable."""
        self.close()
        self._tell_failure(error)

    # -- the end

    def close(self) -> None:
        """Commit nothing more: changes that are not durable yet are never acknowledged."""
        self._closed = True
        self._note_progress()

    async def flush(self) -> None:
        """Commit everything and release all replies; to be called at the stop. Raises JournalFailed if it can't."""
        self._progress = asyncio.Event()
        self._journal.begin_stop()
        self._engine.ledger.slices = FLUSH_SLICES
        await self._until_idle(self._progress)
        self._totals_due = True
        self._take_deferred()
        await self._until_idle(self._progress)
        if not self._closed or self._gave_up:
            await self._journal.flush()

    def _note_progress(self) -> None:
        if self._progress is not None:
            self._progress.set()

    @property
    def _waited_for(self) -> bool:
        """Whether a client waits for what is not stored yet."""
        return bool(self._held) or any(held for _, _, held, _, _ in self._committing)

    async def _until_idle(self, progress: asyncio.Event) -> None:
        ledger = self._engine.ledger
        batch, looks = ledger.stored_batch, 0
        while not self._closed and (
            self._journal.busy or self._turn_due or self._deferred_due or self._totals_due or self._committing
        ):
            if ledger.stored_batch != batch:
                batch, looks = ledger.stored_batch, 0
            if looks * LOOK_S >= FLUSH_S:
                if not self._waited_for and self._journal.give_up():
                    self._gave_up = True
                    self.close()
                    return
                raise JournalFailed(
                    f"the last batch could not be stored within {FLUSH_S:.0f} s; none of it was acknowledged"
                )
            progress.clear()
            try:
                async with asyncio.timeout(LOOK_S):
                    await progress.wait()
            except TimeoutError:
                looks += not self._journal.working
