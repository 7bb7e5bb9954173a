"""What keeps schedules from putting jobs, as the commands and the page tell it, on a machine whose clock is set."""

from types import SimpleNamespace
from typing import Any

import pytest

from beanlite.console import timetable
from tests.support.operators import Operator
from tests.support.ruled_core import policy
from tests.support.scheduled import DAY_S, HOUR_S, MINUTE_S, Machine

NOTHING = (None, None)
REFUSED = "puts, which the tube or the server refuses"


@pytest.fixture
def machine(monkeypatch):
    machine = Machine()
    monkeypatch.setattr(timetable, "time", SimpleNamespace(time=lambda: machine.now_s))
    return machine


class Asked:
    """An operator's connection to the core, and the words that it has sent."""

    def __init__(self, core):
        self._operator = Operator(core)
        self.words = []

    def list_schedules(self, request):
        return self._ask("list-schedules", request)

    def list_jobs(self, request):
        return self._ask("list-jobs", request)

    def _ask(self, word, request):
        self.words.append(word)
        return self._operator.ask(word, **request)


def rows(asked: Any):
    return timetable.of_one(asked)


def told(machine):
    """What the only schedule waits for, and when it has left out a time."""
    (row,) = rows(Asked(machine.core))
    return row["waits_for"], row["left_out_at"]


def test_buried_job_is_waited_for_until_it_is_gone(machine):
    schedule = machine.set("every 1h", if_absent=True)
    assert told(machine) == NOTHING
    machine.core.wait(HOUR_S)
    assert told(machine) == ("job 1 (ready)", None)
    Operator(machine.core).change("bury", ids=[1])
    first_at = schedule.next_at
    machine.core.wait(3 * HOUR_S)
    assert told(machine) == ("job 1 (buried)", first_at)
    machine.delete_all()
    assert told(machine) == (None, first_at)
    machine.core.wait(HOUR_S)
    assert told(machine) == ("job 2 (ready)", None)


def test_job_that_may_be_overlapped_is_not_waited_for(machine):
    machine.set("every 1h")
    machine.core.wait(3 * HOUR_S)
    assert told(machine) == NOTHING


@pytest.mark.parametrize("why", ["max_jobs", "drain"])
def test_refused_puts_are_told_while_they_are_tried(machine, why):
    machine.set("every 1h")
    machine.core.wait(HOUR_S)
    if why == "drain":
        machine.core.engine.admission.drain()
    else:
        policy(machine.core, b"reports", max_jobs=1)
    due_at = machine.core.engine.schedules["nightly"].next_at
    machine.core.wait(due_at - machine.now_s + 19)
    assert told(machine) == NOTHING
    machine.core.wait(2)
    assert told(machine) == (REFUSED, None)
    machine.core.wait(MINUTE_S)
    assert told(machine) == (None, due_at)


def test_unknown_zone_is_no_refused_put(machine):
    machine.set("every 1h")
    machine.core.engine.schedules["nightly"].zone = "Europe/Atlantis"
    machine.core.wait(2 * HOUR_S)
    (row,) = rows(Asked(machine.core))
    assert row["error"] is not None
    assert (row["waits_for"], row["left_out_at"]) == NOTHING


def test_times_without_a_server_are_told_until_the_next_job(machine):
    schedule = machine.set("0 3 * * *")
    machine.core.wait(DAY_S)
    first_at = schedule.next_at
    machine.store()
    machine.kill(2.5 * DAY_S)
    assert told(machine) == (None, first_at)
    machine.core.wait(DAY_S)
    assert told(machine) == NOTHING


@pytest.mark.parametrize(
    ("when", "up_s"),
    [
        ("* * * * *", HOUR_S / 7),
        ("every 7s", 61.3),
        ("every 1s", 7.3),
        ("7 */2 * * *", HOUR_S / 7),
        ("30 2 * * *", HOUR_S / 7),
    ],
)
def test_nothing_is_left_out_by_short_restarts(machine, when, up_s):
    machine.set(when)
    for down_s in (0, 0.4, 20, 59, 3) * 20:
        machine.core.wait(up_s)
        assert told(machine) == NOTHING
        machine.store()
        machine.kill(down_s)
        assert told(machine) == NOTHING


def test_many_schedules_take_few_requests(machine):
    for number in range(450):
        machine.set("every 1h", f"s{number}", if_absent=True)
    machine.core.wait(2 * HOUR_S)
    asked = Asked(machine.core)
    assert {row["waits_for"] for row in rows(asked)} == {f"job {number} (ready)" for number in range(1, 451)}
    assert asked.words.count("list-jobs") == 3
