"""A standby that forwards clients to the active server: real servers on a real PostgreSQL."""

import os
import re
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import greenstalk
import pytest

from tests.support.forks import fork
from tests.support.health import ask, metrics
from tests.support.servers import free_port
from tests.support.wire import Wire, until

LEASE_S = 2
ROOT = Path(__file__).parents[2]


class Node:
    """A server, which is active or a standby."""

    def __init__(self, folder, number, database, *flags, port=None, files=None):
        self.port = port or free_port()
        self.health = f"127.0.0.1:{free_port()}"
        self.log_file = folder / f"node{number}.log"
        args = ["serve", "-p", str(self.port), "--database", database, "--standby", "forward"]
        args += ["--require-sync", "false", "--lease", f"{LEASE_S}s", "--node", f"node{number}"]
        args += ["--health", self.health, *flags]
        with self.log_file.open("wb") as log:
            if files is None:
                self.process = fork(args, folder, os.environ, log)
                return
            command = ["prlimit", f"--nofile={files}", sys.executable, "-m", "beanlite", *args]
            environment = os.environ | {"PYTHONPATH": str(ROOT)}
            self.process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)

    def log(self):
        return self.log_file.read_text()

    def says(self, words):
        """Wait until its log contains these words."""
        until(lambda: words in self.log(), 30)

    def connect(self, of="127.0.0.1"):
        return Wire(socket.create_connection(("127.0.0.1", self.port), 20, (of, 0)))

    def stop(self):
        self.process.terminate()
        assert self.process.wait(20) == 0

    def memory_bytes(self):
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0]) * 1024

    def end(self):
        self.process.kill()
        self.process.wait()


class Nodes:
    def __init__(self, folder, database):
        self.all = []
        self._folder = folder
        self._database = database

    def start(self, *flags, **others):
        node = Node(self._folder, len(self.all), self._database, *flags, **others)
        self.all.append(node)
        return node

    def active(self, *flags, **others):
        node = self.start(*flags, **others)
        node.says("started")
        return node

    def standby(self, *flags, **others):
        node = self.start(*flags, **others)
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
    assert metrics(standby.health)["beanlite_ready",] == 0
    assert ask(standby.health, "/readyz") == (200, f"standing by, forwarding to 127.0.0.1:{active.port}\n")


def test_each_side_may_close_first_and_all_that_is_due_arrives(nodes):
    _, standby = nodes.active(), nodes.standby()
    with standby.connect() as wire:
        wire.send(b"put 0 0 60 1\r\nx\r\nwatch other\r\nignore default\r\nreserve\r\n")
        wire.socket.shutdown(socket.SHUT_WR)
        assert [wire.reply() for _ in range(4)] == ["INSERTED 1", "WATCHING 2", "WATCHING 1", "TIMED_OUT"]
        assert wire.is_closed()
    with standby.connect() as wire:
        wire.send(b"list-tube-used\r\nquit\r\nlist-tube-used\r\n")
        assert wire.reply() == "USING default"
        assert wire.is_closed()
    with standby.connect() as wire:
        assert wire.ask("reserve") == "RESERVED 1 1"
    with standby.connect() as wire:  # the client has left, and so given the job back
        until(lambda: wire.ask("peek-ready") == "FOUND 1 1")


def test_standby_reads_no_more_of_the_replies_than_its_client_does(nodes):
    _, standby = nodes.active(), nodes.standby()
    times, size = 1000, 65000
    with standby.connect() as wire:
        wire.put(b"x" * size)
        wire.ask("peek 1")
        before_bytes = standby.memory_bytes()
        sender = threading.Thread(target=wire.send, args=(b"peek 1\r\n" * times,))
        sender.start()
        with standby.connect() as other:  # by the time it is served, much of that data would have come
            for _ in range(200):
                assert other.ask("list-tube-used") == "USING default"
        assert standby.memory_bytes() - before_bytes < 20 << 20
        for _ in range(times):
            assert wire.reply() == f"FOUND 1 {size}"
            assert len(wire.body) == size
        sender.join()
        assert standby.memory_bytes() - before_bytes < 20 << 20


def test_client_that_leaves_without_reading_leaves_the_active_server(nodes):
    active, standby = nodes.active(), nodes.standby()
    with active.connect() as other, standby.connect() as wire:
        wire.put(b"x" * 65000)
        wire.socket.settimeout(1)
        with pytest.raises(TimeoutError):  # neither server buffers that much
            wire.send(b"peek 1\r\n" * (8 << 20))
        assert other.stats()["current-connections"] == "2"
        wire.close()
        until(lambda: other.stats()["current-connections"] == "1")


def test_client_waits_and_loses_nothing_while_no_server_is_active(nodes):
    active, standby = nodes.active(), nodes.standby()
    forwarded = standby.connect()
    assert forwarded.ask("list-tube-used") == "USING default"
    active.end()
    assert forwarded.is_closed()
    forwarded.close()
    with ExitStack() as clients:
        waiting = [clients.enter_context(standby.connect()) for _ in range(20)]
        for number, wire in enumerate(waiting):
            wire.send(b"use tube%d\r\nput 0 0 60 1\r\n%d\r\n" % (number, number % 10))
        for number, wire in enumerate(waiting):
            assert (wire.reply(), wire.reply().split()[0]) == (f"USING tube{number}", "INSERTED")
    assert "lease acquired" in standby.log()
    again = nodes.standby()
    with again.connect() as wire:
        assert wire.stats("stats-tube tube7")["current-jobs-ready"] == "1"


