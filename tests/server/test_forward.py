"""A server that stands by and forwards clients to the active one: real servers on a real PostgreSQL."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import greenstalk
import pytest

from tests.support.health import ask
from tests.support.servers import free_port
from tests.support.wire import Wire, until

LEASE_S = 1
ROOT = Path(__file__).parents[2]


class Node:
    """A server, which is active or stands by."""

    def __init__(self, folder, number, database, *flags):
        self.port = free_port()
        self.health = f"127.0.0.1:{free_port()}"
        self.log_file = folder / f"node{number}.log"
        command = [sys.executable, "-m", "beanlite", "serve", "-p", str(self.port), "--database", database]
        command += ["--standby", "forward", "--require-sync", "false", "--lease", f"{LEASE_S}s"]
        with self.log_file.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, "--node", f"node{number}", "--health", self.health, *flags],
                cwd=folder,
                env=os.environ | {"PYTHONPATH": str(ROOT)},
                stdout=log,
                stderr=log,
            )

    def log(self):
        return self.log_file.read_text()

    def says(self, words):
        """Wait until it has."""
        until(lambda: words in self.log(), 30)

    def connect(self):
        return Wire(socket.create_connection(("127.0.0.1", self.port), 20))

    def end(self):
        self.process.kill()
        self.process.wait()


class Nodes:
    def __init__(self, folder, database):
        self.all = []
        self._folder = folder
        self._database = database

    def start(self, *flags):
        node = Node(self._folder, len(self.all), self._database, *flags)
        self.all.append(node)
        return node

    def active(self, *flags):
        node = self.start(*flags)
        node.says("started")
        return node

    def standby(self, *flags):
        node = self.start(*flags)
        node.says("standing by")
        return node


@pytest.fixture
def nodes(tmp_path, database):
    nodes = Nodes(tmp_path, database)
    yield nodes
    for node in nodes.all:
        node.end()
    for node in nodes.all:
        assert "Traceback" not in node.log()


def test_bytes_go_through_both_ways(nodes):
    active, standby = nodes.active(), nodes.standby()
    with greenstalk.Client(("127.0.0.1", standby.port), encoding=None) as queue:
        body = bytes(range(256)) * 255
        queue.put(body)
        job = queue.reserve()
        assert job.body == body
        queue.delete(job)
    with active.connect() as wire, standby.connect() as other:
        job_id = wire.put(b"here")
        assert other.ask("peek-ready") == f"FOUND {job_id} 4"
        assert other.stats()["current-connections"] == "2"
    assert ask(standby.health, "/readyz") == (200, f"standing by, forwarding to 127.0.0.1:{active.port}\n")
