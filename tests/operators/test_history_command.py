"""What has happened, as ``beanlite history`` tells it from a file."""

import json
import re
import sqlite3
import time
from contextlib import closing

import pytest

from beanlite.cli import main
from beanlite.journal.sqlite.tools import look
from tests.support.servers import start_beanlite
from tests.support.wire import Wire


@pytest.fixture(scope="module")
def past(tmp_path_factory):
    """The file of a server with a history, in which ann and bob have done something, a client, and a policy."""
    folder = tmp_path_factory.mktemp("past")
    with pytest.MonkeyPatch.context() as environment, start_beanlite(folder, "--history", "7d") as server:
        at = ["--connect", f"127.0.0.1:{server.port}"]
        with Wire(server.connect()) as wire:
            environment.setenv("SUDO_USER", "ann")
            for words in (["put", "--tube", "mail", "a", "b", "c"], ["bury", "1"], ["delete", "2", "--yes"]):
                assert main([*words, *at]) == 0
            environment.setenv("SUDO_USER", "bob")
            for words in (["pause", "mail", "10min"], ["delete", "3", "--yes"], ["policy", "set", "*", "max_tries=1"]):
                assert main([*words, *at]) == 0
            wire.ask("pause-tube mail 0")
            wire.ask("watch mail")
            wire.ask("kick-job 1")
            wire.ask("reserve-job 1")
            wire.ask("release 1 0 0")
        server.stop()
    return folder / "queue.db"


@pytest.fixture
def told(past, capsys):
    """Return a function that returns what the command prints with these options, as objects."""

    def told(*options):
        capsys.readouterr()
        assert main(["history", "--json", "--db", str(past), *options]) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return told


def whats(events):
    return [(event["id"], event["what"]) for event in events]


PAST = [
    (1, "put"), (2, "put"), (3, "put"), (1, "bury"), (2, "delete"), (0, "pause"), (3, "delete"), (0, "policy"),
    (0, "pause"), (1, "kick"), (1, "reserve"), (1, "release"), (1, "bury"),
]  # fmt: skip


def test_history_is_told_in_order(told, monkeypatch):
    assert whats(told()) == whats(told("--limit", "0")) == PAST
    monkeypatch.setattr(look, "_EVENTS_READ", 3)
    assert whats(told()) == PAST
    assert whats(told("--limit", "4")) == PAST[-4:]
    assert whats(told("--limit", "1", "--what", "delete")) == [(3, "delete")]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--by ann", PAST[:5]),
        ("--by bob", PAST[5:8]),
        ("--by an", []),
        ("--operators", PAST[3:8]),
        ("--by ann --what delete", [(2, "delete")]),
        ("--what delete --what bury", [(1, "bury"), (2, "delete"), (3, "delete"), (1, "bury")]),
        ("--by policy", PAST[-1:]),
        ("--by 127.0.0.1", PAST[:-1]),
        ("--by 127.0.0", []),
        ("--id 3", [(3, "put"), (3, "delete")]),
        ("--tube * --by bob", [(0, "policy")]),
        ("--since 1h", PAST),
        ("--until 1h", []),
        ("--since 1h --until 30min", []),
        ("--since 2026-01-01 --by bob --what pause", [(0, "pause")]),
    ],
)
def test_history_is_told_by_conditions(told, options, expected):
    assert whats(told(*options.split())) == expected


def test_events_that_recur_are_one_line(past, capsys):
    def lines(*options):
        assert main(["history", "--db", str(past), *options]) == 0
        out = capsys.readouterr()
        return out.out.splitlines(), out.err

    (first, *rest), err = lines()
    assert re.search(r" 1  mail  put  pri 1024  by .* for ann  3 times, the last for job 3 at 20..-", first)
    assert (len(rest), err) == (len(PAST) - 3, "")
    assert len(lines("--limit", "0")[0]) == len(PAST)
    last, err = lines("--limit", "2")
    assert ([line.split()[4] for line in last], "the last 2 lines" in err) == (["release", "bury"], True)
    last, err = lines("--limit", "2", "--json")
    assert (len(last), err) == (2, "These are the last 2 lines; there may be more: --limit\n")
    assert lines("--limit", str(len(PAST) + 1), "--json")[1] == ""


