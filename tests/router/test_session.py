"""A session of the router with several servers, without sockets."""

import pytest

from beanlite.router.state import ORDER_MAX
from tests.router.cores import Net


def put(body, pri=0, delay_s=0, ttr_s=60):
    return b"put %d %d %d %d\r\n%b\r\n" % (pri, delay_s, ttr_s, len(body), body)


@pytest.fixture
def net():
    """Two servers: the second one has the tubes b and b.x, the first one all others."""
    return Net(["a"], ["b", "b.x"])


@pytest.fixture
def client(net):
    return net.client()


def job_at(net, number, tube):
    """Put a job into a tube directly at a server, and return its id there."""
    core = net.cores[number]
    reply = core.send(core.client(), b"use %b\r\n%b" % (tube, put(b"x")))
    net.run()
    return int(reply.split()[-1])


def stats_of_job(net, number, job_id):
    core = net.cores[number]
    lines = core.send(core.client(), b"stats-job %d\r\n" % job_id).decode().split("\n")
    return dict(line.split(": ") for line in lines if ": " in line)


# -- ids, and the order of replies


def test_ids_have_the_number_of_their_server_in_their_low_bits(client):
    assert client.send(put(b"x") + b"use b\r\n" + put(b"y")) == b"INSERTED 65\r\nUSING b\r\nINSERTED 66\r\n"
    assert client.send(b"peek 65\r\npeek 66\r\npeek 67\r\n") == b"FOUND 65 1\r\nx\r\nFOUND 66 1\r\ny\r\nNOT_FOUND\r\n"


def test_commands_go_to_the_server_of_the_job(client):
    client.send(b"use b\r\n" + put(b"x", ttr_s=5))
    assert client.send(b"reserve-job 66\r\n") == b"RESERVED 66 1\r\nx\r\n"
    assert client.send(b"touch 66\r\nbury 66 3\r\n") == b"TOUCHED\r\nBURIED\r\n"
    assert client.send(b"kick-job 66\r\nreserve-job 66\r\n") == b"KICKED\r\nRESERVED 66 1\r\nx\r\n"
    assert client.send(b"release 66 7 0\r\n") == b"RELEASED\r\n"
    said = client.send(b"stats-job 66\r\n")
    assert b"\nid: 66\n" in said
    assert b"\npri: 7\n" in said
    assert int(said.split(b"\r\n")[0].split()[1]) == len(said.split(b"\r\n", 1)[1]) - 2
    assert client.send(b"delete 66\r\ndelete 66\r\n") == b"DELETED\r\nNOT_FOUND\r\n"


@pytest.mark.parametrize("line", [b"delete %d", b"touch %d", b"bury %d 0", b"release %d 0 0", b"peek %d"])
def test_id_of_no_server_is_not_found(client, line):
    assert client.send(line % 63 + b"\r\n") == b"NOT_FOUND\r\n"
    assert client.send(line % (1 << 64) + b"\r\n") == b"BAD_FORMAT\r\n"


def test_replies_are_in_the_order_of_commands(net, client):
    client.send(b"use b\r\n" + put(b"y") + b"use a\r\n" + put(b"x"))
    net.halted.add(2)
    assert client.send(b"peek 66\r\npeek 65\r\nlist-tube-used\r\n") == b""
    net.halted.clear()
    net.run()
    assert client.take() == b"FOUND 66 1\r\ny\r\nFOUND 65 1\r\nx\r\nUSING a\r\n"


def test_commands_in_flight_leave_in_one_write(net, client):
    client.send(b"list-tubes\r\n")
    net.writes.clear()
    ids = client.send(put(b"x") * 300).split()[1::2]
    assert len(net.writes[1]) == 1
    client.send(b"".join(b"delete %b\r\n" % each for each in ids))
    assert len(net.writes[1]) == 2


