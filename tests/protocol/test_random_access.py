"""Random commands of a client with limited rights: it sees and changes no tube that it has no right to."""

import json
import os
import random

import pytest

from beanlite.core.access import OPERATOR, PRODUCER, READER, WORKER
from beanlite.core.job import ID_MASK
from beanlite.protocol.limited import EVERYBODY, ROLE_OF
from tests.support.core import Core

SEED = int(os.environ.get("MODEL_SEED", str(random.randrange(1 << 32))))
STEPS = 1500
JOBS_MAX = 120  # all of them fit into one reply
OWN = ["own.a", "own.b"]
OTHERS = ["secret.a", "secret.b", "default"]
PATTERNS = ["own.*", "own.?", "secret.*", "*", "o*", "own.a", "secret.a"]
# What no reply may have in it: the bodies of others' jobs, and the names of their tubes, schedules and policies.
SECRETS = (b"SECRET", b"secret.", b"private")
WORDS = [word.decode() for word in {**ROLE_OF, **dict.fromkeys(EVERYBODY)}]
# What is compared with the same list of a client that may do everything, less what is not for this one.
LISTS = {
    "list-jobs": ("jobs", lambda record: record["tube"].startswith("own.")),
    "list-tube-stats": ("tubes", lambda record: record["name"].startswith("own.")),
    "list-schedules": ("schedules", lambda record: record["tube"].startswith("own.")),
    "list-policies": ("policies", lambda record: record["pattern"].startswith("own.")),
}
# What differs by who asks.
OF_ASKER = {"using", "watching"}


