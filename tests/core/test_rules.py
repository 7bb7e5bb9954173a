"""What the rules of a tube do to its jobs, for clients that know nothing of them."""

import json
from zlib import crc32

import pytest

from beanlite.core.job import SECOND_NS, SLICE
from beanlite.core.policies import PolicyRow
from beanlite.core.rulings import EXPIRING_MAX
from beanlite.core.tube import FULL, SLOWED
from tests.support.core import Core, put, stored_job


@pytest.fixture
def core():
    return Core()


def policy(core, pattern=b"default", unset=(), **values):
    """Set a policy, as an operator does."""
    rows = [PolicyRow(pattern, key, str(value), 0.0, "ann") for key, value in values.items()]
    core.engine.set_policies(rows, [(pattern, key) for key in unset], core.now_ns)


def reserve(core, session, timeout_s=0):
    """Reserve a job; return its id, or None."""
    reply = core.send(session, b"reserve-with-timeout %d\r\n" % timeout_s)
    return int(reply.split()[1]) if reply.startswith(b"RESERVED") else None


def change(core, operator, body):
    """Give an operator's command that changes jobs; return the reply."""
    reply = core.send(operator, b"change-jobs %d\r\n%b\r\n" % (len(body), body))
    return json.loads(reply.partition(b"\r\n")[2])


def state(core, job_id=1):
    job = core.engine.jobs[job_id]
    return job.state.value, job.why


def fail(core, session, times=1, job_id=1):
    for _ in range(times):
        assert core.send(session, b"reserve-job %d\r\n" % job_id).startswith(b"RESERVED")
        assert core.send(session, b"release %d 0 0\r\n" % job_id) == b"RELEASED\r\n"


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


def test_batch_that_would_be_too_many_is_refused_whole(core):
    policy(core, b"new", max_jobs=1)
    operator = core.client(operator=True)
    body = b'{"jobs":[{"body":"a","tube":"new"},{"body":"b","tube":"new"},{"body":"c"}]}'
    assert core.send(operator, b"put-jobs %d\r\n%b\r\n" % (len(body), body)) == b"OUT_OF_MEMORY\r\n"
    assert len(core.engine.jobs) == 0
    assert b"new" not in core.engine.tubes


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


def test_fair_tubes_keep_the_order_of_pri(core):
    policy(core, b"t.*", fair="true")
    worker = core.client()
    fill(core, worker, b"t.a", 2)
    core.send(worker, b"use t.b\r\n")
    put(core, worker, pri=1)
    core.send(worker, b"watch t.a\r\nwatch t.b\r\n")
    assert [reserve(core, worker) for _ in range(3)] == [1, 2, 3]


# -- the same again


@pytest.mark.parametrize("kind", ["waiting", "present"])
def test_put_of_a_body_that_is_there_is_answered_with_its_job(core, kind):
    policy(core, unique=kind)
    client = core.client()
    assert put(core, client, b"a") == 1
    assert put(core, client, b"a", pri=9, delay_s=9) == 1
    assert put(core, client, b"b") == 2
    assert core.engine.tubes[b"default"].tally.duplicates == 1
    assert core.engine.counts.total_jobs == 2


def test_repeated_put_waits_until_the_first_is_stored(core):
    policy(core, unique="waiting")
    client, other = core.client(), core.client()
    put(core, client)
    core.receive(other, b"put 0 0 9 1\r\nx\r\n")
    assert other.waits
    core.store()
    core.receive(other, b"put 0 0 9 1\r\nx\r\n")
    other.take_replies()
    core.receive(other, b"put 0 0 9 1\r\nx\r\n")
    assert not other.waits


def test_twin_is_stored_as_it_is_when_the_put_is_answered(core):
    policy(core, unique="waiting")
    client, other = core.client(), core.client()
    put(core, client)
    assert reserve(core, client) == 1
    core.send(client, b"bury 1 0\r\n")
    core.store()
    core.receive(client, b"kick 1\r\n")
    core.receive(other, b"put 0 0 9 1\r\nx\r\n")
    assert other.waits


