"""The command that tells what came and went over time."""

import pytest

from beanlite.core.access import READER
from beanlite.core.flows import FLOW_BYTES, RANGES
from beanlite.protocol.operators import flowing
from beanlite.protocol.operators.requests import ShowFlow
from tests.support.core import put
from tests.support.diagnosed import Diagnosed
from tests.support.operators import ask

COLUMNS = ("put", "reserved", "deleted", "delay_over", "ready", "wait_p50_s", "wait_p99_s", "seconds")
REFUSED = b"UNAUTHORIZED\r\n"


@pytest.fixture
def core():
    core = Diagnosed()
    core.engine.ledger.flows.since_ns = core.now_ns
    return core


def test_all_that_is_told_of_a_flow(core, operator):
    began_s = core.service.utc_s(core.now_ns)
    worker = core.worker()
    core.fill(b"mail", 6)
    core.live(2)
    core.work(worker, 4)
    core.live(8)
    for what in ({"tube": "mail"}, {}):
        reply = operator.ask("show-flow", range="5min", **what)
        assert (reply["since_at"], reply["step_s"], reply["kept"]) == (began_s, 3, True)
        assert began_s - 3 < reply["from_at"] <= began_s
        assert (sum(reply["put"]), sum(reply["reserved"]), sum(reply["deleted"])) == (6, 4, 4)
        assert reply["ready"][-1] == 2
        assert max(wait for wait in reply["wait_p99_s"] if wait is not None) == pytest.approx(2, rel=0.2)
        assert {len(reply[column]) for column in COLUMNS} == {len(reply["put"])}
        assert len(reply["put"]) in {4, 5}


def test_point_in_which_the_server_began_counts_from_then_on(core, operator):
    core.live(20, each=lambda: core.fill(b"mail", 3))
    for what in ({"tube": "mail"}, {}):
        reply = operator.ask("show-flow", range="day", **what)
        assert reply["put"] == [60]
        assert reply["seconds"] == [pytest.approx(20, abs=1)]


@pytest.mark.parametrize("span", RANGES)
def test_delayed_jobs_are_counted_by_when_they_are_due(core, operator, monkeypatch, span):
    monkeypatch.setattr(flowing, "SLICE", 3)
    step_s, points = RANGES[span]
    part_s = step_s * points // 60
    for part in (0, 0, 3, 11, 12):
        put(core, core.producer(b"mail"), delay_s=part * part_s + 1)
    put(core, core.producer(b"news"), delay_s=1)
    reply = operator.ask("show-flow", range=span, tube="mail")
    assert (reply["due"], reply["due_step_s"]) == ([2, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1], part_s)
    assert operator.ask("show-flow", range=span)["due"] == [3, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1]
    core.live(2)
    assert sum(operator.ask("show-flow", range=span)["delay_over"]) == 3


def test_tube_in_which_nothing_has_happened_is_told_of_too(core, operator):
    core.fill(b"mail", 3)
    core.live(1)
    core.engine.ledger.flows._flows.clear()  # as after a restart
    reply = operator.ask("show-flow", range="hour", tube="mail")
    assert set(reply["ready"]) == {3}
    assert set(reply["put"]) == {0}
    reply = operator.ask("show-flow", range="hour", tube="nowhere")
    assert (reply["kept"], set(reply["ready"])) == (True, {0})


def test_tube_without_room_for_its_flow_says_so(core, operator):
    core.live(100)
    core.engine.ledger.flows.max_bytes = FLOW_BYTES * 2
    for name in (b"mail", b"news"):
        core.fill(name, 1)
        core.live(1)
    mail, news = (operator.ask("show-flow", range="5min", tube=tube) for tube in ("mail", "news"))
    assert (mail["kept"], news["kept"]) == (True, False)
    assert news["since_at"] == core.service.utc_s(core.now_ns)
    assert len(news["put"]) == 1
    rates = {tube["name"]: tube["puts_per_s"] for tube in operator.ask("list-tube-stats")["tubes"]}
    assert rates["news"] is None
    assert rates["mail"] > 0


def test_client_is_told_of_the_tubes_that_it_may_read(core):
    core.fill(b"mail", 1)
    core.fill(b"news", 1)
    reader = core.limited((READER, b"mail"))
    assert ask(core, reader, "show-flow", tube="news", range="day") == REFUSED
    assert ask(core, reader, "show-flow", tube="mail", range="day").startswith(b"OK ")


def test_limited_client_is_told_no_waits_and_delays_of_other_tubes(core, operator):
    worker = core.worker(b"news")
    core.fill(b"news", 5)
    core.live(2)
    core.work(worker, 5)
    core.fill(b"news", 3, delay_s=9)
    core.fill(b"mail", 2, delay_s=9)
    core.live(1)
    replies = []
    for pattern in (b"mail", b"*"):
        operator.session = core.limited((READER, pattern))
        replies.append(operator.ask("show-flow", range="5min"))
    assert [sum(reply["put"]) for reply in replies] == [10, 10]
    assert [set(reply["wait_p99_s"]) == {None} for reply in replies] == [True, False]
    assert [set(reply["wait_p50_s"]) == {None} for reply in replies] == [True, False]
    assert [sum(reply["due"]) for reply in replies] == [2, 5]


def test_looks_at_many_tubes_share_one_list(core, operator, monkeypatch):
    monkeypatch.setattr(flowing, "SLICE", 1)
    put(core, core.producer(b"mail"), delay_s=1)
    request = ShowFlow(range="hour")
    looks = [flowing.FlowLook(operator.session, request, core.now_ns) for _ in range(2)]
    assert looks[0]._tubes is looks[1]._tubes


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ({}, "range: this key is required"),
        ({"range": "week"}, "range: "),
        ({"range": "day", "tube": "no tube"}, "tube: "),
    ],
)
def test_wrong_request_for_a_flow_is_refused(operator, what, why):
    assert operator.refusal("show-flow", **what).startswith(why)
