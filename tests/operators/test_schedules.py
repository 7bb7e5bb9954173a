"""``beanlite schedule`` against a real server."""

import json
import sys

import pytest

from beanlite.console.live import Live
from tests.support.servers import start_beanlite
from tests.support.wire import Wire, until


@pytest.fixture
def server(tmp_path):
    with start_beanlite(tmp_path) as server:
        yield server


@pytest.fixture
def run(capsys, monkeypatch, server):
    """Carry out a command at the server; returns its exit code, and what it printed to stdout and to stderr."""
    from beanlite.cli import main

    monkeypatch.setenv("SUDO_USER", "ann")

    def run(*words):
        exit_code = main(["schedule", *words, "--connect", f"{server.host}:{server.port}"])
        return exit_code, *capsys.readouterr()

    return run


NIGHTLY = ("nightly", "--cron", "0 3 * * *", "--zone", "Europe/Berlin", "--tube", "reports")


def listed(run):
    exit_code, out, _ = run("list", "--json")
    assert exit_code == 0
    return [json.loads(line) for line in out.splitlines()]


def test_schedule_is_set_listed_run_and_unset(run, server):
    exit_code, out, err = run("set", *NIGHTLY, "--body", "report")
    assert (exit_code, err) == (0, "")
    assert out.startswith("nightly puts its next job at 20")
    (record,) = listed(run)
    keys = ("name", "when", "zone", "tube", "body", "pri", "ttr_s", "if_absent", "missed", "changed_by", "last_job")
    expected = ["nightly", "0 3 * * *", "Europe/Berlin", "reports", "report", 1024, 60, True, "skip", "ann", None]
    assert [record[key] for key in keys] == expected
    assert run("run", "nightly") == (0, "1\n", "")
    assert run("run", "nightly", "--json") == (0, '{"id": 2}\n', "")
    with Live((server.host, server.port)) as live:
        assert (live.show_job(2) or {})["body"] == b"report"
    exit_code, out, _ = run("list")
    assert out.split()[:3] == ["schedule", "when", "zone"]
    assert "next (UTC)" in out
    assert "0 3 * * *" in out
    assert run("unset", "nightly") == (0, "nightly is unset\n", "")
    assert run("list") == (0, "", "no schedules\n")


def test_every_option_has_its_effect(run, tmp_path):
    (tmp_path / "body").write_bytes(b"\xff\x00")
    options = ("--every", "90min", "--tube", "t", "--file", str(tmp_path / "body"), "--pri", "3", "--ttr", "5min")
    exit_code, out, _ = run("set", "x", *options, "--overlap", "--missed", "once", "--json")
    assert exit_code == 0
    reply = json.loads(out)
    assert (reply["name"], reply["next_at"] % 5400) == ("x", 0)
    (record,) = listed(run)
    keys = ("when", "zone", "base64", "pri", "ttr_s", "if_absent", "missed", "next_at")
    expected = ["every 90m", "UTC", "/wA=", 3, 300, False, "once", reply["next_at"]]
    assert [record[key] for key in keys] == expected


def test_body_comes_from_stdin(run, tmp_path, monkeypatch):
    (tmp_path / "in").write_text("from stdin")
    with (tmp_path / "in").open() as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert run("set", "x", "--every", "1d", "--tube", "t", "--file", "-")[0] == 0
    assert listed(run)[0]["body"] == "from stdin"


