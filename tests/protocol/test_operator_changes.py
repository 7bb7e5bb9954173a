"""Operators' command that changes jobs: what becomes of them, who notices, and that all counts still fit."""

import os
import random

import pytest

from beanlite.core import operator_find
from beanlite.core.events import RESERVE
from beanlite.core.job import READY, RESERVED
from beanlite.core.operator import CONCERNS
from beanlite.protocol.operators import changes
from tests.support.core import Core, put
from tests.support.fetching import FetchingCore
from tests.support.operators import Operator, all_jobs, recount

SEED = int(os.environ.get("MODEL_SEED", str(random.randrange(1 << 32))))
STEPS = 3000


def in_each_state(core):
    """A client that holds job 2, and jobs 1 to 4: ready, reserved, delayed, buried."""
    worker = core.client()
    put(core, worker, pri=9)
    put(core, worker, pri=1)
    put(core, worker, pri=1, delay_s=60)
    put(core, worker, pri=1)
    core.send(worker, b"reserve-job 2\r\nreserve-job 4\r\nbury 4 5\r\n")
    return worker


def states(core):
    return {job.id: job.state.value for job in all_jobs(core.engine)}


EACH = {1: "ready", 2: "reserved", 3: "delayed", 4: "buried"}


def test_a_request_that_lists_ids_is_told_which_were_changed(core, operator):
    in_each_state(core)
    states_of = {job.id: job.state for job in all_jobs(core.engine)}
    concerned = [job_id for job_id, state in sorted(states_of.items()) if state in CONCERNS["kick"]]
    others = sorted(states_of.keys() - set(concerned))
    for dry_run in (True, False):
        reply = operator.ask("change-jobs", do="kick", ids=[1, 2, 3, 4, 99], dry_run=dry_run)
        assert (reply["changed"], reply["left"]) == (concerned, others)
    assert "changed" not in operator.ask("change-jobs", do="bury", tube="default")


@pytest.mark.parametrize(
    ("do", "what", "after"),
    [
        ("kick", {}, EACH | {3: "ready", 4: "ready"}),
        ("bury", {}, dict.fromkeys(EACH, "buried")),
        ("delete", {}, {}),
        ("release", {}, EACH | {2: "ready"}),
        ("release", {"delay_s": 5}, EACH | {2: "delayed"}),
        ("move", {"to": "other"}, EACH),
        ("copy", {"to": "other"}, EACH | dict.fromkeys((5, 6, 7, 8), "ready")),
        ("copy", {"to": "other", "delay_s": 5}, EACH | dict.fromkeys((5, 6, 7, 8), "delayed")),
        ("reprioritise", {"pri": 77}, EACH),
        ("delay", {"delay_s": 5}, EACH | {1: "delayed"}),
    ],
)
def test_what_becomes_of_jobs_in_each_state(core, operator, do, what, after):
    in_each_state(core)
    concerned = sum(job.state in CONCERNS[do] for job in all_jobs(core.engine))
    tried = operator.ask("change-jobs", do=do, up_to_id=99, dry_run=True, **what)
    assert (tried["done"], tried["skipped"]) == (concerned, 4 - concerned)
    assert states(core) == EACH
    assert not core.engine.ledger.events
    done = operator.ask("change-jobs", do=do, up_to_id=99, **what)
    assert done == {**tried, "looked": 4, "last_id": 4, "next": None}
    assert states(core) == after
    recount(core.engine)
    events = [event for event in core.engine.ledger.events if event.by_operator]
    assert [(event.what, event.by) for event in events] == [(do, operator.session.client.peer)] * concerned


