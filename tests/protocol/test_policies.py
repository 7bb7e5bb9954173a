"""Operators set and list policies."""

import pytest

from beanlite.core.events import POLICY
from beanlite.core.policies import ROWS_MAX


def listed(operator, **what):
    """Return what list-policies has, a line for each."""
    return [
        f"{row['pattern']} {row['key']}={row['value']}" for row in operator.ask("list-policies", **what)["policies"]
    ]


def events(core):
    """Return the changes of policies that have been recorded since the last call, with who made them."""
    found = [event for event in core.engine.ledger.events if event.what is POLICY]
    core.engine.ledger.events.clear()
    assert all(event.job_id == 0 and event.by_operator for event in found)
    return [(event.tube.name.decode(), event.body.decode(), event.by.person or event.by.address) for event in found]


def test_policies_are_set_listed_and_unset(core, operator):
    reply = operator.ask("set-policy", pattern="mail.*", set={"max_tries": 5, "retry": "5s..1h", "fair": True})
    assert reply == {
        "changes": [
            {"pattern": "mail.*", "key": "max_tries", "value": "5", "before": None},
            {"pattern": "mail.*", "key": "retry", "value": "5s..1h", "before": None},
            {"pattern": "mail.*", "key": "fair", "value": "true", "before": None},
        ],
        "warnings": [],
    }
    assert listed(operator) == ["mail.* fair=true", "mail.* max_tries=5", "mail.* retry=5s..1h"]
    assert core.engine.policies.rules_of(b"mail.de").max_tries == 5
    operator.ask("set-policy", pattern="mail.*", set={"max_tries": "6"}, unset=["fair", "ttl"])
    assert listed(operator) == ["mail.* max_tries=6", "mail.* retry=5s..1h"]
    operator.ask("set-policy", pattern="mail.*", unset="all")
    assert listed(operator) == []
    assert core.engine.policies.rules_of(b"mail.de") is None


def test_row_names_the_time_and_the_person_or_the_address(core, operator):
    operator.ask("set-policy", pattern="a", set={"fair": True}, by="ann")
    operator.ask("set-policy", pattern="b", set={"fair": True})
    rows = operator.ask("list-policies")["policies"]
    assert [row["changed_by"] for row in rows] == ["ann", operator.session.client.peer.address]
    assert {row["changed_at"] for row in rows} == {round(core.service.utc_s(core.now_ns), 6)}
    assert events(core) == [("a", "fair=true", "ann"), ("b", "fair=true", operator.session.client.peer.address)]


def test_policies_of_a_tube_come_from_the_most_specific_pattern(operator):
    operator.ask("set-policy", pattern="*", set={"retry": "5s", "max_tries": 9})
    operator.ask("set-policy", pattern="mail", set={"max_tries": "off"})
    assert listed(operator, tube="mail") == ["mail max_tries=off", "* retry=5s"]
    assert listed(operator, tube="other") == ["* max_tries=9", "* retry=5s"]


def test_reply_waits_until_policies_are_stored(core, operator):
    body = b'{"pattern": "a", "set": {"fair": true}}'
    operator.session.receive(b"set-policy %d\r\n%b\r\n" % (len(body), body), core.now_ns)
    operator.session.resume(core.now_ns)
    assert operator.session.waits
    assert core.engine.take_changes(deferred=False).policies[0][0] == (b"a", "fair")


def test_value_that_is_there_already_is_no_change(core, operator):
    operator.ask("set-policy", pattern="a", set={"fair": True, "ttl": "1d"}, by="ann")
    core.wait(10)
    before = operator.ask("list-policies")["policies"]
    events(core)
    reply = operator.ask("set-policy", pattern="a", set={"fair": True, "ttl": "2d"}, unset=["rate"], by="bob")
    assert [(each["key"], each["before"]) for each in reply["changes"]] == [("ttl", "1d")]
    after = operator.ask("list-policies")["policies"]
    assert after[0] == before[0]
    assert after[1]["changed_by"] == "bob"
    assert after[1]["changed_at"] == before[1]["changed_at"] + 10
    assert events(core) == [("a", "ttl=2d", "bob")]


