"""What clients and operators see of the policy of a tube."""

import pytest

from beanlite.core.tube import FULL, PAUSED, SLOWED
from tests.support.core import put
from tests.support.policies import set_policy

ALL = {
    "max_tries": "5", "then": "move:dead", "retry": "5s..1h", "max_reserved": "2", "rate": "10/s", "max_jobs": "100",
    "fair": "true", "unique": "waiting", "ttl": "1d", "expired": "delete",
}  # fmt: skip


@pytest.fixture
def tube(core):
    """A tube with a ready job."""
    session = core.client()
    core.send(session, b"use mail\r\n")
    put(core, session)
    return core.engine.tubes[b"mail"]


def stats_lines(core, name=b"mail"):
    return core.send(core.client(), b"stats-tube %b\r\n" % name).decode().splitlines()[2:]


def count(core, tube, **counts):
    tally = core.engine.ledger.tally(tube)
    for name, number in counts.items():
        setattr(tally, name, number)


def test_stats_of_a_tube_end_with_its_policy(core, tube):
    before = stats_lines(core)
    set_policy(core, b"mail", **dict(reversed(ALL.items())))
    core.wait(1)  # only then jobs are reserved at this rate
    count(core, tube, dead=3, expired=4, refused=5, duplicates=6)
    assert stats_lines(core) == [
        *before[:-1],
        "policy-max-tries: 5",
        'policy-then: "move:dead"',
        'policy-retry: "5s..1h"',
        "policy-max-reserved: 2",
        'policy-rate: "10/s"',
        "policy-max-jobs: 100",
        "policy-fair: true",
        'policy-unique: "waiting"',
        'policy-ttl: "1d"',
        'policy-expired: "delete"',
        "policy-total-dead: 3",
        "policy-total-expired: 4",
        "policy-total-refused: 5",
        "policy-total-duplicates: 6",
        "",
    ]


def test_stats_of_a_tube_without_rules_stay_the_same(core, tube):
    before = stats_lines(core)
    tube.shut = FULL
    count(core, tube, dead=3)
    set_policy(core, b"*", max_tries="5")
    set_policy(core, b"mail", max_tries="off")
    assert stats_lines(core) == before
    assert any(line.startswith("policy-max-tries") for line in stats_lines(core, b"default"))


def shut_lines(core):
    return [line for line in stats_lines(core) if "shut" in line]


def test_stats_of_a_tube_say_what_keeps_jobs_waiting(core, tube):
    set_policy(core, b"mail", max_reserved="1")
    worker = core.client()
    put(core, worker)
    core.send(worker, b"use mail\r\nput 0 0 10 1\r\nx\r\nwatch mail\r\nignore default\r\nreserve\r\n")
    assert shut_lines(core) == ['policy-shut: "max_reserved"']
    set_policy(core, b"mail", rate="1/h")
    assert shut_lines(core) == ['policy-shut: "max_reserved, rate"']
    core.send(worker, b"pause-tube mail 100\r\n")
    assert shut_lines(core) == ['policy-shut: "max_reserved, rate"']
    core.send(worker, b"delete 1\r\n")
    core.wait(1)
    assert shut_lines(core) == ['policy-shut: "rate"']
    core.send(worker, b"delete 3\r\n")
    assert tube.shut
    assert shut_lines(core) == []


def test_stats_of_a_tube_do_not_call_a_pause_a_policy(core, tube):
    set_policy(core, b"mail", max_reserved="1")
    core.send(core.client(), b"pause-tube mail 100\r\n")
    assert tube.shut
    assert shut_lines(core) == []


def test_operators_see_what_holds_for_a_tube(core, tube, operator):
    set_policy(core, b"m*", max_tries="9", rate="1/s")
    set_policy(core, b"mail", max_tries="5", rate="off")
    set_policy(core, b"default", ttl="off")
    count(core, tube, dead=1, expired=2, refused=3, duplicates=4)
    tube.add_taken(tube.tally)
    tube.shut = FULL | SLOWED | PAUSED
    keys = ("policy", "shut", "dead", "expired", "refused", "duplicates")
    records = {each["name"]: [each[key] for key in keys] for each in operator.ask("list-tube-stats")["tubes"]}
    assert records == {
        "default": [None, [], 0, 0, 0, 0],
        "mail": [{"max_tries": "5"}, ["paused", "max_reserved", "rate"], 2, 4, 6, 8],
    }
    core.send(core.client(), b"delete 1\r\n")
    (record,) = operator.ask("list-tube-stats", names=["mail"])["tubes"]
    assert record["shut"] == ["paused"]


def test_tubes_have_the_policies_of_their_patterns(core, operator):
    producer = core.client()
    for number in range(150):
        core.send(producer, b"use t%d\r\n" % number)
        put(core, producer)
    set_policy(core, b"t*", max_tries="5")
    set_policy(core, b"t1?", max_jobs="7")
    policies = {each["name"]: each["policy"] for each in operator.ask("list-tube-stats", limit=200)["tubes"]}
    assert (policies["t9"], policies["default"]) == ({"max_tries": "5"}, None)
    assert policies["t10"] == policies["t19"] == {"max_tries": "5", "max_jobs": "7"}


def test_operators_see_how_often_a_job_was_tried(core, operator):
    worker = core.client()
    put(core, worker)
    for _ in range(3):
        core.send(worker, b"reserve\r\nrelease 1 0 0\r\n")
    core.engine.jobs[1].own_past().forgiven = 2
    (job,) = operator.ask("list-jobs")["jobs"]
    assert (job["reserves"], job["forgiven"], job["tries"]) == (3, 2, 1)