@pytest.mark.parametrize(
    ("do", "what"),
    [
        ("kick", {}), ("bury", {}), ("delete", {}), ("release", {}), ("delay", {"delay_s": 5}),
        ("move", {"to": "other"}), ("copy", {"to": "other"}), ("reprioritise", {"pri": 77}),
    ],
)  # fmt: skip
def test_the_person_behind_a_change_is_in_all_its_events(core, operator, do, what):
    in_each_state(core)
    core.engine.ledger.recording = True
    core.engine.ledger.events.clear()
    operator.ask("change-jobs", do=do, up_to_id=4, by="Ann Übel", **what)
    peer = operator.session.client.peer
    events = core.engine.ledger.events
    assert do in {event.what for event in events}
    told = {(event.by.address, event.by.number, event.by.person) for event in events}
    assert told == {(peer.address, peer.number, "Ann Übel")}
    operator.ask("change-jobs", do="delete", ids=[put(core, operator.session)])
    assert events[-1].by.person == ""


@pytest.mark.parametrize("name", ["", "a\nb", "a\u202eb", "x" * 129, "ä" * 65])
@pytest.mark.parametrize(
    ("word", "what"),
    [
        ("change-jobs", {"do": "delete", "ids": [1]}),
        ("put-jobs", {"jobs": [{"body": "x"}]}),
        ("set-pause", {"tube": "default", "pause_s": 5}),
    ],
)
def test_what_can_be_no_name_is_refused(core, operator, word, what, name):
    put(core, core.client())
    assert operator.refusal(word, by=name, **what).startswith("by: ")
    assert states(core) == {1: "ready"}


def test_a_name_has_128_bytes_at_most(core, operator):
    put(core, core.client())
    assert operator.ask("change-jobs", do="bury", ids=[1], by="ä" * 64)["done"] == 1
    assert operator.ask("change-jobs", do="kick", ids=[1], by=None)["done"] == 1


def test_the_reply_waits_until_the_change_is_stored(core, operator):
    in_each_state(core)
    session = operator.session
    for waits, body in (
        (False, b'{"do":"kick","ids":[1]}'),
        (False, b'{"do":"kick","ids":[4],"dry_run":true}'),
        (True, b'{"do":"kick","ids":[4]}'),
    ):
        core.receive(session, b"change-jobs %d\r\n%b\r\n" % (len(body), body))
        assert session.waits == waits
        core.go_on(session)
        session.take_replies()


def test_tube_is_paused_on_behalf_of_a_person(core, operator):
    put(core, core.client())
    assert operator.ask("set-pause", tube="default", pause_s=5, by="ann") == {}
    assert core.send(core.client(), b"reserve-with-timeout 0\r\n") == b"TIMED_OUT\r\n"
    assert operator.ask("set-pause", tube="default", pause_s=0) == {}
    assert core.send(core.client(), b"reserve-with-timeout 0\r\n").startswith(b"RESERVED 1 ")
    told = [(each.what, each.delay_s, each.by.person, each.by_operator) for each in core.engine.ledger.events]
    assert told == [("pause", 5, "ann", True), ("pause", 0, "", True)]
    assert operator.raw("set-pause", b'{"tube": "none", "pause_s": 5}') == b"NOT_FOUND\r\n"


def test_reply_to_set_pause_waits_until_it_is_stored(core, operator):
    core.receive(operator.session, b'set-pause 33\r\n{"tube": "default", "pause_s": 5}\r\n')
    assert operator.session.waits
    assert operator.session.take_replies().startswith(b"OK 2")


def test_a_job_that_is_moved_keeps_all_it_has(core, operator):
    worker = in_each_state(core)
    core.wait(10)
    jobs = {job.id: job for job in all_jobs(core.engine)}
    before = {job_id: (job.key, job.since_ns, job.pri, job.why, job.reserves) for job_id, job in jobs.items()}
    assert operator.change("move", tube="default", to="other") == (4, 0)
    assert {job.tube.name for job in jobs.values()} == {b"other"}
    assert {job_id: (job.key, job.since_ns, job.pri, job.why, job.reserves) for job_id, job in jobs.items()} == before
    assert core.engine.tubes[b"other"].total_jobs == 0
    assert operator.change("move", up_to_id=99, to="other") == (0, 4)
    assert core.send(worker, b"release 2 0 0\r\nwatch other\r\nreserve\r\n").endswith(b"RESERVED 2 1\r\nx\r\n")
    assert core.engine.jobs[3].due_ns < core.engine.tubes[b"other"].timer_ns + 1
    core.wait(51)
    assert core.engine.jobs[3].state is READY
    core.send(worker, b"use other\r\nkick 1\r\n")
    assert core.engine.jobs[4].state is READY
    recount(core.engine)


