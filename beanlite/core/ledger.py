"""The changes that are still to be stored, batch by batch."""

from __future__ import annotations

from itertools import islice
from typing import Final

from beanlite.core.events import DELETE, PAUSE, POLICY, RESTART, SCHEDULE, TOUCH, Event
from beanlite.core.flows import Flows
from beanlite.core.job import GONE, SLICE, Job
from beanlite.core.measures import Measures
from beanlite.core.policies import PolicyRow
from beanlite.core.pulse import EXAMINED, Pulses
from beanlite.core.schedules import Schedule
from beanlite.core.totals import Tally
from beanlite.core.tube import Peer, Tube
from beanlite.core.wide import WideDict

# Jobs in one dict. If it grew to a million, resizing it would stall the server noticeably.
DEFERRED_MAX: Final = 50_000
# For each deferred change of a batch, so many may be passed over whose jobs have been deleted since.
PASSED_EACH: Final = 15
# As many events of deferred changes of each job are no reason to hold anybody up: so many jobs may be due at the same
# second that storing their events takes seconds.
UNCOUNTED_EACH: Final = 2
# The most tubes whose totals a batch contains, unless it has several slices, or more wait for theirs than there are:
# clients may make and leave tubes faster than any fixed number a batch.
TALLIES: Final = 200
# With so many bytes of bodies in the batch being gathered, what no client waits for is left to the next one.
BYTES_AT_ONCE: Final = 4 << 20


class Changes:
    """A batch: everything that has changed since the last one, each job once and in its latest state.

    ``StoredJob`` in ``core/restore.py`` specifies what a journal has to keep of a job.
    """

    __slots__ = (
        "batch",
        "events",
        "first_id",
        "jobs",
        "last_id",
        "notes",
        "pauses",
        "policies",
        "schedules",
        "tallies",
    )

    def __init__(self, batch: int, last_id: int, first_id: int, jobs: list[Job], events: list[Event]) -> None:
        self.batch = batch
        """The number of the batch; numbers are consecutive."""
        self.last_id = last_id
        """The highest id given out so far, to be stored with the batch: it must never be given out again."""
        self.first_id = first_id
        """Jobs from this id on are new."""
        self.jobs = jobs
        """The changed jobs; deleted ones have the state GONE."""
        self.events = events
        """What was recorded, in order for each job; an event is in the same batch as the change that it describes."""
        self.pauses: list[Tube] = []
        """Tubes whose pause has begun or, where ``pause_until_ns`` is 0, ended."""
        self.policies: list[tuple[tuple[bytes, str], PolicyRow | None]] = []
        """The pattern and key of each policy that was set, with its row, or with None if it was unset."""
        self.schedules: list[tuple[str, Schedule | None]] = []
        """The name of each schedule that was set or has advanced, with the schedule, or with None if it was unset."""
        self.notes: list[tuple[int, bytes]] = []
        """The id of each job whose note has changed, with the note, which is empty if it has none any more."""
        self.tallies: list[Tally] = []
        """What is to be added to the totals of some tubes, with at most one tally for each tube."""

    @property
    def has_content(self) -> bool:
        """Whether there is anything to be stored."""
        return bool(
            self.jobs or self.events or self.pauses or self.policies or self.schedules or self.notes or self.tallies
        )


