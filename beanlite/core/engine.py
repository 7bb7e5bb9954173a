"""The state machine: what happens to jobs, by command or with time.

The engine does no I/O and reads no clock: a method that needs the time takes it as an argument, in the nanoseconds of
``clock``.

Changed jobs are entered in the ledger, each job once, and handed out as a batch (``take_changes``). A client waits
until its put, delete, release, bury, kick or pause is stored. A reservation, a touch, or the end of a ttr or a delay is
*deferred*: losing it costs nothing, since a restart makes reserved jobs ready again in any case.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from zlib import crc32

from beanlite.core import restore
from beanlite.core.admission import PUT_BYTES, Admission
from beanlite.core.applying import Applying
from beanlite.core.bodies import Bodies
from beanlite.core.clients import Clients
from beanlite.core.copy import Copy
from beanlite.core.events import BURY, DELETE, KICK, PUT, RELEASE, TOUCH
from beanlite.core.fairness import Fairness
from beanlite.core.heap import KeyHeap
from beanlite.core.job import (
    BURIED,
    BURIED_BY_CLIENT,
    DELAYED,
    GONE,
    ID_BITS,
    ID_MASK,
    NO_PAST,
    SECOND_NS,
    SLICE,
    Job,
)
from beanlite.core.ledger import Changes
from beanlite.core.memory import BODY_BYTES, Memory
from beanlite.core.notes import Notes
from beanlite.core.offering import Offering
from beanlite.core.operator import Operator
from beanlite.core.policies import PolicyRow
from beanlite.core.queues import URGENT_PRI, Queues
from beanlite.core.rulings import Rulings
from beanlite.core.scheduler import Scheduler
from beanlite.core.schedules import Schedule
from beanlite.core.ticker import Ticker
from beanlite.core.tube import Client, Peer, Tube


class Engine:
    """All operations on jobs, and all that becomes due with time.

    Other modules may read the attributes; only the methods change anything.
    """

    def __init__(self) -> None:
        self._queues = queues = Queues()
        self.memory = Memory(queues)
        self.bodies = Bodies(queues, self.memory)
        self.rulings = Rulings(queues, self.bodies, self.delete)
        self._ticker = ticker = Ticker(queues, self.rulings)
        self._fairness = Fairness(queues, ticker)
        self.offering = Offering(queues, self.rulings, self.bodies, self._fairness)
        self._applying = Applying(queues)
        self.clients = Clients(queues, ticker, self.memory)
        self.jobs = queues.jobs
        self.tubes = queues.tubes
        self.timers = queues.timers
        self.ledger = queues.ledger
        self.counts = queues.counts
        self.last_id = 0
        self.admission = Admission(self.memory)
        self.policies = queues.ruled.policies
        self.scheduler = Scheduler(queues, self.clients, self.admission, self.memory, self.rulings, self.put)
        self.schedules = self.scheduler.schedules
        self.operator = Operator(queues, self.bodies)
        self.notes = Notes(queues, self.memory, self.admission)

    # -- what a client does to jobs

    def put(
        self, client: Client, pri: int, delay_s: int, ttr_s: int, body: bytes, now_ns: int, *, by_operator: bool = False
    ) -> Job:
        """Put a new job into the tube that the client uses, and return it."""
        tube = client.use
        self.last_id = job_id = self.last_id + 1
        size = len(body)
        job = Job(job_id, tube, pri, delay_s, ttr_s, now_ns, body, size)
        self.jobs.newest[job_id] = self.ledger.changed[job_id] = job
        tube.total_jobs += 1
        (tube.tally or self.ledger.tally(tube)).put += 1
        self.counts.total_jobs += 1
        self.admission.room_bytes -= size + PUT_BYTES
        if self.ledger.recording:
            self.ledger.record(job, PUT, client.peer, now_ns, delay_s=delay_s, by_operator=by_operator)
        if delay_s:
            self._queues.make_delayed(job, now_ns + delay_s * SECOND_NS, now_ns)
        else:
            self._queues.make_ready(job, now_ns)
        if tube.rules is not None:
            self._queues.ruled.enter(job, crc32(body) if tube.rules.unique else None)
        return job

    def reserve(self, client: Client, now_ns: int) -> Job | None:
        """Reserve the ready job with the smallest pri, then id, from the watched tubes that aren't shut, if any."""
        best: Tube | None = None
        best_key = 0
        if self.counts.fair_tubes:
            best = self._fairness.choose(client, now_ns)
        else:
            for tube in client.watched:
                keys = tube.ready.keys
                if keys and (best is None or keys[0] < best_key):
                    if tube.shut:
                        if self._ticker.stays_shut(tube, now_ns):
                            continue
                        if best is not None and keys[0] > best_key:  # clients that waited have got the first ones
                            continue
                    best = tube
                    best_key = keys[0]
        if best is None:
            return None
        job_id = best.ready.pop() & ID_MASK
        try:
            job = self.jobs.newest[job_id]
        except KeyError:  # it is among the older jobs
            job = self.jobs[job_id]
        if job.pri < URGENT_PRI:
            best.urgent -= 1
            self.counts.urgent -= 1
        self._queues.make_reserved(job, client, now_ns)
        return job

    def reserve_job(self, client: Client, job_id: int, now_ns: int) -> Job | None:
        """Reserve one job if it is ready, delayed or buried. Its tube need not be watched, and may be paused."""
        job = self.jobs.find(job_id)
        if job is None or (job.holder is not None and not job.holder.gone):
            return None
        self._queues.leave_state(job, now_ns)
        self._queues.make_reserved(job, client, now_ns)
        return job

    def delete(self, client: Client, job_id: int, now_ns: int, *, by_operator: bool = False) -> bool:
        """Delete a job, unless another client has it reserved; operators may delete any."""
        jobs = self.jobs
        job = jobs.newest.get(job_id) or jobs.find_older(job_id)  # jobs.find, inlined: hot
        if job is None or not (job.holder is None or job.holder is client or job.holder.gone or by_operator):
            return False
        ledger = self.ledger
        if ledger.recording or by_operator:
            ledger.record(job, DELETE, client.peer, now_ns, body=job.body, by_operator=by_operator)
        self._queues.leave_state(job, now_ns)
        if job.body is None or self.bodies.ahead:
            self.bodies.note_delete(job)
        else:
            self.memory.body_bytes -= job.size + BODY_BYTES
        if job.reserves or job.past is not NO_PAST:
            self.counts.with_past -= 1
        if job.tube.rules is not None:
            self._queues.ruled.leave(job)
        job.state = GONE
        try:
            del jobs.newest[job_id]
        except KeyError:
            jobs.remove_older(job_id)
        if job_id in ledger.deferred:
            del ledger.deferred[job_id]
        if job_id > ledger.taken_id:
            del ledger.changed[job_id]  # put and deleted within one batch: it was never stored
        else:
            ledger.changed[job_id] = job
        tube = job.tube
        tube.cmd_delete += 1
        (tube.tally or ledger.tally(tube)).deleted += 1
        if not tube.using:
            self._queues.drop_if_unused(tube)
        return True

    def release(self, client: Client, job_id: int, pri: int, delay_s: int, now_ns: int) -> bool:
        """Give a job back, with a new pri and perhaps a delay. Only the client that has reserved it may."""
        job = self._held_by(client, job_id)
        if job is None:
            return False
        self._queues.leave_state(job, now_ns)
        job.pri = pri
        job.delay_s = delay_s
        job.own_past().releases += 1
        ledger = self.ledger
        ledger.tally(job.tube).released += 1
        ledger.note(job)
        event = ledger.record(job, RELEASE, client.peer, now_ns, delay_s=delay_s) if ledger.recording else None
        if job.tube.rules is not None:
            self.rulings.come_back(job, job.tube.rules, RELEASE, delay_s, now_ns, event)
        elif delay_s:
            ledger.tally(job.tube).left += 1
            self._queues.make_delayed(job, now_ns + delay_s * SECOND_NS, now_ns)
        else:
            self._queues.make_ready(job, now_ns)
        return True

    def bury(self, client: Client, job_id: int, pri: int, now_ns: int) -> bool:
        """Set a job aside until it is kicked. Only the client that has reserved it may."""
        job = self._held_by(client, job_id)
        if job is None:
            return False
        self._queues.leave_state(job, now_ns)
        job.pri = pri
        job.own_past().buries += 1
        self.ledger.tally(job.tube).buried += 1
        self.ledger.note(job)
        if self.ledger.recording:
            self.ledger.record(job, BURY, client.peer, now_ns)
        self._queues.bury(job, BURIED_BY_CLIENT, now_ns)
        return True

    def touch(self, client: Client, job_id: int, now_ns: int) -> bool:
        """Restart a job's ttr. Only the client that has reserved it may."""
        job = self._held_by(client, job_id)
        if job is None:
            return False
        client.deadlines.remove(job.key)
        job.key = now_ns + job.ttr_s * SECOND_NS << ID_BITS | job_id
        client.deadlines.push(job.key)
        job.tube.moved_ns = now_ns
        self.ledger.deferred[job_id] = job
        if self.ledger.recording:
            self.ledger.record_deferred(job, TOUCH, client.peer, now_ns)
        return True

    def kick(self, client: Client, queue: KeyHeap, bound: int, last_key: int, now_ns: int) -> int:
        """Make the first jobs of a tube's buried or delayed queue ready, up to ``last_key``; returns how many.

        They are at most ``bound`` or a SLICE; fewer if waiting clients have to be taken off the lists of many tubes.
        """
        kicked = cost = 0
        while kicked < bound and cost < SLICE and queue.keys and queue.keys[0] <= last_key:
            cost += self._kick(client, self.jobs[queue.keys[0] & ID_MASK], now_ns)
            kicked += 1
        return kicked

    def kick_job(self, client: Client, job_id: int, now_ns: int) -> bool:
        """Make a buried or delayed job of any tube ready."""
        job = self.jobs.find(job_id)
        if job is None or (job.state is not BURIED and job.state is not DELAYED):
            return False
        self._kick(client, job, now_ns)
        return True

    def _kick(self, client: Client, job: Job, now_ns: int) -> int:
        self._queues.leave_state(job, now_ns)
        self._queues.past_of(job).kicks += 1
        self.ledger.tally(job.tube).kicked += 1
        self.ledger.note(job)
        if self.ledger.recording:
            self.ledger.record(job, KICK, client.peer, now_ns)
        return self._queues.make_ready(job, now_ns)

    def pause(self, by: Peer, name: bytes, pause_s: int, now_ns: int, *, by_operator: bool = False) -> bool:
        """Hand out no job of a tube for ``pause_s``; 0 ends a pause. Returns False if there is no such tube."""
        tube = self.tubes.get(name)
        if tube is None:
            return False
        tube.cmd_pause += 1
        self._ticker.pause(tube, pause_s, by, now_ns, by_operator=by_operator)
        return True

    def tubes_in_order(self) -> list[Tube]:
        """Return all tubes in the order in which they were made; the caller must not change the list."""
        return self._queues.tubes_in_order()

    # -- policies

    def set_policies(self, rows: list[PolicyRow], unset: list[tuple[bytes, str]], now_ns: int) -> None:
        """Set rows, which ``policies.check_row`` has passed, and remove others, which are there.

        They hold for a SLICE of the tubes at once, and for the rest after some ticks.
        """
        self.policies.change(rows, unset)
        self.ledger.policies.update(dict.fromkeys(unset))
        for row in rows:
            self.ledger.policies[row.pattern, row.key] = row
        self._applying.begin({pattern for pattern, _ in unset} | {row.pattern for row in rows}, now_ns)

    def _held_by(self, client: Client, job_id: int) -> Job | None:
        job = self.jobs.find(job_id)
        return job if job is not None and job.holder is client else None

    # -- time

    def tick(self, now_ns: int) -> None:
        """Do a slice of what is due; to be called again while ``timers.next_ns`` is not in the future."""
        self._ticker.tick(now_ns)

    # -- for the journal

    def restore(self, rows: Sequence[restore.StoredJob], now_ns: int) -> None:
        """Take over jobs from the journal, in ascending order of id, a few thousand per call.

        Jobs that were reserved, or whose delay is over by now, become ready. Raises TypeError or ValueError if a
        row can't be a job.
        """
        self.last_id = restore.restore_jobs(self._queues, self.memory, rows, self.last_id, now_ns)

    def take_copy(self, copy: Copy) -> None:
        """Take over the jobs and notes of a copy, in place of ``restore``; then call ``Copy.enter`` until it ends."""
        copy.give_to(self._queues, self.notes)

    def restore_policies(self, rows: Iterable[PolicyRow]) -> None:
        """Take over all policies, before the jobs. ``policies.check_row`` has passed them."""
        self.policies.change(rows)
        for tube in self.tubes.values():
            self._queues.ruled.give_rules(tube)

    def restore_schedule(self, schedule: Schedule) -> None:
        """Take over a schedule."""
        self.scheduler.restore(schedule)

    def restore_pause(self, name: bytes, pause_s: int, until_ns: int) -> None:
        """Resume a tube's pause."""
        restore.restore_pause(self._queues, name, pause_s, until_ns)

    def recovered(self, last_id: int, batch: int) -> None:
        """End the restore: ids and batch numbers continue after the last ones that the journal knows."""
        ledger = self.ledger
        self.last_id = ledger.taken_id = ledger.stored_id = last_id
        ledger.stored_batch, ledger.batch = batch, batch + 1
        self.bodies.end_restore(last_id)
        self.admission.grant()

    def forget_jobs(self) -> None:
        """Forget all jobs: when memory is too small to restore them, this frees enough of it to exit properly."""
        self.jobs.clear()

    def take_changes(self, *, deferred: bool, totals: bool = False, now_ns: int = 0) -> Changes:
        """Take the changes since the last call and, if asked for, a slice of the deferred changes and of the totals.

        With the totals, the pulses and flows of tubes go on to ``now_ns``.
        """
        self.jobs.make_room()
        if self.memory.note_bytes:
            self.notes.begin_batch()
        ledger, jobs = self.ledger, self.last_id - self.ledger.taken_id
        self.memory.body_bytes += self.admission.take(jobs) + jobs * BODY_BYTES
        ready, tubes = self.ready if totals else 0, len(self.tubes)
        changes = ledger.take(self.last_id, deferred=deferred, totals=totals, now_ns=now_ns, ready=ready, tubes=tubes)
        self.admission.grant()
        return changes

    @property
    def ready(self) -> int:
        """How many jobs are ready."""
        counts = self.counts
        return len(self.jobs) - counts.reserved - counts.delayed - counts.buried

    def stored(self, batch: int, last_id: int) -> None:
        """Note that the journal has stored this batch, and with it all jobs up to ``last_id``."""
        self.ledger.stored_batch = batch
        self.ledger.stored_id = last_id
        self.bodies.note_stored(last_id)

    # -- for the server

    def bound_memory(self, max_bytes: int, body_max_bytes: int, *, fetches: bool) -> None:
        """Set the bounds beyond which puts are refused and bodies unloaded; see ``Memory.bound``."""
        self.memory.bound(max_bytes, body_max_bytes, fetches=fetches)
        self.admission.grant()

    def begin_stop(self) -> None:
        """From now on clients are disconnected; tubes that only they keep alive stay, so that pauses are kept."""
        self._queues.stopping = True
