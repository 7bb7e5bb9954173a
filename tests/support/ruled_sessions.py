"""Random sessions with policies, with what operators do to jobs, and with restarts."""

from zlib import crc32

from beanlite.core.engine import Engine
from beanlite.core.job import ID_BITS, OFFERED, READY
from tests.support.core import stored_job
from tests.support.model_policies import SECOND_NS
from tests.support.model_rulings import CHANGEABLE
from tests.support.operators import all_jobs, recount
from tests.support.sessions import ACTIONS, CLIENTS_MAX, MAX_JOB_SIZE, NAMES, PRIS, SIZES, Chance, Twins, weighted

ENDS = weighted({"crash": 2, "stop": 2})
RULED = weighted({"set policies": 50, "change job": 40, "put jobs": 10})
GLOBS = (b"*", b"*", b"**", b"?", b"a*", b"*b", b"?*", b"d*", b"d?fault*")
MOVES = tuple(f"move:{name.decode()}" for name in (*NAMES, b"dead"))
VALUES = {
    "max_tries": ("1", "2", "3", "off"),
    "then": ("bury", *MOVES, "off"),
    "retry": ("1s", "1s..5s", "2s..1m", "1h..2d", "off"),
    "max_reserved": ("1", "1", "2", "3", "off"),
    "rate": ("1/s", "3/s", "20/m", "2/h", "60/m", "off"),
    "max_jobs": ("1", "3", "10", "off"),
    "fair": ("true", "true", "off"),
    "unique": ("waiting", "present", "off"),
    "ttl": ("1s", "2s", "5s", "1m", "1h", "off"),
    "expired": ("bury", "delete", *MOVES, "off"),
}
# Keys that do nothing without another one.
NEEDED = {"then": "max_tries", "expired": "ttl"}


class RuledTwins(Twins):
    """Twins that can be started again."""

    def play(self, action):
        super().play(action)
        recount(self.core.engine)

    def _crash(self, down_ns):
        self._restart(self.model.jobs, down_ns)

    def _stop(self, down_ns):
        """Stop as the server does: clients leave, which is not held against the jobs that they had."""
        engine = self.core.engine
        engine.begin_stop()
        for session, _ in self.pairs:
            engine.clients.stop_waiting(session.client)
        for session, _ in self.pairs:
            self.core.close(session)
        model = self.model
        self._restart([model.restored(job) if job.state == "reserved" else job for job in model.jobs], down_ns)

    def _restart(self, jobs, down_ns):
        core, model, old = self.core, self.model, self.core.engine
        rows = [stored(job) for job in sorted(all_jobs(old), key=lambda job: job.id)]
        pauses = [(tube.name, tube.pause_s, tube.pause_until_ns) for tube in old.tubes.values() if tube.pause_until_ns]
        engine = Engine()
        self.pairs.clear()
        core.now_ns += down_ns
        model.now_ns += down_ns
        engine.restore_policies(old.policies.rows.values())
        engine.notes.restore((job.id, note) for job in all_jobs(old) if (note := old.notes.text(job)))
        engine.restore(rows, core.now_ns)
        for pause in sorted(pauses):
            engine.restore_pause(*pause)
        engine.recovered(old.last_id, 1)
        core.start(engine, MAX_JOB_SIZE)
        model.restart([model.restored(job) for job in jobs], model.last_id, model.pauses())
        self._wait(0)


def stored(job):
    """Return a job as a journal would read it."""
    past, holder = job.past, job.last_holder
    facts: dict = {name: getattr(job, name) for name in ("pri", "delay_s", "ttr_s", "reserves", "body", "since_ns")}
    facts |= {name: getattr(past, name) for name in ("timeouts", "releases", "buries", "kicks", "why", "forgiven")}
    if job.state not in {READY, OFFERED}:
        facts |= {"state": job.state.value, "place": job.key >> ID_BITS}
    if holder is not None:
        facts |= {"holder": holder.address, "holder_conn": holder.number}
    return stored_job(job.id, job.created_ns, tube=job.tube.name, crc32=crc32(job.body), **facts)


