"""Random sessions through a router with two servers that are lost, halted and away, and between which a tube moves.

A ledger knows what the replies say: no acknowledged job is lost or comes back, none is given to two clients, each
command has its reply, and nobody is told that there is no job while there is one.

::

    MODEL_STEPS=100000 python -m pytest tests/router/test_random_fleets.py
"""

import os
import random

from beanlite.core.tube import is_tube_name
from tests.router.cores import Net, put

STEPS = int(os.environ.get("MODEL_STEPS", "3000"))
SEED = int(os.environ.get("MODEL_SEED", str(random.randrange(1 << 32))))
SESSION_STEPS = 200
CLIENTS = 4
TUBES = [b"default", b"a", b"b", b"b.x"]
# How the replies to each command begin.
REPLIES = {
    b"put": (b"INSERTED",),
    b"use": (b"USING",),
    b"watch": (b"WATCHING",),
    b"ignore": (b"WATCHING", b"NOT_IGNORED"),
    b"reserve": (b"RESERVED",),
    b"reserve-with-timeout": (b"RESERVED", b"TIMED_OUT"),
    b"reserve-job": (b"RESERVED", b"NOT_FOUND"),
    b"delete": (b"DELETED", b"NOT_FOUND"),
    b"release": (b"RELEASED", b"NOT_FOUND"),
    b"bury": (b"BURIED", b"NOT_FOUND"),
    b"kick": (b"KICKED",),
    b"peek": (b"FOUND", b"NOT_FOUND"),
    b"peek-ready": (b"FOUND", b"NOT_FOUND"),
    b"stats": (b"OK",),
    b"list-tubes": (b"OK",),
}
MOVED = {"b": {"from": "s2", "to": "s1"}}


class Player:
    """A client, with the commands that have no reply yet."""

    def __init__(self, net):
        self.end = net.client()
        self.asked = []
        self.received = b""
        self.unsent = b""
        """The rest of the last command, before which other things may happen."""
        self.lost = set()
        """Servers whose connections were lost: until all commands are answered, replies may be older than that."""


