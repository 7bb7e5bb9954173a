"""Operators' commands: who may give them, how their requests are received, and which are refused."""

import json
import os
import random
import re
from contextlib import suppress
from typing import Any

import pytest

from beanlite.core.operator import CONCERNS
from beanlite.protocol.blocked import CLOSING
from beanlite.protocol.operators.commands import REQUEST_MAX, RequestCommand, new_operator_commands
from beanlite.protocol.operators.requests import Refused, read
from tests.support.core import Core, put
from tests.support.operators import Operator, recount, told

COMMANDS = [command.word for command in new_operator_commands()]
MODELS = [command.model for command in new_operator_commands() if isinstance(command, RequestCommand)]
ODD_VALUES: list[Any] = [
    *(None, True, -1, 0, 1 << 70, 0.5, 1e300, float("nan"), float("inf"), "", "a", "a=1", "*" * 300, "\0"),
    *([], [None], [[]], [1], ["a"] * 2000, {}, {"": None}, [{}], {"a": {"a": None}}),
]
WHOLE = rb"(OK|REFUSED) \d+|BAD_FORMAT|NOT_FOUND|UNAUTHORIZED"
NO_BODY = {b"act-for", b"show-job"}


@pytest.mark.parametrize("word", COMMANDS)
def test_to_others_they_are_what_they_are_to_beanstalkd(core, word):
    assert core.send(core.client(), word + b" 0\r\n") == b"UNKNOWN_COMMAND\r\n"


def test_each_stands_once_in_the_table_and_none_in_the_statistics(core, operator):
    assert len(set(COMMANDS)) == len(COMMANDS)
    assert not set(COMMANDS) & {command.word for command in core.service.commands}
    before = core.send(operator.session, b"stats\r\n")
    operator.ask("list-jobs")
    assert core.service.words.operators[b"list-jobs"].count == 1
    assert core.send(operator.session, b"stats\r\n").count(b"cmd-") == before.count(b"cmd-")


def test_a_client_can_find_out(core, operator):
    assert core.send(operator.session, b"show-job 0\r\n") == b"NOT_FOUND\r\n"


@pytest.mark.parametrize(
    "line", [b"list-jobs", b"list-jobs ", b"list-jobs x", b"list-jobs -1", b"list-jobs 2 2", b"show-job"]
)
def test_a_malformed_line(core, operator, line):
    assert core.send(operator.session, line + b"\r\nlist-tube-used\r\n") == b"BAD_FORMAT\r\nUSING default\r\n"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"1", b'"x"', b"{}x", b'{"text": "\xff"}', b"[" * 5000])
def test_a_body_that_is_no_object(operator, body):
    assert operator.raw("list-jobs", body) == b"BAD_FORMAT\r\n"


def test_a_body_that_does_not_end_well(core, operator):
    assert (
        core.send(operator.session, b"list-jobs 2\r\n{}xylist-tube-used\r\n") == b"EXPECTED_CRLF\r\nUSING default\r\n"
    )


def test_a_body_that_is_too_large_is_skipped(core, operator):
    size = REQUEST_MAX + 1
    reply = core.send(operator.session, b"list-jobs %d\r\n%b\r\n" % (size, b"x" * size) + b"list-tube-used\r\n")
    refused, rest = reply[:-15], reply[-15:]
    assert rest == b"USING default\r\n"
    assert told(refused) == {"error": "the body of a request has at most 1048576 bytes"}


@pytest.mark.parametrize("cut", range(1, 40))
def test_a_request_cut_anywhere(cut):
    core = Core()
    session = core.client(operator=True)
    put(core, session, b"body")
    data = b'list-jobs 12\r\n{"limit": 1}\r\nlist-tube-used\r\n'
    reply = core.send(session, data[:cut]) + core.send(session, data[cut:])
    assert reply.startswith(b"OK 2")
    assert reply.endswith(b"}\r\nUSING default\r\n")


def test_a_request_of_full_size_comes_in_pieces(core, operator):
    body = json.dumps({"text": "x" * (REQUEST_MAX - 12)}).encode()
    assert len(body) == REQUEST_MAX
    data = b"list-jobs %d\r\n%b\r\nlist-tube-used\r\n" % (len(body), body)
    for at in range(0, len(data), 100_000):
        reply = core.send(operator.session, data[at : at + 100_000])
    assert reply.startswith(b'OK 46\r\n{"jobs":[]')
    assert reply.endswith(b"USING default\r\n")


TOO_MANY = "there are too many keys and values"
MANY = dict.fromkeys(map(str, range(60_000)), "x")


