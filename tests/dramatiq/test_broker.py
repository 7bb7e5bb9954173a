"""The broker for dramatiq: through kills, and in dramatiq's own suite, if DRAMATIQ names a checkout of that."""

import json
import os
import subprocess
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.clients.test_workers import Scene
from tests.support.needs import need
from tests.support.servers import start_beanlite

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
# What concerns brokers; the rest of the suite is about Redis, RabbitMQ and memcached, or about no broker.
SUITE = ("actors", "broker", "callbacks", "encoders", "generic_actors", "messages", "worker")
MIDDLEWARE = ("asyncio", "retries", "shutdown", "time_limit")
# These time a queue in memory: ten retries within 0.2 s, and messages that are there after 1 ms.
OF_MEMORY = "not zero_min_backoff and not zero_max_backoff and not process_messages_in_order"
KEYS = 200


@pytest.fixture(autouse=True)
def _dramatiq():
    need(find_spec("dramatiq"), "dramatiq is not installed")


class Actors:
    """A server, and the worker of dramatiq in a folder of its own."""

    def __init__(self, scene, folder):
        self.scene = scene
        self.folder = folder
        self.url = f"beanlite://127.0.0.1:{scene.port}"

    def begin(self):
        command = [sys.executable, "-m", "dramatiq", "-p", "1", "-t", "4", "actors"]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(HERE)]), "DRAMATIQ_SERVER": self.url}
        with (self.folder / "errors").open("ab") as errors:
            return subprocess.Popen(command, cwd=self.folder, env=environment, stderr=errors)

    def log(self):
        file = self.folder / "log"
        return file.read_text().split() if file.exists() else []

    def left(self):
        with self.scene.connect() as wire:
            stats = wire.stats()
            return sum(int(stats[f"current-jobs-{state}"]) for state in ("ready", "reserved", "delayed"))


@pytest.fixture
def actors(tmp_path):
    with Scene(tmp_path) as scene:
        actors = Actors(scene, tmp_path)
        worker = actors.begin()
        yield actors
        worker.terminate()
        assert worker.wait(30) == 0


@pytest.fixture
def broker(actors):
    from beanlite.dramatiq import BeanliteBroker

    broker = BeanliteBroker(actors.url)
    broker.declare_queue("default")
    yield broker
    broker.close()


def message(key):
    from dramatiq import Message

    return Message("default", "work", (key,), {}, {})


def test_messages_are_done_through_kills_of_the_server(actors, broker):
    from dramatiq.errors import BrokerConnectionError

    acknowledged = set()
    for number in range(KEYS):
        with suppress(BrokerConnectionError):  # it may be there or not
            broker.enqueue(message(str(number)), delay=1200 if number % 10 == 0 else None)
            acknowledged.add(str(number))
        if number % 50 == 25:
            actors.scene.kill()
            actors.scene.start()
    broker.join("default", timeout=60_000)
    assert acknowledged <= set(actors.log())
    assert len(acknowledged) >= KEYS - 4
    assert actors.left() == 0


def test_message_that_keeps_failing_is_buried_with_its_traceback(actors, broker):
    sent = broker.enqueue(message("fails"))
    broker.join("default", timeout=60_000)
    assert actors.log() == ["fails"] * 4
    with actors.scene.connect() as wire:
        wire.ask("use default")
        job_id = int(wire.ask("peek-buried").split()[1])
        assert json.loads(wire.body)["message_id"] == sent.message_id
        assert wire.ask(f"show-job {job_id}").startswith("OK")
        assert json.loads(wire.body)["note"].endswith("ValueError: as it is meant to\n")
    broker.flush_all()
    with actors.scene.connect() as wire:
        assert wire.stats()["current-jobs-buried"] == "0"


def test_server_that_is_away_is_an_error_of_dramatiqs(tmp_path):
    from dramatiq.errors import ConnectionFailed

    from beanlite.dramatiq import BeanliteBroker

    broker = BeanliteBroker(f"unix:{tmp_path}/none")
    broker.declare_queue("default")
    with pytest.raises(ConnectionFailed, match="no server can be reached"):
        broker.enqueue(message("x"))


@pytest.fixture
def url(tmp_path):
    with start_beanlite(tmp_path, "--no-journal") as server:
        yield f"beanlite://127.0.0.1:{server.port}"


def test_dramatiqs_own_suite_passes(url):
    checkout = os.environ.get("DRAMATIQ", "")
    need(checkout, "DRAMATIQ names no checkout of dramatiq")
    files = [f"tests/test_{name}.py" for name in SUITE] + [f"tests/middleware/test_{name}.py" for name in MIDDLEWARE]
    command = [sys.executable, "-m", "pytest", "-q", "-o", "addopts=", "-p", "no:cacheprovider"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(HERE), checkout]), "DRAMATIQ_SERVER": url}
    done = subprocess.run(
        [*command, "-k", OF_MEMORY, "-p", "as_stub", *files],
        cwd=checkout, env=environment, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