class Fleet:
    """The net, the clients and the ledger."""

    def __init__(self, rng, old):
        self.rng = rng
        self.net = Net(["a"], ["b", "b.x"], old=old)
        self.players = []
        self.bodies = 0
        self.jobs = {}
        """The bodies of jobs that were acknowledged, and not deleted, by id."""
        self.doubtful = set()
        """Bodies of puts that were not answered, and ids whose deletion was not."""
        self.deleted = {}
        self.at = 0
        self.gained = []
        """Jobs that clients have been given in this step."""
        self.held = {}
        self.was_away = False

    def step(self):  # noqa: C901 - a case each
        """Do something at random."""
        self.at += 1
        rng, net = self.rng, self.net
        if len(self.players) < CLIENTS and rng.random() < 0.2:
            self.players.append(Player(net))
        kind = rng.random()
        if kind < 0.02:
            self.lose(rng.choice((1, 2)))
        elif kind < 0.03:
            self.was_away = True
            number = rng.choice((1, 2))
            self.lose(number)
            net.leave(number)
        elif kind < 0.06:
            for number in list(net.away):
                net.come_back(number)
        elif kind < 0.08:
            net.halted.add(rng.choice((1, 2)))
        elif kind < 0.12:
            net.halted.clear()
            net.run()
        elif kind < 0.13:
            net.change(["a"], ["b", "b.x"]) if net.map.fleet.moved else net.change(["a"], ["b.x"], moved=MOVED)
        elif kind < 0.16:
            net.wait(rng.choice((0.1, 1.0, 2.5)))
        elif kind < 0.18 and self.players:
            self.leave(rng.choice(self.players))
        elif self.players:
            self.send(rng.choice(self.players))
        self.hear_all()

    def hear_all(self):
        for player in list(self.players):
            self.hear(player)
        for job_id, player, asked_at in self.gained:  # now that it is known who has released it
            holder, since = self.held.get(job_id, (player, self.at))
            gives_up = any(line.split()[1:2] == [b"%d" % job_id] for line, _ in holder.asked)
            assert since >= asked_at or gives_up, f"{job_id} is reserved twice"
            if player in self.players:
                self.held[job_id] = player, self.at
        self.gained.clear()

    def lose(self, number):
        self.hear_all()  # what has come before is known
        for player in self.players:
            if player.asked:
                player.lost.add(number)
        self.held = {job_id: held for job_id, held in self.held.items() if job_id % 64 != number}
        self.net.lose(number)

    def send(self, player):
        for _ in range(self.rng.choice((1, 1, 2, 5))):
            line, data = self.command(player)
            player.asked.append((line, self.at))
            data = player.unsent + data
            at = self.rng.randrange(len(data)) if self.rng.random() < 0.2 else len(data)
            player.unsent = data[at:]
            player.end.session.receive(data[:at], self.net.now_s)
        self.net.run()

    def command(self, player):
        rng = self.rng
        word = rng.choice([b"put", b"put", b"put", b"delete", b"delete", *REPLIES])
        if word == b"put":
            self.bodies += 1
            return b"put %d" % self.bodies, put(b"%d" % self.bodies, rng.choice((0, 1, 5)), 0, 3600)
        held = [job_id for job_id, (holder, _) in self.held.items() if holder is player]
        job_id = rng.choice(held or list(self.jobs) or [rng.randrange(200)])
        arguments = {
            b"use": b" " + rng.choice(TUBES),
            b"watch": b" " + rng.choice(TUBES),
            b"ignore": b" " + rng.choice(TUBES),
            b"reserve-with-timeout": b" %d" % rng.choice((0, 1)),
            b"release": b" %d %d 0" % (job_id, rng.choice((0, 3))),
            b"bury": b" %d 0" % job_id,
            b"kick": b" %d" % rng.choice((1, 10)),
            **dict.fromkeys((b"reserve-job", b"delete", b"peek"), b" %d" % job_id),
        }
        line = word + arguments.get(word, b"")
        return line, line + b"\r\n"

    def leave(self, player):
        self.hear_all()
        if player not in self.players:
            return
        self.forget(player)
        if player.end in self.net.clients:
            player.end.leave()

    def forget(self, player):
        """Note what is in doubt, because the client is gone."""
        self.players.remove(player)
        self.held = {job_id: held for job_id, held in self.held.items() if held[0] is not player}
        for line, _ in player.asked:
            word, _, argument = line.partition(b" ")
            if word == b"put":
                self.doubtful.add(argument)
            elif word == b"delete":
                self.doubtful.add(int(argument))

    def hear(self, player):
        """Compare the replies with what is known."""
        player.received += player.end.take()
        while player.received and player.asked:
            line, end, rest = player.received.partition(b"\r\n")
            assert end
            body = None
            if line.startswith((b"RESERVED ", b"FOUND ", b"OK ")):
                size = int(line.split()[-1])
                body, rest = rest[:size], rest[size + 2 :]
            player.received = rest
            asked, asked_at = player.asked.pop(0)
            self.judge(player, asked, asked_at, line, body)
        assert not player.received
        if not player.asked:
            player.lost.clear()
        if player.end.session.is_done:
            self.forget(player)
            player.end.leave()

    def judge(self, player, asked, asked_at, line, body):
        word, _, argument = asked.partition(b" ")
        said, number = line.split()[0], int(line.split()[1]) if line.split()[1:2] and line.split()[1].isdigit() else 0
        is_away = line == b"INTERNAL_ERROR" and (self.was_away or (word == b"put" and player.lost))
        assert said in REPLIES[word] or is_away, (asked, line)
        assert is_tube_name(argument) or word not in {b"use", b"watch"}
        if said == b"INSERTED":
            assert number not in self.jobs
            if number not in self.deleted:  # the reply waited for others
                self.jobs[number] = argument
        elif said in {b"RESERVED", b"FOUND"}:
            assert self.deleted.get(number, self.at) >= asked_at
            self.check_body(number, body)
            if said == b"RESERVED" and number % 64 not in player.lost and number not in self.deleted:
                self.gained.append((number, player, asked_at))
        elif said == b"DELETED":
            assert int(argument) not in self.deleted
            self.jobs.pop(int(argument), None)
            self.deleted[int(argument)] = self.at
        if said in {b"DELETED", b"RELEASED", b"BURIED"}:
            job_id = int(argument.split()[0])
            self.gained = [each for each in self.gained if each[:2] != (job_id, player)]
            if self.held.get(job_id, (player,))[0] is player or said == b"DELETED":
                self.held.pop(job_id, None)

    def check_body(self, job_id, body):
        if job_id not in self.jobs and job_id not in self.deleted:
            waits = {
                line.partition(b" ")[2] for player in self.players for line, _ in player.asked if line[:4] == b"put "
            }
            assert body in self.doubtful | waits, f"{job_id} was never put"
        else:
            assert self.jobs.get(job_id, body) == body

    def end(self):
        """Compare the servers with the ledger when all is over."""
        net = self.net
        net.halted.clear()
        net.run()
        for number in list(net.away):
            net.come_back(number)
        for player in list(self.players):
            self.leave(player)
        net.wait(3)
        there = {}
        for number, core in net.cores.items():
            client = core.client()
            for inner in range(1, self.bodies + 1):
                said = core.send(client, b"peek %d\r\n" % inner)
                if said.startswith(b"FOUND"):
                    there[inner * 64 + number] = said.split(b"\r\n")[1]
                    assert b"state: reserved" not in core.send(client, b"stats-job %d\r\n" % inner)
        for job_id, body in self.jobs.items():
            assert there.pop(job_id, None) == body or job_id in self.doubtful, f"{job_id} is lost"
        assert set(there.values()) <= self.doubtful
        assert not self.deleted.keys() & there.keys()


def test_random_fleets():
    print(f"MODEL_SEED={SEED}")  # noqa: T201 - shown if it fails
    rng = random.Random(SEED)
    for _ in range(STEPS // SESSION_STEPS):
        fleet = Fleet(random.Random(rng.getrandbits(64)), rng.choice(((), (), (2,), (1, 2))))
        for _ in range(SESSION_STEPS):
            fleet.step()
        fleet.end()
