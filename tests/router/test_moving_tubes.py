"""Tubes that move to another server, while their servers are there or away."""

import pytest

from tests.router.cores import Net, job_at, put
from tests.support.policies import set_policy

MOVED = {"b": {"from": "s2", "to": "s1"}}


@pytest.mark.parametrize("turn", [0, 1])
def test_moved_tube_is_put_into_the_new_server_and_reserved_from_both(net, turn):
    job_at(net, 2, b"b")
    net.change(["a"], [], moved=MOVED)
    client = net.client()
    client.session.turn = turn
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


def test_kick_that_the_second_server_refuses_tells_what_the_first_did(net):
    net.change(["a"], [], moved=MOVED)
    client = net.client()
    client.send(b"use b\r\nkick 1\r\n")
    for kicked, told in (5, b"KICKED 5\r\n"), (0, b"UNAUTHORIZED\r\n"):
        client.session.receive(b"kick 9\r\n", net.now_s)
        client.session.came(client.session.lanes[2], b"KICKED %d\r\n" % kicked, net.now_s)
        client.session.came(client.session.lanes[1], b"UNAUTHORIZED\r\n", net.now_s)
        assert client.take() == told


@pytest.mark.parametrize("lost", [1, 2])
def test_look_at_a_moved_tube_that_is_lost_shows_no_other_tube(net, lost):
    job_at(net, 2, b"default")
    net.change(["a"], [], moved=MOVED)
    client = net.client()
    client.send(b"use b\r\n" + put(b"new") + b"peek-ready\r\n")
    client.session.receive(b"peek-ready\r\n", net.now_s)
    if lost == 1:  # once the old server has answered
        net.halted.add(1)
        net.run()
    net.lose(lost)
    net.halted.clear()
    net.run()
    assert client.take() == b"FOUND 65 3\r\nnew\r\n"


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("away", [1, 2])
def test_moved_tube_is_handled_at_one_server_while_the_other_is_away(net, away, known):
    net.change(["a"], [], moved=MOVED)
    near = 3 - away
    core = net.cores[near]
    core.send(core.client(), b"use b\r\n" + put(b"x", delay_s=60) * 3)
    client = net.client()
    client.send(b"use b\r\n")

    def ask(data):
        net.halted.add(away)
        client.session.receive(data, net.now_s)
        if not known:  # it goes away while the connection is being made
            net.map.servers[away].away = False
            net.lose(away)
        net.run()
        net.leave(away)
        net.halted.clear()
        net.run()
        return client.take()

    if known:
        net.leave(away)
    assert ask(b"peek-delayed\r\n") == b"FOUND %d 1\r\nx\r\n" % (64 + near)
    assert ask(b"kick 2\r\n") == b"KICKED 2\r\n"
    assert ask(b"peek-ready\r\n") == b"FOUND %d 1\r\nx\r\n" % (64 + near)
    assert ask(b"peek-buried\r\n") == b"NOT_FOUND\r\n"
    assert ask(b"pause-tube b 5\r\n") == b"PAUSED\r\n"
    net.come_back(away)
    assert client.send(b"kick 5\r\npause-tube b 0\r\n") == b"KICKED 1\r\nPAUSED\r\n"
    for number in 1, 2:
        net.leave(number)
    assert client.send(b"peek-ready\r\nkick 1\r\npause-tube b 0\r\n") == b"INTERNAL_ERROR\r\n" * 3


@pytest.mark.parametrize(("old", "new"), [("s1", "s2"), ("s2", "s1")])
def test_policies_of_a_moved_tube_are_those_of_the_new_server(net, old, new):
    net.change(["a"], [], moved={"b": {"from": old, "to": new}})
    old_core, new_core = net.cores[int(old[1:])], net.cores[int(new[1:])]
    set_policy(old_core, b"b", max_jobs="7", ttl="60s", rate="2/s", max_tries="5")
    set_policy(new_core, b"b", max_jobs="5", then="move:dead", max_tries="5")
    for core in old_core, new_core:
        core.send(core.client(), b"use b\r\n" + put(b"x") * 8)
    said = net.client().send(b"stats-tube b\r\n").decode()
    policies = dict(line.split(": ") for line in said.split("\n") if line.startswith("policy-"))
    assert policies == {
        "policy-max-jobs": "5",
        "policy-max-tries": "5",
        "policy-then": '"move:dead"',
        "policy-total-dead": "0",
        "policy-total-expired": "0",
        "policy-total-refused": "4",
        "policy-total-duplicates": "0",
    }


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


@pytest.mark.parametrize("late", [b"delete 66", b"release 66 0 0", b"bury 66 0", b"touch 66", b"note 66 1\r\nx"])
def test_worker_that_lost_its_job_to_the_ttr_notices_a_new_file(net, client, late):
    client.send(b"use b\r\nwatch b\r\nignore default\r\n" + put(b"x", ttr_s=1) + b"reserve\r\n")
    net.wait(1.5)
    net.client().send(b"delete 66\r\n")
    assert client.send(late + b"\r\nreserve\r\n") == b"NOT_FOUND\r\n"
    net.change(["a"], [], moved=MOVED)
    job_at(net, 1, b"b")
    assert client.take() == b"RESERVED 65 1\r\nx\r\n"


