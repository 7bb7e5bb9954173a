"""What transcripts can't show: bounds on what is kept, slices, and time to the nanosecond."""

import sys

import pytest

from beanlite.core.job import READY, RESERVED, SECOND_NS, SLICE
from beanlite.core.queues import LINES_PER_JOB, WAKE_COST, Outcome
from tests.support.core import put
from tests.support.operators import recount

# -- nothing is left behind


def test_reserve_and_delete_with_an_endless_ttr_leaves_nothing(core):
    client = core.client()

    def rounds(count):
        for _ in range(count):
            job_id = put(core, client, ttr_s=2**32 - 1)
            core.send(client, b"reserve\r\ndelete %d\r\n" % job_id)
            core.now_ns += SECOND_NS // 1000
            core.store()

    rounds(100)
    before = sys.getallocatedblocks()
    rounds(3000)
    assert sys.getallocatedblocks() - before < 300
    assert len(core.engine.timers._heap.keys) <= 2


def test_events_that_nobody_has_recorded_any_more_are_not_kept(core):
    client = core.client()
    ledger = core.engine.ledger
    for _ in range(10):
        job_id = put(core, client)
        core.store()
        ledger.start_recording()
        core.send(client, b"reserve\r\n")
        ledger.stop_recording()
        core.send(client, b"bury %d 0\r\ndelete %d\r\n" % (job_id, job_id))
        core.store()
    assert not ledger._waiting
    assert not ledger.waiting_events  # too many of these hold up all clients


def test_what_time_alone_does_to_many_jobs_holds_up_nobody(core):
    ledger = core.engine.ledger
    ledger.start_recording()
    client = core.client()
    for _ in range(3):
        put(core, client, delay_s=60, ttr_s=1)
    core.store()
    core.jump(61)
    core.send(client, b"reserve\r\n" * 3)
    assert [len(ledger._waiting.get(job_id)) for job_id in ledger._waiting.each_key()] == [2, 2, 2]
    assert not ledger.waiting_events  # however many jobs are due at the same second
    core.jump(2)
    core.send(client, b"reserve\r\n" * 3)
    assert ledger.waiting_events == 6  # clients can go on with that for ever
    core.store()
    assert not ledger._waiting
    assert not ledger.waiting_events


def test_timers_of_clients_that_come_and_go_are_not_kept(core):
    lasting = core.client()
    put(core, lasting, ttr_s=5)
    core.send(lasting, b"reserve\r\n")
    for _ in range(2000):
        client = core.client()
        core.send(client, b"reserve-with-timeout 1000000\r\n")
        core.close(client)
    assert len(core.engine.timers._heap.keys) < 100
    assert len(core.engine.timers._owners) == 1


def test_tubes_go_with_their_last_job_user_or_watcher(core):
    client = core.client()
    core.send(client, b"use a\r\nwatch b\r\n")
    job_id = put(core, client)
    core.send(client, b"use c\r\nignore b\r\n")
    assert list(core.engine.tubes) == [b"default", b"a", b"c"]
    core.send(client, b"delete %d\r\n" % job_id)
    core.close(client)
    assert list(core.engine.tubes) == [b"default"]


def test_order_of_tubes_follows_those_that_are_made_and_dropped(core):
    client = core.client()

    def order():
        return [tube.name for tube in core.engine.tubes_in_order()]

    assert order() == [b"default"]
    core.send(client, b"use b\r\n")
    assert order() == [b"default", b"b"]
    core.send(client, b"use a\r\n")
    assert order() == [b"default", b"a"]
    core.send(client, b"use default\r\n")
    assert order() == [b"default"]


def test_pause_of_a_tube_that_goes_does_not_return_after_a_restart(core):
    client = core.client()
    core.send(client, b"use a\r\npause-tube a 60\r\n")
    core.store()
    core.send(client, b"use default\r\n")
    (tube,) = core.store().pauses
    assert (tube.name, tube.pause_until_ns) == (b"a", 0)


