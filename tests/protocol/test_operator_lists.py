"""Operators' commands that look: what they tell of jobs, and that slices see everything once."""

import base64
import random
from itertools import chain
from typing import Any

import pytest

from beanlite.core import operator_find, table as table_module
from beanlite.core.table import JobTable
from beanlite.core.tube import Peer
from beanlite.protocol.blocked import LOOKING
from tests.support.core import Core, in_tube, put
from tests.support.fetching import unloaded_core
from tests.support.jobs import Numbered
from tests.support.operators import Operator, told


def test_all_that_is_told_of_a_job(core, operator):
    worker = core.client()
    put(core, worker, b"some\xff body", pri=7, ttr_s=100)
    core.wait(50)
    core.send(worker, b"reserve\r\n")
    core.wait(20.5)
    holder = {"address": "10.0.0.1:2", "number": 2, "name": None}
    job = {
        "id": 1, "tube": "default", "state": "reserved", "pri": 7, "size": 10, "created_at": 947_684_800.0, "age_s": 70,
        "in_state_s": 20, "delay_s": 0, "ttr_s": 100, "left_s": 79, "reserves": 1, "timeouts": 0, "releases": 0,
        "buries": 0, "kicks": 0, "forgiven": 0, "tries": 1, "holder": holder, "why": None,
    }  # fmt: skip
    listed = operator.ask("list-jobs", preview=6)
    assert listed == {"jobs": [{**job, "preview": "some\ufffd "}], "next": None, "looked": 1, "last_id": 1}
    body = base64.b64encode(b"some\xff body").decode()
    assert operator_job(operator, 1) == {**job, "note": None, "body": body}
    core.send(worker, b"bury 1 9\r\n")
    core.wait(1)
    buried = {**job, "state": "buried", "pri": 9, "age_s": 71, "in_state_s": 1, "left_s": None, "buries": 1}
    assert operator_job(operator, 1) == {**buried, "why": "client", "note": None, "body": body}


@pytest.mark.parametrize("look", [b"stats-job 1", b"show-job 1"])
def test_look_at_a_job_that_is_not_stored_yet_waits(core, operator, look):
    session = operator.session
    put(core, core.client())
    for waits in (True, False):
        core.receive(session, look + b"\r\n")
        assert session.waits == waits
        assert session.take_replies().startswith(b"OK ")
        core.go_on(session)
        core.store()


def test_a_list_waits_for_nothing(core, operator):
    """Operators look at lists when something is wrong."""
    put(core, core.client())
    core.receive(operator.session, b"list-jobs 2\r\n{}\r\n")
    assert not operator.session.waits
    assert operator.session.take_replies().startswith(b"OK ")


def operator_job(operator, job_id):
    reply = operator.core.send(operator.session, b"show-job %d\r\n" % job_id)
    return told(reply)


def test_each_key_of_a_filter(core, operator):
    producer, worker = core.client(), core.client()
    old = in_tube(core, producer, b"a", 2, body=b"needle in hay", pri=5)
    core.wait(100)
    young = in_tube(core, producer, b"b", 2, body=b"hay", pri=10)
    delayed = in_tube(core, producer, b"a", 1, body="ärger".encode(), delay_s=1000)
    core.send(worker, b"watch b\r\nreserve\r\n")
    assert operator.ids() == [*old, *young, *delayed]
    assert operator.ids(tube="a") == [*old, *delayed]
    assert operator.ids(tube="nowhere") == []
    assert operator.ids(tube="a", state="ready") == old
    assert operator.ids(state="delayed") == delayed
    assert operator.ids(state="reserved") == operator.ids(tube="b", state="reserved") == young[:1]
    assert operator.ids(holder=3) == young[:1]
    assert operator.ids(holder=2) == operator.ids(holder=99) == []
    assert operator.ids(ids=[4, 2, 2, 99]) == [2, 4]
    assert operator.ids(ids=[4, 2], tube="b") == [4]
    assert operator.ids(older_s=100) == old
    assert operator.ids(older_s=100.001) == []
    assert operator.ids(newer_s=100) == [*young, *delayed]
    assert operator.ids(in_state_s=100) == old
    assert operator.ids(pri_min=5, pri_max=9) == old
    assert operator.ids(pri_min=6) == young
    assert operator.ids(text="needle") == old
    assert operator.ids(text="är") == delayed
    assert operator.ids(up_to_id=3) == [1, 2, 3]
    core.send(worker, b"bury %d 0\r\n" % young[0])
    assert operator.ids(in_state_s=100) == old
    core.wait(50)
    assert operator.ids(state="buried", in_state_s=50) == young[:1]