def test_client_with_too_many_commands_in_flight_has_to_wait(net, client):
    client.send(b"peek-ready\r\n")
    net.halted.add(1)
    client.send(b"peek 1\r\n" * (ORDER_MAX + 500))
    assert len(client.session.order) == ORDER_MAX
    client.send(b"peek 1\r\n" * 20_000)
    assert not client.session.wants_more
    net.halted.clear()
    net.run()
    assert client.take() == b"NOT_FOUND\r\n" * (ORDER_MAX + 20_500)
    assert client.session.wants_more


# -- tubes


def test_put_goes_to_the_server_of_the_tube(net, client):
    client.send(b"use b.x\r\n" + put(b"x") + b"use c\r\n" + put(b"x"))
    assert b"b.x" in net.cores[2].engine.tubes
    assert b"c" in net.cores[1].engine.tubes
    assert b"b.x" not in net.cores[1].engine.tubes


def test_tube_that_is_used_no_more_is_gone(client):
    client.send(b"use a\r\n")
    assert client.send(b"use b\r\nlist-tubes\r\n") == b"USING b\r\nOK 18\r\n---\n- default\n- b\n\r\n"


def test_refused_use_leaves_the_client_with_its_tube(net, client):
    client.send(b"use a\r\n")
    net.cores[2].engine.clients.max_tubes = 1
    said = client.send(b"use b\r\n" + put(b"x") + b"list-tube-used\r\n")
    assert said == b"OUT_OF_MEMORY\r\nINSERTED 65\r\nUSING a\r\n"
    assert stats_of_job(net, 1, 1)["tube"] == '"a"'


def test_client_watches_tubes_of_several_servers(client):
    assert client.send(b"watch a\r\nwatch b\r\nwatch b\r\n") == b"WATCHING 2\r\nWATCHING 3\r\nWATCHING 3\r\n"
    assert client.send(b"list-tubes-watched\r\n") == b"OK 22\r\n---\n- default\n- a\n- b\n\r\n"
    assert client.send(b"ignore default\r\nignore a\r\nignore b\r\n") == b"WATCHING 2\r\nWATCHING 1\r\nNOT_IGNORED\r\n"


def test_server_of_no_watched_tube_gives_no_job(net, client):
    client.send(b"watch a\r\nwatch b\r\nignore a\r\nignore default\r\n")
    job_at(net, 1, b"default")
    assert client.send(b"reserve-with-timeout 0\r\n") == b"TIMED_OUT\r\n"
    job_at(net, 2, b"default")  # somebody has put it there who does not use the router
    assert client.send(b"reserve-with-timeout 0\r\n") == b"TIMED_OUT\r\n"


def test_refused_watch_is_undone(net, client):
    net.cores[2].engine.clients.max_tubes = 1
    assert client.send(b"watch b\r\n") == b"OUT_OF_MEMORY\r\n"
    assert client.send(b"list-tubes-watched\r\n") == b"OK 14\r\n---\n- default\n\r\n"


# -- reserving from several servers


@pytest.fixture
def worker(net):
    """A client that watches tubes of both servers."""
    worker = net.client()
    worker.send(b"watch a\r\nwatch b\r\nignore default\r\n")
    return worker


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
    assert client.half_close() == b"TIMED_OUT\r\nINSERTED 66\r\n"
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
    net.map.places[2].knows_offers = True
    worker = net.client()
    worker.send(b"watch a\r\nwatch b\r\nreserve\r\n")
    job_at(net, 2, b"b")
    net.wait(0.5)
    assert worker.take().endswith(b"RESERVED 66 1\r\nx\r\n")


# -- servers that are halted, lost or away


def test_halted_server_blocks_its_tubes_only(net, worker):
    net.halted.add(1)
    worker.send(b"reserve\r\n")
    net.wait(1.5)
    job_at(net, 2, b"b")
    assert worker.take() == b"RESERVED 66 1\r\nx\r\n"


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


