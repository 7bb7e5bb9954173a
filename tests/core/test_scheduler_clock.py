"""Schedules on a machine whose clock is set: nothing is put twice, and nothing is left out for long."""

import os
import random

import pytest

from beanlite.core.scheduler import BACK_S, LOOK_S
from tests.support.scheduled import DAY_S, HOUR_S, MINUTE_S, Machine, minutes

SEED = int(os.environ.get("MODEL_SEED", str(random.randrange(1 << 32))))


@pytest.fixture
def machine():
    return Machine()


def test_clock_that_is_set_forward_misses_what_is_in_between(machine):
    machine.set("* * * * *")
    machine.core.wait(10)
    machine.set_by_s += HOUR_S
    machine.core.wait(LOOK_S)
    assert 1 <= len(machine.puts()) <= 2


def test_clock_set_forward_is_noticed_within_a_minute(machine):
    schedule = machine.set("every 1d")
    machine.core.wait(1)
    machine.set_by_s += schedule.next_at - machine.now_s - 10
    machine.core.wait(LOOK_S + 10)
    assert len(machine.puts()) == 1


def test_clock_that_is_set_back_a_little_repeats_no_tick(machine):
    machine.set("* * * * *")
    machine.core.wait(HOUR_S)
    count, reached_s = len(machine.puts()), machine.now_s
    machine.set_by_s -= HOUR_S / 2
    machine.core.wait(HOUR_S / 2)
    assert len(machine.puts()) == count
    machine.core.wait(HOUR_S / 2)
    assert len(machine.puts()) == count + len(minutes(reached_s, machine.now_s))


def test_clock_that_was_far_ahead_does_not_stop_schedules_for_years(machine):
    machine.set("* * * * *")
    machine.set("0 0 * * *", "daily")
    machine.set_by_s += 10 * 365 * DAY_S
    machine.core.wait(2 * DAY_S)
    machine.store()
    machine.set_by_s -= 10 * 365 * DAY_S
    machine.core.wait(LOOK_S)
    machine.delete_all()
    machine.core.wait(HOUR_S)
    assert len(machine.puts()) == 60
    assert machine.core.engine.schedules["daily"].next_at < machine.now_s + DAY_S


def test_clock_that_was_hours_ahead_leaves_out_no_time_afterwards(machine):
    machine.set("0 3 * * *")
    machine.core.wait(-machine.now_s % DAY_S + HOUR_S)
    machine.set_by_s += 5 * HOUR_S  # to 06:00
    machine.core.wait(LOOK_S)
    machine.set_by_s -= 5 * HOUR_S
    machine.core.wait(2 * HOUR_S)
    assert [at_s % DAY_S // HOUR_S for at_s in machine.puts()] == [3]


def test_start_after_a_clock_that_was_far_ahead_goes_on_from_now(machine):
    machine.set("* * * * *")
    machine.set_by_s += 10 * 365 * DAY_S
    machine.core.wait(DAY_S)
    machine.delete_all()
    machine.store()
    machine.set_by_s -= 10 * 365 * DAY_S
    machine.kill()
    machine.core.wait(HOUR_S)
    assert len(machine.puts()) == 60


@pytest.mark.parametrize(("night_off", "puts"), [(False, 0), (True, 1)])
def test_clock_that_was_wrong_for_a_while_has_missed_nothing(machine, night_off, puts):
    """As that of a machine without a battery, until it has asked what time it is."""
    machine.set("0 3 * * *", once=True)
    machine.core.wait(-machine.now_s % DAY_S + 3.5 * HOUR_S)
    machine.delete_all()
    machine.store()
    if night_off:
        machine.set_by_s += DAY_S
    right_s = 10 * 365 * DAY_S
    machine.set_by_s -= right_s
    machine.kill()
    machine.core.wait(60)
    machine.set_by_s += right_s
    machine.core.wait(2 * LOOK_S)
    assert len(machine.puts()) == puts


def test_start_after_a_clock_set_back_a_little_repeats_no_tick(machine):
    schedule = machine.set("every 1d")
    machine.core.wait(schedule.next_at - machine.now_s + 60)
    machine.store()
    machine.set_by_s -= HOUR_S
    machine.kill()
    machine.core.wait(2 * HOUR_S)
    assert len(machine.puts()) == 1


def test_clock_set_back_and_forth_puts_no_tick_twice(machine):
    rng = random.Random(SEED)
    schedule = machine.set("* * * * *")
    ticks, last_at = [], None
    for _ in range(2000):
        machine.core.wait(1)
        if schedule.last_at != last_at:
            last_at = schedule.last_at
            ticks.append(schedule.next_at - MINUTE_S)
        if rng.random() < 0.01:
            machine.set_by_s += rng.choice([-1, 1]) * rng.uniform(0, min(HOUR_S, BACK_S / 4))
    assert ticks == sorted(set(ticks)), f"MODEL_SEED={SEED}"