class World:
    """An operator who has everything move, and a client with limited rights."""

    def __init__(self, rng, roles):
        self.rng = rng
        self.core = Core()
        self.admin = self.core.client(operator=True)
        self.session = self.core.limited(*[(role, b"own.*") for role in roles])
        self.others = [self.core.client() for _ in range(2)]
        for other in self.others:
            self.core.send(other, b"use secret.b\r\nwatch secret.a\r\nwatch own.a\r\n")

    def tube(self):
        return self.rng.choice(OWN + OTHERS)

    def job_id(self):
        held = self.session.client.deadlines.keys
        if held and self.rng.random() < 0.2:
            return self.rng.choice(held) & ID_MASK
        return self.rng.randrange(max(1, self.core.engine.last_id - 40), self.core.engine.last_id + 2)

    def line(self, session, word, body=None):
        end = b"" if body is None else body + b"\r\n"
        return self.core.send(session, word.encode() + b"\r\n" + end)

    def ask(self, session, word, **what):
        body = json.dumps(what).encode()
        return self.line(session, f"{word} {len(body)}", body)

    # -- what goes on

    def stir(self):
        """Have something happen in all tubes."""
        rng, tube = self.rng, self.tube()
        if len(self.core.engine.jobs) > JOBS_MAX:
            self.ask(self.admin, "change-jobs", do="delete", older_s=0)
        body = (b"own" if tube in OWN else b"SECRET") + b"%d" % rng.randrange(9)
        do = rng.randrange(9)
        if do < 4:
            self.line(self.admin, f"use {tube}")
            self.line(self.admin, f"put {rng.randrange(3)} {rng.choice([0, 0, 9])} 60 {len(body)}", body)
        elif do == 4:
            self.line(rng.choice(self.others), "reserve-with-timeout 0")
        elif do == 5:
            ids = [self.job_id() for _ in range(5)]
            self.ask(self.admin, "change-jobs", do=rng.choice(["bury", "kick", "delete", "release"]), ids=ids)
        elif do == 6:
            # Only jobs of their own move: a body of others in a tube of this client would be seen, and rightly.
            place = OWN if rng.random() < 0.7 else OTHERS
            self.ask(self.admin, "change-jobs", do="move", tube=rng.choice(place), to=rng.choice(place))
        elif do == 7:
            name = rng.choice(["s1", "s2"]) if tube in OWN else "private"
            fields = {"name": name, "when": "every 5m", "tube": tube, "body": body.decode()}
            self.ask(self.admin, "set-schedule", **fields)
        else:
            pattern = rng.choice(PATTERNS)
            self.ask(self.admin, "set-policy", pattern=pattern, set={"max_jobs": str(rng.randrange(50, 99))})

    # -- what the client sends

    def command(self):
        """Return a random command: its word, and its line or its object."""
        word = self.rng.choice(WORDS)
        made = getattr(self, word.replace("-", "_"), None)
        return word, "" if made is None else made()

    def _id(self):
        return f" {self.job_id()}"

    def _tube(self):
        return f" {self.tube()}"

    reserve_job = delete = touch = kick_job = peek = stats_job = show_job = _id
    use = watch = ignore = stats_tube = _tube

    def release(self):
        return f" {self.job_id()} 0 {self.rng.choice([0, 9])}"

    def bury(self):
        return f" {self.job_id()} 0"

    def kick(self):
        return f" {self.rng.randrange(9)}"

    def reserve(self):
        return "-with-timeout 0"

    def reserve_with_timeout(self):
        return " 0"

    def reserve_batch(self):
        return " 3 0"

    def pause_tube(self):
        return f" {self.tube()} 5"

    def set_pause(self):
        return {"tube": self.tube(), "pause_s": 5}

    def list_jobs(self):
        what = {"tube": self.tube()} if self.rng.random() < 0.3 else {}
        if what and self.rng.random() < 0.3:
            return {**what, "state": "ready", "order": "queue", "preview": 99}
        return {**what, "preview": 99} | self.rng.choice(
            [{}, {"ids": [self.job_id()]}, {"text": "S"}, {"limit": 2}, {"tube_like": "*.a"}]
        )

    def group_jobs(self):
        what = {"tube": self.tube()} if self.rng.random() < 0.3 else {"tube_like": self.rng.choice(PATTERNS)}
        return {**what, **self.rng.choice([{"fact": "tube"}, {"path": "SECRET"}, {"fact": "state", "text": "S"}])}

    def list_tube_stats(self):
        names = [self.tube() for _ in range(3)]
        return self.rng.choice([{}, {"names": names}, {"like": "*"}, {"like": "sec*"}, {"only": ["name", "ready"]}])

    def list_clients(self):
        return self.rng.choice([{}, {"limit": 1}])

    def list_schedules(self):
        return self.rng.choice([{}, {"name": "private"}, {"name": "s1"}])

    def list_policies(self):
        return {"tube": self.tube()} if self.rng.random() < 0.3 else {}

    def put(self):
        return None

    def put_jobs(self):
        tubes = [self.rng.choice([*OWN, *OWN, *OWN, self.tube(), None]) for _ in range(2)]
        return {"jobs": [{"body": "own", **({} if tube is None else {"tube": tube})} for tube in tubes]}

    def change_jobs(self):
        do = self.rng.choice(["kick", "bury", "delete", "release", "move", "copy"])
        to = {"to": self.tube()} if do in {"move", "copy"} else {}
        which = self.rng.choice([{"tube": self.tube()}, {"ids": [self.job_id()]}, {"up_to_id": self.job_id()}])
        return {"do": do, **to, **which, "limit": 3}

    def set_policy(self):
        value = self.rng.choice([{"ttl": "9d"}, {"max_tries": "99"}, {"then": f"move:{self.tube()}"}])
        pattern = self.rng.choice(PATTERNS)
        change = self.rng.choice([{"set": value}, {"unset": "all"}])
        if self.rng.random() < 0.3:
            prune = self.rng.random() < 0.5
            return {"policies": [{"pattern": pattern, **change}], "prune": prune}
        return {"pattern": pattern, **change, "dry_run": self.rng.random() < 0.3}

    def set_schedule(self):
        name = self.rng.choice(["s1", "s2", "private"])
        return {"name": name, "when": "every 5m", "tube": self.tube(), "body": "own"}

    def unset_schedule(self):
        return {"name": self.rng.choice(["s1", "s2", "private"])}

    run_schedule = unset_schedule

    def watch_events(self):
        return {"tube": self.tube()} if self.rng.random() < 0.5 else {}

    # -- what is compared

    def others_state(self):
        """All that is there of tubes outside of the client's rights."""
        engine = self.core.engine
        jobs = [job for job in map(engine.jobs.find, engine.jobs.ids_after(-1, 1 << 20)) if job is not None]
        return (
            [
                (job.id, job.tube.name, job.state, job.pri, job.delay_s, job.reserves, job.past.kicks, job.past.buries)
                for job in jobs
                if not job.tube.name.startswith(b"own.")
            ],
            {
                name: (tube.total_jobs, tube.cmd_delete, tube.cmd_pause, tube.pause_s, tube.reserved)
                for name, tube in engine.tubes.items()
                if not name.startswith(b"own.")
            },
            {each: row.value for each, row in engine.policies.rows.items() if not each[0].startswith(b"own.")},
            {
                name: (each.when, each.last_job, each.body)
                for name, each in engine.schedules.items()
                if not each.tube.startswith(b"own.")
            },
        )

    def step(self):
        word, given = self.command()
        before = self.others_state()
        if word == "put":
            reply = self.line(self.session, "put 0 0 60 3", b"own")
        elif isinstance(given, dict):
            reply = self.ask(self.session, word, **given)
        else:
            reply = self.line(self.session, word + given)
        assert self.others_state() == before, (word, given, reply)
        # What it asked for by name may be named to it again, but nothing else.
        shown = reply.replace(b"USING default", b"")
        if reply.startswith(b"REFUSED") or word in {"list-tubes-watched", "list-tube-used"}:
            shown = b""
        elif word == "set-policy" or "then" in str(self.core.engine.policies.rows):
            shown = shown.replace(b"move:secret.", b"")
        assert not any(secret in shown for secret in SECRETS), (word, given, reply)
        self.compare(word, given, reply)
        return word, reply

    def compare(self, word, given, reply):
        if word not in LISTS or not reply.startswith(b"OK") or "only" in given or given.get("tube"):
            return
        key, is_own = LISTS[word]
        given = {**given, "limit": 200} if word in {"list-jobs", "list-tube-stats"} else given
        mine = json.loads(self.ask(self.session, word, **given).split(b"\r\n", 1)[1])[key]
        every = json.loads(self.ask(self.admin, word, **given).split(b"\r\n", 1)[1])[key]

        def plain(records):
            return [{name: value for name, value in each.items() if name not in OF_ASKER} for each in records]

        assert plain(mine) == plain(filter(is_own, every)), (word, given)


@pytest.mark.parametrize(
    "roles",
    [(PRODUCER,), (WORKER,), (READER,), (OPERATOR,), (PRODUCER, WORKER), (PRODUCER, WORKER, READER)],
    ids="-".join,
)
def test_random_commands_reach_no_tube_of_others(roles, record_property):
    record_property("model steps", (STEPS, f"MODEL_SEED={SEED}"))
    world = World(random.Random(SEED), roles)
    world.line(world.session, "watch own.a")
    world.line(world.session, "ignore default")
    answers = set()
    for _ in range(STEPS):
        world.stir()
        word, reply = world.step()
        answers.add((word, reply.split()[0]))
    # It has done something, too.
    done = {word for word, answer in answers if answer not in {b"UNAUTHORIZED", b"NOT_FOUND", b"REFUSED"}}
    needed = {word.decode() for word, (role, _) in ROLE_OF.items() if role in roles or OPERATOR in roles}
    assert len(needed - done) <= 5
