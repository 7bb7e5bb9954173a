"""What becomes of jobs that come back to a tube with rules."""

import pytest

from beanlite.core.job import SECOND_NS, U32_MAX
from tests.support.core import put, stored_job
from tests.support.ruled_core import change, fail, policy, reserve, state

# -- what comes back


def test_job_is_buried_after_max_tries_though_it_was_released(core):
    policy(core, max_tries=3)
    worker = core.client()
    put(core, worker)
    fail(core, worker, 2)
    assert state(core) == ("ready", None)
    fail(core, worker)
    assert state(core) == ("buried", "tries")
    assert core.engine.tubes[b"default"].tally.dead == 1
    assert core.send(worker, b"peek-buried\r\n").startswith(b"FOUND 1 ")


def test_kick_gives_a_dead_job_all_its_tries_again(core):
    policy(core, max_tries=3)
    worker = core.client()
    put(core, worker)
    fail(core, worker, 3)
    assert core.send(worker, b"kick 1\r\n") == b"KICKED 1\r\n"
    fail(core, worker, 2)
    assert state(core) == ("ready", None)
    fail(core, worker)
    assert state(core) == ("buried", "tries")


def test_reserve_job_of_a_dead_job_counts_as_its_first_try(core):
    policy(core, max_tries=2)
    worker = core.client()
    put(core, worker)
    fail(core, worker, 2)
    fail(core, worker)
    assert state(core) == ("ready", None)
    fail(core, worker)
    assert state(core) == ("buried", "tries")


def test_end_of_a_ttr_and_a_client_that_leaves_are_tries(core):
    policy(core, max_tries=3)
    put(core, core.client(), ttr_s=5)
    for _ in range(2):
        worker = core.client()
        assert reserve(core, worker) == 1
        core.close(worker)
    assert state(core) == ("ready", None)
    assert reserve(core, core.client()) == 1
    core.wait(5)
    assert state(core) == ("buried", "tries")


def test_orderly_stop_spends_no_try(core):
    policy(core, max_tries=1)
    worker = core.client()
    put(core, worker)
    assert reserve(core, worker) == 1
    core.engine.begin_stop()
    core.close(worker)
    assert state(core) == ("ready", None)
    assert core.engine.jobs[1].tries == 0


def test_restart_spends_no_try(core):
    rows = [stored_job(1, core.now_ns, state="reserved", place=core.now_ns, reserves=3)]
    core.engine.restore(rows, core.now_ns)
    assert (state(core), core.engine.jobs[1].tries) == (("ready", None), 2)


@pytest.mark.parametrize("ended", ["release", "stop"])
def test_reservation_that_was_moved_is_forgiven_only_once(core, ended):
    worker, operator = core.client(), core.client(operator=True)
    put(core, worker)
    assert reserve(core, worker) == 1
    change(core, operator, b'{"do": "move", "to": "t","ids":  [1]}')
    if ended == "stop":
        core.engine.begin_stop()
        core.close(worker)
    else:
        change(core, operator, b'{"do": "release","ids":  [1]}')
    assert core.engine.jobs[1].tries == 0


def test_release_by_an_operator_spends_no_try(core):
    policy(core, max_tries=1)
    worker, operator = core.client(), core.client(operator=True)
    put(core, worker)
    assert reserve(core, worker) == 1
    change(core, operator, b'{"do": "release","ids":[1]}')
    assert (state(core), core.engine.jobs[1].tries) == (("ready", None), 0)


@pytest.mark.parametrize("is_stop", [False, True])
def test_job_that_was_moved_has_no_more_tries_than_a_new_one(core, is_stop):
    worker, operator = core.client(), core.client(operator=True)
    put(core, worker)
    assert reserve(core, worker) == 1
    change(core, operator, b'{"do": "move", "to": "t","ids":  [1]}')
    if is_stop:
        core.engine.begin_stop()
        core.close(worker)
    else:
        change(core, operator, b'{"do": "release","ids":[1]}')
    assert (state(core), core.engine.jobs[1].tries) == (("ready", None), 0)


