"""``beanlite policy`` on a real server, and what operators see of it."""

import json
import re
import shlex
from pathlib import Path

import pytest

from beanlite.cli import main
from beanlite.console import tables
from beanlite.console.policies import summary
from beanlite.core.policies import KEYS
from beanlite.server.policy_file import read_policies
from tests.support.servers import start_beanlite
from tests.support.sqlite_tool import ask
from tests.support.wire import Wire


@pytest.fixture
def server(tmp_path):
    with start_beanlite(tmp_path) as server:
        yield server


@pytest.fixture
def policy(server, capsys, monkeypatch):
    """A function that runs a command about policies, and returns the exit code, the lines of stdout, and stderr."""
    monkeypatch.setenv("SUDO_USER", "ann")

    def policy(*words):
        exit_code = main(["policy", *words, "--connect", f"{server.host}:{server.port}"])
        printed = capsys.readouterr()
        return exit_code, printed.out.splitlines(), printed.err

    return policy


def listed(policy):
    """Return all policies, as lines."""
    _, out, _ = policy("list", "--json")
    return [f"{row['pattern']} {row['key']}={row['value']}" for row in map(json.loads, out)]


def test_policies_are_set_shown_and_unset(policy):
    assert policy("set", "mail.*", "max_tries=5", "retry=5s..1h") == (0, ["mail.*: max_tries=5, retry=5s..1h"], "")
    assert policy("set", "mail.*", "max_tries=6") == (0, ["mail.*: max_tries=6 (was 5)"], "")
    assert policy("set", "mail.*", "max_tries=6") == (0, ["nothing to change"], "")
    assert policy("set", "mail.de", "retry=off")[0] == 0
    _, out, _ = policy("show", "mail.de")
    assert [line.split()[:3] for line in out] == [
        ["pattern", "key", "value"],
        ["mail.*", "max_tries", "6"],
        ["mail.de", "retry", "off"],
    ]
    _, out, _ = policy("show", "mail.fr", "--json")
    assert [(row["key"], row["value"], row["pattern"]) for row in map(json.loads, out)] == [
        ("max_tries", "6", "mail.*"),
        ("retry", "5s..1h", "mail.*"),
    ]
    assert {json.loads(line)["changed_by"] for line in out} == {"ann"}
    assert policy("unset", "mail.*", "retry", "ttl")[1] == ["mail.*: unset retry (was 5s..1h)"]
    assert policy("unset", "mail.*") == (0, ["mail.*: unset max_tries (was 6)"], "")
    assert listed(policy) == ["mail.de retry=off"]
    assert policy("show", "mail.fr") == (0, [], "no policies for mail.fr\n")
    unknown = "beanlite: mial.de has no such policy; beanlite policy list shows all\n"
    assert policy("unset", "mial.de") == (1, [], unknown)
    policy("unset", "mail.de")
    assert policy("list") == (0, [], "no policies\n")


def test_file_shows_what_its_server_shows(policy, server, capsys):
    policy("set", "*", "max_tries=5", "retry=5s", "fair=true")
    policy("set", "mail.*", "retry=off")
    db = ("--db", str(server.directory / "queue.db"))
    for words in (["list"], ["list", "--json"], ["show", "mail.de"], ["show", "mail.de", "--json"], ["show", "x"]):
        live = policy(*words)
        assert live[1] != []
        assert main(["policy", *words, *db]) == 0
        assert capsys.readouterr().out.splitlines() == live[1]


