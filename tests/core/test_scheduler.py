"""Jobs that the server puts by itself: when, how often, and what becomes of them if it is killed meanwhile."""

import os
import random

import pytest

from beanlite.core.job import SECOND_NS
from beanlite.core.ledger import BYTES_AT_ONCE
from beanlite.core.policies import PolicyRow
from beanlite.core.scheduler import GRACE_S, RETRY_S
from beanlite.core.tube import Peer
from tests.support.core import put
from tests.support.operators import all_jobs
from tests.support.ruled_core import policy
from tests.support.scheduled import DAY_S, HOUR_S, MINUTE_S, Machine, minutes

SEED = int(os.environ.get("MODEL_SEED", str(random.randrange(1 << 32))))


@pytest.fixture
def machine():
    return Machine()


def test_a_day_of_a_minutely_schedule_puts_1440_jobs(machine):
    machine.set("* * * * *")
    began_s = machine.now_s
    machine.core.wait(DAY_S)
    assert [round(at, 3) for at in machine.puts()] == minutes(began_s, began_s + DAY_S)
    assert len(machine.puts()) == 1440


def test_job_is_as_the_schedule_says_and_its_event_names_the_schedule(machine):
    machine.core.engine.ledger.start_recording()
    schedule = machine.set("every 1h", tube=b"mail", body=b"x")
    machine.store()
    machine.core.wait(HOUR_S)
    changes = machine.core.engine.take_changes(deferred=True)
    (job,) = changes.jobs
    assert (job.tube.name, job.body, job.pri, job.ttr_s, job.delay_s) == (b"mail", b"x", 5, 60, 0)
    (event,) = changes.events
    assert (event.what, event.by.address, event.by.number, event.by_operator) == ("put", "schedule nightly", 0, False)
    assert changes.schedules == [("nightly", schedule)]
    assert (schedule.last_job, schedule.last_at) == (job.id, schedule.next_at - HOUR_S)


def test_client_that_waits_is_given_the_job(machine):
    worker = machine.core.client()
    machine.core.send(worker, b"watch reports\r\nreserve\r\n")
    machine.set("every 1h")
    machine.core.wait(HOUR_S)
    assert worker.take_replies() == b"RESERVED 1 6\r\nreport\r\n"


def test_put_and_next_time_are_in_one_batch(machine):
    schedule = machine.set("* * * * *")
    machine.store()
    for _ in range(10):
        machine.core.wait(MINUTE_S)
        changes = machine.core.store()
        assert ([job.id for job in changes.jobs], changes.schedules) == ([schedule.last_job], [("nightly", schedule)])


def test_nothing_is_put_while_the_last_job_is_there(machine):
    schedule = machine.set("* * * * *", if_absent=True)
    machine.core.wait(10 * MINUTE_S)
    assert len(machine.puts()) == 1
    assert machine.now_s < schedule.next_at <= machine.now_s + MINUTE_S
    client = machine.core.client()
    machine.core.send(client, b"watch reports\r\nreserve\r\nbury %d 0\r\n" % schedule.last_job)
    machine.core.wait(5 * MINUTE_S)
    assert len(machine.puts()) == 1
    machine.delete_all()
    assert machine.puts() == []
    machine.core.wait(5 * MINUTE_S)
    assert len(machine.puts()) == 1


def test_skipped_tick_is_stored_as_well(machine):
    schedule = machine.set("* * * * *", if_absent=True)
    machine.core.wait(MINUTE_S)
    machine.store()
    machine.core.wait(MINUTE_S)
    changes = machine.core.store()
    assert (changes.jobs, changes.schedules) == ([], [("nightly", schedule)])


