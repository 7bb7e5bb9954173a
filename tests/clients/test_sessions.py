"""Clients of the field, in several languages, each in the same session with a real server.

A program of each client does what ``session.txt`` says and prints what came of it, so that its output is that file:
with beanlite, and with beanstalkd. One of them is tried on a PostgreSQL database as well; ``ALL_ON_POSTGRESQL=1`` makes
that all.
"""

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.needs import need
from tests.support.postgres import PART
from tests.support.servers import beanstalkd_program, start_beanlite, start_beanstalkd

HERE = Path(__file__).parent
NPM = "npm install --prefix tests/clients"


class Program(NamedTuple):
    """A client's program, and what tells whether the client is there."""

    command: str
    probe: tuple[str, ...]
    install: str
    lacks: tuple[str, ...] = ()  # the commands that this client has no, or no working, function for


PROGRAMS = {
    "pystalk": Program(
        f"{sys.executable} with_pystalk.py",
        (sys.executable, "-c", "import pystalk"),
        "pip install -e '.[dev]'",
        lacks=("list-tube-used", "list-tubes-watched", "touch"),
    ),
    "jackd": Program("node with_jackd.js", ("node", "-e", "require('jackd')"), NPM, lacks=("pause-tube",)),
    "node-beanstalk": Program("node with_node_beanstalk.js", ("node", "-e", "require('node-beanstalk')"), NPM),
    "pheanstalk": Program(
        "php with_pheanstalk.php",
        ("php", "-r", "require 'Pheanstalk/autoload.php';"),
        "Debian's php-cli and php-pda-pheanstalk",
    ),
    "beaneater": Program(
        "ruby with_beaneater.rb", ("ruby", "-e", "require 'beaneater'"), "Debian's ruby and ruby-beaneater"
    ),
}


def works(probe):
    try:
        return subprocess.run(probe, cwd=HERE, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


CASES = [(client, server) for client in PROGRAMS for server in ("beanlite", "beanstalkd")]
CASES += [(client, "postgresql") for client in list(PROGRAMS)[::PART]]


@pytest.mark.parametrize(("client", "server"), CASES)
def test_session(client, server, tmp_path, request):
    program = PROGRAMS[client]
    need(works(program.probe), f"{client} is not installed: {program.install}")
    if server == "beanstalkd":
        need(beanstalkd_program(), "beanstalkd is not installed")
    start = start_beanstalkd if server == "beanstalkd" else start_beanlite
    flags = []
    if server == "postgresql":
        flags = ["--database", request.getfixturevalue("database"), "--require-sync", "false"]
    with start(tmp_path, *flags) as running:
        done = subprocess.run(
            [*program.command.split(), str(running.port)],
            cwd=HERE,
            capture_output=True,
            encoding="utf-8",
            timeout=30,
            check=False,
        )
    session = (HERE / "session.txt").read_text(encoding="utf-8").splitlines()
    expected = [line for line in session if line.partition(":")[0] not in program.lacks]
    assert done.stdout.splitlines() == expected, done.stderr
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in running.log_text()