def test_twin_that_has_just_been_moved_is_stored_there(core):
    policy(core, b"a", ttl="10s", expired="move:b")
    policy(core, b"b", unique="waiting")
    client = core.client()
    core.send(client, b"use a\r\n")
    put(core, client)
    core.store()
    core.send(client, b"use b\r\n")
    core.wait(10)
    assert core.engine.jobs[1].tube.name == b"b"
    core.receive(client, b"put 0 0 9 1\r\nx\r\n")
    assert client.waits
    assert core.engine.ledger.is_changed


def test_job_that_is_reserved_or_buried_no_longer_waits(core):
    policy(core, unique="waiting")
    client = core.client()
    put(core, client)
    assert reserve(core, client) == 1
    assert put(core, client) == 2
    core.send(client, b"bury 1 0\r\ndelete 2\r\n")
    assert put(core, client) == 3
    core.send(client, b"delete 3\r\nkick 1\r\n")
    assert put(core, client) == 1  # it waits again


def test_job_that_comes_back_beside_its_like_stays(core):
    policy(core, unique="waiting")
    client = core.client()
    put(core, client)
    assert reserve(core, client) == 1
    assert put(core, client) == 2
    core.send(client, b"release 1 0 0\r\n")
    assert put(core, client) == 2
    core.send(client, b"delete 2\r\n")
    assert put(core, client) == 1


def test_job_that_is_present_in_any_state_is_not_put_again(core):
    policy(core, unique="present")
    client = core.client()
    put(core, client)
    assert reserve(core, client) == 1
    assert put(core, client) == 1
    core.send(client, b"bury 1 0\r\n")
    assert put(core, client) == 1
    core.send(client, b"delete 1\r\n")
    assert put(core, client) == 2
    assert core.engine.counts.twins == 1


def test_jobs_that_were_there_before_are_known_after_some_ticks(core):
    client = core.client()
    for number in range(3 * SLICE):
        put(core, client, b"%d" % number)
    policy(core, unique="waiting")
    core.wait(0)
    assert put(core, client, b"%d" % (2 * SLICE)) == 2 * SLICE + 1
    policy(core, unset=["unique"])
    assert put(core, client, b"1") == 3 * SLICE + 1
    assert core.engine.counts.twins == 0


def test_restored_jobs_are_known_even_without_their_bodies(core):
    policy(core, unique="waiting")
    core.engine.restore([stored_job(1, core.now_ns, body=1, crc32=crc32(b"x"))], core.now_ns)
    core.engine.recovered(1, 1)
    client = core.client()
    assert core.send(client, b"put 0 0 9 1\r\nx\r\n") == b""
    assert client.gathering.jobs == [core.engine.jobs[1]]
    client.bring(core.engine.jobs[1], b"x")
    client.answer_with_bodies(core.now_ns)
    assert client.take_replies() == b"INSERTED 1\r\n"


def test_one_body_is_fetched_where_very_many_may_be_the_same(core):
    policy(core, unique="waiting")
    rows = [stored_job(job_id, core.now_ns, body=1, crc32=crc32(b"x")) for job_id in range(1, 1000)]
    core.engine.restore(rows, core.now_ns)
    core.engine.recovered(999, 1)
    client = core.client()
    assert core.send(client, b"put 0 0 9 1\r\nx\r\n") == b""
    assert client.gathering.jobs == [core.engine.jobs[1]]
    client.bring(core.engine.jobs[1], b"y")
    client.answer_with_bodies(core.now_ns)
    assert client.gathering.jobs == [core.engine.jobs[2]]


def test_moved_job_is_known_where_it_is(core):
    policy(core, unique="waiting")
    client, operator = core.client(), core.client(operator=True)
    core.send(client, b"use t\r\n")
    put(core, client)
    change(core, operator, b'{"do": "move", "to": "default","ids":  [1]}')
    assert put(core, operator) == 1


# -- too late


