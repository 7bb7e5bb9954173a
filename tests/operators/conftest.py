"""A server with jobs in all states, and its file; and three servers that share tubes out."""

import json
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest

from beanlite.cli import main
from beanlite.console.file import File
from beanlite.console.live import Live
from tests.support.fast_time import start_fast
from tests.support.servers import RunningServer, free_port, start_beanlite
from tests.support.wire import Wire, until


@dataclass
class Queue:
    """A server's queue, with the ids of its jobs by state."""

    server: RunningServer
    db: Path
    worker: Wire
    ready: list[int]
    reserved: list[int]
    delayed: list[int]
    buried: list[int]

    @property
    def all(self) -> list[int]:
        return sorted(self.ready + self.reserved + self.delayed + self.buried)

    @property
    def address(self) -> tuple[str, int]:
        return (self.server.host, self.server.port)


def filled(server: RunningServer) -> Queue:
    """Fill the queue: jobs in the tube mail, and one in another; the worker holds the reserved ones."""
    client, worker = Wire(server.connect()), Wire(server.connect())
    with client:
        client.ask("use mail")
        worker.ask("watch mail")
        ids = [client.put(b'{"to": "user%d@example.org"}' % n, pri=n % 3 + 1, ttr_s=600) for n in range(9)]
        delayed = [client.put(b"later \xff\x00", pri=5, delay_s=1000), client.put(b"much later", pri=5, delay_s=2000)]
        for job_id in ids[1], ids[0]:
            worker.ask(f"reserve-job {job_id}")
            worker.ask(f"bury {job_id} 7")
        for job_id in ids[2:4]:
            worker.ask(f"reserve-job {job_id}")
        client.ask("use other")
        ids.append(client.put(b"x" * 3000, pri=0))
        client.ask("pause-tube other 500")
    with File(server.directory / "queue.db") as file:  # reservations reach the file late
        until(lambda: file.stats().get("reserved") == 2)
    return Queue(server, server.directory / "queue.db", worker, ids[4:], ids[2:4], delayed, [ids[1], ids[0]])


@pytest.fixture(scope="module")
def queue(tmp_path_factory):
    """A queue for tests that only look."""
    with start_beanlite(tmp_path_factory.mktemp("queue")) as server:
        queue = filled(server)
        with queue.worker:
            yield queue


@pytest.fixture
def own_queue(tmp_path):
    """A queue for tests that change it."""
    with start_beanlite(tmp_path) as server:
        queue = filled(server)
        with queue.worker:
            yield queue


@pytest.fixture(params=["live", "file"])
def source(request, queue):
    """The live server and its file in turn: both give the same answers."""
    with Live(queue.address) if request.param == "live" else File(queue.db) as source:
        yield source


@pytest.fixture
def run(capsys):
    """Return a function that runs a command on a queue, and returns the exit code, stdout and stderr."""

    def run(queue, *words):
        exit_code = main([*words, "--connect", f"{queue.server.host}:{queue.server.port}"])
        printed = capsys.readouterr()
        return exit_code, printed.out, printed.err

    return run


NAMES = ("one", "two", "three")
FILE = """
    version = 7
    [servers.one]
    number = 1
    connect = "127.0.0.1:{one}"
    [servers.two]
    number = 2
    connect = ["127.0.0.1:{nobody}", "127.0.0.1:{two}"]
    tubes = ["mail", "mail.*"]
    [servers.three]
    number = 3
    connect = "127.0.0.1:{three}"
    tubes = "sms"
    hashed = false
    [moved]
    orders = {{ from = "two", to = "three" }}
"""


@dataclass
class Fleet:
    """Three servers, the file that lists them, and what runs a command on them."""

    servers: dict
    file: str
    capsys: pytest.CaptureFixture

    def run(self, *words, code=0):
        """Run a command; return the lines of stdout and of stderr."""
        exit_code = main([*words, "--servers", self.file])
        printed = self.capsys.readouterr()
        assert exit_code == code, printed
        return printed.out.splitlines(), printed.err.splitlines()

    def rows(self, *words, code=0):
        """Run a command that prints JSON lines; return the objects."""
        return [json.loads(line) for line in self.run(*words, "--json", code=code)[0]]

    def put(self, server, tube, *bodies, pri=1024):
        """Put jobs into a server, whichever the tube belongs to; return their ids."""
        with Wire(self.servers[server].connect()) as client:
            client.ask(f"use {tube}")
            return [client.put(body, pri=pri) for body in bodies]

    def states(self, *jobs):
        """Return the state of each of these jobs."""
        return [self.rows("job", job)[0]["state"] for job in jobs]


@pytest.fixture
def fleet(tmp_path, capsys):
    yield from started(start_beanlite, tmp_path, capsys)


@pytest.fixture
def fast_fleet(tmp_path, capsys):
    """The same, with servers for which time passes fast."""
    yield from started(start_fast, tmp_path, capsys)


def started(start, tmp_path, capsys):
    servers = {name: start(tmp_path / name) for name in NAMES}
    file = tmp_path / "servers.toml"
    file.write_text(FILE.format(nobody=free_port(), **{name: server.port for name, server in servers.items()}))
    yield Fleet(servers, str(file), capsys)
    for server in servers.values():
        server.signal(signal.SIGCONT)
        server.kill()
