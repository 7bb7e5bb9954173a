"""Random sessions through a router in front of one server agree with the model of a server, byte for byte but ids.

::

    MODEL_STEPS=100000 python -m pytest tests/router/test_random_sessions.py
"""

import os
import random
import re
from itertools import repeat
from typing import Any

from tests.router.cores import SECOND_NS, Net
from tests.support.core import Core
from tests.support.model import Model
from tests.support.sessions import COMMANDS, MAX_JOB_SIZE, Chance, Twins, explore

STEPS = int(os.environ.get("MODEL_STEPS", "3000"))
SEED = int(os.environ.get("MODEL_SEED", str(random.randrange(1 << 32))))
# Without words that the router does not know, and note, which it sends only once it knows what the client has reserved.
THROUGH = [word for word in COMMANDS if word not in {"offer", "take", "decline", "note", "malformed"}]

_BY_ID = re.compile(rb"((?:delete|release|bury|touch|kick-job|reserve-job|peek|stats-job|note) )(\d+)(.*)", re.DOTALL)
_WITH_ID = re.compile(rb"((?:INSERTED|RESERVED|FOUND|BURIED) |\nid: )(\d+)")
_OK_JOB = re.compile(rb"OK (\d+)\r\n(---\nid: \d+\n)")
# What the router adds to stats.
_OURS = re.compile(
    rb"OK (\d+)\r\n(---\ncurrent-jobs-urgent.*?\n)(router-servers.*?router-map-version: \d+\n)", re.DOTALL
)
NUMBER = 5


def outer(line):
    match = _BY_ID.fullmatch(line)
    return line if match is None else b"%b%d%b" % (match[1], int(match[2]) * 64 + NUMBER, match[3])


def inner(replies):
    """Return replies with the ids of the server, and without what the router adds."""

    def resized(match):
        job_id = int(match[2].split(b" ")[1])
        return b"OK %d\r\n%b" % (int(match[1]) - len(str(job_id)) + len(str(job_id // 64)), match[2])

    def without_number(match):
        assert int(match[2]) % 64 == NUMBER
        return b"%b%d" % (match[1], int(match[2]) // 64)

    replies = _WITH_ID.sub(without_number, _OK_JOB.sub(resized, replies))
    return _OURS.sub(lambda match: b"OK %d\r\n%b" % (int(match[1]) - len(match[3]), match[2]), replies)


class RoutedSession:
    """A client of the router, as ``Twins`` sees a session of a server."""

    def __init__(self, client):
        self.client = client
        self._blocked = None

    @property
    def blocked(self):
        session = self.client.session
        return session.waits_on or session.wait or (session.is_over and self._blocked) or None

    @blocked.setter
    def blocked(self, value):
        self._blocked = value

    def take_replies(self):
        return inner(self.client.take())


class RoutedCore:
    """A server behind a router, as ``Twins`` sees a server."""

    def __init__(self):
        self.net = Net((), first=NUMBER, max_job_size=MAX_JOB_SIZE)
        self.net.ends = False  # the tubes of such a client are compared before it is gone
        self.core: Core = self.net.cores[NUMBER]

    @property
    def now_ns(self):
        return self.core.now_ns

    @property
    def engine(self):
        return self.core.engine

    def client(self):
        client = self.net.client()
        # The server knows of a client as soon as it connects.
        lane = client.session.sole
        lane.ensure()
        self.net.run()
        return RoutedSession(client)

    def receive(self, session, data):
        session.client.session.receive(data, self.net.now_s)
        self.net.run()

    def _wake(self):
        self.net.run()

    def half_close(self, session):
        session.client.session.half_close(self.net.now_s)
        self.net.run()

    def close(self, session):
        session.client.leave()

    def wait(self, seconds):
        """As ``Core.wait``, with the router between the ticks."""
        core = self.core
        end_ns = core.now_ns + round(seconds * SECOND_NS)
        while core.engine.timers.next_ns <= end_ns:
            core.now_ns = max(core.now_ns, core.engine.timers.next_ns)
            core.engine.tick(core.now_ns)
            core._wake()
            self.net.run()
        core.now_ns = end_ns

    def jump(self, seconds):
        self.core.jump(seconds)
        self.net.run()


class RoutedTwins(Twins):
    """A server behind a router, and the model."""

    def __init__(self):
        self.core: Any = RoutedCore()
        self.model = Model(self.core.now_ns, MAX_JOB_SIZE)
        self.pairs = []

    def ask(self, line):
        return inner(super().ask(line))

    def _send(self, number, commands):
        if self.pairs:
            session, client = self.pairs[number % len(self.pairs)]
            self.core.receive(session, b"".join(outer(line) + b"\r\n" + rest for line, rest in commands))
            self.model.send(client, commands)

    def _leave(self, number, how):
        if self.pairs:
            session, client = self.pairs[number % len(self.pairs)]
            if how == "half-close":
                self.core.half_close(session)
                self.model.half_close(client)
            self.compare()
            self.pairs.remove((session, client))
            self.core.close(session)
            self.model.close(client)

    def compare_all(self):
        self.play(("wait", 0))


def think(rng, twins):
    chance = Chance(rng, THROUGH)
    return (chance.action(twins.model) for _ in repeat(None))


def test_router_of_one_server_agrees_with_the_model():
    print(f"MODEL_SEED={SEED}")  # noqa: T201 - shown if it fails
    explore(SEED, STEPS, RoutedTwins, think)
