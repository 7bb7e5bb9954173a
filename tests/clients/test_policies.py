"""Clients of the field, none of which knows of policies, whose jobs fail again and again."""

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from beanlite.cli import main
from tests.clients.test_sessions import PROGRAMS, works
from tests.support.needs import need
from tests.support.servers import start_beanlite
from tests.support.wire import Wire, until

HERE = Path(__file__).parent
RELEASES = {
    "greenstalk": f"{sys.executable} with_greenstalk_releases.py",
    "pheanstalk": "php with_pheanstalk_releases.php",
    "beaneater": "ruby with_beaneater_releases.rb",
    "node-beanstalk": "node with_node_beanstalk_releases.js",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with start_beanlite(tmp_path_factory.mktemp("policies")) as server:
        assert main(["policy", "set", "mail.*", "max_tries=3", "--connect", f"127.0.0.1:{server.port}"]) == 0
        yield server
    assert "Traceback" not in server.log_text()


def stored(server, tube):
    """Return the state of a tube's only job, and why it is buried, as the file has it."""
    with closing(sqlite3.connect(server.directory / "queue.db")) as db:
        return db.execute("SELECT state, why FROM all_jobs WHERE tube = ?", (tube,)).fetchall()


@pytest.mark.parametrize("client", RELEASES)
def test_job_is_buried_though_its_client_was_told_of_a_release(server, client):
    if client in PROGRAMS:
        need(works(PROGRAMS[client].probe), f"{client} is not installed: {PROGRAMS[client].install}")
    command = [*RELEASES[client].split(), str(server.port)]
    done = subprocess.run(command, cwd=HERE, capture_output=True, encoding="utf-8", timeout=30, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    first, *others = done.stdout.splitlines()
    assert first.startswith("released ")
    assert others == [first, first]
    with Wire(server.connect()) as wire:
        job_id = int(first.split()[1])
        assert wire.stats(f"stats-job {job_id}")["state"] == "buried"
        tube = wire.stats(f"stats-job {job_id}")["tube"].strip('"')
        assert stored(server, tube) == [("buried", "tries")]
        wire.ask(f"use {tube}")
        assert wire.ask("kick 1") == "KICKED 1"
        wire.ask(f"watch {tube}")
        for state in ("ready", "ready", "buried"):
            wire.ask(f"reserve-job {job_id}")
            assert wire.ask(f"release {job_id} 0 0") == "RELEASED"
            assert wire.stats(f"stats-job {job_id}")["state"] == state


def test_job_that_kills_its_worker_three_times_is_buried(server):
    with Wire(server.connect()) as wire:
        wire.ask("use mail.deadly")
        job_id = wire.put(b"x")
        for _ in range(3):
            with Wire(server.connect()) as worker:
                worker.ask("watch mail.deadly")
                worker.ask("reserve")
            until(lambda: wire.stats(f"stats-job {job_id}")["state"] != "reserved")
        until(lambda: stored(server, "mail.deadly") == [("buried", "tries")])


def test_ten_stops_while_a_job_is_reserved_bury_nothing(tmp_path):
    for turn in range(10):
        with start_beanlite(tmp_path) as server, Wire(server.connect()) as wire:
            if not turn:
                assert main(["policy", "set", "mail.*", "max_tries=3", "--connect", f"127.0.0.1:{server.port}"]) == 0
                wire.ask("use mail.a")
                wire.put(b"x")
            wire.ask("watch mail.a")
            assert wire.ask("reserve").startswith("RESERVED 1 ")
            if turn % 2:
                server.kill()
            else:
                server.stop()
    assert stored(server, "mail.a")[0][1] is None
