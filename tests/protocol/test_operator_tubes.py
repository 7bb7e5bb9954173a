"""Operators' commands that look: what they tell of tubes and of clients."""

import pytest

from beanlite.core import like
from beanlite.protocol.operators import lists as operator_lists
from tests.support.core import in_tube, put


def test_all_that_is_told_of_a_tube(core, operator):
    worker = core.client()
    in_tube(core, worker, b"a", 5, pri=2000)
    in_tube(core, worker, b"a", 1, delay_s=1000)
    core.send(worker, b"watch a\r\nreserve\r\nreserve\r\nbury 1 0\r\ndelete 3\r\n")
    core.wait(5)
    core.send(worker, b"pause-tube a 60\r\n")
    core.wait(3.5)
    waiting = core.client()
    core.send(waiting, b"watch a\r\nreserve\r\n")
    assert operator.ask("list-tube-stats", names=["a", "nowhere"]) == {
        "tubes": [
            {
                "name": "a", "ready": 2, "urgent": 0, "reserved": 1, "delayed": 1, "buried": 1, "total_jobs": 6,
                "using": 1, "watching": 2, "waiting": 1, "deletes": 1, "pauses": 1, "pause_s": 60, "pause_left_s": 56,
                "first_ready_s": 8, "first_buried_s": 8, "puts_per_s": 0, "deletes_per_s": 0,
                "policy": None, "shut": ["paused"],
                "dead": 0, "expired": 0, "refused": 0, "duplicates": 0, "releases": 0, "timeouts": 0, "buries": 1,
                "client_gone": 0, "delay_over": 0,
            }
        ],
        "next": None,
        "looked": 1,
    }  # fmt: skip


def test_how_reservations_ended_is_counted_on_when_totals_are_stored(core, operator):
    worker = core.client()
    in_tube(core, worker, b"default", 1, ttr_s=1)
    for stored in (False, True):
        core.send(worker, b"reserve\r\n" + b"release 1 0 0\r\nreserve\r\n" * 2)
        core.wait(2)
        core.send(worker, b"reserve\r\nbury 1 0\r\nkick 1\r\n")
        (tube,) = operator.ask("list-tube-stats")["tubes"]
        counts = [tube[key] for key in ("releases", "timeouts", "buries")]
        assert counts == ([4, 2, 2] if stored else [2, 1, 1])
        core.engine.ledger.take(core.engine.last_id, deferred=True, totals=True, now_ns=core.now_ns)


def test_jobs_that_are_due_soon_are_counted(core, operator, monkeypatch):
    producer = core.client()
    for tube in (b"a", b"b", b"c"):
        for delay_s in (100, 50, 200, 60, 300):
            in_tube(core, producer, tube, 1, delay_s=delay_s)
    core.send(producer, b"delete 2\r\n")

    def dues(due_s, **what):
        return {tube["name"]: tube["due"] for tube in operator.all("list-tube-stats", "tubes", due_s=due_s, **what)}

    assert dues(100) == {"default": 0, "a": 2, "b": 3, "c": 3}
    assert dues(99, names=["a", "b"]) == {"a": 1, "b": 2}
    assert dues(0) == {"default": 0, "a": 0, "b": 0, "c": 0}
    core.wait(20)
    assert dues(180, limit=1) == {"default": 0, "a": 3, "b": 4, "c": 4}
    assert "due" not in operator.ask("list-tube-stats")["tubes"][0]
    monkeypatch.setattr(operator_lists, "DUE_MAX", 3)
    assert dues(180) == {"default": 0, "a": 3, "b": 4, "c": 4}
    assert [len(operator.ask("list-tube-stats", due_s=due_s)["tubes"]) for due_s in (0, 180)] == [4, 2]


def test_tubes_in_slices(core, operator, monkeypatch):
    monkeypatch.setattr(operator_lists, "TUBES_LOOKED_AT", 7)
    producer = core.client()
    names = [f"t{number * 7 % 40}" for number in range(40)]
    for number, name in enumerate(names):
        in_tube(core, producer, name.encode(), number % 5 + 1)
    all_names = ["default", *names]
    assert [tube["name"] for tube in operator.all("list-tube-stats", "tubes", limit=3)] == all_names
    like = [tube["name"] for tube in operator.all("list-tube-stats", "tubes", limit=2, like="t?")]
    assert like == [name for name in names if len(name) == 2]
    assert [tube["name"] for tube in operator.all("list-tube-stats", "tubes", names=names[::-1], limit=4)] == names
    slices = operator.all("list-tube-stats", "tubes", order="ready", limit=2)
    assert len(slices) == 2 * 6
    found = operator.ask("list-tube-stats", order="ready", limit=2)
    assert [tube["ready"] for tube in found["tubes"]] == [5, 4]
    by_name = operator.ask("list-tube-stats", order="name", limit=3)["tubes"]
    assert [tube["name"] for tube in by_name] == sorted(all_names[:7])[:3]
    counts = {name: number % 5 + 1 for number, name in enumerate(names)}
    ready = [["default", 0], *map(list, counts.items())]
    assert operator.all("list-tube-stats", "tubes", only=["name", "ready"]) == ready
    assert operator.ask("list-tube-stats", only=["name"])["tubes"] == [[name] for name in all_names[:7]]
    few = operator.ask("list-tube-stats", only=["ready", "first_ready_s"], like="t?")
    assert few["tubes"] == [[counts[name], 0] for name in names[:6] if len(name) == 2]
    assert few["looked"] == 7


