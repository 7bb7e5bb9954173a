"""Workers go on through kills of the server and of themselves: each job is done, and none stays held."""

import socket
import urllib.error
import urllib.request
from collections import Counter
from contextlib import suppress
from functools import partial
from itertools import count
from threading import Event, Thread

import pytest

from tests.clients.test_workers import Scene, state
from tests.support.servers import free_port
from tests.support.wire import until
from tests.work.conftest import Work

WAITING_MAX = 40


@pytest.fixture
def work(tmp_path):
    """A server of this test alone, as others go on with theirs."""
    with Scene(tmp_path) as scene:
        work = Work(scene, tmp_path)
        yield work
        work.end()


class Producer(Thread):
    """Puts jobs through kills, and knows which puts were acknowledged."""

    def __init__(self, work):
        super().__init__()
        self._work = work
        self._enough = Event()
        self.acknowledged = set()

    def run(self):
        numbers = count()
        while not self._enough.is_set():
            with suppress(OSError), self._work.connect() as wire:
                while not self._enough.is_set():
                    self._put(wire, str(next(numbers)))

    def _put(self, wire, key):
        until(lambda: int(wire.stats()["current-jobs-ready"]) < WAITING_MAX)
        wire.put(f"quick {key}".encode(), ttr_s=2)
        self.acknowledged.add(key)

    def end(self):
        self._enough.set()
        self.join()


@pytest.mark.parametrize("kills", [4, pytest.param(100, marks=pytest.mark.nightly)])
def test_all_acknowledged_jobs_are_done_through_kills(work, kills):
    concurrency = 4

    def begin(function):
        """Start a worker, which has no handler for signals before it reserves."""
        before = work.errors().count("reserving jobs")
        worker = work.begin(function, "--concurrency", str(concurrency))
        until(lambda: work.errors().count("reserving jobs") > before)
        return worker

    workers = [begin("work"), begin("work_async")]
    producer = Producer(work)
    producer.start()
    try:
        for number in range(kills):
            until(partial(work.has_done, len(work.log("end")) + 30))
            if number % 2:
                workers[0].kill()
                workers[0].wait()
            work.scene.kill()
            work.scene.start()
            if number % 2:
                workers[0] = begin("work")
    finally:
        producer.end()
    with work.scene.connect() as wire:
        until(lambda: {wire.stats()[f"current-jobs-{each}"] for each in ("ready", "reserved", "delayed")} == {"0"})
        assert wire.stats()["current-jobs-buried"] == "0"
    for worker in workers:
        worker.terminate()
    assert [worker.wait(60) for worker in workers] == [0, 0]
    begun, ended = Counter(work.log("begin")), Counter(work.log("end"))
    assert producer.acknowledged <= ended.keys()
    assert begun.total() - len(begun) <= kills * 2 * concurrency  # those in hand at a kill


def test_worker_waits_for_a_server_and_ends_when_it_is_told(work):
    work.scene.kill()
    port = free_port()
    worker = work.begin("work", "--health", f"127.0.0.1:{port}")
    until(lambda: "waiting for the server" in work.errors())
    assert work.errors().count("\n") == 2
    assert readiness(port) == (503, "waiting for the server\n")
    work.scene.start()
    with work.connect() as wire:
        job_id = wire.put(b"quick x")
        until(lambda: state(wire, job_id) is None)
    assert readiness(port) == (200, "ready\n")
    work.scene.kill()
    until(lambda: readiness(port) == (503, "waiting for the server\n"))
    worker.terminate()
    assert worker.wait(60) == 0
    other = work.begin()
    until(lambda: work.errors().count("waiting for the server") == 2)
    other.terminate()
    assert other.wait(60) == 0


def readiness(port):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=10) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as reply:
        return reply.code, reply.read().decode()


def test_server_that_ends_amid_the_first_commands_is_waited_for(work):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(20)
        worker = work.begin("work", "--connect", f"127.0.0.1:{listener.getsockname()[1]}")
        for _ in range(2):
            connection, _ = listener.accept()
            with connection, connection.makefile("rb") as lines:
                for reply in (b"UNKNOWN_COMMAND\r\n", b"USING default\r\n"):  # to name and list-tube-used
                    lines.readline()
                    connection.sendall(reply)
                assert lines.readline().startswith(b"watch ")
    worker.terminate()
    assert worker.wait(60) == 0
    assert "waiting for the server" in work.errors()


def test_worker_tells_each_reason_for_which_it_waits(work):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        worker = work.begin("work", "--connect", f"127.0.0.1:{listener.getsockname()[1]}")
        until(lambda: "Connection refused" in work.errors())
        listener.listen()
        listener.settimeout(30)
        connection, _ = listener.accept()
        with connection:
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n")
            until(lambda: "HTTP/1.1 400" in work.errors())
    worker.terminate()
    assert worker.wait(60) == 0


def test_job_in_hand_at_a_restart_is_lost_and_done_again(work):
    with work.connect() as wire:
        wire.put(b"waits long")
    worker = work.begin("work", "--concurrency", "2")
    until(lambda: work.log("begin") == ["long"])
    work.scene.kill()
    work.scene.start()
    until(lambda: work.log("begin") == ["long", "long"])
    work.let_end("long")
    until(lambda: sorted(work.outcomes()) == ["done", "lost"])
    worker.terminate()
    assert worker.wait(60) == 0


def test_failed_job_of_a_server_that_is_gone_is_lost_at_once(work):
    with work.connect() as wire:
        wire.put(b"waits late")
    worker = work.begin("fail_late", "--grace", "100s")
    until(lambda: work.log("begin") == ["late"])
    work.scene.kill()
    try:
        work.let_end("late")
        until(lambda: work.outcomes() == ["lost"])
        worker.terminate()
        assert worker.wait(60) == 0
    finally:
        work.scene.start()
