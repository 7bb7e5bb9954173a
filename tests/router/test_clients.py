"""Clients of the field with tubes on three servers behind a router, in the session that each has with a server."""

import os
import re
import subprocess

import pytest

from tests.clients.test_sessions import HERE, PROGRAMS, works
from tests.router.routers import start_router
from tests.support.needs import need
from tests.support.servers import start_beanlite

# The ids in the session, and those that the router gives: in the tube mails three, in the tube other one.
IDS = {"1": "64", "2": "128", "3": "192", "4": "65"}
SESSION_IDS = {outer: inner for inner, outer in IDS.items()}
# Where a program names an id.
NAMED = re.compile(r"(\w\(\"?)([1-4])\b")


@pytest.mark.parametrize("client", PROGRAMS)
def test_session(client, tmp_path):
    program = PROGRAMS[client]
    need(works(program.probe), f"{client} is not installed: {program.install}")
    *command, file = program.command.split()
    text = NAMED.sub(lambda match: match[1] + IDS[match[2]], (HERE / file).read_text(encoding="utf-8"))
    (tmp_path / file).write_text(text, encoding="utf-8")
    servers = [start_beanlite(tmp_path / str(number)) for number in range(3)]
    with start_router(tmp_path / "router", servers, [["mails"], ["other"], ["default"]], first=0) as router:
        done = subprocess.run(
            [*command, str(tmp_path / file), str(router.port)],
            cwd=HERE,
            env={**os.environ, "NODE_PATH": str(HERE / "node_modules")},
            capture_output=True,
            encoding="utf-8",
            timeout=30,
            check=False,
        )
    session = (HERE / "session.txt").read_text(encoding="utf-8").splitlines()
    expected = [line for line in session if line.partition(":")[0] not in program.lacks]
    said = re.sub(r"\b\d+\b", lambda match: SESSION_IDS.get(match[0], match[0]), done.stdout)
    assert said.splitlines() == expected, done.stderr
    assert "Traceback" not in router.log_text()
