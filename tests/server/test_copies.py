"""A copy in the place of a killed server's file, and what other programs do that must not be taken for that."""

import os
import shutil
import sqlite3
from contextlib import closing

import pytest

from beanlite.cli import main
from beanlite.journal.sqlite.file.mark import ATTRIBUTE
from tests.support.needs import need_attributes
from tests.support.servers import ServerDied, start_beanlite
from tests.support.wire import Wire, put_bytes

STRAY = "-wal belongs to another file than"


@pytest.fixture(autouse=True)
def _attributes(tmp_path):
    need_attributes(tmp_path)


def put_all(wire, number, size=3):
    wire.send(put_bytes(b"x" * size) * number)
    return [int(wire.reply().split()[1]) for _ in range(number)]


def ready(folder):
    with start_beanlite(folder) as server, Wire(server.connect()) as wire:
        return wire.stats()["current-jobs-ready"]


@pytest.fixture
def copied(tmp_path):
    """A plain copy of a stopped file, and that file."""
    with start_beanlite(tmp_path) as server, Wire(server.connect()) as wire:
        put_all(wire, 3)
    shutil.copy(tmp_path / "queue.db", tmp_path / "copy")
    return tmp_path / "copy", tmp_path / "queue.db"


@pytest.mark.parametrize("number", [5, 300])
def test_copy_over_the_file_of_a_killed_server_is_refused(copied, tmp_path, number):
    copy, file = copied
    with start_beanlite(tmp_path) as server, Wire(server.connect()) as wire:
        for _ in range(10):
            put_all(wire, number // 5, 3000)
        server.kill()
    shutil.copyfile(copy, file)
    with pytest.raises(ServerDied, match=STRAY):
        start_beanlite(tmp_path)


@pytest.mark.parametrize("number", [5, 300])
def test_restore_over_such_a_copy_gives_no_id_out_again(copied, tmp_path, number):
    copy, file = copied
    assert main(["backup", str(tmp_path / "backup.db"), "--db", str(file)]) == 0
    with start_beanlite(tmp_path) as server, Wire(server.connect()) as wire:
        last_id = [put_all(wire, number // 5, 3000) for _ in range(10)][-1][-1]
        server.kill()
    shutil.copyfile(copy, file)
    assert main(["restore", str(tmp_path / "backup.db"), "--db", str(file)]) == 0
    with start_beanlite(tmp_path) as server, Wire(server.connect()) as wire:
        assert wire.put(b"x") > last_id


@pytest.mark.parametrize(
    "statements",
    [
        "CREATE TABLE theirs (a); PRAGMA wal_checkpoint(TRUNCATE)",
        "CREATE TABLE theirs (a); PRAGMA wal_checkpoint",
        "CREATE TABLE theirs (a); PRAGMA wal_checkpoint; INSERT INTO theirs VALUES (1)",
        "PRAGMA wal_checkpoint(TRUNCATE)",
        "PRAGMA wal_checkpoint(RESTART)",
        "VACUUM",
    ],
)
@pytest.mark.parametrize("first", [0, 5])
def test_server_keeps_its_own_wal_whatever_others_have_done(tmp_path, statements, first):
    with start_beanlite(tmp_path) as server, Wire(server.connect()) as wire:
        put_all(wire, first)
        with closing(sqlite3.connect(tmp_path / "queue.db", isolation_level=None)) as other:
            for statement in statements.split(";"):
                other.execute(statement).fetchall()
        put_all(wire, 5)
        server.kill()
    assert ready(tmp_path) == str(first + 5)


def test_nonsense_in_the_note_on_a_wal_is_ignored(tmp_path):
    with start_beanlite(tmp_path) as server, Wire(server.connect()) as wire:
        put_all(wire, 5)
        server.kill()
    for value in (b"a b c d e", b"\xff", b"", b"1 2 3 4"):
        os.setxattr(tmp_path / "queue.db-wal", ATTRIBUTE, value)
        assert main(["verify", str(tmp_path / "queue.db")]) == 0
    assert ready(tmp_path) == "5"