def test_changed_file_applies_to_a_reserve_that_is_not_sent(net, client):
    client.send(b"watch b\r\nignore default\r\n")
    net.lose(2)
    net.halted.add(2)
    assert client.send(b"reserve\r\n") == b""
    net.change(["a"], [], moved=MOVED)
    net.halted.clear()
    job_at(net, 1, b"b")
    assert client.take() == b"RESERVED 65 1\r\nx\r\n"


def client_of_a(net):
    """A client that watches the tube a alone, and has connections to the servers of a and of b."""
    client = net.client()
    client.send(b"use b\r\nwatch a\r\nignore default\r\n" + put(b"x"))
    return client


def test_changed_file_applies_while_a_server_is_asked_for_a_job():
    """By then the next one has no tube of the client: it watches default there because it has to watch one."""
    net = Net(["a"], ["b"], moved={"a": {"from": "s1", "to": "s2"}})
    client = client_of_a(net)
    job_at(net, 2, b"default")
    net.halted.add(1)
    assert client.send(b"reserve-with-timeout 4\r\n") == b""
    net.change(["a"], ["b"])
    net.wait(2)
    assert client.take() == b""
    net.halted.clear()
    job_at(net, 1, b"a")
    assert client.take() == b"RESERVED 65 1\r\nx\r\n"


def test_server_is_told_of_a_moved_tube_before_it_is_asked_for_a_job():
    net = Net(["a"], ["b"], ["c"])
    client = client_of_a(net)
    client.session.turn = 1  # so that the second one is asked first
    assert client.send(b"watch c\r\nreserve\r\n") == b"WATCHING 2\r\n"
    job_at(net, 2, b"default")
    net.change(["d"], ["b", "a"], ["c"])
    assert client.take() == b""
    job_at(net, 2, b"a")
    assert client.take() == b"RESERVED 194 1\r\nx\r\n"


def test_changed_file_applies_to_a_reserve_that_waits_for_no_job():
    net = Net(["a"], ["b"], ["c"])
    client = client_of_a(net)
    client.send(b"watch b\r\n")
    client.session.turn = 1
    net.halted.add(1)
    assert client.send(b"reserve-with-timeout 0\r\n") == b""
    job_at(net, 3, b"a")
    net.change(["d"], [], ["a", "b"])
    net.wait(1.5)
    assert client.take() == b"RESERVED 67 1\r\nx\r\n"


@pytest.mark.parametrize("refuses", [False, True])
def test_server_that_is_renamed_while_it_is_away_is_asked_again(net, worker, refuses):
    net.lose(2)
    net.halted.add(2)
    assert worker.send(b"reserve\r\n") == b""
    net.map.servers[2].away = True
    net.change(["a"], ["b"], prefix="renamed")
    net.halted.clear()
    if refuses:
        net.cores[2].engine.clients.max_tubes = 1
        net.run()
        net.cores[2].engine.clients.max_tubes = 10
    else:
        net.leave(2)
    net.come_back(2)
    net.map.servers[2].knows_offers = True
    job_at(net, 2, b"b")
    net.wait(1.5)
    assert worker.take() == b"RESERVED 66 1\r\nx\r\n"


@pytest.mark.parametrize("more", [[], ["c"]])
def test_default_that_moves_to_where_it_was_watched_in_place_stays(net, client, more):
    """Of the new server the client has watched nothing so far. Be it that another tube moves with it, or later."""
    client.send(b"use b\r\nwatch c\r\n" + put(b"x"))
    assert client.session.lanes[2].watched == {b"default"}
    net.change(["a"], ["b", "b.x", "default", *more])
    client.send(b"watch b.x\r\n")
    job_at(net, 2, b"default")
    assert client.send(b"reserve-with-timeout 0\r\n") == b"RESERVED 130 1\r\nx\r\n"


def test_changed_file_ends_no_reserve_with_commands_behind_it(net, client):
    client.send(b"use b\r\nwatch b\r\nignore default\r\n")
    assert client.send(b"reserve\r\n" + put(b"y") + b"list-tube-used\r\n") == b""
    net.change(["a"], [], moved=MOVED)
    assert not client.session.is_over
    job_at(net, 2, b"b")
    job_at(net, 1, b"b")
    assert client.take() == b"RESERVED 66 1\r\nx\r\nINSERTED 130\r\nUSING b\r\n"
    assert client.send(b"reserve\r\nreserve\r\n") == b"RESERVED 130 1\r\ny\r\nRESERVED 65 1\r\nx\r\n"


def test_server_that_is_left_out_has_no_jobs(net, client):
    client.send(b"use b\r\n" + put(b"x"))
    net.change(["a", "b"])
    assert client.send(b"delete 66\r\n") == b"NOT_FOUND\r\n"
    assert client.send(put(b"x")) == b"INSERTED 65\r\n"
