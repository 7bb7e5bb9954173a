"""Which bodies are in memory, and which are in the journal only, to be fetched when they are needed.

While there is room, all bodies are in memory. When there is none, the bodies that are likely to be needed last are
unloaded: those of the latest jobs, except the very latest, which may be passing through a short queue. The bodies that
a tube's next ready jobs lack are fetched ahead, before these jobs are reserved.
"""

from collections import OrderedDict
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Final

from beanlite.core.job import ID_MASK, READY, RESERVED, Job
from beanlite.core.memory import BODY_BYTES, Memory
from beanlite.core.queues import Queues
from beanlite.core.tube import Tube

# The most jobs that are considered in one go, for unloading, or for fetching ahead; there, a tube counts as one more.
LOOKED_AT_MAX: Final = 4000
# The most that is fetched ahead for a tube in one go: jobs, and bytes of bodies.
AHEAD_JOBS: Final = 1000
AHEAD_BYTES: Final = 4 << 20
# The part of the room for bodies that those fetched ahead may take: a half.
AHEAD_PART: Final = 2


class Bodies:
    """The choice of bodies to unload, and of those to fetch."""

    __slots__ = (
        "_ahead_counts",
        "_hand",
        "_memory",
        "_older",
        "_queues",
        "_run",
        "_segment",
        "_tell_due",
        "ahead",
        "ahead_bytes",
        "due",
    )

    def __init__(self, queues: Queues, memory: Memory) -> None:
        self._queues = queues
        self._memory = memory
        self._hand = 0
        """Jobs with a larger id were put since there was last plenty of room, and have not been considered yet."""
        self._older: list[int] = []
        """Ids of earlier jobs that are still to be considered, the latest last."""
        self._segment = 0
        """How many segments of the job table have been listed in ``_older``."""
        self.ahead: dict[int, Job] = {}
        """Jobs whose bodies have been fetched ahead, and that have not been reserved yet."""
        self.ahead_bytes = 0
        """What these bodies take, with BODY_BYTES for each."""
        self._ahead_counts: dict[Tube, int] = {}
        """How many jobs each tube has in ``ahead``."""
        self._run: dict[Tube, int] = {}
        """How many there were after the last one was fetched for the tube."""
        self.due: OrderedDict[Tube, None] = OrderedDict()
        """Tubes for which more bodies should be fetched ahead."""
        self._tell_due: Callable[[], None] = _nobody

    def attach(self, tell_due: Callable[[], None]) -> None:
        """Have ``tell_due`` called when a tube becomes ``due`` and no other one is."""
        self._tell_due = tell_due

    # -- out of memory

    def end_restore(self, last_id: int) -> None:
        """End the restore: jobs up to this id are older, and later ones are unloaded before them."""
        self._hand = last_id

    def note_stored(self, last_id: int) -> None:
        """Note that all jobs up to this id are in the journal, and unload some bodies if there is too little room."""
        memory = self._memory
        if not memory.fetches:
            return
        room = memory.body_room_bytes
        if memory.body_bytes <= room - room // 4:
            self._hand = last_id
            self._older.clear()
            self._segment = 0
            return
        if memory.body_bytes > room:
            memory.crowded = True
        looks = LOOKED_AT_MAX
        # Further back, most ids may belong to jobs long deleted. The remaining jobs there count as older ones.
        self._hand = max(self._hand, last_id - LOOKED_AT_MAX)
        while memory.body_bytes > room and self._hand < last_id and looks:
            looks -= 1
            self._hand += 1
            self._look_at(self._hand)
        while memory.body_bytes > room and looks and (self._older or self._list_older(last_id)):
            looks -= 1
            self._look_at(self._older.pop())

    def _look_at(self, job_id: int) -> None:
        job = self._queues.jobs.find(job_id)
        if job is not None and job.body is not None:
            self.unload(job)

    def _list_older(self, last_id: int) -> bool:
        """List the ids of the next segment of the job table, the latest first; False if there are no more segments."""
        segments = self._queues.jobs.segments()
        while self._segment < len(segments):
            self._older = [job_id for job_id in segments[self._segment][1] if job_id <= last_id]
            self._segment += 1
            if self._older:  # else these were the newest jobs, of which none may be left, or none be stored yet
                return True
        self._segment = 0
        return False

    def unload(self, job: Job) -> None:
        """Drop a job's body from memory; the journal must have stored it."""
        memory = self._memory
        if self.ahead.pop(job.id, None) is not None:
            self._no_longer_ahead(job)
        job.body = None
        memory.body_bytes -= job.size + BODY_BYTES
        memory.unloaded += 1
        memory.unloaded_bytes += job.size

    def note_delivery(self, job: Job) -> None:
        """Note that a client has been given a job: if the body was fetched ahead, it is unloaded."""
        if job.id in self.ahead and job.state is RESERVED:
            self.unload(job)

    def note_delete(self, job: Job) -> None:
        """Note that a job is deleted whose body is not in memory, or may have been fetched ahead."""
        memory = self._memory
        if job.body is None:
            memory.unloaded -= 1
            memory.unloaded_bytes -= job.size
        else:
            memory.body_bytes -= job.size + BODY_BYTES
            if self.ahead.pop(job.id, None) is not None:
                self._no_longer_ahead(job)

    def unload_ahead(self, job: Job) -> None:
        """Unload the body of a job that leaves its tube or is ready no more, if it was fetched ahead."""
        if job.id in self.ahead:
            self.unload(job)

    def _no_longer_ahead(self, job: Job) -> None:
        tube = job.tube
        self.ahead_bytes -= job.size + BODY_BYTES
        count = self._ahead_counts[tube] = self._ahead_counts[tube] - 1
        if count <= self._run[tube] // 2:
            self._make_due(tube)
        if not count:
            del self._ahead_counts[tube], self._run[tube]

    def _make_due(self, tube: Tube) -> None:
        if not self.due:
            self._tell_due()
        self.due[tube] = None

    # -- into memory

    def note_miss(self, job: Job) -> None:
        """Note that a client needs a body that is not in memory; if it reserved the job, the next ones are due."""
        if job.state is RESERVED:
            self._make_due(job.tube)

    def take_due(self) -> list[Job]:
        """Take the jobs whose bodies should be fetched ahead, in the order of their queues.

        There may be very many tubes without such jobs. If some tubes are still ``due`` afterwards, call it again.
        """
        due_jobs: list[Job] = []
        room = self._memory.body_room_bytes // AHEAD_PART - self.ahead_bytes
        looks = LOOKED_AT_MAX
        while self.due and room > 0 and len(due_jobs) < AHEAD_JOBS and looks > 0:
            tube, _ = self.due.popitem(last=False)
            rest_bytes = min(room, AHEAD_BYTES)
            jobs, count = self._next_of(tube)
            looks -= 1 + count
            for job in jobs:
                if rest_bytes <= 0:
                    break
                takes_bytes = job.size + BODY_BYTES
                rest_bytes -= takes_bytes
                room -= takes_bytes
                due_jobs.append(job)
        if looks > 0:
            self.due.clear()
        return due_jobs

    def _next_of(self, tube: Tube) -> tuple[list[Job], int]:
        """Return a tube's next ready jobs without a body in memory, in order, and how many jobs were looked at."""
        keys = tube.ready.keys
        jobs: list[Job] = []
        places = [(keys[0], 0)] if keys else []
        looks = 0
        while places and len(jobs) < AHEAD_JOBS and looks < 2 * AHEAD_JOBS:  # half of these may be in memory already
            looks += 1
            key, place = heappop(places)
            job = self._queues.jobs.find(key & ID_MASK)
            # A removed entry may still be in the heap, even if its job has a new entry.
            if job is not None and job.tube is tube and job.key == key and job.state is READY and job.body is None:
                jobs.append(job)
            for child in (2 * place + 1, 2 * place + 2):
                if child < len(keys):
                    heappush(places, (keys[child], child))
        return jobs, looks

    def load(self, job: Job, body: bytes) -> None:
        """Keep a body that was fetched ahead, unless the job is not ready any more or already has its body."""
        if job.state is not READY or job.body is not None:
            return
        memory = self._memory
        job.body = body
        memory.body_bytes += job.size + BODY_BYTES
        memory.unloaded -= 1
        memory.unloaded_bytes -= job.size
        self.ahead[job.id] = job
        self.ahead_bytes += job.size + BODY_BYTES
        count = self._ahead_counts[job.tube] = self._ahead_counts.get(job.tube, 0) + 1
        self._run[job.tube] = count


def _nobody() -> None:
    """Do nothing: the default for ``attach``."""
