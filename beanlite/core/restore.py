"""Taking over at the start what the journal has kept."""

from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Final, NamedTuple

from beanlite.core.job import BURIED, DELAYED, NO_PAST, READY, RESERVED, Job, Past, State
from beanlite.core.memory import BODY_BYTES, Memory
from beanlite.core.queues import Queues
from beanlite.core.tube import PAUSED, Peer, Tube

# Times above this can't be: they would not fit into 64 bits.
FAR_NS: Final = 1 << 63

_BURIED: Final = BURIED.value
_DELAYED: Final = DELAYED.value
_RESERVED: Final = RESERVED.value


class StoredJob(NamedTuple):
    """A job as the journal reads it.

    The journal has checked that the tube's name is valid (``is_tube_name``), that no number is larger than the protocol
    allows, and that the body is the one that was put.
    """

    id: int
    tube: bytes
    state: str | None
    """The text of the state; None for a ready job, as most are."""
    pri: int
    delay_s: int
    ttr_s: int
    created_ns: int
    place: int | None
    """Delayed or reserved: ``Job.due_ns``. Buried: the number of the burial, ``Job.key >> ID_BITS``. Ready: None."""
    reserves: int
    timeouts: int
    releases: int
    buries: int
    kicks: int
    body: bytes | int
    """The body; or only its size, if it was left in the journal to be fetched when needed."""
    crc32: int
    """Checksum of the body; not looked at here."""
    since_ns: int | None
    """When the job entered its state; None if that is not known, because an older version stored it."""
    holder: str | None
    """``Peer.address`` of the client that had it reserved last; None if no client had."""
    holder_conn: int | None
    """That client's ``Peer.number``, as its server counted connections."""
    why: str | None
    """``Job.why``."""
    row_crc32: int | None
    """Checksum of everything but the body, where the journal keeps one; not looked at here."""
    forgiven: int
    """``Past.forgiven``."""


BODY_AT: Final = StoredJob._fields.index("body")
CRC32_AT: Final = StoredJob._fields.index("crc32")
crc32_of: Final = itemgetter(CRC32_AT)


def restore_jobs(queues: Queues, memory: Memory, rows: Sequence[StoredJob], last_id: int, now_ns: int) -> int:
    """Take over a few thousand jobs, in ascending order of id from above ``last_id``; returns the last id.

    Jobs that were reserved, or whose delay is over by now, become ready. Raises TypeError or ValueError if a row can't
    be a job.
    """
    queues.jobs.make_room()
    jobs = make_jobs(rows, queues.tubes, queues.make_tube, last_id, now_ns)
    queues.jobs.newest.update({job.id: job for job in jobs})
    enter_jobs(queues, memory, jobs, list(map(crc32_of, rows)), now_ns)
    return jobs[-1].id if jobs else last_id