def test_copies_are_one_line(tmp_path, capsys):
    with start_beanlite(tmp_path, "--history", "7d") as server:
        at = ["--connect", f"127.0.0.1:{server.port}"]
        assert main(["put", "--tube", "mail", "a", "b", "c", *at]) == 0
        assert main(["copy", "--tube", "mail", "--to", "again", *at]) == 0
        server.stop()

    def whats(*options):
        capsys.readouterr()
        assert main(["history", "--db", str(tmp_path / "queue.db"), *options]) == 0
        return [line.split()[4] for line in capsys.readouterr().out.splitlines()]

    assert whats() == ["put", "copy"]
    assert whats("--id", "4") == ["put", "copy"]
    assert whats("--limit", "0") == ["put", "put", "put", *3 * ["put", "copy"]]


def test_bulk_change_of_jobs_with_several_pris_is_one_line(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("SUDO_USER", "ann")
    with start_beanlite(tmp_path) as server, Wire(server.connect()) as wire:
        wire.ask("use mail")
        for number in range(6):
            wire.put(b"x", pri=number % 3, delay_s=1000 * (number % 2))
        at = ["--connect", f"127.0.0.1:{server.port}"]
        assert main(["move", "--tube", "mail", "--to", "sms", *at]) == 0
        assert main(["reprioritise", "--pri", "7", "--tube", "sms", *at]) == 0
        assert main(["flush", "sms", "--yes", *at]) == 0
        server.stop()
    capsys.readouterr()
    assert main(["history", "--db", str(tmp_path / "queue.db"), "--operators"]) == 0
    lines = [line.partition("  sms  ")[2].partition("  by ")[0] for line in capsys.readouterr().out.splitlines()]
    assert lines == ["move", "reprioritise  pri 7", "delete  pri 7"]


def test_notes_that_differ_are_not_told_by_the_first(tmp_path, capsys):
    with start_beanlite(tmp_path) as server, Wire(server.connect()) as wire:
        for text in "abc":
            job_id = wire.put(b"x")
            assert main(["note", str(job_id), "--note", text, "--connect", f"127.0.0.1:{server.port}"]) == 0
        server.stop()
    capsys.readouterr()
    assert main(["history", "--db", str(tmp_path / "queue.db"), "--what", "note", "--limit", "1"]) == 0
    assert "  3 times, the last for job 3 " in (told := capsys.readouterr().out)
    assert "'a'" not in told


def test_policies_that_differ_are_no_recurrence(tmp_path, capsys):
    with start_beanlite(tmp_path) as server:
        for tries in "123":
            words = ["policy", "set", "mail", f"max_tries={tries}", "--connect", f"127.0.0.1:{server.port}"]
            assert main(words) == 0
        server.stop()
    capsys.readouterr()
    assert main(["history", "--db", str(tmp_path / "queue.db")]) == 0
    assert re.findall(r"max_tries=\d", capsys.readouterr().out) == ["max_tries=1", "max_tries=2", "max_tries=3"]


def test_person_behind_a_schedule_named_for_is_told(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("SUDO_USER", "ann")
    db = ["--db", str(tmp_path / "queue.db")]
    with start_beanlite(tmp_path, "--history", "7d") as server:
        at = ["--connect", f"127.0.0.1:{server.port}"]
        for name in ("for", "nightly", "hourly"):
            assert main(["schedule", "set", name, "--every", "1d", "--tube", "mail", "--body", "x", *at]) == 0
            assert main(["schedule", "run", name, *at]) == 0
        server.stop()
    capsys.readouterr()
    assert main(["history", "--json", "--what", "put", "--by", "ann", *db]) == 0
    doers = [json.loads(line)["by"] for line in capsys.readouterr().out.splitlines()]
    assert [(by["address"], by["person"]) for by in doers] == [
        ("schedule for", "ann"), ("schedule nightly", "ann"), ("schedule hourly", "ann"),
    ]  # fmt: skip
    assert main(["history", "--what", "put", *db]) == 0
    assert "  by clients for ann  3 times, the last" in capsys.readouterr().out


def test_client_is_told_by_its_address(told):
    by = told("--what", "kick")[0]["by"]
    assert by["operator"] is False
    assert whats(told("--by", by["address"])) == PAST[8:-1]


def test_moments_cut_the_history(told):
    moments = sorted({event["at"] for event in told()})
    middle = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(moments[-1] + 1))
    assert whats(told("--until", middle)) == PAST
    assert told("--since", middle) == []


def test_event_of_a_pause_names_the_person(past, capsys):
    assert main(["history", "--db", str(past), "--what", "pause"]) == 0
    by_bob, by_client = capsys.readouterr().out.splitlines()
    assert re.search(
        r"  mail  pause  for 10 min, until 20[^ ]+ [^ ]+  by operator 127\.0\.0\.1:\d+ #\d+ for bob$", by_bob
    )
    assert re.search(r"  mail  pause  ended  by 127\.0\.0\.1:\d+ #\d+$", by_client)


def test_event_of_a_policy_has_what_was_set(told):
    (event,) = told("--what", "policy")
    assert event["change"] == "max_tries=1"


def test_history_without_events_says_so(past, capsys):
    assert main(["history", "--db", str(past), "--by", "nobody"]) == 0
    assert capsys.readouterr().err.startswith("no events; the first event of a client in the history is of 20")
    assert main(["history", "--db", str(past), "--by", "nobody", "--operators"]) == 0
    assert capsys.readouterr() == ("", "no events\n")
    assert main(["history", "--db", str(past), "--what", "luck"]) == 2
    assert "--what: there is no event 'luck', only put, " in capsys.readouterr().err
    assert main(["history", "--db", str(past), "--since", "yesterday"]) == 2
    assert "'yesterday' is no moment; write it as 02:00" in capsys.readouterr().err


def test_pause_is_kept_where_no_other_history_is(tmp_path, monkeypatch):
    monkeypatch.setenv("SUDO_USER", "ann")
    with start_beanlite(tmp_path) as server:
        with Wire(server.connect()) as wire:
            wire.ask("use mail")
            wire.ask("pause-tube mail 5")
            assert main(["pause", "mail", "1min", "--connect", f"127.0.0.1:{server.port}"]) == 0
            assert main(["pause", "nobody", "1min", "--connect", f"127.0.0.1:{server.port}"]) == 1
        server.stop()
    with closing(sqlite3.connect(tmp_path / "queue.db")) as connection:
        told = connection.execute("SELECT tube, what, delay_s, by FROM events").fetchall()
    assert [(*row[:3], row[3].split()[-1]) for row in told] == [("mail", "pause", 60, "ann")]


def test_pause_at_another_server_goes_by_the_command_of_clients(tmp_path):
    with start_beanlite(tmp_path, "--operators", "unix") as server, Wire(server.connect()) as wire:
        wire.ask("use mail")
        assert main(["pause", "mail", "1min", "--connect", f"127.0.0.1:{server.port}"]) == 0
        assert int(wire.stats("stats-tube mail")["pause-time-left"]) > 50


def test_nothing_found_is_told_with_what_is_kept(past, told, capsys):
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(min(event["at"] for event in told())))
    for options, of in (("--id 4", " of job 4"), ("--tube mail --by nobody", " of mail"), ("--by nobody", "")):
        assert main(["history", "--db", str(past), *options.split()]) == 0
        assert capsys.readouterr() == (
            "",
            f"no events{of}; the first event of a client in the history is of {since} UTC\n",
        )
    assert main(["history", "--db", str(past), "--by", "operators"]) == 0
    assert "what any operator has done is told by --operators" in capsys.readouterr().err


