"""The queues of all tubes, the clients that wait at them, and how jobs move from one queue to another.

A job enters its state through one of the methods ``make_…`` below, and leaves it through ``leave_state``: they keep
queues, counters and timers consistent. ``reserve``, ``delete`` and ``touch`` in ``engine`` do part of that themselves,
for speed. ``transitions`` lists the legal changes.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from beanlite.core.counts import Counts
from beanlite.core.events import RESERVE
from beanlite.core.heap import KeyHeap
from beanlite.core.job import (
    BURIED,
    DELAYED,
    ID_BITS,
    ID_MASK,
    NO_PAST,
    OFFERED,
    READY,
    RESERVED,
    SECOND_NS,
    Job,
    Past,
)
from beanlite.core.ledger import Ledger
from beanlite.core.ruled import Ruled
from beanlite.core.rules import WAITING
from beanlite.core.table import JobTable
from beanlite.core.timers import Chore, Timers
from beanlite.core.totals import WAITS_MAX
from beanlite.core.tube import FULL, NO_JOBS, SLOWED, Client, Offers, Peer, Tube

DEFAULT_TUBE: Final = b"default"
# The cost of work that is done in slices is counted in jobs moved. Answering a client costs as much as moving this many
# jobs ...
WAKE_COST: Final = 5
# ... and taking it off the waiting lists of this many tubes costs as much as moving one.
LINES_PER_JOB: Final = 16
# A client is taken off this many lists at once; off more of them later, in slices, whoever has ended its wait.
LINES_AT_ONCE: Final = 4 * LINES_PER_JOB
# So many of these are done before others have their turn, counted in jobs moved.
PART: Final = 100
# Jobs with a smaller pri count as urgent in the statistics.
URGENT_PRI: Final = 1024
# For how long a job is offered to a client.
OFFER_NS: Final = 2 * SECOND_NS


class Outcome(Enum):
    """What ends a client's wait, other than a job."""

    DEADLINE_SOON = "deadline soon"
    TIMED_OUT = "timed out"


class Leftovers(Chore):
    """Clients whose wait is over, but which are still on the waiting lists of very many tubes; nobody serves them."""

    __slots__ = ("_clients", "_timers")

    def __init__(self, serial: int, timers: Timers) -> None:
        super().__init__(serial)
        self._timers = timers
        self._clients: dict[Client, list[Tube]] = {}

    def add(self, client: Client) -> None:
        """Have a client taken off the lists of all tubes that it watches."""
        self._clients[client] = list(client.watched)  # it may watch others by then
        self._timers.set(self, 0)

    def clear(self, client: Client) -> None:
        """Take a client off its lists now, because it waits again or is disconnected."""
        for tube in self._clients.pop(client, ()):
            tube.waiting.pop(client, None)

    def carry_out(self, budget: int, now_ns: int) -> int:
        """Clear a part of the budget; what else is due has its turn in between."""
        cost = 0
        while self._clients and cost < min(budget, PART):
            client, tubes = next(iter(self._clients.items()))
            cost += 1 + len(tubes) // LINES_PER_JOB
            self.clear(client)
        if self._clients:
            self._timers.set(self, now_ns)
        return cost


