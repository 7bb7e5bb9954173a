"""Reserves over several servers."""

import pytest

from beanlite.router.state import ORDER_MAX
from tests.router.cores import Net, job_at, put, stats_of_job

# -- reserving from several servers


def test_ready_jobs_of_all_servers_are_reserved(net, worker):
    job_at(net, 1, b"a")
    job_at(net, 2, b"b")
    assert sorted(worker.send(b"reserve\r\nreserve\r\n").split(b"\r\n")[:4:2]) == [b"RESERVED 65 1", b"RESERVED 66 1"]
    assert worker.send(b"reserve-with-timeout 0\r\n") == b"TIMED_OUT\r\n"


@pytest.mark.parametrize(("number", "tube"), [(1, b"a"), (2, b"b")])
def test_waiting_reserve_takes_the_job_that_is_offered(net, worker, number, tube):
    assert worker.send(b"reserve\r\n") == b""
    job_at(net, number, tube)
    assert worker.take() == b"RESERVED %d 1\r\nx\r\n" % (64 + number)
    stats = stats_of_job(net, number, 1)
    assert (stats["state"], stats["reserves"]) == ("reserved", "1")
    assert worker.send(b"delete %d\r\n" % (64 + number)) == b"DELETED\r\n"


def test_second_job_offered_at_the_same_time_goes_back_uncounted(net, worker):
    worker.send(b"reserve\r\n")
    net.halted |= {1, 2}
    for number, tube in (1, b"a"), (2, b"b"):
        job_at(net, number, tube)
    net.halted.clear()
    net.run()
    taken = int(worker.take().split()[1])
    other = 3 - taken % 64
    stats = stats_of_job(net, other, 1)
    assert [stats[key] for key in ("state", "reserves", "releases", "timeouts")] == ["ready", "0", "0", "0"]
    assert stats_of_job(net, taken % 64, 1)["reserves"] == "1"


def test_lapsed_offer_is_not_taken_for_a_job(net, worker):
    worker.send(b"reserve\r\n")
    net.halted.add(1)
    job_at(net, 1, b"a")  # offered, but the offer does not arrive
    net.cores[1].wait(3)
    other = net.cores[1].client()
    assert net.cores[1].send(other, b"watch a\r\nreserve\r\n").endswith(b"RESERVED 1 1\r\nx\r\n")
    net.halted.clear()
    net.run()
    assert worker.take() == b""
    job_at(net, 2, b"b")
    assert worker.take() == b"RESERVED 66 1\r\nx\r\n"


def test_reserves_of_one_packet_are_asked_for_together(net, worker):
    for _ in range(50):
        job_at(net, 1, b"a")
        job_at(net, 2, b"b")
    net.writes.clear()
    said = worker.send(b"reserve\r\n" * 100)
    assert len({line for line in said.split(b"\r\n") if line.startswith(b"RESERVED")}) == 100
    assert len(net.writes[1] + net.writes[2]) == 2


def test_reserve_with_timeout_times_out(net, worker):
    assert worker.send(b"reserve-with-timeout 2\r\n") == b""
    net.wait(1.9)
    assert worker.take() == b""
    net.wait(0.2)
    assert worker.take() == b"TIMED_OUT\r\n"
    job_at(net, 1, b"a")
    assert stats_of_job(net, 1, 1)["state"] == "ready"


def test_timeout_of_a_reserve_begins_when_the_one_before_has_ended(net, worker):
    assert worker.send(b"reserve-with-timeout 2\r\nreserve-with-timeout 3\r\nreserve-with-timeout 0\r\n") == b""
    net.wait(1.9)
    assert worker.take() == b""
    net.wait(0.2)
    assert worker.take() == b"TIMED_OUT\r\n"
    net.wait(2.8)
    assert worker.take() == b""
    net.wait(0.2)
    assert worker.take() == b"TIMED_OUT\r\n" * 2


def test_timeout_of_a_second_reserve_outlasts_a_lost_server_as_it_is(net, client):
    client.send(b"reserve-with-timeout 2\r\nreserve-with-timeout 5\r\n")
    net.wait(2.2)
    assert client.take() == b"TIMED_OUT\r\n"
    net.lose(1)
    net.wait(4.5)
    assert client.take() == b""
    net.wait(0.6)
    assert client.take() == b"TIMED_OUT\r\n"


