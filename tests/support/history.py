"""Clients that keep books: what state each of their jobs may have after a crash, given the acknowledgements.

An ``Owner`` has a tube to itself, and so knows every job in it to the last counter; several clients use the ``Shared``
tube. All work as fast as they can until their connection ends.
"""

import itertools
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from tests.support.wire import Wire, put_bytes

SLACK_S = 1.0  # the time-left of a stats-job is in whole seconds
LONG_S = 1000
JOBS_MAX = 60
SIZES = (0, 0, 0, 100, 1100, 9000)
COMMANDS = {
    "ready": ("reserve-job", "reserve-job", "delete"),
    "delayed": ("reserve-job", "delete"),
    "buried": ("reserve-job", "kick-job", "delete"),
    "reserved": ("release", "release", "bury", "bury", "delete", "touch"),
}
ANSWERS = {
    "put": "INSERTED",
    "reserve-job": "RESERVED",
    "delete": "DELETED",
    "kick-job": "KICKED",
    "release": "RELEASED",
    "bury": "BURIED",
    "touch": "TOUCHED",
}


@dataclass(frozen=True)
class Facts:
    """The fields of a job that a crash must not change."""

    state: str
    pri: int
    delay_s: int = 0
    due: tuple[float, float] | None = None  # two moments (time.time) between which the delay ends
    reserves: int = 0
    releases: int = 0
    buries: int = 0
    kicks: int = 0
    burial: int = 0  # place in the order of burials

    def reserved(self) -> "Facts":
        return replace(self, state="reserved", due=None, reserves=self.reserves + 1)

    def kicked(self) -> "Facts":
        return replace(self, state="ready", due=None, kicks=self.kicks + 1)

    def agree(self, shown: dict[str, str], seen: tuple[float, float]) -> bool:
        """Return whether ``stats-job`` may show this after a crash, at a time between the two of ``seen``."""
        counters = (self.pri, self.delay_s, self.reserves, self.releases, self.buries, self.kicks, 0)
        names = ("pri", "delay", "reserves", "releases", "buries", "kicks", "timeouts")
        if counters != tuple(int(shown[name]) for name in names):
            return False
        if self.due is None:
            return shown["state"] == ("ready" if self.state == "reserved" else self.state)
        if shown["state"] == "ready":
            return self.due[0] - SLACK_S < seen[1]
        left_s = int(shown["time-left"])
        if shown["state"] != "delayed":
            return False
        return self.due[0] - SLACK_S <= seen[1] + left_s and seen[0] + left_s <= self.due[1] + SLACK_S


@dataclass
class Job:
    """A job: its facts now, and those that it may have after a crash (None: it is gone)."""

    id: int
    body: bytes
    now: Facts | None
    after_crash: list[Facts | None]
    told: list[str] = field(default_factory=list)

    def may_become(self, facts: Facts | None, line: str) -> None:
        """To be called before a command is sent: the server may carry it out, and the reply may be lost."""
        self.after_crash.append(facts)
        self.told.append(line)

    def is_now(self, facts: Facts | None, reply: str, *, for_good: bool) -> None:
        """To be called at the reply. ``for_good``: a crash must not undo the change."""
        self.now = facts
        self.told.append(reply)
        if for_good:
            self.after_crash = [facts]


@dataclass
class Step:
    """A command that has been sent for a job, or a put."""

    request: bytes
    word: str
    new: Facts | None
    job: Job | None = None
    body: bytes = b""
    sent: float = 0.0


