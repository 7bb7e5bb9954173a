"""What came and went over time."""

import random
import tracemalloc
from itertools import pairwise

import pytest

from beanlite.core import flows
from beanlite.core.flows import FLOW_BYTES, IDLE_NS, POINT_BYTES, RANGES, quantile_s, series_of, weigh
from beanlite.core.heap import KeyHeap
from beanlite.core.job import SECOND_NS
from beanlite.core.totals import WAITS_MAX, Tally
from tests.support.core import put
from tests.support.diagnosed import Diagnosed
from tests.support.operators import Operator
from tests.support.ruled_core import policy


@pytest.fixture
def core():
    return Diagnosed()


def series(core, span, tube=None):
    """What a range knows of a tube, or of the whole server."""
    kept = core.engine.ledger.flows
    flow = kept.total if tube is None else kept.find(tube)
    found = core.engine.tubes.get(tube)
    ready = core.engine.ready if tube is None else len(found.ready) if found else 0
    return series_of(flow, span, ready, 0, core.now_ns)


@pytest.mark.parametrize("seed", range(3))
def test_all_ranges_count_what_the_tallies_did(core, seed):
    chance = random.Random(seed)
    worker = core.worker()
    did = {"put": 0, "deleted": 0}

    def act():
        jobs = chance.choice((0, 0, 1, 5, 50))
        core.fill(b"mail", jobs)
        deletes = min(chance.randrange(60), len(core.engine.tubes[b"mail"].ready))
        core.work(worker, deletes)
        did["put"] += jobs
        did["deleted"] += deletes

    core.live(290, each=act)
    for tube in (None, b"mail"):
        for span, (step_s, _) in RANGES.items():
            known = series(core, span, tube)
            assert (sum(known.put), sum(known.deleted)) == (did["put"], did["deleted"])
            assert sum(known.reserved) == did["deleted"]
            assert known.ready[-1] == len(core.engine.tubes[b"mail"].ready)
            assert len({len(column) for column in known[2:]}) == 1
            moved = [at for at, count in enumerate(known.put) if count]
            counted_s = sum(known.seconds[moved[0] : moved[-1] + 1])
            assert counted_s == pytest.approx((moved[-1] - moved[0] + 1) * step_s, abs=3 * step_s)


def test_silence_is_no_gap_and_ready_jobs_stay(core):
    core.fill(b"mail", 7)
    core.live(1)
    core.live(60)
    core.fill(b"mail", 2)
    core.live(1)
    known = series(core, "5min", b"mail")
    last = [at for at, count in enumerate(known.put) if count]
    assert [known.put[at] for at in last] == [7, 2]
    assert set(known.ready[last[0] : last[1]]) == {7}
    assert set(known.ready[: last[0]]) == {None}
    assert set(known.seconds[last[0] + 1 : last[1]]) == {3.0}
    assert known.ready[-1] == 9
    core.live(400)
    assert set(series(core, "5min", b"mail").ready) == {9}


@pytest.mark.parametrize("do", ["move", "delay", "policy"])
def test_ready_jobs_change_when_they_are_moved_or_delayed(core, do):
    if do == "policy":
        policy(core, b"mail", ttl="10m", expired="move:other")
    core.producer(b"mail")
    core.fill(b"mail", 9)
    core.live(590)
    if do == "move":
        Operator(core).change("move", tube="mail", to="other")
    elif do == "delay":
        Operator(core).change("delay", tube="mail", delay_s=3600)
    core.live(40)
    ready = series(core, "5min", b"mail").ready[-20:]
    assert (set(ready[:6]), set(ready[-9:])) == ({9}, {0})
    if do != "delay":
        ready = series(core, "5min", b"other").ready[-20:]
        assert (set(ready[:6]), set(ready[-9:])) == ({None}, {9})