def test_lost_connection_with_a_put_in_flight_ends_the_client(net, client):
    client.send(b"list-tubes\r\n")
    net.halted.add(1)
    assert client.send(b"list-tube-used\r\n" + put(b"x") + b"list-tube-used\r\n") == b"USING default\r\n"
    client.lose(1)
    assert client.take() == b""
    assert client.session.is_done


def test_lost_connection_with_nothing_in_flight_is_made_again(net, client):
    client.send(b"use a\r\nwatch a\r\nignore default\r\n" + put(b"x") + b"reserve\r\n")
    net.lose(1)
    assert not client.session.is_over
    assert client.send(b"release 65 0 0\r\n") == b"NOT_FOUND\r\n"
    assert client.send(put(b"y")) == b"INSERTED 129\r\n"
    assert stats_of_job(net, 1, 2)["tube"] == '"a"'
    assert client.send(b"reserve\r\n") == b"RESERVED 65 1\r\nx\r\n"


def test_lost_connection_sends_looks_again(net, client):
    client.send(put(b"x"))
    net.halted.add(1)
    client.send(b"peek 65\r\nstats-tube default\r\nwatch b\r\n")
    client.lose(1)
    net.halted.clear()
    net.run()
    said = client.take()
    assert said.startswith(b"FOUND 65 1\r\nx\r\nOK ")
    assert said.endswith(b"WATCHING 2\r\n")


def test_reserve_outlasts_a_lost_connection(net, client):
    assert client.send(b"reserve\r\nreserve-with-timeout 5\r\n") == b""
    net.leave(1)
    net.wait(1)
    net.come_back(1)
    job_at(net, 1, b"default")
    assert client.take() == b"RESERVED 65 1\r\nx\r\n"
    net.wait(4.5)
    assert client.take() == b"TIMED_OUT\r\n"


def test_command_behind_a_reserve_is_in_doubt_after_a_lost_connection(net, client):
    assert client.send(b"reserve\r\n" + put(b"x")) == b""
    net.lose(1)
    assert client.session.is_done


def test_server_that_is_away_blocks_its_tubes_only(net, worker):
    net.leave(2)
    assert worker.send(b"reserve\r\n") == b""
    job_at(net, 1, b"a")
    assert worker.take() == b"RESERVED 65 1\r\nx\r\n"
    assert worker.send(b"reserve\r\n") == b""
    net.come_back(2)
    job_at(net, 2, b"b")
    assert worker.take() == b"RESERVED 66 1\r\nx\r\n"


def test_put_for_a_server_that_is_away_is_an_error(net, client):
    net.leave(2)
    assert (
        client.send(b"use b\r\n" + put(b"x\r\n") + b"list-tube-used\r\n") == b"USING b\r\nINTERNAL_ERROR\r\nUSING b\r\n"
    )
    assert client.send(b"delete 66\r\nwatch b\r\n") == b"INTERNAL_ERROR\r\nWATCHING 2\r\n"
    net.come_back(2)
    assert client.send(put(b"x")) == b"INSERTED 66\r\n"
    assert client.send(b"reserve\r\n") == b"RESERVED 66 1\r\nx\r\n"


def test_body_for_a_server_that_goes_away_is_skipped(net, client):
    client.send(b"use b\r\n")
    assert client.send(b"put 0 0 1 10\r\nput 1") == b""
    net.lose(2)
    assert client.send(b" 23") == b""
    assert client.send(b"45\r\nlist-tube-used\r\n") == b"INTERNAL_ERROR\r\nUSING b\r\n"


def test_take_whose_connection_is_lost_is_no_job(net, worker):
    worker.send(b"reserve\r\n")
    core = net.cores[2]
    core.send(core.client(), b"use b\r\n" + put(b"x"))
    lane = worker.session.lanes[2]
    worker._take_replies(lane, worker.ends[lane])
    assert any(type(ask).__name__ == "Take" for ask in lane.asks)
    net.lose(2)
    net.wait(1)
    assert worker.take() == b"RESERVED 66 1\r\nx\r\n"
    assert stats_of_job(net, 2, 1)["reserves"] == "1"


