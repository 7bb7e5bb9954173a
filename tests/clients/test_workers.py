"""The workers and the producer of docs/workers*.md, taken out of the pages, with a real server.

Their work, in ``with_workers/``, writes a line into a log when it begins and one when it ends, with the
time of `CLOCK_MONOTONIC`, which is the same in all languages.
"""

import json
import os
import re
import shutil
import socket
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from contextlib import closing, contextmanager, suppress
from functools import cache, partial
from itertools import count
from typing import NamedTuple

import pytest

from tests.clients.test_sessions import HERE, PROGRAMS, works
from tests.support.forks import fork
from tests.support.needs import need
from tests.support.servers import free_port
from tests.support.wire import Wire, until

PAGES = "".join(file.read_text(encoding="utf-8") for file in sorted((HERE.parents[1] / "docs").glob("workers*.md")))
TRIES = 5  # of the pages
EACH = 3  # jobs that each worker does in each life of the server, at least
WAITING_MAX = 20  # jobs that producers let wait


class Worker(NamedTuple):
    """A worker of the pages."""

    client: str
    command: str
    file: str
    language: str


WORKERS = {
    "python": Worker("greenstalk", sys.executable, "py", "python"),
    "php": Worker("pheanstalk", "php", "php", "php"),
    "ruby": Worker("beaneater", "ruby", "rb", "ruby"),
    "javascript": Worker("jackd", "node", "js", "js"),
}


def code(language, word):
    """The block of the pages in this language that has this word in it."""
    blocks = re.findall(rf"^```{language}\n(.+?)^```", PAGES, re.MULTILINE | re.DOTALL)
    (block,) = [block for block in blocks if word in block]
    return block


@cache
def is_there(name):
    program = PROGRAMS.get(WORKERS[name].client)
    return program is None or works(program.probe)  # greenstalk is always there


def need_client(name):
    client = WORKERS[name].client
    need(is_there(name), f"{client} is not installed")


class Scene:
    """A server that is killed and started again, and a folder for each worker."""

    def __init__(self, folder):
        self.folder = folder
        self.port = free_port()
        self.programs = []
        self.start()

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        for program in self.programs:
            program.kill()
            program.wait()
        self.kill()
        assert "Traceback" not in self.server_log()

    def server_log(self):
        return (self.folder / "server.log").read_text()

    def start(self):
        args = ["serve", "-l", "127.0.0.1", "-p", str(self.port), "--db", str(self.folder / "queue.db")]
        with (self.folder / "server.log").open("ab") as log:
            self.process = fork(args, self.folder, os.environ, log)
        until(self.answers)

    def answers(self):
        assert self.process.poll() is None, self.server_log()
        with suppress(OSError), self.connect() as wire:
            return wire.ask("list-tube-used")

    def kill(self):
        self.process.kill()
        self.process.wait()

    def connect(self):
        return Wire(socket.create_connection(("127.0.0.1", self.port), 10))

    def prepare(self, name):
        """Make the folder of a worker, with its program, and return it."""
        folder = self.folder / name
        if not folder.exists():
            folder.mkdir()
            worker = WORKERS[name]
            shutil.copy(HERE / f"with_workers/app.{worker.file}", folder)
            self.write(name, f"worker.{worker.file}", code(worker.language, "TRIES ="))
            if name == "python":
                self.write(name, "shop.py", code("python", "sqlite3"))
                self.write(name, "producer.py", code("python", "def put"))
                shutil.copy(HERE / "with_workers/produce.py", folder)
        return folder

    def write(self, name, file, text):
        """Write a program of the pages, with the port and the tubes of this test."""
        text = re.sub(r"""(["'])(mail|reports)\1""", rf"\1{name}.\2\1", text.replace("11300", str(self.port)))
        (self.folder / name / file).write_text(text, encoding="utf-8")

    def popen(self, name, *command, **files):
        environment = os.environ | {"NODE_PATH": str(HERE / "node_modules")}
        self.programs.append(subprocess.Popen(command, cwd=self.prepare(name), env=environment, **files))
        return self.programs[-1]

    def begin(self, name):
        """Start a worker."""
        with (self.prepare(name) / "stderr").open("ab") as errors:
            return self.popen(name, WORKERS[name].command, f"worker.{WORKERS[name].file}", stderr=errors)

    @contextmanager
    def worker(self, name):
        """A worker, which is killed at the end if it is still there."""
        process = self.begin(name)
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def log(self, name, word):
        """The keys of the jobs that have begun or ended, as often as they have."""
        file = self.folder / name / "log"
        lines = file.read_text().splitlines() if file.exists() else []
        return [line.split()[1] for line in lines if line.startswith(word)]

    def has_done(self, name, jobs):
        return len(self.log(name, "end")) >= jobs

    def let_end(self, name, key):
        """Let the work of a job end."""
        (self.folder / name / f"end-{key}").touch()


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    with Scene(tmp_path_factory.mktemp("workers")) as scene:
        yield scene