def test_policies_and_their_changes_outlive_a_kill(policy, server):
    policy("set", "mail.*", "max_tries=5", "retry=5s")
    policy("set", "mail.*", "max_tries=6")
    policy("unset", "mail.*", "retry")
    server.kill()
    db = server.directory / "queue.db"
    rows = ask(db, "SELECT what, job, tube, CAST(body AS TEXT), by LIKE 'operator 127.0.0.1:% for ann' FROM history")
    assert rows.splitlines() == [
        "policy|0|mail.*|max_tries=5 retry=5s|1",
        "policy|0|mail.*|max_tries=6|1",
        "policy|0|mail.*|unset retry|1",
    ]
    with start_beanlite(server.directory) as again, Wire(again.connect()) as wire:
        (row,) = wire.request("list-policies", tube="mail.de")["policies"]
    assert (row["pattern"], row["key"], row["value"], row["changed_by"]) == ("mail.*", "max_tries", "6", "ann")


def test_list_has_a_table_for_people(policy):
    policy("set", "*", "rate=10/s")
    _, out, _ = policy("list")
    assert out[0].split() == ["pattern", "key", "value", "changed", "by"]
    assert out[1].split()[:3] == ["*", "rate", "10/s"]
    assert out[1].split()[-1] == "ann"


def test_warnings_go_to_stderr_and_into_json(policy):
    warning = "mail has max_tries without retry: jobs come back at once"
    assert policy("set", "mail", "max_tries=5") == (0, ["mail: max_tries=5"], f"warning: {warning}\n")
    _, (line,), err = policy("set", "mail", "max_tries=6", "--json")
    assert json.loads(line) == {
        "changes": [{"pattern": "mail", "key": "max_tries", "value": "6", "before": "5"}],
        "warnings": [warning],
        "dry_run": False,
    }
    assert err == ""


def test_dry_run_shows_the_tubes_that_match_and_changes_nothing(policy, server):
    with Wire(server.connect()) as wire:
        for tube in ("mail.de", "mail.fr", "mail"):
            wire.ask(f"watch {tube}")
        assert policy("set", "mail.*", "ttl=1d", "--dry-run") == (
            0,
            ["would change mail.*: ttl=1d", "2 tubes match now: mail.de, mail.fr"],
            "",
        )
        _, (line,), _ = policy("set", "mail", "ttl=1d", "--dry-run", "--json")
        assert json.loads(line)["tubes"] == ["mail"]
        assert json.loads(line)["dry_run"] is True
        assert policy("set", "news", "ttl=1d", "--dry-run")[1][-1] == "no tube matches now"
    assert listed(policy) == []


def test_summary_names_the_first_of_many_tubes():
    assert summary(["a"]) == "1 tube matches now: a"
    assert summary([f"t{n:02}" for n in range(1500)]).endswith(", t18, t19, …")


def test_dry_run_shows_every_page_of_tubes(policy, server, monkeypatch):
    monkeypatch.setattr("beanlite.console.policies._NAMES_MAX", 10_000)
    with Wire(server.connect()) as wire:
        tubes = 6000  # more than the server looks at for one reply
        wire.send(b"".join(b"use t%d\r\nput 0 0 60 0\r\n\r\n" % n for n in range(tubes)))
        for _ in range(2 * tubes):
            wire.reply()
        assert policy("set", "t*", "ttl=1d", "--dry-run")[1][-1].startswith("6,000 tubes match now: t0, ")


