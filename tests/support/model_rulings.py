"""What policies do to the naive model's jobs and tubes, and what operators do to its jobs."""

from collections import Counter
from typing import Any

from beanlite.core.job import Job as EngineJob
from beanlite.core.rules import Rules
from beanlite.core.rulings import _retry_ns
from beanlite.core.tube import Tube as EngineTube
from tests.support.model_policies import SECOND_NS, destination

# The states of a job to which operators can make a change.
CHANGEABLE = {
    "kick": "buried delayed",
    "bury": "ready delayed reserved",
    "release": "reserved",
    "delay": "ready delayed",
} | dict.fromkeys(("delete", "move", "copy", "reprioritise"), "ready delayed reserved buried")


Rest: Any = object  # what is in ``Queues``, as far as mypy knows


class Rulings(Rest):  # type: ignore[misc]
    """A part of ``Queues``."""

    def _rules(self, tube):
        return self.policies.of(tube.name)

    def set_policies(self, pattern, values):
        """Set these values of a pattern; None unsets."""
        before = [(tube, self._rules(tube)) for tube in self.tubes]
        self.policies.change(pattern, values)
        for tube, rules in before:
            self._take_on(tube, rules)

    def _take_on(self, tube, before):
        """Have a tube obey other rules than before."""
        rules = self._rules(tube)
        if rules == before:
            return
        rate, old_rate = rules.get("rate"), before.get("rate")
        if rate and (old_rate is None or rate.job_ns != old_rate.job_ns):
            tube.debt_ns, tube.debt_at_ns, tube.shut = rate.most_ns, self.now_ns, True
        if not rules:
            tube.turn = 0
        unique, old_unique = rules.get("unique"), before.get("unique")
        if unique and unique != old_unique:
            hidden = {None: (), "waiting": ("reserved", "buried")}.get(old_unique)
            for job in [] if hidden is None else sorted(self._in(tube, *hidden), key=lambda job: job.id):
                self._know(job)
        if rules.get("ttl") != before.get("ttl"):
            tube.look_ns = 0
            for job in self._in(tube):
                job.aged = False
        tube.shut = tube.shut or self._is_full(tube)
        if tube.shut:
            tube.look_ns = 0

    # -- what a job is in its tube

    def _in(self, tube, *states):
        return [job for job in self.jobs if job.tube is tube and (not states or job.state in states)]

    def _know(self, job):
        """Have a job's tube know it as the last one of those with the same body."""
        self.last_known += 1
        job.known = self.last_known

    def _twin(self, tube, body):
        """Return the job that a put of this body would repeat, if the tube's rules forbid that."""
        states = {"waiting": ["ready", "delayed", "offered"], "present": []}.get(self._rules(tube).get("unique"))
        found = [] if states is None else [job for job in self._in(tube, *states) if job.body == body]
        return max((job for job in found if not self._leaves(job)), key=lambda job: job.known, default=None)

    def _leaves(self, job):
        """Whether a job is too old, and is none that a put repeats once it has been ended."""
        if job.state not in {"ready", "delayed"} or not self._is_too_old(job):
            return False
        rules = self._rules(job.tube)
        goes_to = self._goes_to(job, rules.get("expired"))
        return rules["unique"] == "waiting" or rules.get("expired") == "delete" or goes_to not in {None, job.tube.name}

    def _has_room(self, name, jobs):
        most = self.policies.of(name).get("max_jobs")
        return most is None or sum(job.tube.name == name for job in self.jobs) + jobs <= most

    def _alike_max(self, name, jobs):
        """Return how many of so many jobs with the same body make new ones at most, if none is there yet."""
        unique = self.policies.of(name).get("unique")
        if unique not in {"waiting", "present"}:
            return jobs
        tube = next((tube for tube in self.tubes if tube.name == name and not tube.shut), None)
        if tube is None or unique == "present":
            return 1
        most = self._rules(tube).get("max_reserved")
        free = len(self.waiters) if most is None else most - len(self._in(tube, "reserved", "offered"))
        return 1 + min(free, sum(tube in client.watched for client in self.waiters))

    # -- what is handed out

    def _is_full(self, tube):
        most = self._rules(tube).get("max_reserved")
        return most is not None and len(self._in(tube, "reserved", "offered")) >= most

    def _opens_ns(self, tube):
        """Return from when on a tube that isn't paused may hand out a job; None if that takes the end of another."""
        if self._is_full(tube):
            return None
        rate = self._rules(tube).get("rate")
        if not rate:
            return 0
        room_ns = rate.most_ns - rate.job_ns * (1 + len(self._in(tube, "offered")))
        return tube.debt_at_ns + tube.debt_ns - room_ns if room_ns >= 0 else None

    def _free(self, tube):
        """Note that a job of the tube is no longer reserved, or not in this tube."""
        if tube.shut and tube.look_ns is None:
            tube.look_ns = self.now_ns

    def _hold_back(self, tube):
        """Count a reservation, and shut the tube if it was the last one for now."""
        rules = self._rules(tube)
        if self._is_fair:
            self.turns += 1
            if rules.get("fair"):
                tube.turn = self.turns
            else:
                self.other_turn = self.turns
        if rate := rules.get("rate"):
            debt_ns = max(0, tube.debt_ns - (self.now_ns - tube.debt_at_ns)) + rate.job_ns
            tube.debt_ns = min(debt_ns, max(rate.most_ns, 60 * SECOND_NS))
            tube.debt_at_ns = self.now_ns
        tube.shut = tube.shut or self._may_not_open(tube)

    def _may_not_open(self, tube):
        opens_ns = self._opens_ns(tube)
        return tube.pause_until_ns > 0 or opens_ns is None or opens_ns > self.now_ns

    def _open(self, tube):
        """Open a tube if it may be, and serve clients that wait."""
        tube.shut = self._may_not_open(tube)
        self._serve()

    @property
    def _is_fair(self):
        return any(self._rules(tube).get("fair") for tube in self.tubes)

    def _choose(self, client, *, looks_at_all):
        """Return the job that a reserve gets, if any; clients that wait at a tube that opens get theirs first."""
        is_fair = self._is_fair
        best: Any = None
        best_other: Any = None
        for tube in client.watched:
            ready = self._ready([tube])
            if not ready or (best and not is_fair and not looks_at_all and best < (ready[0].pri, ready[0].id)):
                continue
            if tube.shut and not tube.pause_until_ns:
                self._open(tube)
            ready = self._ready([tube])
            if tube.shut or not ready:
                continue
            job, reserved = ready[0], len(self._in(tube, "reserved", "offered"))
            if not is_fair:
                best = min(best or (job.pri, job.id), (job.pri, job.id))
            elif self._rules(tube).get("fair"):
                place = (job.pri, reserved, tube.turn, job.id)
                best = min(best or place, place)
            elif best_other is None or (job.pri, job.id) < (best_other[0], best_other[-1]):
                best_other = (job.pri, reserved, job.id)
        if best_other:  # clients that waited may have had others meanwhile
            place = (*best_other[:2], self.other_turn, best_other[-1])
            best = min(best or place, place)
        return best and next(job for job in self.jobs if job.id == best[-1])

    # -- what comes back

    def _come_back(self, job, delay_s=0, *, gone=False):
        """Place a job that a client has no longer; ``gone``: neither its ttr is over nor was it released."""
        rules = self._rules(job.tube)
        if job.tries >= rules.get("max_tries", 1 << 40):
            self._end(job, destination(rules.get("then")), "tries")
            return
        if self._is_too_old(job):
            job.aged = False
            self._delay(job, SECOND_NS)  # nobody gets it until the next look ends it
            return
        delay_ns = delay_s * SECOND_NS
        if "retry" in rules and not delay_s:
            first_ns, most_ns = rules["retry"]
            delay_ns = retry_ns(job, first_ns, most_ns, job.tries - gone)
            job.delay_s = delay_ns // SECOND_NS if delay_ns else job.delay_s
        self._delay(job, delay_ns)

    def _delay(self, job, delay_ns):
        if delay_ns:
            self._enter(job, "delayed")
            job.ends_ns = self.now_ns + delay_ns
        else:
            self._make_ready(job)

    def _is_too_old(self, job):
        ttl_ns = self._rules(job.tube).get("ttl")
        return ttl_ns is not None and not job.kicks and job.created_ns + ttl_ns <= self.now_ns

    def _expire(self, tube):
        """End the jobs of a tube that are too old; the age of those that stay is not looked at again."""
        ttl_ns = self._rules(tube).get("ttl")
        if ttl_ns is None:
            return
        due = [job for job in self._in(tube) if not job.aged and job.created_ns + ttl_ns <= self.now_ns]
        for job in sorted(due, key=lambda job: (job.created_ns, job.id)):
            job.aged = True
            if job.state in {"ready", "delayed"} and not job.kicks:
                self._expire_job(job, self._rules(tube).get("expired"))

    def _expire_job(self, job, expired):
        if expired == "delete":
            self._delete(job)
        else:
            self._end(job, self._goes_to(job, expired), "expired")

    def _goes_to(self, job, expired):
        """Return the tube to which a job that is too old moves, if it does."""
        to = destination(expired)
        there = self.policies.of(to) if to else {}
        is_too_old_there = "ttl" in there and job.created_ns + there["ttl"] <= self.now_ns
        moves_on = is_too_old_there and destination(there.get("expired")) not in {None, to}
        return None if moves_on else to  # it would move on at once, and perhaps for ever

    def _end(self, job, to, why):
        if to in {None, job.tube.name}:
            self._bury(job, why)
            return
        self._move(job, self._tube(to))
        self._make_ready(job)
        self._tidy()

    def _move(self, job, tube):
        self._free(job.tube)
        job.tube, job.tries, job.aged = tube, 0, False
        self._know(job)

    def _delete(self, job):
        self._enter(job, "deleted")
        self.jobs.remove(job)
        self.promised.add(job.id)
        job.tube.cmd_delete += 1

    # -- operators

    def put_jobs(self, client, puts):
        """Put a batch, all or none of it: pairs of a tube's name and a body. Return the ids, or why not."""
        if any(len(body) > self.max_job_size for _, body in puts):
            return b"JOB_TOO_BIG\r\n"
        if self.draining or self.full:
            return b"DRAINING\r\n" if self.draining else b"OUT_OF_MEMORY\r\n"
        there = {tube.name: tube for tube in self.tubes}
        new = Counter()
        for (name, body), times in Counter(puts).items():
            if name not in there or self._twin(there[name], body) is None:
                new[name] += min(times, self._alike_max(name, times))
        if not all(self._has_room(name, jobs) for name, jobs in new.items()):
            return b"OUT_OF_MEMORY\r\n"
        client.producer = True
        jobs = []
        for tube, body in [(self._tube(name), body) for name, body in puts]:
            jobs.append(self._twin(tube, body) or self._put(tube, 0, 0, 60, body))
        self._tidy()
        return [job.id for job in jobs]

    def change(self, do, job_id, to, pri, delay_s):
        """Change a job as operators do; return whether that could be done, or the reason why not."""
        job = next((job for job in self.jobs if job.id == job_id), None)
        state = "ready" if job and job.state == "offered" else job and job.state
        if job is None or state not in CHANGEABLE[do].split() or (do == "move" and job.tube.name == to):
            return False
        if do == "copy" and any(tube.name == to and self._twin(tube, job.body) for tube in self.tubes):
            return False
        if do in {"bury", "release", "reprioritise"}:
            job.pri = pri
        if do != "copy":
            self.promised.add(job.id)
        reason = getattr(self, "operators_" + do)(job, to=to, pri=pri, delay_s=delay_s)
        self._tidy()
        return reason or True

    def operators_kick(self, job, **_):
        self._kick(job)

    def operators_delete(self, job, **_):
        self._delete(job)

    def operators_bury(self, job, **_):
        self._bury(job, "operator")

    def operators_release(self, job, *, delay_s, **_):
        job.aged = False
        job.releases += 1
        job.tries = max(0, job.tries - 1)
        self._place(job, delay_s)

    def operators_delay(self, job, *, delay_s, **_):
        self._place(job, delay_s)

    def operators_reprioritise(self, _job, **_):
        pass

    def operators_move(self, job, *, to, **_):
        if job.state == "offered":
            since_ns = job.since_ns
            self._enter(job, "ready")
            job.since_ns = since_ns
        self._move(job, self._tube(to))
        if job.state == "reserved":
            self._hold_back(job.tube)
        self._serve()

    def operators_copy(self, job, *, to, pri, delay_s):
        if self.draining:
            return "DRAINING"
        if self.full or not self._has_room(to, 1):
            return "OUT_OF_MEMORY"
        self._put(self._tube(to), pri, delay_s, job.ttr_s, job.body)
        return None


def retry_ns(job, first_ns, most_ns, tries):
    """Return the delay after so many tries. Only what is added to scatter jobs is the engine's."""
    if tries <= 0:
        return 0
    delay_ns = first_ns
    for _ in range(tries - 1):
        delay_ns = min(most_ns, 2 * delay_ns)
    rules = Rules()
    rules.retry_s = rules.retry_most_s = delay_ns // SECOND_NS
    scattered_ns = _retry_ns(EngineJob(job.id, EngineTube(job.tube.name, 0), 0, 0, 0, 0, None, 0), rules, tries)
    assert delay_ns <= scattered_ns <= delay_ns + delay_ns // 10
    return scattered_ns