def test_filter_by_the_moment_of_the_state(core, operator):
    first = put(core, core.client())
    at = operator.ask("list-jobs")["jobs"][0]["created_at"]
    core.wait(100)
    second = put(core, core.client(), delay_s=1000)
    assert operator.ids(since_at=at) == [first, second]
    assert operator.ids(since_at=at + 1) == operator.ids(since_at=at + 100) == [second]
    assert operator.ids(since_at=at + 101) == operator.ids(until_at=at - 1) == []
    assert operator.ids(until_at=at) == operator.ids(until_at=at + 99) == [first]
    assert operator.ids(until_at=at + 100) == [first, second]
    assert operator.ids(since_at=at - 1, until_at=at + 1) == [first]
    assert operator.ids(until_at=at + 100, in_state_s=1) == [first]
    core.send(core.client(), b"kick-job %d\r\n" % second)
    core.wait(1)
    assert operator.ids(since_at=at + 100) == [second]


def test_filter_by_reserves(core, operator):
    worker = core.client()
    for times in range(3):
        put(core, worker)
        for _ in range(times):
            core.send(worker, b"reserve-job %d\r\nrelease %d 0 0\r\n" % (times + 1, times + 1))
    assert operator.ids(reserves_min=0) == [1, 2, 3]
    assert operator.ids(reserves_min=1) == [2, 3]
    assert operator.ids(reserves_min=2) == [3]
    assert operator.ids(reserves_min=3) == []


def test_filter_by_the_host_of_the_holder(core, operator):
    for address in ("10.0.0.5:1000 mailer", "10.0.0.50:1000", "[fe80::1]:1000", "unix", "unix mailer"):
        worker = core.client()
        worker.client.peer = Peer(address, worker.client.peer.number)
        put(core, worker)
        core.send(worker, b"reserve\r\n")
    put(core, operator.session)
    assert operator.ids(holder_host="10.0.0.5") == [1]
    assert operator.ids(holder_host="fe80::1") == operator.ids(holder_host="[fe80::1]") == [3]
    assert operator.ids(holder_host="FE80:0:0:0:0:0:0:01") == [3]
    assert operator.ids(holder_host="unix") == [4, 5]
    assert operator.ids(holder_host="10.0.0") == operator.ids(holder_host="10.0.0.5", state="ready") == []
    assert operator.ask("list-jobs", holder_host="10.0.0.5")["looked"] == 5


def test_filter_by_a_value_in_json(core, operator, monkeypatch):
    producer = core.client()
    for body in (b'{"a": 1}', b'{"a": 2}', b"1", b'{"a": "1"}'):
        put(core, producer, body)
    assert operator.ids(where="a=1") == [1, 4]
    assert operator.ids(where="a=1", text='"1"') == [4]
    monkeypatch.setattr(operator_find, "PARSED_MAX", 8)
    assert operator.ids(where="a=1") == [1]


def test_slice_parses_few_bodies_and_passes_over_many(core, operator, monkeypatch):
    for n in range(10):
        put(core, operator.session, b'{"a": %d}' % (n % 2))
    monkeypatch.setattr(operator_find, "BYTES_MAX", 3 * operator_find.PARSED_EACH)
    assert [len(operator.ask("list-jobs", where=where)["jobs"]) for where in ("a=1", "b=1")] == [3, 0]
    assert [operator.ask("list-jobs", where=where)["looked"] for where in ("a=1", "b=2")] == [6, 10]
    assert operator.ids(where="a=1") == [2, 4, 6, 8, 10]