def test_tubes_come_and_go_with_what_is_moved(core, operator):
    producer = core.client()
    core.send(producer, b"use a\r\n")
    put(core, producer)
    core.send(producer, b"use default\r\n")
    operator.change("move", tube="a", to="b")
    assert set(core.engine.tubes) == {b"default", b"b"}
    operator.change("move", tube="a", to="c")
    operator.change("move", tube="b", to="c", state="buried")
    assert set(core.engine.tubes) == {b"default", b"b"}


def test_a_moved_job_goes_to_who_waits_for_it(core, operator):
    worker = core.client()
    put(core, worker)
    core.send(worker, b"watch other\r\nignore default\r\nreserve\r\n")
    core.wait(5)
    assert operator.change("move", ids=[1], to="other") == (1, 0)
    assert worker.take_replies() == b"RESERVED 1 1\r\nx\r\n"
    assert core.engine.jobs[1].since_ns == core.now_ns
    recount(core.engine)


@pytest.mark.parametrize("do", ["delete", "bury", "release"])
def test_client_hears_at_its_next_command_that_its_job_was_taken(core, operator, do):
    worker = core.client()
    put(core, worker)
    core.send(worker, b"reserve\r\n")
    assert operator.change(do, ids=[1]) == (1, 0)
    commands = b"touch 1\r\nrelease 1 0 0\r\nbury 1 0\r\n" + (b"delete 1\r\n" if do == "delete" else b"")
    assert core.send(worker, commands) == b"NOT_FOUND\r\n" * commands.count(b"\r\n")
    core.wait(100)
    assert core.engine.counts.timeouts == 0
    recount(core.engine)


def test_a_copy_is_as_new_as_any_put(core, operator):
    producer = core.client()
    put(core, producer, b"body", pri=5, ttr_s=33)
    core.send(producer, b"reserve\r\nrelease 1 8 0\r\n")
    core.wait(10)
    operator.change("copy", ids=[1], to="other")
    operator.change("copy", ids=[1], to="other", pri=3, delay_s=4)
    first, second = (core.engine.jobs[job_id] for job_id in (2, 3))
    assert (first.body, first.pri, first.ttr_s, first.reserves, first.created_ns) == (b"body", 8, 33, 0, core.now_ns)
    assert (second.pri, second.delay_s, second.state.value) == (3, 4, "delayed")
    assert core.engine.tubes[b"other"].total_jobs == 2
    assert not core.engine.clients.connected[1].producer


def test_copies_into_the_tube_itself_are_not_copied_again(core, operator):
    producer = core.client()
    for _ in range(5):
        put(core, producer)
    assert operator.change("copy", tube="default", to="default", limit=2) == (5, 0)
    assert len(core.engine.jobs) == 10


def test_copies_are_refused_as_puts_are(core, operator):
    producer = core.client()
    for _ in range(3):
        put(core, producer, b"x" * 100)
    core.engine.admission.drain()
    stopped = operator.ask("change-jobs", do="copy", tube="default", to="other")
    assert (stopped["done"], stopped["stopped"], stopped["next"]) == (0, "DRAINING", "0-3")
    core.engine.admission.draining = False
    core.store()
    core.engine.admission.accept_puts(600)
    stopped = operator.ask("change-jobs", do="copy", tube="default", to="other")
    assert (stopped["done"], stopped["stopped"], stopped["next"]) == (2, "OUT_OF_MEMORY", "2-3")
    assert operator.ask("change-jobs", do="move", tube="default", to="other")["done"] == 3
    core.store()
    core.engine.admission.accept_puts(10_000)
    rest = operator.ask("change-jobs", do="copy", tube="other", to="default", after=stopped["next"])
    assert (rest["done"], rest["next"]) == (1, None)
    assert len(core.engine.jobs) == 6


