"""Fairness: who is served when."""

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
from beanlite.protocol.framing import STEPS_MAX

# A client may send this many bytes before the clock is read again: some thousands of commands.
TURN_BYTES: Final = 1 << 16
# After this long in one turn of the loop, whoever has much to do continues in a later one.
TURN_NS: Final = 2_000_000
# So much of a turn is for those who have more to do than fits in one go, if others were served who send one by one.
# It doubles with each turn in which no such client came, up to TURN_NS: what they have not sent yet may be on its way.
RESUMED_NS: Final = 200_000
# So many lines and bodies of each of them are carried out in one go then: STEPS_MAX would take much longer than that.
RESUMED_STEPS: Final = 20
# The loop's timer is never set further ahead than this.
TIMER_MAX_S: Final = 3600.0
# While a batch is being synced, its end is looked for each time that so many clients have been served.
POLL_EVERY: Final = 8
# What a method returns instead of the time when the turn has lasted long enough.
LATE: Final = 0


class Turns:
    """Gives each client its turn, so that no amount of work for one of them holds up the others.

    A turn is one pass of the event loop. Its rules:

    - The clock is read at the first command of a turn, and again after every TURN_BYTES received; reading it for each
      command would cost a noticeable part of the speed; so commands that may take long say so. It never goes back.
    - Whatever has fallen due is done when the clock is read, one slice in a turn. The end of the turn follows up on
      all that has changed: it tells the clients whose wait is over, has deferred changes written, and sets the timer.
    - Once a turn has lasted TURN_NS, clients that send or leave are put off until a later one.
    - Those that were put off, or have more to do than fits in one go, resume in the order in which they came, and only
      while the batch being gathered has room: each at most once in a turn and for RESUMED_NS in all, or for longer if
      nobody was served who sends one by one. Clients that leave do not fill a batch, and so do not wait for it.

    It has more attributes than most classes because these rules share them.
    """

    __slots__ = (
        "_behind",
        "_beside_sync",
        "_bytes_left",
        "_clock",
        "_engine",
        "_group",
        "_leaving",
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
        "steps",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        engine: Engine,
        group: GroupCommit,
        clock: Callable[[], int],
        tell: Callable[[Client, Job | Outcome, int], None],
    ) -> None:
        """``tell`` is called with a client whose wait is over, what ended it, and the time in nanoseconds."""
        self._loop = loop
        self._engine = engine
        self._timers = engine.timers
        self._group = group
        self._clock = clock
        self._tell = tell
        self._now_ns = 0
        """The time as last read in this turn; 0 if it has not been read yet."""
        self._until_ns = 0
        """When this turn will have lasted long enough."""
        self._bytes_left = 0
        """How many bytes may still be received before the clock is read again."""
        self._behind = False
        """More is due than one slice: the timer continues, once in each turn."""
        self._leaving: deque[Callable[[], None]] = deque()
        self._resuming: deque[Callable[[], None]] = deque()
        self._resume_due = False
        self._share_ns = RESUMED_NS
        """For how long of a turn some may resume. RESUMED_NS: such others were served since some last resumed."""
        self.steps = STEPS_MAX
        """How many lines and bodies who resumes has carried out in one go."""
        self._served = 0
        """How many clients were served in this turn."""
        self._beside_sync = 0
        """How many were while a batch was being synced."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = NEVER_NS

    # -- the time

    def now(self) -> int:
        """Read the clock and do what is due by then, or a slice of it. The end of the turn will follow up."""
        now_ns = self._clock()
        if not self._now_ns:
            self._loop.call_soon(self._end_turn)
            self._until_ns = now_ns + TURN_NS
        self._group.look()
        self._now_ns = now_ns
        self._bytes_left = TURN_BYTES
        if self._timers.next_ns <= now_ns and not self._behind:
            self._engine.tick(now_ns)
            self._behind = self._timers.next_ns <= now_ns
        return now_ns

    def now_unless_late(self) -> int:
        """The same, but LATE if the turn has lasted long enough."""
        now_ns = self.now()
        return LATE if now_ns > self._until_ns else now_ns

    def received(self, size: int) -> int:
        """The time for a client that has sent so many bytes, or LATE if they have to be put off."""
        self._bytes_left -= size
        return self._now_ns if self._bytes_left > 0 else self.now_unless_late()

    def look_at_clock(self) -> None:
        """Something has taken long: whoever sends next may be late."""
        self._bytes_left = 0

    def served(self, *, one_by_one: bool) -> None:
        """A client has been served: now and then see whether the batch that others wait for has become durable.

        ``one_by_one``: it sends a command when the one before is answered, or nearly so.
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

    # -- what follows from changes

    def follow_up(self, now_ns: int) -> None:
        """After anything has changed: wake whoever waited for it, have it written, set the timer."""
        ledger = self._engine.ledger
        self.wake(now_ns)
        if not self._group.deferring and (ledger.deferred or ledger.changed or ledger.pauses or ledger.events):
            self._group.defer()
        if self._timers.next_ns < self._timer_ns:
            self._set_timer(now_ns)

    def wake(self, now_ns: int) -> None:
        """Tell the clients whose wait is over."""
        clients = self._engine.clients
        while clients.woken:
            for client, outcome in clients.take_woken():
                self._tell(client, outcome, now_ns)

    def disconnect(self, client: Client) -> None:
        """A client has gone: what it had not finished is for others. Does nothing if that was known."""
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

    # -- who resumes

    def resume_later(self, resume: Callable[[], None]) -> None:
        """Call ``resume`` in a later turn, for a client that has more to do."""
        self._resuming.append(resume)
        self.resume_soon()

    def leave(self, leave: Callable[[], None]) -> None:
        """Call ``leave``, for a client that leaves: now, or in a later turn if this one has lasted long enough."""
        if self.now_unless_late() == LATE:
            self._leaving.append(leave)
            self.resume_soon()
        else:
            leave()

    def resume_soon(self) -> None:
        """Have those resume that can, if there are any; to be called when a batch has been taken, too."""
        if not self._resume_due and (self._leaving or (self._resuming and not self._group.full)):
            self._resume_due = True
            self._loop.call_soon(self._resume)

    def _resume(self) -> None:
        self._resume_due = False
        group = self._group
        others = self._share_ns == RESUMED_NS
        self.steps = RESUMED_STEPS if others else STEPS_MAX
        until_ns = self.now() + self._share_ns
        self._share_ns = min(2 * self._share_ns, TURN_NS)
        resuming, leaving = len(self._resuming), len(self._leaving)
        while resuming or leaving:  # one of each in turn, so that neither holds up the other
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
        self.resume_soon()
