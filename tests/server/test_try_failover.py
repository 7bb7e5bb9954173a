"""The commands of docs/postgresql.md, in order, from an empty folder to a failover that a client sees.

Only the ports are replaced, by free ones.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.needs import need
from tests.support.postgres import new_home, programs
from tests.support.servers import free_port
from tests.support.wire import until

PAGE = (Path(__file__).parents[2] / "docs" / "postgresql.md").read_text(encoding="utf-8")
PART = PAGE.partition("## Try it on one machine")[2].partition("\n## ")[0]
BLOCKS = re.findall(r"^```sh\n(.+?)^```\n", PART, re.MULTILINE | re.DOTALL)
PORT = r"\b\d{5}\b"
# PostgreSQL refuses to run as root, but the suite may run as root.
AS_ANOTHER = """
initdb() { setpriv --reuid=postgres --regid=postgres --clear-groups initdb "$@"; }
pg_ctl() { setpriv --reuid=postgres --regid=postgres --clear-groups pg_ctl "$@"; }
pg_basebackup() { setpriv --reuid=postgres --regid=postgres --clear-groups pg_basebackup "$@"; }
"""


class Shell:
    """A shell in a folder of its own, which runs block after block."""

    def __init__(self, folder):
        self.folder = folder
        self._ports = {port: str(free_port()) for port in set(re.findall(PORT, "".join(BLOCKS)))}
        folders = f"{Path(sys.executable).parent}:{programs()}:{os.environ['PATH']}"
        with (folder / "shell.log").open("wb") as log:
            self.process = subprocess.Popen(
                ["bash", "-eu"],
                cwd=folder,
                env=os.environ | {"PATH": folders},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        self.run(AS_ANOTHER if os.geteuid() == 0 else "true")

    def run(self, block):
        """Run a block, and return its output."""
        block = re.sub(PORT, lambda port: self._ports[port[0]], block)
        self.process.stdin.write(f"{block}\necho DONE\n")
        self.process.stdin.flush()
        said = ""
        while (line := self.process.stdout.readline()) != "DONE\n":
            assert line, (self.folder / "shell.log").read_text()
            said += line
        return said

    def end(self):
        for running in self.folder.glob("*/postmaster.pid"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(running.read_text().split()[0]), signal.SIGQUIT)
        until(lambda: not list(self.folder.glob("*/postmaster.pid")), 30)
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture
def shell():
    need(programs(), "PostgreSQL is not installed")
    shell = Shell(home := new_home())
    yield shell
    shell.end()
    shutil.rmtree(home)


def said_in(shell, name):
    """Return what a program has written to its log so far."""
    log = shell.folder / name
    return log.read_text() if log.exists() else ""


def numbers(shell):
    return [int(line.split()[0]) for line in said_in(shell, "client.log").splitlines() if "is job" in line]


def goes_on(shell):
    seen = len(numbers(shell))
    until(lambda: len(numbers(shell)) > seen + 5, 30)


def test_the_page_leads_to_a_failover(shell):
    databases, servers, client, lose_server, lose_primary, look, stop = BLOCKS
    shell.run(databases)
    shell.run(servers)
    until(lambda: "standing by" in said_in(shell, "second.log"))
    shell.run(client)
    goes_on(shell)
    shell.run(lose_server)
    goes_on(shell)
    assert "lease acquired" in said_in(shell, "second.log")
    shell.run(lose_primary)
    goes_on(shell)
    said = shell.run(look)
    told = numbers(shell)
    assert told == list(range(1, len(told) + 1))
    assert "second" in said
    assert int(re.findall(r"^ +(\d+)$", said, re.MULTILINE)[-1]) - len(told) in {0, 1}  # one may be under way
    shell.run(stop)
    until(lambda: "stopped" in said_in(shell, "second.log"))