class Ledger:
    """The batch being gathered, and how far the batches before it have come."""

    __slots__ = (
        "_older_deferred",
        "_touches",
        "_waiting",
        "_waste",
        "batch",
        "changed",
        "deferred",
        "event_bytes",
        "events",
        "flows",
        "keeps_bodies",
        "measures",
        "notes",
        "pauses",
        "policies",
        "pulses",
        "recording",
        "schedule_bytes",
        "schedules",
        "slices",
        "stored_batch",
        "stored_id",
        "taken_id",
        "tallied",
        "waiting_events",
    )

    def __init__(self) -> None:
        self.batch = 1
        """The number of the batch being gathered."""
        self.taken_id = 0
        """The last id of the batches that have been taken."""
        self.stored_batch = 0
        """The number of the last batch that the journal has stored."""
        self.stored_id = 0
        """The last id of the stored batches."""
        self.changed: dict[int, Job] = {}
        """Jobs with a change that a client waits for."""
        self.deferred: dict[int, Job] = {}
        """Jobs with a deferred change, which no client waits for."""
        self._older_deferred: list[dict[int, Job]] = []
        """More deferred jobs. Some may have been written since, and are then written once more."""
        self.slices = 1
        """How many slices of deferred changes and of totals a batch contains at most."""
        self.pauses: dict[bytes, Tube] = {}
        """Tubes whose pause has begun or ended."""
        self.policies: dict[tuple[bytes, str], PolicyRow | None] = {}
        """Policies that were set, and None for those that were unset, by pattern and key."""
        self.schedules: dict[str, Schedule | None] = {}
        """Schedules that were set or have advanced, and None for those that were unset, by name."""
        self.schedule_bytes = 0
        """The size of the bodies of these."""
        self.notes: dict[int, bytes] = {}
        """The notes that have changed, by the ids of their jobs; empty for a job that has none any more."""
        self.recording = 0
        """How many need everything recorded that happens to a job: the history, and each client that watches."""
        self.events: list[Event] = []
        """What has been recorded since the last batch was taken."""
        self.event_bytes = 0
        """The size of the bodies and notes in these events, and of the bodies that the journal copies for them."""
        self.keeps_bodies = False
        """Whether the history has the bodies of deleted jobs."""
        self._waiting: WideDict[list[Event]] = WideDict()
        """Events of deferred changes, by job."""
        self._waste: list[WideDict[list[Event]]] = []
        """What nobody needs recorded any more: it is freed in parts."""
        self.waiting_events = 0
        """How many events of deferred changes there are, apart from the first UNCOUNTED_EACH of every job."""
        self._touches: dict[int, Event] = {}
        """For each job whose last event is a touch in the batch being gathered, that event."""
        self.tallied: list[Tube] = []
        """Tubes with a tally that is still to be taken."""
        self.measures: Measures | None = None
        """What is measured; None if nobody can ask for it."""
        self.pulses = Pulses()
        """What has changed in tubes over the last minutes."""
        self.flows = Flows()
        """What came and went over time."""

    def start_recording(self) -> None:
        """Record everything from now on, until ``stop_recording`` has been called as often as this."""
        self.recording += 1

    def stop_recording(self) -> None:
        """Undo one ``start_recording``."""
        self.recording -= 1
        if not self.recording:
            self._waste.append(self._waiting)  # their jobs may never be deferred again
            self._waiting = WideDict()
            self.waiting_events = 0
            self._touches.clear()

    def note(self, job: Job) -> None:
        """Have the job written with the batch being gathered."""
        self.changed[job.id] = job
        self.deferred.pop(job.id, None)

    def hasten(self, job: Job) -> None:
        """Have what is deferred of a job written with the batch being gathered, and its events with it."""
        self.note(job)
        self._touches.pop(job.id, None)
        if job.id in self._waiting:
            self._take_waiting(job.id)

    def record(
        self,
        job: Job,
        what: str,
        by: Peer | None,
        now_ns: int,
        *,
        delay_s: int = 0,
        body: bytes | None = None,
        by_operator: bool = False,
    ) -> Event:
        """Record an event for a change that a client waits for, and return it.

        To be called while ``recording``, and by operators' commands always. ``body`` is given for a deletion, and for a
        note.
        """
        if job.id in self._waiting:
            self._take_waiting(job.id)
        if self._touches:
            self._touches.pop(job.id, None)
        if what is DELETE:
            if self.keeps_bodies:
                self.event_bytes += job.size
            else:
                body = None
        elif body is not None:
            self.event_bytes += len(body)
        event = Event(now_ns, job.id, job.tube, what, by, job.pri, delay_s, job.size, body, by_operator=by_operator)
        self.events.append(event)
        return event

    def record_deferred(self, job: Job, what: str, by: Peer | None, now_ns: int) -> Event:
        """Record an event for a deferred change, and return it: it waits with the change, so both are stored together.

        Several touches in a row by one client are one event, with the time of the last: otherwise a client could make
        events faster than they can be stored, without ever waiting for a commit.
        """
        touched = self._touches.pop(job.id, None)
        if touched is not None and what is TOUCH and _are_one(touched.by, by):
            touched.at_ns = now_ns
            touched.by = by  # it may call itself something else by now
            self._touches[job.id] = touched
            return touched
        event = Event(now_ns, job.id, job.tube, what, by, job.pri, 0, job.size, None, by_operator=False)
        if what is TOUCH:
            self._touches[job.id] = event
        if job.id in self.changed:
            self.events.append(event)
        else:
            waiting = self._waiting.get(job.id)
            if waiting is None:
                self._waiting.set(job.id, [event])
                return event
            waiting.append(event)
            if len(waiting) > UNCOUNTED_EACH:
                self.waiting_events += 1
        return event

    def record_pause(self, tube: Tube, pause_s: int, by: Peer, now_ns: int, *, by_operator: bool) -> None:
        """Record that a tube was paused, or its pause ended; to be called as ``record``."""
        self.events.append(Event(now_ns, 0, tube, PAUSE, by, 0, pause_s, 0, None, by_operator=by_operator))

    def record_policy(self, pattern: bytes, change: bytes, by: Peer, now_ns: int) -> None:
        """Record that an operator, or the file of policies, has changed what holds for the tubes of a pattern."""
        tube = Tube(pattern, 0)  # for its name
        self.events.append(Event(now_ns, 0, tube, POLICY, by, 0, 0, 0, change, by_operator=True))

    def record_schedule(self, tube: Tube, pri: int, change: bytes, by: Peer, now_ns: int) -> None:
        """Record that an operator has changed a schedule, which puts into this tube."""
        self.event_bytes += len(change)
        self.events.append(Event(now_ns, 0, tube, SCHEDULE, by, pri, 0, 0, change, by_operator=True))

    def note_schedule(self, schedule: Schedule) -> None:
        """Have a schedule written with the batch being gathered."""
        if self.schedules.get(schedule.name) is not schedule:
            self.schedule_bytes += len(schedule.body)
        self.schedules[schedule.name] = schedule

    def tally(self, tube: Tube) -> Tally:
        """Return the tally of a tube, made if need be."""
        tally = tube.tally
        if tally is None:
            tally = tube.tally = Tally(tube.name)
            self.tallied.append(tube)
        return tally

    def bound_deferred(self, jobs: int) -> None:
        """Keep ``deferred`` from growing too large; to be called in each turn of the loop.

        With twice as many in earlier ones as there are jobs, these are the same again and again, and it grows no more.
        """
        if len(self.deferred) > DEFERRED_MAX and len(self._older_deferred) * DEFERRED_MAX <= 2 * jobs:
            self._older_deferred.append(self.deferred)
            self.deferred = {}

    @property
    def is_changed(self) -> bool:
        """Whether there is something to take besides deferred changes and totals."""
        return bool(self.changed or self.pauses or self.policies or self.schedules or self.events)

    @property
    def has_deferred(self) -> bool:
        """Whether there are deferred changes to take."""
        return bool(self.deferred or self._older_deferred)

    def is_stored(self, job_id: int) -> bool:
        """Whether the batches taken so far hold the latest state of a job, or its deletion."""
        pending = (self.changed, self.deferred, *self._older_deferred)
        return job_id <= self.taken_id and not any(job_id in each for each in pending)

    def take(
        self, last_id: int, *, deferred: bool, totals: bool, now_ns: int, ready: int = 0, tubes: int = 0
    ) -> Changes:
        """Take the batch that has been gathered, which ends with ``last_id``, and begin the next one.

        With the totals, ``ready`` is how many jobs are ready, and ``tubes`` how many tubes there are.
        """
        if deferred:
            self._take_deferred()
        if self._waste and not self._waste[-1].free_part():
            self._waste.pop()
        changes = Changes(self.batch, last_id, self.taken_id + 1, list(self.changed.values()), self.events)
        self.batch += 1
        self.taken_id = last_id
        self.changed = {}
        if totals:
            changes.tallies = self._take_tallies(ready, tubes, now_ns)
        self.events = []
        self.event_bytes = 0
        self._touches.clear()  # an event that has been taken does not change any more
        if self.pauses:
            changes.pauses, self.pauses = list(self.pauses.values()), {}
        if self.policies:
            changes.policies, self.policies = list(self.policies.items()), {}
        if self.schedules:
            changes.schedules, self.schedules = list(self.schedules.items()), {}
            self.schedule_bytes = 0
        if self.notes:
            changes.notes, self.notes = list(self.notes.items()), {}
        return changes

    def take_restarted(self, now_ns: int) -> Changes:
        """Take a slice of the jobs that the start has made ready, and record that; to be called before any change."""
        self._take_deferred()
        for job in self.changed.values():
            self.record(job, RESTART, None, now_ns)
        return self.take(self.taken_id, deferred=False, totals=False, now_ns=now_ns)

    def _take_tallies(self, ready: int, tubes: int, now_ns: int) -> list[Tally]:
        most = max(self.slices * TALLIES, len(self.tallied) - tubes)
        taken, self.tallied = self.tallied[:most], self.tallied[most:]
        tallies: dict[bytes, Tally] = {}
        for tube in taken:
            tally = tube.tally
            assert tally is not None
            if self.measures is not None:
                self.measures.tally.add(tally)
            if self.measures is not None or tube.rules is not None or tally.is_told:
                tube.add_taken(tally)
            tube.tally = None
            self.pulses.note(tube, tally, now_ns)
            self.flows.note(tube, tally, ready, now_ns)
            first = tallies.setdefault(tube.name, tally)
            if first is not tally:
                first.add(tally)  # the tube was dropped and made again
        self.pulses.prune(len(taken) + EXAMINED, now_ns)
        return list(tallies.values())

    def _take_deferred(self) -> None:
        """Add some slices of the deferred changes to the batch."""
        room = self.slices * SLICE
        looks = room + room * PASSED_EACH
        while room and looks and (self.deferred or self._older_deferred):
            earliest = self._older_deferred[0] if self._older_deferred else self.deferred
            looked = 0
            for job_id, job in earliest.items():  # the earliest first, as their events are
                looked += 1
                if self._waiting and job_id in self._waiting:
                    self._take_waiting(job_id)
                if job.state is not GONE:
                    self.changed[job_id] = job
                    room -= 1
                if not room or looked == looks:
                    break
            looks -= looked
            if looked < len(earliest):
                for job_id in list(islice(earliest, looked)):
                    del earliest[job_id]
            elif earliest is self.deferred:
                self.deferred = {}
            else:
                del self._older_deferred[0]
        if not self.deferred:
            self.deferred = {}  # a dict that has been emptied keeps its memory

    def _take_waiting(self, job_id: int) -> None:
        """Add the events of a job's deferred changes to the batch."""
        waiting = self._waiting.pop(job_id)
        assert waiting is not None
        self.waiting_events -= max(0, len(waiting) - UNCOUNTED_EACH)
        self.events += waiting


def _are_one(peer: Peer | None, other: Peer | None) -> bool:
    """Whether both are the same client, whatever it calls itself."""
    return peer is other or (peer is not None and other is not None and peer.number == other.number)