@pytest.fixture(params=WORKERS)
def name(request):
    need_client(request.param)
    return request.param


@pytest.fixture
def wire(scene, name):
    """A connection that uses and watches a tube of the worker."""
    with scene.connect() as wire:
        wire.ask(f"use {name}.mail")
        wire.ask(f"watch {name}.mail")
        yield wire


def task(key, kind="quick"):
    return json.dumps({"key": key, "kind": kind, "cents": 3}).encode()


def state(wire, job_id):
    """The state of a job; None if it is gone."""
    reply = wire.ask(f"stats-job {job_id}")
    return None if reply == "NOT_FOUND" else re.findall(r"^state: (\w+)", wire.body.decode(), re.MULTILINE)[0]


def kicked(wire, job_id):
    """Kick a job whenever it is delayed, until it is buried, and return the delays."""
    delays = []
    while True:
        until(lambda: state(wire, job_id) in {"delayed", "buried"})
        stats = wire.stats(f"stats-job {job_id}")
        if stats["state"] == "buried":
            return delays
        delays.append(int(stats["delay"]))
        assert wire.ask(f"kick-job {job_id}") == "KICKED"


@pytest.mark.parametrize("body", [task("fails", "fails"), b"\xff\xfe"], ids=["work", "decoding"])
def test_failing_job_is_released_ever_later_and_then_buried(scene, name, wire, body):
    job_id = wire.put(body, pri=7)
    with scene.worker(name):
        assert kicked(wire, job_id) == [2**tries for tries in range(1, TRIES)]
    stats = wire.stats(f"stats-job {job_id}")
    assert (stats["reserves"], stats["pri"]) == (str(TRIES), "7")
    wire.ask(f"delete {job_id}")


def test_stopped_worker_finishes_the_job_that_it_touches(scene, name, wire):
    job_id, next_id = wire.put(task("long", "touches")), wire.put(task("next"))
    with scene.worker(name) as worker:
        touches = int(wire.stats()["cmd-touch"])
        until(lambda: int(wire.stats()["cmd-touch"]) > touches)
        worker.terminate()
        touches = int(wire.stats()["cmd-touch"])
        until(lambda: int(wire.stats()["cmd-touch"]) > touches + 5)  # it goes on
        scene.let_end(name, "long")
        assert worker.wait(60) == 0
    assert (state(wire, job_id), state(wire, next_id)) == (None, "ready")
    wire.ask(f"delete {next_id}")


@pytest.mark.parametrize("kind", ["touches", "hangs"])
def test_worker_goes_on_after_a_job_was_taken_from_it(scene, name, wire, kind):
    job_id = wire.put(task(kind, kind))
    with scene.worker(name):
        until(lambda: kind in scene.log(name, "begin"))
        wire.ask(f"pause-tube {name}.mail 60")  # or the worker might take it again
        wire.request("change-jobs", do="release", ids=[job_id])
        assert wire.ask(f"reserve-job {job_id}").startswith("RESERVED ")
        wire.ask(f"pause-tube {name}.mail 0")
        scene.let_end(name, kind)
        next_id = wire.put(task(f"after {kind}"))
        until(lambda: state(wire, next_id) is None)
    assert f"job {job_id} is not ours any more" in (scene.folder / name / "stderr").read_text(errors="replace")
    assert wire.ask(f"delete {job_id}") == "DELETED"


def test_worker_waits_for_a_server_and_outlives_its_restart(scene, name):
    with scene.connect() as wire:
        bait = wire.put(task("bait"))  # in the tube default, which no worker watches
        wire.ask(f"use {name}.reports")
        wire.put(task("amid", "hangs"))
    scene.kill()
    errors = scene.prepare(name) / "stderr"
    errors.unlink(missing_ok=True)
    with scene.worker(name):
        until(lambda: "connecting again" in errors.read_text(errors="replace"))
        scene.start()
        until(lambda: "amid" in scene.log(name, "begin"))
        scene.kill()
        scene.start()
        scene.let_end(name, "amid")
        with scene.connect() as wire:
            wire.ask(f"use {name}.mail")
            next_id = wire.put(task("after a restart"))
            until(lambda: state(wire, next_id) is None)
            assert state(wire, bait) == "ready"
            wire.ask(f"delete {bait}")