def test_slice_compares_few_bodies_with_a_long_text(core, operator, monkeypatch):
    for _ in range(10):
        put(core, operator.session, b"x" * 100)
    monkeypatch.setattr(operator_find, "BYTES_MAX", 800)
    looks = [operator.ask("list-jobs", text=text)["looked"] for text in ("y", "y" * 19, "y" * 20, "y" * 70)]
    assert looks == [8, 8, 4, 2]
    core.send(operator.session, b"note 1 200\r\n" + b"x" * 200 + b"\r\n")
    assert [operator.ask("list-jobs", note_text="y" * size)["looked"] for size in (1, 80)] == [10, 1]


@pytest.mark.parametrize("few_tubes", [1000, 0])
def test_slice_tries_few_names_with_a_long_pattern(core, operator, monkeypatch, few_tubes):
    monkeypatch.setattr(operator_find, "FEW_TUBES_MAX", few_tubes)
    tubes = [b"%02d" % number + b"a" * 48 for number in range(40)]
    jobs = [in_tube(core, operator.session, tube, 1)[0] for tube in tubes]
    monkeypatch.setattr(operator_find, "BYTES_MAX", 5 * 50 * 50)
    monkeypatch.setattr(operator_find, "COST_MAX", 10 * 50 * 50)
    short, long = "*7aa*", "*7" + "a" * 47 + "*"
    assert operator.ask("list-jobs", tube_like=short)["looked"] == (4 if few_tubes else 40)
    assert operator.ask("list-jobs", tube_like=long)["looked"] < 6
    assert operator.ids(tube_like=short) == operator.ids(tube_like=long) == jobs[7::10]


def test_text_is_looked_for_in_the_first_part_of_a_body(operator, core, monkeypatch):
    monkeypatch.setattr(operator_find, "SEARCHED_MAX", 10)
    put(core, core.client(), b"x" * 8 + b"ab" + b"cd")
    assert operator.ids(text="ab") == [1]
    assert operator.ids(text="bc") == []


def test_what_is_put_after_the_first_slice_is_left_alone(core, operator):
    producer = core.client()
    for _ in range(3):
        put(core, producer)
    first = operator.ask("list-jobs", limit=2)
    put(core, producer)
    rest = operator.ask("list-jobs", limit=2, after=first["next"])
    assert [job["id"] for job in rest["jobs"]] == [3]
    assert rest["next"] is None
    assert rest["last_id"] == 4


@pytest.mark.parametrize("few", [0, 10_000])
def test_slices_see_each_job_once_however_many_it_looks_at(core, operator, monkeypatch, few):
    """With queues that are short enough to gather their ids, and without."""
    monkeypatch.setattr(operator_find, "LOOKS_MAX", 7)
    monkeypatch.setattr(operator_find, "FEW_MAX", few)
    producer = core.client()
    rng = random.Random(15)
    jobs = {}
    for _ in range(300):
        tube = rng.choice((b"a", b"b", b"c"))
        core.send(producer, b"use %b\r\n" % tube)
        jobs[put(core, producer, delay_s=rng.choice((0, 0, 9)))] = tube
    for job_id in rng.sample(sorted(jobs), 150):
        core.send(producer, b"delete %d\r\n" % job_id)
        del jobs[job_id]
    for _ in range(20):
        core.send(producer, b"watch a\r\nreserve\r\n")
    assert operator.ids() == sorted(jobs)
    for tube in (b"a", b"b", b"c"):
        mine = sorted(job_id for job_id in jobs if jobs[job_id] == tube)
        assert operator.ids(tube=tube.decode(), limit=3) == mine
        parts = [operator.ids(tube=tube.decode(), state=state) for state in ("ready", "delayed", "reserved", "buried")]
        assert sorted(chain(*parts)) == mine


