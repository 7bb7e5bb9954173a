"""The commands with which a client is offered jobs and takes them: their replies, waits and bodies."""

from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from beanlite.protocol.blocked import WORKING, YIELDING
from beanlite.protocol.commands import WATCHED_MANY
from tests.support.core import Core, offered, put
from tests.support.fetching import FetchingCore
from tests.support.operators import Operator, recount

# -- the replies


def test_client_is_offered_the_job_that_it_would_reserve(core, router):
    put(core, router, b"later", pri=5)
    put(core, router, b"first", pri=1)
    assert core.send(router, b"offer 0\r\n") == b"OFFERED 2 5\r\nfirst\r\n"
    assert core.send(router, b"offer 0\r\n") == b"OFFERED 1 5\r\nlater\r\n"
    assert core.send(router, b"offer 0\r\n") == b"TIMED_OUT\r\n"


def test_client_that_waits_is_offered_a_job_that_becomes_ready(core, router):
    assert core.send(router, b"offer 3\r\n") == b""
    core.wait(2)
    put(core, core.client())
    assert router.take_replies() == b"OFFERED 1 1\r\nx\r\n"


def test_offer_that_is_not_there_in_time_times_out(core, router):
    assert core.send(router, b"offer 3\r\n") == b""
    core.wait(3)
    assert router.take_replies() == b"TIMED_OUT\r\n"


@pytest.mark.parametrize(
    "line", [b"offer", b"offer ", b"offer x", b"offer 2147483648", b"take", b"take x", b"decline -1"]
)
def test_malformed_line_is_refused(core, router, line):
    reply = b"UNKNOWN_COMMAND\r\n" if b" " not in line else b"BAD_FORMAT\r\n"
    assert core.send(router, line + b"\r\n") == reply


def test_only_take_and_decline_find_an_offered_job(core, router):
    other = core.client()
    put(core, other)
    assert offered(core, router) == 1
    for client in (router, other):
        for line in (b"delete 1", b"release 1 0 0", b"bury 1 0", b"touch 1", b"kick-job 1", b"reserve-job 1"):
            assert core.send(client, line + b"\r\n") == b"NOT_FOUND\r\n", line
        assert core.send(client, b"peek-ready\r\nreserve-with-timeout 0\r\n") == b"NOT_FOUND\r\nTIMED_OUT\r\n"
        assert core.send(client, b"peek 1\r\n") == b"FOUND 1 1\r\nx\r\n"
    assert core.send(other, b"take 1\r\ndecline 1\r\n") == b"NOT_FOUND\r\n" * 2
    assert core.send(router, b"take 1\r\n") == b"TAKEN\r\n"
    assert core.send(router, b"take 1\r\ndecline 1\r\ndelete 1\r\n") == b"NOT_FOUND\r\n" * 2 + b"DELETED\r\n"


@pytest.mark.parametrize("line", [b"take 1\r\n", b"decline 1\r\n"])
def test_offer_that_is_over_can_not_be_answered(core, router, line):
    put(core, router)
    assert offered(core, router) == 1
    core.wait(2)
    assert core.send(router, line) == b"NOT_FOUND\r\n"
    assert core.send(router, b"reserve\r\n" + line) == b"RESERVED 1 1\r\nx\r\nNOT_FOUND\r\n"


def test_deadline_soon_is_told_as_to_a_reserve(core, router):
    put(core, router, ttr_s=3)
    core.send(router, b"reserve\r\n")
    assert core.send(router, b"offer 9\r\n") == b""
    core.wait(2)
    assert router.take_replies() == b"DEADLINE_SOON\r\n"
    assert core.send(router, b"offer 9\r\n") == b"DEADLINE_SOON\r\n"
    put(core, core.client())
    assert offered(core, router) == 2


# -- the wait ends with whatever the client sends