class Queues:
    """All queues of a server, and the clients that wait at them."""

    __slots__ = (
        "_deadline_key",
        "_deadline_ns",
        "_in_order",
        "_pri",
        "_pri_key",
        "_serial",
        "counts",
        "default",
        "jobs",
        "ledger",
        "leftovers",
        "ruled",
        "stopping",
        "timers",
        "tubes",
        "woken",
    )

    def __init__(self) -> None:
        self.jobs = JobTable()
        self.tubes: dict[bytes, Tube] = {}
        self.timers = Timers()
        self.ledger = Ledger()
        self.counts = Counts()
        self.woken: list[tuple[Client, Job | Outcome]] = []
        """Clients whose wait is over, and what ended it."""
        self.stopping = False
        """Clients are being disconnected; tubes that only they keep alive stay, so that pauses are kept."""
        self.ruled = Ruled(self.timers, self.counts)
        self._serial = 0
        """The serial number given out last."""
        self._pri = self._pri_key = self._deadline_ns = self._deadline_key = 0
        """The pri and the deadline of the last jobs, and what keys with them begin with: the next jobs are mostly like
        them, and to make an int that is larger than those of the machine takes long."""
        self.leftovers = Leftovers(self.new_serial(), self.timers)
        self._in_order: list[Tube] | None = None
        """What ``tubes_in_order`` returns, until a tube is made or dropped."""
        self.default = self.make_tube(DEFAULT_TUBE)

    # -- a job's change of state

    def make_ready(self, job: Job, now_ns: int) -> int:
        """Put a job into its tube's ready queue, or hand it to the client that has waited longest for one.

        Returns the cost, counted in jobs moved.
        """
        tube = job.tube
        if tube.waiting and not tube.shut and (client := self._first_waiting(tube)) is not None:
            if client.waits_for_offer:
                job.since_ns = now_ns
                self.make_offered(job, client, now_ns)
            else:
                self.make_reserved(job, client, now_ns)
            return 1 + self.wake(client, job)
        job.state = READY
        job.since_ns = now_ns
        if job.pri != self._pri:
            self._pri, self._pri_key = job.pri, job.pri << ID_BITS
        job.key = key = self._pri_key + job.id
        tube.ready.push(key)
        if job.pri < URGENT_PRI:
            tube.urgent += 1
            self.counts.urgent += 1
        return 1

    def make_delayed(self, job: Job, due_ns: int, now_ns: int) -> None:
        """Put a job into its tube's delayed queue."""
        tube = job.tube
        job.state = DELAYED
        job.since_ns = now_ns
        job.key = due_ns << ID_BITS | job.id
        if tube.delayed is NO_JOBS:
            tube.delayed = KeyHeap()
        tube.delayed.push(job.key)
        self.counts.delayed += 1
        if due_ns < tube.timer_ns:
            self.timers.set(tube, due_ns)

    def make_reserved(self, job: Job, client: Client, now_ns: int) -> None:
        """Add a job to the client's reserved jobs, for the job's ttr."""
        ledger, tube = self.ledger, job.tube
        tally = tube.tally or ledger.tally(tube)
        tally.reserved = reserved = tally.reserved + 1
        waited_ns = now_ns - job.since_ns if job.state is READY else 0  # it may come from another state
        tally.waited_ns += waited_ns
        if reserved == tally.wait_at:
            tally.waits += [waited_ns]
            if reserved < WAITS_MAX:
                tally.wait_at = reserved + 1
            else:
                tally.choose_wait()
        if ledger.measures is not None:
            ledger.measures.waits.note(waited_ns)
        job.state = RESERVED
        job.since_ns = now_ns
        job.holder = client
        job.last_holder = client.peer
        client.reserved_ns = now_ns
        if not job.reserves and job.past is NO_PAST:
            self.counts.with_past += 1
        job.reserves += 1
        deadline_ns = now_ns + job.ttr_s * SECOND_NS
        if deadline_ns != self._deadline_ns:
            self._deadline_ns, self._deadline_key = deadline_ns, deadline_ns << ID_BITS
        job.key = key = self._deadline_key + job.id
        client.deadlines.push(key)
        if deadline_ns < client.timer_ns:
            self.timers.set(client, deadline_ns)
        tube.reserved += 1
        self.counts.reserved += 1
        if tube.rules is not None or self.counts.fair_tubes:
            self.ruled.hold_back(tube, now_ns)
            if tube.rules is not None and tube.rules.unique == WAITING and tube.kept is not None:
                tube.kept.hide_twin(job.id)
        ledger.deferred[job.id] = job
        if ledger.recording:
            ledger.record_deferred(job, RESERVE, client.peer, now_ns)

    def make_offered(self, job: Job, client: Client, now_ns: int) -> None:
        """Hold a job for OFFER_NS for a client that may take it. Nothing counts, records or stores that.

        ``since_ns`` is still the time since which the job is ready.
        """
        offers = client.offers
        if offers is None:
            offers = client.offers = Offers(self.default, self.new_serial(), client.peer)
        tube = job.tube
        job.state = OFFERED
        job.holder = offers
        until_ns = now_ns + OFFER_NS
        job.key = until_ns << ID_BITS | job.id
        offers.deadlines.push(job.key)
        self.timers.set(offers, until_ns)
        tube.reserved += 1
        self.counts.reserved += 1
        self.ruled.note_offer(tube, now_ns)

    def past_of(self, job: Job) -> Past:
        """Return the job's own ``Past``, which may be changed, of a job that may never have been reserved."""
        if not job.reserves and job.past is NO_PAST:
            self.counts.with_past += 1
        return job.own_past()

    def bury(self, job: Job, why: str | None, now_ns: int) -> None:
        """Put a job at the end of its tube's buried queue."""
        self.make_buried(job, self.counts.burials + 1, why, now_ns)

    def make_buried(self, job: Job, number: int, why: str | None, now_ns: int) -> None:
        """Put a job into its tube's buried queue, which is ordered by ``number``."""
        job.state = BURIED
        job.since_ns = now_ns
        if why is not None:
            job.own_past().why = why
        job.key = number << ID_BITS | job.id
        tube = job.tube
        if tube.buried is NO_JOBS:
            tube.buried = KeyHeap()
        tube.buried.push(job.key)
        self.counts.burials = max(self.counts.burials, number)
        self.counts.buried += 1
        if tube.rules is not None and tube.rules.unique == WAITING and tube.kept is not None:
            tube.kept.hide_twin(job.id)

    def leave_state(self, job: Job, now_ns: int) -> None:
        """Take a job out of its queue; the caller puts it into another one, or deletes it."""
        state, tube = job.state, job.tube
        if state is RESERVED:
            assert job.holder is not None
            job.holder.deadlines.remove(job.key)
            job.holder = None
            tally = tube.tally or self.ledger.tally(tube)
            tally.held += 1
            tally.held_ns += now_ns - job.since_ns
            if self.ledger.measures is not None:
                self.ledger.measures.holds.note(now_ns - job.since_ns)
            tube.reserved -= 1
            self.counts.reserved -= 1
            if tube.shut and tube.shut & FULL:  # mostly 0, which costs less to see than a bit
                self.timers.set(tube, now_ns)  # the job has a state again by then
        elif state is READY:
            tube.ready.remove(job.key)
            if job.pri < URGENT_PRI:
                tube.urgent -= 1
                self.counts.urgent -= 1
        elif state is DELAYED:
            tube.delayed.remove(job.key)
            self.counts.delayed -= 1
        elif state is OFFERED:
            self._end_offer(job, now_ns)
        else:
            tube.buried.remove(job.key)
            if job.past.why is not None:
                job.past.why = None
            job.forgive()
            self.counts.buried -= 1
        if tube.kept is not None and (state is RESERVED or state is BURIED):
            tube.kept.show_twin(job.id)

    def _end_offer(self, job: Job, now_ns: int) -> None:
        tube = job.tube
        assert job.holder is not None
        job.holder.deadlines.remove(job.key)
        job.holder = None
        job.state = READY  # as if it had been so all the time
        tube.reserved -= 1
        self.counts.reserved -= 1
        self.ruled.end_offer(tube)
        if tube.shut & (FULL | SLOWED):
            self.timers.set(tube, now_ns)

    # -- waiting clients

    def stop_waiting(self, client: Client) -> None:
        """If the client waits, take it off the waiting lists of all tubes that it watches, or have that done soon."""
        if client.waiting:
            client.waiting = False
            self.counts.waiting -= 1
            if len(client.watched) > LINES_AT_ONCE:
                self.leftovers.add(client)
                return
            for tube in client.watched:
                del tube.waiting[client]

    def _first_waiting(self, tube: Tube) -> Client | None:
        """Return the client that has waited longest, if any, and strike those from the list that wait no more."""
        while tube.waiting:
            client = next(iter(tube.waiting))
            if client.waiting:
                return client
            del tube.waiting[client]
        return None

    def wake(self, client: Client, outcome: Job | Outcome) -> int:
        """End the client's wait; returns the cost of taking it off its waiting lists, counted in jobs moved."""
        self.stop_waiting(client)
        self.woken.append((client, outcome))
        return len(client.watched) // LINES_PER_JOB

    def serve_waiting(self, tube: Tube, budget: int, now_ns: int) -> int:
        """Give ready jobs of a tube to waiting clients until that has cost about ``budget``; returns the cost."""
        cost = 0
        while cost < budget and tube.waiting and tube.ready.keys and not tube.shut:
            client = self._first_waiting(tube)
            if client is None:
                break
            job = self.jobs[tube.ready.keys[0] & ID_MASK]
            self.leave_state(job, now_ns)
            if client.waits_for_offer:
                self.make_offered(job, client, now_ns)
            else:
                self.make_reserved(job, client, now_ns)
            cost += WAKE_COST + self.wake(client, job)
        return cost

    # -- tubes and clients

    def new_serial(self) -> int:
        """Return a serial number for an owner of a timer."""
        self._serial += 1
        return self._serial

    def make_client(self, peer: Peer) -> Client:
        """Make a client that uses and watches the default tube."""
        return Client(self.default, self.new_serial(), peer)

    def make_tube(self, name: bytes) -> Tube:
        """Make a tube."""
        tube = self.tubes[name] = Tube(name, self.new_serial())
        self._in_order = None
        if self.ruled.policies.rows:
            self.ruled.give_rules(tube)
        return tube

    def drop_if_unused(self, tube: Tube) -> None:
        """Drop the tube, and its pause, if nothing keeps it alive."""
        if not (tube.using or tube.watching or tube.holds_jobs or self.stopping) and tube is not self.default:
            self.timers.cancel(tube)
            if tube.pause_until_ns:
                tube.pause_until_ns = tube.pause_s = 0
                self.ledger.pauses[tube.name] = tube
            if tube.rules is not None:
                self.ruled.drop(tube.rules)
            del self.tubes[tube.name]
            self._in_order = None

    def tubes_in_order(self) -> list[Tube]:
        """Return all tubes in the order of their serial numbers, in a list that is kept for the next caller.

        To make it takes milliseconds if there are very many tubes, as each is touched.
        """
        tubes = self._in_order
        if tubes is None:
            tubes = self._in_order = list(self.tubes.values())
        return tubes
