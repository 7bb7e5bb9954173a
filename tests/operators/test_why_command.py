"""What ``beanlite why`` adds to the findings of a server: where they lead to."""

import pytest

from beanlite.cli import main
from beanlite.console import why as telling
from tests.support.diagnosed import Diagnosed
from tests.support.operators import Operator
from tests.support.servers import start_beanlite
from tests.support.wire import Wire, until


@pytest.fixture
def scene(tmp_path, capsys):
    """A function that returns what the command prints, and a client, of a server where nobody consumes emial."""
    with start_beanlite(tmp_path, "--no-journal") as server, Wire(server.connect()) as wire:

        def why(*words):
            capsys.readouterr()
            main(["why", *words, "--connect", f"127.0.0.1:{server.port}"])
            return capsys.readouterr().out

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
    finding = {"kind": "late", "severity": "warning", "text": "late", "do": "add workers", "worst": []}
    findings = [{**finding, "command": f"beanlite why {tube}"} for tube in ("mail", "other")]
    monkeypatch.setattr(telling, "facts_of", lambda _: [])
    telling.print_diagnosis({"findings": findings, "tube": {"name": "mail"}}, lambda _: "", {})
    told = capsys.readouterr().out
    assert ("beanlite why mail" in told, "beanlite why other" in told) == (False, True)


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
