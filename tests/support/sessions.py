"""Random sessions of several clients, played to the core and the model at the same time.

An action is a tuple, such as ("send", 2, [(b"reserve", b"")]) or ("wait", 1_000_000_000). Any list of actions can be
played, so a session is still valid after actions have been removed, which ``shrink`` relies on. Clients are numbered
from the oldest one, modulo their number.
"""

import json
import random
import re
import time
from itertools import islice

from beanlite.core.memory import NO_BOUND
from beanlite.core.policies import PolicyRow, check_row
from beanlite.protocol.blocked import CLOSING
from tests.support.core import Core
from tests.support.model import MALFORMED, NOTE_MAX, Model
from tests.support.model_policies import SECOND_NS

CLIENTS_MAX = 6
MAX_JOB_SIZE = 2000
SHRINKS_S = 10.0

NAMES = (b"default", b"a", b"b", b"c-$_().;/+")
PRIS = (0, 0, 1, 2, 1023, 1024, 4294967295)
SECONDS = (0, 1, 2, 3, 5, 60, 3600, 100_000)
SIZES = (0, 1, 2, 3, 100, 1024, 1025, MAX_JOB_SIZE, MAX_JOB_SIZE + 1)


def weighted(weights):
    return [name for name, weight in weights.items() for _ in range(weight)]


COMMANDS = weighted(
    {
        "put": 24,
        "reserve": 6,
        "reserve-with-timeout": 16,
        "reserve-job": 4,
        "offer": 8,
        "take": 1,
        "decline": 1,
        "delete": 7,
        "release": 8,
        "bury": 8,
        "touch": 4,
        "note": 4,
        "kick": 3,
        "kick-job": 3,
        "pause-tube": 4,
        "use": 5,
        "watch": 5,
        "ignore": 4,
        "peek": 2,
        "peek-ready": 2,
        "peek-delayed": 2,
        "peek-buried": 2,
        "list-tubes": 2,
        "list-tube-used": 1,
        "list-tubes-watched": 1,
        "stats": 3,
        "stats-tube": 4,
        "stats-job": 5,
        "name": 1,
        "malformed": 1,
    }
)
ACTIONS = weighted({"send": 375, "wait": 80, "wait unseen": 15, "connect": 15, "leave": 15, "refuse puts": 1})


# The part of the server's statistics that the model does not have; it comes last.
MEMORY = re.compile(rb"OK (\d+)\r\n(---\ncurrent-jobs-urgent.*?\n)(memory-max.*?puts-out-of-memory: \d+\n)", re.DOTALL)


# What stats-tube tells of the rules of a tube; the model has no such statistics.
RULES = re.compile(rb'OK (\d+)\r\n(---\nname: "[^"]*"\n(?:(?!policy-)[a-z-]+: \d+\n)+)((?:policy-.*\n)+)')


def without_what_is_ours(replies):
    for ours in (MEMORY, RULES):
        replies = ours.sub(lambda match: b"OK %d\r\n%b" % (int(match[1]) - len(match[3]), match[2]), replies)
    return replies


def facts_of(engine, job):
    """Return the fields of a job that no command of the protocol shows."""
    return job.since_ns, job.last_holder and job.last_holder.number, job.why, job.tries, engine.notes.text(job)