@pytest.mark.parametrize("do", ["move", "copy"])
def test_no_tube_is_made_beyond_their_limit(core, operator, do):
    put(core, operator.session)
    core.engine.clients.max_tubes = 1
    refused = operator.ask("change-jobs", do=do, ids=[1], to="other")
    assert (refused["done"], refused["stopped"], refused["next"]) == (0, "OUT_OF_MEMORY", "0-1")
    assert core.refused == ["tubes"]
    assert set(core.engine.tubes) == {b"default"}


def test_slices_change_each_job_once(core, operator, monkeypatch):
    monkeypatch.setattr(operator_find, "LOOKS_MAX", 13)
    monkeypatch.setattr(operator_find, "FEW_MAX", 0)
    for number in range(100):
        put(core, operator.session, pri=number % 3)
    assert operator.change("reprioritise", pri=7, pri_max=1, limit=5) == (67, 0)
    assert operator.change("move", to="b", pri_min=7, limit=5, tube="default") == (67, 0)
    assert operator.change("delete", tube="b", limit=7, text="x") == (67, 0)
    recount(core.engine)


def test_slice_of_deletes_ends_with_the_bodies_that_the_history_keeps(core, operator, monkeypatch):
    monkeypatch.setattr(changes, "BYTES_AT_ONCE", 1000)
    core.engine.ledger.keeps_bodies = True
    for _ in range(10):
        put(core, operator.session, body=b"x" * 400)
    core.store()
    ids = list(range(1, 11))
    reply = operator.ask("change-jobs", do="delete", ids=ids)
    assert reply["changed"] == [1, 2, 3]
    core.store()
    assert operator.ask("change-jobs", do="delete", ids=ids, after=reply["next"])["changed"] == [4, 5, 6]
    core.store()
    assert operator.change("delete", ids=ids) == (4, 0)
    recount(core.engine)


def test_bodies_that_are_not_in_memory_are_copied_and_searched():
    core = FetchingCore()
    operator, producer = Operator(core), core.client()
    for number in range(20):
        put(core, producer, b"body %d" % number)
    core.store()
    core.store()
    assert core.engine.memory.unloaded == 20
    assert operator.change("copy", tube="default", to="other", limit=7) == (20, 0)
    copies = [job.body for job in all_jobs(core.engine) if job.tube.name == b"other"]
    assert sorted(copies) == sorted(b"body %d" % number for number in range(20))
    core.store()
    assert operator.change("delete", tube="default", text="body 1", limit=7) == (11, 0)
    recount(core.engine)
    core.store()
    core.compare_counts()


def test_body_unloaded_while_others_are_fetched_is_still_copied():
    core = FetchingCore()
    operator, producer = Operator(core), core.client()
    for number in range(3):
        put(core, producer, b"body %d" % number)
    core.store()
    core.store()
    put(core, producer, b"body 3")
    core.answers_late = lambda session: session is operator.session
    assert operator.raw("change-jobs", b'{"do": "copy", "tube": "default", "to": "other"}') == b""
    core.store()
    core.store()
    assert core.engine.memory.unloaded == 4
    core.answer(operator.session)
    assert [job.body for job in all_jobs(core.engine) if job.tube.name == b"other"] == [
        b"body %d" % n for n in range(4)
    ]