class RuledChance(Chance):
    """Also chooses what operators do. What is rare in most sessions is frequent in those of a few keys."""

    values_of = VALUES

    def __init__(self, rng, *options, **named_options):
        super().__init__(rng, *options, **named_options)
        self._names = rng.choice((NAMES, NAMES[:2]))
        self._destinations = (*self._names, self._names[-1], b"dead")
        self._keys = rng.sample(sorted(VALUES), rng.choice((1, 2, 4, len(VALUES))))
        self._keys += [NEEDED[key] for key in self._keys if key in NEEDED]

    def send(self, model):
        """Return a send: sometimes one that ends a reservation and begins the next, as a client does that works."""
        rng = self._rng
        action = super().send(model)
        client = model.clients[action[1]]
        held = [job for job in model.jobs if job.holder is client]
        if held and rng.randrange(3) == 0:
            return ("send", action[1], self._work(held))
        return action

    def _work(self, held):
        rng = self._rng
        ends = (b"delete %d", b"bury %d 1", b"release %d 2 0", b"release %d 2 3")
        lines = [rng.choice(ends) % job.id for job in held[: rng.choice((1, 2))]]
        lines.append(b"reserve-with-timeout %d" % rng.choice((0, 3600)))
        return [(line, b"") for line in lines]

    def ruled_action(self, model, kinds=(*ACTIONS, *RULED, *ENDS)):
        rng = self._rng
        kind = rng.choice(kinds)
        if kind == "set policies":
            return self._policies(model)
        if kind == "change job":
            reserved = [job.id for job in model.jobs if job.state == "reserved"]
            job_id = rng.choice(reserved) if reserved and rng.randrange(2) else self._job_id(model, None) or 1
            to = rng.choice(self._destinations)
            states = [job.state for job in model.jobs if job.id == job_id]
            apt = [do for do, of in sorted(CHANGEABLE.items()) if states and states[0] in of and rng.randrange(10)]
            apt += ["move", "release"] * (states == ["reserved"])
            do = rng.choice(apt or sorted(CHANGEABLE))
            delay_s = rng.choice((0, *self._seconds)) or int(do == "delay")
            return ("change job", do, job_id, to, rng.choice(PRIS), delay_s)
        if kind == "put jobs":
            names = rng.choices(self._destinations, k=rng.choice((1, 2)))
            return ("put jobs", [(rng.choice(names), b"x" * rng.choice(SIZES)) for _ in range(rng.choice((1, 2, 4)))])
        if kind in ENDS:
            return (kind, rng.choice((0, 0, self._wait_ns(model))))
        return self.action(model, [kind])

    def _policies(self, model):
        """Return a change of some keys of a pattern; often they are unset again."""
        rng = self._rng
        rows = sorted(model.policies.rows)
        if len(rows) > 8 or (rows and rng.randrange(4) == 0):
            pattern, _ = rng.choice(rows)
            return ("set policies", pattern, {key: None for other, key in rows if other == pattern})
        return ("set policies", rng.choice((*self._destinations, *GLOBS)), self.values())

    def values(self):
        """Return values for some keys."""
        rng = self._rng
        keys = sorted(set(self._keys) & set(self.values_of)) or ["max_reserved"]
        keys = rng.sample(keys, min(len(keys), rng.choice((1, 1, 2, 3))))
        return {key: rng.choice(self.values_of[key]) for key in keys}

    def share(self, model):
        """Yield actions by which clients reserve jobs of one pri from several tubes."""
        rng = self._rng
        yield ("set policies", rng.choice((b"*", *self._names)), {"fair": "true"})
        yield ("put jobs", [(name, b"%d" % rng.randrange(99)) for name in rng.choices(NAMES, k=8)])
        for number in rng.sample(range(len(model.clients)), 2):
            lines = [b"watch " + name for name in NAMES] + [b"reserve-with-timeout 0"] * rng.choice((1, 2, 4))
            yield ("send", number, [(line, b"") for line in lines])

    def crowd(self, model):
        """Yield actions after which a client waits for a tube that has jobs, and one that may give it a job."""
        rng = self._rng
        name, other = rng.choice(self._names), rng.choice(NAMES)
        idle = [number for number, client in enumerate(model.clients) if client.wait_until_ns is None]
        if len(idle) < 2:
            return
        first, second = rng.sample(idle, 2)
        worker = model.clients[first]
        key, value = rng.choice((("max_reserved", "1"), ("max_reserved", "2"), ("rate", "1/s")))
        yield ("set policies", name, {key: value})
        puts = [self._put() for _ in range(rng.choice((2, 3, 4)))]
        yield ("send", first, [(b"use " + name, b""), *puts, (b"watch " + name, b""), (b"watch " + other, b"")])
        yield ("send", first, [(b"reserve-with-timeout 0", b"")] * rng.choice((1, 2)))
        ignores = [(b"ignore " + each, b"") for each in NAMES if each != name]
        yield ("send", second, [(b"watch " + name, b""), *ignores, (b"reserve", b"")])
        held = [job for job in model.jobs if job.holder is worker] if worker in model.clients else []
        if rng.randrange(2):
            yield ("wait", 0)
        if rng.randrange(3) == 0:
            yield ("set policies", name, {key: rng.choice((None, *self.values_of[key])), **self.values()})
        if held and rng.randrange(2):
            do = rng.choice(("move", "move", "move", "release", "bury", "delete"))
            yield ("change job", do, rng.choice(held).id, other, rng.choice(PRIS), rng.choice(self._seconds))
        elif worker in model.clients:
            yield ("send", first, self._work(held))
        yield ("wait", rng.choice((0, self._step_ns, SECOND_NS)))


def ruled_think(rng, twins):
    chance = RuledChance(rng)
    while True:
        if rng.randrange(30) == 0 and len(twins.model.clients) > 1:
            yield from rng.choice((chance.crowd, chance.crowd, chance.share))(twins.model)
        action = chance.ruled_action(twins.model)
        yield action
        if action[0] in ENDS:
            yield from [("connect",)] * rng.randrange(1, CLIENTS_MAX)
