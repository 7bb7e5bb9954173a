"""Putting and reserving by the batch."""

import base64

import pytest

from beanlite.protocol import batches
from beanlite.protocol.blocked import REPLETE, WAITING
from beanlite.protocol.session import REPLIES_MAX
from tests.support.core import Core, put
from tests.support.fetching import FetchingCore
from tests.support.operators import recount
from tests.support.ruled_core import policy

# -- put-jobs


def test_jobs_are_put_in_their_order_and_as_they_are_told(core, operator):
    core.send(operator.session, b"use mine\r\n")
    jobs = [
        {"body": "tschüß"},
        {"base64": base64.b64encode(b"\0\xff\r\n").decode(), "tube": "a", "pri": 7, "ttr_s": 0},
        {"body": "", "delay_s": 9, "ttr_s": 5},
    ]
    assert operator.ask("put-jobs", jobs=jobs) == {"ids": [1, 2, 3]}
    first, second, third = (core.engine.jobs[job_id] for job_id in (1, 2, 3))
    assert (first.body, first.tube.name, first.pri, first.ttr_s) == ("tschüß".encode(), b"mine", 0, 60)
    assert (second.body, second.tube.name, second.pri, second.ttr_s) == (b"\0\xff\r\n", b"a", 7, 1)
    assert (third.body, third.ttr_s, third.state.value) == (b"", 5, "delayed")
    assert core.engine.counts.producers == 1
    recount(core.engine)
    assert core.store().jobs == [first, second, third]


def test_the_person_behind_a_put_is_in_its_events(core, operator):
    core.engine.ledger.recording = True
    operator.ask("put-jobs", jobs=[{"body": "x"}, {"body": "y", "tube": "a"}], by="ann")
    operator.ask("put-jobs", jobs=[{"body": "z"}])
    peer = operator.session.client.peer
    events = [(event.by.address, event.by.number, event.by.person) for event in core.engine.ledger.events]
    assert events == [(peer.address, peer.number, person) for person in ("ann", "ann", "")]


def test_jobs_of_a_request_are_all_put_or_none(core, operator):
    core.engine.admission.accept_puts(1000)
    assert operator.raw("put-jobs", b'{"jobs":[{"body":"x"},{"body":"y","tube":"-"}]}').startswith(b"REFUSED ")
    body = b'{"jobs":[{"body":"x","tube":"a"},{"body":"%b"}]}'
    core.service.max_job_size = 10
    assert operator.raw("put-jobs", body % (b"y" * 11)) == b"JOB_TOO_BIG\r\n"
    core.service.max_job_size = 1000
    assert operator.raw("put-jobs", body % (b"y" * 990)) == b"OUT_OF_MEMORY\r\n"
    assert operator.raw("put-jobs", b'{"jobs":[' + b",".join([b'{"body":"x"}'] * 5) + b"]}") == b"OUT_OF_MEMORY\r\n"
    core.engine.clients.max_tubes = 2
    new = b'{"jobs":[{"body":"x","tube":"a"},{"body":"y","tube":"b"}]}'
    assert operator.raw("put-jobs", new) == b"OUT_OF_MEMORY\r\n"
    assert core.refused == ["tubes"]
    core.engine.admission.drain()
    assert operator.raw("put-jobs", body % b"y") == b"DRAINING\r\n"
    assert core.engine.last_id == 0
    assert set(core.engine.tubes) == {b"default"}
    core.engine.admission.draining = False
    assert operator.ask("put-jobs", jobs=[{"body": "x"}] * 3) == {"ids": [1, 2, 3]}


def test_tubes_that_there_are_already_take_jobs_even_beyond_the_limit(core, operator):
    core.engine.clients.max_tubes = 0
    assert operator.ask("put-jobs", jobs=[{"body": "x"}]) == {"ids": [1]}


def test_no_job_is_none(core, operator):
    assert operator.ask("put-jobs", jobs=[]) == {"ids": []}
    assert core.engine.counts.producers == 0


def test_waiting_client_gets_what_is_put(core, operator):
    worker = core.client()
    core.send(worker, b"watch a\r\nreserve\r\n")
    operator.ask("put-jobs", jobs=[{"body": "x", "tube": "a"}, {"body": "y", "tube": "a"}])
    assert worker.take_replies() == b"RESERVED 1 1\r\nx\r\n"


# -- reserve-batch


def test_a_batch_is_what_so_many_reserves_would_get(core, operator):
    for number in range(4):
        put(core, operator.session, b"%d" % number, pri=3 - number)
    told = core.send(operator.session, b"reserve-batch 3 0\r\n")
    assert told == b"RESERVED_BATCH 3\r\nRESERVED 4 1\r\n3\r\nRESERVED 3 1\r\n2\r\nRESERVED 2 1\r\n1\r\n"
    assert core.send(operator.session, b"reserve-batch 3 0\r\n") == b"RESERVED_BATCH 1\r\nRESERVED 1 1\r\n0\r\n"
    assert core.send(operator.session, b"reserve-batch 3 0\r\n") == b"TIMED_OUT\r\n"
    assert core.engine.counts.workers == 1
    recount(core.engine)


@pytest.mark.parametrize("line", [b"0 0", b"501 0", b"1", b"1 -1", b"1 2 3", b"1 2147483648"])
def test_a_malformed_batch(core, operator, line):
    assert core.send(operator.session, b"reserve-batch " + line + b"\r\n") == b"BAD_FORMAT\r\n"


def test_every_client_may_reserve_a_batch(core):
    session = core.client()
    put(core, session)
    assert core.send(session, b"reserve-batch 3 0\r\n") == b"RESERVED_BATCH 1\r\nRESERVED 1 1\r\nx\r\n"


