"""``beanlite verify``: a line for each check, and an exit code."""

import errno
import json
import subprocess
import sys
from functools import partial

import pytest

from beanlite.cli import main
from beanlite.journal.sqlite.file.replay import changed_bodies
from beanlite.journal.sqlite.tools import verify
from beanlite.journal.sqlite.tools.reading import reading
from tests.support.journal_files import LARGE, ROOT, flip, make

# Holds a lock on a file until its stdin ends.
HOLDS = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
connection.execute("PRAGMA locking_mode = exclusive")
connection.execute("SELECT last_id FROM meta").fetchall()
print("held", flush=True)
sys.stdin.read()
"""

pytestmark = pytest.mark.usefixtures("clean_environment")


@pytest.fixture
def queue(tmp_path):
    path = tmp_path / "queue.db"
    make(path, batches=3)
    return path


def test_a_sound_one(queue, capsys):
    assert main(["verify", str(queue)]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[-1] == "bodies  ok      9 checksums are right"
    assert err == ""


def test_for_scripts(queue, capsys):
    assert main(["verify", str(queue), "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[-1] == {
        "check": "bodies",
        "sound": True,
        "said": "9 checksums are right",
        "ours": True,
    }


def test_a_damaged_one(queue, capsys):
    flip(queue, queue.read_bytes().index(LARGE[:100]))
    assert main(["verify", str(queue)]) == 3
    out, err = capsys.readouterr()
    assert "bodies  DAMAGED " in out
    assert err == f"beanlite: {queue} is not sound: bodies\n"


@pytest.mark.parametrize(("content", "said"), [(b"", "is empty"), (b"text", "is not an SQLite file")])
def test_one_that_is_not_ours_is_not_called_damaged(content, said, tmp_path, capsys):
    file = tmp_path / "other"
    file.write_bytes(content)
    assert main(["verify", str(file)]) == 3
    out, err = capsys.readouterr()
    assert out.startswith(f"file    REFUSED {file} {said}; ")
    assert err == f"beanlite: {file} can't be checked\n"


def test_one_that_is_not_there(capsys):
    assert main(["verify", "none.db"]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_without_a_file(capsys):
    assert main(["verify"]) == 2
    assert capsys.readouterr().err == "beanlite: name either a FILE or a --database\n"


def test_one_that_is_locked_is_not_called_damaged(queue, capsys, monkeypatch):
    monkeypatch.setattr(verify, "reading", partial(reading, wait_s=0))
    command = [sys.executable, "-c", HOLDS, queue]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        holder.stdout.readline()
        assert main(["verify", str(queue)]) == 1
        holder.stdin.close()
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"beanlite: {queue} can't be checked: {queue} can't be used: database is locked; ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(("body", "exit_code", "said"), [(LARGE, 3, "is not sound: bodies; the rest "), (b"", 1, "")])
def test_one_that_can_be_read_no_further(body, exit_code, said, queue, capsys, monkeypatch):
    """Damage that was found before is told all the same."""

    def read(connection):
        yield from changed_bodies(connection)
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(verify, "changed_bodies", read)
    if body:
        flip(queue, queue.read_bytes().index(body[:100]))
    assert main(["verify", str(queue)]) == exit_code
    out, err = capsys.readouterr()
    assert out.count("DAMAGED") == (exit_code == 3)
    why = f"{queue} can't be used: Input/output error; check the disk"
    assert err == f"beanlite: {queue} {said}can't be checked: {why}\n"


def test_installation_that_can_not_be_read_says_nothing_of_the_file(queue, tmp_path):
    (tmp_path / "beanlite").symlink_to(ROOT / "beanlite")  # without the migrations beside it
    command = [sys.executable, "-m", "beanlite", "verify", str(queue)]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    said = f"beanlite: {queue} can't be checked: installation can't be read: {tmp_path}/beanlite/"
    assert ran.stderr.startswith(said)
    assert (ran.stdout, ran.returncode) == ("", 1)
