"""Notes on jobs: what a worker or an operator has left with a job, such as why it failed."""

from collections.abc import Iterable, Iterator
from typing import Final

from beanlite.core.admission import Admission
from beanlite.core.events import NOTE
from beanlite.core.job import DELAYED, GONE, Job
from beanlite.core.memory import NOTE_BYTES, Memory
from beanlite.core.queues import Queues
from beanlite.core.tube import Peer
from beanlite.core.wide import WideDict

# The most bytes of UTF-8 that a note has, and how much of its first line lists and events show.
NOTE_MAX: Final = 4096
LINE_MAX: Final = 200
_NEWLINE: Final = b"\n"


def is_note(text: bytes) -> bool:
    """Whether this can be a note: UTF-8 that any database takes as text."""
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return b"\0" not in text


def first_line(text: bytes) -> str:
    """Return the first line of a note, as far as lists show it."""
    return text.strip().partition(_NEWLINE)[0].rstrip().decode()[:LINE_MAX]


class Notes:
    """All notes, by the ids of the jobs that have one. Other jobs pay nothing, not even when they are deleted."""

    __slots__ = ("_admission", "_ledger", "_memory", "_queues", "_texts")

    def __init__(self, queues: Queues, memory: Memory, admission: Admission) -> None:
        self._queues = queues
        self._ledger = queues.ledger
        self._memory = memory
        self._admission = admission
        self._texts: WideDict[bytes] = WideDict()

    def text(self, job: Job) -> bytes:
        """Return the note of a job; empty if it has none."""
        return self._texts.get(job.id) or b""

    def has_room(self, job: Job, text: bytes) -> bool:
        """Whether a job can be given this note now, in place of the one that it has, in memory and on the disk."""
        more_bytes = NOTE_BYTES + len(text)
        before = self._texts.get(job.id)
        freed_bytes = 0 if before is None else NOTE_BYTES + len(before)
        takes = more_bytes <= freed_bytes or self._memory.takes_notes(more_bytes - freed_bytes)
        return not text or (takes and more_bytes <= self._admission.room_bytes)

    def set(self, job: Job, text: bytes, by: Peer, now_ns: int, *, by_operator: bool) -> None:
        """Give a job another note, for which there is room, or none if it is empty."""
        self._keep(job.id, text)
        ledger = self._ledger
        ledger.notes[job.id] = text
        ledger.note(job)
        if ledger.recording or by_operator:
            delay_s = job.delay_s if job.state is DELAYED else 0
            ledger.record(job, NOTE, by, now_ns, delay_s=delay_s, body=text, by_operator=by_operator)
        self._admission.use_disk(len(text))

    def restore(self, notes: Iterable[tuple[int, bytes]]) -> None:
        """Take over notes from the journal, before the jobs."""
        for job_id, text in notes:
            self._keep(job_id, text)

    def each_id(self) -> Iterator[int]:
        """Return the ids of all jobs that have a note; nothing may be changed meanwhile."""
        return self._texts.each_key()

    def stray_id(self, job_ids: Iterable[int] | None = None) -> int | None:
        """Return the id of a note, of these or of all, whose job is not there; None if each has its job."""
        find = self._queues.jobs.find
        for job_id in self.each_id() if job_ids is None else job_ids:
            if find(job_id) is None:
                return job_id
        return None

    def begin_batch(self) -> None:
        """Forget the notes of jobs that are gone, and have that written with the batch that is about to be taken."""
        ledger, find = self._ledger, self._queues.jobs.find
        gone = [job_id for job_id, job in ledger.changed.items() if job.state is GONE]
        gone += [job_id for job_id in ledger.notes if find(job_id) is None]  # put and deleted within the batch
        for job_id in gone:
            if self._texts.get(job_id) is not None:
                self._keep(job_id, b"")
                ledger.notes[job_id] = b""

    def _keep(self, job_id: int, text: bytes) -> None:
        before = self._texts.pop(job_id)
        if before is not None:
            self._memory.note_bytes -= NOTE_BYTES + len(before)
        if text:
            self._texts.set(job_id, text)
            self._memory.note_bytes += NOTE_BYTES + len(text)
