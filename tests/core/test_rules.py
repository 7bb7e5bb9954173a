"""What the rules of a tube hold back, and which rules a tube has."""

import json

import pytest

from beanlite.core.job import SLICE
from beanlite.core.snapshot import tube_snapshot
from beanlite.core.tube import FULL, SLOWED
from tests.support.core import put
from tests.support.ruled_core import change, policy, reserve

# -- what may be out


def test_delete_and_reserve_in_one_packet_get_the_next_job(core):
    policy(core, max_reserved=1)
    worker = core.client()
    put(core, worker)
    put(core, worker)
    assert reserve(core, worker) == 1
    assert core.send(worker, b"reserve-with-timeout 0\r\n") == b"TIMED_OUT\r\n"
    replies = core.send(worker, b"delete 1\r\nreserve-with-timeout 0\r\n")
    assert replies == b"DELETED\r\nRESERVED 2 1\r\nx\r\n"


def test_new_tube_hands_out_its_first_job_in_the_packet_that_made_it(core):
    policy(core, b"mail.*", max_reserved=1)
    replies = core.send(
        core.client(), b"use mail.a\r\nwatch mail.a\r\nput 0 0 9 1\r\nx\r\nreserve-with-timeout 0\r\ndelete 1\r\n"
    )
    assert replies.endswith(b"RESERVED 1 1\r\nx\r\nDELETED\r\n")


def test_client_that_waits_is_served_before_one_that_frees_the_place(core):
    policy(core, max_reserved=1)
    first, second = core.client(), core.client()
    for _ in range(3):
        put(core, first)
    assert reserve(core, first) == 1
    assert core.send(second, b"reserve\r\n") == b""
    assert core.send(first, b"delete 1\r\nreserve-with-timeout 0\r\n") == b"DELETED\r\nTIMED_OUT\r\n"
    assert second.take_replies().startswith(b"RESERVED 2 ")


def test_client_that_frees_a_place_gets_the_smallest_pri_that_is_left(core):
    policy(core, b"t", max_reserved=1)
    first, second = core.client(), core.client()
    core.send(first, b"watch t\r\nuse t\r\n")
    core.send(second, b"watch t\r\nignore default\r\n")
    for pri in (0, 1, 9):
        put(core, first, pri=pri)
    assert reserve(core, first) == 1
    assert core.send(second, b"reserve\r\n") == b""
    core.send(first, b"use default\r\n")
    put(core, first, pri=5)
    policy(core, b"t", max_reserved=2)
    assert core.send(first, b"delete 1\r\nreserve-with-timeout 0\r\n").startswith(b"DELETED\r\nRESERVED 4 ")
    assert second.take_replies().startswith(b"RESERVED 2 ")


@pytest.mark.parametrize("ended", [b"release 1 9 0\r\n", b"bury 1 0\r\n", b"delete 1\r\n", b"quit"])
def test_each_end_of_a_reservation_frees_its_place(core, ended):
    policy(core, max_reserved=1)
    first, second = core.client(), core.client()
    put(core, first)
    put(core, first, pri=1)
    assert reserve(core, first) == 1
    assert core.send(second, b"reserve\r\n") == b""
    if ended == b"quit":
        core.close(first)
    else:
        core.send(first, ended)
    core.wait(0)
    assert second.take_replies().startswith(b"RESERVED ")
    assert core.engine.tubes[b"default"].reserved == 1


def test_move_by_an_operator_frees_a_place_and_takes_one(core):
    policy(core, b"*", max_reserved=1)
    worker, other, operator = core.client(), core.client(), core.client(operator=True)
    put(core, worker)
    put(core, worker)
    assert reserve(core, worker) == 1
    assert core.send(other, b"reserve\r\n") == b""
    change(core, operator, b'{"do": "move", "to": "t","ids":  [1]}')
    core.wait(0)
    assert other.take_replies().startswith(b"RESERVED 2 ")
    assert core.engine.tubes[b"t"].shut == FULL


def test_higher_limit_serves_clients_that_wait(core):
    policy(core, max_reserved=1)
    worker, other = core.client(), core.client()
    put(core, worker)
    put(core, worker)
    assert reserve(core, worker) == 1
    assert core.send(other, b"reserve\r\n") == b""
    policy(core, max_reserved=2)
    core.wait(0)
    assert other.take_replies().startswith(b"RESERVED 2 ")


