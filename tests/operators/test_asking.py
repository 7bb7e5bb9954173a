"""What a command does once it is confirmed: what was counted, however long the answer took."""

import io
import sys
from types import SimpleNamespace

import pytest

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
