"""Sees each step of the core by which policies are kept, or broken, and checks it.

It is told of reservations and of what ends them, and counts tries, tokens and jobs by itself.
"""

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from beanlite.core.engine import Engine
from beanlite.core.job import BURIED, DELAYED, OFFERED, READY, RESERVED, SECOND_NS, Job
from beanlite.core.offering import Offering
from beanlite.core.operator import Operator
from beanlite.core.queues import Queues
from beanlite.core.rulings import BY_MAX_TRIES, Rulings
from beanlite.core.scheduler import Scheduler
from beanlite.core.schedules import Schedule
from beanlite.core.timers import NEVER_NS
from beanlite.core.tube import FULL, OPENING, PAUSED, SLOWED, Tube
from beanlite.protocol.session import Session
from tests.simulator import hooks, world as worlds
from tests.simulator.ledger import BrokenPromiseError, Ledger, must
from tests.simulator.memory import Late
from tests.simulator.rules import ALL_TUBES, MEANING, Bucket, Known, text_of

if TYPE_CHECKING:
    from beanlite.host.clock import Clock


class Referee:
    """What must be true in a run with policies, across all lives of its server."""

    def __init__(self, seed: int, ledger: Ledger) -> None:
        self.chance = random.Random(f"policies {seed}")
        self.ledger = ledger
        self.known = Known()
        self.known_schedules = Known()
        self.schedules = self.chance.random() < 0.3
        self.unique = self.chance.choice(("waiting", "present"))
        self.keys = self.chance.sample(sorted(MEANING), self.chance.randint(1, 5))
        """What operators set in this run: a few keys meet more often than many."""
        self.twins = self.chance.random() < 0.4
        """Whether clients mostly put what others have put, and operators mind."""
        if self.twins:
            self.keys = ["unique", *self.keys[:2]]
        self.keys += [key for each, key in (("then", "max_tries"), ("expired", "ttl")) if each in self.keys]
        self.stopping = False
        self.late = Late(set(), set())
        self.asked_for = False
        """Whether the reservation under way is of a job that the client has named, or taken."""
        self._values: dict[tuple[bytes, str], str] = {}
        self._meanings: dict[tuple[bytes, str], Any] = {}
        """What has been looked up in these values: policies change far less often than they are asked for."""
        self._clock: Clock
        self._version = 0
        """How often policies have changed."""
        self._tries: dict[int, int] = {}
        self._ended: dict[int, int] = {}
        """The version that held when the last reservation of each job ended."""
        self._given_back = 0
        """The job that an operator is about to take from its client; 0: none."""
        self._buckets: dict[bytes, Bucket] = {}
        self._unread: set[int] = set()
        """The jobs that the rules may not know by their bodies, which were on the disk only."""

    def meaning(self, tube: bytes, key: str) -> Any:
        """Return what holds for a tube; None if nothing does."""
        if (tube, key) not in self._meanings:
            text = text_of(self._values, tube, key)
            self._meanings[tube, key] = None if text is None else MEANING[key][text]
        return self._meanings[tube, key]

    # -- begins

    def begins(self, engine: Engine, clock: "Clock", *, strict: bool) -> None:
        """Compare what a restart has found with what was acknowledged."""
        rows = {each: row.value for each, row in engine.policies.rows.items()}
        fault = self.known.fault(rows) if strict else None
        must(fault is None, f"policy {fault}")
        self.known.begin_anew(rows)
        schedules = {name: f"{each.when} {each.tube.decode()}" for name, each in engine.schedules.items()}
        fault = self.known_schedules.fault(schedules) if strict else None
        must(fault is None, f"schedule {fault}")
        self.known_schedules.begin_anew(schedules)
        self.stopping = False
        self.late = Late(set(), set())
        self._clock = clock
        self._ended.clear()
        self._unread.clear()
        self._tries = {job_id: job.tries for job_id, job in engine.jobs.newest.items()}
        self.has_rows(engine, None)

    def has_rows(self, engine: Engine, now_ns: int | None) -> None:
        """Enter the policies that hold from now on; without a time, as a restart has found them."""
        before = {name: bucket.rate for name, bucket in self._buckets.items()}
        self._values = {each: row.value for each, row in engine.policies.rows.items()}
        self._meanings.clear()
        self._version += 1
        if now_ns is not None:
            self._unread |= {job_id for job_id, job in engine.jobs.newest.items() if job.body is None}
        for name in ALL_TUBES:
            rate = self.meaning(name, "rate")
            if rate is None:
                self._buckets.pop(name, None)
            elif before.get(name) != rate:
                self._buckets[name] = Bucket(rate, self._at_ns(now_ns))

    def _at_ns(self, now_ns: int | None) -> int:
        """Return a time of the server as one that runs on across its lives."""
        return worlds.current().now_ns if now_ns is None else now_ns - self._clock.offset_ns

    # -- what the core does

    def offers(self, job: Job, now_ns: int) -> None:
        """Check that a job may be reserved now; when it is taken, it may be in any case."""
        name = job.tube.name
        bucket = self._buckets.get(name)
        permitted = bucket is None or bucket.permits(job.tube, self._at_ns(now_ns))
        most, max_tries = self.meaning(name, "max_reserved"), self.meaning(name, "max_tries")
        tries = self._tries.get(job.id, 0)
        must(most is None or job.tube.reserved < most, f"more than {most} jobs of {name!r} are reserved")
        must(permitted, f"job {job.id} was reserved, and {name!r} permits {bucket and bucket.rate}")
        dead = max_tries is not None and tries >= max_tries and self._ended.get(job.id) == self._version
        must(not dead, f"job {job.id} was reserved once more after {tries} tries")

    def reserves(self, job: Job, now_ns: int) -> None:
        if not self.asked_for:
            self.offers(job, now_ns)
        bucket = self._buckets.get(job.tube.name)
        if bucket is not None:
            bucket.permits(job.tube, self._at_ns(now_ns))  # time has passed
            bucket.take()
        self._tries[job.id] = self._tries.get(job.id, 0) + 1

    def leaves(self, job: Job) -> None:
        if job.state is RESERVED and job.id != self._given_back:
            self._ended[job.id] = self._version
        elif job.state is BURIED:
            self._tries[job.id] = 0
        self._given_back = 0

    def moves(self, job: Job) -> None:
        self._tries[job.id] = 0
        if job.body is None:
            self._unread.add(job.id)

    def forgives(self, job: Job) -> None:
        self._given_back = job.id  # by an operator, whatever the limit is by now
        self._tries[job.id] = max(0, self._tries[job.id] - 1)

    def is_over(self, job: Job, now_ns: int) -> bool:
        """Whether a job is too old, and may be ended at any moment."""
        ttl_ns = self.meaning(job.tube.name, "ttl")
        is_old = ttl_ns is not None and job.created_ns + ttl_ns <= now_ns and not job.past.kicks
        return is_old and job.state in {READY, DELAYED}

    def leaves_soon(self, job: Job, now_ns: int) -> bool:
        """Whether a job is too old, and is one that puts repeat no more once it has been ended."""
        name = job.tube.name
        if not self.is_over(job, now_ns):
            return False
        if self.meaning(name, "unique") == "waiting" or text_of(self._values, name, "expired") == "delete":
            return True
        to = self.meaning(name, "expired")
        there = to and self.meaning(to, "ttl")
        goes_on = to and self.meaning(to, "expired") not in {None, to}
        return to not in {None, name} and not (there is not None and goes_on and job.created_ns + there <= now_ns)

    def repeats(self, job: Job | None, now_ns: int) -> None:
        must(job is None or not self.leaves_soon(job, now_ns), f"a put repeats job {job and job.id}, which is too old")

    def puts(self, engine: Engine, tube: Tube, body: bytes, now_ns: int) -> None:
        there = [job for job in engine.jobs.newest.values() if job.tube is tube]
        most = self.meaning(tube.name, "max_jobs")
        must(most is None or len(there) < most, f"{tube.name!r} has more than {most} jobs")
        unique = self.meaning(tube.name, "unique")
        if unique is None:
            return
        for job in there:
            known = self.ledger.jobs.get(job.id)
            is_same = (job.body or (known and known.body)) == body
            # A schedule takes a job for gone a second before it is too old.
            if (
                is_same
                and job.id not in self._unread
                and (unique == "present" or job.state in {READY, DELAYED, OFFERED})
                and not self.leaves_soon(job, now_ns + SECOND_NS)
            ):
                raise BrokenPromiseError(f"job {job.id} of {tube.name!r} was put once more")

    def ends(self, job: Job, to: bytes | None, by: Any) -> None:
        """Note that a policy buries or moves a job."""
        name = job.tube.name
        if by is BY_MAX_TRIES:
            most, due = self.meaning(name, "max_tries"), self.meaning(name, "then")
            tries = self._tries.get(job.id, 0)
            must(not self.stopping, f"job {job.id} is dead because of a stop")
            must(most is not None and tries >= most, f"job {job.id} is dead after {tries} tries of {most}")
        else:
            due = self.meaning(name, "expired")
        must(to == due, f"{by.address} ends job {job.id} with {to!r}, due was {due!r}")
        self.ledger.by_policy(job.id, "buried" if to is None or to == name else "ready")

    def expires(self, job: Job, now_ns: int) -> None:
        name = job.tube.name
        must(self.is_over(job, now_ns), f"job {job.id} of {job.created_ns} expires at {now_ns}")
        if self.stopping:
            self.late.jobs.add(job.id)
        if text_of(self._values, name, "expired") == "delete":
            self.ledger.by_policy(job.id, "absent")

    def comes_back(self, job: Job, name: bytes, what: str, delay_s: int, now_ns: int) -> None:
        """Check that a job was delayed for as long as it had to be, or note that it expires."""
        if job.state is not DELAYED:
            return
        self.ledger.by_policy(job.id, "delayed", "ready")
        ttl_ns, retry = self.meaning(name, "ttl"), self.meaning(name, "retry")
        if ttl_ns is not None and job.created_ns + ttl_ns <= now_ns:
            return
        least = most = float(delay_s)
        if not delay_s:
            must(retry is not None, f"job {job.id} is delayed for nothing")
            times = self._tries[job.id] - (what == "client gone")
            must(times > 0, f"job {job.id} is delayed after its first client left")
            least = min(retry[0] * 2 ** (times - 1), retry[1])
            most = least * 1.1
        took_s = (job.due_ns - now_ns) / SECOND_NS
        must(least <= took_s <= most, f"job {job.id} is delayed for {took_s} s and not {least}")

    def ticks(self, schedule: Schedule, at: float, utc_s: float) -> None:
        """Check that a schedule was due, and has moved on."""
        must(at <= utc_s + 0.01, f"schedule {schedule.name} was carried out at {utc_s}, it was due at {at}")
        must(schedule.next_at > at, f"schedule {schedule.name} was carried out at {at} and is due again")
        if self.stopping and schedule.last_job is not None:
            self.late.schedules.add(schedule.name)
            self.late.jobs.add(schedule.last_job)

    # -- what holds at any moment

    def check(self, engine: Engine) -> None:
        """Check what each tube knows, and that none is shut without a reason."""
        now_ns = self._clock()
        tubes = engine.tubes.values()
        counts = engine.counts
        must(counts.ruled_tubes == sum(tube.rules is not None for tube in tubes), "tubes with rules")
        must(counts.fair_tubes == sum(tube.rules is not None and tube.rules.fair for tube in tubes), "fair tubes")
        kept = [tube.kept for tube in tubes if tube.kept is not None]
        must(counts.twins == sum(each.twin_count for each in kept), "the tubes' twins")
        must(counts.expiries == sum(each.expiry_count for each in kept), "the tubes' expiries")
        reserved = dict.fromkeys(tubes, 0)
        offering: set[Tube] = set()
        for job in engine.jobs.newest.values():
            reserved[job.tube] += job.shown_state is RESERVED
            if job.state is OFFERED:
                offering.add(job.tube)
            self._check_known(job)
            ttl_ns = self.meaning(job.tube.name, "ttl")
            if ttl_ns is not None and job.state in {READY, DELAYED} and not job.past.kicks:
                overdue_s = (now_ns - job.created_ns - ttl_ns) / SECOND_NS
                must(overdue_s < 1 or engine.timers.next_ns <= now_ns, f"job {job.id} has not expired: {overdue_s} s")
        for tube in tubes:
            must(tube.reserved == reserved[tube], f"{tube.name!r} has {reserved[tube]} reserved, not {tube.reserved}")
            if tube.waiting and tube.ready.keys and tube.timer_ns > now_ns:
                self._check_shut(tube, is_offering=tube in offering)

    def _check_shut(self, tube: Tube, *, is_offering: bool) -> None:
        most = self.meaning(tube.name, "max_reserved")
        reasons = PAUSED if tube.pause_until_ns else 0
        if most is not None and tube.reserved >= most:
            reasons |= FULL
        if tube.name in self._buckets and (tube.timer_ns < NEVER_NS or is_offering):
            reasons |= SLOWED
        must(tube.shut & (reasons | OPENING), f"{tube.name!r} has jobs and clients that wait")

    def _check_known(self, job: Job) -> None:
        kept, unique = job.tube.kept, self.meaning(job.tube.name, "unique")
        if unique is not None and job.body is not None and job.id not in self._unread:
            must(kept is not None and kept.has_twin(job.id), f"{job.tube.name!r} does not know the body of {job.id}")