def test_slice_tries_few_tubes_with_a_long_pattern(core, operator, monkeypatch):
    monkeypatch.setattr(like, "COST_MAX", 5 * 50 * 50)
    for number in range(40):
        in_tube(core, operator.session, b"%02d" % number + b"a" * 48, 1)
    short, long = "*7aa*", "*7" + "a" * 47 + "*"
    looks = [operator.ask("list-tube-stats", like=pattern)["looked"] for pattern in (short, "?" * 50, long)]
    assert looks == [41, 41, 6]
    found = [operator.all("list-tube-stats", "tubes", like=pattern) for pattern in (short, long)]
    assert len(found[0]) == 4
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "order", ["ready", "reserved", "delayed", "buried", "waiting", "total_jobs", "first_ready_s", "first_buried_s"]
)
def test_each_order_of_tubes(core, operator, order):
    worker = core.client()
    in_tube(core, worker, b"a", 3)
    core.wait(2)
    in_tube(core, worker, b"b", 4)
    in_tube(core, worker, b"b", 1, delay_s=100)
    in_tube(core, worker, b"c", 1)
    core.send(worker, b"watch b\r\nwatch c\r\nreserve\r\nreserve-job 1\r\nbury 1 0\r\npause-tube c 99\r\n")
    core.send(core.client(), b"watch c\r\nignore default\r\nreserve\r\n")
    tubes = operator.ask("list-tube-stats")["tubes"]
    ordered = operator.ask("list-tube-stats", order=order)["tubes"]
    assert ordered == sorted(tubes, key=lambda tube: -1 if tube[order] is None else tube[order], reverse=True)
    assert [tube[order] for tube in tubes] != [None] * 4
    told_alone = operator.ask("list-tube-stats", only=["name", order])["tubes"]
    assert told_alone == [[tube["name"], tube[order]] for tube in tubes]


def test_the_client_that_asks_does_not_count_itself(core, operator):
    other = core.client()
    core.send(operator.session, b"use a\r\nwatch b\r\n")
    core.send(other, b"watch a\r\nuse b\r\n")
    tubes = {tube["name"]: (tube["using"], tube["watching"]) for tube in operator.ask("list-tube-stats")["tubes"]}
    assert tubes == {"default": (0, 1), "a": (0, 1), "b": (1, 0)}
    assert [client["asks"] for client in operator.ask("list-clients")["clients"]] == [True, False]
    stats = core.send(operator.session, b"stats-tube default\r\n")  # as with beanstalkd
    assert b"current-watching: 2\n" in stats


def test_all_that_is_told_of_a_client(core, operator):
    worker = core.client()
    in_tube(core, worker, b"a", 3, ttr_s=100)
    core.send(worker, b"watch a\r\nreserve\r\n")
    core.wait(3)
    core.send(worker, b"reserve\r\nignore default\r\nput 0 0 1 9\r\nabc")
    waiting = core.client()
    core.send(waiting, b"reserve-with-timeout 50\r\n")
    core.wait(4)
    reply = operator.ask("list-clients", limit=2)
    me, worker_told = reply["clients"]
    assert (me["number"], me["holds"], me["oldest_hold_s"], me["producer"], me["worker"]) == (1, 0, None, False, False)
    assert worker_told == {
        "number": 2, "address": "10.0.0.1:2", "name": None, "uses": "a", "watches": ["a"], "waits_s": None, "holds": 2,
        "oldest_hold_s": 7, "producer": True, "worker": True, "asks": False, "buffered": 3,
        "connected_s": None, "silent_s": None, "last": None, "stuck": None,
    }  # fmt: skip
    rest = operator.ask("list-clients", limit=2, after=reply["next"])
    assert rest["next"] is None
    assert [(client["number"], client["waits_s"]) for client in rest["clients"]] == [(3, 4)]


def test_clients_that_watch_or_hold_much_are_listed_in_smaller_slices(core, operator, monkeypatch):
    monkeypatch.setattr(operator_lists, "CLIENT_FACTS_MAX", 10)
    for _ in range(5):
        core.send(core.client(), b"".join(b"watch t%d\r\n" % number for number in range(6)))
    assert len(operator.ask("list-clients")["clients"]) == 3
    for _ in range(10):
        put(core, operator.session)
        core.send(operator.session, b"reserve\r\n")
    assert len(operator.ask("list-clients")["clients"]) == 1
    assert [client["number"] for client in operator.all("list-clients", "clients")] == [1, 2, 3, 4, 5, 6]


def test_a_client_that_has_gone_is_not_told_of(operator):
    core = operator.core
    gone = core.client()
    core.close(gone)
    assert [client["number"] for client in operator.all("list-clients", "clients")] == [1]
