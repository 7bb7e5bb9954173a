"""Operators' commands for schedules: what they take, what they reply with, and what they change."""

import json

import pytest

from beanlite.core.scheduler import BODY_MAX, SCHEDULES_MAX
from beanlite.protocol.operators import scheduling
from tests.support.operators import all_jobs, told

NIGHTLY = {"name": "nightly", "when": "0 3 * * *", "zone": "Europe/Berlin", "tube": "reports", "body": "report"}
NEXT_AT = 947728800.0  # 2000-01-13 02:00 UTC: a core begins on the day before


def test_schedule_that_is_set_is_listed(operator):
    assert operator.ask("set-schedule", **NIGHTLY, by="ann") == {"next_at": NEXT_AT}
    expected = NIGHTLY | {"pri": 0, "ttr_s": 60, "if_absent": True, "missed": "skip"}
    expected |= {"next_at": NEXT_AT, "last_at": None, "last_job": None, "changed_at": 947684800.0, "changed_by": "ann"}
    expected |= {"error": None}
    assert operator.ask("list-schedules") == {"schedules": [expected], "next": None}
    assert operator.ask("list-schedules", name="nightly") == {"schedules": [expected], "next": None}
    assert operator.ask("list-schedules", name="nightl") == {"schedules": [], "next": None}


def test_each_key_has_its_effect(core, operator):
    operator.ask("set-schedule", name="x", when="every 5m", tube="t", base64="/w==", pri=3, ttr_s=0, missed="once",
                 if_absent=False)  # fmt: skip
    (record,) = operator.ask("list-schedules")["schedules"]
    facts = [record[key] for key in ("base64", "zone", "pri", "ttr_s", "missed", "if_absent", "changed_by")]
    assert facts == ["/w==", "UTC", 3, 1, "once", False, "10.0.0.1:1"]
    core.wait(600)
    assert [(job.tube.name, job.body, job.pri, job.ttr_s) for job in all_jobs(core.engine)] == [
        (b"t", b"\xff", 3, 1)
    ] * 2
    (record,) = operator.ask("list-schedules")["schedules"]
    assert (record["last_at"], record["last_job"]) == (record["next_at"] - 300, 2)


def test_replies_wait_for_the_commit(core, operator):
    session = operator.session

    def waits(word, **what):
        body = json.dumps(what).encode()
        core.receive(session, b"%b %d\r\n%b\r\n" % (word, len(body), body))
        waited = session.waits
        assert told(session.take_replies()) is not None
        core.store()
        return waited

    assert waits(b"set-schedule", **NIGHTLY)
    assert not waits(b"list-schedules")
    assert waits(b"run-schedule", name="nightly")
    assert waits(b"unset-schedule", name="nightly")


def test_changes_are_events_with_the_person(core, operator):
    operator.ask("set-schedule", **NIGHTLY, by="ann")
    operator.ask("unset-schedule", name="nightly", by="bob")
    changes = core.store()
    facts = [(each.what, each.job_id, each.tube.name, each.by.person, each.by_operator) for each in changes.events]
    assert facts == [("schedule", 0, b"reports", "ann", True), ("schedule", 0, b"reports", "bob", True)]
    given, unset = (json.loads(each.body) for each in changes.events)
    assert given == NIGHTLY | {"pri": 0, "ttr_s": 60, "if_absent": True, "missed": "skip"}
    assert unset == {"name": "nightly", "when": None}
    assert changes.schedules == [("nightly", None)]


def test_schedule_is_in_the_batch_of_its_reply(core, operator):
    operator.ask("set-schedule", **NIGHTLY)
    ((name, schedule),) = core.store().schedules
    assert (name, schedule.next_at) == ("nightly", NEXT_AT)
    assert core.store().schedules == []


def test_unset_schedule_puts_nothing_more(core, operator):
    operator.ask("set-schedule", name="x", when="every 1m", tube="t", body="", if_absent=False)
    core.wait(60)
    assert operator.ask("unset-schedule", name="x") == {}
    core.wait(600)
    assert len(core.engine.jobs) == 1
    assert operator.refusal("unset-schedule", name="x") == "there is no schedule x"


def test_schedule_is_run_whatever_its_last_job_is(core, operator):
    core.engine.ledger.start_recording()
    operator.ask("set-schedule", **NIGHTLY)
    assert operator.ask("run-schedule", name="nightly", by="ann") == {"id": 1}
    assert operator.ask("run-schedule", name="nightly") == {"id": 2}
    (record,) = operator.ask("list-schedules")["schedules"]
    assert (record["next_at"], record["last_at"], record["last_job"]) == (NEXT_AT, 947684800.0, 2)
    first, second = core.store().events[1:]
    assert (first.what, first.by.address, first.by.person) == ("put", "schedule nightly", "ann")
    assert second.by.person == ""
    assert operator.refusal("run-schedule", name="x") == "there is no schedule x"


