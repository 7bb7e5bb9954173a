"""Clients of the field that are told of two servers, the active one of which is killed."""

import os
import subprocess
import sys

import pytest

from tests.clients.test_sessions import HERE, PROGRAMS, works
from tests.support.failover import ACKNOWLEDGED, Node
from tests.support.needs import need
from tests.support.wire import until

AGAIN = {
    "beanlite.client": [sys.executable, "with_beanlite_again.py"],
    "greenstalk": [sys.executable, "with_greenstalk_again.py"],
    "node-beanstalk": ["node", "with_node_beanstalk_again.js"],
}
SOON_S = 30


class Program:
    """One of them at work."""

    def __init__(self, folder, name, nodes):
        self._log = folder / f"{name}.log"
        with self._log.open("wb") as log:
            ports = [str(node.port) for node in nodes]
            environment = {**os.environ, "PYTHONPATH": str(HERE.parents[1])}
            self.process = subprocess.Popen([*AGAIN[name], *ports], cwd=HERE, stdout=log, env=environment)

    def told(self):
        """The bodies of the jobs whose put was acknowledged, by their ids, and the ids of those whose delete was begun
        and of those whose delete was acknowledged."""
        lines = [line.split() for line in self._log.read_text().splitlines(keepends=True) if line.endswith("\n")]
        put = {int(words[1]): words[2] for words in lines if words[0] == "put"}
        deleting, deleted = ({int(words[1]) for words in lines if words[0] == word} for word in ("deleting", "deleted"))
        return put, deleting, deleted

    def goes_on(self):
        before = len(self.told()[0])
        until(lambda: len(self.told()[0]) > before + ACKNOWLEDGED // 10, SOON_S)

    def end(self):
        self.process.kill()
        self.process.wait()


@pytest.fixture
def nodes(database, tmp_path):
    nodes = [Node(tmp_path, number, database, flags=("--require-sync", "false")) for number in range(2)]
    yield nodes
    for node in nodes:
        node.process.kill()
        node.process.wait()


@pytest.fixture
def programs(nodes, tmp_path):
    need(works(PROGRAMS["node-beanstalk"].probe), "node-beanstalk is not installed")
    programs = [Program(tmp_path, name, nodes) for name in AGAIN]
    yield programs
    for program in programs:
        program.end()


def test_clients_go_on_with_the_server_that_has_taken_over(nodes, programs, postgres, database):
    for program in programs:
        program.goes_on()
    (active,) = [node for node in nodes if "lease acquired" in node.log()]
    active.process.kill()
    for program in programs:
        program.goes_on()
        program.end()
    there = {
        row["id"]: row["text"] for row in postgres.sql("SELECT id, text FROM all_jobs", database.rpartition("/")[2])
    }
    put, deleting, deleted = {}, set(), set()
    for program in programs:
        its_put, its_deleting, its_deleted = program.told()
        assert not put.keys() & its_put.keys()
        put |= its_put
        deleting |= its_deleting
        deleted |= its_deleted
    assert not deleted & there.keys()
    assert put.keys() <= deleting | there.keys()  # a delete that was begun may have been carried out and not answered
    assert len(deleting - deleted) <= 2 * len(programs)  # once when the server ended, and once when the program did
    assert {job_id: put[job_id] for job_id in put.keys() & there.keys()}.items() <= there.items()
    # Of those that nobody was told of each is one that broke off.
    assert len(there.keys() - put.keys()) <= 2 * len(programs)