def test_only_what_comes_into_question_is_looked_at(core, operator):
    producer = core.client()
    in_tube(core, producer, b"many", 100)
    in_tube(core, producer, b"few", 3)
    core.send(producer, b"watch few\r\nignore default\r\nreserve\r\n")

    def looked(**what):
        return operator.ask("list-jobs", **what)["looked"]

    assert looked(tube="few") == looked(ids=[1, 2, 3]) == 3
    assert looked(state="reserved") == looked(holder=2) == looked(tube="few", state="reserved") == 1
    assert looked(state="ready") == 100  # as many as the limit


def test_jobs_of_a_client_that_has_just_gone_are_not_passed_over(core, operator):
    """They become ready in slices; until then no client has them, and they are reserved."""
    producer, worker = core.client(), core.client()
    for _ in range(600):
        put(core, producer)
    core.send(worker, b"reserve\r\n" * 600)
    core.engine.clients.disconnect(worker.client, core.now_ns)
    assert core.engine.counts.reserved == 100
    assert len(operator.ids(tube="default")) == 600
    assert len(operator.ids(state="reserved")) == 100


@pytest.mark.parametrize("state", ["ready", "delayed", "buried"])
def test_the_order_of_a_queue(core, operator, state, monkeypatch):
    monkeypatch.setattr(operator_find, "WALKED_MAX", 7)
    producer = core.client()
    rng = random.Random(4)
    keys = {}
    for _ in range(60):
        pri, delay_s = rng.randrange(5), rng.randrange(1, 9)
        job_id = put(core, producer, pri=pri, delay_s=delay_s if state == "delayed" else 0)
        keys[job_id] = (pri if state == "ready" else delay_s, job_id)
    if state == "buried":
        order = rng.sample(sorted(keys), 60)
        core.send(producer, b"".join(b"reserve-job %d\r\nbury %d 0\r\n" % (job_id, job_id) for job_id in order))
    else:
        order = sorted(keys, key=keys.__getitem__)
    for job_id in rng.sample(order, 20):
        core.send(producer, b"delete %d\r\n" % job_id)
        order.remove(job_id)
    for limit in (1, 5, 100):
        assert operator.ids(tube="default", state=state, order="queue", limit=limit) == order
    needed = [job_id for job_id in order if keys[job_id][1] % 2]
    for job_id in needed:
        core.engine.jobs[job_id].pri = 77
    if state != "ready":
        assert operator.ids(tube="default", state=state, order="queue", limit=2, pri_min=77) == needed


def test_what_has_left_a_queue_and_come_back_stands_in_it_once(core, operator):
    """It leaves an entry behind, which is swept away later."""
    for number in range(40):
        put(core, operator.session, delay_s=number + 1)
    core.send(operator.session, b"reserve-job 30\r\nrelease 30 0 60\r\n")
    assert len(core.engine.tubes[b"default"].delayed.keys) == 41
    ids = [*range(1, 30), *range(31, 41), 30]
    asked = {"tube": "default", "state": "delayed", "order": "queue"}
    assert operator.ids(**asked) == ids
    assert operator.ids(**asked, up_to_id=35) == [job_id for job_id in ids if job_id <= 35]


def test_a_list_that_ends_with_a_slice_has_no_cursor(core, operator):
    for _ in range(3):
        put(core, operator.session)
    for what in ({}, {"tube": "default"}, {"tube": "default", "state": "ready", "order": "queue"}, {"ids": [1, 2, 3]}):
        assert operator.ask("list-jobs", limit=3, **what)["next"] is None
        assert operator.ask("list-jobs", limit=2, **what)["next"] is not None


