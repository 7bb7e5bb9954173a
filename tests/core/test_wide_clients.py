"""Clients that wait at very many tubes are taken off the waiting lists in slices, and nobody serves them meanwhile."""

import pytest

from beanlite.core.queues import LINES_AT_ONCE
from tests.support.core import put

TUBES = LINES_AT_ONCE + 1


def wide(core):
    """A client that waits at very many tubes."""
    client = core.client()
    for number in range(TUBES - 1):
        core.send(client, b"watch t%d\r\n" % number)
    assert core.send(client, b"reserve\r\n") == b""
    return client


def listed(core):
    return sum(len(tube.waiting) for tube in core.engine.tubes.values())


def test_client_that_has_got_a_job_leaves_its_lists_soon(core):
    client, producer = wide(core), core.client()
    put(core, producer)
    assert client.take_replies() == b"RESERVED 1 1\r\nx\r\n"
    assert core.engine.counts.waiting == 0
    assert listed(core) == TUBES
    core.wait(0)
    assert listed(core) == 0


@pytest.mark.parametrize("end", ["stop", "close"])
def test_client_that_waits_no_more_is_passed_over(core, end):
    first, second, producer = wide(core), wide(core), core.client()
    if end == "stop":
        first.stop_waiting()
    else:
        core.close(first)
    put(core, producer)
    assert second.take_replies() == b"RESERVED 1 1\r\nx\r\n"
    assert put(core, producer) == 2
    assert core.engine.jobs[2].holder is None


def test_client_that_waits_again_does_so_behind_the_others(core):
    first, second, producer = wide(core), wide(core), core.client()
    put(core, producer)
    first.take_replies()
    core.send(first, b"ignore t0\r\nreserve\r\n")
    put(core, producer)
    put(core, producer)
    assert second.take_replies() == b"RESERVED 2 1\r\nx\r\n"
    assert first.take_replies() == b"RESERVED 3 1\r\nx\r\n"
    core.wait(0)
    assert listed(core) == 0


def test_very_many_clients_leave_their_lists_in_slices(core):
    clients = [wide(core) for _ in range(200)]
    for client in clients:
        client.stop_waiting()
    core.engine.tick(core.now_ns)
    assert 0 < listed(core) < TUBES * len(clients)
    core.wait(0)
    assert listed(core) == 0