def test_file_is_applied_as_a_whole(policy, tmp_path):
    file = tmp_path / "policies.toml"
    file.write_text('["mail.*"]\nmax_tries = 5\nretry = "5s"\n[reports]\nfair = true\n')
    policy("set", "old", "ttl=1d")
    policy("set", "reports", "ttl=1d")
    dry = policy("apply", str(file), "--prune", "--dry-run")
    assert dry[1] == [
        "would change mail.*: max_tries=5, retry=5s",
        "would change reports: fair=true, unset ttl (was 1d)",
        "would change old: unset ttl (was 1d)",
    ]
    assert listed(policy) == ["old ttl=1d", "reports ttl=1d"]
    assert policy("apply", str(file))[1] == ["mail.*: max_tries=5, retry=5s", "reports: fair=true"]
    assert policy("apply", str(file), "--prune")[1] == ["old: unset ttl (was 1d)", "reports: unset ttl (was 1d)"]
    assert policy("apply", str(file), "--prune") == (0, ["nothing to change"], "")
    assert listed(policy) == ["mail.* max_tries=5", "mail.* retry=5s", "reports fair=true"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("set mail max_tries", "'max_tries' is not a key and a value, such as max_tries=5"),
        ("set mail max_tries=0", "max_tries: '0' is no whole number from 1 to 1000000"),
        ("set mail then=delete", "then: 'delete' is neither bury nor move: with the name of a tube"),
        ("set mail expired=move:", "expired: 'move:' is neither bury, delete nor move: with the name of a tube"),
        ("set mail fair=false", "fair: 'false' is neither true nor off"),
        ("set mail max_tries=5 max_tries=6", "max_tries is given twice"),
        ("set mail tries=1", "'tries' is no key of a policy: max_tries, "),
        ("set a,b max_tries=1", "'a,b' is neither the name of a tube nor a pattern"),
        ("unset a,b", "'a,b' is neither the name of a tube nor a pattern"),
        ("unset mail tries", "'tries' is no key of a policy: max_tries, "),
        ("show a,b", "no tube can have the name 'a,b'"),
        ("apply none.toml", "none.toml: the file of policies can't be read: No such file or directory"),
        ("set mail", "Missing argument 'KEY=VALUE"),
    ],
)
def test_mistake_is_one_line_and_exit_code_2(policy, words, said):
    exit_code, out, err = policy(*words.split())
    assert (exit_code, out) == (2, [])
    assert err.startswith(f"beanlite: {said}")
    assert err.count("\n") == 1


def test_refusal_of_the_server_is_one_line_and_exit_code_1(policy, tmp_path):
    file = tmp_path / "policies.toml"
    file.write_text("".join(f"[t{n}]\nttl = '1d'\n" for n in range(1000)))
    assert policy("apply", str(file))[0] == 0
    exit_code, out, err = policy("set", "mail", "ttl=1d")
    assert (exit_code, out) == (1, [])
    assert err.endswith(" refused set-policy: there would be 1001 policies, each key counted; there can be 1000\n")
    assert err.count("\n") == 1


def test_watchers_hear_of_changes_of_policies(policy, server):
    with Wire(server.connect()) as wire:
        assert wire.ask("watch-events 2", b"{}") == "OK 2"
        policy("set", "mail.*", "max_tries=5", "retry=5s")
        assert wire.reply().startswith("EVENT ")
    event = json.loads(wire.body)
    assert (event["id"], event["tube"], event["what"]) == (0, "mail.*", "policy")
    assert event["change"] == "max_tries=5 retry=5s"
    assert event["by"] | {"address": "", "number": 0} == {
        "address": "",
        "number": 0,
        "name": None,
        "operator": True,
        "person": "ann",
    }
    assert "  mail.*  policy  max_tries=5 retry=5s  by operator " in tables.event_line(event)


# -- the page about policies

PAGE = (Path(__file__).parents[2] / "docs/policies.md").read_text(encoding="utf-8")
COMMANDS = [shlex.split(line, comments=True)[2:] for line in re.findall("^beanlite policy .+", PAGE, re.MULTILINE)]


def test_page_has_each_key_once():
    assert re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE) == list(KEYS)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_command_of_the_page_is_accepted_without_a_warning(policy, words):
    exit_code, out, err = policy(*words)
    assert (exit_code, len(out), err) == (0, 1, "")


def test_file_of_the_page_is_right(tmp_path):
    (text,) = re.findall(r"^```toml\n(.+?)^```", PAGE, re.MULTILINE | re.DOTALL)
    file = tmp_path / "policies.toml"
    file.write_text(text)
    assert read_policies(file).keys() == {(b"mail.*", "max_tries"), (b"mail.*", "retry"), (b"thumbnails", "unique")}
