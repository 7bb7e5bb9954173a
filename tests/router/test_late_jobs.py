"""Jobs that a server reserves for a client after the router no longer waits for them."""

import pytest

from tests.router.cores import Net, job_at, put, stats_of_job


def test_job_that_comes_late_is_used_for_the_next_reserve(net, worker):
    job_at(net, 1, b"a")
    job_at(net, 1, b"a")
    worker.session.turn = 1
    net.halted.add(1)
    worker.send(b"reserve\r\n")
    net.wait(1.5)
    job_at(net, 2, b"b")
    assert worker.take() == b"RESERVED 66 1\r\nx\r\n"
    assert worker.send(b"reserve\r\n") == b""
    net.halted.clear()
    net.run()
    assert worker.take() == b"RESERVED 65 1\r\nx\r\n"


def test_job_that_comes_late_goes_back_if_nobody_waits(net, worker):
    job_at(net, 1, b"a")
    worker.session.turn = 1
    net.halted.add(1)
    worker.send(b"reserve-with-timeout 3\r\n")
    net.wait(4)
    assert worker.take() == b"TIMED_OUT\r\n"
    net.halted.clear()
    net.run()
    stats = stats_of_job(net, 1, 1)
    assert (stats["state"], stats["pri"], stats["releases"]) == ("ready", "0", "1")


def test_job_that_comes_late_is_used_by_a_worker_of_that_server_alone(net, worker):
    job_at(net, 1, b"a")
    worker.session.turn = 1
    net.halted.add(1)
    worker.send(b"reserve-with-timeout 2\r\n")
    net.wait(3)
    assert worker.take() == b"TIMED_OUT\r\n"
    worker.send(b"ignore b\r\nreserve\r\n")
    net.halted.clear()
    net.run()
    assert worker.take() == b"RESERVED 65 1\r\nx\r\n"
    assert worker.send(b"delete 65\r\n") == b"DELETED\r\n"


@pytest.mark.parametrize(("number", "other"), [(1, b"other"), (3, b"c")])
def test_job_that_comes_late_is_not_for_a_client_that_ignores_it(number, other):
    """Be it that the client watches another tube of that server, or none."""
    net = Net(["a"], ["b"], ["c"])
    worker = net.client()
    worker.send(b"watch a\r\nwatch b\r\nignore default\r\n")
    job_at(net, 1, b"a")
    worker.session.turn = 1
    net.halted.add(1)
    worker.send(b"reserve-with-timeout 2\r\n")
    net.wait(3)
    assert worker.take() == b"TIMED_OUT\r\n"
    said = worker.send(b"watch %b\r\nignore a\r\nreserve\r\n" % other)
    net.halted.clear()
    net.run()
    assert said + worker.take() == b"WATCHING 3\r\nWATCHING 2\r\n"
    assert stats_of_job(net, 1, 1)["state"] == "ready"
    job_id = job_at(net, number, other)
    assert worker.take() == b"RESERVED %d 1\r\nx\r\n" % (job_id << 6 | number)


def test_job_that_is_being_given_back_is_not_kept_from_a_reserve(net, worker):
    job_at(net, 1, b"a")
    worker.session.turn = 1
    net.halted.add(1)
    worker.send(b"reserve-with-timeout 2\r\n")
    net.wait(3)
    assert worker.take() == b"TIMED_OUT\r\n"
    worker.send(b"ignore b\r\n")
    lane = worker.session.lanes[1]
    worker._pass_on(lane, lane.take())
    worker._take_replies(lane, worker.ends[lane])  # the job, whose pri is asked for now
    worker.send(b"reserve\r\n")
    net.halted.clear()
    net.run()
    assert worker.take() == b"RESERVED 65 1\r\nx\r\n"


def test_job_that_comes_late_with_a_timeout_is_kept_from_no_reserve(net, worker):
    job_at(net, 1, b"a")
    worker.session.turn = 1
    net.halted.add(1)
    worker.send(b"reserve-with-timeout 2\r\n" * 2)
    net.wait(5)
    assert worker.take() == b"TIMED_OUT\r\n" * 2
    worker.send(b"ignore b\r\n")
    _begin_to_give_back(worker)
    worker.session.receive(b"reserve\r\n", net.now_s)
    net.halted.clear()
    net.run()
    assert worker.take() == b"RESERVED 65 1\r\nx\r\n"
    assert not worker.session.late


@pytest.mark.parametrize("asked", [False, True])
def test_job_that_comes_late_stays_with_a_client_that_takes_it_anew(net, worker, asked):
    job_at(net, 1, b"a")
    worker.session.turn = 1
    worker.send(b"reserve-job 65\r\n")
    net.halted.add(1)
    worker.send(b"release 65 0 0\r\nreserve-with-timeout 1\r\n")
    net.wait(2)
    assert worker.take() == b""
    lane = worker.session.lanes[1]
    if asked:
        worker._pass_on(lane, lane.take())
        worker._take_replies(lane, worker.ends[lane])  # the job, whose pri is asked for now
        worker._pass_on(lane, lane.take())
    worker.session.receive(b"release 65 3 0\r\nreserve-job 65\r\n", net.now_s)
    if asked:
        worker._take_replies(lane, worker.ends[lane])
    net.halted.clear()
    net.run()
    assert worker.take() == b"RELEASED\r\nTIMED_OUT\r\nRELEASED\r\nRESERVED 65 1\r\nx\r\n"
    assert stats_of_job(net, 1, 1)["state"] == "reserved"
    assert worker.send(b"delete 65\r\n") == b"DELETED\r\n"
    assert not worker.session.late