def test_schedule_is_not_set_where_there_is_no_room_for_its_body(core, operator):
    core.engine.admission.refuse_puts()
    assert operator.raw("set-schedule", json.dumps(NIGHTLY).encode()) == b"OUT_OF_MEMORY\r\n"
    assert not core.engine.schedules
    core.engine.admission.accept_puts(len(NIGHTLY["body"]))
    core.engine.admission.drain()
    assert operator.ask("set-schedule", **NIGHTLY) == {"next_at": NEXT_AT}
    core.engine.admission.refuse_puts()
    assert operator.ask("unset-schedule", name="nightly") == {}


def test_run_is_refused_as_a_put_is(core, operator):
    operator.ask("set-schedule", **NIGHTLY)
    core.engine.clients.max_tubes = 1
    assert operator.raw("run-schedule", b'{"name": "nightly"}') == b"OUT_OF_MEMORY\r\n"
    assert core.refused == ["tubes"]
    core.engine.admission.refuse_puts()
    assert operator.raw("run-schedule", b'{"name": "nightly"}') == b"OUT_OF_MEMORY\r\n"
    core.engine.admission.drain()
    assert operator.raw("run-schedule", b'{"name": "nightly"}') == b"DRAINING\r\n"
    assert len(core.engine.jobs) == 0


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"when": "0 0 30 2 *"}, "'0 0 30 2 *' is no schedule of cron: bad day-of-month"),
        ({"when": "every 5", "zone": None}, "'5' is no duration such as 90s, 5m, 2h or 1d"),
        ({"when": "every 5m"}, "every counts from 1970 in UTC, and takes no zone"),
        ({"zone": "Europe/Berlim"}, "'Europe/Berlim' is no zone"),
        ({"zone": "\ud800"}, "zone: "),
        ({"name": "a b"}, "name: the name of a schedule has 1 to 128 printable characters, and no blank"),
        ({"name": "a\u00a0b"}, "name: the name of a schedule"),
        ({"name": ""}, "name: the name of a schedule"),
        ({"name": "n" * 129}, "name: the name of a schedule"),
        ({"tube": "a b"}, "tube: no tube can have this name"),
        ({"base64": "eA=="}, "it is either body or base64"),
        ({"body": None}, "it is either body or base64"),
        ({"body": "x" * (BODY_MAX + 1)}, f"the body of a schedule's job has at most {BODY_MAX - 1} bytes"),
        ({"missed": "twice"}, "missed: "),
        ({"pri": -1}, "pri: "),
        ({"sometimes": 1}, "sometimes: "),
    ],
)
def test_what_can_not_be_is_refused(change, why, core, operator):
    body = json.dumps(NIGHTLY | change).encode()
    reply = operator.raw("set-schedule", body)
    if reply != b"BAD_FORMAT\r\n":  # as of what is no Unicode
        assert told(reply)["error"].startswith(why)
    assert core.engine.schedules == {}
    assert core.store().has_content is False


def test_there_is_a_limit_to_schedules(operator):
    for number in range(SCHEDULES_MAX):
        operator.ask("set-schedule", **NIGHTLY | {"name": f"n{number}"})
    assert operator.refusal("set-schedule", **NIGHTLY) == "there are 1000 schedules already"
    operator.ask("set-schedule", **NIGHTLY | {"name": "n7"})
    operator.ask("unset-schedule", name="n7")
    operator.ask("set-schedule", **NIGHTLY)


def test_list_comes_in_slices_by_name(operator):
    names = [f"n{number}" for number in range(250)]
    for name in reversed(names):
        operator.ask("set-schedule", **NIGHTLY | {"name": name})
    listed = operator.all("list-schedules", "schedules")
    assert [each["name"] for each in listed] == sorted(names)
    assert len(operator.ask("list-schedules")["schedules"]) == scheduling.LISTED_MAX


def test_schedule_without_its_zone_is_listed_with_the_error(core, operator):
    operator.ask("set-schedule", **NIGHTLY)
    core.engine.schedules["nightly"].zone = "Europe/Atlantis"
    core.wait(86_400)
    (record,) = operator.ask("list-schedules")["schedules"]
    assert record["error"].startswith("'Europe/Atlantis' is no zone")
    operator.ask("set-schedule", **NIGHTLY)
    (record,) = operator.ask("list-schedules")["schedules"]
    assert record["error"] is None


def test_slice_has_a_limit_to_bodies(operator):
    for number in range(9):
        operator.ask("set-schedule", **NIGHTLY | {"name": f"n{number}", "body": "x" * 60_000})
    assert len(operator.ask("list-schedules")["schedules"]) == 5
    assert len(operator.all("list-schedules", "schedules")) == 9


def test_other_clients_do_not_know_the_commands(core):
    client = core.client()
    for word in (b"set-schedule", b"unset-schedule", b"list-schedules", b"run-schedule"):
        assert core.send(client, word + b" 2\r\n") == b"UNKNOWN_COMMAND\r\n"
