"""How long replies take, from turns and batches in simulated time."""

import pytest

from beanlite.commit.latencies import Latencies
from beanlite.core.measures import Measures

MS = 1_000_000


class Clock:
    now_ns = 100 * MS

    def __call__(self):
        return self.now_ns


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def latencies(clock):
    return Latencies(Measures(), clock)


def found(latencies):
    commands = latencies.measures.commands
    return sum(commands.counts), commands.total / MS


def test_replies_that_need_no_batch_leave_at_the_end_of_the_turn(latencies):
    latencies.turn_ends(100 * MS, 102 * MS, clients=3, replies=0)
    assert found(latencies) == (3, 6)
    assert latencies.measures.turns.total == 2 * MS


def test_replies_that_are_held_leave_when_their_batch_is_durable(latencies, clock):
    latencies.turn_ends(100 * MS, 101 * MS, clients=2, replies=2)
    latencies.turn_ends(110 * MS, 111 * MS, clients=1, replies=3)
    assert found(latencies) == (0, 0)
    clock.now_ns = 120 * MS
    latencies.batch_taken(1, 3)
    latencies.turn_ends(120 * MS, 121 * MS, clients=1, replies=1)  # for the next batch
    clock.now_ns = 130 * MS
    latencies.batch_durable(1)
    assert found(latencies) == (3, 30 + 30 + 20)
    latencies.batch_taken(2, 1)
    clock.now_ns = 140 * MS
    latencies.batch_durable(2)
    assert found(latencies) == (4, 80 + 20)


def test_one_call_may_stand_for_several_batches(latencies, clock):
    for batch in (1, 2):
        latencies.turn_ends(clock.now_ns, clock.now_ns, clients=1, replies=1)
        latencies.batch_taken(batch, 1)
    clock.now_ns += MS
    latencies.batch_durable(2)
    assert found(latencies) == (2, 2)


def test_a_reply_held_in_the_turn_that_is_not_over(latencies, clock):
    latencies.batch_taken(1, 1)
    latencies.turn_ends(100 * MS, 100 * MS, clients=1, replies=0)
    clock.now_ns += MS
    latencies.batch_durable(1)
    assert latencies.measures.commands.total == MS


def test_turn_may_hold_more_replies_than_it_served_commands(latencies):
    latencies.turn_ends(100 * MS, 101 * MS, clients=1, replies=2)  # a put, and the reserve that it has ended
    assert found(latencies) == (0, 0)


def test_for_how_long_the_journal_has_not_stored_anything(latencies, clock):
    assert latencies.committing_ns() == 0
    latencies.batch_taken(1, 0)
    clock.now_ns += MS
    latencies.batch_taken(2, 0)
    clock.now_ns += MS
    assert latencies.committing_ns() == 2 * MS
    latencies.batch_durable(1)
    assert latencies.committing_ns() == MS