def test_points_go_when_the_range_is_over(core):
    core.fill(b"mail", 5)
    core.live(400, each=lambda: core.fill(b"mail", 1))
    known = series(core, "5min", b"mail")
    step_s, most = RANGES["5min"]
    assert len(known.put) == most
    assert known.from_ns == (core.now_ns // SECOND_NS // step_s - most + 1) * step_s * SECOND_NS
    assert set(known.put[:-1]) == {3}
    assert len(core.engine.ledger.flows.find(b"mail").rows("5min", core.now_ns)) <= most + 1
    assert sum(series(core, "hour", b"mail").put) == 405


def test_waits_of_jobs_are_told_by_median_and_tail(core):
    worker = core.worker()
    core.fill(b"mail", 100)
    core.wait(2)
    core.work(worker, 100)
    core.live(1)
    for known in (series(core, "hour", b"mail"), series(core, "hour")):
        waits = [(p50, p99) for p50, p99 in zip(known.wait_p50_s, known.wait_p99_s, strict=True) if p50 is not None]
        assert waits == [(pytest.approx(2, rel=0.2), pytest.approx(2, rel=0.2))]


def test_job_that_is_handed_to_a_waiting_client_waits_for_nothing(core):
    worker = core.worker()
    core.send(worker, b"reserve\r\n")
    core.fill(b"mail", 1)
    core.live(1)
    known = series(core, "5min", b"mail")
    assert [wait for wait in known.wait_p99_s if wait is not None] == [0.0]


@pytest.mark.parametrize("reserved", [1, WAITS_MAX - 1, WAITS_MAX, 1000, 4096])
def test_few_waits_stand_for_all_reservations(core, reserved):
    worker = core.worker()
    core.fill(b"mail", reserved)
    core.now_ns += SECOND_NS
    core.work(worker, reserved)
    tally = core.engine.tubes[b"mail"].tally
    assert 0 < len(tally.waits) < WAITS_MAX
    standing = sum(weight for _, weight in weigh(tally))
    assert reserved - len(tally.waits) < standing <= reserved


@pytest.mark.parametrize("turns", [2, 3, 4, 8])
def test_waits_of_jobs_that_take_turns_are_all_in_the_sample(core, turns):
    """As those of a fair tube do: one group has a backlog, the others have not."""
    client = core.client()
    for number in range(4000):
        job = core.engine.jobs.find(put(core, client))
        job.since_ns = core.now_ns - (100 * SECOND_NS if number % turns == 0 else 0)
        core.send(client, b"reserve\r\n")
    waits = core.engine.tubes[b"default"].tally.waits
    assert len(waits) >= WAITS_MAX // 2
    assert sum(wait > 0 for wait in waits) / len(waits) == pytest.approx(1 / turns, abs=0.25)
    assert any(waits)


def test_quantiles_are_within_a_fifth_of_the_truth():
    chance = random.Random(4)
    waits = sorted(chance.lognormvariate(1, 2) for _ in range(10_000))
    tally = Tally(b"")
    tally.waits = [round(wait * SECOND_NS) for wait in waits]
    counts = [0] * 200
    for at, weight in weigh(tally):
        counts[at] += weight
    for share in (0.5, 0.99):
        assert quantile_s(counts, share) == pytest.approx(waits[int(share * len(waits))], rel=0.2)


def test_rates_are_those_of_the_last_seconds(core):
    core.fill(b"mail", 1)
    core.live(30, each=lambda: core.fill(b"mail", 4))
    flow = core.engine.ledger.flows.find(b"mail")
    assert flow.rates(core.now_ns) == (pytest.approx(4, rel=0.1), 0, 0)
    core.live(20)
    assert flow.rates(core.now_ns) == (0, 0, 0)


@pytest.mark.parametrize("every_s", [1, 2, 4, 9])
def test_rates_are_those_of_bursts_and_the_silence_between(core, every_s):
    core.fill(b"mail", 1)
    core.live(1)
    seconds = iter(range(90))
    rates = []

    def act():
        if next(seconds) % every_s == 0:
            core.fill(b"mail", 60)
        flow = core.engine.ledger.flows.find(b"mail")
        rates.append(flow.rates(core.now_ns)[0])

    core.live(90, each=act)
    mean = sum(rates[20:]) / len(rates[20:])
    assert mean == pytest.approx(60 / every_s, rel=0.25)
    assert max(rates[20:]) <= 60 * -(-10 // every_s) / 8


def test_point_before_a_silence_was_counted_to_its_end(core):
    step_s = 600
    core.now_ns -= core.now_ns % (step_s * SECOND_NS)
    core.fill(b"mail", 100)
    core.live(1)
    core.live(step_s + step_s // 2)
    core.fill(b"mail", 1)
    core.live(1)
    rows = core.engine.ledger.flows.find(b"mail").rows("day", core.now_ns)
    assert [(row[1] / SECOND_NS, row[2]) for row in rows] == [
        (pytest.approx(step_s, abs=2), 100),
        (pytest.approx(step_s // 2, abs=3), 1),
    ]


def test_tube_that_comes_and_goes_keeps_its_flow(core):
    worker = core.worker()
    for _ in range(3):
        core.fill(b"mail", 2)
        core.live(5)
        core.work(worker, 2)
        core.close(worker)
        core.live(5)
        assert b"mail" not in core.engine.tubes
        worker = core.worker()
    assert sum(series(core, "5min", b"mail").put) == 6


def test_flows_take_no_more_than_their_room_and_the_rest_is_told(core):
    kept, memory = core.engine.ledger.flows, core.engine.memory
    memory.bound(flows.PART * 20 * FLOW_BYTES, 1 << 40, fetches=False)
    for number in range(40):
        put(core, core.producer(b"tube-%d" % number))
    core.live(1)
    assert 0 < len(kept) == 15
    assert kept.lost
    assert kept.find(b"tube-0") is not None
    assert kept.find(b"tube-39") is None
    assert kept.used_bytes == len(kept) * FLOW_BYTES
    client = core.client()

    def move():
        for number in range(40):
            core.send(client, b"use tube-%d\r\n" % number)
            put(core, client)

    core.live(120, each=move)
    assert kept.used_bytes <= kept.max_bytes
    assert kept._points == sum(flow.points for flow in kept._flows.values())
    assert kept._points * POINT_BYTES > FLOW_BYTES
    counted, used = memory.other_bytes, kept.used_bytes
    kept.__init__()
    assert counted - memory.other_bytes == used


def test_new_flow_takes_the_place_of_one_that_is_idle(core):
    kept = core.engine.ledger.flows
    for name in (b"busy", b"idle"):
        core.fill(name, 1)
        core.live(1)
    kept.max_bytes = FLOW_BYTES * 3
    core.fill(b"new", 1)  # for which there is room, but it is left to the others
    core.live(1)
    assert kept.find(b"new") is None
    kept.max_bytes = flows.FLOWS_BYTES
    core.live(IDLE_NS // SECOND_NS, each=lambda: core.fill(b"busy", 1))
    kept.max_bytes = kept.used_bytes + POINT_BYTES * 10
    core.fill(b"new", 1)
    core.live(1)
    assert kept.find(b"new") is not None
    assert kept.find(b"idle") is None
    assert kept.find(b"busy") is not None


def test_tube_that_is_gone_at_once_has_no_flow(core):
    worker = core.client()
    for number in range(50):
        core.send(worker, b"use one-%d\r\n" % number)
        core.send(worker, b"delete %d\r\n" % put(core, worker))
    core.send(worker, b"use default\r\n")
    core.live(1)
    assert len(core.engine.ledger.flows) == 0
    assert sum(series(core, "5min").put) == 50


def test_tube_whose_jobs_are_gone_at_once_has_a_flow_while_it_is_used(core):
    client = core.producer(b"mail")
    for _ in range(3):
        core.send(client, b"delete %d\r\n" % put(core, client))
        core.live(1)
    known = series(core, "5min", b"mail")
    assert (sum(known.put), sum(known.deleted)) == (3, 3)


@pytest.mark.parametrize("size", [0, 1, 12, 300, 20_000])
def test_keys_between_bounds_are_counted_or_estimated(size):
    chance = random.Random(size)
    heap = KeyHeap()
    keys = chance.sample(range(10 * size + 1), size)
    for key in keys:
        heap.push(key)
    for key in keys[: size // 4]:
        heap.remove(key)
    rest = keys[size // 4 :]
    bounds = [5 * size // 4, 5 * size // 2, 5 * size]
    counts = [1, 2, 3]
    looks = heap.add_between(bounds, counts, 500)
    counts = [count - before for count, before in zip(counts, [1, 2, 3], strict=True)]
    edges = [-1, *bounds]
    truth = [sum(low < key <= high for key in rest) for low, high in pairwise(edges)]
    if size <= 500:
        assert counts == truth
    else:
        assert looks < 5000
        assert counts == pytest.approx(truth, rel=0.2)


@pytest.mark.parametrize("due", [300, 1000, 3000, 20_000])
def test_few_keys_of_very_many_are_neither_lost_nor_exaggerated(due):
    heap = KeyHeap()
    for key in random.Random(due).sample(range(300_000), 300_000):
        heap.push(key)
    counts = [0] * 4
    looks = heap.add_between([due * (part + 1) // 4 - 1 for part in range(4)], counts, 2000)
    assert sum(counts) == pytest.approx(due, rel=0.5)
    assert looks < 5000
    if due <= 300:
        assert counts == [due // 4] * 4
    else:
        assert min(counts) > 0


def test_flow_takes_no_more_memory_than_is_counted():
    chance = random.Random(1)
    tallies = []
    for _ in range(300):
        tally = Tally(b"")
        tally.reserved = 4000
        tally.waits = [round(chance.lognormvariate(1, 3) * SECOND_NS) for _ in range(31)]
        tallies.append((tally, weigh(tally)))
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        flow = flows.KeptFlow(0)
        for second, (tally, weights) in enumerate(tallies):
            flow.note(tally, weights, 5_000_000, 10**18 + second * SECOND_NS)
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert taken <= FLOW_BYTES + flow.points * POINT_BYTES
