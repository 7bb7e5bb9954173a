"""Servers that fall silent or break off, for the workers and the producer of docs/workers*.md."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from contextlib import suppress

import pytest

from tests.clients.test_sessions import HERE
from tests.clients.test_workers import WORKERS, code, need_client
from tests.support.wire import until

LIMIT = re.compile(r"\b30(?=[,)]|_000\b)")  # of the pages, in seconds
STATS = b"---\nid: 1\nreserves: 1\npri: 5\n"
REPLIES = {
    b"use": b"USING mail\r\n",
    b"watch": b"WATCHING 2\r\n",
    b"ignore": b"WATCHING 2\r\n",
    b"list-tubes-watched": b"OK 14\r\n---\n- default\n\r\n",
    b"touch": b"TOUCHED\r\n",
    b"stats-job": b"OK %d\r\n%b\r\n" % (len(STATS), STATS),
    b"release": b"RELEASED\r\n",
    b"put": b"INSERTED 17\r\n",
}


class Odd:
    """A server that answers each command, but those that are said otherwise; None: with silence."""

    def __init__(self, **otherwise):
        self._replies = REPLIES | {word.encode(): reply for word, reply in otherwise.items()}
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self.connections = 0
        threading.Thread(target=self._listen, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        self._socket.close()

    def _listen(self):
        with suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                self.connections += 1
                threading.Thread(target=self._serve, args=(connection, self.connections), daemon=True).start()

    def _serve(self, connection, number):
        with suppress(OSError), connection, connection.makefile("rb") as lines:
            while line := lines.readline():
                word = line.split()[0].split(b"-with-")[0]
                if word == b"put":
                    lines.readline()
                reply = self._replies.get(word)
                if isinstance(reply, list):  # one for each connection
                    reply = reply[number - 1]
                connection.sendall(reply or b"")
                if reply and not reply.endswith(b"\r\n"):
                    break


@pytest.fixture
def begin(tmp_path):
    """Start the worker of a page, with a limit of a second and the port of a server."""
    workers = []

    def start(name, port):
        need_client(name)
        worker = WORKERS[name]
        shutil.copy(HERE / f"with_workers/app.{worker.file}", tmp_path)
        (tmp_path / "shop.py").write_text(code("python", "sqlite3"))
        text, limits = LIMIT.subn("1", code(worker.language, "TRIES =").replace("11300", str(port)))
        assert limits or name == "php"
        (tmp_path / f"worker.{worker.file}").write_text(text)
        limit = ["-d", "default_socket_timeout=1"] if name == "php" else []
        environment = os.environ | {"NODE_PATH": str(HERE / "node_modules")}
        command = [worker.command, *limit, f"worker.{worker.file}"]
        workers.append(subprocess.Popen(command, cwd=tmp_path, env=environment))

    yield start
    for worker in workers:
        worker.kill()
        worker.wait()


@pytest.mark.parametrize("word", ["touch", "delete"])
@pytest.mark.parametrize("name", WORKERS)
def test_worker_waits_for_no_reply_without_a_limit(begin, name, word):
    kind = "touches" if word == "touch" else "quick"
    body = json.dumps({"key": "key", "kind": kind, "cents": 3}).encode()
    job = b"RESERVED 1 %d\r\n%b\r\n" % (len(body), body)
    with Odd(**{"reserve": job, word: None}) as server:
        begin(name, server.port)
        until(lambda: server.connections > 1)


def test_producer_puts_again_when_a_reply_breaks_off(tmp_path):
    with Odd(put=[b"INSERTED 1", b"INSERTED 17\r\n"]) as server:
        (tmp_path / "producer.py").write_text(code("python", "def put").replace("11300", str(server.port)))
        command = [sys.executable, "-c", "import producer; print(producer.put({'key': 'invoice-4711'}))"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
        assert (done.stdout, done.stderr, server.connections) == ("17\n", "", 2)