def test_lower_limit_takes_nothing_from_anybody(core):
    worker = core.client()
    for _ in range(3):
        put(core, worker)
    assert [reserve(core, worker), reserve(core, worker)] == [1, 2]
    policy(core, max_reserved=1)
    assert core.engine.tubes[b"default"].reserved == 2
    assert core.send(worker, b"delete 1\r\nreserve-with-timeout 0\r\n") == b"DELETED\r\nTIMED_OUT\r\n"
    assert core.send(worker, b"delete 2\r\nreserve-with-timeout 0\r\n").startswith(b"DELETED\r\nRESERVED 3 ")


def test_reserve_job_ignores_limits_but_counts(core):
    policy(core, max_reserved=1)
    worker = core.client()
    put(core, worker)
    put(core, worker)
    assert reserve(core, worker) == 1
    assert core.send(worker, b"reserve-job 2\r\n").startswith(b"RESERVED 2 ")
    assert core.send(worker, b"delete 1\r\nreserve-with-timeout 0\r\n") == b"DELETED\r\nTIMED_OUT\r\n"


def taken_in(core, worker, seconds, step_s=0.01):
    """Reserve and delete for some seconds; return how many jobs."""
    done = 0
    for _ in range(round(seconds / step_s)):
        while (job_id := reserve(core, worker)) is not None:
            core.send(worker, b"delete %d\r\n" % job_id)
            done += 1
        core.wait(step_s)
    return done


def test_rate_bounds_reservations_and_begins_with_none(core):
    policy(core, rate="10/s")
    worker = core.client()
    for _ in range(300):
        put(core, worker)
    assert reserve(core, worker) is None
    assert taken_in(core, worker, 10) in range(98, 102)
    core.wait(60)  # nobody reserves: that many are saved up, and no more
    assert taken_in(core, worker, 1) in range(19, 22)


def test_reserve_job_in_a_new_tube_makes_no_others_available(core):
    policy(core, rate="10/s")
    worker = core.client()
    for _ in range(3):
        put(core, worker)
    assert core.send(worker, b"reserve-job 1\r\n").startswith(b"RESERVED 1 ")
    assert reserve(core, worker) is None
    core.wait(0.1)
    assert reserve(core, worker) is None  # the next one makes up for what was reserved without a token


@pytest.mark.parametrize(("rate", "most_s"), [("300/m", 60), ("6/h", 600)])
def test_reserve_job_shuts_a_tube_with_a_rate_for_a_while_at_most(core, rate, most_s):
    policy(core, rate=rate)
    worker = core.client()
    put(core, worker)
    put(core, worker)
    core.wait(most_s)
    for _ in range(500):
        assert core.send(worker, b"reserve-job 1\r\nrelease 1 1 0\r\n").endswith(b"RELEASED\r\n")
    assert reserve(core, worker) is None
    core.wait(most_s - 2)
    assert reserve(core, worker) is None
    core.wait(2)
    assert reserve(core, worker) is not None


def test_client_that_waits_is_served_when_the_rate_permits(core):
    policy(core, rate="60/m")
    worker = core.client()
    put(core, worker)
    assert core.send(worker, b"reserve\r\n") == b""
    assert core.engine.tubes[b"default"].shut == SLOWED
    core.wait(1)
    assert worker.take_replies().startswith(b"RESERVED 1 ")


def test_pause_and_limits_hold_independently(core):
    policy(core, max_reserved=1)
    worker, other = core.client(), core.client()
    put(core, worker)
    put(core, worker)
    core.send(worker, b"pause-tube default 10\r\n")
    assert core.send(other, b"reserve\r\n") == b""
    core.wait(10)
    assert other.take_replies().startswith(b"RESERVED 1 ")
    core.send(worker, b"pause-tube default 10\r\n")
    core.send(other, b"delete 1\r\n")
    assert core.send(other, b"reserve\r\n") == b""
    core.wait(9.9)
    assert other.take_replies() == b""
    core.wait(0.1)
    assert other.take_replies().startswith(b"RESERVED 2 ")


# -- what may come in


def test_put_that_would_be_too_many_is_refused(core):
    policy(core, max_jobs=2)
    client = core.client()
    put(core, client)
    put(core, client, delay_s=5)
    assert core.send(client, b"put 0 0 9 1\r\nx\r\n") == b"OUT_OF_MEMORY\r\n"
    assert core.engine.tubes[b"default"].tally.refused == 1
    assert core.refused == ["max-jobs"]
    core.send(client, b"delete 1\r\n")
    put(core, client)