class Twins:
    """The core and the model, which have to agree after every action."""

    def __init__(self):
        self.core = Core(MAX_JOB_SIZE)
        self.model = Model(self.core.now_ns, MAX_JOB_SIZE)
        self.pairs = []
        """Pairs of a session of the core and the model's client."""

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        pass

    def play(self, action):
        """Play an action. AssertionError: core and model differ."""
        kind, *what = action
        getattr(self, "_" + kind.replace(" ", "_"))(*what)
        self.compare()

    def compare(self):
        for number, (session, client) in enumerate(self.pairs):
            said, expected = without_what_is_ours(session.take_replies()), b"".join(client.replies)
            client.replies.clear()
            assert said == expected, f"client {number}: the core says {said!r}, the model {expected!r}"
            assert (session.blocked is not None) == (client.wait_until_ns is not None), f"client {number} waits"
        assert self.core.now_ns == self.model.now_ns
        tubes, expected_tubes = list(self.core.engine.tubes), [tube.name for tube in self.model.tubes]
        assert tubes == expected_tubes, f"the core has tubes {tubes}, the model {expected_tubes}"
        known = {job.id: facts_of(self.core.engine, self.core.engine.jobs[job.id]) for job in self.model.jobs}
        right = {job.id: (job.since_ns, job.last_holder, job.why, job.tries, job.note) for job in self.model.jobs}
        differ = {job_id: (known[job_id], right[job_id]) for job_id in right if known[job_id] != right[job_id]}
        assert not differ, f"of jobs the core knows the first, the model the second: {differ}"

    def ask(self, line):
        """Send a command from a temporary client, compare, and return the reply."""
        self._connect()
        session, client = self.pairs[-1]
        self.core.receive(session, line + b"\r\n")
        self.model.send(client, [(line, b"")])
        reply = b"".join(client.replies)
        self.compare()
        self._leave(-1, "drop")
        return reply

    def compare_all(self):
        """Compare everything that clients can see, and at last the order of all queues, which empties them."""
        self.play(("wait", 0))
        for line in (b"stats", b"list-tubes", *(b"stats-tube " + tube.name for tube in self.model.tubes)):
            self.ask(line)
        for job_id in (*self.model.given, self.model.last_id + 1):
            self.ask(b"stats-job %d" % job_id)
            self.ask(b"peek %d" % job_id)
        while self.pairs:
            self.play(("leave", 0, "drop"))
        self._connect()
        for name in [tube.name for tube in self.model.tubes]:
            jobs = sum(job.tube.name == name for job in self.model.jobs)
            each = [b"peek-buried", b"peek-delayed", b"kick 1"]
            lines = [b"use " + name, b"watch " + name, b"pause-tube %b 0" % name, *each * jobs]
            lines += [b"peek-ready", b"reserve-with-timeout 0"] * (jobs + 1)
            self.play(("send", 0, [(line, b"") for line in lines]))

    # -- actions

    def _connect(self):
        self.pairs.append((self.core.client(), self.model.connect()))

    def _send(self, number, commands):
        if self.pairs:
            session, client = self.pairs[number % len(self.pairs)]
            self.core.receive(session, b"".join(line + b"\r\n" + rest for line, rest in commands))
            self.core._wake()
            self.model.send(client, commands)

    def _leave(self, number, how):
        if not self.pairs:
            return
        session, client = self.pairs[number % len(self.pairs)]
        if how == "quit" and client.wait_until_ns is None:
            session.receive(b"quit\r\nstats\r\n", self.core.now_ns)
            assert session.blocked is CLOSING
            session.blocked = None
        elif how == "half-close":
            session.half_close(self.core.now_ns)
            self.core.go_on(session)
            self.core._wake()
            self.model.half_close(client)
        self.compare()
        self.pairs.remove((session, client))
        self.core.close(session)
        self.model.close(client)

    def _wait(self, wait_ns):
        self.core.wait(wait_ns / SECOND_NS)
        self.model.wait(wait_ns)

    def _wait_unseen(self, wait_ns):
        self._wait(0)  # what is due by now is seen
        if self.model.may_wait_unseen(wait_ns):
            self.core.jump(wait_ns / SECOND_NS)
            self.model.wait_unseen(wait_ns)

    def _refuse_puts(self, why):
        self.model.draining, self.model.full = why == "draining", why == "full"
        admission = self.core.engine.admission
        admission.draining = self.model.draining
        admission.refuse_puts() if self.model.full else admission.accept_puts(NO_BOUND)

    # -- actions of operators

    def _set_policies(self, pattern, values):
        engine = self.core.engine
        rows = [PolicyRow(pattern, key, value, 0.0, "ann") for key, value in values.items() if value is not None]
        for row in rows:
            check_row(row.pattern, row.key, row.value)
        unset = [(pattern, key) for key, value in values.items() if value is None]
        engine.set_policies(rows, [row for row in unset if row in engine.policies.rows], self.core.now_ns)
        self.model.set_policies(pattern, values)

    def _change_job(self, do, job_id, to, pri, delay_s):
        meant = {"to": do in {"move", "copy"}, "pri": do in {"bury", "release", "reprioritise", "copy"}}
        meant["delay_s"] = do in {"release", "delay", "copy"}
        values = {"to": to.decode(), "pri": pri, "delay_s": delay_s}
        request = {"do": do, "ids": [job_id]} | {name: value for name, value in values.items() if meant[name]}
        client = self.model.connect()
        said = json.loads(self._ask_as_operator(b"change-jobs", request).split(b"\r\n")[1])
        expected = self.model.change(do, job_id, to, pri, delay_s)
        self.model._wake()
        assert (said.get("stopped") or said["done"] == 1) == expected, f"the core says {said}, the model {expected}"
        self.model.close(client)

    def _put_jobs(self, puts):
        """Put a batch: pairs of a tube and a body."""
        client = self.model.connect()
        jobs = [{"tube": tube.decode(), "body": body.decode()} for tube, body in puts]
        said = self._ask_as_operator(b"put-jobs", {"jobs": jobs})
        expected = self.model.put_jobs(client, puts)
        self.model._wake()
        ids = json.loads(said.split(b"\r\n")[1])["ids"] if said.startswith(b"OK ") else None
        assert expected == (said if ids is None else ids), f"the core says {said}, the model {expected}"
        self.model.close(client)

    def _ask_as_operator(self, word, request):
        """Send a request from a temporary client, and return the reply; the model's client goes last."""
        session = self.core.client(operator=True)
        body = json.dumps(request).encode()
        self.core.receive(session, b"%b %d\r\n%b\r\n" % (word, len(body), body))
        self.core._wake()
        reply = session.take_replies()
        self.core.close(session)
        return reply


