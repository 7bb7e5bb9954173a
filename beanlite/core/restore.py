"""Taking over at the start what the journal has kept."""

from collections.abc import Iterable
from typing import Final, NamedTuple

from beanlite.core.job import BURIED, DELAYED, RESERVED, Job, Past
from beanlite.core.memory import BODY_BYTES, Memory
from beanlite.core.queues import Queues
from beanlite.core.tube import PAUSED, Peer

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


def restore_jobs(queues: Queues, memory: Memory, rows: Iterable[StoredJob], last_id: int, now_ns: int) -> int:
    """Take over a few thousand jobs, in ascending order of id from above ``last_id``; returns the last id.

    Jobs that were reserved, or whose delay is over by now, become ready. Raises TypeError or ValueError if a row can't
    be a job.
    """
    tubes = queues.tubes
    share = dict[int, int]().setdefault  # equal numbers become one object, as in puts that are alike: saves memory
    peers: dict[tuple[str, int], Peer] = {}
    whys = dict[str, str]().setdefault
    queues.jobs.make_room()
    newest, counts = queues.jobs.newest, queues.counts
    for (
        job_id, name, state, pri, delay_s, ttr_s, created_ns, place, reserves,
        timeouts, releases, buries, kicks, stored_body, checksum, stored_since_ns,
        holder, holder_conn, why, _, forgiven,
    ) in rows:  # fmt: skip
        # Anything but an int raises TypeError here, and so does a missing time. That takes no call and costs nothing.
        past = timeouts | releases | buries | kicks | forgiven
        since_ns = now_ns if stored_since_ns is None else stored_since_ns
        if pri | delay_s | ttr_s | reserves | past < 0 or job_id <= last_id or created_ns | since_ns > FAR_NS:
            raise ValueError(f"job {job_id} has impossible numbers")
        last_id = job_id
        tube = tubes.get(name) or queues.make_tube(name)
        tube.moved_ns = now_ns
        body = stored_body if isinstance(stored_body, bytes) else None
        body_size = _count_body(memory, stored_body)
        job = newest[job_id] = Job(
            job_id,
            tube,
            share(pri, pri),
            delay_s,
            share(ttr_s, ttr_s),
            created_ns,
            body,
            share(body_size, body_size),
        )
        job.reserves = reserves
        counts.with_past += reserves > 0 or past > 0 or why is not None
        if holder is not None or holder_conn is not None:
            job.last_holder = _peer(peers, holder, holder_conn)
        if why is not None and (state != _BURIED or not isinstance(why, str)):
            raise ValueError(f"job {job_id} is {state!r}, and has {why!r} as the reason")
        if past:
            job.past = Past(timeouts, releases, buries, kicks, forgiven)
        if state is None:
            queues.make_ready(job, since_ns)
        else:
            _restore_state(queues, job, state, place, None if why is None else whys(why, why), since_ns, now_ns)
        if tube.rules is not None:
            queues.ruled.enter(job, checksum)
    return last_id


def _restore_state(
    queues: Queues, job: Job, state: str, place: int | None, why: str | None, since_ns: int, now_ns: int
) -> None:
    """Put a job into the queue of a stored state other than ready."""
    if state == _BURIED and place is not None:
        queues.make_buried(job, place, why, since_ns)
    elif state == _DELAYED and place is not None and place > now_ns:
        queues.make_delayed(job, place, since_ns)
    elif state == _RESERVED or (state == _DELAYED and place is not None):
        if state == _RESERVED:
            job.spare()  # no client is to blame
        queues.ledger.deferred[job.id] = job
        queues.make_ready(job, now_ns)
    else:
        raise ValueError(f"job {job.id} is {state!r}, and no job can be")


def _count_body(memory: Memory, body: bytes | int) -> int:
    """Count a body that is in memory, or that was left in the journal; returns its size."""
    if isinstance(body, bytes):
        size = len(body)
        memory.body_bytes += size + BODY_BYTES
        return size
    if not isinstance(body, int):
        raise TypeError("a job has no body")
    memory.crowded = True
    memory.unloaded += 1
    memory.unloaded_bytes += body
    return body


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
