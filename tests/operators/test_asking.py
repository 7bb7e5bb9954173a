"""What a command does once it is confirmed, and what it says where others would ask."""

import io
import sys
from types import SimpleNamespace

import pytest

from beanlite.console.live import Live
from tests.operators.test_commands import ids


@pytest.mark.parametrize(("waits_s", "left"), [(0, 1), (3600, 12)])
def test_jobs_that_were_not_counted_do_not_grow_into_the_answer(waits_s, left, own_queue, run, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    moments_s = iter((0.0, float(waits_s)))
    monkeypatch.setattr("beanlite.cli.change.time", SimpleNamespace(monotonic=lambda: next(moments_s)))
    _, _, err = run(own_queue, "delete", "--tube", "mail", "--older", "0s")
    assert err.startswith("Delete 11 jobs in tube mail, put more than 0 s ago? [y/N]")
    assert len(ids(own_queue)) == left


@pytest.mark.parametrize("dry", [True, False])
def test_move_to_where_jobs_are_too_old_says_so(dry, own_queue, run):
    with Live(own_queue.address) as live:
        live.ask("set-policy", {"pattern": "brief", "set": {"ttl": "2s", "expired": "delete"}})
    said = "beanlite: brief has ttl=2s: 5 jobs are too old for it, or will be within a minute, and then deleted\n"
    moved = "5 jobs would be moved\n" if dry else "5 jobs moved\n"
    words = ("move", "--tube", "mail", "--state", "ready", "--to", "brief", *(["--dry-run"] if dry else []))
    assert run(own_queue, *words) == (0, moved, said)
    assert run(own_queue, "move", "--tube", "mail", "--state", "buried", "--to", "brief") == (0, "2 jobs moved\n", "")
