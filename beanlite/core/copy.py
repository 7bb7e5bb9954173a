"""The copy of all jobs that a standby keeps up to date, to have less to read when it becomes active."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

from beanlite.core.job import Job
from beanlite.core.memory import BODY_BYTES, JOB_BYTES, Memory
from beanlite.core.notes import Notes
from beanlite.core.queues import Queues
from beanlite.core.restore import StoredJob, crc32_of, enter_jobs, make_jobs
from beanlite.core.table import JobTable
from beanlite.core.tube import Tube
from beanlite.core.wide import WideDict

_CRC32_BITS: Final = 32
_CRC32_MASK: Final = (1 << _CRC32_BITS) - 1
# Of the room for bodies, the part that is filled again once bodies have been dropped: three quarters.
_FILLED: Final = 4
# How many notes are given, or jobs put into their queues, before anything else has its turn.
_ENTERED_AT_ONCE: Final = 5000


class Copy:
    """Jobs and notes as they are stored, in no queue: what they become depends on when the server becomes active.

    The key of a job is the place in its row, followed by the checksum of its body.
    """

    __slots__ = (
        "_memory",
        "_note_ids",
        "_queues",
        "_rest",
        "_taker",
        "_tubes",
        "body_bytes",
        "ids",
        "jobs",
        "last_id",
        "notes",
        "sinces_ns",
    )

    def __init__(self, memory: Memory) -> None:
        """``memory`` is that of the engine which is to have the jobs."""
        self._memory = memory
        self._queues: Queues | None = None
        """Those to which it was given; None before that."""
        self._taker: Notes | None = None
        """That to which the notes were given."""
        self._note_ids: Iterator[int] = iter(())
        """The jobs whose notes are still to be given."""
        self._rest: Iterator[Job] = iter(())
        """Jobs that are still to be put into queues."""
        self._tubes: dict[bytes, Tube] = {}
        """Tubes that stand for those to come; ``total_jobs`` is how many jobs they have here."""
        self.jobs = JobTable()
        self.notes: WideDict[bytes] = WideDict()
        """By the ids of their jobs."""
        self.last_id = 0
        """No job above this id has been read."""
        self.body_bytes = 0
        """What bodies take, with BODY_BYTES for each."""
        self.ids = 0
        """The sum of all ids."""
        self.sinces_ns = 0
        """The sum of the moments when the jobs entered their states."""

    def add(self, rows: list[StoredJob], now_ns: int) -> None:
        """Add jobs above the last id, in ascending order. TypeError, ValueError: a row can't be one."""
        self.jobs.make_room()
        jobs = make_jobs(rows, self._tubes, self._make_tube, self.last_id, now_ns)
        self._note_checksums(jobs, rows)
        for job in jobs:
            self.jobs.newest[job.id] = job
            self._count(job, 1)
            self.last_id = job.id

    def replace(self, rows: list[StoredJob], now_ns: int) -> None:
        """Replace jobs by others with the same ids, in ascending order, whose rows are without bodies.

        TypeError, ValueError: a row can't be one.
        """
        jobs = make_jobs(rows, self._tubes, self._make_tube, 0, now_ns)
        self._note_checksums(jobs, rows)
        replaced = [self.jobs[job.id] for job in jobs]
        for job, old in zip(jobs, replaced, strict=True):
            if (job.size, job.key & _CRC32_MASK) != (old.size, old.key & _CRC32_MASK):
                raise ValueError(f"job {job.id} has another body")
            job.body = old.body
            self.jobs.replace(job)
            self._count(job, 1)
        for old in replaced:  # last, since a tube without jobs is dropped
            self._count(old, -1)

    def remove(self, job_id: int) -> None:
        """Remove a job and its note, if it is here."""
        job = self.jobs.find(job_id)
        if job is not None:
            self.jobs.remove(job_id)
            self._count(job, -1)
            self.notes.pop(job_id)

    def note(self, job_id: int, text: bytes) -> None:
        """Give a job another note, or none if it is empty."""
        if text:
            self.notes.set(job_id, text)
        else:
            self.notes.pop(job_id)

    def _make_tube(self, name: bytes) -> Tube:
        tube = self._tubes[name] = Tube(name, 0)
        return tube

    def _note_checksums(self, jobs: list[Job], rows: list[StoredJob]) -> None:
        for job, crc32 in zip(jobs, map(crc32_of, rows), strict=True):
            if not 0 <= crc32 <= _CRC32_MASK:
                raise ValueError(f"job {job.id} has an impossible checksum")
            job.key = job.key << _CRC32_BITS | crc32

    def _count(self, job: Job, sign: int) -> None:
        """Count a job that has come, or, with -1, one that goes."""
        self.ids += sign * job.id
        self.sinces_ns += sign * job.since_ns
        if job.body is not None:
            self.body_bytes += sign * (job.size + BODY_BYTES)
        tube = job.tube
        tube.total_jobs += sign
        if not tube.total_jobs:
            del self._tubes[tube.name]

    # -- bodies

    def body_room_bytes(self, jobs: int) -> int:
        """Return how much room there is for bodies beside so many jobs, including those that are here."""
        return self._memory.body_room_beside(jobs * JOB_BYTES)

    def wants_bodies(self, jobs: int) -> bool:
        """Whether the next jobs are to be read with their bodies, if there are so many in all."""
        room = self.body_room_bytes(jobs)
        return self.body_bytes <= room - room // _FILLED

    def drop_bodies(self, job_ids: Iterable[int], jobs: int) -> None:
        """Drop bodies of these jobs, the last ones first, as long as there are more than there should be."""
        room = self.body_room_bytes(jobs)
        most = room - room // _FILLED
        for job_id in reversed(list(job_ids)):
            if self.body_bytes <= most:
                return
            job = self.jobs[job_id]
            if job.body is not None:
                job.body = None
                self.body_bytes -= job.size + BODY_BYTES

    # -- the end

    def give_to(self, queues: Queues, notes: Notes) -> None:
        """Give the table of jobs, and the notes, to those that have none; ``enter`` follows."""
        queues.jobs.take(self.jobs)
        self._queues, self._taker = queues, notes
        self._note_ids = self.notes.each_key()
        self._rest = queues.jobs.in_order()

    def enter(self, now_ns: int) -> bool:
        """Give the next notes, some thousand, or put as many jobs into their queues; returns False if none are left.

        Jobs that were reserved, or whose delay is over by now, become ready.
        """
        queues, taker = self._queues, self._taker
        assert queues is not None
        assert taker is not None
        ids = list(islice(self._note_ids, _ENTERED_AT_ONCE))
        if ids:  # first, since they leave less room for bodies
            taker.restore([(job_id, self.notes.get(job_id) or b"") for job_id in ids])
            return True
        jobs = list(islice(self._rest, _ENTERED_AT_ONCE))
        checksums: list[int] = []
        for job in jobs:
            name = job.tube.name
            job.tube = queues.tubes.get(name) or queues.make_tube(name)
            checksums.append(job.key & _CRC32_MASK)
            job.key >>= _CRC32_BITS
        enter_jobs(queues, self._memory, jobs, checksums, now_ns)
        return bool(jobs)

    def free_part(self) -> bool:
        """Free a part of a copy that is not used any more; returns False if there is nothing left."""
        return self.jobs.free_part() or self.notes.free_part()
