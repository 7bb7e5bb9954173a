"""What becomes of a job that is offered: it is reserved once it is taken, and otherwise nothing has happened to it."""

import pytest

from beanlite.core.job import SECOND_NS, SLICE
from beanlite.core.measures import Measures
from beanlite.journal.rows import row_of
from tests.support.core import offered, put
from tests.support.operators import recount
from tests.support.ruled_core import policy, state

# What ends an offer that is not taken.
ENDS = {
    "declined": lambda core, client: core.send(client, b"decline 1\r\n"),
    "over": lambda core, _: core.wait(2),
    "client gone": lambda core, client: core.close(client),
}
WAYS = pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)


def facts(thing, *but):
    """All attributes of an object, compiled or not."""
    values = {name: getattr(thing, name) for name in dir(thing) if not name.startswith("_") and name not in but}
    return {name: value for name, value in values.items() if not callable(value)}


def all_facts(core):
    """All that is known of a job, and all that is counted."""
    engine = core.engine
    ledger, tube = engine.ledger, engine.tubes[b"default"]
    return (
        facts(engine.jobs[1]),
        facts(tube.tally),
        facts(engine.counts, "clients", "workers", "watched"),
        facts(tube, "watching", "using", "waiting", "timer_ns", "open_ns"),
        tube.kept and (tube.kept.free_ns, tube.kept.turn),
        [each.counts for each in (ledger.measures.waits, ledger.measures.holds)],
        (len(ledger.events), len(ledger.deferred), dict(ledger.pulses.crashes)),
    )


# -- a job that is not taken


@WAYS
def test_nothing_has_happened_to_a_job_that_is_not_taken(core, router, end):
    policy(core, max_tries=3, retry="5s", max_reserved=1, rate="1/s", fair="true", unique="waiting", ttl="1h")
    worker, other = core.client(), core.client()
    core.engine.ledger.measures = Measures()
    core.engine.ledger.start_recording()
    core.wait(1)
    put(core, worker, pri=7)
    assert core.send(worker, b"reserve\r\nrelease 1 7 0\r\n").endswith(b"RELEASED\r\n")
    core.wait(9)  # retry
    put(core, worker, b"another", pri=7)
    core.wait(1)
    before = all_facts(core)
    assert offered(core, router) == 1
    assert core.send(other, b"reserve-with-timeout 0\r\n") == b"TIMED_OUT\r\n"  # max_reserved
    end(core, router)
    core.wait(0)
    assert all_facts(core) == before
    recount(core.engine)
    assert core.send(other, b"reserve-with-timeout 0\r\n") == b"RESERVED 1 1\r\nx\r\n"


@WAYS
def test_declined_job_is_before_those_that_were_put_later(core, router, end):
    for pri in (3, 3, 3):
        put(core, core.client(), pri=pri)
    assert offered(core, router) == 1
    end(core, router)
    lines = b"reserve-with-timeout 0\r\n" * 3
    reply = core.send(core.client(), lines)
    assert [line.split()[1] for line in reply.splitlines() if line.startswith(b"RESERVED")] == [b"1", b"2", b"3"]


@WAYS
@pytest.mark.parametrize("word", [b"offer", b"reserve-with-timeout"])
def test_next_client_that_waits_is_given_the_job_at_once(core, router, word, end):
    waiting = core.client()
    put(core, core.client())
    assert offered(core, router) == 1
    assert core.send(waiting, word + b" 9\r\n") == b""
    core.wait(0.5)
    end(core, router)
    assert waiting.take_replies() == (b"OFFERED" if word == b"offer" else b"RESERVED") + b" 1 1\r\nx\r\n"
    job = core.engine.jobs[1]
    assert job.holder in {waiting.client, waiting.client.offers}
    tally = core.engine.tubes[b"default"].tally
    assert (tally.reserved, tally.waited_ns > 0) == ((0, False) if word == b"offer" else (1, True))


def test_only_jobs_that_clients_have_are_looked_at_beside_an_offer(core, router, operator):
    for _ in range(20):
        put(core, router)
    core.send(router, b"reserve-job 5\r\n")
    assert offered(core, router) == 1
    reply = operator.ask("list-jobs", state="reserved")
    assert ([job["id"] for job in reply["jobs"]], reply["looked"]) == ([1, 5], 2)
    for held in ({"holder": router.client.peer.number}, {"holder_host": "10.0.0.1"}):
        assert [job["id"] for job in operator.ask("list-jobs", **held)["jobs"]] == [1, 5]


def test_job_that_goes_back_is_offered_no_longer_than_others(core, router):
    put(core, core.client())
    assert offered(core, router) == 1
    core.wait(1.9)
    core.send(router, b"decline 1\r\n")
    assert offered(core, router) == 1
    core.wait(1.9)
    assert core.send(router, b"take 1\r\n") == b"TAKEN\r\n"