def test_deadline_of_a_job_ends_the_wait(net, worker):
    client = net.client()
    client.send(b"use b\r\n" + put(b"x", ttr_s=5))
    worker.send(b"reserve\r\n")
    assert worker.send(b"reserve\r\n") == b""
    net.wait(3.9)
    assert worker.take() == b""
    net.wait(0.2)
    assert worker.take() == b"DEADLINE_SOON\r\n"
    assert worker.send(b"reserve-with-timeout 0\r\n") == b"DEADLINE_SOON\r\n"
    job_at(net, 1, b"a")
    assert worker.send(b"reserve-with-timeout 0\r\n") == b"RESERVED 65 1\r\nx\r\n"


def test_command_behind_a_reserve_waits_until_it_is_answered(net, worker):
    assert worker.send(b"reserve\r\nlist-tube-used\r\n" + put(b"y")) == b""
    job_at(net, 2, b"b")
    assert worker.take() == b"RESERVED 66 1\r\nx\r\nUSING default\r\nINSERTED 65\r\n"


def test_command_for_another_server_waits_for_a_reserve(net, client):
    client.send(b"use b\r\n")
    assert client.send(b"reserve\r\n" + put(b"y")) == b""
    assert len(net.cores[2].engine.jobs) == 0
    job_at(net, 1, b"default")
    assert client.take() == b"RESERVED 65 1\r\nx\r\nINSERTED 66\r\n"


def test_half_close_ends_the_wait(net, worker):
    assert worker.send(b"reserve\r\nreserve-with-timeout 9\r\nlist-tube-used\r\n") == b""
    assert worker.half_close() == b"TIMED_OUT\r\nTIMED_OUT\r\nUSING default\r\n"
    assert worker.session.is_done
    job_at(net, 1, b"a")
    assert stats_of_job(net, 1, 1)["state"] == "ready"


def test_half_close_ends_the_wait_at_one_server(net, client):
    client.send(b"use b\r\n")
    assert client.send(b"reserve\r\n" + put(b"y")) == b""
    client.half_close()
    net.wait(1.5)
    assert client.take() == b"TIMED_OUT\r\nINSERTED 66\r\n"
    assert client.session.is_done


@pytest.mark.parametrize("late", [False, True])
def test_half_closed_client_keeps_its_jobs_until_its_last_command(net, client, late):
    client.send(put(b"x") + (b"" if late else put(b"x")) + b"reserve\r\n")
    net.halted.add(1)
    client.send(b"reserve\r\nuse b\r\nrelease 65 0 0\r\n")
    client.half_close()
    net.halted.clear()
    net.run()
    if late:
        job_at(net, 1, b"default")
    assert client.take() == b"RESERVED 129 1\r\nx\r\nUSING b\r\nRELEASED\r\n"
    assert client.session.is_done


@pytest.mark.parametrize(
    "data", [b"list-tube-used\r\n", b"list-tubes-watched\r\n", b"ignore default\r\n", b"ignore x\r\n", b"watch x\r\n"]
)
def test_half_closed_client_that_is_far_ahead_gets_all_replies(data):
    net = Net([])
    net.ends = False
    client = net.client()
    client.send(b"reserve\r\n" + data * (ORDER_MAX + 500))
    client.half_close()
    net.wait(1.5)
    net.lose(1)
    said = client.take()
    assert said.count(b"\r\n") >= ORDER_MAX + 501
    assert client.session.is_done


def test_job_goes_back_when_its_client_leaves(net, worker):
    job_at(net, 2, b"b")
    worker.send(b"reserve\r\n")
    worker.leave()
    assert stats_of_job(net, 2, 1)["state"] == "ready"


def test_worker_that_leaves_while_it_waits_is_offered_nothing(net, worker):
    worker.send(b"reserve\r\n")
    worker.leave()
    job_at(net, 2, b"b")
    assert stats_of_job(net, 2, 1)["state"] == "ready"


# -- servers to which connections are being made


