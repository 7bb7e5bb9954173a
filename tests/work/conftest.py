"""A server, and workers of it in their own processes."""

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from tests.clients.test_workers import Scene
from tests.support.wire import until

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent


class Work:
    """A server that can be killed and started again, and a folder with the functions for workers."""

    def __init__(self, scene, folder):
        self.scene = scene
        self.folder = folder
        self.tube = uuid.uuid4().hex
        self.workers = []
        (folder / "app.py").write_bytes((HERE / "app.py").read_bytes())

    def begin(self, function="work", *flags, stdout=None, stderr=None):
        """Start a worker, whose lines and log go into files unless there is another place for them."""
        command = [sys.executable, "-P", "-m", "beanlite", "work", f"app:{function}", "--tube", self.tube]
        command += flags if "--connect" in flags else ["--connect", f"127.0.0.1:{self.scene.port}", *flags]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        with (self.folder / "out").open("ab") as out, (self.folder / "errors").open("ab") as errors:
            places = {"stdout": stdout or out, "stderr": stderr or errors}
            worker = subprocess.Popen(command, cwd=self.folder, env=environment, **places)
        self.workers.append(worker)
        return worker

    def end(self):
        for worker in self.workers:
            worker.kill()
            worker.wait()

    def connect(self):
        """A connection that uses and watches the tube."""
        wire = self.scene.connect()
        try:
            wire.ask(f"use {self.tube}")
            wire.ask(f"watch {self.tube}")
        except BaseException:
            wire.close()
            raise
        return wire

    def log(self, word):
        file = self.folder / "log"
        lines = file.read_text().splitlines() if file.exists() else []
        return [line.split()[1] for line in lines if line.startswith(word)]

    def has_done(self, jobs):
        return len(self.log("end")) >= jobs

    def let_end(self, key):
        (self.folder / f"end-{key}").touch()

    def lines(self):
        """The lines of the workers, one for each job."""
        return [json.loads(line) for line in (self.folder / "out").read_text().splitlines()]

    def outcomes(self):
        return [line["outcome"] for line in self.lines()]

    def errors(self):
        file = self.folder / "errors"
        return file.read_text(errors="replace") if file.exists() else ""

    def until_waits(self, wire, clients=1):
        until(lambda: stats_tube(wire, self.tube).get("current-waiting") == str(clients))


def stats_tube(wire, tube):
    return wire.stats(f"stats-tube {tube}") if wire.ask(f"stats-tube {tube}") != "NOT_FOUND" else {}


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    with Scene(tmp_path_factory.mktemp("server")) as scene:
        yield scene


@pytest.fixture
def work(scene, tmp_path):
    work = Work(scene, tmp_path)
    yield work
    work.end()


@pytest.fixture
def wire(work):
    with work.connect() as wire:
        yield wire
