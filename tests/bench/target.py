"""The servers to drive: running ones, and ones that are started for the bench."""

import contextlib
import random
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from os import environ
from pathlib import Path
from typing import Final

from beanlite.beanstalk.client import Address, Client, Server, Unreachable, connect, parse_server
from beanlite.client import calls
from beanlite.client.errors import ClientError
from beanlite.errors import BeanliteError, ConfigError
from tests.bench import machine

_BEANLITE: Final = (sys.executable, "-P", "-m", "beanlite")  # -P: not the sources in the current folder
_STARTS_WITHIN_S: Final = 30.0
_STOPS_WITHIN_S: Final = 30.0


class BenchFailed(BeanliteError):
    """A server can't be reached, or answers something other than it should."""


@dataclass(frozen=True, slots=True)
class Target:
    """A server that accepts connections."""

    name: str
    address: Server
    version: str
    pid: int | None
    """None if the server seems to be on another machine."""


def reached(place: str, files: Sequence[str | None] = ()) -> Target:
    """Return a running server, given as HOST:PORT, tls://HOST:PORT or unix:PATH, optionally after NAME=.

    ``files`` are those for TLS: of an authority, a certificate and its key. ConfigError, BenchFailed.
    """
    named = re.fullmatch(r"([^:/=]+)=(.+)", place)
    name, where = (named[1], named[2]) if named else (place, place)
    return _target(name, parse_server(where, *(files if where.startswith("tls://") else ())))


@contextlib.contextmanager
def started(command: str, directory: Path, cores: list[int] | None) -> Iterator[Target]:
    """Start a server by its command line, in a folder of its own below `directory`, which is removed at the end.

    The options -l and -p are added. "beanlite" is the one that is installed. ConfigError, BenchFailed.
    """
    words = _words(command)
    try:
        folder = Path(tempfile.mkdtemp(prefix="beanlite-bench-", dir=directory))
    except OSError as error:
        raise ConfigError(f"no folder can be made in {directory}: {error.strerror}; name another --dir") from error
    port = _free_port()
    log = folder / "server.log"
    process = None
    try:
        process = _launched([*words, "-l", "127.0.0.1", "-p", str(port)], log, cores)
        _wait_until_it_accepts(process, ("127.0.0.1", port), command, log)
        yield _target(command, ("127.0.0.1", port))
    finally:
        if process:
            _stop(process)
        shutil.rmtree(folder, ignore_errors=True)


def installed() -> tuple[str, bool]:
    """Return the version of the installed beanlite, and whether it is compiled; "" if there is none."""
    words = [*_BEANLITE, "--version"]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
    version = done.stdout.strip().removeprefix("beanlite ")
    return version.removesuffix(" (compiled)"), version.endswith(" (compiled)")


def is_beanlite(command: str) -> bool:
    """Whether a command line starts beanlite."""
    return any(Path(word).name == "beanlite" for word in command.split())


def _words(command: str) -> list[str]:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ConfigError(f"--against {command!r}: {error}") from error
    if not words:
        raise ConfigError("--against needs a command")
    return [*_BEANLITE, *words[1:]] if words[0] == "beanlite" else words


def _launched(words: list[str], log: Path, cores: list[int] | None) -> subprocess.Popen[bytes]:
    """Start a program in the folder of its log. ConfigError: it can't be started."""
    try:
        with log.open("wb") as sink, machine.children_on(cores):
            return subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                cwd=log.parent,
                env={key: value for key, value in environ.items() if not key.startswith("BEANLITE_")},
                start_new_session=True,  # Ctrl-C in the terminal is for the bench, which then stops the server
            )
    except FileNotFoundError as error:
        raise ConfigError(f"{words[0]} is not installed") from error
    except OSError as error:
        raise ConfigError(f"{words[0]} can't be started: {error.strerror}") from error


def _target(name: str, address: Server) -> Target:
    try:
        with Client(address) as client:
            stats = client.ask(calls.stats())
    except ClientError as error:
        raise BenchFailed(f"{name}: {error}") from error
    here = stats.get("hostname") == socket.gethostname() and isinstance(stats.get("pid"), int)
    return Target(name, address, str(stats.get("version", "")), int(stats["pid"]) if here else None)


def _wait_until_it_accepts(process: subprocess.Popen[bytes], address: Address, command: str, log: Path) -> None:
    end_s = time.monotonic() + _STARTS_WITHIN_S
    while time.monotonic() < end_s:
        with contextlib.suppress(Unreachable):
            connect(address).close()
            return
        if process.poll() is not None:
            said = log.read_text(errors="replace").strip().splitlines() or ["it said nothing"]
            raise BenchFailed(f"{command} ended with {process.returncode}: {said[-1]}")
        time.sleep(0.01)
    raise BenchFailed(f"{command} accepts no connection within {_STARTS_WITHIN_S:.0f} s")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOPS_WITHIN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _free_port() -> int:
    """Return a free port, below the range that the kernel uses for outgoing connections."""
    while True:
        port = random.randrange(12000, 32000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