def test_counts_come_back_to_nothing(core):
    clients = [core.client() for _ in range(3)]
    for number, client in enumerate(clients):
        for delay_s in (0, 0, 5):
            put(core, client, pri=number * 1000, delay_s=delay_s, ttr_s=2)
        core.send(client, b"reserve\r\n")
    core.wait(1.5)
    core.send(clients[0], b"reserve-job 2\r\nbury 2 0\r\n")
    core.wait(10)
    for job_id in range(1, 10):
        core.send(clients[2], b"delete %d\r\n" % job_id)
    for client in clients:
        core.close(client)
    engine = core.engine
    assert not engine.jobs
    assert (engine.counts.reserved, engine.counts.delayed, engine.counts.buried, engine.counts.urgent) == (0, 0, 0, 0)
    assert (engine.counts.clients, engine.counts.producers, engine.counts.workers, engine.counts.waiting) == (
        0,
        0,
        0,
        0,
    )


# -- slices


def test_a_long_kick_takes_several_slices_and_answers_once(core):
    client = core.client()
    for _ in range(2 * SLICE + 5):
        put(core, client, delay_s=1000)
    assert core.send(client, b"kick 1000000\r\nlist-tube-used\r\n") == b""
    assert core.engine.counts.delayed == SLICE + 5
    client.resume(core.now_ns)
    client.resume(core.now_ns)
    assert client.take_replies() == b"KICKED %d\r\nUSING default\r\n" % (2 * SLICE + 5)


def test_a_long_kick_of_buried_jobs_never_turns_to_delayed_ones(core):
    client = core.client()
    for _ in range(SLICE + 1):
        job_id = put(core, client)
        core.send(client, b"reserve\r\nbury %d 0\r\n" % job_id)
    for _ in range(SLICE):
        put(core, client, delay_s=1000)
    core.send(client, b"kick 1000000\r\n")
    client.resume(core.now_ns)
    assert client.take_replies() == b"KICKED %d\r\n" % (SLICE + 1)
    assert core.engine.counts.delayed == SLICE


def test_many_delays_that_end_at_once_take_several_ticks(core):
    client = core.client()
    for _ in range(3 * SLICE):
        put(core, client, delay_s=5)
    core.now_ns += 5 * SECOND_NS
    core.engine.tick(core.now_ns)
    assert core.engine.counts.delayed == 2 * SLICE
    assert core.engine.timers.next_ns <= core.now_ns
    while core.engine.timers.next_ns <= core.now_ns:
        core.engine.tick(core.now_ns)
    assert core.engine.counts.delayed == 0


def test_the_jobs_of_a_client_that_is_gone_come_back_in_slices(core):
    client, other = core.client(), core.client()
    for _ in range(2 * SLICE + 5):
        put(core, client)
        core.send(client, b"reserve\r\n")
    core.close(client)
    assert core.engine.counts.reserved == SLICE + 5
    core.wait(0)
    assert core.engine.counts.reserved == 0
    assert core.send(other, b"reserve\r\n").startswith(b"RESERVED 1 ")


# -- time


def test_a_ttr_ends_to_the_nanosecond(core):
    client = core.client()
    put(core, client, ttr_s=3)
    core.send(client, b"reserve\r\n")
    core.wait(3 - 1e-9)
    assert core.engine.counts.reserved == 1
    core.wait(1e-9)
    assert core.engine.counts.reserved == 0
    assert core.engine.counts.timeouts == 1


def test_job_ready_at_the_instant_of_a_timeout_is_handed_out(core):
    producer, worker = core.client(), core.client()
    core.send(worker, b"reserve-with-timeout 5\r\n")
    put(core, producer, delay_s=5)
    core.jump(5)
    assert worker.take_replies().startswith(b"RESERVED 1 ")


def test_jobs_not_yet_given_back_by_a_gone_client_are_free_to_others(core):
    gone, client = core.client(), core.client()
    for _ in range(SLICE + 10):
        put(core, client, ttr_s=100)
        core.send(gone, b"reserve\r\n")
    core.engine.clients.disconnect(gone.client, core.now_ns)
    last = SLICE + 10
    assert core.engine.jobs[last].state is RESERVED
    assert core.send(client, b"delete %d\r\n" % last) == b"DELETED\r\n"
    assert core.send(client, b"reserve-job %d\r\n" % (last - 1)).startswith(b"RESERVED ")
    assert core.send(gone, b"delete %d\r\n" % (last - 2)) == b"DELETED\r\n"
    while core.engine.timers.next_ns <= core.now_ns:
        core.engine.tick(core.now_ns)
    assert core.engine.counts.reserved == 1
    recount(core.engine)