class Owner:
    """The only client of its tube. ``on_reply`` is called after each reply."""

    def __init__(self, number: int, chance: random.Random, on_reply: Callable[[], None]) -> None:
        self.tube = f"owner-{number}"
        self.chance = chance
        self.on_reply = on_reply
        self.jobs: dict[int, Job] = {}
        self.gone: list[Job] = []
        self.unanswered: dict[bytes, Facts] = {}
        """The puts that were sent but not answered: the facts of the jobs, by body."""
        self.pauses = [0]
        """The pauses, in seconds, that the tube may have after a crash; the first is the present one."""
        self.given: list[int] = []
        self.burials = 0
        self.bodies = 0

    def work(self, wire: Wire) -> None:
        """Until the connection ends. AssertionError: a reply that can't be."""
        for line in (f"use {self.tube}", f"watch {self.tube}", "ignore default"):
            wire.ask(line)
        while True:
            action = self.chance.random()
            if action < 0.04:
                self._pause(wire)
            elif action < 0.12:
                self._kick(wire)
            elif action < 0.25:
                self._reserve(wire)
            else:
                self._pipeline(wire)

    def _reply(self, wire: Wire) -> str:
        reply = wire.reply()
        self.on_reply()
        return reply

    def _of_state(self, *states: str) -> list[Job]:
        return [job for job in self.jobs.values() if job.now and job.now.state in states]

    def _pipeline(self, wire: Wire) -> None:
        """Send some puts, and one command for each of some jobs, all in one packet."""
        puts = self.chance.randrange(4) if len(self.jobs) < JOBS_MAX else 0
        jobs = self.chance.sample(sorted(self.jobs), min(len(self.jobs), self.chance.randrange(1, 6)))
        steps = [self._put() for _ in range(puts)] + [self._command(self.jobs[job_id]) for job_id in jobs]
        wire.send(b"".join(step.request for step in steps))
        for step in steps:
            reply = self._reply(wire)
            assert reply.startswith(ANSWERS[step.word]), (reply, step)
            self._done(step, reply)

    def _put(self) -> Step:
        self.bodies += 1
        body = b"%b %d " % (self.tube.encode(), self.bodies) + b"x" * self.chance.choice(SIZES)
        pri, delay_s, sent = self.chance.randrange(5), self.chance.choice((0, 0, 0, 1, LONG_S)), time.time()
        facts = Facts("delayed" if delay_s else "ready", pri, delay_s, _due(delay_s, sent, sent + LONG_S))
        self.unanswered[body] = facts
        return Step(put_bytes(body, pri, delay_s), "put", facts, body=body, sent=sent)

    def _command(self, job: Job) -> Step:
        facts, sent = job.now, time.time()
        assert facts is not None
        new: Facts | None = facts
        pri, delay_s = self.chance.randrange(5), self.chance.choice((0, 0, 1, LONG_S))
        word = self.chance.choice(COMMANDS[facts.state])
        line = f"{word} {job.id}"
        if word == "reserve-job":
            new = facts.reserved()
        elif word == "delete":
            new = None
        elif word == "kick-job":
            new = facts.kicked()
        elif word == "release":
            line += f" {pri} {delay_s}"
            new = replace(facts, pri=pri, delay_s=delay_s, releases=facts.releases + 1)
            new = replace(new, state="delayed" if delay_s else "ready", due=_due(delay_s, sent, sent + LONG_S))
        elif word == "bury":
            self.burials += 1
            line += f" {pri}"
            new = replace(facts, state="buried", pri=pri, buries=facts.buries + 1, burial=self.burials)
        job.may_become(new, line)
        return Step(f"{line}\r\n".encode(), word, new, job, sent=sent)

    def _done(self, step: Step, reply: str) -> None:
        new, job = step.new, step.job
        if new is not None and new.due:
            new = replace(new, due=_due(new.delay_s, step.sent, time.time()))
        if job is None:
            assert new is not None
            job_id = int(reply.split()[1])
            del self.unanswered[step.body]
            self.given.append(job_id)
            self.jobs[job_id] = Job(job_id, step.body, new, [new])
            return
        job.is_now(new, reply, for_good=step.word not in {"reserve-job", "touch"})
        if new is None:
            self.gone.append(self.jobs.pop(job.id))

    def _reserve(self, wire: Wire) -> None:
        """Reserve a job, and check that it is the next one in the order of the queue."""
        candidates = [(job, job.now.reserved()) for job in self._of_state("ready", "delayed") if job.now]
        for job, facts in candidates:
            job.may_become(facts, "reserve-with-timeout 0")
        ready = [(job.now.pri, job.id) for job in self._of_state("ready") if job.now]
        reply = wire.ask("reserve-with-timeout 0")
        self.on_reply()
        for job, _ in candidates:
            job.after_crash.pop()
        if reply == "TIMED_OUT":
            assert self.pauses[0] or not ready
            return
        job, facts = next((job, facts) for job, facts in candidates if job.id == int(reply.split()[1]))
        assert job.now
        assert not self.pauses[0]
        assert wire.body == job.body
        assert all((job.now.pri, job.id) <= key for key in ready)
        assert job.now.due is None or job.now.due[0] <= time.time()
        job.after_crash.append(facts)
        job.is_now(facts, reply, for_good=False)

    def _kick(self, wire: Wire) -> None:
        """Kick some of the buried jobs, those buried first."""
        bound = self.chance.randrange(1, 4)
        first = sorted(self._of_state("buried"), key=lambda job: job.now.burial)[:bound]
        if not first:
            return
        for job in first:
            job.may_become(job.now.kicked(), f"kick {bound}")
        reply = wire.ask(f"kick {bound}")
        self.on_reply()
        assert reply == f"KICKED {len(first)}"
        for job in first:
            job.is_now(job.now.kicked(), reply, for_good=True)

    def _pause(self, wire: Wire) -> None:
        pause_s = 0 if self.pauses[0] else self.chance.randrange(LONG_S, 2 * LONG_S)
        self.pauses.append(pause_s)
        assert wire.ask(f"pause-tube {self.tube} {pause_s}") == "PAUSED"
        self.on_reply()
        self.pauses = [pause_s]

    def take_over(
        self, shown: dict[int, dict[str, str]], bodies: dict[int, bytes], pause_s: int, seen: tuple[float, float]
    ) -> None:
        """Compare with the tube in the restarted server, and go on from there.

        AssertionError: something acknowledged was lost, changed or has come back.
        """
        for job in self.gone:
            assert job.id not in shown, f"job {job.id} is back: {job.told}"
        for job in list(self.jobs.values()):
            if job.id not in shown:
                assert None in job.after_crash, f"job {job.id} is lost: {job.after_crash}, {job.told}"
                del self.jobs[job.id]
                continue
            assert bodies[job.id] == job.body
            fitting = [facts for facts in job.after_crash if facts and facts.agree(shown[job.id], seen)]
            assert fitting, f"job {job.id} is {shown[job.id]}, not one of {job.after_crash}: {job.told}"
            self._adopt(job, fitting[0], shown[job.id]["state"])
        for job_id in shown.keys() - self.jobs.keys():
            body = bodies[job_id]
            assert body in self.unanswered, f"job {job_id} was never put: {body[:50]!r}"
            facts = self.unanswered.pop(body)
            assert facts.agree(shown[job_id], seen), f"{shown[job_id]} was to be {facts}"
            self.given.append(job_id)
            self.jobs[job_id] = Job(job_id, body, facts, [facts])
            self._adopt(self.jobs[job_id], facts, shown[job_id]["state"])
        self.unanswered.clear()
        assert pause_s in self.pauses
        self.pauses = [pause_s]

    def _adopt(self, job: Job, facts: Facts, state: str) -> None:
        job.is_now(replace(facts, state=state, due=facts.due if state == "delayed" else None), "crash", for_good=True)

    def buried(self) -> list[int]:
        """Return the ids of the buried jobs, in the order of their burials."""
        return [job.id for job in sorted(self._of_state("buried"), key=lambda job: job.now.burial)]