def test_job_that_comes_late_and_is_being_released_is_told_to_nobody(net, worker):
    job_at(net, 1, b"a")
    worker.session.turn = 1
    worker.send(b"reserve-job 65\r\n")
    net.halted.add(1)
    worker.send(b"release 65 0 0\r\nreserve-with-timeout 1\r\n")
    net.wait(2)
    worker.send(b"release 65 3 0\r\nreserve\r\n")
    net.halted.clear()
    net.run()
    assert worker.take() == b"RELEASED\r\nTIMED_OUT\r\nRELEASED\r\nRESERVED 65 1\r\nx\r\n"
    assert stats_of_job(net, 1, 1)["state"] == "reserved"


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("asked", [False, True])
def test_job_that_comes_late_stays_with_a_client_that_touches_it(net, worker, asked, waits):
    """Its ttr has ended, and the server has reserved it anew by the time that the touch is there."""
    _reserve_until_ttr_ends(net, worker)
    touch = b"touch 65\r\n" + b"reserve\r\n" * waits
    if asked:
        _begin_to_give_back(worker)
        worker.session.receive(touch, net.now_s)
    else:
        worker.send(touch)
    net.halted.clear()
    net.run()
    assert worker.take() == b"TOUCHED\r\n"
    assert stats_of_job(net, 1, 1)["state"] == "reserved"
    job_at(net, 2, b"b")
    assert worker.take() == b"RESERVED 66 1\r\nx\r\n" * waits
    assert worker.send(b"delete 65\r\n") == b"DELETED\r\n"


@pytest.mark.parametrize("ended", ["release 65 3 0", "ttr"])
def test_job_that_comes_late_stays_with_a_client_that_reserves_it(net, worker, ended):
    """The client learns that it is free, and reserves it, before the pri for the release is known."""
    _reserve_until_ttr_ends(net, worker)
    if ended == "ttr":
        _begin_to_give_back(worker)
        net.cores[1].wait(4)
    else:
        worker.session.receive(b"release 65 3 0\r\n", net.now_s)
        _begin_to_give_back(worker)
        assert worker.take() == b"RELEASED\r\n"
    worker.session.receive(b"reserve-job 65\r\n", net.now_s)
    net.halted.clear()
    net.run()
    assert worker.take() == b"RESERVED 65 1\r\nx\r\n"
    assert stats_of_job(net, 1, 1)["state"] == "reserved"
    assert worker.send(b"delete 65\r\n") == b"DELETED\r\n"
    assert not worker.session.late


def test_job_that_comes_late_and_is_not_reserved_is_not_released(net, worker):
    _reserve_until_ttr_ends(net, worker)
    _begin_to_give_back(worker)
    net.cores[1].wait(4)
    worker.session.receive(b"release 65 3 0\r\n", net.now_s)
    net.writes.clear()
    net.halted.clear()
    net.run()
    assert worker.take() == b"NOT_FOUND\r\n"
    assert sum(data.count(b"release ") for data in net.writes[1]) == 1


def _reserve_until_ttr_ends(net, worker):
    """Have the worker keep a job for too long, while a reserve of it is not answered in time."""
    core = net.cores[1]
    core.send(core.client(), b"use a\r\n" + put(b"x", ttr_s=3))
    assert worker.send(b"reserve-job 65\r\n") == b"RESERVED 65 1\r\nx\r\n"
    worker.session.turn = 1
    net.halted.add(1)
    worker.send(b"reserve-with-timeout 3\r\n")
    net.wait(4)
    assert worker.take() == b"TIMED_OUT\r\n"


def _begin_to_give_back(worker):
    """Have the server say that it has reserved a job, and be asked for its pri."""
    lane = worker.session.lanes[1]
    worker._pass_on(lane, lane.take())
    worker._take_replies(lane, worker.ends[lane])
    worker._pass_on(lane, lane.take())


def test_late_offer_is_left_to_the_server_that_closes_the_connection(net, worker):
    net.ends = False
    assert worker.send(b"reserve\r\n") == b""
    net.halted.add(1)
    job_at(net, 2, b"b")
    assert worker.take() == b"RESERVED 66 1\r\nx\r\n"
    worker.send(b"ignore b\r\nreserve\r\n")
    lane = worker.session.lanes[1]
    lane.take()
    worker.half_close()
    assert lane.ended
    worker.session.came(lane, b"OFFERED 1 1\r\nx\r\n", net.now_s)
    assert not lane.out
