"""Operators' commands, given to the core; and whether its counts and queues are those of its jobs."""

import json
from collections import Counter

from beanlite.core.job import BURIED, DELAYED, ID_BITS, READY, RESERVED
from beanlite.core.queues import URGENT_PRI


class Operator:
    """An operator's session."""

    def __init__(self, core):
        self.core = core
        self.session = core.client(operator=True)

    def raw(self, word, body):
        """The reply to a command with such a body."""
        return self.core.send(self.session, b"%b %d\r\n%b\r\n" % (word.encode(), len(body), body))

    def ask(self, word, **what):
        """The object that a request is answered."""
        reply = self.raw(word, json.dumps(what).encode())
        return told(reply)

    def refusal(self, word, **what):
        """Why it is refused."""
        reply = self.raw(word, json.dumps(what).encode())
        assert reply.startswith(b"REFUSED "), reply
        return told(reply)["error"]

    def all(self, word, key, **what):
        """What all slices tell."""
        found = []
        after = None
        while True:
            reply = self.ask(word, after=after, **what)
            found += reply[key]
            after = reply["next"]
            if after is None:
                return found

    def ids(self, **what):
        """The ids of the jobs that a filter chooses."""
        return [job["id"] for job in self.all("list-jobs", "jobs", **what)]

    def change(self, do, **what):
        """How many jobs all slices have changed, and how many they have skipped."""
        done = skipped = 0
        after = None
        while True:
            reply = self.ask("change-jobs", do=do, after=after, **what)
            done += reply["done"]
            skipped += reply["skipped"]
            after = reply["next"]
            if after is None:
                return done, skipped


def told(reply):
    """The object in a reply."""
    head, body = reply.split(b"\r\n", 1)
    assert int(head.split()[1]) == len(body) - 2, reply
    assert body.endswith(b"\r\n")
    return json.loads(body)


def all_jobs(engine):
    return [job for _, part in engine.jobs.segments() for job in part.values()]


def recount(engine):
    """Compare all that is counted or queued with what the jobs themselves say."""
    jobs = all_jobs(engine)
    states = Counter(job.state for job in jobs)
    counts = engine.counts
    assert (counts.reserved, counts.delayed, counts.buried) == (states[RESERVED], states[DELAYED], states[BURIED])
    assert counts.urgent == sum(job.state is READY and job.pri < URGENT_PRI for job in jobs)
    in_tubes = Counter((job.tube, job.state) for job in jobs)
    assert {job.tube for job in jobs} <= set(engine.tubes.values())
    for tube in engine.tubes.values():
        found = (len(tube.ready), len(tube.delayed), len(tube.buried), tube.reserved)
        assert found == tuple(in_tubes[tube, state] for state in (READY, DELAYED, BURIED, RESERVED)), tube.name
        urgent = [job for job in jobs if job.tube is tube and job.state is READY and job.pri < URGENT_PRI]
        assert tube.urgent == len(urgent)
        for queue, state in ((tube.ready, READY), (tube.delayed, DELAYED), (tube.buried, BURIED)):
            assert keys_of(queue) == {job.key for job in jobs if job.tube is tube and job.state is state}
        assert tube.using or tube.watching or tube.holds_jobs or tube.name == b"default", "it should have been dropped"
    for client in engine.clients.connected.values():
        assert keys_of(client.deadlines) == {job.key for job in jobs if job.holder is client}
    for job in jobs:
        assert job.key & (1 << ID_BITS) - 1 == job.id
        assert (job.holder is None) == (job.state is not RESERVED)
        assert (job.why is None) == (job.state is not BURIED)


def keys_of(heap):
    return set(heap.keys) - heap._gone