def put_jobs(core, operator, *bodies, tube="default"):
    """Put jobs by one request; return the last line of the reply."""
    text = json.dumps({"jobs": [{"body": body, "tube": tube} for body in bodies]}).encode()
    return core.send(operator, b"put-jobs %d\r\n%b\r\n" % (len(text), text)).split(b"\r\n")[-2]


def test_batch_that_would_be_too_many_is_refused_whole(core):
    policy(core, b"new", max_jobs=1)
    operator = core.client(operator=True)
    body = b'{"jobs":[{"body":"a","tube":"new"},{"body":"b","tube":"new"},{"body":"c"}]}'
    assert core.send(operator, b"put-jobs %d\r\n%b\r\n" % (len(body), body)) == b"OUT_OF_MEMORY\r\n"
    assert len(core.engine.jobs) == 0
    assert b"new" not in core.engine.tubes


@pytest.mark.parametrize("kind", ["waiting", "present"])
@pytest.mark.parametrize("jobs", [0, 2])
def test_body_that_a_batch_has_twice_takes_one_place(core, kind, jobs):
    policy(core, unique=kind, max_jobs=jobs + 1)
    session, operator = core.client(), core.client(operator=True)
    for number in range(jobs):
        put(core, session, b"%d" % number)
    assert put_jobs(core, operator, "c", "c", "c") == b'{"ids":[%d,%d,%d]}' % ((jobs + 1,) * 3)
    assert core.engine.tubes[b"default"].tally.duplicates == 2
    assert put_jobs(core, operator, "d", "d") == b"OUT_OF_MEMORY"


def test_body_that_a_new_tube_gets_twice_takes_one_place(core):
    policy(core, b"new", unique="waiting", max_jobs=1)
    operator = core.client(operator=True)
    assert put_jobs(core, operator, "c", "c", tube="new") == b'{"ids":[1,1]}'
    assert put_jobs(core, operator, "c", "d", tube="new") == b"OUT_OF_MEMORY"


def test_body_that_a_batch_has_twice_may_be_two_jobs(core):
    policy(core, unique="waiting", max_jobs=1)
    core.send(core.client(), b"reserve\r\n")  # takes the first one, which then no longer waits
    operator = core.client(operator=True)
    assert put_jobs(core, operator, "c", "c") == b"OUT_OF_MEMORY"
    policy(core, max_jobs=2)
    assert put_jobs(core, operator, "c", "c", "c") == b'{"ids":[1,2,2]}'


@pytest.mark.parametrize("limits", [{"max_reserved": 1}, {}], ids=["full", "paused"])
def test_clients_that_wait_at_a_shut_tube_make_no_room(core, limits):
    policy(core, unique="waiting", max_jobs=2, **limits)
    operator = core.client(operator=True)
    put(core, operator, b"held")
    reserve(core, operator)
    for _ in range(3):
        core.send(core.client(), b"reserve\r\n")
    if not limits:
        core.send(operator, b"pause-tube default 60\r\n")
    assert put_jobs(core, operator, "c", "c") == b'{"ids":[2,2]}'


def test_copy_into_a_full_tube_stops(core):
    policy(core, b"t", max_jobs=1)
    operator = core.client(operator=True)
    put(core, operator)
    put(core, operator)
    reply = change(core, operator, b'{"do": "copy", "to": "t", "tube": "default"}')
    assert (reply["done"], reply["stopped"]) == (1, "OUT_OF_MEMORY")


# -- the next one


def fill(core, session, tube, jobs):
    core.send(session, b"use %b\r\n" % tube)
    for _ in range(jobs):
        put(core, session)


@pytest.mark.parametrize("workers", [1, 8])
def test_small_tube_is_empty_soon_beside_a_large_one(core, workers):
    policy(core, b"t.*", fair="true")
    producer = core.client()
    fill(core, producer, b"t.a", 1000)
    fill(core, producer, b"t.b", 10)
    crowd = [core.client() for _ in range(workers)]
    for worker in crowd:
        core.send(worker, b"watch t.a\r\nwatch t.b\r\nignore default\r\n")
    held = {}
    for turn in range(30):
        worker = crowd[turn % workers]
        if worker in held:
            core.send(worker, b"delete %d\r\n" % held[worker])
        held[worker] = reserve(core, worker)
    assert not core.engine.tubes[b"t.b"].ready.keys


