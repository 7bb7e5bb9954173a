"""Jobs of a real beanstalkd in every state, and how servers show them."""

import random
import shutil

from tests.support.servers import start_beanstalkd
from tests.support.wire import Wire

TUBES = ("default", "mail", "a-b+c/d;e.f$g_h(i)")
# Statistics that depend on the moment or are specific to beanstalkd; the others are compared.
LEFT_ASIDE = {"age", "time-left", "file"}


class Producer:
    """A client that does everything to jobs.

    ``buried`` are the jobs that are buried according to the binlog, in order: it records neither a reserve-job nor a
    release without a delay.
    """

    def __init__(self, seed):
        self.chance = random.Random(seed)
        self.buried = {tube: {} for tube in TUBES}
        self.tubes = {}

    def begin(self, wire):
        """Begin with a server that has no reservations."""
        self.wire = wire
        self.held = []
        for tube in TUBES:
            self.wire.ask(f"watch {tube}")

    def unbury(self, job_id):
        self.buried[self.tubes[job_id]].pop(job_id, None)

    def put(self):
        tube = self.chance.choice(TUBES)
        self.wire.ask(f"use {tube}")
        body = self.chance.choice([b"", b"\r\n", bytes(90), self.chance.randbytes(self.chance.randrange(3000))])
        delay_s = self.chance.choice([0, 0, 0, 1000])
        job_id = self.wire.put(body, self.chance.randrange(2**32), delay_s, self.chance.randrange(1000, 2000))
        self.tubes[job_id] = tube

    def reserve(self):
        if (said := self.wire.ask("reserve-with-timeout 0").split())[0] == "RESERVED":
            self.held.append(int(said[1]))

    def finish(self):
        """End a reservation in one of the possible ways, or touch the job."""
        if not self.held:
            return
        job_id = self.held.pop(self.chance.randrange(len(self.held)))
        pri, delay_s = self.chance.randrange(2**32), self.chance.choice([0, 1000])
        what = self.chance.choice(["delete", "delete", "bury", "bury", "bury", "release", "release", "touch"])
        if what == "touch":
            assert self.wire.ask(f"touch {job_id}") == "TOUCHED"
            self.held.append(job_id)
        elif what == "release":
            assert self.wire.ask(f"release {job_id} {pri} {delay_s}") == "RELEASED"
            if delay_s:
                self.unbury(job_id)
        elif what == "delete":
            assert self.wire.ask(f"delete {job_id}") == "DELETED"
            self.unbury(job_id)
        else:
            assert self.wire.ask(f"bury {job_id} {pri}") == "BURIED"
            self.unbury(job_id)
            self.buried[self.tubes[job_id]][job_id] = None

    def kick(self):
        self.wire.ask(f"use {self.chance.choice(TUBES)}")
        if (said := self.wire.ask("peek-buried")) != "NOT_FOUND":
            self.unbury(int(said.split()[1]))
        self.wire.ask("kick 1")

    def pick(self):
        """Run a command on any job, by its id."""
        if not self.tubes:
            return
        job_id = self.chance.randrange(1, len(self.tubes) + 1)
        what = self.chance.choice(["kick-job", "delete", "reserve-job"])
        if job_id in self.held or (said := self.wire.ask(f"{what} {job_id}")) == "NOT_FOUND":
            return
        if said.startswith("RESERVED"):
            self.held.append(job_id)
        else:
            self.unbury(job_id)

    def go(self, steps, puts=1):
        """Do this many random steps; with more ``puts``, more jobs are left at the end."""
        often = [*[self.put] * puts, self.reserve, self.finish]
        for _ in range(steps):
            self.chance.choice([*often, *often, *often, *often, self.kick, self.pick])()


def stats_of_all(server, last_id):
    """Return the statistics and the body of each job, by id."""
    with Wire(server.connect()) as wire:
        found = {}
        for job_id in range(1, last_id + 1):
            if wire.ask(f"peek {job_id}") != "NOT_FOUND":
                body = wire.body
                stats = wire.stats(f"stats-job {job_id}")
                found[job_id] = {key: value.strip('"') for key, value in stats.items() if key not in LEFT_ASIDE}, body
        return found


def kick_order(server, tube):
    """Kick the buried jobs of a tube one by one, and return their ids in the order in which they were kicked."""
    with Wire(server.connect()) as wire:
        wire.ask(f"use {tube}")
        order = []
        while (said := wire.ask("peek-buried")) != "NOT_FOUND":
            order.append(int(said.split()[1]))
            wire.ask("kick 1")
        return order


def as_beanstalkd_reads(log, last_id):
    """Return the same from a beanstalkd that is started on a copy of this directory; the copy is left behind."""
    copy = log.with_name("copy")
    shutil.copytree(log, copy)
    with start_beanstalkd(log.with_name("reference"), "-b", str(copy)) as server:
        found = stats_of_all(server, last_id)
    for stats, _ in found.values():
        if stats["state"] == "buried":  # at its start beanstalkd counts a burial that never happened
            stats["buries"] = str(int(stats["buries"]) - 1)
    return found