def test_server_is_asked_once_the_connection_to_it_is_made(net, client):
    job_at(net, 2, b"b")
    assert client.send(b"watch b\r\nreserve-with-timeout 0\r\n") == b"WATCHING 2\r\nRESERVED 66 1\r\nx\r\n"
    net.lose(2)
    said = client.send(b"reserve-with-timeout 0\r\nreserve-with-timeout 0\r\n")
    assert said == b"RESERVED 66 1\r\nx\r\nTIMED_OUT\r\n"


def test_half_closed_client_gets_a_job_of_a_server_not_yet_asked(net, client):
    job_at(net, 2, b"b")
    client.session.receive(b"watch b\r\nreserve\r\nreserve\r\n", net.now_s)
    assert client.half_close() == b"WATCHING 2\r\nRESERVED 66 1\r\nx\r\nTIMED_OUT\r\n"
    assert client.session.is_done


def test_half_closed_client_is_not_held_up_by_an_offer_asked_for(net, client):
    net.halted.add(2)
    client.session.turn = 1
    client.send(b"watch b\r\nreserve\r\n")
    client.half_close()
    job_at(net, 2, b"b")
    net.halted = {1}
    net.run()
    assert client.take() == b"WATCHING 2\r\nRESERVED 66 1\r\nx\r\n"


def test_deadline_of_a_job_is_told_only_if_no_server_has_one(net, client):
    client.send(put(b"x", ttr_s=1) + b"reserve\r\n")
    job_at(net, 2, b"b")
    assert client.send(b"watch b\r\nreserve\r\n") == b"WATCHING 2\r\nRESERVED 66 1\r\nx\r\n"


@pytest.mark.parametrize("ends", [True, False])
def test_connection_that_is_not_made_in_time_ends_no_wait_late(net, client, ends):
    client.send(b"watch b\r\n")
    net.lose(2)
    net.halted.add(2)
    assert client.send(b"reserve-with-timeout 0\r\n") == b""
    if ends:
        net.leave(2)
        net.wait(0.05)
    else:
        net.wait(1.1)
    assert client.take() == b"TIMED_OUT\r\n"


# -- servers that don't know offers


@pytest.mark.parametrize("old", [(1, 2), (2,)])
def test_servers_without_offers_are_asked_in_turns(old):
    net = Net(["a"], ["b"], old=old)
    worker = net.client()
    worker.send(b"watch a\r\nwatch b\r\n")
    for number, tube in (2, b"b"), (1, b"a"):
        assert worker.send(b"reserve\r\n") == b""
        job_at(net, number, tube)
        net.wait(0.5)
        assert worker.take() == b"RESERVED %d 1\r\nx\r\n" % (64 + number)
    assert worker.send(b"reserve-with-timeout 1\r\n") == b""
    net.wait(1.2)
    assert worker.take() == b"TIMED_OUT\r\n"


def test_server_that_unlearns_offers_is_asked_in_turns():
    net = Net(["a"], ["b"], old=(2,))
    net.map.servers[2].knows_offers = True
    worker = net.client()
    worker.send(b"watch a\r\nwatch b\r\nreserve\r\n")
    job_at(net, 2, b"b")
    net.wait(0.5)
    assert worker.take().endswith(b"RESERVED 66 1\r\nx\r\n")


@pytest.mark.parametrize("lost", [False, True])
def test_deadline_is_told_once_servers_without_offers_have_answered(lost):
    net = Net(["a"], ["b"], old=(2,))
    worker = net.client()
    worker.send(b"watch a\r\nwatch b\r\nuse a\r\n" + put(b"x", ttr_s=5) + b"reserve\r\n")
    assert worker.send(b"reserve\r\nreserve\r\n") == b""
    net.wait(3.75)
    net.halted.add(2)  # when it has just been asked
    net.wait(0.45)
    if lost:
        net.lose(2)
    else:
        job_at(net, 2, b"b")
    net.halted.clear()
    net.run()
    assert worker.take() == (b"" if lost else b"RESERVED 66 1\r\nx\r\n") + b"DEADLINE_SOON\r\n" * (1 + lost)
    assert worker.send(b"delete 65\r\n") == b"DELETED\r\n"
