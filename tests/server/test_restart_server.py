"""Restarts of a real server amid random sessions: it goes on with what it has acknowledged, like the naive model.

The steps and the seed are set as for test_restart; a twentieth of the steps is played. Delays, ttrs and pauses are
absent, or too long to end meanwhile, so that the clock affects only ages.

An orderly stop keeps everything. A kill may lose changes that were not promised: a reservation, a touch, or the end of
a pause with its tube. The replies to the last commands before either are not awaited: all or none are carried out.
"""

import re
import signal
import socket
import struct
import time
from itertools import count
from math import ceil
from operator import itemgetter
from typing import NamedTuple

from beanlite.journal.sqlite.served.writer import IDS_AHEAD
from tests.server.test_restart import SEED, STEPS
from tests.support.model import Model
from tests.support.model_policies import SECOND_NS
from tests.support.model_queues import Job
from tests.support.servers import start_beanlite
from tests.support.sessions import CLIENTS_MAX, MAX_JOB_SIZE, NAMES, Chance, explore, weighted
from tests.support.wire import HAVE_BODY, Wire, until

SERVED_STEPS = STEPS // 20
# Commands that leave much for a restart to keep, and few waiting reserves, as some of these would never end.
LASTING_COMMANDS = weighted(
    {
        "put": 20,
        "reserve": 5,
        "reserve-with-timeout": 8,
        "reserve-job": 16,
        "delete": 4,
        "release": 10,
        "bury": 24,
        "touch": 2,
        "kick": 1,
        "kick-job": 2,
        "pause-tube": 10,
        "use": 6,
        "watch": 6,
        "ignore": 6,
        "list-tubes": 1,
        "stats-tube": 1,
        "stats-job": 1,
    }
)
LONG_SECONDS = (100_000, 200_000)
KINDS = weighted({"send": 20, "connect": 2, "leave": 1})
FSYNC = ("always", "50ms", "never")
PROMISES = (b"INSERTED", b"DELETED", b"RELEASED", b"BURIED", b"KICKED", b"PAUSED")
CLOCK = re.compile(rb"\b(age|time-left): (\d+)")
PAUSE = re.compile(rb"\npause: (\d+)\npause-time-left: (\d+)\n|^NOT_FOUND")
LEFT_OUT = re.compile(rb"^OK \d+|current-(using|watching): \d+")  # a length; counts with the querying client


class Kept(NamedTuple):
    """What the file may have: for each job and pause, one of these; None means that it is absent."""

    jobs: dict[int, list[Job | None]]
    pauses: dict[bytes, list[tuple[int, int] | None]]
    last_id: int


# The words of commands that the server carries out when it is their turn.
SET_ASIDE = (b"stats", b"list-tubes", b"reserve-batch")
# On a busy machine the server may defer a client for a turn, and serve others first.
TURNS = 3