class Chance:
    """Chooses random actions, guided by the model so that most commands refer to something that exists."""

    def __init__(self, rng, commands=COMMANDS, seconds=SECONDS, step_ns=1, jobs_max=(2, 5, 20, 60)):
        """``step_ns`` is the unit of time. One of ``jobs_max`` is chosen as the maximum number of jobs."""
        self._rng = rng
        self._seconds = seconds
        self._step_ns = step_ns
        self._jobs_max = rng.choice(jobs_max)
        self._commands = commands
        self._names = NAMES

    def action(self, model, kinds=ACTIONS):
        rng = self._rng
        kind = rng.choice(kinds)
        if kind == "connect" or not model.clients:
            return ("connect",) if len(model.clients) < CLIENTS_MAX else ("leave", 0, "drop")
        if kind == "send":
            return self.send(model)
        if kind == "leave":
            return ("leave", rng.randrange(CLIENTS_MAX), rng.choice(("drop", "quit", "half-close")))
        if kind == "refuse puts":
            return ("refuse puts", rng.choice(("draining", "full", "", "", "", "")))
        return (kind, self._wait_ns(model))

    def send(self, model):
        """Return a send: mostly one command in a packet, often by a client that holds a job."""
        number = self._rng.randrange(len(model.clients))
        holders = [each for job in model.jobs for each in (job.holder, job.offered_to) if each is not None]
        if holders and self._rng.randrange(3) == 0:
            number = model.clients.index(self._rng.choice(holders))
        count = self._rng.choice((1, 1, 1, 1, 2, 3))
        return ("send", number, [self.command(model, model.clients[number]) for _ in range(count)])

    def command(self, model, client):
        rng = self._rng
        name = rng.choice(self._commands)
        if len(model.jobs) > self._jobs_max and name == "put":
            name = "delete"
        if model._offered(client) and rng.randrange(3) == 0:
            name = rng.choice(("take", "decline"))
        word = name.encode()
        if name == "put":
            return self._put()
        if name == "note":
            return self._note(self._job_id(model, client))
        if name == "malformed":
            return rng.choice(sorted(MALFORMED)), b""
        arguments = {
            **dict.fromkeys(("reserve-with-timeout", "offer"), lambda: [rng.choice((0, *self._seconds))]),
            **dict.fromkeys(("take", "decline"), lambda: [self._offered_id(model, client)]),
            "release": lambda: [self._job_id(model, client), rng.choice(PRIS), rng.choice((0, *self._seconds))],
            "bury": lambda: [self._job_id(model, client), rng.choice(PRIS)],
            "touch": lambda: [self._job_id(model, client)],
            "name": lambda: [rng.choice((b"web1/mail/17", b"x" * rng.choice((100, 101)), b'a"b'))],
            "kick": lambda: [rng.choice((0, 1, 2, 5, 100))],
            "pause-tube": lambda: [rng.choice(self._names), rng.choice((0, *self._seconds))],
            **dict.fromkeys(("use", "watch", "ignore", "stats-tube"), lambda: [rng.choice(self._names)]),
            **dict.fromkeys(
                ("reserve-job", "delete", "kick-job", "peek", "stats-job"), lambda: [self._job_id(model, None)]
            ),
        }.get(name, list)()
        texts = (word if isinstance(word, bytes) else b"%d" % word for word in (word, *arguments))
        return b" ".join(texts), b""

    def _put(self):
        rng = self._rng
        size = rng.choice(SIZES)
        delay_s = rng.choice((0, 0, 0, *self._seconds))
        line = b"put %d %d %d %d" % (rng.choice(PRIS), delay_s, rng.choice(self._seconds), size)
        end = b"!!" if rng.randrange(50) == 0 else b"\r\n"
        return line, b"x" * size + end

    def _note(self, job_id):
        rng = self._rng
        text = rng.choice((b"", b"x", "ß\n".encode(), b"\xff", b"x" * rng.choice((500, NOTE_MAX, NOTE_MAX + 1))))
        end = b"!!" if len(text) <= NOTE_MAX and rng.randrange(50) == 0 else b"\r\n"
        return b"note %d %d" % (job_id, len(text)), text + end

    def _job_id(self, model, holder):
        """Return an id, mostly of a job of the holder."""
        rng = self._rng
        jobs = model.jobs if holder is None else [job for job in model.jobs if job.holder is holder]
        if not jobs or rng.randrange(10) == 0:
            return rng.choice((0, *model.given[-1000:], model.last_id + 1))
        return rng.choice(jobs).id

    def _offered_id(self, model, client):
        """Return an id, mostly of a job that is offered to the client."""
        offered = model._offered(client)
        return self._rng.choice(offered).id if offered and self._rng.randrange(5) else self._job_id(model, None)

    def _wait_ns(self, model):
        """Return a time to wait, often exactly until something ends, or one step less or more."""
        rng = self._rng
        instants = [when for when, _ in model.instants() if when - model.now_ns < 1 << 62]
        if instants and rng.randrange(3):
            return max(
                0, rng.choice(sorted(instants)[:4]) - model.now_ns + rng.choice((0, 0, 0, -1, 1)) * self._step_ns
            )
        return rng.choice((self._step_ns, 50 * self._step_ns, SECOND_NS, SECOND_NS, 2 * SECOND_NS, 3600 * SECOND_NS))


