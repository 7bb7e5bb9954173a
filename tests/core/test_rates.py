"""How many jobs come into a tube and leave it, in a second of the last minutes."""

import pytest

from beanlite.core.diagnosis import Rates, rates
from tests.support.diagnosed import Diagnosed
from tests.support.operators import Operator
from tests.support.ruled_core import policy


@pytest.fixture
def core():
    return Diagnosed()


@pytest.fixture
def operator(core):
    return Operator(core)


def paces(core, tube=b"mail"):
    """What comes into a tube and leaves it."""
    found = core.engine.tubes[tube]
    pulse = core.engine.ledger.pulses.find(found)
    assert pulse is not None
    return rates(found, pulse, core.now_ns)


@pytest.mark.parametrize("do", [b"bury %d 0", b"release %d 0 3600", b"release %d 9 0"])
def test_jobs_that_leave_in_other_ways_than_deleted_have_come(core, do):
    policy(core, b"mail", max_tries=1 if do == b"release %d 9 0" else "off", then="move:dead")
    worker = core.worker()
    core.live(70, each=lambda: (core.fill(b"mail", 3), core.work(worker, 3, do)))
    assert paces(core) == Rates(3, 0, 3)


@pytest.mark.parametrize(("do", "details"), [("bury", {}), ("delay", {"delay_s": 3600}), ("move", {"to": "other"})])
def test_jobs_that_operators_take_away_have_come(core, operator, do, details):
    core.worker()
    core.live(70, each=lambda: (core.fill(b"mail", 3), operator.change(do, tube="mail", state="ready", **details)))
    assert paces(core) == Rates(3, 0, 3)
    if do == "move":
        assert paces(core, b"other") == Rates(3, 0, 0)


def work_slowly(core, jobs):
    """Have a worker do some jobs, each of which takes 100 s."""
    worker = core.worker()
    core.fill(b"mail", jobs + 9, ttr_s=3600)
    for job_id in range(1, jobs + 1):
        core.send(worker, b"reserve\r\n")
        core.live(100)
        core.send(worker, b"delete %d\r\n" % job_id)


def test_pace_of_long_jobs_begins_when_one_has_ended(core):
    work_slowly(core, 12)
    for _ in range(200):
        core.live(1)
        pace = paces(core)
        assert pace is None or (pace.coming == 0 and pace.deleted <= 0.011)


def test_pace_is_not_known_if_nothing_came_or_left(core):
    core.fill(b"mail", 9)
    core.live(1)
    assert paces(core) is None
    core.live(100)
    assert paces(core) is None