@pytest.mark.parametrize(
    ("word", "what", "why"),
    [
        ("list-jobs", MANY, TOO_MANY),
        ("put-jobs", {"jobs": [{}] * 250_000}, TOO_MANY),
        ("set-policy", {"pattern": "a", "set": MANY}, TOO_MANY),
        ("set-policy", {"pattern": "a", "set": dict(list(MANY.items())[:101])}, "set: there are more than 100"),
    ],
)
def test_request_of_more_parts_than_any_has_is_not_looked_at(operator, word, what, why):
    assert operator.refusal(word, **what) == why


def test_commas_and_brackets_in_texts_are_no_parts_of_a_request(core, operator):
    body = '[{",\\' * 100
    reply = operator.ask("put-jobs", jobs=[{"body": body}] * 500)
    assert reply["ids"] == list(range(1, 501))
    assert core.engine.jobs[500].body == body.encode()


def test_nothing_is_done_after_quit(core, operator):
    put(core, operator.session)
    body = b'{"do": "delete", "ids": [1]}'
    core.send(operator.session, b"quit\r\nchange-jobs %d\r\n%b\r\n" % (len(body), body))
    assert operator.session.blocked is CLOSING
    assert len(core.engine.jobs) == 1


@pytest.mark.parametrize(
    ("word", "what", "why"),
    [
        ("list-jobs", {"tubes": "x"}, "tubes: unknown key"),
        ("list-jobs", dict.fromkeys(map(str, range(2000))), "2000 keys or values are wrong"),
        ("list-jobs", {"tube": "-x"}, "tube: no tube can have this name"),
        ("list-jobs", {"tube": 1}, "tube: 1 is not text"),
        ("list-jobs", {"state": "gone"}, "state: 'gone' is not one of 'ready', 'delayed', 'reserved' or 'buried'"),
        ("list-jobs", {"ids": [-1]}, "ids.0: -1 is less than 0"),
        ("list-jobs", {"ids": list(range(1001))}, "ids: there are more than 1000"),
        ("list-jobs", {"ids": 1}, "ids: 1 is not a list"),
        ("list-jobs", {"ids": [1.5]}, "ids.0: 1.5 is not a whole number"),
        ("list-jobs", {"limit": 0}, "limit: 0 is less than 1"),
        ("list-jobs", {"limit": 201}, "limit: 201 is more than 200"),
        ("list-jobs", {"limit": True}, "limit: true is not a whole number"),
        ("list-jobs", {"preview": 5000}, "preview: 5000 is more than 4096"),
        ("list-jobs", {"older_s": -1}, "older_s: -1 is less than 0"),
        ("list-jobs", {"older_s": "1"}, "older_s: '1' is not a number"),
        ("list-jobs", {"pri_min": 1 << 32}, "pri_min: 4294967296 is more than 4294967295"),
        ("list-jobs", {"where": "a"}, "where: 'a' is not a path and a value, such as customer=4711"),
        ("list-jobs", {"where": ["a=1", "a"]}, "where: 'a' is not a path and a value, such as customer=4711"),
        ("list-jobs", {"where": ["a=1"] * 9}, "where: there are 1 to 8, not 9"),
        ("list-jobs", {"tube_like": "a b*"}, "tube_like: no tube can have this name"),
        ("list-jobs", {"why": "luck"}, "why: 'luck' is not one of 'client', "),
        ("list-jobs", {"paths": ["a", "b="]}, "paths.1: 'b=' is not a path, such as customer"),
        ("list-jobs", {"paths": ["a"] * 9}, "paths: there are more than 8"),
        ("group-jobs", {}, "it is either fact or path"),
        ("group-jobs", {"fact": "why", "path": "a"}, "it is either fact or path"),
        ("group-jobs", {"fact": "age"}, "fact: 'age' is not one of 'tube', "),
        ("list-jobs", {"holder_host": ""}, "holder_host: "),
        ("list-jobs", {"since_at": 1e12}, "since_at: 1000000000000.0 is more than 253402300799"),
        ("list-jobs", {"after": "x"}, "after: 'x' is not allowed"),
        ("list-jobs", {"after": "1-1\n"}, "after: "),
        ("list-jobs", {"order": "queue"}, "the order of a queue needs a tube and a state, which is not reserved"),
        ("list-jobs", {"order": "queue", "tube": "a", "state": "reserved"}, "the order of a queue needs"),
        ("list-tube-stats", {"order": "age"}, "order: 'age' is not one of 'name', "),
        ("list-tube-stats", {"names": ["a"], "like": "a"}, "it is either names or like"),
        ("list-tube-stats", {"only": ["age"]}, "only.0: "),
        ("list-tube-stats", {"only": []}, "only: there are fewer than 1"),
        ("list-tube-stats", {"only": ["name", "ready", "buried"]}, "only: there are more than 2"),
        ("list-tube-stats", {"only": ["name"], "order": "name"}, "only takes no order and no limit"),
        ("list-tube-stats", {"only": ["name"], "limit": 1}, "only takes no order and no limit"),
        ("list-tube-stats", {"due_s": 5, "order": "name"}, "due_s takes no order and no only"),
        ("list-tube-stats", {"due_s": 5, "only": ["name"]}, "due_s takes no order and no only"),
        ("diagnose", {"tube": "a", "like": "a"}, "it is either tube or like"),
        ("list-clients", {"limit": "1"}, "limit: '1' is not a whole number"),
        ("change-jobs", {"ids": [1]}, "do: this key is required"),
        ("change-jobs", {"do": "eat", "ids": [1]}, "do: "),
        ("change-jobs", {"do": "kick"}, "no jobs are named"),
        ("change-jobs", {"do": "kick", "tube": None}, "no jobs are named"),
        ("change-jobs", {"do": "move", "ids": [1]}, "move needs to"),
        ("change-jobs", {"do": "copy", "ids": [1]}, "copy needs to"),
        ("change-jobs", {"do": "kick", "ids": [1], "to": "x"}, "kick takes no to"),
        ("change-jobs", {"do": "reprioritise", "ids": [1]}, "reprioritise needs pri"),
        ("change-jobs", {"do": "kick", "ids": [1], "pri": 0}, "kick takes no pri"),
        ("change-jobs", {"do": "delay", "ids": [1]}, "delay needs delay_s"),
        ("change-jobs", {"do": "delay", "ids": [1], "delay_s": 0}, "delay needs delay_s"),
        ("change-jobs", {"do": "bury", "ids": [1], "delay_s": 1}, "bury takes no delay_s"),
        ("change-jobs", {"do": "kick", "ids": [1], "limit": 101}, "limit: "),
        ("set-pause", {"pause_s": 5}, "tube: this key is required"),
        ("set-pause", {"tube": "a"}, "pause_s: this key is required"),
        ("put-jobs", {}, "jobs: this key is required"),
        ("put-jobs", {"jobs": [{}]}, "jobs.0: it is either body or base64"),
        ("put-jobs", {"jobs": [{"body": "x", "base64": "eA=="}]}, "jobs.0: it is either body or base64"),
        ("put-jobs", {"jobs": [{"base64": "!!!!"}]}, "jobs.0.base64: "),
        ("put-jobs", {"jobs": [1]}, "jobs.0: 1 is not an object"),
        ("put-jobs", {"jobs": [{"body": "x", "pri": -1}]}, "jobs.0.pri: "),
        ("put-jobs", {"jobs": [{"body": "x"}] * 501}, "jobs: "),
        ("watch-events", {"what": "put"}, "what: "),
    ],
)
def test_what_is_refused_and_why(core, operator, word, what, why):
    put(core, operator.session)
    refusal = operator.refusal(word, **what)
    assert refusal.startswith(why)
    assert "\n" not in refusal
    assert len(core.engine.jobs) == 1


