"""Offers over sockets: what ends the wait of a client, and what becomes of its jobs when it is gone."""

import socket
from functools import partial

import pytest

from tests.support.servers import start_beanlite
from tests.support.wire import Wire, until


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with start_beanlite(tmp_path_factory.mktemp("offers")) as server:
        yield server


@pytest.fixture
def router(server):
    with Wire(server.connect()) as wire:
        yield wire


@pytest.fixture
def other(server, router):
    with Wire(server.connect()) as wire:
        yield wire
        router.close()
        last_id = wire.put(b"")
        until(partial(is_empty, wire, last_id))


def is_empty(wire, last_id):
    """Delete all jobs; return whether there are none any more."""
    return all(
        wire.ask(f"delete {job_id}") and wire.ask(f"peek {job_id}") == "NOT_FOUND" for job_id in range(1, last_id + 1)
    )


def is_waiting(other):
    return other.stats()["current-waiting"] == "1"


def test_router_takes_one_job_and_declines_another(router, other):
    jobs = [other.put(body) for body in (b"one", b"two")]
    for job_id, body in zip(jobs, (b"one", b"two"), strict=True):
        assert router.ask("offer 60") == f"OFFERED {job_id} 3"
        assert router.body == body
    assert router.ask(f"decline {jobs[0]}") == "DECLINED"
    assert other.ask("reserve") == f"RESERVED {jobs[0]} 3"
    assert router.ask(f"take {jobs[1]}") == "TAKEN"
    for wire, job_id in ((router, jobs[1]), (other, jobs[0])):
        assert wire.stats(f"stats-job {job_id}")["reserves"] == "1"
        assert wire.ask(f"delete {job_id}") == "DELETED"


def test_job_that_is_not_taken_goes_to_the_next_client_that_waits(router, other):
    job_id = other.put(b"x")
    assert router.ask("offer 60") == f"OFFERED {job_id} 1"
    assert other.ask("reserve-with-timeout 60") == f"RESERVED {job_id} 1"
    assert router.ask(f"take {job_id}") == "NOT_FOUND"
    assert other.stats(f"stats-job {job_id}")["reserves"] == "1"


def test_whatever_a_client_sends_ends_its_wait(router, other):
    router.send(b"offer 60\r\n")
    until(partial(is_waiting, other))
    router.send(b"l")
    assert router.reply() == "TIMED_OUT"
    router.send(b"ist-tube-used\r\noffer 60\r\nlist-tube-used\r\noffer 60\r\n")
    assert [router.reply() for _ in range(3)] == ["USING default", "TIMED_OUT", "USING default"]
    until(partial(is_waiting, other))
    job_id = other.put(b"x")
    assert router.reply() == f"OFFERED {job_id} 1"


def test_half_close_ends_the_wait(router, other):
    router.send(b"offer 60\r\n")
    until(partial(is_waiting, other))
    router.socket.shutdown(socket.SHUT_WR)
    assert router.reply() == "TIMED_OUT"
    assert router.is_closed()


@pytest.mark.parametrize("way", ["close", "quit", "reset"])
def test_jobs_of_a_client_that_leaves_are_for_others_at_once(router, other, way):
    job_id = other.put(b"x")
    assert router.ask("offer 60") == f"OFFERED {job_id} 1"
    if way == "quit":
        router.send(b"quit\r\n")
    elif way == "reset":
        router.send(b"offer 60\r\n")
        until(partial(is_waiting, other))
    if way != "quit":
        router.close()
    assert other.ask("reserve-with-timeout 1") == f"RESERVED {job_id} 1"  # before an offer would be over
    assert other.stats(f"stats-job {job_id}")["reserves"] == "1"
