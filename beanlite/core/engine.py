"""The state machine: what clients do to jobs, and what time does.

No I/O, no clock: a call that needs the time is given it, in the nanoseconds of ``clock``.

What has changed is noted, each job once, and handed out as a batch (``take_changes``). A put, delete, release, bury,
kick or pause is *urgent*: somebody waits until it is stored. A reservation, a touch, a ttr or a delay that ends only
*lags* after: losing it costs nothing, since a restart makes reserved jobs ready again in any case.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from beanlite.core.client import Client
from beanlite.core.heap import KeyHeap
from beanlite.core.job import BURIED, DELAYED, GONE, ID_BITS, ID_MASK, RESERVED, SECOND_NS, Job
from beanlite.core.queues import URGENT_PRI, States
from beanlite.core.timers import NEVER_NS
from beanlite.core.tube import Tube

MARGIN_NS: Final = SECOND_NS  # DEADLINE_SOON: a reservation has less than this left
SLICE: Final = 500  # jobs moved, or written late, in one go before other clients get their turn: some 2 ms
LAGGING_MAX: Final = 50_000  # jobs; a dict that grows to a million stops everybody for 0.1 s to do so
WAKE_COST: Final = 5  # a client that is answered takes as long as so many jobs

DEADLINE_SOON: Final = "deadline soon"
TIMED_OUT: Final = "timed out"


class Changes(NamedTuple):
    """A batch: everything that has changed since the last one, each job once and in its latest state."""

    batch: int
    last_id: int
    first_id: int  # jobs from this id on are new
    jobs: list[Job]  # deleted if its state is GONE
    pauses: list[Tube]  # whose pause began or ended


class Engine(States):
    """All that clients can do to the queues, and what time does."""

    # -- clients and their tubes

    def connect(self) -> Client:
        """A new client: it uses and watches the default tube."""
        self._serial += 1
        self.clients += 1
        self.total_clients += 1
        self._default.using += 1
        self._default.watching += 1
        return Client(self._default, self._serial)

    def disconnect(self, client: Client, now_ns: int) -> None:
        """The client is gone: what it had reserved becomes ready again, the first SLICE at once, the rest by tick."""
        self.stop_waiting(client)
        client.gone = True
        self.clients -= 1
        self.producers -= client.producer
        self.workers -= client.worker
        client.use.using -= 1
        self._drop_if_unused(client.use)
        for tube in client.watched:
            tube.watching -= 1
            self._drop_if_unused(tube)
        self.alarms.cancel(client)
        self._give_back(client, now_ns, SLICE)

    def becomes_producer(self, client: Client) -> None:
        """The client puts for the first time; the statistics count such clients."""
        client.producer = True
        self.producers += 1

    def becomes_worker(self, client: Client) -> None:
        """The client reserves for the first time; the statistics count such clients."""
        client.worker = True
        self.workers += 1

    def use(self, client: Client, name: bytes) -> None:
        """Put into this tube from now on."""
        tube = self.tubes.get(name) or self._make_tube(name)
        tube.using += 1
        before, client.use = client.use, tube
        before.using -= 1
        self._drop_if_unused(before)

    def watch(self, client: Client, name: bytes) -> int:
        """Reserve from this tube, too; returns how many are watched."""
        tube = self.tubes.get(name) or self._make_tube(name)
        if tube not in client.watched:
            client.watched[tube] = None
            tube.watching += 1
        return len(client.watched)

    def ignore(self, client: Client, name: bytes) -> int | None:
        """Reserve no more from this tube; returns how many are watched, None if it is the only one."""
        tube = self.tubes.get(name)
        if tube is not None and tube in client.watched:
            if len(client.watched) == 1:
                return None
            del client.watched[tube]
            tube.watching -= 1
            self._drop_if_unused(tube)
        return len(client.watched)

    # -- putting and reserving

    def put(self, client: Client, pri: int, delay_s: int, ttr_s: int, body: bytes, now_ns: int) -> Job:
        """A new job in the client's tube."""
        tube = client.use
        self.last_id = job_id = self.last_id + 1
        job = Job(job_id, tube, pri, delay_s, ttr_s, now_ns, body)
        self.jobs[job_id] = self.changed[job_id] = job
        tube.total_jobs += 1
        self.total_jobs += 1
        self.room_bytes -= len(body)
        if delay_s:
            self._make_delayed(job, now_ns + delay_s * SECOND_NS)
        else:
            self._make_ready(job, now_ns)
        return job

    def reserve(self, client: Client, now_ns: int) -> Job | None:
        """The job with the smallest pri, then id, among the ready ones of all watched tubes that aren't paused."""
        best: Tube | None = None
        best_key = 0
        for tube in client.watched:
            keys = tube.ready.keys
            if keys and not tube.pause_until_ns and (best is None or keys[0] < best_key):
                best = tube
                best_key = keys[0]
        if best is None:
            return None
        job = self.jobs[best.ready.pop() & ID_MASK]
        if job.pri < URGENT_PRI:
            best.urgent -= 1
            self.urgent -= 1
        self._make_reserved(job, client, now_ns)
        return job

    def deadline_soon(self, client: Client, now_ns: int) -> bool:
        """Whether a reservation of the client is about to time out."""
        keys = client.deadlines.keys
        return bool(keys) and (keys[0] >> ID_BITS) - MARGIN_NS <= now_ns

    def wait(self, client: Client, until_ns: int) -> None:
        """Queue up for a job: ``woken`` will tell, at ``until_ns`` at the latest (NEVER_NS: without end)."""
        client.waiting = True
        client.wait_until_ns = until_ns
        self.waiting += 1
        for tube in client.watched:
            tube.waiting[client] = None
        self._set_alarm(client)

    def reserve_job(self, client: Client, job_id: int, now_ns: int) -> Job | None:
        """Reserve one job, if it is ready, delayed or buried: in any tube, watched or not, paused or not."""
        job = self.jobs.find(job_id)
        if job is None or job.state is RESERVED:
            return None
        self._leave_state(job)
        self._make_reserved(job, client, now_ns)
        return job

    # -- what a client does with a job

    def delete(self, client: Client, job_id: int) -> bool:
        """Delete a job, unless another client has it reserved."""
        job = self.jobs.get(job_id) or self.jobs.older(job_id)  # find, without its call: hot
        if job is None or (job.holder is not client and job.state is RESERVED):
            return False
        self._leave_state(job)
        job.state = GONE
        try:
            del self.jobs[job_id]
        except KeyError:
            self.jobs.remove_older(job_id)
        if job_id > self.taken_id:
            del self.changed[job_id]  # put and deleted within a batch: it was never stored
        else:
            self.changed[job_id] = job
        tube = job.tube
        tube.cmd_delete += 1
        if not tube.using:
            self._drop_if_unused(tube)
        return True

    def release(self, client: Client, job_id: int, pri: int, delay_s: int, now_ns: int) -> bool:
        """Give a job back, with a new pri and perhaps a delay. Only the client that has it reserved can."""
        job = self._held_by(client, job_id)
        if job is None:
            return False
        self._leave_state(job)
        job.pri = pri
        job.delay_s = delay_s
        job.own_past().releases += 1
        self._note(job)
        if delay_s:
            self._make_delayed(job, now_ns + delay_s * SECOND_NS)
        else:
            self._make_ready(job, now_ns)
        return True

    def bury(self, client: Client, job_id: int, pri: int) -> bool:
        """Set a job aside until it is kicked. Only the client that has it reserved can."""
        job = self._held_by(client, job_id)
        if job is None:
            return False
        self._leave_state(job)
        job.pri = pri
        job.own_past().buries += 1
        self._note(job)
        self._make_buried(job, self._burials + 1)
        return True

    def touch(self, client: Client, job_id: int, now_ns: int) -> bool:
        """Start a job's ttr anew. Only the client that has it reserved can."""
        job = self._held_by(client, job_id)
        if job is None:
            return False
        client.deadlines.remove(job.key)
        job.key = now_ns + job.ttr_s * SECOND_NS << ID_BITS | job_id
        client.deadlines.push(job.key)
        self.lagging[job_id] = job
        return True

    def kick(self, queue: KeyHeap, bound: int, now_ns: int) -> int:
        """Make up to ``bound`` jobs of a tube's buried or delayed queue ready, first ones first; returns how many.

        The caller keeps ``bound`` to a SLICE or so.
        """
        kicked = min(bound, len(queue))
        for _ in range(kicked):
            self._kick(self.jobs[queue.keys[0] & ID_MASK], now_ns)
        return kicked

    def kick_job(self, job_id: int, now_ns: int) -> bool:
        """Make a buried or delayed job of any tube ready."""
        job = self.jobs.find(job_id)
        if job is None or (job.state is not BURIED and job.state is not DELAYED):
            return False
        self._kick(job, now_ns)
        return True

    def _kick(self, job: Job, now_ns: int) -> None:
        self._leave_state(job)
        job.own_past().kicks += 1
        self._note(job)
        self._make_ready(job, now_ns)

    def pause(self, name: bytes, pause_s: int, now_ns: int) -> bool:
        """Serve no reserve from a tube for so long; 0 ends a pause. False if there is no such tube."""
        tube = self.tubes.get(name)
        if tube is None:
            return False
        tube.cmd_pause += 1
        self.pauses[name] = tube
        tube.pause_s = pause_s
        if pause_s:
            tube.pause_until_ns = now_ns + pause_s * SECOND_NS
            self.alarms.set(tube, tube.pause_until_ns)
        else:
            self._end_pause(tube, now_ns)
            self._drop_if_unused(tube)  # a pause that was restored may be all that kept it
        return True

    def _note(self, job: Job) -> None:
        """Have the job written in the batch being gathered."""
        self.changed[job.id] = job
        self.lagging.pop(job.id, None)

    def _held_by(self, client: Client, job_id: int) -> Job | None:
        job = self.jobs.find(job_id)
        return job if job is not None and job.holder is client else None

    # -- time

    def tick(self, now_ns: int) -> None:
        """Do what is due, in slices: call again while ``alarms.next_ns`` is not in the future.

        Delays, pauses and ttrs that have ended come first, so that whoever waited up to the same instant gets a job
        and not TIMED_OUT.
        """
        budget = SLICE
        if len(self.lagging) > LAGGING_MAX:
            self._late.append(self.lagging)
            self.lagging = {}
        while self.alarms.next_ns <= now_ns and budget > 0:
            owner = self.alarms.ring()
            if isinstance(owner, Tube):
                budget -= self._tick_tube(owner, now_ns, budget)
            elif owner.gone:
                budget -= self._give_back(owner, now_ns, budget)
            else:
                budget -= self._time_out_jobs(owner, now_ns, budget)
                if owner.waiting:
                    self._overdue.append(owner)
        if self._overdue and self.alarms.next_ns > now_ns:  # else who waits may get one of those still to come
            self._see_overdue(now_ns)

    def _see_overdue(self, now_ns: int) -> None:
        overdue = self._overdue
        for _ in range(min(len(overdue), SLICE // WAKE_COST)):
            client = overdue.popleft()
            if client.waiting:  # else it got a job meanwhile
                if self.deadline_soon(client, now_ns):
                    self._wake(client, DEADLINE_SOON)
                elif client.wait_until_ns <= now_ns:
                    self._wake(client, TIMED_OUT)
            self._set_alarm(client)
        if overdue:
            self.alarms.set(self._default, now_ns)  # any alarm has us called again; this tube is always there

    def _tick_tube(self, tube: Tube, now_ns: int, budget: int) -> int:
        done = 0
        if tube.pause_until_ns and tube.pause_until_ns <= now_ns:
            done = WAKE_COST * self._end_pause(tube, now_ns)
        keys = tube.delayed.keys
        while keys and done < budget and keys[0] >> ID_BITS <= now_ns:
            job = self.jobs[keys[0] & ID_MASK]
            self._leave_state(job)
            self.lagging[job.id] = job
            self._make_ready(job, now_ns)
            done += 1
        if keys:
            self.alarms.set(tube, keys[0] >> ID_BITS)
        if tube.pause_until_ns:
            self.alarms.set(tube, tube.pause_until_ns)
        if not tube.pause_until_ns:
            self._drop_if_unused(tube)  # a pause that was restored may be all that kept it
        return done + 1

    def _end_pause(self, tube: Tube, now_ns: int) -> int:
        """Have ready jobs meet those who wait, a slice of them; returns how many.

        Until all have met, the tube counts as paused, so that nobody who comes meanwhile is served out of turn.
        """
        served = self._serve_waiting(tube, SLICE // WAKE_COST, now_ns)
        if tube.waiting and tube.ready.keys:
            tube.pause_until_ns = now_ns
            self.alarms.set(tube, now_ns)
        else:
            tube.pause_until_ns = tube.pause_s = 0
            self.pauses[tube.name] = tube
        return served

    def _time_out_jobs(self, client: Client, now_ns: int, budget: int) -> int:
        done = 0
        keys = client.deadlines.keys
        if client.waiting and keys and keys[0] >> ID_BITS <= now_ns:
            self._wake(client, DEADLINE_SOON)  # it was due a second ago, before the job could come back to this client
        while keys and done < budget and keys[0] >> ID_BITS <= now_ns:
            job = self.jobs[keys[0] & ID_MASK]
            self._leave_state(job)
            job.own_past().timeouts += 1
            self.timeouts += 1
            self.lagging[job.id] = job
            self._make_ready(job, now_ns)
            done += 1
        if not client.waiting:
            self._set_alarm(client)  # else tick does it, when it knows whether the waiting goes on
        return done + 1

    def _give_back(self, client: Client, now_ns: int, budget: int) -> int:
        """Make jobs of a client that is gone ready again, and have an alarm set while there are more."""
        keys = client.deadlines.keys
        done = 0
        while keys and done < budget:
            job = self.jobs[keys[0] & ID_MASK]
            self._leave_state(job)
            self.lagging[job.id] = job
            self._make_ready(job, now_ns)
            done += 1
        if keys:
            self.alarms.set(client, now_ns)
        return done + 1

    def _set_alarm(self, client: Client) -> None:
        keys = client.deadlines.keys
        when_ns = client.wait_until_ns if client.waiting else NEVER_NS
        if keys:
            when_ns = min(when_ns, (keys[0] >> ID_BITS) - (MARGIN_NS if client.waiting else 0))
        if when_ns < client.alarm_ns:
            self.alarms.set(client, when_ns)

    # -- the journal's side

    @property
    def lags(self) -> bool:
        """Whether there is more that ``take_changes`` has left for later."""
        return bool(self.lagging or self._late)

    def recovered(self, last_id: int, batch: int) -> None:
        """Everything is restored: new jobs and batches are numbered from here on."""
        self.last_id = self.taken_id = self.stored_id = last_id
        self.stored_batch = batch
        self.batch = batch + 1

    def stored(self, batch: int, last_id: int) -> None:
        """All batches up to this one are durable, and all jobs up to this id."""
        self.stored_batch = batch
        self.stored_id = last_id

    def accept_puts(self, room_bytes: int) -> None:
        """There is room for so many bytes of bodies."""
        self.full = False
        self.room_bytes = self.granted_bytes = room_bytes

    def refuse_puts(self) -> None:
        """There is no room for another job."""
        self.full = True

    def is_stored(self, job_id: int) -> bool:
        """Whether the journal knows all of a job, or that it is gone, if it has been given the batches taken so far."""
        pending = (self.changed, self.lagging, *self._late)
        return job_id <= self.taken_id and not any(job_id in each for each in pending)

    def take_changes(self, *, lagging: bool) -> Changes:
        """What has changed since the last call; the next batch begins. ``lagging``: a slice of that, too."""
        changed = self.changed
        if lagging:
            room = SLICE
            while room and (self.lagging or self._late):
                if not self.lagging:
                    self.lagging = self._late.pop()
                job_id, job = self.lagging.popitem()
                if job.state is not GONE:
                    changed[job_id] = job
                    room -= 1
            if not self.lagging:
                self.lagging = {}  # a dict keeps the room of all that it once held
        jobs, pauses = list(changed.values()), list(self.pauses.values())
        changes = Changes(self.batch, self.last_id, self.taken_id + 1, jobs, pauses)
        self.jobs.set_aside()
        self.batch += 1
        self.taken_id = self.last_id
        self.changed = {}
        self.pauses = {}
        self.granted_bytes = self.room_bytes
        return changes
