"""Whether the next sync is better done in the background or inline, learned only from how long syncs take."""

import random
from collections.abc import Iterator
from itertools import count, cycle

import pytest

from beanlite.journal.sqlite.served.sync import SyncChoice


class Machine:
    """Syncs that take the times given by the test, done in the way that is chosen."""

    def __init__(self, background_s, inline_s=0.0002):
        self.now_s = 100.0
        self.background_s = background_s
        self.inline_s = inline_s
        self.both_s: Iterator[float] = iter(())
        """How long the next syncs take, whichever way is chosen."""
        self.latest_is_inline = False
        self.choice = SyncChoice()

    def run(self, seconds):
        """Sync repeatedly for this time; return the share of the time that was spent inline."""
        spent_s = {False: 0.0, True: 0.0}
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            inline = self.latest_is_inline = self.choice.next_is_inline(self.now_s)
            took_s = next(self.both_s, self.inline_s if inline else self.background_s)
            self.now_s += took_s
            spent_s[inline] += took_s
            self.choice.learn(took_s, self.now_s, inline=inline)
        return spent_s[True] / sum(spent_s.values())


def test_quick_syncs_stay_in_the_background():
    machine = Machine(background_s=0.0015, inline_s=0.0001)
    assert machine.run(10) == 0


def test_syncs_are_inline_only_while_the_core_is_busy():
    machine = Machine(background_s=0.0035)
    assert machine.run(0.1) > 0.3
    assert machine.run(60) > 0.95
    machine.background_s = 0.0004
    machine.run(2.1)
    assert machine.run(60) == 0
    machine.background_s = 0.0035
    assert machine.run(0.2) > 0.5


@pytest.mark.parametrize(("sync_s", "most"), [(0.01, 0.03), (0.019, 0.05), (0.05, 0.001)])
def test_a_slow_disk_is_hardly_ever_waited_for_inline(sync_s, most):
    assert Machine(sync_s, sync_s).run(60) <= most


@pytest.mark.parametrize("slow_s", [0.015, 0.3])
@pytest.mark.parametrize("every", [10, 20, 100])
def test_a_disk_that_is_slow_now_and_then_is_left_to_the_kernel(slow_s, every):
    machine = Machine(background_s=0)
    machine.both_s = cycle([slow_s, *[0.0003] * (every - 1)])
    assert machine.run(60) == 0


LONGER_S = 0.0002
"""How much longer a background sync takes, even on a calm core."""


@pytest.mark.parametrize("sync_s", [0.0019, 0.0025, 0.005, 0.01, 0.019])
def test_calm_core_is_noticed_however_slow_the_disk_has_become(sync_s):
    machine = Machine(background_s=0.0035)
    machine.run(10)
    assert machine.latest_is_inline
    machine.background_s, machine.inline_s = sync_s + LONGER_S, sync_s
    machine.run(5)
    assert machine.run(60) < 0.04


@pytest.mark.parametrize("sync_s", [0.0025, 0.005, 0.01])
def test_one_stall_at_the_start_is_not_taken_for_a_busy_core(sync_s):
    machine = Machine(sync_s + LONGER_S, sync_s)
    machine.both_s = iter([sync_s, sync_s, 0.5])
    machine.run(5)
    assert machine.run(60) < 0.03


@pytest.mark.parametrize("usual_s", [0.0022, 0.003, 0.005])
def test_slow_disk_that_stalls_now_and_then_is_left_to_the_kernel(usual_s):
    machine = Machine(usual_s + LONGER_S, usual_s)
    chance = random.Random(1)
    machine.both_s = (0.1 if chance.random() < 0.1 else usual_s for _ in count())
    assert machine.run(600) < 0.04


def test_a_slow_disk_is_soon_forgotten_when_the_core_has_become_busy():
    machine = Machine(background_s=0.05, inline_s=0.05)
    machine.run(3600)
    machine.background_s, machine.inline_s = 0.0035, 0.0002
    machine.run(3)
    assert machine.run(10) > 0.95


def test_one_inline_sync_that_held_everybody_up_is_the_last_for_now():
    machine = Machine(background_s=0.0035)
    machine.run(10)
    machine.both_s = iter([0.1])
    machine.run(0.1)
    assert machine.latest_is_inline
    machine.run(0.01)
    assert not machine.latest_is_inline


def test_a_disk_that_becomes_slow_is_left_to_the_kernel_at_once():
    machine = Machine(background_s=0.0035)
    machine.run(10)
    assert machine.latest_is_inline
    machine.background_s = machine.inline_s = 0.1
    assert machine.run(60) < 0.01


def test_one_slow_sync_changes_nothing_for_long():
    machine = Machine(background_s=0.5)
    machine.run(0.1)
    machine.background_s = 0.0004
    machine.run(0.5)
    assert machine.run(10) == 0
