"""What is known about the server, a tube, a job or a client at one instant, as records that callers may keep.

How they are presented is up to the caller.
"""

from typing import Final, NamedTuple

from beanlite.core.engine import Engine
from beanlite.core.heap import KeyHeap
from beanlite.core.job import DELAYED, ID_MASK, RESERVED, SECOND_NS, Job
from beanlite.core.tube import FULL, PAUSED, SLOWED, Client, Tube, claim_in, without_claim

# How many of a client's reserved jobs are searched for the one that it has held longest.
HOLDS_MAX: Final = 1000
# Why no job is reserved from a tube, in words; that of a policy is its key.
_SHUT: Final = ((PAUSED, "paused"), (FULL, "max_reserved"), (SLOWED, "rate"))


class ServerSnapshot(NamedTuple):
    """All queues together, and the clients."""

    urgent: int  # ready jobs with a small pri
    ready: int
    reserved: int
    delayed: int
    buried: int
    timeouts: int  # reservations that have timed out since the start
    total_jobs: int  # put since the start
    tubes: int
    clients: int
    producers: int  # clients that have put
    workers: int  # clients that have reserved
    waiting: int  # clients that wait in a reserve
    total_clients: int
    draining: bool  # puts are refused because an operator asked for that
    disk_full: bool  # puts are refused because the disk is full
    memory_max: int  # bytes that may be used
    memory_used: int  # bytes in use
    memory_jobs: int  # bytes used by jobs without their bodies
    memory_bodies: int  # bytes used by bodies
    memory_buffers: int  # bytes used by incomplete commands, and by replies that are held or not read yet
    unloaded: int  # jobs whose body is in the journal only
    unloaded_bytes: int
    fetched: int  # bodies read back since the start
    puts_refused: int  # since the start, for lack of memory


class TubeSnapshot(NamedTuple):
    """One tube."""

    name: str
    urgent: int
    ready: int
    reserved: int
    delayed: int
    buried: int
    total_jobs: int  # put since the tube was made
    using: int  # clients that put into it
    watching: int  # clients that reserve from it
    waiting: int  # clients that wait for a job from it
    deletes: int
    pauses: int
    pause_s: int  # 0: not paused
    pause_left_s: int
    shut: list[str]  # why no job is reserved from it: it is paused, or what policies keep ready jobs waiting
    dead: (
        int  # jobs that came back after too many tries, since the tube was made or the server started, as what follows
    )
    expired: int  # jobs that became too old
    refused: int  # puts that would have been too many jobs
    duplicates: int  # puts whose job was there already
    releases: int  # jobs that were released
    timeouts: int  # reservations that timed out
    buries: int  # jobs that were buried
    client_gone: int  # reservations that ended because their client left
    delay_over: int  # delayed jobs that became ready by themselves


class JobSnapshot(NamedTuple):
    """One job, as clients see it."""

    id: int
    tube: str
    state: str
    pri: int
    age_s: int
    delay_s: int
    ttr_s: int
    left_s: int  # until the delay or the ttr ends; 0 unless the job is delayed or reserved
    reserves: int
    timeouts: int
    releases: int
    buries: int
    kicks: int


class ClientSnapshot(NamedTuple):
    """One client."""

    number: int  # of its connection
    address: str
    name: str | None  # what it calls itself; None if it has not said
    uses: str
    watches: list[str]
    waits_s: int | None  # None: it isn't waiting
    holds: int  # jobs that it has reserved
    oldest_hold_s: int | None  # None: it has none
    overdue: bool  # it has had a job for longer than the ttr, which it has touched
    producer: bool
    worker: bool


def server_snapshot(engine: Engine) -> ServerSnapshot:
    """Return a snapshot of all queues together, and of the clients."""
    counts, memory = engine.counts, engine.memory
    return ServerSnapshot(
        urgent=counts.urgent,
        ready=engine.ready,
        reserved=counts.reserved,
        delayed=counts.delayed,
        buried=counts.buried,
        timeouts=counts.timeouts,
        total_jobs=counts.total_jobs,
        tubes=len(engine.tubes),
        clients=counts.clients,
        producers=counts.producers,
        workers=counts.workers,
        waiting=counts.waiting,
        total_clients=counts.total_clients,
        draining=engine.admission.draining,
        disk_full=engine.admission.disk_full,
        memory_max=memory.max_bytes,
        memory_used=memory.used_bytes,
        memory_jobs=memory.job_bytes,
        memory_bodies=memory.shown_body_bytes,
        memory_buffers=memory.client_buffer_bytes,
        unloaded=memory.unloaded,
        unloaded_bytes=memory.unloaded_bytes,
        fetched=memory.fetched,
        puts_refused=memory.refused,
    )


