"""What ``beanlite why`` adds to the findings of a server: where they lead to."""

import re
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from beanlite.cli import main
from beanlite.cli.groups import ServerOption
from beanlite.console import why as telling
from tests.support.diagnosed import Diagnosed
from tests.support.fast_time import start_fast
from tests.support.operators import Operator
from tests.support.wire import Wire, until


@pytest.fixture
def scene(tmp_path, capsys):
    """A function that returns what the command prints, and a client, of a server where nobody consumes emial."""
    with start_fast(tmp_path, "--no-journal") as server, Wire(server.connect()) as wire:

        def why(*words, stream="out"):
            capsys.readouterr()
            main(["why", *words, "--connect", f"127.0.0.1:{server.port}"])
            return getattr(capsys.readouterr(), stream)

        wire.ask("use emial")
        wire.put(b"1")
        wire.ask("use default")
        until(lambda: "nobody consumes emial" in why())
        yield why, wire


def test_misspelt_tube_is_told_with_the_one_that_was_meant(scene):
    why, wire = scene
    assert "misspelt" not in why()
    wire.ask("use mail")
    wire.put(b"2")
    assert "misspelt" not in why()  # nobody watches mail either
    wire.ask("watch mail")
    for told in (why(), why("emial")):
        assert "or is emial misspelt, and mail was meant? Then move its jobs\n" in told
        assert "  beanlite move --tube emial --to mail --connect 127.0.0.1:" in told


def test_tube_that_is_shown_does_not_lead_to_itself(capsys, monkeypatch):
    finding = {"kind": "late", "severity": "warning", "text": "late", "seconds": 0, "do": "add workers", "worst": []}
    findings = [{**finding, "command": f"beanlite why {tube}"} for tube in ("mail", "other")]
    monkeypatch.setattr(telling, "facts_of", lambda _: [])
    telling.print_diagnosis({"findings": findings, "tube": {"name": "mail"}}, lambda _: "", {}, "")
    told = capsys.readouterr().out
    assert ("beanlite why mail" in told, "beanlite why other" in told) == (False, True)


def test_command_for_files_gets_no_options_of_a_server(capsys):
    finding = {"kind": "backup", "severity": "warning", "text": "failed", "seconds": 0, "do": "make one", "worst": []}
    findings = [{**finding, "command": command} for command in ("beanlite backup DEST", "beanlite clients")]
    telling.print_diagnosis({"findings": findings}, lambda _: " --connect one:11300", {}, "")
    commands = [line.strip() for line in capsys.readouterr().out.splitlines() if "beanlite" in line]
    assert commands == ["beanlite backup DEST", "beanlite clients --connect one:11300"]


@pytest.mark.parametrize(
    "options",
    [
        {"config_file": "my settings.toml"},
        {"servers": "one.toml"},
        {"servers": "one.toml", "tls_ca": "ca.pem", "tls_cert": "ann.pem", "tls_key": "ann.key"},
        {"connect": "tls://queue:11301", "tls_ca": "ca.pem"},
        {},
    ],
)
def test_commands_that_are_told_ask_the_same_server(options):
    values: dict[str, Any] = {key: [value] if key == "connect" else Path(value) for key, value in options.items()}
    place = ServerOption(**values)
    words = (("config" if key == "config_file" else key.replace("_", "-"), value) for key, value in options.items())
    assert shlex.split(place.options(None)) == [word for key, value in words for word in (f"--{key}", value)]
    assert place.files_for("127.0.0.1:11300") == ""


def test_pace_tells_for_how_long_jobs_are_reserved():
    core = Diagnosed()
    core.fill(b"mail", 3, ttr_s=60)
    worker = core.worker()
    for seconds in (10, 14):
        core.send(worker, b"reserve\r\n")
        core.live(seconds)
        core.send(worker, b"delete %d\r\n" % (1 if seconds == 10 else 2))
        core.live(1)
    facts = dict(telling.facts_of(Operator(core).ask("diagnose", tube="mail")["tube"]))
    assert "a job is reserved for 12 s on average" in facts["pace"]


def test_pause_and_policy_are_told_with_moments_and_person(scene, monkeypatch):
    why, wire = scene
    monkeypatch.setattr(telling, "time", SimpleNamespace(time=lambda: 86_400.0))
    wire.request("set-policy", pattern="em*", set={"max_jobs": 500}, by="carl")
    wire.request("set-pause", tube="emial", pause_s=3600)
    told = why("emial")
    assert re.search(r"^policy   max_jobs 500, of em\*, set by carl at 20..-..-.. ..:..:.. UTC$", told, re.MULTILINE)
    assert re.search(
        r"^paused   since 1970-01-0. ..:..:.. UTC, for another .*, until 1970-01-02 0.:..:.. UTC$", told, re.MULTILINE
    )
    assert "by whom: beanlite history --what pause --tube emial --db FILE\n" in told


def test_topic_that_is_no_tube_is_told_with_where_to_look(scene):
    why, wire = scene
    assert "of the disk itself tells beanlite stats: disk-free" in why("disk", stream="err")
    wire.ask("use disk")
    assert "nothing is wrong" in why("disk")


def test_facts_tell_who_is_idle_who_is_slow_and_what_is_steady():
    core = Diagnosed()
    core.fill(b"mail", 200, ttr_s=3600)
    slow, quick, idle = (core.worker() for _ in range(3))
    core.send(slow, b"reserve\r\n")
    core.send(idle, b"")
    core.live(70, each=lambda: (core.fill(b"mail", 2), core.work(quick, 2)))
    facts = dict(telling.facts_of(Operator(core).ask("diagnose", tube="mail")["tube"]))
    assert facts["clients"].startswith("3 clients watch it: 1 has a job of it, none waits for one, 2 do neither; ")
    assert "; on average it is less than 1 s" in facts["reserved"]
    assert "(in the last minutes)" in facts["pace"]
    core.live(60, each=lambda: core.work(quick, 2))
    core.fill(b"mail", 9)
    core.live(200, each=lambda: (core.fill(b"mail", 2), core.work(quick, 2)))
    facts = dict(telling.facts_of(Operator(core).ask("diagnose", tube="mail")["tube"]))
    assert ": steady" in facts["pace"]


def test_finding_tells_since_when(capsys, monkeypatch):
    finding = {
        "kind": "late",
        "severity": "warning",
        "text": "late",
        "seconds": 60,
        "do": "do",
        "worst": [],
        "command": None,
    }
    monkeypatch.setattr(telling, "time", SimpleNamespace(time=lambda: 60.0))
    telling.print_diagnosis({"findings": [finding]}, lambda _: "", {}, "")
    assert "late (since 1970-01-01 00:00:00 UTC)\n" in capsys.readouterr().out