LINES = (
    b"use a\r\noffer 5\r\nlist-tube-used\r\noffer 5\r\nput 0 0 9 7\r\noffer 3\r\noffer 0\r\nwatch a\r\n"
    b"offer 5\r\noffer 5\r\n"
)
ANSWERS = (
    b"USING a\r\nTIMED_OUT\r\nUSING a\r\nTIMED_OUT\r\nINSERTED 1\r\nTIMED_OUT\r\nWATCHING 2\r\n"
    b"OFFERED 1 7\r\noffer 3\r\n"
)


@given(st.lists(st.integers(0, len(LINES)), max_size=30))
def test_input_ends_the_wait_however_it_is_cut(cuts):
    core = Core()
    router = core.client()
    edges = sorted({0, *cuts, len(LINES)})
    assert b"".join(core.send(router, LINES[begin:end]) for begin, end in pairwise(edges)) == ANSWERS
    assert core.send(router, b"q") == b"TIMED_OUT\r\n"
    assert not core.engine.counts.waiting


def test_first_byte_of_a_line_ends_the_wait(core, router):
    assert core.send(router, b"offer 5\r\n") == b""
    assert core.send(router, b"l") == b"TIMED_OUT\r\n"
    put(core, core.client())
    assert core.send(router, b"ist-tube-used\r\n") == b"USING default\r\n"


def test_input_that_is_put_off_ends_the_wait(core, router):
    assert core.send(router, b"offer 5\r\n") == b""
    router.postpone(b"list-tube-used\r\n")
    assert router.blocked is YIELDING
    put(core, core.client())
    core.go_on(router)
    assert router.take_replies() == b"TIMED_OUT\r\nUSING default\r\n"


def test_input_does_not_end_the_wait_for_a_job_that_is_on_its_way(core, router):
    assert core.send(router, b"offer 5\r\n") == b""
    core.receive(core.client(), b"put 0 0 9 1\r\nx\r\n")
    assert core.send(router, b"list-tube-used\r\n") == b"OFFERED 1 1\r\nx\r\nUSING default\r\n"


def test_half_close_ends_the_wait(core, router):
    assert core.send(router, b"offer 5\r\n") == b""
    router.half_close(core.now_ns)
    assert router.take_replies() == b"TIMED_OUT\r\n"
    put(core, core.client())
    assert not core.engine.counts.reserved


def test_offer_of_a_client_that_has_half_closed_does_not_wait(core, router):
    assert core.send(router, b"reserve\r\noffer 5\r\n") == b""
    router.half_close(core.now_ns)
    assert router.take_replies() == b"TIMED_OUT\r\n" * 2


def test_input_does_not_end_the_wait_of_a_reserve_that_follows(core, router):
    assert core.send(router, b"offer 5\r\n") == b""
    assert core.send(router, b"reserve\r\nlist-tube-used\r\n") == b"TIMED_OUT\r\n"
    put(core, core.client())
    assert router.take_replies() == b"RESERVED 1 1\r\nx\r\nUSING default\r\n"


def test_offer_by_a_client_of_very_many_tubes_waits_for_its_turn(core, router):
    for number in range(WATCHED_MANY + 1):
        core.send(router, b"watch t%d\r\n" % number)
    router.receive(b"offer 5\r\n", core.now_ns)
    assert router.blocked is WORKING
    router.receive(b"list-tube-used\r\n", core.now_ns)
    core.go_on(router)
    assert router.take_replies() == b"TIMED_OUT\r\nUSING default\r\n"
    put(core, core.client())
    assert offered(core, router) == 1


# -- what the journal has


def test_reply_waits_until_the_job_is_stored(core, router):
    core.receive(router, b"offer 5\r\n")
    core.receive(core.client(), b"put 0 0 9 1\r\nx\r\n")
    core._wake()
    assert router.waits
    router.take_replies()
    core.store()
    core.receive(router, b"take 1\r\n")
    assert not router.waits


