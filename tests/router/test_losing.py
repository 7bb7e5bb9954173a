"""Servers that are halted, lost or away."""

import pytest

from beanlite.router.lane import CLOSED
from tests.router.cores import Net, job_at, put, stats_of_job


def test_halted_server_blocks_its_tubes_only(net, worker):
    net.halted.add(1)
    worker.send(b"reserve\r\n")
    net.wait(1.5)
    job_at(net, 2, b"b")
    assert worker.take() == b"RESERVED 66 1\r\nx\r\n"


@pytest.mark.parametrize("offered", [False, True])
def test_server_that_is_still_saying_something_is_not_passed_over(net, worker, offered):
    """Its link is slow: the job, or what it says before that, takes longer than a server may be silent."""
    if not offered:
        job_at(net, 1, b"a")
    worker.session.turn = 1
    worker.session.receive(b"peek 65\r\nreserve-with-timeout 1\r\n", net.now_s)
    net.halted.add(1)
    lane = worker.session.lanes[1]
    if offered:
        net.halted.clear()
        net.run()
        worker.take()
        net.halted.add(1)
        job_at(net, 1, b"a")
        worker._take_replies(lane, worker.ends[lane])  # the offer
    worker._pass_on(lane, lane.take())
    reply = worker.ends[lane].take_replies()
    assert b"TAKEN" in reply or b"RESERVED" in reply
    for at in range(len(reply)):
        net.wait(0.9)
        worker.session.came(lane, reply[at : at + 1], net.now_s)
    assert worker.take().endswith(b"RESERVED 65 1\r\nx\r\n")
    assert not worker.session.late
    stats = stats_of_job(net, 1, 1)
    assert [stats[key] for key in ("state", "reserves", "releases")] == ["reserved", "1", "0"]


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


def test_lost_connection_is_made_again_within_the_limit_of_tubes(net, client):
    net.cores[1].engine.clients.max_watched = 3
    client.send(b"watch a\r\nwatch c\r\nignore default\r\nwatch d\r\n")
    net.lose(1)
    job_at(net, 1, b"d")
    assert client.send(b"reserve-with-timeout 0\r\n") == b"RESERVED 65 1\r\nx\r\n"
    net.lose(1)
    job_at(net, 1, b"default")
    assert client.send(b"watch e\r\nreserve\r\nreserve-with-timeout 0\r\n") == (
        b"OUT_OF_MEMORY\r\nRESERVED 65 1\r\nx\r\nTIMED_OUT\r\n"
    )


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


@pytest.mark.parametrize("count", [1, 2])
def test_look_at_the_used_tube_is_sent_again_only_for_that_tube(count):
    net = Net(["a"], ["b"]) if count == 2 else Net(["a"])
    client = net.client()
    client.send(b"use c\r\n" + put(b"x") + b"use a\r\n" + put(b"y"))
    net.halted.add(1)
    client.session.receive(b"peek-ready\r\nlist-tube-used\r\n", net.now_s)
    net.lose(1)
    net.halted.clear()
    net.run()
    assert client.take() == b"FOUND 129 1\r\ny\r\nUSING a\r\n"
    net.halted.add(1)
    client.session.receive(b"use a\r\npeek-ready\r\nuse c\r\npeek-ready\r\n", net.now_s)
    net.lose(1)
    assert client.take() == b"USING a\r\n"
    assert client.session.is_done


@pytest.mark.parametrize(
    ("question", "change"), [(b"list-tube-used\r\n", b"use a\r\n"), (b"list-tubes-watched\r\n", b"watch a\r\n")]
)
def test_question_is_not_answered_with_what_the_client_did_later(question, change):
    net = Net(["a"])
    client = net.client()
    client.send(b"use c\r\nwatch c\r\n")
    net.halted.add(1)
    client.session.receive(question + change, net.now_s)
    net.lose(1)
    assert client.take() == b""
    assert client.session.is_done


@pytest.mark.parametrize("fails", [False, True])
def test_use_that_is_lost_does_not_undo_a_later_one(net, client, fails):
    client.send(b"use a\r\n")
    if fails:
        net.lose(1)
    net.halted.add(1)
    assert client.send(b"use c\r\nuse b\r\n" + put(b"x")) == b""
    (net.leave if fails else net.lose)(1)
    net.halted.clear()
    assert client.send(b"list-tube-used\r\n") == b"USING c\r\nUSING b\r\nINSERTED 66\r\nUSING b\r\n"
    assert client.send(put(b"x")) == b"INSERTED 130\r\n"


@pytest.mark.parametrize("before", [b"", b"use b\r\n"])
def test_use_that_is_lost_is_told_to_the_server_before_the_next_put(net, client, before):
    """The connection that is made for the question before it may begin with another tube."""
    client.send(b"peek 66\r\n" + before)
    net.halted.add(2)
    client.session.receive(before + b"peek 66\r\nuse b.x\r\n", net.now_s)
    net.lose(2)
    net.halted.clear()
    assert client.send(put(b"x")).endswith(b"USING b.x\r\nINSERTED 66\r\n")
    assert stats_of_job(net, 2, 1)["tube"] == '"b.x"'


