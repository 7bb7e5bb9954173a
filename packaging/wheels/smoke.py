"""Whether an installed beanlite works: it serves, and when it is killed it keeps the jobs, and counts them.

::

    python packaging/wheels/smoke.py [--compiled] COMMAND...

COMMAND is how beanlite is called, such as ``.venv/bin/beanlite`` or ``uvx --from FILE beanlite``. Python's own library
is enough for this script, whose exit code is 0 if all is well.
"""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

JOBS = 1000
WITHIN_S = 600  # in an emulator everything takes long


def main() -> None:
    """Check the beanlite of the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--compiled", action="store_true", help="it has to be compiled")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    asked = parser.parse_args()
    signal.signal(signal.SIGALRM, _too_late)
    signal.alarm(WITHIN_S)

    (version,) = _output(asked.command, "--version")
    _check(f"not compiled: {version}", version.endswith(" (compiled)") or not asked.compiled)
    with tempfile.TemporaryDirectory() as folder:
        with _served(asked.command, folder) as (process, address, _):
            _put(address)
            os.killpg(process.pid, signal.SIGKILL)
        with _served(asked.command, folder) as (process, address, page):
            counts = [json.loads(line) for line in _output(asked.command, "tubes", "--json", "--connect", address)]
            found = {tube["name"]: tube["ready"] for tube in counts}
            _check(f"jobs that are left: {found}", found == {"default": 0, "smoke": JOBS})
            with urllib.request.urlopen(page) as answer:  # noqa: S310 - the page of our own server
                _check("the page does not show the tube", b"smoke" in answer.read())
            process.terminate()
            _check("the stop was not in order", process.wait() == 0)
    print(f"{version}: {JOBS} jobs put, killed, counted")


def _too_late(*_: object) -> None:
    raise TimeoutError(f"not done within {WITHIN_S} s")


def _check(wrong: str, is_right: bool) -> None:  # noqa: FBT001 - the text beside it says what it is about
    if not is_right:
        sys.exit(f"smoke test failed: {wrong}")


def _output(command: list[str], *arguments: str) -> list[str]:
    ran = subprocess.run([*command, *arguments], stdout=subprocess.PIPE, text=True, check=True)
    return ran.stdout.splitlines()


@contextmanager
def _served(command: list[str], folder: str) -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    """Start a server on the folder; yield it, with its address and that of its page once they can be connected to."""
    flags = ("--port", "0", "--db", folder, "--web", "127.0.0.1:0", "--log-format", "json")
    # A session of its own, so that it can be killed as a whole, with what may have started it.
    process = subprocess.Popen([*command, "serve", *flags], stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert process.stderr is not None
        log: list[str] = []
        told: dict[str, dict[str, str]] = {}
        while not {"started", "serving the web page"} <= told.keys():
            log.append(process.stderr.readline())
            _check("".join(["it did not start:\n", *log]), log[-1] != "")
            if log[-1].startswith("{"):
                entry = json.loads(log[-1])
                told[entry["event"]] = entry
        yield process, told["started"]["address"], told["serving the web page"]["at"]
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def _put(address: str) -> None:
    """Put the jobs, and wait for each to be acknowledged."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port))) as client, client.makefile("rb") as replies:
        client.sendall(b"use smoke\r\n" + b"".join(b"put 0 0 60 4\r\n%04d\r\n" % number for number in range(JOBS)))
        _check("no tube", replies.readline() == b"USING smoke\r\n")
        for _ in range(JOBS):
            _check("a job was not accepted", replies.readline().startswith(b"INSERTED "))


if __name__ == "__main__":
    main()