def test_body_that_is_not_in_memory_is_fetched(core):
    core = FetchingCore()
    router, other = core.client(), core.client()
    core.answers_late = lambda session: session is router
    put(core, other)
    core.store()
    assert core.send(router, b"offer 9\r\n") == b""
    assert core.answer(router)
    assert router.take_replies() == b"OFFERED 1 1\r\nx\r\n"
    core.send(router, b"decline 1\r\n")
    core.compare_counts()
    assert core.send(router, b"offer 9\r\n") == b""
    core.wait(3)
    assert core.send(other, b"reserve\r\n").startswith(b"RESERVED 1 ")
    assert core.answer(router)  # it comes too late
    assert router.take_replies() == b""
    put(core, other, b"y")
    assert router.take_replies() == b"OFFERED 2 1\r\ny\r\n"
    core.store()
    core.send(router, b"take 2\r\n")
    core.compare_counts()


def test_input_behind_an_offer_with_a_late_body_ends_the_wait(core):
    core = FetchingCore()
    router, other = core.client(), core.client()
    core.answers_late = lambda session: session is router
    put(core, other)
    core.store()
    assert core.send(router, b"offer 9\r\nlist-tube-used\r\n") == b""
    core.wait(3)
    core.send(other, b"reserve\r\n")
    assert core.answer(router)
    assert router.take_replies() == b"TIMED_OUT\r\nUSING default\r\n"


def test_body_fetched_ahead_leaves_memory_when_its_job_is_taken(core):
    core = FetchingCore(body_max_bytes=1000)
    router, other = core.client(), core.client()
    for _ in range(2):
        put(core, other, b"x" * 600)
    core.store()
    unloaded = next(job for job in core.engine.jobs.newest.values() if job.body is None)
    core.engine.bodies.load(unloaded, core.shelf[unloaded.id])
    while offered(core, router) != unloaded.id:
        pass
    assert unloaded.body is not None
    core.send(router, b"take %d\r\n" % unloaded.id)
    assert unloaded.body is None
    core.compare_counts()


# -- what others see


def test_offered_job_is_shown_as_reserved(core, router):
    operator = Operator(core)
    put(core, router)
    assert offered(core, router) == 1
    core.wait(0.5)
    assert b"state: reserved\n" in core.send(router, b"stats-job 1\r\n")
    assert b"time-left: 1\n" in core.send(router, b"stats-job 1\r\n")
    stats = core.send(router, b"stats\r\n")
    assert b"current-jobs-ready: 0\ncurrent-jobs-reserved: 1\n" in stats
    (job,) = operator.ask("list-jobs", state="reserved")["jobs"]
    assert (job["id"], job["state"], job["left_s"], job["holder"], job["reserves"]) == (1, "reserved", 1, None, 0)
    assert operator.ask("list-jobs", state="ready")["jobs"] == []
    assert operator.ask("group-jobs", fact="state")["groups"] == [["reserved", 1]]
    assert [each["holds"] for each in operator.ask("list-clients")["clients"]] == [0, 0]


CHANGES: dict[str, dict] = {
    "delete": {},
    "bury": {},
    "delay": {"delay_s": 5},
    "move": {"to": "a"},
    "reprioritise": {"pri": 9},
    "note": {"note": "why"},
    "copy": {"to": "a"},
}


@pytest.mark.parametrize("do", CHANGES)
def test_operator_changes_an_offered_job_as_a_ready_one(core, router, do):
    operator = Operator(core)
    put(core, router)
    assert offered(core, router) == 1
    assert operator.change(do, ids=[1], **CHANGES[do]) == (1, 0)
    stays = do in {"reprioritise", "note", "copy"}
    assert core.send(router, b"take 1\r\n") == (b"TAKEN\r\n" if stays else b"NOT_FOUND\r\n")
    recount(core.engine)
    if do != "delete":
        assert core.engine.jobs[1].reserves == stays
        assert core.engine.jobs[1].state.value == {"bury": "buried", "delay": "delayed", "move": "ready"}.get(
            do, "reserved"
        )


def test_operator_can_not_release_an_offered_job(core, router):
    operator = Operator(core)
    put(core, router)
    assert offered(core, router) == 1
    assert operator.change("release", ids=[1]) == (0, 1)
    assert operator.change("kick", ids=[1]) == (0, 1)
