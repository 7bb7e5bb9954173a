"""What the server has acknowledged, and what that forbids it to say later.

The books know each job from its put to its delete, and of deleted ones a bit each: an id may not come twice, for as
long as the load lasts. A command whose connection has ended unanswered leaves a "perhaps": a put may have made a job,
and a delete may have removed one. A body says which put it comes from, unless it is too short for that; then all puts
of this body stand for each other.
"""

import random
import re
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

FILLING = random.Random(0).randbytes(1 << 18)
HEAD = re.compile(rb"(\d+):(\d+):")
HEAD_MAX = 40
REMEMBERED_S = 120.0  # longer than any reply is on its way
EARLY_S = 3.5  # the server reads the clock once in a turn, and may be halted in the middle of one
COMPLAINTS_MAX = 100
SAMPLE = 1 << 14

Key = int | bytes
"""Which put a body comes from: its serial number, or a body that is too short for one."""


def body_of(serial: int, size: int) -> bytes:
    """The body of a put."""
    head = b"%d:%d:" % (serial, size)
    if size < len(head):
        return head[:size]
    start, missing = serial * 7919 % (len(FILLING) // 2), size - len(head)
    filling = FILLING if missing <= len(FILLING) // 2 else FILLING * (2 + missing // len(FILLING))
    return head + filling[start : start + missing]


def key_of(body: bytes) -> Key | None:
    """Which put a body comes from; None if no put ever had this one."""
    found = HEAD.match(body[:HEAD_MAX])
    if found is None:
        return body if len(body) < HEAD_MAX else None
    serial, size = int(found[1]), int(found[2])
    return serial if body == body_of(serial, size) else None


class Bits:
    """A set of numbers that grow over time, a bit each."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def __contains__(self, number: int) -> bool:
        place = number >> 3
        return place < len(self._bytes) and bool(self._bytes[place] & 1 << (number & 7))

    def add(self, number: int) -> None:
        place = number >> 3
        if place >= len(self._bytes):
            self._bytes.extend(bytes(place + 4096 - len(self._bytes)))
        self._bytes[place] |= 1 << (number & 7)

    def has_any_of(self, other: "Bits") -> bool:
        return bool(int.from_bytes(self._bytes, "little") & int.from_bytes(other._bytes, "little"))


class Holder(Protocol):
    """A connection that reserves."""

    @property
    def gone(self) -> bool:
        """Whether it has ended, which its client may not have noticed yet."""


@dataclass(slots=True)
class Put:
    """A put that has been sent and not been answered, perhaps never to be."""

    key: Key
    ttr_s: int


@dataclass(slots=True)
class Job:
    """A job that is there, or perhaps there."""

    id: int
    key: Key
    ttr_s: int  # 0: not known
    acknowledged: bool
    deleting: int = 0  # deletes that were sent and never answered: if there is one, it may be gone
    holder: Holder | None = None
    held_until_s: float = 0.0  # before then nobody else can get it

    def held(self, holder: "Holder | None", since_s: float) -> None:
        """It was reserved or touched, no earlier than then."""
        self.holder = holder
        self.held_until_s = since_s + max(0.0, self.ttr_s - EARLY_S)


@dataclass
class Books:
    """The books of all clients of one load. Of its attributes four are figures for the report."""

    live: dict[int, Job] = field(default_factory=dict)
    given: Bits = field(default_factory=Bits)
    deleted: Bits = field(default_factory=Bits)
    complaints: list[str] = field(default_factory=list)
    serial: int = 0
    puts: int = 0
    deletes: int = 0
    checks: int = 0
    unanswered: dict[Key, list[Put]] = field(default_factory=dict)
    _claimed: dict[int, Key] = field(default_factory=dict)  # seen by a worker before their put was answered
    _recent: dict[int, float] = field(default_factory=dict)  # when the latest deletes were acknowledged
    _sample: deque[int] = field(default_factory=lambda: deque(maxlen=SAMPLE))  # some of the ids

    def complain(self, text: str) -> None:
        """Note what the server should not have done."""
        if len(self.complaints) < COMPLAINTS_MAX:
            self.complaints.append(text)

    def perhaps(self) -> int:
        """The number of puts that may have made a job of which nothing has been seen."""
        return sum(len(puts) for puts in self.unanswered.values())

    # -- puts

    def put(self, size: int, ttr_s: int) -> tuple[Put, bytes]:
        """A put is about to be sent: what to hand back with its reply, and its body."""
        self.serial += 1
        body = body_of(self.serial, size)
        key = key_of(body)
        assert key is not None
        put = Put(key, ttr_s)
        self.unanswered.setdefault(key, []).append(put)
        return put, body

    def refused(self, put: Put) -> None:
        """A put has made no job."""
        self._answered(put.key)

    def inserted(self, put: Put, job_id: int) -> None:
        """A put has been acknowledged."""
        self.puts += 1
        if job_id in self.given:
            self.complain(f"id {job_id} was given twice")
            return
        self.given.add(job_id)
        self._sample.append(job_id)
        claimed = self._claimed.pop(job_id, None)
        if claimed is None:
            self._answered(put.key)
            self.live[job_id] = Job(job_id, put.key, put.ttr_s, acknowledged=True)
        elif claimed != put.key:
            self.complain(f"job {job_id} was reserved as {claimed!r}, but put as {put.key!r}")
        elif job_id in self.live:
            self.live[job_id].acknowledged = True
            self.live[job_id].ttr_s = put.ttr_s

    def _answered(self, key: Key) -> bool:
        """One put of this body less is unanswered."""
        puts = self.unanswered.get(key)
        if not puts:
            return False
        puts.pop()
        if not puts:
            del self.unanswered[key]
        return True

    # -- reservations

    def reserved(self, job_id: int, body: bytes, sent_s: float, holder: Holder | None) -> Job | None:
        """A worker got a job. None: this is nothing to go on with.

        ``sent_s``: when it asked; the reservation is no older.
        """
        now_s, key = time.monotonic(), key_of(body)
        job = self.live.get(job_id)
        if job_id in self.deleted:
            # Another's delete may have been read first, but not before this was asked for.
            if self._recent.get(job_id, 0.0) <= sent_s:
                self.complain(f"job {job_id} is back after its delete")
            return None
        if job is None:
            if key is None or not self._answered(key):
                self.complain(f"job {job_id} was never put, or is there twice: {body[:HEAD_MAX]!r}")
                return None
            self._claimed[job_id] = key
            job = self.live[job_id] = Job(job_id, key, 0, acknowledged=False)
        if job.key != key:
            self.complain(f"job {job_id} has the body {body[:HEAD_MAX]!r}, not that of {job.key!r}")
        if now_s < job.held_until_s and job.holder is not None and not job.holder.gone:
            self.complain(f"job {job_id} was reserved while another held it for {job.held_until_s - now_s:.3f} s more")
        job.held(holder, sent_s)
        return job

    @staticmethod
    def held_until_s(job: Job, holder: Holder | None) -> float:
        """Until when nobody else can get a job; long past if somebody else has got it since."""
        return job.held_until_s if job.holder is holder else 0.0

    def let_go(self, job: Job, holder: Holder | None) -> float:
        """A holder is about to give a job up, or to go: until when it would have been its own."""
        until_s = self.held_until_s(job, holder)
        if job.holder is holder:
            job.holder, job.held_until_s = None, 0.0
        return until_s

    def not_found(self, job: Job, until_s: float, word: str) -> None:
        """A holder was told that a job is not its own."""
        if job.id in self.live and time.monotonic() < until_s:
            self.complain(f"job {job.id} was NOT_FOUND to {word} while it was reserved")

    # -- deletes

    def deleting(self, job: Job) -> None:
        """A delete is about to be sent."""
        job.deleting += 1

    def not_deleted(self, job: Job) -> None:
        """It has changed nothing."""
        job.deleting -= 1

    def has_deleted(self, job: Job) -> None:
        """It has been acknowledged."""
        self.deletes += 1
        if self.live.pop(job.id, None) is None:
            self.complain(f"job {job.id} was deleted twice")
            return
        self.deleted.add(job.id)
        now_s = time.monotonic()
        self._recent[job.id] = now_s
        while (oldest := next(iter(self._recent))) and self._recent[oldest] < now_s - REMEMBERED_S:
            del self._recent[oldest]

    # -- looking

    def some(self, chance: random.Random) -> int | None:
        """The id of a job that was put: it is there, or was deleted."""
        return chance.choice(self._sample) if self._sample else None

    def must_be_there(self, job_id: int) -> bool:
        """Whether a job can't be gone."""
        job = self.live.get(job_id)
        return job is not None and job.acknowledged and not job.deleting

    def looked(self, job_id: int, body: bytes | None, *, was_deleted: bool, was_there: bool) -> None:
        """A client looked for a job, and saw this body or none; so it stood in the books when it asked."""
        self.checks += 1
        if body is None:
            if was_there and self.must_be_there(job_id):
                self.complain(f"job {job_id} is lost")
        elif was_deleted:
            self.complain(f"job {job_id} is still there after its delete")
        elif job_id in self.live and key_of(body) != self.live[job_id].key:
            self.complain(f"job {job_id} shows the body {body[:HEAD_MAX]!r}")

    def all_is_gone(self) -> None:
        """The server is empty: no job may be left that can't be gone."""
        for job_id in [job_id for job_id in self.live if self.must_be_there(job_id)]:
            self.complain(f"job {job_id} is lost")

    def counts(self) -> tuple[int, int]:
        """The least and the largest number of jobs that the server may have, when nothing is on its way."""
        return sum(map(self.must_be_there, self.live)), len(self.live) + self.perhaps()