def test_several_patterns_change_at_once(core, operator):
    operator.ask("set-policy", pattern="old", set={"ttl": "1d", "fair": True})
    operator.ask("set-policy", pattern="a", set={"ttl": "1d", "fair": True})
    events(core)
    wanted = [{"pattern": "a", "set": {"ttl": "2d"}}, {"pattern": "b*", "set": {"rate": "5/s"}, "unset": ["ttl"]}]
    dry = operator.ask("set-policy", policies=wanted, prune=True, dry_run=True)
    assert listed(operator) == ["a fair=true", "a ttl=1d", "old fair=true", "old ttl=1d"]
    assert events(core) == []
    assert operator.ask("set-policy", policies=wanted, prune=True, by="ann") == dry
    assert listed(operator) == ["a ttl=2d", "b* rate=5/s"]
    assert sorted(events(core)) == [
        ("a", "ttl=2d unset fair", "ann"),
        ("b*", "rate=5/s", "ann"),
        ("old", "unset ttl unset fair", "ann"),
    ]
    operator.ask("set-policy", policies=wanted[:1])
    assert listed(operator) == ["a ttl=2d", "b* rate=5/s"]
    operator.ask("set-policy", policies=[{"pattern": "a", "set": {"fair": True}, "unset": "all"}])
    assert listed(operator) == ["a fair=true", "b* rate=5/s"]
    operator.ask("set-policy", policies=[], prune=True)
    assert listed(operator) == []


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ({}, "it is either pattern or policies"),
        ({"pattern": "a", "policies": []}, "it is either pattern or policies"),
        ({"policies": [], "set": {}}, "set and unset need a pattern"),
        ({"pattern": "a", "prune": True}, "prune needs policies"),
        ({"pattern": "a b", "set": {}}, "pattern: it is neither the name of a tube nor a pattern"),
        ({"pattern": "a", "set": {"max_tries": 0}}, "max_tries: '0' is no whole number from 1 to 1000000"),
        (
            {"pattern": "a", "set": {"max_tries": 1.5}},
            'set.max_tries: a value is text such as "off", a whole number or true',
        ),
        (
            {"pattern": "a", "set": {"max_tries": None}},
            'set.max_tries: a value is text such as "off", a whole number or true',
        ),
        ({"pattern": "a", "set": {"then": "x" * 301}}, "set.then: it is longer than 300 characters"),
        ({"pattern": "a", "set": {"tries": 5}}, "'tries' is no key of a policy: max_tries, then, "),
        ({"pattern": "a", "unset": ["tries"]}, "'tries' is no key of a policy: "),
        ({"pattern": "a", "unset": "max_tries"}, "unset"),
        ({"pattern": "a", "set": {"ttl": "1d"}, "unset": ["ttl"]}, "ttl is both set and unset for a"),
        ({"pattern": "a", "set": {"ttl": "1d"}, "by": ""}, "by: "),
        ({"policies": [{"pattern": "a", "set": {"ttl": "1d"}}, {"pattern": "b", "set": {"ttl": "x"}}]}, "ttl: 'x' is"),
        ({"policies": [{"pattern": "a", "set": {"ttl": "1d"}}] * 2}, "a stands there twice with ttl"),
        ({"policies": [{"pattern": "a"}] * (ROWS_MAX + 1)}, "policies: there are more than 1000"),
        ({"policies": [{"pattern": f"{n}*", "set": {"ttl": "1d"}} for n in range(101)]}, "there would be 101 patterns"),
        ({"policies": [{"pattern": "a", "extra": 1}]}, "policies.0.extra: unknown key"),
    ],
)
def test_wrong_request_is_refused_and_changes_nothing(operator, what, why):
    operator.ask("set-policy", pattern="old", set={"fair": True})
    refusal = operator.refusal("set-policy", **what)
    assert refusal.startswith(why)
    assert listed(operator) == ["old fair=true"]


def test_file_of_policies_refuses_to_have_them_set(core, operator):
    core.service.policies_file = "/etc/beanlite/policies.toml"
    assert operator.ask("list-policies") == {"policies": [], "file": "/etc/beanlite/policies.toml"}
    refusal = operator.refusal("set-policy", pattern="a", set={"fair": True})
    assert refusal.startswith("policies come from /etc/beanlite/policies.toml")
    changes = operator.ask("set-policy", policies=[{"pattern": "a", "set": {"fair": True}}], prune=True, dry_run=True)
    assert changes["changes"] == [{"pattern": "a", "key": "fair", "value": "true", "before": None}]
    assert listed(operator) == []


def test_probable_mistakes_are_warned_of(operator):
    reply = operator.ask("set-policy", pattern="*", set={"max_tries": 3, "then": "move:dead"})
    assert reply["warnings"] == [
        "* has max_tries without retry: jobs come back at once",
        "* matches dead itself: jobs in dead that die there are buried",
    ]
    reply = operator.ask("set-policy", pattern="*", unset=["max_tries"], dry_run=True)
    assert reply["warnings"][0] == "* has then without max_tries: it has no effect"


def test_server_hears_of_each_request_that_changes_policies(core, operator):
    heard = []
    core.service.policies_changed = lambda by, changes: heard.append((by, changes))
    for _ in range(2):
        operator.ask("set-policy", pattern="a", set={"fair": True, "ttl": "1d"}, by="ann")
    operator.ask("set-policy", pattern="a", unset="all", by="ann", dry_run=True)
    assert heard == [("ann", {b"a": "fair=true ttl=1d"})]