def test_job_that_is_not_taken_is_stored_as_ready(core, router):
    assert core.send(router, b"offer 5\r\n") == b""
    put(core, core.client())
    (job,) = core.store().jobs
    _, _, state, *_, due_at, buried_seq, reserves, _, _, _, _, _, holder, _, _, _ = row_of(job)
    assert (job.id, state, due_at, buried_seq, reserves, holder) == (1, "ready", None, None, 0, None)
    core.wait(2)
    assert not core.engine.take_changes(deferred=True).jobs


def test_many_jobs_of_a_client_that_leaves_go_back_in_slices(core, router):
    for _ in range(SLICE + 100):
        put(core, router)
    while isinstance(offered(core, router), int):
        pass
    core.engine.clients.disconnect(router.client, core.now_ns)
    assert core.engine.counts.reserved == 100
    assert core.send(core.client(), b"delete %d\r\n" % core.engine.last_id) == b"DELETED\r\n"  # nobody has it any more
    core.engine.tick(core.now_ns)
    assert core.engine.counts.reserved == 0
    recount(core.engine)


def test_job_that_becomes_too_old_while_it_is_offered_expires_then(core, router):
    policy(core, ttl="3s")
    put(core, core.client())
    core.wait(2)
    assert offered(core, router) == 1
    assert core.send(core.client(), b"reserve\r\n") == b""
    core.wait(1.5)
    assert state(core) == ("offered", None)
    core.send(router, b"decline 1\r\n")
    core.wait(0)
    assert state(core) == ("buried", "expired")


# -- a job that is taken


def test_taken_job_is_reserved_from_then_on(core, router):
    core.engine.ledger.start_recording()
    put(core, core.client(), ttr_s=10)
    core.wait(3)
    assert offered(core, router) == 1
    core.wait(1)
    assert core.send(router, b"take 1\r\n") == b"TAKEN\r\n"
    job, tally = core.engine.jobs[1], core.engine.tubes[b"default"].tally
    assert (job.holder, job.last_holder, job.reserves) == (router.client, router.client.peer, 1)
    assert (job.due_ns, job.since_ns, router.client.reserved_ns) == (
        core.now_ns + 10 * SECOND_NS,
        core.now_ns,
        core.now_ns,
    )
    assert (tally.reserved, tally.waited_ns) == (1, 4 * SECOND_NS)
    assert [event.what for event in core.store().events] == ["put", "reserve"]
    core.wait(10)
    assert job.past.timeouts == 1


def test_tokens_are_used_up_by_jobs_that_are_taken(core, router):
    policy(core, rate="2/s")
    core.wait(5)  # it is not known how many were reserved before
    for _ in range(4):
        put(core, core.client())
    assert [offered(core, router) for _ in range(3)] == [1, 2, b"TIMED_OUT\r\n"]
    assert core.send(router, b"decline 1\r\n") == b"DECLINED\r\n"
    core.wait(0)
    assert [offered(core, router) for _ in range(2)] == [1, b"TIMED_OUT\r\n"]
    assert core.send(router, b"take 1\r\ntake 2\r\n") == b"TAKEN\r\n" * 2
    core.wait(0.4)
    assert offered(core, router) == b"TIMED_OUT\r\n"
    core.wait(0.1)
    assert [offered(core, router) for _ in range(2)] == [3, b"TIMED_OUT\r\n"]


def test_declined_job_goes_to_a_client_that_waits_for_a_token(core, router):
    policy(core, rate="1/s")
    core.wait(2)
    other = core.client()
    put(core, other)
    core.wait(5)
    assert offered(core, router) == 1
    assert core.send(other, b"reserve-with-timeout 60\r\n") == b""
    core.wait(1.5)
    assert core.send(router, b"decline 1\r\n") == b"DECLINED\r\n"
    core.wait(0)
    assert other.take_replies() == b"RESERVED 1 1\r\nx\r\n"


def test_offered_job_has_been_ready_since_its_delay_was_over(core, router):
    put(core, core.client(), delay_s=5)
    assert core.send(router, b"offer 60\r\n") == b""
    core.wait(6)
    core.send(router, b"take 1\r\n")
    assert core.engine.tubes[b"default"].tally.waited_ns == SECOND_NS


def test_offer_takes_from_no_tube_that_is_paused(core, router):
    put(core, router)
    core.send(router, b"pause-tube default 5\r\n")
    assert core.send(router, b"offer 9\r\n") == b""
    core.wait(5)
    assert router.take_replies().startswith(b"OFFERED 1 ")
    other = core.client()
    core.send(other, b"pause-tube default 5\r\n")
    assert core.send(router, b"decline 1\r\noffer 0\r\n") == b"DECLINED\r\nTIMED_OUT\r\n"
