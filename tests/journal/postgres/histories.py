"""Random histories of a core with everything that a database keeps, and the whole state of an engine, to compare."""

from beanlite.core.memory import NO_BOUND
from tests.support.core import Core
from tests.support.operators import Operator, all_jobs, keys_of
from tests.support.policies import schedule, set_policy, set_schedules, unset_schedule

TUBES = (b"default", b"mail", b"mail.in", b"x")
POLICIES = {
    "max_tries": ("1", "2", "off"),
    "then": ("bury", "move:dead", "off"),
    "retry": ("1s..5s", "off"),
    "max_reserved": ("1", "3", "off"),
    "rate": ("1/s", "off"),
    "unique": ("waiting", "present", "off"),
    "ttl": ("2s", "1h", "off"),
    "expired": ("bury", "delete", "move:dead", "off"),
    "fair": ("true", "off"),
}


class History:
    """A core in which things happen by chance."""

    def __init__(self, chance):
        self.chance = chance
        self.core = Core()
        self.core.engine.bound_memory(NO_BOUND, NO_BOUND, fetches=False)
        self.clients = [self.core.client() for _ in range(4)]
        for client in self.clients:
            self.core.send(client, b"".join(b"watch %b\r\n" % tube for tube in TUBES))
        self.operator = Operator(self.core)

    def go_on(self):
        for _ in range(self.chance.randrange(1, 12)):
            self.chance.choice((self._client, self._client, self._client, self._client, self._time, self._operator))()

    def _client(self):
        chance = self.chance
        client = chance.choice(self.clients)
        jobs = all_jobs(self.core.engine)
        some = chance.choice(jobs).id if jobs else 1
        lines = {
            b"use %b" % chance.choice(TUBES): 1,
            b"reserve-with-timeout 0": 3,
            b"reserve-job %d" % some: 2,
            b"delete %d" % some: 3,
            b"bury %d 5" % some: 3,
            b"release %d %d %d" % (some, chance.randrange(3), chance.choice((0, 3))): 3,
            b"touch %d" % some: 1,
            b"kick %d" % chance.randrange(1, 4): 1,
            b"kick-job %d" % some: 1,
            b"pause-tube %b %d" % (chance.choice(TUBES), chance.choice((0, 2, 1000))): 1,
        }
        if chance.random() < 0.4:
            body = b"%d" % chance.randrange(30) * chance.choice((1, 100))
            line = b"put %d %d %d %d\r\n%b" % (
                chance.randrange(2000), chance.choice((0, 0, 2, 1000)), chance.choice((1, 60)), len(body), body,
            )  # fmt: skip
        elif chance.random() < 0.25:
            note = chance.choice((b"", b"why", b"a longer note" * 9))
            line = b"note %d %d\r\n%b" % (some, len(note), note)
        else:
            (line,) = chance.choices(list(lines), list(lines.values()))
        self.core.send(client, line + b"\r\n")

    def _time(self):
        self.core.wait(self.chance.choice((0, 0.5, 1, 4)))

    def _operator(self):
        chance, engine = self.chance, self.core.engine
        what = chance.randrange(4)
        if what == 0:
            key = chance.choice(list(POLICIES))
            set_policy(self.core, chance.choice((*TUBES, b"mail*", b"*")), **{key: chance.choice(POLICIES[key])})
        elif what == 1:
            do = chance.choice(("move", "kick", "bury", "delete"))
            tube = chance.choice(TUBES).decode()
            self.operator.change(do, tube=tube, **({"to": "moved"} if do == "move" else {}))
        elif engine.schedules and chance.random() < 0.5:
            unset_schedule(engine, chance.choice(list(engine.schedules)))
        else:
            set_schedules(engine, schedule(chance.choice("ab"), next_at=chance.randrange(2_000_000_000)))


BODIES = ("body_bytes", "unloaded", "unloaded_bytes", "crowded")


def state_of(engine, *, bodies):
    """Return everything that jobs, tubes, counts and memory are; ``bodies``: also which bodies are in memory."""
    counts, memory = engine.counts, engine.memory
    state = {
        "jobs": [_job(engine, job) for job in sorted(all_jobs(engine), key=lambda job: job.id)],
        "tubes": [_tube(tube) for tube in engine.tubes_in_order()],
        "counts": {name: getattr(counts, name) for name in attributes_of(counts)},
        "memory": {name: getattr(memory, name) for name in attributes_of(memory) if name not in BODIES},
        "others": (memory.job_bytes, memory.other_bytes),
        "deferred": list(engine.ledger.deferred),
        "next": engine.timers.next_ns,
        "policies": sorted(engine.policies.rows.values()),
        "schedules": sorted(engine.schedules),
        "last": (engine.last_id, engine.ledger.batch, engine.ledger.taken_id, engine.ledger.stored_id),
    }
    if bodies:
        state["bodies"] = [(job.id, job.body) for job in all_jobs(engine)], [getattr(memory, name) for name in BODIES]
    return state


def attributes_of(thing):
    """Return the names of what an object knows for others, be it compiled or not."""
    names = getattr(type(thing), "__mypyc_attrs__", None) or thing.__slots__
    return [name for name in names if name[0] != "_"]


def _job(engine, job):
    past, peer, kept = job.past, job.last_holder, job.tube.kept
    return (
        job.id, job.tube.name, job.state, job.key, job.pri, job.delay_s, job.ttr_s, job.created_ns, job.since_ns,
        job.reserves, past.timeouts, past.releases, past.buries, past.kicks, past.forgiven, past.why, job.size,
        peer and (peer.address, peer.number), job.holder, engine.notes.text(job),
        engine.tubes[job.tube.name] is job.tube, kept and (kept.crc32_of(job.id), kept._expiry_keys.get(job.id)),
    )  # fmt: skip


def _tube(tube):
    return (
        tube.name, keys_of(tube.ready), keys_of(tube.delayed), keys_of(tube.buried), tube.reserved, tube.urgent,
        tube.shut, tube.pause_s, tube.pause_until_ns, tube.moved_ns, tube.timer_ns, tube.total_jobs, _rules(tube),
        tube.serial, tube.kept and (tube.kept.twin_count, tube.kept.expiry_count),
    )  # fmt: skip


def _rules(tube):
    return tube.rules and {name: getattr(tube.rules, name) for name in attributes_of(tube.rules)}