LONG = "k" * 1_000_000
TWICE = {"pattern": "a", "unset": [LONG[:400_000]]}


@pytest.mark.parametrize(
    ("word", "what", "end"),
    [
        ("list-jobs", {LONG: 1}, ": unknown key"),
        ("list-rights", {"\x00" * 100_000: 1}, ": unknown key"),
        ("set-policy", {"pattern": "a", "set": {LONG: []}}, "a whole number or true"),
        ("set-policy", {"policies": [TWICE, TWICE]}, "kkkk"),
        ("set-policy", {"pattern": "a", "set": {LONG[:400_000]: "1"}, "unset": [LONG[:400_000]]}, " for a"),
        ("set-policy", {"pattern": "a", "set": {LONG: "1"}}, ", expired"),
    ],
)
def test_a_refusal_repeats_no_long_text_of_the_client(operator, word, what, end):
    why = operator.refusal(word, **what)
    assert len(why) < 1000
    assert "…" in why
    assert why.endswith(end)


def test_refusals_that_wait_to_be_sent_are_counted(core, operator):
    body = json.dumps({"ä" * 1000: 1}).encode()
    core.receive(operator.session, b"list-rights %d\r\n%b\r\n" % (len(body), body) * 10)
    (reply,) = set(operator.session.replies)
    assert operator.session.unsent_bytes > 10 * len(reply) > 0


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_any_value_of_any_key_is_taken_or_refused(model):
    for key in model.model_fields:
        for value in ODD_VALUES:
            with suppress(Refused):
                read(model, json.dumps({key: value}).encode())


