"""A soak of some seconds, from its flags to its verdict."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.soak.run import Soak, Wish

ROOT = Path(__file__).parents[2]


def test_a_short_soak_passes_and_leaves_its_records(tmp_path):
    command = [sys.executable, "-m", "tests.soak", "--minutes", "0.05", "--seed", "5", "--connections", "60"]
    flags = ["--dir", str(tmp_path), "--out", str(tmp_path / "out"), "--", "--fsync", "50ms"]
    done = subprocess.run([*command, *flags], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("PASSED\n")
    assert (tmp_path / "out" / "verdict.txt").read_text() in done.stdout
    records = [json.loads(line) for line in (tmp_path / "out" / "samples.jsonl").read_text().splitlines()]
    assert any(record.get("rss") and record.get("used") for record in records)
    assert records[-1]["fault"] == "kill"
    assert (tmp_path / "out" / "soak.svg").stat().st_size
    assert not list(tmp_path.glob("soak-*"))


@pytest.fixture
def work(tmp_path):
    return Soak(Wish(4, 1, tmp_path, tmp_path, 10, 50, []), tmp_path)


def test_a_server_that_ends_by_itself_is_no_pass(work, monkeypatch):
    def end(*_):
        work._server._process.terminate()
        work._server._process.wait()
        work._server.check()

    monkeypatch.setattr(work, "_watch", end)
    verdict = work.run()
    assert not verdict.passed
    assert "the server has ended with exit code 0" in verdict.complaints[0]


def test_after_an_early_end_jobs_that_nobody_put_are_found(work, monkeypatch):
    def meddle(*_):
        with work._server.connect() as client:
            client.sendall(b"use soak-3\r\nput 0 0 60 5\r\nalien\r\n")
            client.recv(100)
        raise KeyboardInterrupt

    monkeypatch.setattr(work, "_watch", meddle)
    verdict = work.run()
    assert any("was never put" in complaint for complaint in verdict.complaints), str(verdict)
    assert str(verdict).endswith("FAILED")
