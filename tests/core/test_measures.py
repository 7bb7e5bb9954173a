"""Histograms, and what is noted in them of each job."""

from beanlite.core.job import SECOND_NS
from beanlite.core.measures import Histogram, Measures

PUT = b"put 0 0 60 1\r\nx\r\n"


def test_a_bound_has_what_is_at_most_as_much():
    histogram = Histogram([10, 20])
    for measure in (0, 10, 11, 20, 21, 1000):
        histogram.note(measure)
    histogram.note(15, 3)
    assert histogram.counts == [2, 5, 2]
    assert histogram.total == 1062 + 45


def test_waits_and_holds_of_jobs(core):
    measures = core.engine.ledger.measures = Measures()
    client = core.client()
    core.send(client, PUT)
    core.now_ns += 5 * SECOND_NS
    core.send(client, b"reserve\r\n")
    core.now_ns += 2 * SECOND_NS
    core.send(client, b"delete 1\r\n")
    core.send(client, b"reserve\r\n")
    core.send(core.client(), PUT)  # handed to who waits for it
    core.send(client, b"put 0 100 60 0\r\n\r\n")
    core.now_ns += SECOND_NS
    core.send(client, b"reserve-job 3\r\n")  # it was not ready
    assert (measures.waits.total, sum(measures.waits.counts)) == (5 * SECOND_NS, 3)
    assert (measures.holds.total, sum(measures.holds.counts)) == (2 * SECOND_NS, 1)


def test_what_was_counted_of_a_tube_is_known_when_it_has_been_taken(core):
    measures = core.engine.ledger.measures = Measures()
    client = core.client()
    for puts in (1, 3):
        core.send(client, PUT)
        core.engine.take_changes(deferred=False, totals=True)
        core.send(client, PUT)
        tube = core.engine.tubes[b"default"]
        assert (tube.taken.put, tube.tally.put) == (puts, 1)
        assert measures.tally.put == puts


def test_a_tube_that_has_gone_and_come_again_is_counted_as_one(core):
    measures = core.engine.ledger.measures = Measures()
    for job_id in 1, 2, 3:
        client = core.client()
        core.send(client, b"use mail\r\n" + PUT + b"delete %d\r\n" % job_id)
        core.close(client)
    (tally,) = core.engine.take_changes(deferred=False, totals=True).tallies
    assert (tally.name, tally.put, tally.deleted) == (b"mail", 3, 3)
    assert (measures.tally.put, measures.tally.deleted) == (3, 3)


def test_nothing_is_kept_unless_it_is_measured(core):
    core.send(core.client(), PUT)
    core.engine.take_changes(deferred=False, totals=True)
    assert core.engine.tubes[b"default"].taken is None
