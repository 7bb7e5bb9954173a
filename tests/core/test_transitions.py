"""The engine and the documentation against the table of transitions."""

import os
import random
import re
from pathlib import Path

import pytest

from beanlite.core.engine import Engine
from beanlite.core.job import DELAYED, GONE, ID_BITS, OFFERED, READY, RESERVED, SECOND_NS, Job
from beanlite.core.operator import CONCERNS, concerns
from beanlite.core.timers import NEVER_NS
from beanlite.core.transitions import TRANSITIONS, Transition
from tests.core.diagram import mermaid

SEED = int(os.environ.get("MODEL_SEED", str(random.randrange(1 << 32))))
STEPS = 10_000
JOBS_MAX = 4  # few, so that clients often wait and queues are often empty
KEY_MAX = NEVER_NS << ID_BITS  # no key is larger
# What has happened to a job whose time is over.
OVER = {DELAYED: "delay over", RESERVED: "ttr over", OFFERED: "offer over"}
PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"


class Watched:
    """An engine whose jobs are looked at before and after each thing that happens to them."""

    def __init__(self, rng):
        self.rng = rng
        self.engine = Engine()
        self.clients = [self.engine.clients.connect("10.0.0.1:1") for _ in range(3)]
        self.now_ns = SECOND_NS
        self.seen = set()

    def states(self):
        return {job_id: (job.state, job.holder) for job_id, job in self.engine.jobs.newest.items()}

    def step(self):
        """Have something happen, by chance; note which transitions it has made."""
        before = self.states()
        happened = self.rng.choice(
            (
                self.put,
                self.reserve,
                self.reserve_job,
                self.offer,
                self.answer,
                *[self.change] * 3,
                self.operate,
                self.leave,
                self.time,
            )
        )
        event = happened()
        handed = {job.id for _, job in self.engine.clients.take_woken() if isinstance(job, Job)}
        after = self.states()
        for job_id in before.keys() | after.keys():
            old, _ = before.get(job_id, (None, None))
            new, _ = after.get(job_id, (GONE, None))
            if job_id in handed:  # by way of READY
                self.seen.add(Transition(READY, "reserve" if new is RESERVED else "offer", new))
                new = READY
            if old is not new:
                self.seen.add(Transition(old, event or OVER[old], new))
        return bool(handed)

    # -- what can happen; each returns its event, None if that is up to the job

    def put(self):
        if len(self.engine.jobs) > JOBS_MAX:
            return self.change()
        delay_s = self.rng.choice((0, 0, 2))
        self.engine.put(self.rng.choice(self.clients), 0, delay_s, self.rng.choice((1, 5)), b"", self.now_ns)
        return "put with a delay" if delay_s else "put"

    def reserve(self):
        client = self.rng.choice(self.clients)
        if not client.waiting and self.engine.reserve(client, self.now_ns) is None:
            self.engine.clients.wait(client, self.now_ns + 3 * SECOND_NS, self.now_ns)
        return "reserve"

    def offer(self):
        client, until_ns = self.rng.choice(self.clients), self.now_ns + 3 * SECOND_NS
        if not client.waiting and self.engine.offering.offer(client, self.now_ns) is None:
            self.engine.clients.wait(client, until_ns, self.now_ns, for_offer=True)
        return "offer"

    def answer(self):
        answer = self.rng.choice(("take", "decline"))
        getattr(self.engine.offering, answer)(self.rng.choice(self.clients), self.any_id(), self.now_ns)
        return answer

    def reserve_job(self):
        self.engine.reserve_job(self.rng.choice(self.clients), self.any_id(), self.now_ns)
        return "reserve-job"

    def change(self):
        engine, client, job_id = self.engine, self.rng.choice(self.clients), self.any_id()
        delay_s = self.rng.choice((0, 2))
        commands = ("release", "bury", "bury", "touch", "kick", "kick buried", "kick delayed", "delete")
        match self.rng.choice(commands):
            case "release":
                engine.release(client, job_id, 0, delay_s, self.now_ns)
                return "release with a delay" if delay_s else "release"
            case "bury":
                engine.bury(client, job_id, 0, self.now_ns)
                return "bury"
            case "touch":
                engine.touch(client, job_id, self.now_ns)
                return "touch"
            case "kick":
                engine.kick_job(client, job_id, self.now_ns)
            case "kick buried":
                engine.kick(client, client.use.buried, 1, KEY_MAX, self.now_ns)
            case "kick delayed":
                engine.kick(client, client.use.delayed, 2, KEY_MAX, self.now_ns)
            case "delete":
                engine.delete(client, job_id, self.now_ns)
                return "delete"
        return "kick"

    def operate(self):
        operator, by, now_ns = self.engine.operator, self.clients[0].peer, self.now_ns
        job = self.engine.jobs.find(self.any_id())
        if job is None:
            return "nothing"
        before = job.state
        do = self.rng.choice([do for do in CONCERNS if concerns(do, job)])
        match do:
            case "kick":
                operator.kick(job, by, now_ns)
            case "bury":
                operator.bury(job, 0, by, now_ns)
                return "bury" if before is RESERVED else "bury by an operator"
            case "release":
                operator.release(job, 0, 2, by, now_ns)
                return "release with a delay"
            case "delay":
                operator.delay(job, 2, by, now_ns)
                return "delay by an operator"
            case "delete":
                self.engine.delete(self.clients[0], job.id, now_ns, by_operator=True)
            case "reprioritise":
                operator.reprioritise(job, 1, by, now_ns)
            case _:
                operator.move(job, self.engine.tubes[b"default"], by, now_ns)
                return "move by an operator"
        return do

    def leave(self):
        client = self.clients.pop(self.rng.randrange(len(self.clients)))
        self.clients.append(self.engine.clients.connect("10.0.0.1:1"))
        self.engine.clients.disconnect(client, self.now_ns)
        return "client gone"

    def time(self):
        self.now_ns += self.rng.choice((1, SECOND_NS))
        while self.engine.timers.next_ns <= self.now_ns:
            self.engine.tick(self.now_ns)

    def any_id(self):
        """Of a job in whatever state, the rare ones as often as the others."""
        by_state = {}
        for job_id, job in self.engine.jobs.newest.items():
            by_state.setdefault(job.state, []).append(job_id)
        return self.rng.choice(self.rng.choice(list(by_state.values()) or [[1]]))


def test_random_commands_make_exactly_the_transitions_of_the_table(record_property):
    watched = Watched(random.Random(SEED))
    handed = sum(watched.step() for _ in range(STEPS))
    assert watched.seen == set(TRANSITIONS)
    assert handed > 10
    record_property("model steps", (STEPS, f"MODEL_SEED={SEED}"))


def test_the_diagram_in_the_documentation_is_that_of_the_table():
    page = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    blocks = re.findall(r"<!-- transitions -->\n(.*?)<!-- /?transitions -->", page, re.DOTALL)
    if not blocks:
        pytest.skip("the documentation has no diagram")
    assert [block.strip() for block in blocks] == [mermaid()]