class ServedTwins:
    """A server and the model, which have to agree after each action."""

    def __init__(self, directory):
        self.directory = directory
        self.starts = count()
        self.model = Model(time.time_ns(), MAX_JOB_SIZE)
        self.longest_ns = 0
        """For so long the server has had a command at most, and may have carried it out later than the model."""
        self.pairs = []
        """Pairs of a connection and the model's client."""
        self.kept = self._all()
        self._start()

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        self.server.kill()
        self._hang_up()

    def play(self, action):
        """Play an action. AssertionError: server and model differ."""
        kind, *what = action
        self._tick()
        getattr(self, "_" + kind)(*what)

    def _tick(self):
        now_ns = time.time_ns()
        self.longest_ns = max(self.longest_ns, now_ns - self.model.now_ns)
        self.model.now_ns = now_ns

    def _agree(self, said, expected):
        """Return whether two replies agree, except in values that depend on the moment of asking."""
        if not said.startswith(b"OK "):
            return said == expected
        texts = {LEFT_OUT.sub(b"", CLOCK.sub(b"", text)) for text in (said, expected)}
        late_ns = max(self.longest_ns, time.time_ns() - self.model.now_ns)
        differ_s = 1 + ceil(late_ns / SECOND_NS)  # 1 for the fractions of seconds that replies leave out
        return len(texts) == 1 and max(times_differ_s(said, expected), default=0) <= differ_s

    def compare_all(self):
        """Compare everything that a kill leaves, and at last the order of all queues, which empties them."""
        self.play(("crash", 0, []))
        for name in [tube.name for tube in self.model.tubes]:
            jobs = sum(job.tube.name == name for job in self.model.jobs)
            lines = [b"use " + name, b"watch " + name, b"pause-tube %b 0" % name]
            lines += [b"peek-buried", b"peek-delayed", b"kick 1"] * jobs
            lines += [b"peek-ready", b"reserve-with-timeout 0"] * (jobs + 1)
            self.play(("send", 0, [(line, b"") for line in lines]))

    # -- what clients do

    def _connect(self):
        self.pairs.append((Wire(self.server.connect()), self.model.connect()))
        self._send(-1, [(b"list-tube-used", b"")])  # so that the server has accepted the connection

    def _send(self, number, commands):
        if self.pairs:
            self._begin_to_send(number, commands)
            for _ in range(TURNS):
                self.probe.ask("list-tube-used")
            self._hear()

    def _begin_to_send(self, number, commands):
        """Send commands up to one that the server sets aside: that and what follows would be in another batch."""
        first = next((at for at, (line, _) in enumerate(commands) if line.startswith(SET_ASIDE)), len(commands))
        commands = commands[: max(1, first)]
        wire, client = self.pairs[number % len(self.pairs)]
        wire.send(b"".join(line + b"\r\n" + rest for line, rest in commands))
        self.model.send(client, commands)

    def _leave(self, number, _how):
        if not self.pairs:
            return
        wire, client = self.pairs.pop(number % len(self.pairs))
        # Close without FIN, after which the server would still process the commands behind a reserve.
        wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        wire.close()
        self.model.close(client)
        until(lambda: int(self.probe.stats()["current-connections"]) == len(self.pairs) + 1)
        self._hear()

    def _hear(self):
        """Read the replies that are due, and compare them."""
        for number, (wire, client) in enumerate(self.pairs):
            for expected in client.replies:
                said = reply(wire)
                assert self._agree(said, expected), f"client {number}: the server says {said}, the model {expected}"
        self.kept = self._note()

    # -- what the file may have

    def _all(self):
        """Return the present state as the only possible one."""
        jobs = {job.id: [job] for job in self.model.snapshot()}
        return Kept(jobs, {name: [pause] for name, pause in self.model.pauses().items()}, self.model.last_id)

    def _note(self):
        """Acknowledged changes are in the file as they are now; of others the file has the present or an older state.

        This holds because all changes by one packet are in one batch.
        """
        promised = any(said.startswith(PROMISES) for client in self.model.clients for said in client.replies)
        for client in self.model.clients:
            client.replies.clear()
        jobs, pauses = dict(self.kept.jobs), dict(self.kept.pauses)
        now = self._all()
        for job_id in jobs | now.jobs | dict.fromkeys(self.model.promised):
            before = [] if job_id in self.model.promised else jobs[job_id]
            jobs[job_id] = before + now.jobs.get(job_id, [None])
        for name in pauses | now.pauses:
            before = [] if promised else pauses.get(name, [None])
            pauses[name] = before + now.pauses.get(name, [None])
        self.model.promised.clear()
        return Kept(jobs, pauses, now.last_id)

    # -- the end, and the restart

    def _crash(self, number, commands):
        before = self.kept
        if commands and self.pairs:
            self._begin_to_send(number, commands)
        after = self._note()
        self._end(signal.SIGKILL)
        self._restart(before, after, ids_left_out=IDS_AHEAD)

    def _stop(self, number, commands):
        before = self._all()
        if commands and self.pairs:
            self._begin_to_send(number, commands)
        after = self._all()
        self._end(signal.SIGTERM)
        self._restart(before, after, ids_left_out=0)

    def _end(self, number):
        self.server.signal(number)
        code = self.server.process.wait(20)
        assert code == (0 if number == signal.SIGTERM else -number), self.server.log_text()
        self._hang_up()

    def _hang_up(self):
        for wire in (self.probe, *(wire for wire, _ in self.pairs)):
            wire.close()
        self.pairs.clear()

    def _start(self):
        fsync = FSYNC[next(self.starts) % len(FSYNC)]
        flags = ("-z", str(MAX_JOB_SIZE), "--log-level", "warning")
        self.server = start_beanlite(self.directory, *flags, *self._place(fsync))
        self.probe = Wire(self.server.connect())

    def _place(self, fsync):
        """Return the flags that say where the jobs are stored."""
        return "--fsync", fsync

    def _restart(self, *alternatives, ids_left_out):
        """Start the server, find out which of the alternatives it has, and compare everything with that."""
        self._start()
        self._tick()
        said = {line: self._ask(line) for line in self._looks(alternatives[-1].last_id)}
        found = [self._find(kept, said) for kept in alternatives]
        fitting = [each for each in found if isinstance(each, tuple)]
        assert fitting, found
        last_id = self.probe.put(b"next", ttr_s=LONG_SECONDS[0]) - 1
        at_last = [each for each in fitting if 0 <= last_id - each[1] <= ids_left_out]
        assert at_last, f"the next id is {last_id + 1}, after {[each[1] for each in fitting]}"
        jobs, _, pauses, _ = min(at_last, key=itemgetter(3))
        self.model.restart(jobs, last_id, pauses)
        for line, shown in said.items():
            expected = self.model._carry_out(None, line, b"")
            assert self._agree(shown, expected), f"{line}: the server says {shown}, the model {expected}"
        self.model.send(self.model.connect(), [(b"put 0 0 %d 4" % LONG_SECONDS[0], b"next\r\n")])
        self.model.close(self.model.clients[0])
        self.model.promised.clear()
        self.kept = self._all()
        self._connect()
        heads = [b"peek-ready", b"peek-delayed", b"peek-buried"]
        lines = [line for tube in self.model.tubes for line in (b"use " + tube.name, *heads)]
        self._send(0, [(line, b"") for line in lines])

    def _looks(self, last_id):
        yield b"list-tubes"
        for name in NAMES:
            yield b"stats-tube " + name
        for job_id in (*self.model.given, last_id + 1):
            yield b"stats-job %d" % job_id
            yield b"peek %d" % job_id

    def _ask(self, line):
        self.probe.send(line + b"\r\n")
        return reply(self.probe)

    def _find(self, kept, said):
        """Return the jobs, the last id and the pauses that the server has, and by how much the times differ in all.

        Or a text that says what does not fit. Of several versions that fit, the nearest in time is taken: the same
        pause may have been set twice.
        """
        jobs, pauses, differ_s = [], {}, 0
        for job_id in (int(line.split()[1]) for line in said if line.startswith(b"stats-job ")):
            shown = said[b"stats-job %d" % job_id]
            restored = [version and self.model.restored(version) for version in kept.jobs.get(job_id, [None])]
            stats = [(job, self.model.stats_of(job) if job else b"NOT_FOUND\r\n") for job in reversed(restored)]
            known = [(sum(times_differ_s(shown, text)), job) for job, text in stats if self._agree(shown, text)]
            if not known:
                return f"of {restored} the server says {shown}"
            job_differs_s, job = min(known, key=itemgetter(0))
            jobs += [job] if job else []
            differ_s += job_differs_s
        for name in NAMES:
            shown = said[b"stats-tube " + name]
            pause_s, left_s = map(int, PAUSE.search(shown).groups(default=0))
            versions = [pause or (0, 0) for pause in kept.pauses.get(name, [None])]
            left = [(max(0, until_ns - self.model.now_ns) // SECOND_NS, (s, until_ns)) for s, until_ns in versions]
            known = [(abs(left_s - own_s), pause) for own_s, pause in reversed(left) if pause[0] == pause_s]
            if not known:
                return f"of {versions} the server says {shown}"
            pause_differs_s, pause = min(known, key=itemgetter(0))
            pauses |= {name: pause} if pause_s else {}
            differ_s += pause_differs_s
        return jobs, kept.last_id, pauses, differ_s


class TwinsOnPostgres(ServedTwins):
    """The same with the jobs in PostgreSQL; after a kill the next start waits for the end of the lease."""

    def __init__(self, directory, cluster):
        self.url = cluster.url(directory.name)
        cluster.sql(f"CREATE DATABASE {directory.name}")
        super().__init__(directory)

    def _place(self, _fsync):
        return "--database", self.url, "--require-sync", "false", "--lease", "1s"


def reply(wire):
    line = wire.reply().encode() + b"\r\n"
    return line + wire.body + b"\r\n" if line.startswith(HAVE_BODY) else line


def times_differ_s(*texts):
    """Return by how much each age and time that is left differs in two replies that are equal otherwise."""
    times = [[int(seconds) for _, seconds in CLOCK.findall(text)] for text in texts]
    return [abs(ours - theirs) for ours, theirs in zip(*times, strict=True)]


def think(rng, twins):
    chance = Chance(rng, LASTING_COMMANDS, LONG_SECONDS)
    while True:
        yield from [("connect",)] * rng.randrange(1, CLIENTS_MAX - 1)
        for _ in range(rng.randrange(30)):
            yield chance.action(twins.model, KINDS)
        last = chance.send(twins.model)[1:] if twins.model.clients and rng.randrange(3) else (0, [])
        yield (rng.choice(("crash", "stop")), *last)


def test_random_sessions_with_a_server(tmp_path, record_property):
    folders = (tmp_path / str(number) for number in count())
    explore(SEED, SERVED_STEPS, lambda: ServedTwins(next(folders)), think)
    record_property("restart steps", (SERVED_STEPS, f"RESTART_SEED={SEED}, a real server"))


def test_random_sessions_with_a_server_on_postgresql(tmp_path, postgres, record_property):
    folders = (tmp_path / f"restarts{number}" for number in count())
    explore(SEED, SERVED_STEPS // 3, lambda: TwinsOnPostgres(next(folders), postgres), think)
    record_property("restart steps", (SERVED_STEPS // 3, f"RESTART_SEED={SEED}, a real server on PostgreSQL"))