# -- how it sees that


def _seen(real: Callable[..., Any], see: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that calls ``see`` with the referee, what the real method does, and its arguments."""

    def seen(self, *args, **more):
        world = worlds.current()
        if world.gone or world.broken is not None:
            return real(self, *args, **more)
        return see(world.referee, lambda: real(self, *args, **more), self, *args)

    return seen


def _heed(check: Callable[..., None], *args) -> None:
    """Check something; if it is wrong, the server does not get the exception, but is killed."""
    world = worlds.current()
    try:
        check(*args)
    except BrokenPromiseError as broken:
        world.broken = world.broken or broken
        world.crash()


def _before(name: str, select: Callable[..., tuple]) -> Callable[..., Any]:
    def see(referee, act, *args):
        _heed(getattr(referee, name), *select(*args))
        return act()

    return see


def _after(name: str, select: Callable[..., tuple]) -> Callable[..., Any]:
    def see(referee, act, *args):
        done = act()
        _heed(getattr(referee, name), *select(*args))
        return done

    return see


def _reserve_by_id(referee, act, *_args):
    referee.asked_for = True
    try:
        return act()
    finally:
        referee.asked_for = False


def _come_back(referee, act, _rulings, job, _rules, what, delay_s, now_ns, _event):
    name = job.tube.name
    done = act()
    _heed(referee.comes_back, job, name, what, delay_s, now_ns)
    return done


def _twin(referee, act, _rulings, _tube, _body, _late_bodies, now_ns):
    found = act()
    _heed(referee.repeats, found[0], now_ns)
    return found


def _carry_out(referee, act, _scheduler, schedule, utc_s, _now_ns):
    at = schedule.next_at
    has_moved_on = act()
    if has_moved_on:
        _heed(referee.ticks, schedule, at, utc_s)
    return has_moved_on


def _begin_stop(referee, act, _engine):
    referee.stopping = True
    return act()


_SEEN = [
    (kind, name, _seen(hooks.real(kind, name), see))
    for kind, name, see in (
        (Queues, "make_reserved", _before("reserves", lambda _, job, _client, now_ns: (job, now_ns))),
        (Queues, "leave_state", _before("leaves", lambda _, job, *_args: (job,))),
        (Queues, "make_offered", _before("offers", lambda _, job, _client, now_ns: (job, now_ns))),
        (Engine, "reserve_job", _reserve_by_id),
        (Offering, "take", _reserve_by_id),
        (Engine, "put", _before("puts", lambda engine, client, *args: (engine, client.use, args[3], args[4]))),
        (Engine, "set_policies", _after("has_rows", lambda engine, *args: (engine, args[2]))),
        (Engine, "begin_stop", _begin_stop),
        (Scheduler, "_carry_out", _carry_out),
        (Operator, "release", _before("forgives", lambda _, job, *_args: (job,))),
        (Operator, "move", _before("moves", lambda _, job, *_args: (job,))),
        (Rulings, "come_back", _come_back),
        (Rulings, "twin", _twin),
        (Rulings, "_end", _before("ends", lambda _, job, to, by, *_args: (job, to, by))),
        (Rulings, "_expire", _before("expires", lambda _, job, _rules, now_ns: (job, now_ns))),
        (Rulings, "_move", _before("moves", lambda _, job, *_args: (job,))),
    )
]


METHODS = [(Session, "job_reply"), *((kind, name) for kind, name, _ in _SEEN)]
"""All that the simulator replaces: ``fit.py`` does the first one."""


def attend(*, present: bool) -> None:
    """Have the referee of the current world see what the core does, if there is one."""
    for kind, name, seen in _SEEN:
        hooks.replace(kind, name, seen if present else None)
