"""What docs/coming-from-beanstalkd.md tells to do, done."""

import re
import subprocess
import sys

import pytest

from tests.support.beanstalkd_jobs import kick_order
from tests.support.binlogs import BURIED, DELAYED, begin, record, write
from tests.support.journal_files import ROOT
from tests.support.servers import beanstalkd_program, start_beanstalkd
from tests.support.wire import Wire

PAGE = (ROOT / "docs" / "coming-from-beanstalkd.md").read_text(encoding="utf-8")
FAR_S = 4_000_000_000


def commands(kind):
    """The blocks of code of a kind, in their order."""
    return re.findall(rf"^```{kind}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.skipif(beanstalkd_program() is None, reason="beanstalkd is not installed")
def test_there_and_back(tmp_path):
    write(
        tmp_path / "log",
        begin()
        + record(1, b"text", tube="mail", pri=5, ttr_s=7)
        + record(2, b"\xff\x00", tube="mail")
        + record(3, b"later", delay_s=10, due_s=FAR_S, state=DELAYED)
        + record(4, b"second", pri=1)
        + record(5, b"first", pri=2)
        + record(5, state=BURIED, size=5, pri=2)
        + record(4, state=BURIED, size=6, pri=1),
    )
    there = next(line for line in commands("sh")[0].splitlines() if " import-binlog " in line)
    back, script = commands("sh")[-1], commands("python")[0]
    for line in (there, back):
        line = line.replace("/var/lib/beanstalkd", "log").replace("/var/lib/beanlite/", "")  # noqa: PLW2901 - its places
        command = [sys.executable, "-m", *line.split()]
        subprocess.run(command, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, check=True, capture_output=True)
    with start_beanstalkd(tmp_path / "server") as server:
        program = script.replace("11300", str(server.port))
        subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)
        with Wire(server.connect()) as wire:
            found = {}
            for job_id in range(1, 6):
                wire.ask(f"peek {job_id}")
                body = wire.body
                stats = wire.stats(f"stats-job {job_id}")
                found[body] = tuple(stats[key] for key in ("tube", "state", "pri", "ttr"))
                if stats["state"] == "delayed":
                    assert int(stats["time-left"]) > 1e9
            order = kick_order(server, "default")
            bodies = []
            for job_id in order:
                wire.ask(f"peek {job_id}")
                bodies.append(wire.body)
    assert found == {
        b"text": ("mail", "ready", "5", "7"),
        b"\xff\x00": ("mail", "ready", "0", "60"),
        b"later": ("default", "delayed", "0", "60"),
        b"second": ("default", "buried", "1", "60"),
        b"first": ("default", "buried", "2", "60"),
    }
    assert bodies == [b"first", b"second"]