# -- tubes that move


MOVED = {"b": {"from": "s2", "to": "s1"}}


def test_moved_tube_is_put_into_the_new_server_and_reserved_from_both(net):
    job_at(net, 2, b"b")
    net.change(["a"], [], moved=MOVED)
    client = net.client()
    assert client.send(b"use b\r\nwatch b\r\n" + put(b"new")) == b"USING b\r\nWATCHING 2\r\nINSERTED 65\r\n"
    assert client.send(b"reserve\r\nreserve\r\n") == b"RESERVED 66 1\r\nx\r\nRESERVED 65 3\r\nnew\r\n"


def test_moved_tube_is_looked_at_and_kicked_in_both_servers(net):
    net.change(["a"], [], moved=MOVED)
    client = net.client()
    client.send(b"use b\r\n" + put(b"new", delay_s=60))
    core = net.cores[2]
    core.send(core.client(), b"use b\r\n" + put(b"old", delay_s=60))
    assert client.send(b"peek-delayed\r\n") == b"FOUND 66 3\r\nold\r\n"
    assert client.send(b"kick 1\r\npeek-delayed\r\n") == b"KICKED 1\r\nFOUND 65 3\r\nnew\r\n"
    assert client.send(b"peek-buried\r\nkick 5\r\n") == b"NOT_FOUND\r\nKICKED 1\r\n"
    assert client.send(b"pause-tube b 5\r\n") == b"PAUSED\r\n"
    assert b"\ncurrent-jobs-ready: 2\n" in client.send(b"stats-tube b\r\n")


def test_changed_file_applies_to_later_commands(net, client):
    client.send(b"use b\r\nwatch b\r\n" + put(b"x"))
    net.change(["a", "b"], [])
    assert client.send(put(b"y")) == b"INSERTED 65\r\n"
    assert client.send(b"reserve\r\n") == b"RESERVED 65 1\r\ny\r\n"
    assert client.send(b"reserve-with-timeout 0\r\n") == b"TIMED_OUT\r\n"


@pytest.mark.parametrize("watches", [b"watch b\r\nignore default\r\n", b"watch b\r\n"])
def test_changed_file_applies_to_a_reserve_that_waits(net, client, watches):
    assert client.send(watches + b"reserve\r\n").endswith(b"\r\n")
    net.change(["a"], [], moved=MOVED)
    job_at(net, 1, b"b")
    assert client.take() == b"RESERVED 65 1\r\nx\r\n"


def test_server_that_is_left_out_has_no_jobs(net, client):
    client.send(b"use b\r\n" + put(b"x"))
    net.change(["a", "b"])
    assert client.send(b"delete 66\r\n") == b"NOT_FOUND\r\n"
    assert client.send(put(b"x")) == b"INSERTED 65\r\n"


# -- statistics, lists, and what is no command


def test_statistics_are_merged(net, client):
    client.send(put(b"x") + b"use b\r\n" + put(b"y"))
    said = client.send(b"stats\r\n").decode()
    stats = dict(line.split(": ") for line in said.split("\n") if ": " in line)
    assert stats["current-jobs-ready"] == "2"
    assert stats["current-tubes"] == "2"
    assert stats["cmd-put"] == "2"
    assert stats["max-job-size"] == "65535"
    assert stats["pid"] == "1"
    assert stats["rusage-utime"] == "0.000000"
    assert (stats["router-servers"], stats["router-servers-away"], stats["router-map-version"]) == ("2", "0", "1")
    net.leave(2)
    said = client.send(b"stats\r\n").decode()
    assert "\ncurrent-jobs-ready: 1\n" in said
    assert "\nrouter-servers-away: 1\n" in said