def test_reserve_outlasts_a_lost_connection(net, client):
    assert client.send(b"reserve\r\nreserve-with-timeout 5\r\n") == b""
    net.leave(1)
    net.wait(1)
    net.come_back(1)
    job_at(net, 1, b"default")
    assert client.take() == b"RESERVED 65 1\r\nx\r\n"
    net.wait(5.5)
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


def test_commands_go_on_behind_a_reserve_that_is_answered_at_once(net, client):
    net.leave(1)
    using = b"%b\r\n" % (b"t" * 150)
    pairs = b"reserve-with-timeout 0\r\nlist-tube-used\r\n" * 1000
    said = client.send(b"use " + using + pairs)
    assert said == b"USING " + using + (b"TIMED_OUT\r\nUSING " + using) * 1000


def test_half_closed_client_whose_server_is_away_is_done(net, client):
    net.leave(1)
    client.send(b"reserve\r\nuse c\r\nreserve\r\nlist-tube-used\r\n")
    assert client.half_close() == b"TIMED_OUT\r\nUSING c\r\nTIMED_OUT\r\nUSING c\r\n"
    assert client.session.is_done


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
    assert any(type(ask).__name__ == "TakeAsk" for ask in lane.asks)
    net.lose(2)
    net.wait(1)
    assert worker.take() == b"RESERVED 66 1\r\nx\r\n"
    assert stats_of_job(net, 2, 1)["reserves"] == "1"


@pytest.mark.parametrize("more", [b"", b"put 0 0 1 2\r\ny"])
def test_reply_that_makes_no_sense_ends_the_client(net, client, more):
    client.send(b"list-tube-used\r\n")
    net.halted.add(1)
    client.send(put(b"x") + more)
    lane = client.session.lanes[1]
    assert not client.session.came(lane, b"INSERTED x\r\n", net.now_s)
    client.lose(1)
    assert client.take() == b""
    assert client.session.is_done


def test_offer_is_lost_with_its_connection():
    net = Net(["a"], ["b"], old=(2,))
    worker = net.client()
    worker.send(b"watch a\r\nwatch b\r\nreserve\r\n")
    net.halted.add(2)
    net.wait(0.2)  # so that what is offered waits for a poll
    job_at(net, 1, b"a")
    net.leave(1)
    net.halted.clear()
    net.wait(3)
    assert worker.take() == b""
    net.come_back(1)
    assert worker.take() == b"RESERVED 65 1\r\nx\r\n"
    assert not worker.session.late


def test_server_that_refused_a_greeting_is_asked_again(net, worker):
    net.leave(2)
    core = net.cores[2]
    core.engine.clients.max_tubes = 1
    assert worker.send(b"reserve\r\n") == b""
    net.come_back(2)
    assert worker.session.lanes[2].state == CLOSED
    core.engine.clients.max_tubes = 10
    job_at(net, 2, b"b")
    net.wait(1.5)
    assert worker.take() == b"RESERVED 66 1\r\nx\r\n"


def test_server_is_doubted_whose_reply_nobody_waits_for(net, worker):
    doubts = []
    net.map.servers[1].doubt = lambda: doubts.append(1)
    net.map.servers[2].doubt = lambda: doubts.append(2)
    worker.send(b"use b\r\n")
    net.halted.add(1)
    worker.send(b"reserve\r\n")
    net.wait(1.5)
    assert doubts == [1]
    doubts.clear()
    worker.half_close()
    assert doubts == [1, 2]
    client = net.client()
    client.send(b"use b\r\n")
    client.send(b"peek-ready\r\n")
    doubts.clear()
    client.leave()
    assert not doubts
    client = net.client()
    client.send(b"peek-ready\r\n")
    client.leave()
    assert doubts == [1]


def test_halted_server_of_default_keeps_nobody_from_work_elsewhere(net):
    net.halted.add(1)
    job_at(net, 2, b"b")
    client = net.client()
    said = client.send(b"name web1\r\nwatch b\r\nreserve-job 66\r\n")
    assert said == b"NAMED\r\nWATCHING 2\r\nRESERVED 66 1\r\nx\r\n"
    client.session.receive(put(b"x"), net.now_s)
    net.halted.clear()
    net.run()
    assert client.take() == b"INSERTED 65\r\n"
    net.halted.add(1)
    said = client.send(b"name web2\r\nnote 0 1\r\nx\r\nnote 66 1\r\nx\r\ndelete 66\r\n")
    assert said == b"NAMED\r\nNOT_FOUND\r\nNOTED\r\nDELETED\r\n"
    net.halted.clear()
    net.run()
    for core in net.cores.values():
        assert [*core.sessions][-1].peer.address.endswith(' "web2"')
