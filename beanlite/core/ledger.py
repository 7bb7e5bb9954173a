"""What has changed and is yet to be stored, batch by batch."""

from __future__ import annotations

from typing import Final, NamedTuple

from beanlite.core.events import PAUSE, RESTART, Event
from beanlite.core.job import GONE, SLICE, Job
from beanlite.core.measures import Measures
from beanlite.core.totals import Tally
from beanlite.core.tube import Peer, Tube

# Jobs. A dict that grows to a million stops everybody for a noticeable moment while Python moves it.
DEFERRED_MAX: Final = 50_000
# Tubes whose totals are in a batch at most.
TALLIES: Final = 200


class Changes(NamedTuple):
    """A batch: everything that has changed since the last one, each job once and in its latest state.

    ``StoredJob`` in ``core/restore.py`` says what a journal has to keep of a job.
    """

    batch: int
    """Its number; each batch has the next one."""
    last_id: int
    """The highest id given out so far, to be stored with the batch: it must never be given out again."""
    first_id: int
    """Jobs from this id on are new."""
    jobs: list[Job]
    """Those that were deleted have the state GONE."""
    pauses: list[Tube]
    """Tubes whose pause has begun or, where ``pause_until_ns`` is 0, ended."""
    events: list[Event]
    """What has happened, if it is recorded, each job's in its order; an event is in the same batch as the change."""
    tallies: list[Tally]
    """What is to be added to the totals of some tubes, each of which is there once."""


class Ledger:
    """The batch that is being gathered, and how far those before it have come.

    It has more attributes than most classes because whatever changes a job enters it here, and here alone.
    """

    __slots__ = (
        "_older_deferred",
        "_waiting",
        "batch",
        "changed",
        "deferred",
        "events",
        "measures",
        "pauses",
        "recording",
        "stored_batch",
        "stored_id",
        "taken_id",
        "tallied",
    )

    def __init__(self) -> None:
        self.batch = 1
        """The number of the batch that is being gathered."""
        self.taken_id = 0
        """The last id of the batches that have been taken."""
        self.stored_batch = 0
        """The number of the last batch that is safe in the journal."""
        self.stored_id = 0
        """The last id of those that are."""
        self.changed: dict[int, Job] = {}
        """Jobs whose change somebody waits for."""
        self.deferred: dict[int, Job] = {}
        """Jobs whose change nobody waits for."""
        self._older_deferred: list[dict[int, Job]] = []
        """More of those. A job that has been written meanwhile may be among them, and is then written once more."""
        self.pauses: dict[bytes, Tube] = {}
        """Tubes whose pause has begun or ended."""
        self.recording = 0
        """For how many everything that happens to a job is recorded: the history, and each who listens."""
        self.events: list[Event] = []
        """What has been recorded since the last batch was taken."""
        self._waiting: dict[int, list[Event]] = {}
        """What has happened to jobs whose change is deferred."""
        self.tallied: list[Tube] = []
        """Tubes that have a tally which is still to be taken."""
        self.measures: Measures | None = None
        """What is measured; None if nobody may ask for it."""

    def start_recording(self) -> None:
        """Record everything from now on, until ``stop_recording`` has been called as often as this."""
        self.recording += 1

    def stop_recording(self) -> None:
        """Record no more, unless somebody else still needs it."""
        self.recording -= 1

    def note(self, job: Job) -> None:
        """Have the job written in the batch that is being gathered."""
        self.changed[job.id] = job
        self.deferred.pop(job.id, None)

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
    ) -> None:
        """Make an event of what happens to a job; to be called while ``recording``, and by operators' commands always.

        It is for changes that somebody waits for. Of a deletion the body is told.
        """
        waiting = self._waiting.pop(job.id, None)
        if waiting is not None:
            self.events += waiting
        self.events.append(
            Event(now_ns, job.id, job.tube, what, by, job.pri, delay_s, job.size, body, by_operator=by_operator)
        )

    def record_deferred(self, job: Job, what: str, by: Peer | None, now_ns: int) -> None:
        """The same of a change that is deferred: the event waits with it, so that they come into the file together."""
        event = Event(now_ns, job.id, job.tube, what, by, job.pri, 0, job.size, None, by_operator=False)
        if job.id in self.changed:
            self.events.append(event)
        elif job.id in self._waiting:
            self._waiting[job.id].append(event)
        else:
            self._waiting[job.id] = [event]

    def record_pause(self, tube: Tube, pause_s: int, by: Peer, now_ns: int) -> None:
        """Make an event of a pause, or of its end by a client; to be called while ``recording``."""
        self.events.append(Event(now_ns, 0, tube, PAUSE, by, 0, pause_s, 0, None, by_operator=False))

    def tally(self, tube: Tube) -> Tally:
        """What is being counted of a tube."""
        tally = tube.tally
        if tally is None:
            tally = tube.tally = Tally(tube.name)
            self.tallied.append(tube)
        return tally

    def bound_deferred(self) -> None:
        """Keep ``deferred`` from growing too large; to be called before another SLICE of jobs is deferred."""
        if len(self.deferred) > DEFERRED_MAX:
            self._older_deferred.append(self.deferred)
            self.deferred = {}

    @property
    def has_deferred(self) -> bool:
        """Whether there are deferred changes left to take."""
        return bool(self.deferred or self._older_deferred)

    def is_stored(self, job_id: int) -> bool:
        """Whether the journal knows all about a job, or that it is gone, once it has all batches taken so far."""
        pending = (self.changed, self.deferred, *self._older_deferred)
        return job_id <= self.taken_id and not any(job_id in each for each in pending)

    def take(self, last_id: int, *, deferred: bool, totals: bool) -> Changes:
        """The batch that has been gathered, whose last id is given; the next one begins."""
        if deferred:
            self._take_deferred()
        tallies = self._take_tallies() if totals else []
        jobs, pauses = list(self.changed.values()), list(self.pauses.values())
        changes = Changes(self.batch, last_id, self.taken_id + 1, jobs, pauses, self.events, tallies)
        self.batch += 1
        self.taken_id = last_id
        self.changed = {}
        self.pauses = {}
        self.events = []
        return changes

    def take_restarted(self, now_ns: int) -> Changes:
        """A slice of the jobs that the start has made ready, recorded; to be called before anything else happens."""
        self._take_deferred()
        for job in self.changed.values():
            self.record(job, RESTART, None, now_ns)
        return self.take(self.taken_id, deferred=False, totals=False)

    def _take_tallies(self) -> list[Tally]:
        taken, self.tallied = self.tallied[:TALLIES], self.tallied[TALLIES:]
        tallies: dict[bytes, Tally] = {}
        for tube in taken:
            tally = tube.tally
            assert tally is not None
            if self.measures is not None:
                self.measures.tally.add(tally)
                tube.add_taken(tally)
            tube.tally = None
            first = tallies.setdefault(tube.name, tally)
            if first is not tally:
                first.add(tally)  # the tube had gone meanwhile, and has come again
        return list(tallies.values())

    def _take_deferred(self) -> None:
        """Add a slice of the deferred changes to the batch."""
        room = SLICE
        while room and (self.deferred or self._older_deferred):
            if not self.deferred:
                self.deferred = self._older_deferred.pop()
            job_id, job = self.deferred.popitem()
            self.events += self._waiting.pop(job_id, ())
            if job.state is not GONE:
                self.changed[job_id] = job
                room -= 1
        if not self.deferred:
            self.deferred = {}  # a dict keeps the room of all that it ever held
