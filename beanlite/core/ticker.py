"""What happens with time: delays, pauses and ttrs end, and no client waits longer than it asked to."""

from collections import deque
from typing import Final

from beanlite.core.events import CLIENT_GONE, DELAY_OVER, TTR_OVER
from beanlite.core.job import ID_BITS, ID_MASK, SECOND_NS, SLICE
from beanlite.core.pulse import LOSSES
from beanlite.core.queues import WAKE_COST, Outcome, Queues
from beanlite.core.rulings import Rulings
from beanlite.core.timers import NEVER_NS, Chore
from beanlite.core.tube import OPENING, PAUSED, Client, Offers, Peer, Tube

# For so long a client that may be told TIMED_OUT waits for the rest of what is due: that may be a job for it, but also
# the work of minutes.
_OVERDUE_NS: Final = SECOND_NS // 10
# A reservation with no more time left than this is about to time out: DEADLINE_SOON.
MARGIN_NS: Final = SECOND_NS


def is_deadline_soon(client: Client, now_ns: int) -> bool:
    """Whether a reservation of the client is about to time out."""
    keys = client.deadlines.keys
    return bool(keys) and (keys[0] >> ID_BITS) - MARGIN_NS <= now_ns


class Ticker:
    """The changes that time brings: it applies to the queues what has become due."""

    __slots__ = ("_counts", "_jobs", "_ledger", "_overdue", "_queues", "_rulings", "_timers")

    def __init__(self, queues: Queues, rulings: Rulings) -> None:
        self._queues = queues
        self._rulings = rulings
        self._jobs = queues.jobs
        self._ledger = queues.ledger
        self._timers = queues.timers
        self._counts = queues.counts
        self._overdue: deque[tuple[Client, int]] = deque()
        """Clients whose wait may be over, once everything else that is due has been done, and since when."""

    def tick(self, now_ns: int) -> None:
        """Do a slice of what is due; to be called again while ``timers.next_ns`` is not in the future.

        Delays, pauses and ttrs that have ended come first, so that a client whose wait ends at the same instant gets a
        job rather than TIMED_OUT. A tube or client with more to do than fits in a slice goes on behind all others that
        are due.
        """
        budget = SLICE
        while self._timers.next_ns <= now_ns and budget > 0:
            owner = self._timers.pop()
            if isinstance(owner, Tube):
                budget -= self._tick_tube(owner, now_ns, budget)
                continue
            if isinstance(owner, Chore):
                budget -= owner.carry_out(budget, now_ns)
                continue
            if isinstance(owner, Offers):
                budget -= self.end_offers(owner, now_ns, budget)
                continue
            assert isinstance(owner, Client)
            if owner.gone:
                budget -= self.give_back(owner, now_ns, budget)
            else:
                budget -= self._time_out_jobs(owner, now_ns, budget)
                if owner.waiting:
                    self._overdue.append((owner, now_ns))
        if self._overdue:  # while something is due, they may still get a job that becomes ready
            self._end_waits(NEVER_NS if self._timers.next_ns > now_ns else now_ns - _OVERDUE_NS, now_ns)

    def set_timer(self, client: Client) -> None:
        """Set the client's timer for the end of its first reservation or of its wait, whichever comes first."""
        keys = client.deadlines.keys
        when_ns = client.wait_until_ns if client.waiting else NEVER_NS
        if keys:
            when_ns = min(when_ns, (keys[0] >> ID_BITS) - (MARGIN_NS if client.waiting else 0))
        if when_ns < client.timer_ns:
            self._timers.set(client, when_ns)

    def give_back(self, client: Client, now_ns: int, budget: int) -> int:
        """Make jobs of a disconnected client ready until that has cost about ``budget``; returns the cost.

        The rest follows in later ticks.
        """
        keys = client.deadlines.keys
        cost = 0
        while keys and cost < budget:
            job = self._jobs[keys[0] & ID_MASK]
            self._queues.leave_state(job, now_ns)
            self._ledger.tally(job.tube).client_gone += 1
            self._ledger.deferred[job.id] = job
            event = None
            if self._ledger.recording:
                event = self._ledger.record_deferred(job, CLIENT_GONE, client.peer, now_ns)
            rules = job.tube.rules
            if not self._queues.stopping and job.reserves >= LOSSES:
                self._ledger.pulses.note_loss(job, client.peer, now_ns)
            if self._queues.stopping:
                job.spare()  # no client is to blame
                cost += self._queues.make_ready(job, now_ns)
            elif rules is not None:
                cost += self._rulings.come_back(job, rules, CLIENT_GONE, 0, now_ns, event)
            else:
                cost += self._queues.make_ready(job, now_ns)
        if keys:
            self._timers.set(client, now_ns)
        return cost + 1

    def end_offers(self, offers: Offers, now_ns: int, budget: int) -> int:
        """Have jobs that a client has not taken in time go back, or all if it is disconnected; returns the cost.

        What is more than ``budget`` follows in later ticks.
        """
        keys = offers.deadlines.keys
        cost = 0
        while keys and cost < budget and (offers.gone or keys[0] >> ID_BITS <= now_ns):
            cost += self._rulings.go_back(self._jobs[keys[0] & ID_MASK], now_ns)
        if keys:
            self._timers.set(offers, now_ns if offers.gone else max(keys[0] >> ID_BITS, now_ns))
        return cost + 1

    def pause(self, tube: Tube, pause_s: int, by: Peer, now_ns: int, *, by_operator: bool) -> None:
        """Hand out no job of the tube for ``pause_s``; 0 ends a pause."""
        if by_operator or self._ledger.recording:
            self._ledger.record_pause(tube, pause_s, by, now_ns, by_operator=by_operator)
        self._ledger.pauses[tube.name] = tube
        tube.pause_s = pause_s
        if pause_s:
            tube.pause_until_ns = now_ns + pause_s * SECOND_NS
            tube.shut |= PAUSED
            self._timers.set(tube, tube.pause_until_ns)
        else:
            tube.pause_until_ns = 0
            self.reopen(tube, now_ns)
            self._queues.drop_if_unused(tube)  # a restored pause may have been all that kept it alive

    def reopen(self, tube: Tube, now_ns: int) -> int:
        """If nothing keeps a tube shut any more, give a slice of its jobs to clients that wait; returns the cost.

        Until no more can be given, the tube stays shut, so that no client that comes in between is served out of turn.
        """
        shut = self._queues.ruled.still_shut(tube, now_ns)
        if tube.shut & PAUSED and not shut & PAUSED:
            tube.pause_until_ns = tube.pause_s = 0
            self._ledger.pauses[tube.name] = tube
        tube.shut = shut
        tube.open_ns = now_ns
        cost = self._queues.serve_waiting(tube, SLICE, now_ns)
        if not tube.shut and tube.waiting and tube.ready.keys:
            tube.shut = OPENING
            self._timers.set(tube, now_ns)
        return cost

    def stays_shut(self, tube: Tube, now_ns: int) -> bool:
        """Whether no job of a shut tube can be handed out, even once clients that have waited longer are served.

        A client may end one reservation and begin the next before the tube's timer expires.
        """
        if not tube.shut & (PAUSED | OPENING):
            self.reopen(tube, now_ns)
        return tube.shut != 0 or not tube.ready.keys

    def _end_waits(self, until_ns: int, now_ns: int) -> None:
        """End the waits of a slice of the clients that are overdue since then or longer."""
        overdue = self._overdue
        budget = SLICE
        while overdue and overdue[0][1] <= until_ns and budget > 0:
            budget -= WAKE_COST
            client, _ = overdue.popleft()
            if client.waiting:  # else it has been given a job
                if is_deadline_soon(client, now_ns):
                    budget -= self._queues.wake(client, Outcome.DEADLINE_SOON)
                elif client.wait_until_ns <= now_ns:
                    budget -= self._queues.wake(client, Outcome.TIMED_OUT)
            self.set_timer(client)
        if overdue:
            self._timers.set(self._queues.default, now_ns)  # any timer brings us back, and this tube always exists

    def _tick_tube(self, tube: Tube, now_ns: int, budget: int) -> int:
        cost = 0
        if tube.kept is not None:
            cost = self._rulings.expire(tube, budget, now_ns)
            if self._queues.tubes.get(tube.name) is not tube:  # its last job has left it
                return cost + 1
        if tube.shut:
            cost += self.reopen(tube, now_ns)
        keys = tube.delayed.keys
        while keys and cost < budget and keys[0] >> ID_BITS <= now_ns:
            job = self._jobs[keys[0] & ID_MASK]
            self._queues.leave_state(job, now_ns)
            (tube.tally or self._ledger.tally(tube)).delay_over += 1
            self._ledger.deferred[job.id] = job
            if self._ledger.recording:
                self._ledger.record_deferred(job, DELAY_OVER, None, now_ns)
            cost += self._queues.make_ready(job, now_ns)
        if keys:
            self._timers.set(tube, max(keys[0] >> ID_BITS, now_ns))
        if not tube.pause_until_ns:
            self._queues.drop_if_unused(tube)  # a restored pause may have been all that kept it alive
        return cost + 1

    def _time_out_jobs(self, client: Client, now_ns: int, budget: int) -> int:
        cost = 0
        keys = client.deadlines.keys
        if client.waiting and keys and keys[0] >> ID_BITS <= now_ns:
            # DEADLINE_SOON was due a second ago, before this job could have come back to the same client.
            self._queues.wake(client, Outcome.DEADLINE_SOON)
        while keys and cost < budget and keys[0] >> ID_BITS <= now_ns:
            job = self._jobs[keys[0] & ID_MASK]
            self._queues.leave_state(job, now_ns)
            job.own_past().timeouts += 1
            self._ledger.tally(job.tube).timed_out += 1
            self._counts.timeouts += 1
            self._ledger.deferred[job.id] = job
            event = None
            if self._ledger.recording:
                event = self._ledger.record_deferred(job, TTR_OVER, client.peer, now_ns)
            rules = job.tube.rules
            if rules is not None:
                cost += self._rulings.come_back(job, rules, TTR_OVER, 0, now_ns, event)
            else:
                cost += self._queues.make_ready(job, now_ns)
        if keys and keys[0] >> ID_BITS <= now_ns:
            self._timers.set(client, now_ns)
        elif not client.waiting:
            self.set_timer(client)  # else ``_end_waits`` does, when it knows whether the wait is over
        return cost + 1