def test_an_empty_body_that_is_not_in_memory_is_copied():
    core = FetchingCore()
    operator, producer = Operator(core), core.client()
    for body in (b"", b"full", b""):
        put(core, producer, body)
    core.store()
    core.store()
    assert core.engine.memory.unloaded == 3
    assert operator.raw("change-jobs", b'{"do": "copy", "tube": "default", "to": "other"}').count(b'"done":3') == 1
    assert [job.body for job in all_jobs(core.engine) if job.tube.name == b"other"] == [b"", b"full", b""]


def test_a_body_that_was_fetched_ahead_for_the_tube_that_is_left():
    core = FetchingCore()
    operator, worker = Operator(core), core.client()
    for number in range(5):
        put(core, worker, b"body %d" % number)
    core.store()
    core.store()
    core.engine.memory.body_max_bytes = 10_000
    core.send(worker, b"reserve\r\n")
    assert len(core.fetch_ahead()) == 4
    assert operator.change("move", state="ready", to="other") == (4, 0)
    core.compare_counts()
    assert core.send(worker, b"watch other\r\nreserve\r\n") == b"WATCHING 2\r\nRESERVED 2 6\r\nbody 1\r\n"
    core.compare_counts()


def test_random_changes_leave_counts_and_queues_that_match_a_recount(record_property):
    rng = random.Random(SEED)
    core = Core()
    operator = Operator(core)
    workers = [core.client() for _ in range(4)]
    for step in range(STEPS):
        worker = rng.choice(workers)
        core.engine.ledger.recording = rng.random() < 0.5
        match rng.randrange(6):
            case 0 | 1:
                core.send(worker, b"use %b\r\n" % rng.choice((b"a", b"b", b"default")))
                put(core, worker, pri=rng.choice((0, 1, 5000)), delay_s=rng.choice((0, 0, 3)), ttr_s=rng.choice((1, 9)))
            case 2:
                core.send(worker, b"watch %b\r\nreserve-with-timeout 0\r\n" % rng.choice((b"a", b"b")))
            case 3 if not worker.client.waiting:
                job_id = rng.randint(1, core.engine.last_id + 1)
                words = (b"delete %d", b"bury %d 2", b"release %d 3 1", b"kick-job %d", b"touch %d", b"reserve-job %d")
                core.send(worker, rng.choice(words) % job_id + b"\r\n")
            case 4:
                core.wait(rng.choice((0.5, 2)))
            case _:
                change(rng, operator, core.engine.last_id)
        for each in workers:
            each.take_replies()
        if step % 10 == 0:
            recount(core.engine)
        if step % 37 == 0:
            core.store()
    record_property("model steps", (STEPS, f"MODEL_SEED={SEED}"))


def change(rng, operator, last_id):
    """Some change to some jobs, one slice of it."""
    do = rng.choice(list(CONCERNS))
    chosen = rng.choice(
        (
            {"ids": [rng.randint(1, last_id + 1) for _ in range(3)]},
            {"tube": rng.choice(("a", "b", "c"))},
            {"state": rng.choice(("ready", "delayed", "reserved", "buried"))},
            {"tube": "a", "state": rng.choice(("ready", "delayed", "reserved", "buried"))},
            {"holder": rng.randint(1, 6)},
        )
    )
    more = {
        "move": {"to": rng.choice(("a", "b", "c"))},
        "copy": {"to": "a", "limit": 2},
        "reprioritise": {"pri": rng.choice((0, 2000))},
        "delay": {"delay_s": 2},
        "delete": {"limit": 5},
    }.get(do, {})
    operator.ask("change-jobs", do=do, **chosen, **more)


def test_client_that_gets_a_job_by_an_operators_move_has_an_event(core, operator):
    core.engine.ledger.recording = True
    worker = core.client()
    put(core, worker)
    core.send(worker, b"watch b\r\nignore default\r\nreserve\r\n")
    operator.change("move", ids=[1], to="b")
    assert core.engine.jobs[1].state is RESERVED
    events = [(event.what, event.by.number, event.by_operator) for event in core.engine.ledger.events]
    assert events == [("put", 2, False), ("move", 1, True), (RESERVE, 2, False)]
