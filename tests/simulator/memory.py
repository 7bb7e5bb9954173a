"""The state that a server has in memory: whether it is consistent, and what a restart must recover of it."""

from collections.abc import Iterable
from typing import NamedTuple

from beanlite.core.engine import Engine
from beanlite.core.job import GONE, ID_BITS, NO_PAST, OFFERED, READY, RESERVED, Job
from beanlite.core.kept import EXPIRY_BYTES, TWIN_BYTES
from beanlite.core.memory import BODY_BYTES, JOB_BYTES, NOTE_BYTES, PAST_BYTES
from beanlite.core.queues import URGENT_PRI
from tests.simulator.ledger import BrokenPromiseError, must

NEAR_NS = 2_000  # times are stored as floats


class Seen(NamedTuple):
    """A job at some moment."""

    tube: bytes
    state: str
    pri: int
    delay_s: int
    ttr_s: int
    created_ns: int
    size: int
    place: int
    """The key, but for the id, that orders its queue: the pri, a time, or the number of the burial."""
    reserves: int
    timeouts: int
    told: tuple[int, int, int]
    """The counters of acknowledged changes: releases, buries, kicks."""
    forgiven: int
    why: str | None
    note: bytes


class Picture(NamedTuple):
    """Everything that a journal has to keep, at some moment."""

    jobs: dict[int, Seen]
    pauses: dict[bytes, tuple[int, int]]
    settings: dict
    """The policies by pattern and key, and the schedules by name."""
    earlier: dict[int, Seen | None]
    """Jobs that policies may have changed since they were written, as they were then; None: they were not there."""


class Late(NamedTuple):
    """What time has brought since a server began to stop."""

    jobs: set[int]
    """Jobs that have become too old, and those that schedules have put."""
    schedules: set[str]


def all_jobs(engine: Engine) -> dict[int, Job]:
    return engine.jobs.newest


def take(engine: Engine, last: Picture | None = None, written: Iterable[Job] = ()) -> Picture:
    """Return the picture of this moment, at which a batch has taken the jobs ``written``.

    ``last`` is the picture before, in a run with policies.
    """
    jobs = _all_seen(engine)
    pauses = {tube.name: (tube.pause_s, tube.pause_until_ns) for tube in engine.tubes.values() if tube.pause_until_ns}
    earlier: dict[int, Seen | None] = {}
    if last is not None:
        # One that is written with this batch may have a deferred change as well: it is written as it is now.
        for job_id in engine.ledger.deferred.keys() - {job.id for job in written}:
            was = last.earlier.get(job_id) or last.jobs.get(job_id)
            if was is not None and job_id in jobs:
                earlier[job_id] = was
    schedules = {
        name: (each.when, each.zone, each.tube, each.body, each.next_at, each.last_at, each.last_job)
        for name, each in engine.schedules.items()
    }
    return Picture(jobs, pauses, {**engine.policies.rows, **schedules}, earlier)


def take_stopped(engine: Engine, last: Picture, late: Late) -> list[Picture]:
    """Return the pictures of which an orderly stop leaves one; ``last`` is that of its last batch.

    Time goes on while that is stored: a job may become too old, or that of a schedule may be put. Nobody is told of it,
    and the next start does it.
    """
    was = {job_id: last.earlier.get(job_id) or last.jobs.get(job_id) for job_id in late.jobs}
    picture = take(engine)._replace(earlier=was)
    schedules = {name: last.settings[name] for name in late.schedules}
    return [picture, picture._replace(settings=picture.settings | schedules)] if schedules else [picture]


def _all_seen(engine: Engine) -> dict[int, Seen]:
    """Return all jobs as the journal knows them: an offered one is ready. Most of a picture's time goes into this."""
    jobs: dict[int, Seen] = {}
    new, text = tuple.__new__, engine.notes.text if len(engine.notes._texts) else _no_text
    for job_id, job in all_jobs(engine).items():
        state, past = job.state, job.past
        if state is OFFERED:
            state, place = READY, job.pri
        else:
            place = job.key >> ID_BITS
        jobs[job_id] = new(Seen, (
            job.tube.name, state._value_, job.pri, job.delay_s, job.ttr_s, job.created_ns, job.size, place,
            job.reserves, past.timeouts, (past.releases, past.buries, past.kicks), past.forgiven, past.why, text(job),
        ))  # fmt: skip
    return jobs