def test_dead_job_moves_to_another_tube_with_all_its_tries(core):
    policy(core, max_tries=2, then="move:dead")
    policy(core, b"dead", max_tries=2)
    worker = core.client()
    put(core, worker, b"body", pri=7)
    fail(core, worker, 2)
    job = core.engine.jobs[1]
    assert (job.tube.name, state(core), job.tries, job.why) == (b"dead", ("ready", None), 0, None)
    core.send(worker, b"watch dead\r\n")
    assert reserve(core, worker) == 1
    core.send(worker, b"release 1 0 0\r\n")
    assert state(core) == ("ready", None)
    fail(core, worker)
    assert state(core) == ("buried", "tries")


def test_dead_job_that_would_move_to_its_own_tube_is_buried(core):
    policy(core, b"d*", max_tries=1, then="move:default")
    worker = core.client()
    put(core, worker)
    fail(core, worker)
    assert state(core) == ("buried", "tries")


def test_tube_for_dead_jobs_is_made_where_clients_may_make_none(core):
    policy(core, max_tries=1, then="move:dead")
    core.engine.clients.max_tubes = 1
    worker = core.client()
    put(core, worker)
    fail(core, worker)
    assert list(core.engine.tubes) == [b"default", b"dead"]


def test_tube_that_its_last_job_leaves_goes_with_it(core):
    policy(core, b"t", max_tries=1, then="move:dead")
    worker = core.client()
    core.send(worker, b"use t\r\n")
    put(core, worker)
    core.send(worker, b"use default\r\n")
    fail(core, worker)
    assert list(core.engine.tubes) == [b"default", b"dead"]


# -- growing delay


def delays(core, worker, times):
    """Fail a job some times, each as soon as it can be reserved; return for how long it was delayed each time."""
    found = []
    for _ in range(times):
        fail(core, worker)
        job = core.engine.jobs[1]
        found.append((job.due_ns - core.now_ns) / SECOND_NS if job.state.value == "delayed" else 0)
        core.wait(found[-1])
    return found


def test_delay_doubles_with_each_try_up_to_its_most(core):
    policy(core, retry="2s..10s")
    worker = core.client()
    put(core, worker)
    found = delays(core, worker, 5)
    for least, delay_s in zip([2, 4, 8, 10, 10], found, strict=True):
        assert least <= delay_s <= least * 1.1, found


def test_longest_delay_is_no_longer_than_a_job_may_have(core):
    policy(core, retry="60000d")
    worker = core.client()
    for job_id in range(1, 4):
        put(core, worker)
        fail(core, worker, job_id=job_id)
        job = core.engine.jobs[job_id]
        assert (job.delay_s, job.due_ns - core.now_ns) == (U32_MAX, U32_MAX * SECOND_NS)


def test_jobs_that_failed_together_do_not_come_back_together(core):
    policy(core, retry="1h")
    worker = core.client()
    for _ in range(20):
        put(core, worker)
    for job_id in range(1, 21):
        fail(core, worker, job_id=job_id)
    due_s = {core.engine.jobs[job_id].due_ns // SECOND_NS for job_id in range(1, 21)}
    assert len(due_s) > 15


def test_delay_that_a_client_asks_for_wins(core):
    policy(core, retry="1h")
    worker = core.client()
    put(core, worker)
    assert reserve(core, worker) == 1
    core.send(worker, b"release 1 0 3\r\n")
    assert core.engine.jobs[1].due_ns == core.now_ns + 3 * SECOND_NS


def test_first_client_that_leaves_costs_no_delay(core):
    policy(core, retry="8s")
    put(core, core.client())
    for expected in ("ready", "delayed"):
        worker = core.client()
        assert core.send(worker, b"reserve-job 1\r\n").startswith(b"RESERVED")
        core.close(worker)
        assert state(core) == (expected, None)


@pytest.mark.parametrize("what", ["release", "ttr over", "client gone"])
def test_event_tells_for_how_long_the_policy_delays_the_job(core, what):
    policy(core, retry="5s")
    worker = core.client()
    put(core, worker, ttr_s=1)
    for _ in range(2):  # the first client that leaves costs no delay
        core.send(worker, b"kick-job 1\r\n")
        core.store()
        core.engine.ledger.recording = 1
        assert reserve(core, worker) == 1
        if what == "release":
            core.send(worker, b"release 1 0 0\r\n")
        elif what == "ttr over":
            core.wait(1)
        else:
            core.close(worker)
            worker = core.client()
    delay_s = core.engine.jobs[1].delay_s
    assert delay_s >= 5
    event = core.store().events[-1]
    assert (event.what, event.delay_s) == (what, delay_s)
