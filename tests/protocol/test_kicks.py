"""A kick of more jobs than a slice, between whose slices other clients have their turn."""

import pytest

from beanlite.core.job import SLICE
from beanlite.protocol.blocked import KICKING
from tests.support.core import put

JOBS = 3 * SLICE


@pytest.fixture
def kicker(core):
    return core.client()


@pytest.fixture
def worker(core):
    return core.client()


def go_to_slice(core, client, line):
    """Send a kick, which does its first slice."""
    client.receive(line, core.now_ns)
    client.resume(core.now_ns)
    assert client.blocked is KICKING


def end(core, client):
    while client.blocked is KICKING:
        client.resume(core.now_ns)
    return client.take_replies()


def bury(core, worker, number):
    """Have a client reserve and bury jobs; return their ids."""
    ids = [int(core.send(worker, b"reserve\r\n").split()[1]) for _ in range(number)]
    for job_id in ids:
        assert core.send(worker, b"bury %d 0\r\n" % job_id) == b"BURIED\r\n"
    return ids


def buried(core):
    return {job.id for job in core.engine.jobs.in_order() if job.state.value == "buried"}


@pytest.fixture
def all_buried(core, worker):
    for _ in range(JOBS):
        put(core, worker)
    bury(core, worker, JOBS)


@pytest.mark.usefixtures("all_buried")
def test_kick_leaves_alone_what_is_buried_after_it_began(core, kicker, worker):
    go_to_slice(core, kicker, b"kick 1000000\r\n")
    again = bury(core, worker, 100)
    assert end(core, kicker) == b"KICKED %d\r\n" % JOBS
    assert buried(core) == set(again)
    assert core.engine.jobs[again[0]].past.kicks == 1


@pytest.mark.usefixtures("all_buried")
def test_kick_does_not_make_up_for_jobs_that_leave_meanwhile(core, kicker, worker):
    go_to_slice(core, kicker, b"kick %d\r\n" % JOBS)
    for job_id in range(JOBS - 99, JOBS + 1):
        assert core.send(worker, b"kick-job %d\r\n" % job_id) == b"KICKED\r\n"
    again = bury(core, worker, 100)
    assert end(core, kicker) == b"KICKED %d\r\n" % (JOBS - 100)
    assert buried(core) == set(again)


@pytest.mark.usefixtures("all_buried")
def test_two_kicks_at_a_time_kick_each_job_once(core, kicker, worker):
    other = core.client()
    go_to_slice(core, kicker, b"kick 1000000\r\n")
    go_to_slice(core, other, b"kick 1000000\r\n")
    again = bury(core, worker, 100)
    assert (end(core, kicker), end(core, other)) == (b"KICKED %d\r\n" % (JOBS - SLICE), b"KICKED %d\r\n" % SLICE)
    assert buried(core) == set(again)


def test_kick_ends_though_jobs_are_delayed_again_and_again(core, kicker, worker):
    for _ in range(JOBS):
        put(core, worker, delay_s=100)
    go_to_slice(core, kicker, b"kick 1000000\r\n")
    for _ in range(100):
        job_id = int(core.send(worker, b"reserve\r\n").split()[1])
        core.send(worker, b"release %d 0 50\r\n" % job_id)
    assert end(core, kicker) == b"KICKED %d\r\n" % JOBS
    assert core.engine.counts.delayed == 100