def test_watching_is_up_to_the_server(core, operator):
    assert operator.ask("watch-events", tube="a", what=["put"]) == {}
    assert core.watching == [(operator.session.client, b"a", ["put"], core.now_ns)]


KEYS = (
    "after base64 body delay_s do dry_run due_s fact holder holder_host ids in_state_s jobs like limit names newer_s"
    " note_text older_s order path paths pattern pause_s policies pri pri_max pri_min preview prune releases_min"
    " reserves_min set since_at state text timeouts_min to tries_min tube tube_like unset until_at up_to_id what where"
    " why"
).split()
VALUES: list[Any] = [
    *CONCERNS, "ready", "delayed", "reserved", "buried", "default", "a", "queue", "name", "*", "1-9", "eA==", "ä", "",
    None, True, False, -1, 0, 1, 2, 3, 200, 1 << 31, 1 << 70, 0.5, 1e300, float("nan"), [], [1, 2, 3], ["a"],
    [{"body": "x"}], {},
]  # fmt: skip
LIKELY: dict[str, list[Any]] = {
    "do": [*CONCERNS],
    "to": ["a", "default"],
    "pri": [0, 5],
    "delay_s": [1],
    "state": ["ready", "buried"],
    "jobs": [[], [{"body": "x", "tube": "a"}]],
    "pattern": ["a", "*"],
    "set": [{"max_tries": 2}, {"ttl": "1h", "fair": True}],
    "unset": ["all", ["ttl"]],
    "where": ["a=1", "a.b[0]=x", ["a=1", "b=2"]],
    "path": ["a", "a.b[0]"],
    "paths": [["a"], ["a.b[0]", "c"]],
    "fact": ["tube", "state", "why", "note"],
    "why": ["client", "tries"],
    "range": ["5min", "hour", "day"],
    "policies": [[], [{"pattern": "a", "set": {"then": "move:b"}}]],
}
SEED = int(os.environ.get("MODEL_SEED", str(random.randrange(1 << 32))))
STEPS = 3000


def test_whatever_is_asked_the_reply_is_whole_and_nothing_breaks(record_property):
    rng = random.Random(SEED)
    core = Core()
    operator = Operator(core)
    words = set()
    for step in range(STEPS):
        if step % 20 == 0:
            put(core, operator.session, b"a", pri=step % 3, delay_s=step % 2)
            core.send(operator.session, b"reserve-with-timeout 0\r\nbury %d 0\r\n" % rng.randint(1, step + 1))
        word = rng.choice(COMMANDS)
        keys = rng.sample(KEYS, rng.choice((0, 1, 1, 2, 3))) + (["do", "state", "to"] if rng.random() < 0.3 else [])
        if word == b"put-jobs" and rng.random() < 0.5:
            keys = ["jobs"]
        if word == b"change-jobs" and rng.random() < 0.5:
            keys = ["do", "state"]
        if word == b"show-flow":
            keys = ["range", "tube"]
        if word == b"group-jobs" and rng.random() < 0.5:
            keys = [rng.choice(("fact", "path")), "tube"]
        if word == b"set-policy" and rng.random() < 0.5:
            keys = ["pattern", "set", "unset"]
        what = {key: rng.choice(LIKELY.get(key, VALUES) if rng.random() < 0.7 else VALUES) for key in keys}
        if word in NO_BODY:
            reply = core.send(operator.session, word + b" %d\r\n" % rng.randint(0, 20))
        else:
            reply = operator.raw(word.decode(), json.dumps(what).encode())
        first, rest = reply.split(b"\r\n", 1)
        assert re.fullmatch(WHOLE, first), (word, what, reply)
        if first.startswith((b"OK", b"REFUSED")):
            told(reply)
            assert b"nput should" not in rest  # as pydantic says
        else:
            assert not rest
        words.add((word, first.split()[0]))
    recount(core.engine)
    often = (
        b"list-jobs",
        b"group-jobs",
        b"list-tube-stats",
        b"list-clients",
        b"diagnose",
        b"show-flow",
        b"change-jobs",
        b"put-jobs",
        b"set-policy",
    )
    assert {(word, reply) for word in often for reply in (b"OK", b"REFUSED")} <= words
    record_property("model steps", (STEPS, f"MODEL_SEED={SEED}"))