def test_lists_are_merged(client):
    client.send(b"use b\r\n" + put(b"y") + b"use a\r\n" + put(b"y"))
    assert client.send(b"list-tubes\r\n") == b"OK 22\r\n---\n- default\n- a\n- b\n\r\n"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"put 0 0 1\r\n", b"BAD_FORMAT\r\n"),
        (b"put 0 0 1 1 x\r\nquitx\r\n", b"BAD_FORMAT\r\n"),
        (b"put 0 0 1 70000 x\r\n%b\r\n" % bytes(70_000), b"JOB_TOO_BIG\r\n"),
        (b"put 0 0 1 70000\r\n%b\r\n" % bytes(70_000), b"JOB_TOO_BIG\r\n"),
        (b"put 0 0 1 1\r\nxyz", b"EXPECTED_CRLF\r\n"),
        (b"delete\r\n", b"UNKNOWN_COMMAND\r\n"),
        (b"statsx\r\n", b"BAD_FORMAT\r\n"),
        (b"list-jobs 2\r\n", b"UNKNOWN_COMMAND\r\n"),
        (b"offer 0\r\n", b"UNKNOWN_COMMAND\r\n"),
        (b"use -a\r\n", b"BAD_FORMAT\r\n"),
        (b"reserve\0\r\n", b"BAD_FORMAT\r\n"),
        (b"%b\r\n" % (b"x" * 300), b"BAD_FORMAT\r\n"),
        (b"pause-tubea 1\r\n", b"NOT_FOUND\r\n"),
    ],
)
def test_odd_line_is_answered_as_by_a_server(client, data, said):
    client.send(b"list-tube-used\r\n")
    assert client.send(data) == said
    assert client.send(b"list-tube-used\r\n") == (b"" if b"quit" in data else b"USING default\r\n")


def test_line_may_come_byte_by_byte(client):
    said = b"".join(client.send(bytes([byte])) for byte in put(b"abc") + b"%b\r\npeek 65\r\n" % (b"x" * 300))
    assert said == b"INSERTED 65\r\nBAD_FORMAT\r\nFOUND 65 3\r\nabc\r\n"


def test_large_body_is_passed_on_as_it_comes(client):
    client.send(b"put 0 0 1 60000\r\n")
    for _ in range(6):
        client.send(b"x" * 10_000)
        assert client.session.pending == 0
    assert client.send(b"\r\n") == b"INSERTED 65\r\n"


def test_other_protocol_closes_the_connection(client):
    assert client.send(b"GET / HTTP/1.1\r\nput 0 0 1 1\r\nx\r\n") == b"UNKNOWN_COMMAND\r\n"
    assert client.session.is_done


def test_quit_closes_the_connection_after_the_replies(net, client):
    client.send(b"peek 1\r\n")
    net.halted.add(1)
    client.send(b"peek 1\r\nquit\r\nlist-tube-used\r\n")
    assert not client.session.is_done
    net.halted.clear()
    net.run()
    assert client.take() == b"NOT_FOUND\r\n"
    assert client.session.is_done


def test_drained_server_refuses_puts(net, client):
    net.cores[2].engine.admission.draining = True
    assert client.send(put(b"x") + b"use b\r\n" + put(b"x")) == b"INSERTED 65\r\nUSING b\r\nDRAINING\r\n"


def test_note_is_left_on_a_job_of_the_client_alone(client):
    client.send(b"use b\r\n" + put(b"x") + put(b"y"))
    assert client.send(b"note 66 1\r\nx\r\n") == b"NOT_FOUND\r\n"
    assert client.send(b"reserve-job 66\r\nnote 66 1\r\nx\r\n") == b"RESERVED 66 1\r\nx\r\nNOTED\r\n"
    assert client.send(b"note 130 1\r\nx\r\n") == b"NOT_FOUND\r\n"


def test_name_is_told_to_all_servers(net, client):
    assert client.send(b"name web1/mail/17\r\n") == b"NAMED\r\n"
    client.send(b"use b\r\n")
    for core in net.cores.values():
        assert [each.peer.address.endswith(' "web1/mail/17"') for each in core.sessions] == [True]