def test_job_whose_put_is_not_kept_says_so(tmp_path, past, capsys):
    with start_beanlite(tmp_path) as server:
        with Wire(server.connect()) as wire:
            assert wire.put(b"x") == 1
            assert wire.put(b"x") == 2
        assert main(["bury", "2", "--connect", f"127.0.0.1:{server.port}"]) == 0
        server.stop()
    kept = "the history has no event of a client; these are kept with the server's setting history\n"
    capsys.readouterr()
    for job_id, why in (("1", "it has no history"), ("2", "its put is not in its history")):
        assert main(["job", job_id, "--db", str(tmp_path / "queue.db")]) == 0
        assert capsys.readouterr().out.endswith(f"\n\n{why}; {kept}")
    assert main(["job", "1", "--db", str(past)]) == 0
    assert "of a client" not in capsys.readouterr().out


def test_event_of_a_schedule_is_told_in_few_words(tmp_path, capsys):
    with start_beanlite(tmp_path) as server:
        at = ["--connect", f"127.0.0.1:{server.port}"]
        nightly = ["nightly", "--cron", "0 3 * * *", "--zone", "Europe/Berlin", "--tube", "reports", "--body", "x"]
        assert main(["schedule", "set", *nightly, *at]) == 0
        assert main(["schedule", "unset", "nightly", *at]) == 0
        server.stop()
    capsys.readouterr()
    assert main(["history", "--operators", "--db", str(tmp_path / "queue.db")]) == 0
    was_set, was_unset = capsys.readouterr().out.splitlines()
    assert "  reports  schedule  nightly: 0 3 * * * Europe/Berlin -> reports  by operator " in was_set
    assert "  schedule  nightly unset  by operator " in was_unset