def test_kill_neither_repeats_a_tick_nor_loses_one(machine):
    """Servers are killed every few minutes, at any moment, and are down for some seconds."""
    rng = random.Random(SEED)
    machine.set("* * * * *")
    machine.store()
    began_s = machine.now_s
    while machine.now_s < began_s + 6 * HOUR_S:
        for _ in range(rng.randint(0, 10)):
            machine.core.wait(rng.choice([rng.uniform(0, 20), min(20, -machine.now_s % 60 + 0.01)]))
            machine.store()
        machine.core.wait(rng.uniform(0, 20))  # what comes in this time is not stored
        machine.kill(rng.uniform(0, GRACE_S - 21))
        machine.store()
    # Which minute each is for: a put is late by less than a minute.
    minutes_of_puts = [int(at + 0.0005) // MINUTE_S * MINUTE_S for at in machine.puts()]
    assert minutes_of_puts == minutes(began_s, machine.now_s), f"MODEL_SEED={SEED}"


def test_tick_that_is_late_by_less_than_a_minute_is_carried_out(machine):
    schedule = machine.set("every 1h")
    machine.store()
    machine.core.wait(schedule.next_at - machine.now_s - 1)
    machine.kill(down_s=GRACE_S)
    assert len(machine.puts()) == 1


@pytest.mark.parametrize(("once", "puts"), [(False, 0), (True, 1)])
def test_missed_ticks_are_put_once_or_not_at_all(once, puts, machine):
    schedule = machine.set("every 1h", once=once)
    machine.store()
    due_s = schedule.next_at
    machine.kill(down_s=due_s - machine.now_s + GRACE_S + 5 * HOUR_S + 60)
    assert len(machine.puts()) == puts
    machine.store()
    schedule = machine.core.engine.schedules["nightly"]
    assert schedule.next_at == due_s + 6 * HOUR_S
    machine.kill()
    assert len(machine.puts()) == puts
    machine.core.wait(HOUR_S)
    assert len(machine.puts()) == puts + 1


@pytest.mark.parametrize("once", [False, True])
def test_tick_in_time_counts_for_those_missed_before(once, machine):
    schedule = machine.set("every 1h", once=once)
    machine.store()
    machine.kill(down_s=schedule.next_at - machine.now_s + 5 * HOUR_S + 10)
    assert len(machine.puts()) == 1


def test_missed_tick_is_not_put_while_the_last_job_is_there(machine):
    schedule = machine.set("every 1h", if_absent=True, once=True)
    machine.core.wait(HOUR_S)
    machine.store()
    machine.kill(down_s=schedule.next_at - machine.now_s + 5 * HOUR_S + 70)
    assert len(machine.puts()) == 1


def refuse_puts(engine):
    engine.admission.refuse_puts()


def accept_puts(engine):
    engine.admission.accept_puts(1 << 30)


def test_refused_put_is_tried_again_until_the_tick_is_missed(machine):
    schedule = machine.set("every 1h")
    engine = machine.core.engine
    due_s = schedule.next_at
    refuse_puts(engine)
    machine.core.wait(due_s - machine.now_s + GRACE_S - 5)
    assert (machine.puts(), schedule.next_at) == ([], due_s)
    accept_puts(engine)
    machine.core.wait(RETRY_S)
    assert (len(machine.puts()), schedule.next_at) == (1, due_s + HOUR_S)
    refuse_puts(engine)
    machine.core.wait(HOUR_S + GRACE_S)
    accept_puts(engine)
    machine.core.wait(RETRY_S)
    assert (len(machine.puts()), schedule.next_at) == (1, due_s + 2 * HOUR_S)


def test_missed_tick_that_is_to_be_put_is_tried_as_long_as_it_takes(machine):
    schedule = machine.set("every 1d", once=True)
    refuse_puts(machine.core.engine)
    machine.core.wait(schedule.next_at - machine.now_s + 5 * HOUR_S)
    assert machine.puts() == []
    accept_puts(machine.core.engine)
    machine.core.wait(RETRY_S)
    assert len(machine.puts()) == 1
    machine.core.wait(HOUR_S)
    assert len(machine.puts()) == 1


@pytest.mark.parametrize("why", ["draining", "tubes", "room"])
def test_each_refusal_of_puts_holds_for_schedules(why, machine):
    engine = machine.core.engine
    if why == "draining":
        engine.admission.drain()
    elif why == "tubes":
        engine.clients.max_tubes = len(engine.tubes)
    else:
        engine.admission.room_bytes = 5
    machine.set("every 1h")
    machine.core.wait(HOUR_S)
    assert machine.puts() == []


def test_tick_that_max_jobs_refuses_is_counted_once(machine):
    core = machine.core
    policy(core, b"reports", max_jobs=1)
    schedule = machine.set("every 1h")
    core.wait(schedule.next_at - machine.now_s)
    tally = core.engine.tubes[b"reports"].tally
    for ticks in (1, 2):
        core.wait(HOUR_S)
        assert (tally.refused, core.refused) == (ticks, ["max-jobs"] * ticks)
        core.wait(20)  # it is tried again each second
        assert (tally.refused, core.refused) == (ticks, ["max-jobs"] * ticks)
    assert core.engine.scheduler.run(schedule, "ann", core.now_ns) is None  # which is another put
    assert (tally.refused, core.refused) == (3, ["max-jobs"] * 3)
    machine.delete_all()
    core.wait(RETRY_S)
    assert len(machine.puts()) == 1


def test_tick_that_finds_no_room_counts_as_one_refused_put(machine):
    core = machine.core
    core.engine.bound_memory(1, 1, fetches=False)
    machine.set("every 1h")
    core.wait(HOUR_S + GRACE_S / 2)
    assert core.engine.memory.refused == 1


def test_tick_for_a_tube_too_many_counts_as_one_refused_tube(machine):
    core = machine.core
    core.engine.clients.max_tubes = len(core.engine.tubes)
    machine.set("every 1h")
    core.wait(HOUR_S + GRACE_S / 2)
    assert core.refused == ["tubes"]


def test_refused_schedule_does_not_hold_up_another(machine):
    engine = machine.core.engine
    machine.set("every 1h", "large", body=b"x" * 1000)
    machine.set("every 1h", "small", body=b"x")
    engine.admission.room_bytes = 500
    machine.core.wait(HOUR_S)
    assert [job.body for job in all_jobs(engine)] == [b"x"]


def test_many_that_are_due_at_once_are_put_in_slices(machine):
    for number in range(1000):
        machine.set("every 1h", f"number{number}")
    core = machine.core
    core.now_ns += round((core.engine.schedules["number0"].next_at - machine.now_s) * SECOND_NS)
    slices = []
    while core.engine.timers.next_ns <= core.now_ns:
        before = len(core.engine.jobs)
        core.engine.tick(core.now_ns)
        slices.append(len(core.engine.jobs) - before)
    assert max(slices) <= 30
    assert sum(slices) == 1000
    assert core.engine.timers.next_ns > core.now_ns


def test_many_with_large_bodies_are_put_a_few_a_batch(machine):
    size, many = 60_000, 200
    for number in range(many):
        machine.set("every 1h", f"number{number}", body=b"%d" % number * (size // len(b"%d" % number)))
        machine.store()
    core = machine.core
    core.now_ns += round((core.engine.schedules["number0"].next_at - machine.now_s) * SECOND_NS)
    put = 0
    while put < many:
        while core.engine.timers.next_ns <= core.now_ns:
            core.engine.tick(core.now_ns)
        changes = core.store()
        put += len(changes.jobs)
        written = [job.body for job in changes.jobs] + [schedule.body for _, schedule in changes.schedules]
        assert 0 < sum(map(len, written)) < BYTES_AT_ONCE + 2 * size
        core.now_ns += SECOND_NS // 100
    assert machine.now_s - min(machine.puts()) < 1


def test_many_with_large_bodies_are_put_soon_though_no_batch_is_taken(machine):
    body = b"x" * 60_000
    for number in range(1000):
        machine.set("every 1h", f"number{number}", body=body)
    machine.store()
    machine.core.wait(HOUR_S + 15)
    assert len(machine.puts()) == 1000


def test_many_that_are_refused_are_tried_again_in_slices(machine):
    for number in range(200):
        machine.set("every 1h", f"number{number}")
    core = machine.core
    core.engine.admission.drain()
    core.now_ns += round((core.engine.schedules["number0"].next_at - machine.now_s) * SECOND_NS)
    for _ in range(2):
        core.now_ns = max(core.now_ns, core.engine.timers.next_ns)
        ticks = 0
        while core.engine.timers.next_ns <= core.now_ns:
            core.engine.tick(core.now_ns)
            ticks += 1
        assert 5 < ticks < 20
        assert core.engine.timers.next_ns == core.now_ns + RETRY_S * SECOND_NS


def test_schedule_without_its_zone_waits_and_others_go_on(machine):
    broken = machine.set("every 1h", "broken")
    machine.set("every 1h", "sound")
    broken.zone = "Europe/Atlantis"
    due_s = broken.next_at
    machine.core.wait(2 * HOUR_S)
    assert len(machine.puts()) == 2
    assert broken.next_at == due_s
    assert machine.core.engine.scheduler.errors.keys() == {"broken"}
    broken.zone = "UTC"
    machine.core.wait(HOUR_S)
    assert len(machine.puts()) == 4
    assert machine.core.engine.scheduler.errors == {}


def test_server_without_schedules_has_no_timer(machine):
    schedule = machine.set("every 1h")
    machine.core.engine.scheduler.unset(schedule, Peer("unix", 1), b"{}", machine.core.now_ns)
    machine.core.wait(HOUR_S)
    assert machine.core.engine.timers._owners == {}
    assert machine.puts() == []
    assert machine.core.engine.memory.schedule_bytes == 0


def test_server_that_stops_puts_nothing(machine):
    machine.set("every 1h")
    machine.core.engine.begin_stop()
    machine.core.wait(2 * HOUR_S)
    assert machine.puts() == []


# -- setting


def test_setting_it_again_keeps_what_it_has_put(machine):
    first = machine.set("* * * * *")
    machine.core.wait(MINUTE_S)
    second = machine.set("*/2 * * * *")
    assert (second.last_job, second.last_at) == (first.last_job, first.last_at)
    assert machine.core.engine.schedules == {"nightly": second}


def test_setting_it_again_at_its_time_loses_no_tick(machine):
    schedule = machine.set("every 1h")
    machine.core.now_ns += round((schedule.next_at - machine.now_s + 1) * SECOND_NS)
    machine.set("every 1h", body=b"new")
    assert [job.body for job in all_jobs(machine.core.engine)] == [b"new"]


def test_schedules_count_in_memory(machine):
    memory = machine.core.engine.memory
    before = memory.used_bytes
    machine.set("every 1h", body=b"x" * 50_000)
    assert memory.used_bytes > before + 50_000
    machine.set("every 1h", body=b"x" * 10_000)
    assert before + 10_000 < memory.used_bytes < before + 50_000


def test_schedule_that_is_set_leaves_less_room_for_puts(machine):
    admission = machine.core.engine.admission
    admission.accept_puts(100_000)
    machine.set("every 1h", body=b"x" * 50_000)
    assert admission.room_bytes == 50_000


def test_job_put_by_a_client_is_not_the_schedules(machine):
    schedule = machine.set("* * * * *", if_absent=True)
    client = machine.core.client()
    put(machine.core, client)
    machine.core.wait(MINUTE_S)
    assert schedule.last_job == 2


def test_job_that_a_schedule_would_repeat_is_stored_as_it_is(machine):
    core = machine.core
    values = ((b"a", "ttl", "10s"), (b"a", "expired", "move:reports"), (b"reports", "unique", "waiting"))
    core.engine.set_policies([PolicyRow(*each, 0.0, "ann") for each in values], [], core.now_ns)
    client = core.client()
    core.send(client, b"use a\r\n")
    put(core, client, b"report")
    schedule = machine.set("every 1h", next_at=machine.now_s + 10.5)
    machine.store()
    core.wait(11)
    assert schedule.last_job == 1
    changes = core.engine.take_changes(deferred=False)
    assert [job.id for job in changes.jobs] == [1]
    assert changes.schedules == [("nightly", schedule)]


def test_schedule_repeats_a_job_even_where_there_may_be_no_more(machine):
    core = machine.core
    values = (("unique", "waiting"), ("max_jobs", "1"))
    core.engine.set_policies([PolicyRow(b"reports", *each, 0.0, "ann") for each in values], [], core.now_ns)
    client = core.client()
    core.send(client, b"use reports\r\n")
    put(core, client, b"report")
    schedule = machine.set("every 1h")
    core.wait(HOUR_S)
    assert schedule.last_job == 1
    assert core.engine.tubes[b"reports"].tally.duplicates == 1
    core.send(client, b"delete 1\r\n")
    put(core, client, b"other")
    core.wait(HOUR_S)
    assert schedule.last_job == 1


@pytest.mark.parametrize("how", [{"if_absent": True}, {"policy": "waiting"}])
def test_job_that_is_about_to_expire_keeps_no_tick_from_being_put(machine, how):
    rules = {"unique": how["policy"]} if "policy" in how else {}
    policy(machine.core, b"reports", ttl="60s", expired="delete", **rules)
    machine.set("* * * * *", if_absent="if_absent" in how)
    for _ in range(10):
        machine.core.wait(MINUTE_S)
        machine.core.wait(1)
        assert len(machine.puts()) == 1


@pytest.mark.parametrize("expired", ["bury", "move:old"])
def test_job_that_is_about_to_expire_but_stays_is_there(machine, expired):
    policy(machine.core, b"reports", ttl="60s", expired=expired)
    machine.set("* * * * *", if_absent=True)
    for _ in range(5):
        machine.core.wait(MINUTE_S)
    machine.core.wait(1)
    assert len(machine.puts()) == 1
    assert len(machine.core.engine.jobs) == 1
