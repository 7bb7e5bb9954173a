"""Fairness: decides which client is served when."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from beanlite.commit.group import GroupCommit
from beanlite.core.engine import Engine
from beanlite.core.job import SECOND_NS, Job
from beanlite.core.queues import Outcome
from beanlite.core.timers import NEVER_NS
from beanlite.core.tube import Client
from beanlite.protocol.blocked import KICKING, LOOKING, WORKING, Blocked
from beanlite.protocol.framing import STEPS_MAX

# The clock is read again after this many bytes have been received: some thousands of commands.
TURN_BYTES: Final = 1 << 16
# After this long in one turn of the loop, the remaining work continues in a later one.
TURN_NS: Final = 2_000_000
# After this long none is served that sends much at once. Until then only one is put off after every TURN_BYTES, lest
# batches become small.
LONG_TURN_NS: Final = 5 * TURN_NS
# The share of a turn for clients with more to do than fits in one go, if clients that send one command at a time were
# served, too. It doubles, up to TURN_NS, with each turn without such a client: its next command may be on its way.
RESUMED_NS: Final = 200_000
# In that case this many lines and bodies of each are carried out in one go: STEPS_MAX would take much longer.
RESUMED_STEPS: Final = 20
# The loop's timer is never set further ahead than this: its time stands still while the machine is suspended, so that
# what has become due meanwhile is late by this much at most.
TIMER_MAX_S: Final = 5.0
# While a batch is being synced, the journal is polled for the end of the sync after every so many clients served.
POLL_EVERY: Final = 8
# Returned instead of the time when the turn has lasted long enough.
LATE: Final = 0


class Turns:
    """Gives each client its turn, so that no amount of work for one of them holds up the others.

    A turn is one pass of the event loop. Its rules:

    - The clock is read at the first command of a turn, and again after every TURN_BYTES received, and before each
      pipeline. Reading it for each command would be noticeably slower, so commands that may take long ask for a new
      reading. It never goes back.
    - Timers that are due are handled when the clock is read, one slice per turn. The end of the turn follows up on all
      changes: it wakes the clients whose wait is over, has deferred changes written, and sets the timer.
    - Once a turn has lasted TURN_NS, clients that leave are put off until a later one, and so is one that sends after
      every TURN_BYTES; after LONG_TURN_NS, all that pipeline. While too many events wait to be stored, all that send
      are put off.
    - Clients that were put off, or have more to do than fits in one go, resume in order of arrival, and only while the
      batch being gathered has room: each at most once per turn, and for RESUMED_NS in all. Both limits are relaxed if
      no client was served that sends one command at a time. Clients that leave don't fill a batch, and so don't wait
      for room in it.
    - Commands that take long are set aside where they are read, however few bytes they have. They get as much of a turn
      again, but at least one is carried out. Those that change nothing don't wait for room in the batch.
    """

    __slots__ = (
        "_behind",
        "_beside_sync",
        "_bytes_left",
        "_clock",
        "_engine",
        "_group",
        "_leaving",
        "_looking",
        "_loop",
        "_now_ns",
        "_resume_due",
        "_resuming",
        "_served",
        "_share_ns",
        "_tell",
        "_timer",
        "_timer_ns",
        "_timers",
        "_until_ns",
        "_working",
        "steps",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        engine: Engine,
        group: GroupCommit,
        clock: Callable[[], int],
        tell: Callable[[Client, Job | Outcome], None],
    ) -> None:
        """``tell`` is called with a client whose wait is over, and the outcome."""
        self._loop = loop
        self._engine = engine
        self._timers = engine.timers
        self._group = group
        self._clock = clock
        self._tell = tell
        self._now_ns = 0
        """The time as last read in this turn; 0 if it has not been read yet."""
        self._until_ns = 0
        """When this turn will have lasted TURN_NS."""
        self._bytes_left = 0
        """How many bytes may still be received before the clock is read again."""
        self._behind = False
        """More timers are due than fit in one slice: the loop's timer does the rest, one slice per turn."""
        self._leaving: deque[Callable[[], None]] = deque()
        self._resuming: deque[Callable[[], None]] = deque()
        self._looking: deque[Callable[[], None]] = deque()
        self._working: deque[Callable[[], None]] = deque()
        self._resume_due = False
        self._share_ns = RESUMED_NS
        """How much of a turn resuming clients get; RESUMED_NS if clients sending one by one were served meanwhile."""
        self.steps = STEPS_MAX
        """How many lines and bodies of a resuming client are carried out in one go."""
        self._served = 0
        """How many clients were served in this turn."""
        self._beside_sync = 0
        """How many clients were served while a batch was being synced."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = NEVER_NS

    # -- the time

    def now(self) -> int:
        """Read the clock and return the time, after handling due timers, or a slice of them.

        The end of the turn will follow up.
        """
        now_ns = self._clock()
        if not self._now_ns:
            self._loop.call_soon(self._end_turn)
            self._until_ns = now_ns + TURN_NS
        self._group.look()
        self._now_ns = now_ns
        if self._timers.next_ns <= now_ns and not self._behind:
            self._engine.tick(now_ns)
            self._behind = self._timers.next_ns <= now_ns
        self._bytes_left = 0 if self._group.flooded else TURN_BYTES
        return now_ns

    def glance(self) -> int:
        """Read the clock, and do nothing else."""
        return self._clock()

    def now_unless_late(self) -> int:
        """Like ``now``, but return LATE if the turn has lasted long enough."""
        now_ns = self.now()
        return LATE if now_ns > self._until_ns else now_ns

    def received(self, size: int, *, is_much: bool) -> int:
        """Return the time for a client that has sent ``size`` bytes, or LATE if they have to be put off.

        ``is_much``: they are more than a few commands.
        """
        self._bytes_left = bytes_left = self._bytes_left - size
        if bytes_left > 0 and not is_much:
            return self._now_ns
        now_ns = self.now()
        until_ns = self._until_ns
        if bytes_left > 0 and self._bytes_left > 0:
            self._bytes_left = bytes_left
            until_ns += LONG_TURN_NS - TURN_NS
        return LATE if now_ns > until_ns or self._group.flooded else now_ns

    def look_at_clock(self) -> None:
        """Have the clock read for the next client that sends, because something has taken long."""
        self._bytes_left = 0

    def served(self, *, one_by_one: bool) -> None:
        """Count a client as served, and now and then poll for the end of a sync that other clients wait for.

        ``one_by_one``: it waits for each reply before it sends the next command, or nearly so.
        """
        if one_by_one:
            self._share_ns = RESUMED_NS
        self._served += 1
        if self._group.syncing:
            self._beside_sync += 1
            if not self._beside_sync % POLL_EVERY:
                self._group.poll()

    def _end_turn(self) -> None:
        now_ns = self.now()
        self._group.turn_ends(self._until_ns - TURN_NS, now_ns, self._served)
        self._now_ns = self._bytes_left = self._served = 0
        self.follow_up(now_ns)

    # -- following up on changes

    def follow_up(self, now_ns: int) -> None:
        """Follow up on changes: wake clients whose wait is over, have what is deferred written, and set the timer."""
        ledger = self._engine.ledger
        self.wake()
        ledger.bound_deferred(len(self._engine.jobs))
        if not self._group.deferring and (ledger.has_deferred or ledger.is_changed):
            self._group.defer()
        self._group.await_totals()
        if self._timers.next_ns < self._timer_ns:
            self._set_timer(now_ns)

    def wake(self) -> None:
        """Report to the clients whose wait is over."""
        clients = self._engine.clients
        while clients.woken:
            for client, outcome in clients.take_woken():
                self._tell(client, outcome)

    def disconnect(self, client: Client) -> None:
        """Disconnect a client, so that its reserved jobs are for others. Does nothing if it is disconnected already."""
        if not client.gone:
            self._engine.clients.disconnect(client, self.now())

    def _set_timer(self, now_ns: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ns = self._timers.next_ns
        delay_s = max(0.0, min((self._timer_ns - now_ns) / SECOND_NS, TIMER_MAX_S))
        self._timer = self._loop.call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._timer_ns = NEVER_NS
        self._behind = False
        self.follow_up(self.now())

    # -- resuming and leaving

    def resume_later(self, resume: Callable[[], None], kind: Blocked) -> None:
        """Call ``resume`` in a later turn, for a client that has more to do; ``kind`` is why it is blocked."""
        if kind is LOOKING:
            self._looking.append(resume)
        elif kind is WORKING or kind is KICKING:
            self._working.append(resume)
        else:
            self._resuming.append(resume)
        self.resume_soon()

    def leave(self, leave: Callable[[], None]) -> None:
        """Call ``leave`` for a client that leaves: now, or in a later turn if this one has lasted long enough."""
        if self.now_unless_late() == LATE:
            self._leaving.append(leave)
            self.resume_soon()
        else:
            leave()

    def resume_soon(self) -> None:
        """Schedule the clients that can resume, if any; also to be called when there may be room again."""
        if not self._resume_due and (
            self._leaving or self._looking or ((self._resuming or self._working) and not self._group.full)
        ):
            self._resume_due = True
            self._loop.call_soon(self._resume)

    def _resume(self) -> None:
        self._resume_due = False
        group = self._group
        others = self._share_ns == RESUMED_NS
        self.steps = RESUMED_STEPS if others else STEPS_MAX
        began_ns = self.now()
        until_ns = began_ns + self._share_ns
        self._share_ns = min(2 * self._share_ns, TURN_NS)
        resuming, leaving = len(self._resuming), len(self._leaving)
        while resuming or leaving:  # alternate, so that neither kind holds up the other
            if leaving:
                leaving -= 1
                self._leaving.popleft()()
            if resuming and group.full:
                resuming = 0
            elif resuming:
                self._resuming.popleft()()
                resuming = resuming - 1 if others else len(self._resuming)
            if group.syncing:
                group.poll()
            if self.now() > until_ns:
                break
        if self._looking or self._working:
            self._take_long(until_ns - began_ns)
        self.resume_soon()

    def _take_long(self, share_ns: int) -> None:
        """Carry out commands that take long: at least one, and more for ``share_ns``."""
        group, steps = self._group, self.steps
        until_ns = self.now() + share_ns
        looking, working = len(self._looking), len(self._working)
        while looking or working:
            full = group.full
            if looking:
                looking -= 1
                self.steps = 0 if full else steps  # what follows may need room
                self._looking.popleft()()
            if full:
                working = 0
            elif working:
                working -= 1
                self.steps = steps
                self._working.popleft()()
            if group.syncing:
                group.poll()
            if self.now() > until_ns:
                break
        self._until_ns = self._now_ns + TURN_NS  # those that send are not put off because of it