def test_silent_client_is_held_when_the_active_server_is_lost(nodes):
    active, standby = nodes.active(), nodes.standby()
    with standby.connect() as silent, standby.connect() as begun, standby.connect() as forwarded:
        begun.send(b"put 0 0 ")
        assert forwarded.ask("list-tube-used") == "USING default"
        active.end()
        assert forwarded.is_closed()
        standby.says("started")
        assert silent.put(b"x") == 1
        begun.send(b"60 1\r\nx\r\n")
        assert begun.reply() == "INSERTED 2"


def test_nobody_is_refused_while_one_takes_over_in_order(nodes):
    active, standby = nodes.active(), nodes.standby()
    stopping = threading.Thread(target=active.stop)
    stopping.start()
    puts = 0
    while stopping.is_alive() or "started" not in standby.log():
        with standby.connect() as wire:
            try:
                wire.put(b"x")
            except ConnectionError:
                continue  # forwarded to the server that stops
            puts += 1
    with standby.connect() as wire:
        assert int(wire.stats()["current-jobs-ready"]) >= puts > 0


def test_server_restarted_within_its_lease_keeps_clients_waiting(nodes):
    active = nodes.active()
    active.end()
    again = nodes.start(port=active.port)
    again.says("standing by")
    with again.connect() as wire:
        assert wire.put(b"x") == 1
    assert "clients wait" in again.log()


def test_standby_that_stops_answers_what_was_sent(nodes):
    _, standby = nodes.active(), nodes.standby()
    with standby.connect() as wire:
        assert wire.ask("watch other") == "WATCHING 2"
        wire.send(b"reserve\r\n")
        with standby.connect() as other:
            until(lambda: other.stats()["current-waiting"] == "1")
        standby.stop()
        assert wire.reply() == "TIMED_OUT"
        assert wire.is_closed()


def test_nobody_becomes_an_operator_by_forwarding(nodes):
    _, standby = nodes.active("--operators", "127.0.0.1"), nodes.standby("--operators", "127.0.0.1")
    with standby.connect() as wire:
        assert wire.request("list-clients")
    with standby.connect(of="127.0.0.2") as wire:
        wire.send(b"list-tube-used\r\n")
        assert wire.is_closed()
    assert "take them for operators" in standby.log()


def serves(node):
    with node.connect() as wire:
        try:
            return wire.ask("list-tube-used") == "USING default"
        except ConnectionError:
            return False


def test_connections_are_limited(nodes):
    _, standby = nodes.active(), nodes.standby("--max-connections", "2")
    with standby.connect() as one, standby.connect() as two:
        with standby.connect() as three:  # though no client has sent anything
            assert three.is_closed()
        assert one.ask("list-tube-used") == two.ask("list-tube-used") == "USING default"
        with standby.connect() as three:
            assert three.is_closed()
    assert "connection refused" in standby.log()
    until(lambda: serves(standby))  # they are gone


def test_no_more_are_let_in_than_there_are_descriptors_for(nodes):
    _, standby = nodes.active(), nodes.standby(files=120)
    with ExitStack() as clients:
        wires = [clients.enter_context(standby.connect()) for _ in range(80)]
        served = 0
        for wire in wires:
            try:
                served += wire.ask("list-tube-used") == "USING default"
            except ConnectionError:
                continue
        assert 10 < served < 60
    until(lambda: serves(standby))
    assert "can't be" not in standby.log()


def refuses(node):
    try:
        with node.connect() as wire:
            wire.send(b"list-tube-used\r\n")
    except ConnectionRefusedError:
        return True
    except ConnectionResetError:  # as it began to refuse
        return False
    return False


def test_clients_do_not_go_round_in_circles(nodes):
    port = free_port()
    nodes.active("--advertise", f"localhost:{port}")
    standby = nodes.standby(port=port)
    until(lambda: refuses(standby))
    assert "forwarded connections come back" in standby.log()
    assert ask(standby.health, "/readyz")[0] == 503


def test_standby_refuses_clients_if_the_active_server_has_no_address(nodes, tmp_path):
    nodes.active("-l", f"unix:{tmp_path}/socket")
    standby = nodes.standby()
    until(lambda: refuses(standby))
    assert "the active server advertises no address" in standby.log()
    nodes.all[0].stop()
    until(lambda: not refuses(standby))
    with standby.connect() as wire:
        assert wire.put(b"x") == 1


def test_what_happened_while_a_server_stood_by_is_not_known_to_it(nodes):
    active, standby = nodes.active(), nodes.standby()
    stood_by_s = time.time()
    with active.connect() as wire:
        wire.put(b"before")
    until(lambda: time.time() > stood_by_s + 2.5)
    took_over_s = time.time()
    active.stop()
    standby.says("started")
    with standby.connect() as wire:
        flow = wire.request("show-flow", range="5min")
        assert flow["since_at"] >= took_over_s - 0.1
        assert (flow["put"][0], flow["ready"][-1]) == (0, 1)
