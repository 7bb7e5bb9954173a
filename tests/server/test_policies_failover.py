"""Policies and schedules outlive their server: another one takes over from PostgreSQL, or the same is started again."""

import socket

import pytest

from tests.support.failover import Node
from tests.support.servers import start_beanlite
from tests.support.wire import Wire, until

KILLS = 30
TAKEOVERS = 3
EVERY_SECOND = {"name": "tick", "when": "every 1s", "tube": "ticks", "body": "x", "if_absent": False}


class Nodes:
    """Two servers with one database, of which one is active."""

    def __init__(self, folder, url):
        self._nodes = [Node(folder, number, url, flags=("--require-sync", "false")) for number in range(2)]
        self._wires = []

    def connect(self):
        """Return a connection to the active server."""
        until(self._find_active)
        return self._wires[-1]

    def take_over(self):
        """Kill the active server, and return a connection to the other one once that is active."""
        self._active.process.kill()
        self._active.process.wait()
        killed = self._active
        wire = self.connect()
        assert self._active is not killed
        killed.start()
        return wire

    def _find_active(self):
        for node in self._nodes:
            try:
                wire = Wire(socket.create_connection(("127.0.0.1", node.port), 10))
            except OSError:
                continue
            self._wires.append(wire)
            try:
                wire.ask("list-tube-used")
            except OSError:
                continue
            self._active = node
            return True
        return False

    def end(self):
        for wire in self._wires:
            wire.close()
        for node in self._nodes:
            node.process.kill()
            node.process.wait()


@pytest.fixture
def nodes(database, tmp_path):
    nodes = Nodes(tmp_path, database)
    yield nodes
    nodes.end()


def set_policy(wire, pattern="default", **values):
    wire.request("set-policy", pattern=pattern, set=values)


def policies_of(wire):
    return {(row["pattern"], row["key"]): row["value"] for row in wire.request("list-policies")["policies"]}


def job_of(wire, job_id):
    (job,) = (job for job in wire.request("list-jobs", tube="default")["jobs"] if job["id"] == job_id)
    return job


def reserve(wire, job_id):
    assert wire.ask("reserve-with-timeout 10").startswith(f"RESERVED {job_id} ")


def fail(wire, job_id):
    reserve(wire, job_id)
    assert wire.ask(f"release {job_id} 0 0") == "RELEASED"


def wait_for(count, least):
    until(lambda: count() >= least)


def test_tries_at_a_lost_server_count_at_the_next_one(nodes):
    wire = nodes.connect()
    set_policy(wire, max_tries=3)
    job_id = wire.put(b"x")
    fail(wire, job_id)
    fail(wire, job_id)
    wire = nodes.take_over()
    assert policies_of(wire) == {("default", "max_tries"): "3"}
    job = job_of(wire, job_id)
    assert (job["state"], job["tries"]) == ("ready", 2)
    fail(wire, job_id)
    job = job_of(wire, job_id)
    assert (job["state"], job["why"], job["tries"]) == ("buried", "tries", 3)


def test_job_that_is_reserved_at_a_takeover_loses_no_try(nodes, postgres, database):
    def wait_until_stored(reserves):
        rows = "SELECT state, reserves FROM jobs", database.rpartition("/")[2]
        until(lambda: tuple(postgres.sql(*rows)[0]) == ("reserved", reserves))

    wire = nodes.connect()
    set_policy(wire, max_tries=2)
    job_id = wire.put(b"x")
    fail(wire, job_id)
    for takeovers in range(1, 3):
        reserve(wire, job_id)
        wait_until_stored(1 + takeovers)
        wire = nodes.take_over()
        job = job_of(wire, job_id)
        assert (job["state"], job["tries"], job["forgiven"]) == ("ready", 1, takeovers)
    fail(wire, job_id)
    assert job_of(wire, job_id)["why"] == "tries"


def test_each_second_of_a_schedule_comes_once_over_takeovers(nodes):
    def ready():
        return int(wire.stats()["current-jobs-ready"])

    def next_at():
        (schedule,) = wire.request("list-schedules")["schedules"]
        return schedule["next_at"]

    wire = nodes.connect()
    first_at = wire.request("set-schedule", **EVERY_SECOND)["next_at"]
    wait_for(ready, 2)
    for _ in range(TAKEOVERS):
        wire = nodes.take_over()
        wait_for(ready, ready() + 2)
        count, after_it = None, first_at
        while count is None or next_at() != after_it:  # a second may come in between
            after_it, count = next_at(), ready()
        assert count == after_it - first_at


def test_policy_and_schedule_are_there_after_a_kill_at_once(tmp_path):
    expected = {}
    for kill in range(KILLS):
        with start_beanlite(tmp_path) as server, Wire(server.connect()) as wire:
            assert policies_of(wire) == expected
            schedules = [schedule["name"] for schedule in wire.request("list-schedules")["schedules"]]
            assert schedules == sorted(f"s{number}" for number in range(kill // 2))
            pattern = f"tube{kill % 7}"
            if kill % 2:
                wire.request("set-schedule", name=f"s{kill // 2}", when="0 3 * * *", tube="t", body="x")
            elif (pattern, "max_tries") in expected:
                wire.request("set-policy", pattern=pattern, unset="all")
                del expected[pattern, "max_tries"]
            else:
                set_policy(wire, pattern, max_tries=kill + 1)
                expected[pattern, "max_tries"] = str(kill + 1)
            server.kill()