@pytest.mark.parametrize("tube", [b"default", b"later"])
def test_job_ready_at_the_instant_of_deadline_soon_is_handed_out(core, tube):
    """Whether the tube or the client is the older."""
    client, producer = core.client(), core.client()
    put(core, client, ttr_s=3)
    core.send(client, b"reserve\r\n")
    core.send(producer, b"use %b\r\n" % tube)
    put(core, producer, delay_s=2)
    core.send(client, b"watch %b\r\n" % tube)
    core.send(client, b"reserve\r\n")
    core.wait(2)
    assert client.take_replies().startswith(b"RESERVED 2 ")


def test_job_handed_out_at_deadline_soon_keeps_the_other_ttr_running(core):
    client, producer = core.client(), core.client()
    put(core, client, ttr_s=2)
    core.send(client, b"reserve\r\n")
    core.send(producer, b"use later\r\n")
    put(core, producer, delay_s=1, ttr_s=60)
    core.send(client, b"watch later\r\nreserve\r\n")
    core.wait(1)
    assert core.engine.counts.reserved == 2
    core.wait(1)
    assert core.engine.jobs[1].state is READY


def test_timeouts_beyond_a_slice_come_slice_by_slice_in_their_order(core):
    waiters = [core.client() for _ in range(2 * SLICE + 5)]
    for client in waiters:
        core.send(client, b"reserve-with-timeout 5\r\n")
    core.now_ns += 5 * SECOND_NS
    told = []
    while core.engine.timers.next_ns <= core.now_ns:
        core.engine.tick(core.now_ns)
        woken = core.engine.clients.take_woken()
        assert len(woken) <= SLICE // WAKE_COST
        told += [client for client, outcome in woken if outcome is Outcome.TIMED_OUT]
    assert told == [session.client for session in waiters]


@pytest.mark.parametrize("woken_by", ["kick", "delays", "timeouts", "the end of a pause"])
def test_fewer_clients_are_woken_at_once_if_they_watch_many_tubes(core, woken_by):
    producer = core.client()
    waiters = [core.client() for _ in range(12)]
    watched = SLICE // 5 * LINES_PER_JOB  # five of them are as much as a slice
    watches = b"".join(b"watch %d\r\n" % number for number in range(watched))
    for client in waiters:
        core.send(client, watches)
    if woken_by == "the end of a pause":
        core.send(producer, b"pause-tube default 5\r\n")
    for client in waiters:
        core.send(client, b"reserve-with-timeout 5\r\n")
        if woken_by != "timeouts":
            put(core, producer, delay_s={"kick": 1000, "delays": 5}.get(woken_by, 0))
    if woken_by == "kick":
        core.receive(producer, b"kick 12\r\n")
    else:
        core.now_ns += 5 * SECOND_NS
    slices = []
    while core.engine.counts.waiting:
        if woken_by != "kick":
            core.engine.tick(core.now_ns)
        elif slices:
            producer.resume(core.now_ns)
        slices.append(len(core.engine.clients.take_woken()))
    assert max(slices) <= 5
    assert sum(slices) == 12
    if woken_by == "kick":
        assert producer.take_replies().endswith(b"KICKED 12\r\n")


