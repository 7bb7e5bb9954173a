"""The lines of tubes, which are made from the core."""

import pytest

from beanlite.core.tube import FULL, PAUSED, SLOWED
from beanlite.metrics.tubes import POLICY_COUNTS, tube_lines
from tests.support.core import put
from tests.support.health import samples
from tests.support.policies import set_policy


@pytest.fixture
def tubes(core):
    """Three tubes, each with a ready job."""
    session = core.client()
    for name in (b"a", b"b", b"c"):
        core.send(session, b"use %b\r\n" % name)
        put(core, session)
    return core.engine.tubes


def told(core, metric):
    found = samples("".join(tube_lines(core.engine, 1000, core.clock())))
    return {key[1:]: value for key, value in found.items() if key[0] == metric}


def test_what_policies_do_is_counted_for_tubes_that_have_one(core, tubes):
    set_policy(core, b"b", max_tries="5")
    for number, name in enumerate(POLICY_COUNTS):
        setattr(core.engine.ledger.tally(tubes[b"c"]), name, number)  # its policy has been unset since
    tubes[b"c"].add_taken(tubes[b"c"].tally)
    for number, name in enumerate(POLICY_COUNTS):
        assert told(core, f"beanlite_tube_{name}_total") == {("b",): 0, ("c",): 2 * number}


def test_a_tube_is_shut_only_while_jobs_wait(core, tubes):
    assert told(core, "beanlite_tube_shut") == {}
    tubes[b"a"].shut = PAUSED
    tubes[b"b"].shut = FULL | SLOWED
    tubes[b"c"].shut = FULL
    core.send(core.client(), b"delete 3\r\n")
    assert told(core, "beanlite_tube_shut") == {("a", "paused"): 1, ("b", "max_reserved"): 1, ("b", "rate"): 1}
