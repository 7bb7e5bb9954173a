"""What commands cost the router that a client gives one after the other, in calls rather than in seconds."""

import pytest

from tests.protocol.test_costs import calls_of


def cost(client, data):
    return calls_of(lambda: client.session.receive(data, client.net.now_s))


def test_reserve_costs_the_same_however_many_tubes_are_watched(net, client):
    """The tubes change before each."""
    costs = []
    for number in range(1, 200):
        client.send(b"watch t%d\r\n" % number)
        costs.append(cost(client, b"ignore t1\r\nwatch t1\r\nreserve-with-timeout 0\r\n"))
        net.run()
    assert costs[-1] == costs[10]


def test_greeting_costs_the_same_whatever_tubes_other_servers_have(client):
    session, costs = client.session, []
    lane = session.lane_to(session.map.fleet.by_number[2])
    for number in 1, 200:
        for each in range(number):
            client.send(b"watch t%d\r\n" % each)
        session.greeting(lane)
        costs.append(calls_of(lambda: session.greeting(lane)))
    assert costs[0] == costs[1]


def test_reserve_does_not_go_through_all_tubes_that_have_moved(net, worker):
    class Moved(dict):
        def __iter__(self):
            pytest.fail("gone through")

    worker.send(b"watch t5\r\n")
    moved = {f"t{number}": {"from": "s2", "to": "s1"} for number in range(9)}
    net.change(["a"], ["b"], moved=moved)
    net.map.fleet.moved = Moved(net.map.fleet.moved)
    for turn in 0, 1:
        worker.session.turn = turn
        assert [lane.number for lane in worker.session.reserve_lanes()] == [2, 1]


def test_watch_does_not_copy_what_is_watched(client):
    class Watched(set):
        def __sub__(self, other):
            pytest.fail("copied")

    client.send(b"watch a\r\n")
    lane = client.session.lanes[1]
    lane.watched = Watched(lane.watched)
    assert client.send(b"watch c\r\n") == b"WATCHING 3\r\n"


def test_refused_use_costs_the_same_however_many_are_in_flight(net, client):
    client.send(b"use a\r\n")
    costs = []
    for number in 10, 200:
        client.session.receive(b"use x\r\nuse y\r\n" * number, net.now_s)
        lane = client.session.lanes[1]
        costs.append(calls_of(lambda lane=lane: client.session.came(lane, b"UNAUTHORIZED\r\n", net.now_s)))
        client.session.came(lane, b"UNAUTHORIZED\r\n" * (2 * number - 1), net.now_s)
        assert client.session.used == b"a"
    assert costs[0] == costs[1]


@pytest.mark.parametrize("line", [b"stats\r\n", b"list-tubes\r\n", b"stats-tube b\r\n"])
def test_replies_of_several_servers_are_merged_one_at_a_time(net, line):
    net.change(["a"], [], moved={"b": {"from": "s2", "to": "s1"}})
    client = net.client()
    client.send(b"use b\r\n")
    client.session.receive(line * 5 + b"list-tube-used\r\n", net.now_s)
    assert len(client.session.order) == 1
    net.run()
    said = client.take()
    assert said.count(b"OK ") == 5
    assert said.endswith(b"USING b\r\n")
    assert net.writes[1][-5:] == [line] * 5