def test_overdue_client_that_leaves_keeps_nobody_from_being_told(core):
    waiters = [core.client() for _ in range(SLICE // WAKE_COST + 2)]
    for client in waiters:
        core.send(client, b"reserve-with-timeout 5\r\n")
    core.jump(5)
    core.close(waiters[-2])
    core.wait(0)
    assert [client.take_replies() for client in waiters[-2:]] == [b"", b"TIMED_OUT\r\n"]


def test_wait_ends_though_what_was_due_before_it_has_gone(core):
    """Nothing else may ever be due again."""
    waiter, holder = core.client(), core.client()
    core.send(waiter, b"use w\r\nwatch w\r\nignore default\r\nreserve-with-timeout 5\r\n")
    for _ in range(SLICE + 100):
        put(core, holder, ttr_s=5)
        core.send(holder, b"reserve\r\n")
    core.jump(5)
    core.close(holder)
    core.wait(0)
    assert waiter.take_replies().endswith(b"TIMED_OUT\r\n")


def test_many_jobs_that_are_due_at_once_hold_up_nothing_else(core):
    """The server is late with them by seconds, but not with what is due in between."""
    client, waiter, holder = core.client(), core.client(), core.client()
    for _ in range(100 * SLICE):
        core.receive(client, b"put 0 10 60 1\r\nx\r\n")
    core.send(client, b"use other\r\n")
    late = put(core, client, delay_s=10)
    held = put(core, client, ttr_s=10)
    core.send(holder, b"reserve-job %d\r\n" % held)
    core.send(waiter, b"watch other\r\nignore default\r\npause-tube other 60\r\nreserve-with-timeout 10\r\n")
    core.now_ns += 10 * SECOND_NS
    for _ in range(50):  # of the 100 turns that it takes
        core.engine.tick(core.now_ns)
        core._wake()
        core.now_ns += SECOND_NS // 200
    assert core.engine.counts.delayed > 40 * SLICE
    assert (core.engine.jobs[late].state, core.engine.jobs[held].state) == (READY, READY)
    assert waiter.take_replies().endswith(b"TIMED_OUT\r\n")


@pytest.mark.parametrize("ended_by", ["a command", "time"])
def test_end_of_a_pause_serves_waiting_clients_in_slices_and_in_order(core, ended_by):
    """Whoever comes in between is served after them, also if a job comes in between."""
    producer, late = core.client(), core.client()
    served = SLICE // WAKE_COST
    core.send(producer, b"pause-tube default 60\r\n")
    waiters = [core.client() for _ in range(2 * served + 5)]
    for client in waiters:
        core.send(client, b"reserve\r\n")
        put(core, producer, pri=5)
    if ended_by == "time":
        core.now_ns += 60 * SECOND_NS
        core.engine.tick(core.now_ns)
        core._wake()
    else:
        assert core.send(producer, b"pause-tube default 0\r\n") == b"PAUSED\r\n"
    assert len(core.engine.tubes[b"default"].waiting) == served + 5
    assert [tube.pause_until_ns for tube in core.store().pauses] == [0]
    assert core.send(late, b"reserve\r\n") == b""
    core.wait(0)
    ids = [client.take_replies().split()[1] for client in waiters]
    assert ids == [b"%d" % job_id for job_id in range(1, 2 * served + 6)]
    assert late.take_replies() == b""
    assert core.store().pauses == []
    put(core, producer)
    assert late.take_replies().startswith(b"RESERVED ")


def test_a_waiting_client_is_not_told_before_all_that_is_due_has_come(core):
    worker, producer = core.client(), core.client()
    core.send(worker, b"watch other\r\nignore default\r\nreserve-with-timeout 5\r\n")
    worker.take_replies()
    for _ in range(2 * SLICE):
        put(core, producer, delay_s=4)
    core.send(producer, b"use other\r\n")
    put(core, producer, delay_s=5)
    core.jump(5)
    assert worker.take_replies() == b""
    core.wait(0)
    assert worker.take_replies().startswith(b"RESERVED ")


def test_deadline_soon_comes_when_the_last_second_begins(core):
    client = core.client()
    put(core, client, ttr_s=10)
    core.send(client, b"reserve\r\n")
    assert core.send(client, b"reserve\r\n") == b""
    core.wait(9 - 1e-9)
    assert client.take_replies() == b""
    core.wait(1e-9)
    assert client.take_replies() == b"DEADLINE_SOON\r\n"


def test_waiting_client_whose_own_job_times_out_unseen_is_told_first(core):
    client = core.client()
    put(core, client, ttr_s=10)
    core.send(client, b"reserve\r\n")
    core.send(client, b"reserve\r\n")
    core.jump(3600)
    assert client.take_replies() == b"DEADLINE_SOON\r\n"
    assert core.send(client, b"reserve\r\n").startswith(b"RESERVED 1 ")


def test_a_long_delay_costs_no_tick_before_its_end(core):
    client = core.client()
    put(core, client, delay_s=2**32 - 1)
    assert core.engine.timers.next_ns == core.now_ns + (2**32 - 1) * SECOND_NS


def test_when_a_pause_ends_waiting_clients_are_served_in_their_order(core):
    first, second, producer = core.client(), core.client(), core.client()
    core.send(producer, b"pause-tube default 60\r\n")
    core.send(first, b"reserve\r\n")
    core.send(second, b"reserve\r\n")
    put(core, producer, pri=2)
    put(core, producer, pri=1)
    core.wait(59.9)
    assert first.take_replies() + second.take_replies() == b""
    core.wait(0.1)
    assert first.take_replies().startswith(b"RESERVED 2 ")
    assert second.take_replies().startswith(b"RESERVED 1 ")
