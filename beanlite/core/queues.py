"""The queues, and a job's way from one state to another.

::

    put ──────────────► ready ◄──────────────────────────┐ delay over, ttr over, released,
     │ with a delay       │ reserved by a client         │ kicked, or its client is gone
     └──► delayed ◄───┐   ▼                              │
              │       └ reserved ──► buried ─────────────┘
              └───────────────────────────────────────────► and deleted, from any of the four

Every change of state goes through one ``_make_…`` below, which keeps queue, counters and alarms together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from beanlite.core.client import Client
from beanlite.core.job import BURIED, DELAYED, ID_BITS, ID_MASK, READY, RESERVED, SECOND_NS, Job, Past
from beanlite.core.table import Jobs
from beanlite.core.timers import Alarms
from beanlite.core.tube import Tube

DEFAULT_TUBE: Final = b"default"
FAR_NS: Final = 1 << 63
URGENT_PRI: Final = 1024  # smaller ones count as urgent in the statistics

StoredJob = tuple[int, bytes, str | None, int, int, int, int, int | None, int, str | None, bytes, int]
"""As the journal reads it: id, tube, state (None: ready), pri, delay_s, ttr_s, created_ns, place (due_ns, or a buried
one's number), reserves, past ("timeouts,releases,buries,kicks" unless all are 0), body, crc32 of the body."""


class States:
    """All queues of a server, and who waits for them."""

    def __init__(self) -> None:
        self.jobs = Jobs()
        self.tubes: dict[bytes, Tube] = {}
        self.alarms = Alarms()
        self.woken: list[tuple[Client, Job | str]] = []
        """Clients whose waiting is over, and with what: a job, DEADLINE_SOON or TIMED_OUT. The caller empties it."""
        self.last_id = 0
        self.batch = 1
        """The number of the batch that is being gathered."""
        self.stored_batch = 0
        """The number of the last batch that is safe in the journal."""
        self.taken_id = 0
        """The last id of the batches before the one that is being gathered."""
        self.stored_id = 0
        """The last id of the stored ones."""
        self.changed: dict[int, Job] = {}
        self.lagging: dict[int, Job] = {}
        self._late: list[dict[int, Job]] = []
        """More of those, set aside; what has been written meanwhile may be among them, and is written once more."""
        self.pauses: dict[bytes, Tube] = {}
        """Tubes whose pause has begun or ended, to be written with the batch being gathered."""
        self._overdue: deque[Client] = deque()
        """Clients whose waiting has to be looked at, once all else that is due has been done."""
        self._serial = 0
        self._burials = 0

        self.draining = False
        self.stopping = False
        """Clients are sent away: the tubes that they keep alive, paused ones above all, are to be there again."""
        self.full = False
        """There is no room to store another job."""
        self.room_bytes = 1 << 62
        """How large the bodies may be that are put before the next batch."""
        self.granted_bytes = self.room_bytes
        """What that was when the batch being gathered began."""
        self.clients = 0
        self.producers = 0
        self.workers = 0
        self.waiting = 0
        self.reserved = 0
        self.delayed = 0
        self.buried = 0
        self.urgent = 0
        self.timeouts = 0
        self.total_jobs = 0
        self.total_clients = 0

        self._default = self._make_tube(DEFAULT_TUBE)

    def _make_ready(self, job: Job, now_ns: int) -> None:
        tube = job.tube
        if tube.waiting and not tube.pause_until_ns:
            client = next(iter(tube.waiting))
            self._make_reserved(job, client, now_ns)
            self._wake(client, job)
            return
        job.state = READY
        job.key = key = job.pri << ID_BITS | job.id
        tube.ready.push(key)
        if job.pri < URGENT_PRI:
            tube.urgent += 1
            self.urgent += 1

    def _make_delayed(self, job: Job, due_ns: int) -> None:
        tube = job.tube
        job.state = DELAYED
        job.key = due_ns << ID_BITS | job.id
        tube.delayed.push(job.key)
        self.delayed += 1
        if due_ns < tube.alarm_ns:
            self.alarms.set(tube, due_ns)

    def _make_reserved(self, job: Job, client: Client, now_ns: int) -> None:
        job.state = RESERVED
        job.holder = client
        job.reserves += 1
        deadline_ns = now_ns + job.ttr_s * SECOND_NS
        job.key = key = deadline_ns << ID_BITS | job.id
        client.deadlines.push(key)
        if deadline_ns < client.alarm_ns:
            self.alarms.set(client, deadline_ns)
        job.tube.reserved += 1
        self.reserved += 1
        self.lagging[job.id] = job

    def _make_buried(self, job: Job, number: int) -> None:
        job.state = BURIED
        self._burials = max(self._burials, number)
        job.key = number << ID_BITS | job.id
        job.tube.buried.push(job.key)
        self.buried += 1

    def _leave_state(self, job: Job) -> None:
        """Out of the queue that it is in; the caller puts it into another, or deletes it."""
        state, tube = job.state, job.tube
        if state is RESERVED:
            assert job.holder is not None
            job.holder.deadlines.remove(job.key)
            job.holder = None
            tube.reserved -= 1
            self.reserved -= 1
        elif state is READY:
            tube.ready.remove(job.key)
            if job.pri < URGENT_PRI:
                tube.urgent -= 1
                self.urgent -= 1
        elif state is DELAYED:
            tube.delayed.remove(job.key)
            self.delayed -= 1
        else:
            tube.buried.remove(job.key)
            self.buried -= 1

    def stop_waiting(self, client: Client) -> None:
        """Leave the queues of those that wait."""
        if client.waiting:
            client.waiting = False
            self.waiting -= 1
            for tube in client.watched:
                del tube.waiting[client]

    def _wake(self, client: Client, outcome: Job | str) -> None:
        self.stop_waiting(client)
        self.woken.append((client, outcome))

    def _serve_waiting(self, tube: Tube, bound: int, now_ns: int) -> int:
        """Up to ``bound`` ready jobs of a tube meet those who wait; returns how many."""
        served = 0
        while served < bound and tube.waiting and tube.ready.keys:
            client = next(iter(tube.waiting))
            job = self.jobs[tube.ready.keys[0] & ID_MASK]
            self._leave_state(job)
            self._make_reserved(job, client, now_ns)
            self._wake(client, job)
            served += 1
        return served

    def _make_tube(self, name: bytes) -> Tube:
        self._serial += 1
        tube = self.tubes[name] = Tube(name, self._serial)
        return tube

    def _drop_if_unused(self, tube: Tube) -> None:
        if not (tube.using or tube.watching or tube.holds_jobs or self.stopping) and tube is not self._default:
            self.alarms.cancel(tube)
            if tube.pause_until_ns:
                tube.pause_until_ns = tube.pause_s = 0
                self.pauses[tube.name] = tube
            del self.tubes[tube.name]

    # -- at start

    def restore(self, rows: Iterable[StoredJob], now_ns: int) -> None:
        """Take jobs over from the journal: reserved ones, and those whose delay has passed meanwhile, become ready.

        By rising id. TypeError and ValueError: there is a job that can be none; now, and not when a client comes to it.
        """
        jobs, tubes = self.jobs, self.tubes
        shared = dict[int, int]().setdefault  # equal numbers are one object, as in puts that are alike: 64 B a job
        jobs.set_aside()
        last_id = self.last_id
        for job_id, name, state, pri, delay_s, ttr_s, created_ns, place, reserves, past, body, _ in rows:
            # Of another type than int raises here, and so does a time that is missing: without a call, to cost nothing.
            if pri | delay_s | ttr_s | reserves < 0 or job_id <= last_id or created_ns > FAR_NS:
                raise ValueError(f"job {job_id} has numbers that can't be")
            last_id = job_id
            tube = tubes.get(name) or self._make_tube(name)
            job = jobs[job_id] = Job(job_id, tube, shared(pri, pri), delay_s, shared(ttr_s, ttr_s), created_ns, body)
            job.reserves = reserves
            if past is not None:
                job.past = Past(*map(int, past.split(",")))
            if state is None:
                self._make_ready(job, now_ns)
            elif state == BURIED and place is not None:
                self._make_buried(job, place)
            elif state == DELAYED and place is not None and place > now_ns:
                self._make_delayed(job, place)
            elif state == RESERVED or (state == DELAYED and place is not None):
                self.lagging[job_id] = job
                self._make_ready(job, now_ns)
            else:
                raise ValueError(f"job {job_id} is {state!r}, of which there is no such thing")
        self.last_id = last_id

    def restore_pause(self, name: bytes, pause_s: int, until_ns: int) -> None:
        """Go on with a pause; if it has ended meanwhile, the journal is told so."""
        tube = self.tubes.get(name) or self._make_tube(name)
        tube.pause_s = pause_s
        tube.pause_until_ns = until_ns
        self.alarms.set(tube, until_ns)