def test_the_order_of_a_queue_is_known_up_to_some_depth(core, operator, monkeypatch):
    monkeypatch.setattr(operator_find, "DEPTH_MAX", 4)
    for _ in range(10):
        put(core, operator.session)
    asked = {"tube": "default", "state": "ready", "order": "queue", "limit": 4}
    first = operator.ask("list-jobs", **asked)
    second = operator.ask("list-jobs", **asked, after=first["next"])
    assert [job["id"] for job in second["jobs"]] == [5, 6, 7, 8]
    assert "the order of a queue is not known so far" in operator.refusal("list-jobs", **asked, after=second["next"])


def test_ids_after_an_id_are_found_in_dense_and_in_sparse_places(monkeypatch):
    ids = [*range(1, 50), *range(1000, 1010), 5000, 10**12]
    table: Any = JobTable()
    monkeypatch.setattr(table_module, "NEWEST_MAX", 1)
    for part in (ids[:20], ids[20:55]):
        table.newest.update((job_id, Numbered(job_id)) for job_id in part)
        table.make_room()
    table.newest.update(dict.fromkeys(ids[55:]))
    assert [bool(segment._places) for segment in table._segments] == [True, False]
    for after in (-1, 0, 5, 20, 49, 999, 1004, 4999, 5000, 10**12, 10**13):
        for most in (1, 3, 30, 1000):
            assert table.ids_after(after, most) == [each for each in ids if each > after][:most]


# -- bodies that are not in memory


def test_text_in_bodies_that_are_not_in_memory():
    _, operator = unloaded_core([b"needle %d" % at if at % 3 else b"hay" for at in range(50)])
    wanted = [at + 1 for at in range(50) if at % 3]
    assert operator.ids(text="needle", limit=7) == wanted
    assert operator.ids(text="nothing") == []
    jobs = operator.all("list-jobs", "jobs", text="needle", preview=20)
    assert [job["preview"] for job in jobs] == [f"needle {job['id'] - 1}" for job in jobs]
    assert base64.b64decode(operator_job(operator, 2)["body"]) == b"needle 1"


def test_a_slice_fetches_no_more_than_some_bytes(monkeypatch):
    monkeypatch.setattr(operator_find, "BYTES_MAX", 50)
    _, operator = unloaded_core([b"x" * 20] * 10)
    assert len(operator.ask("list-jobs", preview=5)["jobs"]) == 3
    assert operator.ids(preview=5) == list(range(1, 11))
    assert len(operator.ask("list-jobs")["jobs"]) == 10


def test_what_is_deleted_while_its_body_is_on_its_way_is_not_told():
    core, operator = unloaded_core([b"needle"] * 3)
    core.answers_late = lambda session: session is operator.session
    other = core.client()
    assert operator.raw("list-jobs", b'{"text": "needle"}') == b""
    core.send(other, b"delete 2\r\n")
    assert core.answer(operator.session)
    assert [job["id"] for job in told(operator.session.take_replies())["jobs"]] == [1, 3]
    assert core.send(operator.session, b"show-job 1\r\n") == b""
    core.send(other, b"delete 1\r\n")
    core.answer(operator.session)
    assert operator.session.take_replies() == b"NOT_FOUND\r\n"


def test_client_that_leaves_during_a_fetch_leaves_nothing():
    core, operator = unloaded_core([b"needle"] * 3)
    core.answers_late = lambda session: session is operator.session
    operator.raw("list-jobs", b'{"text": "needle"}')
    job = operator.session.gathering.jobs[0]
    operator.session.stop_waiting()
    assert operator.session.gathering is None
    assert not operator.session.bring(job, b"x")


def test_a_slice_waits_for_its_turn():
    core = Core()
    operator = Operator(core)
    operator.session.receive(b"list-jobs 2\r\n{}\r\nlist-jobs 2\r\n{}\r\n", core.now_ns)
    for _ in range(2):
        assert operator.session.blocked is LOOKING
        operator.session.resume(core.now_ns)
        assert operator.session.take_replies().count(b"OK ") == 1
