"""Staying awake for the end of a short sync, with a loop and a clock that the test advances."""

import pytest

from beanlite.journal.sqlite.served.awake import AWAKE_S, StayAwake

SHORT_S = AWAKE_S / 2
LONG_S = AWAKE_S * 2


class Machine:
    """A loop that turns on request, a clock, and a count of how often the sync was polled."""

    def __init__(self):
        self.now_s = 100.0
        self.polls = 0
        self.due = []
        self.awake = StayAwake(self, self._poll, lambda: self.now_s)  # type: ignore[arg-type]  # all it needs of a loop

    def call_soon(self, callback):
        self.due.append(callback)

    def _poll(self):
        self.polls += 1

    def turn(self):
        """Turn the loop once; return how often it polled."""
        before, due, self.due = self.polls, self.due, []
        for callback in due:
            callback()
        return self.polls - before

    def begin(self):
        self.awake.sync_begins(self.now_s)
        self.awake.sync_waits()

    def sync(self, seconds):
        self.begin()
        self.now_s += seconds
        self.awake.sync_ended(seconds)
        self.turn()
        self.turn()


@pytest.fixture
def machine():
    return Machine()


def test_loop_polls_in_each_turn_until_a_short_sync_has_ended(machine):
    machine.begin()
    assert [machine.turn() for _ in range(3)] == [1, 1, 1]
    machine.awake.sync_ended(SHORT_S)
    assert machine.turn() == 0
    assert machine.due == []


def test_loop_goes_to_sleep_when_the_sync_turns_out_to_be_long(machine):
    machine.begin()
    machine.now_s += SHORT_S
    assert machine.turn() == 1
    machine.now_s += LONG_S
    assert machine.turn() == 0
    assert machine.due == []


def test_loop_sleeps_through_a_sync_only_after_a_long_one(machine):
    machine.sync(LONG_S)
    machine.begin()
    assert machine.due == []
    machine.now_s += SHORT_S
    machine.awake.sync_ended(SHORT_S)
    machine.begin()
    assert machine.turn() == 1


def test_a_sync_that_ends_at_once_keeps_nobody_awake(machine):
    machine.awake.sync_begins(machine.now_s)
    machine.awake.sync_ended(SHORT_S)
    assert machine.due == []


def test_syncs_that_follow_each_other_closely_share_one_turning(machine):
    machine.begin()
    machine.awake.sync_ended(SHORT_S)
    machine.begin()
    assert len(machine.due) == 1
    assert machine.turn() == 1