def _no_text(_job: Job) -> bytes:
    return b""


def difference(before: Picture, after: Picture, now_ns: int, latest_ns: int, *, orderly: bool) -> str | None:
    """Return why a restart at ``now_ns`` can't have turned the first picture into the second; None if it can.

    ``latest_ns`` is the latest time, by the clock, at which a start was tried since.
    """
    others = (before.jobs.keys() ^ after.jobs.keys()) - before.earlier.keys()
    if others:
        return f"lost {sorted(others & before.jobs.keys())}, new {sorted(others & after.jobs.keys())}"
    for job_id in before.jobs.keys() | after.jobs.keys():
        was, found = before.jobs.get(job_id), after.jobs.get(job_id)
        ways = [was, before.earlier[job_id]] if job_id in before.earlier else [was]
        if not any(
            each is found if each is None or found is None
            else _may_become(each, found, now_ns, latest_ns, orderly=orderly)
            for each in ways
        ):  # fmt: skip
            return f"job {job_id} was {ways} and is {found}"
    if before.settings != after.settings:
        return f"policies and schedules were {before.settings} and are {after.settings}"
    for name, (pause_s, until_ns) in before.pauses.items():
        if until_ns > latest_ns + NEAR_NS:
            now_s, now_until_ns = after.pauses.get(name, (0, 0))
            if now_s != pause_s or abs(now_until_ns - until_ns) > NEAR_NS:
                return f"the pause of {name!r} was {pause_s, until_ns} and is {after.pauses.get(name)}"
    for name, (_, until_ns) in after.pauses.items():
        if until_ns > now_ns + NEAR_NS and name not in before.pauses:
            return f"{name!r} is paused"
    return None


def _may_become(was: Seen, found: Seen, now_ns: int, latest_ns: int, *, orderly: bool) -> bool:
    stays = (was.tube, was.pri, was.delay_s, was.ttr_s, was.size, was.told, was.note)
    is_same = stays == (found.tube, found.pri, found.delay_s, found.ttr_s, found.size, found.told, found.note)
    grows = found.reserves > was.reserves or found.timeouts > was.timeouts
    if not is_same or grows or abs(was.created_ns - found.created_ns) > NEAR_NS:
        return False
    if not _may_forgive(was, found, orderly=orderly):
        return False
    if (found.reserves, found.timeouts) != (was.reserves, was.timeouts):
        # That it was reserved may be lost; and it can have been reserved from any state.
        return not orderly and was.state in {"ready", "reserved"}
    if was.state == "buried":
        return found.state == "buried" and found.place == was.place
    if was.state == "delayed":
        is_over, may_be_over = was.place <= now_ns - NEAR_NS, was.place <= latest_ns + NEAR_NS
        waits_on = found.state == "delayed" and abs(found.place - was.place) <= NEAR_NS
        return (found.state == "ready" and may_be_over) or (waits_on and not is_over)
    # The end of a delay need not be stored: if the clock is set back, the delay applies again.
    return found.state == "ready" or (not orderly and found.state == "delayed" and found.place > now_ns - NEAR_NS)


def _may_forgive(was: Seen, found: Seen, *, orderly: bool) -> bool:
    """Whether a restart may have turned one into the other: it forgives tries, and never counts one."""
    if orderly and found.forgiven != was.forgiven:
        return False
    if found.state == "buried":
        return was.state != "buried" or found.why == was.why
    return found.reserves - found.forgiven <= max(0, was.reserves - was.forgiven - (was.state == "reserved"))