@pytest.mark.parametrize(
    ("length", "when"),
    [("90s", "every 90s"), ("60s", "every 1m"), ("2h", "every 2h"), ("1w", "every 7d"), ("1h30min", "every 90m")],
)
def test_interval_is_told_in_its_largest_unit(length, when, run):
    assert run("set", "x", "--every", length, "--tube", "t", "--body", "")[0] == 0
    assert listed(run)[0]["when"] == when


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["set", *NIGHTLY], "--body or --file is missing"),
        (["set", *NIGHTLY, "--body", "x", "--file", "y"], "--body and --file exclude each other"),
        (["set", *NIGHTLY, "--body", "x", "--every", "5min"], "--cron and --every exclude each other"),
        (["set", "x", "--tube", "t", "--body", "x"], "--cron or --every is missing"),
        (
            ["set", "x", "--cron", "@daily", "--tube", "t", "--body", "x"],
            "--cron: '@daily' has not five fields: minute",
        ),
        (["set", "x", "--cron", "every 5m", "--tube", "t", "--body", "x"], "--cron: 'every 5m' has not five fields"),
        (["set", *NIGHTLY, "--body", "x", "--missed", "all"], "--missed: it is skip or once, not 'all'"),
        (["set", "a b", *NIGHTLY[1:], "--body", "x"], "the name of a schedule has 1 to 128 printable characters"),
        (["run", "a b"], "the name of a schedule has 1 to 128 printable characters"),
        (["set", *NIGHTLY[:5], "--tube", "a:b", "--body", "x"], "no tube can have the name 'a:b'"),
        (["set", "x", "--cron", "0 3 30 2 *", "--tube", "t", "--body", "x"], "--cron: '0 3 30 2 *' is no schedule"),
        (["set", "x", "--every", "0s", "--tube", "t", "--body", "x"], "--every: at least 1s, and whole minutes"),
        (["set", "x", "--every", "1000001s", "--tube", "t", "--body", "x"], "--every: at least 1s, and whole minutes"),
        (
            ["set", "x", "--every", "1d", "--zone", "Asia/Tokyo", "--tube", "t", "--body", "x"],
            "--zone goes with --cron",
        ),
    ],
)
def test_a_mistake_sets_nothing(words, said, run):
    exit_code, out, err = run(*words)
    assert (exit_code, out) == (2, "")
    assert err.startswith(f"beanlite: {said}")
    assert err.count("\n") == 1
    assert listed(run) == []


def test_what_the_server_refuses_has_exit_code_1(run, tmp_path):
    exit_code, _, err = run("set", "x", "--cron", "0 3 * * *", "--zone", "Atlantis", "--tube", "t", "--body", "x")
    assert exit_code == 1
    assert "refused set-schedule: 'Atlantis' is no zone" in err
    for word in ("run", "unset"):
        exit_code, _, err = run(word, "nightly")
        assert exit_code == 1
        assert err.endswith(f"refused {word}-schedule: there is no schedule nightly\n")
    (tmp_path / "large").write_bytes(b"x" * 65_537)
    exit_code, _, err = run("set", *NIGHTLY, "--file", str(tmp_path / "large"))
    assert exit_code == 1
    assert "large is larger than 65,536 bytes" in err
    exit_code, _, err = run("set", *NIGHTLY, "--file", str(tmp_path / "none"))
    assert (exit_code, err) == (1, f"beanlite: {tmp_path / 'none'} can't be read: No such file or directory\n")


def test_run_that_puts_nothing_says_so(run, server):
    with Live((server.host, server.port)) as live:
        live.ask("set-policy", {"pattern": "reports", "set": {"unique": "present"}})
    assert run("set", *NIGHTLY, "--body", "report")[0] == 0
    assert run("run", "nightly") == (0, "1\n", "")
    said = "beanlite: 1 job was not put: the body is there already (unique), in 1\n"
    assert run("run", "nightly") == (0, "1\n", said)
    assert run("run", "nightly", "--json") == (0, '{"id": 1, "put": false}\n', said)


def test_server_puts_the_jobs_by_itself(run, server):
    assert run("set", "tick", "--every", "1s", "--tube", "t", "--body", "x", "--overlap")[0] == 0
    with Live((server.host, server.port)) as live:
        first_at = live.ask("list-schedules", {})["schedules"][0]["next_at"]
        jobs = live.stats()["current-jobs-ready"]
        until(lambda: live.ask("list-schedules", {})["schedules"][0]["next_at"] >= first_at + 3)
        assert live.stats()["current-jobs-ready"] >= jobs + 2  # the first second may have come in between


def test_list_tells_the_job_that_a_schedule_waits_for(run, server):
    assert run("set", "tick", "--every", "1s", "--tube", "t", "--body", "x")[0] == 0
    assert run("set", "other", "--every", "1d", "--tube", "t", "--body", "x")[0] == 0
    with Wire(server.connect()) as wire:
        until(lambda: wire.ask("reserve-job 1").startswith("RESERVED"))
        assert wire.ask("bury 1 0") == "BURIED"
    until(lambda: listed(run)[1]["left_out_at"] is not None)
    other, tick = listed(run)
    assert (tick["waits_for"], tick["last_at"] < tick["left_out_at"]) == ("job 1 (buried)", True)
    assert (other["waits_for"], other["left_out_at"]) == (None, None)
    title, _, line = run("list")[1].splitlines()
    assert ("  waits for " in title, "  left out (UTC)  " in title, "  job 1 (buried)  " in line) == (True, True, True)