@pytest.mark.parametrize("workers", [1, 8])
@pytest.mark.parametrize("others", [{}, {"max_tries": "5"}])
def test_tubes_with_and_without_fair_share_the_reservations(core, workers, others):
    policy(core, b"t.*", fair="true")
    policy(core, b"m*", **others)
    producer = core.client()
    tubes = (b"m1", b"m2", b"t.a", b"t.b")
    for tube in tubes:
        fill(core, producer, tube, 100)
    crowd = [core.client() for _ in range(workers)]
    for worker in crowd:
        core.send(worker, b"".join(b"watch %b\r\n" % tube for tube in tubes) + b"ignore default\r\n")
    held, served = {}, dict.fromkeys(tubes, 0)
    for turn in range(90):
        worker = crowd[turn % workers]
        if worker in held:
            core.send(worker, b"delete %d\r\n" % held[worker])
        held[worker] = reserve(core, worker)
        served[core.engine.jobs[held[worker]].tube.name] += 1
    assert served == {b"m1": 30, b"m2": 0, b"t.a": 30, b"t.b": 30}  # m2 has the last jobs of those without


def test_fair_tubes_keep_the_order_of_pri(core):
    policy(core, b"t.*", fair="true")
    worker = core.client()
    fill(core, worker, b"t.a", 2)
    core.send(worker, b"use t.b\r\n")
    put(core, worker, pri=1)
    core.send(worker, b"watch t.a\r\nwatch t.b\r\n")
    assert [reserve(core, worker) for _ in range(3)] == [1, 2, 3]


# -- which rules


def test_most_specific_pattern_wins_for_each_key(core):
    policies: dict[bytes, dict] = {
        b"*": {"max_tries": 1, "max_jobs": 100},
        b"mail.*": {"max_tries": 2},
        b"mail.d?": {"max_tries": 3},
        b"mail.de": {"max_tries": 4, "max_jobs": "off"},
    }
    for pattern, values in policies.items():
        policy(core, pattern, **values)
    of = core.engine.policies.rules_of
    assert [of(name).max_tries for name in (b"x", b"mail.fr", b"mail.dk", b"mail.de")] == [1, 2, 3, 4]
    assert [of(name).max_jobs for name in (b"x", b"mail.fr", b"mail.de")] == [100, 100, 0]
    assert of(b"mail.x") is of(b"mail.y")


@pytest.mark.parametrize("patterns", [(b"a*", b"a**"), (b"*", b"?*"), (b"*b", b"a*")])
def test_smaller_text_wins_among_equally_specific_globs(core, patterns):
    for tries, pattern in enumerate(patterns, 1):
        policy(core, pattern, max_tries=tries)
    assert core.engine.policies.rules_of(b"ab").max_tries == 1


def test_policy_reaches_many_tubes_in_slices(core):
    client = core.client()
    for number in range(2 * SLICE):
        core.send(client, b"watch t%d\r\n" % number)
    policy(core, b"t*", max_tries=1)
    ruled = sum(tube.rules is not None for tube in core.engine.tubes.values())
    assert 0 < ruled <= SLICE
    core.wait(0)
    assert (
        sum(tube.rules is not None for tube in core.engine.tubes.values())
        == 2 * SLICE
        == core.engine.counts.ruled_tubes
    )


def test_counts_of_what_rules_did_outlive_the_totals(core):
    policy(core, max_jobs=1)
    client = core.client()
    put(core, client)
    core.send(client, b"put 0 0 9 1\r\nx\r\n")
    core.engine.take_changes(deferred=True, totals=True)
    assert b"policy-total-refused: 1" in core.send(client, b"stats-tube default\r\n")


@pytest.mark.parametrize("name", ["dead", "expired", "refused", "duplicates"])
def test_count_of_what_rules_did_outlives_the_rules(core, name):
    tube = core.engine.tubes[b"default"]
    setattr(core.engine.ledger.tally(tube), name, 3)
    core.engine.take_changes(deferred=True, totals=True)
    assert tube.rules is None
    assert getattr(tube_snapshot(tube, core.now_ns), name) == 3