def tube_snapshot(tube: Tube, now_ns: int) -> TubeSnapshot:
    """Return a snapshot of a tube."""
    dead, expired, refused, duplicates = policy_counts(tube)
    tallies = [tally for tally in (tube.taken, tube.tally) if tally is not None]
    return TubeSnapshot(
        name=tube.name.decode(),
        urgent=tube.urgent,
        ready=len(tube.ready),
        reserved=tube.reserved,
        delayed=len(tube.delayed),
        buried=len(tube.buried),
        total_jobs=tube.total_jobs,
        using=tube.using,
        watching=tube.watching,
        waiting=len(tube.waiting),
        deletes=tube.cmd_delete,
        pauses=tube.cmd_pause,
        pause_s=tube.pause_s,
        pause_left_s=max(0, tube.pause_until_ns - now_ns) // SECOND_NS,
        shut=shut_words(tube),
        dead=dead,
        expired=expired,
        refused=refused,
        duplicates=duplicates,
        releases=sum([tally.released for tally in tallies]),
        timeouts=sum([tally.timed_out for tally in tallies]),
        buries=sum([tally.buried for tally in tallies]),
        client_gone=sum([tally.client_gone for tally in tallies]),
        delay_over=sum([tally.delay_over for tally in tallies]),
    )


def policy_counts(tube: Tube) -> tuple[int, int, int, int]:
    """Return how many jobs were dead or expired, and how many puts were refused or duplicates, as a snapshot has it."""
    dead = expired = refused = duplicates = 0
    for tally in (tube.taken, tube.tally):
        if tally is not None:
            dead += tally.dead
            expired += tally.expired
            refused += tally.refused
            duplicates += tally.duplicates
    return dead, expired, refused, duplicates


def shut_words(tube: Tube) -> list[str]:
    """Return why no job is reserved from a tube: it is paused, or what policies keep ready jobs waiting."""
    if not tube.shut:
        return []
    return [word for bit, word in _SHUT if tube.shut & bit and (bit == PAUSED or len(tube.ready))]


def job_snapshot(job: Job, now_ns: int) -> JobSnapshot:
    """Return a snapshot of a job. Its times are whole seconds, rounded down."""
    state = job.shown_state
    timed = state is DELAYED or state is RESERVED
    past = job.past
    return JobSnapshot(
        id=job.id,
        tube=job.tube.name.decode(),
        state=state.value,
        pri=job.pri,
        age_s=(now_ns - job.created_ns) // SECOND_NS,
        delay_s=job.delay_s,
        ttr_s=job.ttr_s,
        left_s=(job.due_ns - now_ns) // SECOND_NS if timed else 0,
        reserves=job.reserves,
        timeouts=past.timeouts,
        releases=past.releases,
        buries=past.buries,
        kicks=past.kicks,
    )


def first_s(engine: Engine, queue: KeyHeap, now_ns: int) -> int | None:
    """Return for how long the first job of a queue has been in its state; None if the queue is empty."""
    return (now_ns - engine.jobs[queue.keys[0] & ID_MASK].since_ns) // SECOND_NS if queue.keys else None


def client_snapshot(engine: Engine, client: Client, now_ns: int) -> ClientSnapshot:
    """Return a snapshot of a client. Only HOLDS_MAX of its jobs are searched for the one that it has held longest."""
    jobs = [engine.jobs.find(key & ID_MASK) for key in client.deadlines.keys[:HOLDS_MAX]]
    held = [job for job in jobs if job is not None and job.holder is client]
    since_ns = [job.since_ns for job in held]
    overdue = [job for job in held if now_ns - job.since_ns > (job.ttr_s + 1) * SECOND_NS]  # a tick may be late
    return ClientSnapshot(
        number=client.peer.number,
        address=without_claim(client.peer.address),
        name=claim_in(client.peer.address),
        uses=client.use.name.decode(),
        watches=[tube.name.decode() for tube in client.watched],
        waits_s=(now_ns - client.waits_since_ns) // SECOND_NS if client.waiting else None,
        holds=len(client.deadlines),
        oldest_hold_s=(now_ns - min(since_ns)) // SECOND_NS if since_ns else None,
        overdue=bool(overdue),
        producer=client.producer,
        worker=client.worker,
    )
