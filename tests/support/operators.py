"""Operators' commands, sent to the core; and a check of the core's counts and queues against its jobs."""

import json
from collections import Counter

from beanlite.core.job import BURIED, DELAYED, ID_BITS, OFFERED, READY, RESERVED
from beanlite.core.queues import URGENT_PRI
from beanlite.core.rules import WAITING


class Operator:
    """An operator's session."""

    def __init__(self, core):
        self.core = core
        self.session = core.client(operator=True)

    def raw(self, word, body):
        """Send a command with this body, and return the reply."""
        return _send(self.core, self.session, word, body)

    def ask(self, word, **what):
        """Send a request, and return the object in the reply."""
        return told(ask(self.core, self.session, word, **what))

    def refusal(self, word, **what):
        """Send a request that is refused, and return the reason."""
        reply = ask(self.core, self.session, word, **what)
        assert reply.startswith(b"REFUSED "), reply
        return told(reply)["error"]

    def all(self, word, key, **what):
        """Return the results of all slices."""
        found = []
        after = None
        while True:
            reply = self.ask(word, after=after, **what)
            found += reply[key]
            after = reply["next"]
            if after is None:
                return found

    def ids(self, **what):
        """Return the ids of the jobs that match a filter."""
        return [job["id"] for job in self.all("list-jobs", "jobs", **what)]

    def change(self, do, **what):
        """Change jobs, slice by slice; return how many were changed, and how many were skipped."""
        done = skipped = 0
        after = None
        while True:
            reply = self.ask("change-jobs", do=do, after=after, **what)
            done += reply["done"]
            skipped += reply["skipped"]
            after = reply["next"]
            if after is None:
                return done, skipped


def ask(core, session, word, **what):
    """Send a request from a session, and return the reply."""
    return _send(core, session, word, json.dumps(what).encode())


def _send(core, session, word, body):
    return core.send(session, b"%b %d\r\n%b\r\n" % (word.encode(), len(body), body))


def told(reply):
    """Return the object in a reply."""
    head, body = reply.split(b"\r\n", 1)
    assert int(head.split()[1]) == len(body) - 2, reply
    assert body.endswith(b"\r\n")
    return json.loads(body)


def all_jobs(engine):
    return [engine.jobs[job_id] for _, part in engine.jobs.segments() for job_id in part]


def recount(engine):
    """Compare all counts and queues with the jobs themselves."""
    jobs = all_jobs(engine)
    states = Counter(job.shown_state for job in jobs)
    counts = engine.counts
    assert (counts.reserved, counts.delayed, counts.buried) == (states[RESERVED], states[DELAYED], states[BURIED])
    assert counts.urgent == sum(job.state is READY and job.pri < URGENT_PRI for job in jobs)
    in_tubes = Counter((job.tube, job.shown_state) for job in jobs)
    assert {job.tube for job in jobs} <= set(engine.tubes.values())
    for tube in engine.tubes.values():
        found = (len(tube.ready), len(tube.delayed), len(tube.buried), tube.reserved)
        assert found == tuple(in_tubes[tube, state] for state in (READY, DELAYED, BURIED, RESERVED)), tube.name
        urgent = [job for job in jobs if job.tube is tube and job.state is READY and job.pri < URGENT_PRI]
        assert tube.urgent == len(urgent)
        for queue, state in ((tube.ready, READY), (tube.delayed, DELAYED), (tube.buried, BURIED)):
            assert keys_of(queue) == {job.key for job in jobs if job.tube is tube and job.state is state}
        is_kept = tube.name == b"default" or tube.pause_until_ns  # a restart keeps a pause, and the tube for it
        assert tube.using or tube.watching or tube.holds_jobs or is_kept, "it should have been dropped"
        recount_rules(tube, [job for job in jobs if job.tube is tube])
    assert counts.ruled_tubes == sum(tube.rules is not None for tube in engine.tubes.values())
    assert counts.fair_tubes == sum(bool(tube.rules and tube.rules.fair) for tube in engine.tubes.values())
    kept = [tube.kept for tube in engine.tubes.values() if tube.kept is not None]
    assert counts.twins == sum(each.twin_count for each in kept)
    assert counts.expiries == sum(each.expiry_count for each in kept)
    for client in engine.clients.connected.values():
        assert keys_of(client.deadlines) == {job.key for job in jobs if job.holder is client}
        offered = set() if client.offers is None else keys_of(client.offers.deadlines)
        assert offered == {job.key for job in jobs if job.state is OFFERED and job.holder is client.offers}
    for job in jobs:
        assert job.key & (1 << ID_BITS) - 1 == job.id
        assert (job.holder is None) == (job.shown_state is not RESERVED)
        assert (job.why is None) == (job.state is not BURIED)


def recount_rules(tube, jobs):
    """Compare what a tube knows for its rules with its jobs."""
    rules, kept = tube.rules, tube.kept
    assert (rules is None) == (kept is None)
    if kept is not None:
        ids = {job.id for job in jobs}
        known = set(entries_of(kept._twin_keys))
        assert known == (ids if rules.unique else set())
        hidden = {job.id for job in jobs if job.state in {RESERVED, BURIED}} if rules.unique == WAITING else set()
        assert {each for key in entries_of(kept._twins) for each in kept.twins(key)} == known - hidden
        assert len(kept._beside) == 2 * (len(known - hidden) - len(kept._twins))
        expiries = entries_of(kept._expiry_keys)
        assert set(expiries) <= (ids if rules.ttl_ns else set())
        assert keys_of(kept.expiries) == set(expiries.values())


def entries_of(wide):
    return {key: value for part in wide._parts for key, value in part.items()}


def keys_of(heap):
    return set(heap.keys) - heap._gone
