"""Real server processes for the wire tests: beanlite, and Debian's beanstalkd as the reference.

::

    with start_beanlite(directory) as server:
        with server.connect() as client:
            client.sendall(b"stats\\r\\n")

Each gets a free port on 127.0.0.1, and the call returns when it accepts a connection. If another program takes the port
in the meantime, another port is tried.
"""

import contextlib
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from tests.support.forks import Fork, fork

Process = subprocess.Popen[bytes] | Fork

# Of the moment of import: servers also start in the background, while a test sets variables, and pytest does.
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
STARTS_WITHIN_S = 20.0
STOPS_WITHIN_S = 30.0
TRIES = 5
CHANCE = random.SystemRandom()  # the global generator is seeded by Hypothesis, the same in each run
# Each process that runs tests has ports of its own.
PORTS = range(12_000, 32_000)
SHARES = 16
GIVEN: set[int] = set()
GIVEN_LOCK = threading.Lock()


class ServerDied(Exception):
    """A server ended, or did not accept connections in time; the text includes its stderr."""


class RunningServer:
    """A server process that accepts connections. Leaving its ``with`` stops it.

    ``log`` is the file of its stderr (and stdout); ``directory`` is its working directory.
    """

    def __init__(self, process: Process, port: int, directory: Path, log: Path) -> None:
        self.process = process
        self.host = "127.0.0.1"
        self.port = port
        self.directory = directory
        self.log = log

    def connect(self, timeout_s: float = 10.0) -> socket.socket:
        """Open a connection; each send leaves as a packet of its own."""
        client = socket.create_connection((self.host, self.port), timeout_s)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return client

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        self.process.send_signal(number)

    def stop(self) -> int:
        """Stop the server in an orderly way (SIGTERM) and return its exit code; it may have ended already."""
        self.process.terminate()
        try:
            return self.process.wait(STOPS_WITHIN_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ServerDied(f"no stop within {STOPS_WITHIN_S} s of SIGTERM: {self.log_text()}") from None

    def kill(self) -> None:
        """Kill it (SIGKILL) and wait for its end."""
        self.process.kill()
        self.process.wait()

    def log_text(self) -> str:
        """Return what the process has written to stderr so far."""
        return self.log.read_text(errors="replace")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.stop()
        else:
            self.kill()


def start_beanlite(
    directory: Path,
    *flags: str,
    environment: dict[str, str] | None = None,
    before: str | None = None,
    forked: bool = True,
) -> RunningServer:
    """Start ``beanlite serve`` with its database ``queue.db`` in the directory, unless a flag says otherwise.

    ``before`` is a command, such as ulimit, for the shell that becomes the server. Without it, and if the environment
    has nothing that the linker or Python itself reads, the server is a fork (tests/support/forks.py), unless a test of
    the start wants it to be ``python -m beanlite``.
    """
    environment = environment or {}
    if "--no-journal" not in flags and "--database" not in flags:
        flags = ("--db", str(directory / "queue.db"), *flags)
    if forked and before is None and not any(name.startswith(("LD_", "MALLOC_", "PYTHON")) for name in environment):
        return _start(["serve", *flags], directory, environment, fork)
    command = [sys.executable, "-m", "beanlite", "serve"]
    if before is not None:
        command = ["sh", "-c", f'{before} && exec "$@"', "sh", *command]
    return _start([*command, *flags], directory, environment)


def start_beanstalkd(directory: Path, *flags: str, environment: dict[str, str] | None = None) -> RunningServer:
    """Start the reference server, found on PATH; it keeps no binlog unless ``-b`` is among the flags."""
    return _start([beanstalkd_program() or "beanstalkd", *flags], directory, environment or {})


def beanstalkd_program() -> str | None:
    """Return the path of the reference server; None if it is not installed."""
    return shutil.which("beanstalkd")


def beanstalkd_version() -> tuple[int, ...]:
    """Return the version of the reference server, such as (1, 12)."""
    said = subprocess.run([beanstalkd_program() or "beanstalkd", "-v"], capture_output=True, text=True, check=True)
    found = re.search(r"(\d+)\.(\d+)", said.stdout)
    if found is None:
        raise ValueError(f"no version in {said.stdout!r}")
    return int(found[1]), int(found[2])


def _execute(command: list[str], directory: Path, environment: dict[str, str], output: BinaryIO) -> Process:
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=directory, env=environment
    )


def _start(
    command: list[str],
    directory: Path,
    environment: dict[str, str],
    begin: Callable[[list[str], Path, dict[str, str], BinaryIO], Process] = _execute,
) -> RunningServer:
    directory.mkdir(parents=True, exist_ok=True)
    log = directory / "server.log"
    environment = ENVIRONMENT | environment
    for attempt in range(TRIES):
        port = free_port()
        with log.open("wb") as sink:
            process = begin([*command, "-l", "127.0.0.1", "-p", str(port)], directory, environment, sink)
        server = RunningServer(process, port, directory, log)
        if _wait_until_it_accepts(server):
            return server
        if attempt + 1 == TRIES or "in use" not in server.log_text():
            break
    raise ServerDied(f"{command} ended with {process.returncode}: {server.log_text()}")


def _wait_until_it_accepts(server: RunningServer) -> bool:
    """Wait until the server accepts connections; return False if the process ends first."""
    end = time.monotonic() + STARTS_WITHIN_S
    while time.monotonic() < end:
        if server.process.poll() is not None:
            return False
        # A server listens before it knows whether it can serve: if not, it ends a connection that is being made.
        with contextlib.suppress(ConnectionError), server.connect() as client:
            # Wait for the end of this connection, or the first test might still find it in the statistics.
            client.sendall(b"quit\r\n")
            client.recv(1)
            return True
        time.sleep(0.005)
    server.kill()
    raise ServerDied(f"no connection accepted within {STARTS_WITHIN_S} s: {server.log_text()}")


@cache
def _share() -> range:
    """Return the ports of this process: a name that only one socket can have keeps them until the process ends."""
    for number in range(SHARES):
        with socket.socket(socket.AF_UNIX) as holder, contextlib.suppress(OSError):
            holder.bind(f"\0beanlite-tests-{number}")
            holder.detach()
            return PORTS[number::SHARES]
    return PORTS


def free_port() -> int:
    """Return an unused port, from below the range that the kernel gives to outgoing connections.

    No port is returned twice in a row of many, nor by two processes that run tests, be it those of another run: of two
    servers that start on the same port at the same time, one would end, but the connections to both might already have
    been accepted by the other; and a server that is started again needs its port again.
    """
    while True:
        port = CHANCE.choice(_share())
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        with GIVEN_LOCK:
            if len(GIVEN) > len(_share()) / 2:
                GIVEN.clear()
            if port not in GIVEN:
                GIVEN.add(port)
                return port