def test_waiting_batch_reserve_gets_the_first_job(core, operator):
    session = operator.session
    assert core.send(session, b"reserve-batch 3 5\r\nlist-tube-used\r\n") == b""
    assert session.blocked is WAITING
    producer = core.client()
    put(core, producer)
    assert session.take_replies() == b"RESERVED_BATCH 1\r\nRESERVED 1 1\r\nx\r\nUSING default\r\n"
    assert core.send(session, b"reserve-batch 3 5\r\n") == b""
    core.wait(5)
    assert session.take_replies() == b"TIMED_OUT\r\n"
    assert core.send(session, b"reserve\r\n") == b""
    put(core, producer)
    assert session.take_replies() == b"RESERVED 2 1\r\nx\r\n"


def test_a_batch_while_a_ttr_is_about_to_end(core, operator):
    put(core, operator.session, ttr_s=5)
    core.send(operator.session, b"reserve\r\n")
    core.wait(4.5)
    assert core.send(operator.session, b"reserve-batch 3 5\r\n") == b"DEADLINE_SOON\r\n"
    put(core, core.client())
    assert core.send(operator.session, b"reserve-batch 3 5\r\n").startswith(b"RESERVED_BATCH 1\r\n")


def test_a_batch_has_not_much_more_than_a_reply_may_have():
    size = REPLIES_MAX // 4
    core = Core(max_job_size=size)
    session = core.client(operator=True)
    for _ in range(8):
        put(core, session, b"x" * size)
    core.receive(session, b"reserve-batch 8 0\r\n")
    assert session.take_replies().startswith(b"RESERVED_BATCH 5\r\n")
    assert session.blocked is REPLETE


def test_a_batch_from_very_many_tubes_is_smaller(core, operator, monkeypatch):
    monkeypatch.setattr(batches, "LOOKS_MAX", 20)
    for number in range(9):
        core.send(operator.session, b"watch t%d\r\n" % number)
    for _ in range(5):
        put(core, operator.session)
    assert core.send(operator.session, b"reserve-batch 5 0\r\n").startswith(b"RESERVED_BATCH 2\r\n")


def test_a_batch_beside_shut_tubes_is_smaller(core, operator, monkeypatch):
    monkeypatch.setattr(batches, "LOOKS_MAX", 40)
    policy(core, b"t*", max_reserved=1)
    for tube in (b"t1", b"t2"):
        core.send(operator.session, b"watch %b\r\nuse %b\r\n" % (tube, tube))
        for _ in range(3):
            put(core, operator.session, pri=9)
    core.send(operator.session, b"use default\r\n")
    for _ in range(50):
        put(core, operator.session)
    assert core.send(operator.session, b"reserve-batch 50 0\r\n").startswith(b"RESERVED_BATCH 13\r\n")
    core.send(operator.session, b"reserve-job 1\r\nreserve-job 4\r\n")
    assert core.send(operator.session, b"reserve-batch 50 0\r\n").startswith(b"RESERVED_BATCH 1\r\n")


def test_a_batch_with_new_jobs_waits_until_they_are_stored(core, operator):
    session = operator.session
    put(core, session)
    core.receive(session, b"reserve-batch 5 0\r\n")
    assert session.waits
    session.take_replies()
    core.send(session, b"release 1 0 0\r\n")
    core.store()
    core.receive(session, b"reserve-batch 5 0\r\n")
    assert not session.waits


def test_bodies_that_are_not_in_memory_are_fetched_for_a_batch():
    core = FetchingCore()
    session, other = core.client(operator=True), core.client()
    for number in range(4):
        put(core, session, b"body %d" % number, ttr_s=100 if number == 2 else 200)
    core.store()
    core.store()
    core.answers_late = lambda each: each is session
    assert core.send(session, b"reserve-batch 9 0\r\n") == b""
    core.wait(101)
    assert core.send(other, b"delete 3\r\n") == b"DELETED\r\n"
    core.shelf[3] = None
    core.answer(session)
    told = b"".join(b"RESERVED %d 6\r\nbody %d\r\n" % (job_id, job_id - 1) for job_id in (1, 2, 4))
    assert session.take_replies() == b"RESERVED_BATCH 3\r\n" + told
    core.compare_counts()


def test_body_unloaded_while_others_are_fetched_is_still_told():
    core = FetchingCore()
    session = core.client(operator=True)
    for number in range(2):
        put(core, session, b"body %d" % number, ttr_s=100)
    core.store()
    core.store()
    for number in range(2, 4):
        put(core, session, b"body %d" % number, ttr_s=100)
    core.answers_late = lambda each: each is session
    assert core.send(session, b"reserve-batch 4 0\r\n") == b""
    core.store()
    core.store()
    assert core.engine.memory.unloaded == 4
    core.answer(session)
    told = b"".join(b"RESERVED %d 6\r\nbody %d\r\n" % (number + 1, number) for number in range(4))
    assert session.take_replies() == b"RESERVED_BATCH 4\r\n" + told
    core.compare_counts()


def test_bodies_fetched_ahead_are_not_kept_when_they_have_been_given():
    core = FetchingCore()
    session = core.client(operator=True)
    for number in range(4):
        put(core, session, b"body %d" % number, ttr_s=100)
    core.store()
    core.store()
    core.engine.memory.body_max_bytes = 10_000
    core.send(session, b"reserve\r\n")
    assert len(core.fetch_ahead()) == 3
    assert core.send(session, b"reserve-batch 2 0\r\n").startswith(b"RESERVED_BATCH 2\r\n")
    assert list(core.engine.bodies.ahead) == [4]
    core.compare_counts()