def test_job_that_is_too_old_is_buried(core):
    policy(core, ttl="10s")
    client = core.client()
    put(core, client)
    put(core, client, delay_s=60)
    core.wait(9.9)
    assert state(core) == ("ready", None)
    core.wait(0.1)
    assert [state(core, 1), state(core, 2)] == [("buried", "expired")] * 2
    assert core.engine.tubes[b"default"].tally.expired == 2


@pytest.mark.parametrize("is_paused", [False, True])
@pytest.mark.parametrize("expired", ["delete", "move:old"])
def test_job_that_is_too_old_is_deleted_or_moves(core, expired, is_paused):
    policy(core, b"t", ttl="10s", expired=expired)
    client = core.client()
    core.send(client, b"use t\r\n")
    put(core, client)
    core.send(client, b"use default\r\npause-tube t %d\r\n" % (is_paused * 60))
    core.store()
    core.wait(10)
    assert b"t" not in core.engine.tubes
    assert len(core.engine.jobs) == (expired != "delete")
    assert (b"old" in core.engine.tubes) == (expired != "delete")
    assert core.engine.counts.expiries == 0
    assert core.store().jobs


def test_job_that_is_too_old_for_two_tubes_moves_between_them_no_more(core):
    policy(core, ttl="10s", expired="move:b")
    policy(core, b"b", ttl="9s", expired="move:default")
    put(core, core.client())
    core.now_ns += 10 * SECOND_NS
    for _ in range(3):
        core.engine.tick(core.now_ns)
    assert core.engine.timers.next_ns > core.now_ns
    assert state(core) == ("buried", "expired")


def test_reserved_job_expires_when_it_comes_back(core):
    policy(core, ttl="10s")
    client = core.client()
    put(core, client, ttr_s=60)
    assert reserve(core, client) == 1
    core.wait(20)
    assert state(core) == ("reserved", None)
    assert core.send(client, b"release 1 0 0\r\nreserve-with-timeout 0\r\n") == b"RELEASED\r\nTIMED_OUT\r\n"
    core.wait(0)
    assert state(core) == ("buried", "expired")


def test_job_that_an_operator_takes_away_expires(core):
    policy(core, ttl="10s")
    client, operator = core.client(), core.client(operator=True)
    put(core, client, ttr_s=60)
    assert reserve(core, client) == 1
    core.wait(20)
    change(core, operator, b'{"do": "release","ids":  [1]}')
    core.wait(2)
    assert state(core) == ("buried", "expired")


def test_kicked_job_does_not_expire_again(core):
    policy(core, ttl="10s")
    client = core.client()
    put(core, client)
    core.wait(10)
    core.send(client, b"kick 1\r\n")
    core.wait(100)
    assert state(core) == ("ready", None)


def test_jobs_expire_in_slices(core):
    policy(core, ttl="10s")
    client = core.client()
    for _ in range(3 * SLICE):
        put(core, client)
    core.now_ns += 10 * SECOND_NS
    core.engine.tick(core.now_ns)
    assert 0 < core.engine.counts.buried <= SLICE + 1
    core.wait(0)
    assert core.engine.counts.buried == 3 * SLICE


def test_expiry_waits_while_the_batch_is_large(core):
    policy(core, ttl="10s", expired="delete")
    client = core.client()
    for _ in range(2 * EXPIRING_MAX):
        put(core, client)
    core.store()
    core.wait(11)
    assert EXPIRING_MAX <= len(core.engine.jobs) < 2 * EXPIRING_MAX - SLICE
    assert core.engine.timers.next_ns > core.now_ns  # the server does not turn in vain
    core.store()
    core.wait(1)
    core.store()
    core.wait(1)
    assert not core.engine.jobs


def test_deleted_jobs_leave_nothing_behind(core):
    policy(core, ttl="1h", unique="waiting")
    client = core.client()
    for number in range(200):
        core.send(client, b"delete %d\r\n" % put(core, client, b"%d" % number))
    kept = core.engine.tubes[b"default"].kept
    assert (core.engine.counts.expiries, core.engine.counts.twins, len(kept._twins)) == (0, 0, 0)
    assert len(kept.expiries) == 0


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
