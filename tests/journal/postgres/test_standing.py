"""Whether the row of a lease is as this server has left it, or another server's."""

import pytest

from beanlite.errors import JournalFailed, LeaseLost
from beanlite.journal.postgres.ahead import Reign
from beanlite.journal.postgres.standing import LostToAnother, Standing, _expect

BEFORE, OURS, AFTER = Reign(4, 400.5), Reign(5, 500.5), Reign(6, 600.5)
ANOTHER_S = 450.25
"""When another server has taken the lease on a host that lacks when we did."""
STANDING = Standing(OURS, BEFORE, 100, None)


def row_of(reign, batch):
    """A row of the lease as the database returns it."""
    return reign._asdict() | {"batch": batch, "node": "another", "address": "10.0.0.2:11300"}


def failure_of(row):
    with pytest.raises(JournalFailed) as failed:
        _expect(row, STANDING, "it")
    return type(failed.value), str(failed.value)


@pytest.mark.parametrize("batch", [100, 101])
def test_database_as_this_server_left_it_is_used(batch):
    _expect(row_of(OURS, batch), STANDING, "it")


@pytest.mark.parametrize(
    ("row", "what"),
    [
        (None, "it has nothing, and had batch 100"),
        (row_of(OURS, 99), "it has batch 99, and had batch 100"),
        (row_of(BEFORE, 97), "it has batch 97, and had batch 100"),
        (row_of(BEFORE, 100), "this server's lease is missing"),
        (row_of(Reign(3, ANOTHER_S), 97), "it has batch 97, and had batch 100"),
    ],
    ids=["empty", "lacks a batch", "before this reign", "before anything was stored in it", "long before, it seems"],
)
def test_copy_of_our_own_past_is_merely_behind(row, what):
    lost = f"it has lost commits that it acknowledged: {what}; see what was promoted there"
    assert failure_of(row) == (JournalFailed, lost)


def test_later_reign_with_all_batches_is_a_lost_lease():
    said = "another server has taken over: another at 10.0.0.2:11300; this one stores nothing more"
    assert failure_of(row_of(AFTER, 100)) == (LeaseLost, said)


@pytest.mark.parametrize(
    ("reign", "batch"),
    [
        (AFTER, 99),
        *((Reign(epoch, ANOTHER_S), batch) for epoch in (OURS.epoch, BEFORE.epoch) for batch in (97, 100, 101)),
    ],
)
def test_reign_of_another_server_is_told_whatever_its_epoch_is(reign, batch):
    kind, said = failure_of(row_of(reign, batch))
    assert kind is LostToAnother
    what = f"it has batch {batch}, and had batch 100" if batch < 100 else "this server's lease is missing"
    successor = "another server has taken over: another at 10.0.0.2:11300"
    assert said == f"it has lost commits that it acknowledged: {what}, and {successor}; see what was promoted there"