def test_worker_that_waits_ends_when_it_is_told(scene, name, wire):
    with scene.worker(name) as worker:
        until(lambda: wire.stats(f"stats-tube {name}.mail")["current-waiting"] == "1")
        worker.terminate()
        assert worker.wait(60) == 0


def test_worker_that_is_stopped_under_load_does_no_job_twice(scene, name, wire):
    keys = [f"load-{number}" for number in range(30)]
    job_ids = [wire.put(task(key)) for key in keys]
    before = len(scene.log(name, "end"))
    with scene.worker(name) as worker:
        until(lambda: scene.has_done(name, before + EACH))
        worker.terminate()
        assert worker.wait(60) == 0
    with scene.worker(name):
        until(lambda: state(wire, job_ids[-1]) is None)
    assert [key for key in scene.log(name, "begin") if key in keys] == keys
    assert [state(wire, job_id) for job_id in job_ids] == [None] * len(job_ids)


class Producer(threading.Thread):
    """Puts jobs for these workers through kills, and has the producer of the page put some as well."""

    def __init__(self, scene, names):
        super().__init__()
        self._scene = scene
        self._enough = threading.Event()
        self._acknowledged = {name: set() for name in names}
        self._told = scene.prepare("python") / "acknowledged"
        with self._told.open("wb") as told:
            self._other = scene.popen("python", sys.executable, "produce.py", stdin=subprocess.PIPE, stdout=told)

    def run(self):
        numbers = count()
        while not self._enough.is_set():
            with suppress(OSError), self._scene.connect() as wire:
                while not self._enough.is_set():
                    self._put(wire, next(numbers))

    def _put(self, wire, number):
        until(lambda: int(wire.stats()["current-jobs-ready"]) < WAITING_MAX)
        self._other.stdin.write(b"other-%d\n" % number)
        self._other.stdin.flush()
        for name, keys in self._acknowledged.items():
            wire.ask(f"use {name}.{('mail', 'reports')[number % 2]}")
            wire.put(task(key := f"job-{number}"))
            keys.add(key)

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_error):
        self._enough.set()
        self.join()
        self._other.stdin.close()

    def acknowledged(self):
        """The keys of the jobs for each worker whose put was acknowledged; it has ended."""
        assert self._other.wait(60) == 0
        others = set(self._told.read_text().split())
        assert others
        return self._acknowledged | {"python": self._acknowledged["python"] | others}


@pytest.mark.parametrize("kills", [5, pytest.param(100, marks=pytest.mark.nightly)])
def test_workers_do_all_acknowledged_jobs_through_kills(tmp_path, kills):
    names = [name for name in WORKERS if is_there(name)]
    with Scene(tmp_path) as scene:
        with scene.connect() as wire:
            bait = wire.put(task("bait"))  # in the tube default, which no worker watches
        workers = {name: scene.begin(name) for name in names}
        with Producer(scene, names) as producer:
            for number in range(kills):
                for name in names:
                    until(partial(scene.has_done, name, len(scene.log(name, "end")) + EACH))
                killed = names[number % len(names)]
                workers[killed].kill()
                scene.kill()
                scene.start()
                workers[killed] = scene.begin(killed)
        acknowledged = producer.acknowledged()
        with scene.connect() as wire:
            until(lambda: (wire.stats()["current-jobs-ready"], wire.stats()["current-jobs-reserved"]) == ("1", "0"))
            assert wire.stats()["current-jobs-delayed"] == wire.stats()["current-jobs-buried"] == "0"
            assert state(wire, bait) == "ready"
        for worker in workers.values():
            worker.terminate()
        assert {worker.wait(60) for worker in workers.values()} == {0}
        for name in names:
            begun, ended = (Counter(scene.log(name, word)) for word in ("begin", "end"))
            assert acknowledged[name] <= ended.keys()
            # After a kill a worker does one job again, and the producer of the page puts one again.
            assert begun.total() - len(begun) <= kills * (2 if name == "python" else 1)
        with closing(sqlite3.connect(tmp_path / "python/shop.db")) as shop:
            ((cents,),) = shop.execute("SELECT cents FROM account")
        assert cents == sum(5 if key.startswith("other") else 3 for key in set(scene.log("python", "end")))
    for name in WORKERS:
        need_client(name)
