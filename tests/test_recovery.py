"""The commands on the page about recovery do what it says, in the order in which they stand there."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.servers import free_port
from tests.support.wire import Wire

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "recovery.md").read_text(encoding="utf-8")
BEANLITE = f'#!/bin/sh\nexec {sys.executable} -m beanlite "$@"\n'
# In the place of systemd: it starts one server, and knows it by its file.
SYSTEMCTL = """#!/bin/sh
if [ "$1" = start ]; then
    beanlite serve -p $PORT -b /var/lib/beanlite 2>>$HOME/log & echo $! >$HOME/pid
    until grep -q 'started version' $HOME/log; do
        kill -0 $! || { cat $HOME/log; exit 1; } >&2
        sleep 0.02
    done
else
    kill $(cat $HOME/pid); while kill -0 $(cat $HOME/pid) 2>/dev/null; do sleep 0.02; done; rm $HOME/log
fi
"""


def commands(heading):
    """The blocks of commands below a heading."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"^```sh\n(.*?)^```", section, re.MULTILINE | re.DOTALL)


class Machine:
    """One on which /var/lib/beanlite and /var/backups/beanlite are folders of the test's."""

    def __init__(self, home):
        self.port = free_port()
        self.home = home
        self.data, self.backups = home / "data", home / "backups"
        self.data.mkdir()
        self.backups.mkdir()
        self.script("beanlite", BEANLITE)
        self.script("systemctl", self.here(SYSTEMCTL))

    def script(self, name, text):
        (self.home / name).write_text(text)
        (self.home / name).chmod(0o755)

    def here(self, text):
        return text.replace("/var/lib/beanlite", str(self.data)).replace("/var/backups/beanlite", str(self.backups))

    def run(self, script):
        environment = {
            "PATH": f"{self.home}:{os.environ['PATH']}",
            "HOME": str(self.home),
            "PORT": str(self.port),
            "PYTHONPATH": str(ROOT),
        }
        command = ["bash", "-euo", "pipefail", "-c", self.here(script)]
        subprocess.run(command, cwd=self.home, env=environment, check=True, timeout=60)

    def back_up(self):
        self.run("beanlite backup /var/backups/beanlite --db /var/lib/beanlite/beanlite.db")

    def wire(self):
        return Wire(socket.create_connection(("127.0.0.1", self.port), 10))

    def jobs(self):
        """The bodies of all jobs with small ids."""
        wire = self.wire()
        found = {}
        for job_id in range(1, 10):
            if wire.ask(f"peek {job_id}").startswith("FOUND"):
                found[job_id] = wire.body.decode()
        wire.socket.close()
        return found

    def put(self, tube, *bodies):
        wire = self.wire()
        wire.ask(f"use {tube}")
        for body in bodies:
            wire.put(body.encode())
        wire.socket.close()

    def pause(self, tube, seconds):
        wire = self.wire()
        assert wire.ask(f"pause-tube {tube} {seconds}") == "PAUSED"
        wire.socket.close()

    def statistics(self, tube):
        wire = self.wire()
        assert wire.ask(f"stats-tube {tube}").startswith("OK")
        wire.socket.close()
        return wire.body.decode()

    def delete(self, *job_ids):
        wire = self.wire()
        for job_id in job_ids:
            assert wire.ask(f"delete {job_id}") == "DELETED"
        wire.socket.close()


@pytest.fixture
def machine(tmp_path):
    machine = Machine(tmp_path)
    machine.run("systemctl start beanlite")
    machine.put("mail", "ann", "bob")
    machine.put("other", "x")
    yield machine
    machine.run("systemctl stop beanlite")


BEFORE = {1: "ann", 2: "bob", 3: "x"}


def test_the_newest_backup_is_good(machine):
    machine.back_up()
    (check,) = commands("Is there a backup, and is it any good?")
    machine.run(check)


def test_a_lost_disk(machine):
    machine.back_up()
    machine.put("mail", "lost")
    machine.run("systemctl stop beanlite")
    (machine.data / "beanlite.db").unlink()
    (restore,) = commands("The disk is lost")
    machine.run(restore)
    assert machine.jobs() == BEFORE


def test_a_damaged_file(machine):
    machine.run("systemctl stop beanlite")
    file = machine.data / "beanlite.db"
    content = file.read_bytes()
    assert content.count(b"otherready") == 1
    file.write_bytes(content.replace(b"otherready", b"anotherone"))
    (save,) = commands("The file is damaged")
    machine.run(f"systemctl() {{ [ $1 = stop ] || command systemctl $1; }}\n{save}")  # it is stopped already
    assert machine.jobs() == {1: "ann", 2: "bob"}


def test_a_copy_over_the_file_of_a_killed_server(machine):
    file = machine.data / "beanlite.db"
    machine.run(f"systemctl stop beanlite; cp {file} {machine.home}/copy.db; systemctl start beanlite")
    machine.put("mail", "new")
    machine.run(
        f"kill -9 $(cat $HOME/pid); tail --pid=$(cat $HOME/pid) -f /dev/null; cat {machine.home}/copy.db >{file}"
    )
    refused = (
        f"beanlite serve -p $PORT -b {machine.data} 2>refused || [ $? = 3 ]; grep 'belongs to another file' refused"
    )
    machine.run(refused)
    (save,) = commands("A copy was put over the file")
    machine.run(f"rm $HOME/log; systemctl() {{ [ $1 = stop ] || command systemctl $1; }}\n{save}")
    assert machine.jobs() == BEFORE | {4: "new"}


def test_a_wrong_delete(machine):
    machine.pause("mail", 3600)
    machine.back_up()
    machine.pause("mail", 0)
    machine.put("mail", "new")
    machine.delete(1, 3)
    (bring_back,) = commands("Somebody has deleted the wrong jobs")
    machine.run(bring_back)
    assert machine.jobs() == {1: "ann", 2: "bob", 4: "new"}
    assert "\npause: 0\n" in machine.statistics("mail")


def test_a_bad_deploy(machine):
    back_up, restore, undo = commands("A deploy has gone wrong")
    machine.run(back_up)
    machine.put("mail", "nonsense")
    machine.run(restore)
    assert machine.jobs() == BEFORE
    machine.put("mail", "after")
    machine.run(undo)
    assert machine.jobs() == BEFORE | {4: "nonsense"}


def test_each_block_of_commands_is_run():
    headings = re.findall(r"^## (.+)$", PAGE, re.MULTILINE)
    assert [len(commands(heading)) for heading in headings] == [1, 1, 1, 1, 1, 3, 0]