def make_jobs(
    rows: Iterable[StoredJob], tubes: dict[bytes, Tube], make_tube: Callable[[bytes], Tube], last_id: int, now_ns: int
) -> list[Job]:
    """Make jobs of rows, in ascending order of id from above ``last_id``; ``enter_jobs`` puts them into their queues.

    Until then the key of a job is the place in its row. Raises TypeError or ValueError if a row can't be a job.
    """
    jobs: list[Job] = []
    share = dict[int, int]().setdefault  # equal numbers become one object, as in puts that are alike: saves memory
    peers: dict[tuple[str, int], Peer] = {}
    whys = dict[str, str]().setdefault
    for (
        job_id, name, state, pri, delay_s, ttr_s, created_ns, place, reserves,
        timeouts, releases, buries, kicks, stored_body, _, stored_since_ns,
        holder, holder_conn, why, _, forgiven,
    ) in rows:  # fmt: skip
        # Anything but an int raises TypeError here, and so does a missing time. That takes no call and costs nothing.
        past = timeouts | releases | buries | kicks | forgiven
        since_ns = now_ns if stored_since_ns is None else stored_since_ns
        if pri | delay_s | ttr_s | reserves | past < 0 or job_id <= last_id or created_ns | since_ns > FAR_NS:
            raise ValueError(f"job {job_id} has impossible numbers")
        last_id = job_id
        if isinstance(stored_body, bytes):
            body, size = stored_body, len(stored_body)
        elif isinstance(stored_body, int):
            body, size = None, stored_body
        else:
            raise TypeError("a job has no body")
        job = Job(
            job_id,
            tubes.get(name) or make_tube(name),
            share(pri, pri),
            delay_s,
            share(ttr_s, ttr_s),
            created_ns,
            body,
            share(size, size),
        )
        job.reserves = reserves
        job.since_ns = since_ns
        if holder is not None or holder_conn is not None:
            job.last_holder = _peer(peers, holder, holder_conn)
        if past:
            job.past = Past(timeouts, releases, buries, kicks, forgiven)
        if state is not None:
            job.state = _state_of(job_id, state, place)
            job.key = 0 if place is None else place
        if why is not None:
            if state != _BURIED or not isinstance(why, str):
                raise ValueError(f"job {job_id} is {state!r}, and has {why!r} as the reason")
            job.own_past().why = whys(why, why)
        jobs.append(job)
    return jobs


def _state_of(job_id: int, text: str, place: int | None) -> State:
    """Return the state with this text, other than ready."""
    if text == _RESERVED:
        return RESERVED
    if text == _BURIED and place is not None:
        return BURIED
    if text == _DELAYED and place is not None:
        return DELAYED
    raise ValueError(f"job {job_id} is {text!r}, and no job can be")


def enter_jobs(
    queues: Queues, memory: Memory, jobs: Iterable[Job], checksums: Iterable[int | None], now_ns: int
) -> None:
    """Put jobs that ``make_jobs`` has made into their queues; ``checksums`` are those of their bodies.

    Jobs that were reserved, or whose delay is over by now, become ready.
    """
    counts = queues.counts
    body_bytes = 0
    for job, checksum in zip(jobs, checksums, strict=True):
        tube = job.tube
        tube.moved_ns = now_ns
        if job.body is not None:
            body_bytes += job.size + BODY_BYTES
        else:
            _count_unloaded(memory, job)
        if job.reserves > 0 or job.past is not NO_PAST:
            counts.with_past += 1
        state = job.state
        if state is READY:
            queues.make_ready(job, job.since_ns)
        elif state is BURIED:
            queues.make_buried(job, job.key, job.past.why, job.since_ns)
        elif state is DELAYED and job.key > now_ns:
            queues.make_delayed(job, job.key, job.since_ns)
        else:
            if state is RESERVED:
                job.spare()  # no client is to blame
            queues.ledger.deferred[job.id] = job
            queues.ledger.bound_deferred(len(queues.jobs))
            queues.make_ready(job, now_ns)
        if tube.rules is not None:
            queues.ruled.enter(job, checksum)
    memory.body_bytes += body_bytes


def _count_unloaded(memory: Memory, job: Job) -> None:
    """Count a body that was left in the journal."""
    memory.crowded = True
    memory.unloaded += 1
    memory.unloaded_bytes += job.size


def _peer(peers: dict[tuple[str, int], Peer], address: str | None, number: int | None) -> Peer:
    """Return the client that had a job reserved: one object for all jobs of the same client."""
    if address is None or number is None:
        raise ValueError("a client has no address, or no number")
    peer = peers.get((address, number))
    if peer is None:
        peer = peers[address, number] = Peer(address, number)
    return peer


def restore_pause(queues: Queues, name: bytes, pause_s: int, until_ns: int) -> None:
    """Resume a tube's pause; if it is over by now, the next tick ends it and notes that for the journal."""
    tube = queues.tubes.get(name) or queues.make_tube(name)
    tube.pause_s = pause_s
    tube.pause_until_ns = until_ns
    tube.shut |= PAUSED
    queues.timers.set(tube, until_ns)