def _due(delay_s: int, earliest: float, latest: float) -> tuple[float, float] | None:
    return (earliest + delay_s, latest + delay_s) if delay_s else None


class Shared:
    """A tube that several clients put into and delete from; they keep it at a few hundred jobs."""

    tube = "shared"

    def __init__(self, on_reply: Callable[[], None]) -> None:
        self.on_reply = on_reply
        self.numbers = itertools.count()
        self.sent: set[bytes] = set()
        self.inserted: dict[int, bytes] = {}
        self.delete_sent: set[int] = set()
        self.deleted: set[int] = set()

    def work(self, wire: Wire, chance: random.Random) -> None:
        """Until the connection ends. AssertionError: a reply that can't be."""
        for line in (f"use {self.tube}", f"watch {self.tube}", "ignore default"):
            wire.ask(line)
        while True:
            if len(self.inserted) - len(self.delete_sent) < chance.randrange(JOBS_MAX * 5):
                self._put(wire, chance)
            else:
                self._delete(wire)

    def _put(self, wire: Wire, chance: random.Random) -> None:
        """Put some jobs in one packet."""
        bodies = [b"%d " % next(self.numbers) + b"y" * chance.choice(SIZES) for _ in range(chance.randrange(1, 8))]
        self.sent.update(bodies)
        wire.send(b"".join(map(put_bytes, bodies)))
        for body in bodies:
            word, job_id = wire.reply().split()
            assert word == "INSERTED"
            assert int(job_id) not in self.inserted
            self.inserted[int(job_id)] = body
            self.on_reply()

    def _delete(self, wire: Wire) -> None:
        """Delete the next job, whichever client put it."""
        reply = wire.ask("reserve-with-timeout 1")
        if reply == "TIMED_OUT":
            return
        job_id = int(reply.split()[1])
        assert wire.body in self.sent
        self.delete_sent.add(job_id)
        assert wire.ask(f"delete {job_id}") == "DELETED"
        assert job_id not in self.deleted
        self.deleted.add(job_id)
        self.on_reply()

    def take_over(self, bodies: dict[int, bytes]) -> None:
        """Compare with the tube in the restarted server. AssertionError: a job is lost or back."""
        lost = self.inserted.keys() - self.delete_sent - bodies.keys()
        assert not lost, f"acknowledged puts are lost: {sorted(lost)}"
        back = self.deleted & bodies.keys()
        assert not back, f"acknowledged deletes are back: {sorted(back)}"
        for job_id, body in bodies.items():
            assert body in self.sent
            assert self.inserted.setdefault(job_id, body) == body
            self.delete_sent.discard(job_id)