def explore(seed, steps, make, think):
    """Play random sessions of ``steps`` steps in all. ``make`` returns the twins, ``think`` yields actions for them.

    AssertionError: they differ; the text has a minimal list of actions that shows this.
    """
    rng = random.Random(seed)
    while steps > 0:
        length = min(steps, rng.choice((50, 200, 1000)))
        steps -= length
        actions = []
        try:
            with make() as twins:
                for action in islice(think(random.Random(rng.getrandbits(64)), twins), length):
                    actions.append(action)
                    twins.play(action)
                twins.compare_all()
        except Exception as error:
            least = shrink(actions, make)
            told = "\n".join(map(str, least))
            raise AssertionError(f"seed {seed}; the least of it:\n{told}\n{difference(least, make)!r}") from error


def difference(actions, make):
    """Play the actions, and return the error; None if there is none."""
    try:
        with make() as twins:
            for action in actions:
                twins.play(action)
            twins.compare_all()
    except Exception as error:  # noqa: BLE001 - whatever it is
        return error
    return None


def shrink(actions, make):
    """Remove actions that are not needed for a difference, within SHRINKS_S."""
    end_s = time.monotonic() + SHRINKS_S

    def still_differs(fewer):
        return time.monotonic() < end_s and difference(fewer, make) is not None

    before = None
    while before != actions:
        before = actions
        size = len(actions) // 2
        while size:
            for at in range(len(actions) - size, -1, -size):
                fewer = actions[:at] + actions[at + size :]
                if still_differs(fewer):
                    actions = fewer
            size //= 2
        for at, (kind, *what) in enumerate(actions):
            for command in what[1] if kind == "send" and len(what[1]) > 1 else []:
                fewer = [*actions[:at], (kind, what[0], [command]), *actions[at + 1 :]]
                if still_differs(fewer):
                    actions = fewer
                    break
    return actions