def check(engine: Engine) -> None:
    """Raise BrokenPromiseError unless each job is in exactly one place, and all counters match a recount."""
    counted = dict.fromkeys(("ready", "delayed", "reserved", "buried"), 0)
    urgent = 0
    tubes = engine.tubes
    places: dict[bytes, dict[str, set[int]]] = {}
    unloaded = unloaded_bytes = 0
    for job_id, job in all_jobs(engine).items():
        state = job.shown_state
        if (  # this is the most frequent check, so the message is made only when it is needed
            job.id != job_id
            or state is GONE
            or tubes.get(job.tube.name) is not job.tube
            or (job.holder is None) is (state is RESERVED)
            or (state is READY and job.key != job.pri << ID_BITS | job_id)
        ):
            raise BrokenPromiseError(f"job {job_id} is {state}, held by {job.holder}, and can't be where it is")
        word = state._value_
        counted[word] += 1
        if state is not RESERVED:
            places.setdefault(job.tube.name, {}).setdefault(word, set()).add(job.key)
        if state is READY:
            urgent += job.pri < URGENT_PRI
        if job.body is None:
            unloaded += 1
            unloaded_bytes += job.size
    for name, tube in engine.tubes.items():
        here = places.get(name, {})
        for word, heap in (("ready", tube.ready), ("delayed", tube.delayed), ("buried", tube.buried)):
            keys = set(heap.keys) - heap._gone
            must(keys == here.get(word, set()), f"the {word} queue of {name!r} has {len(keys)} others")
            must(len(heap) == len(keys), f"the {word} queue of {name!r} has a job twice")
        must(tube.urgent == sum(key >> ID_BITS < URGENT_PRI for key in here.get("ready", ())), f"urgent of {name!r}")
        must(tube.shut or not (tube.waiting and tube.ready.keys), f"{name!r} has jobs and clients that wait")
    counts = engine.counts
    must(counts.urgent == urgent, f"urgent is {counts.urgent} and should be {urgent}")
    for kind in ("delayed", "reserved", "buried"):
        has = getattr(counts, kind)
        must(has == counted[kind], f"{kind} is {has} and should be {counted[kind]}")
    must(sum(tube.reserved for tube in engine.tubes.values()) == counted["reserved"], "the tubes' reserved")
    with_past = sum(job.reserves > 0 or job.past is not NO_PAST for job in all_jobs(engine).values())
    must(counts.with_past == with_past, f"{counts.with_past} jobs have a past, and not {with_past}")
    memory = engine.memory
    must((memory.unloaded, memory.unloaded_bytes) == (unloaded, unloaded_bytes), "unloaded bodies are counted wrongly")
    _check_memory(engine)


def _check_memory(engine: Engine) -> None:
    memory, ledger = engine.memory, engine.ledger
    # Connections are not refused for lack of memory. A job that is not stored yet is counted on top, with all that it
    # takes, because only the batch that stores it unloads other bodies. So are bodies fetched ahead, until that batch,
    # and the past of a job, and what policies need of it, since nobody is refused a reserve or a policy.
    unsaved = [job.size + BODY_BYTES for job_id, job in all_jobs(engine).items() if job_id > ledger.stored_id]
    counts = engine.counts
    pasts = counts.with_past * PAST_BYTES + counts.twins * TWIN_BYTES + counts.expiries * EXPIRY_BYTES
    on_top = pasts + len(unsaved) * JOB_BYTES + (sum(unsaved) + engine.bodies.ahead_bytes) * 5 // 4
    most = memory.max_bytes + memory.other_bytes + on_top
    must(
        memory.used_bytes <= most,
        f"{memory.used_bytes} bytes are in use, and there are {memory.max_bytes}",
    )
    if not ledger.changed and not ledger.notes:
        notes = [note for job in all_jobs(engine).values() if (note := engine.notes.text(job))]
        note_bytes = sum(map(len, notes)) + len(notes) * NOTE_BYTES
        must(memory.note_bytes == note_bytes, f"notes take {note_bytes} and count as {memory.note_bytes}")
    if engine.last_id == ledger.taken_id and not engine.admission.used_bytes:
        body_bytes = sum(job.size + BODY_BYTES for job in all_jobs(engine).values() if job.body is not None)
        must(memory.body_bytes == body_bytes, f"bodies take {body_bytes} and count as {memory.body_bytes}")
