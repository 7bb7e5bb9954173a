"""Verify finds nothing in a sound file, whoever has it open, and each kind of damage with the check for it."""

import os
import shutil
import sqlite3
import subprocess
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from beanlite.errors import BeanliteError
from beanlite.journal.sqlite.file.database import open_database
from beanlite.journal.sqlite.file.fileformat import PAGE_SIZE
from beanlite.journal.sqlite.file.migrations import allow_writing
from beanlite.journal.sqlite.tools.backup import backup
from beanlite.journal.sqlite.tools.verify import verify
from tests.support.journal_files import LARGE, flip, make, make_killed, snapshot, write_batch, writer
from tests.support.needs import need

CHECKS = ["file", "pages", "log", "sqlite", "schema", "state", "jobs", "bodies"]


def unsound(path):
    """Return the checks that find damage, with their messages."""
    return {finding.check: finding.said for finding in verify(path) if not finding.sound}


def test_a_stopped_database_is_sound_and_only_read(path):
    make(path, batches=3)
    before = snapshot(path.parent)
    found = list(verify(path))
    assert [finding.check for finding in found] == CHECKS
    assert all(finding.sound for finding in found)
    said = {finding.check: finding.said for finding in found}
    assert said["jobs"] == "9 ready"
    assert said["state"] == "last id 9, 0 pauses, 0 policies, 0 schedules, 0 notes"
    assert snapshot(path.parent) == before


def test_a_database_that_is_written_to_is_sound_each_time(path):
    with writer(path):
        for _ in range(10):
            assert unsound(path) == {}


def test_what_a_killed_server_has_left_is_sound_and_only_read(path):
    make_killed(path, batches=10)
    before = [file.read_bytes() for file in (path, Path(f"{path}-wal"))]
    said = {finding.check: finding.said for finding in verify(path)}
    assert said["jobs"] == "30 ready"
    assert said["log"] == "10 commits in the -wal"
    assert [file.read_bytes() for file in (path, Path(f"{path}-wal"))] == before


def test_a_damaged_wal_is_found_though_sqlite_says_nothing(path):
    make_killed(path, batches=10)
    flip(Path(f"{path}-wal"), 5 * (PAGE_SIZE + 24))
    assert "commits follow a damaged frame of its -wal" in unsound(path)["log"]


@contextmanager
def snapshot_of_five_more(path):
    """Yield the file in a folder where nobody may write, with five more commits in its -wal than its -shm tells."""
    need(os.geteuid() == 0, "only root can mount")
    folder = path.with_name("snapshot")
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", str(folder)], check=True)
    try:
        with closing(open_database(path)) as database:
            for batch in range(1, 11):
                write_batch(database.connection, batch)
                if batch == 5:
                    shutil.copy(f"{path}-shm", folder)
            for file in (path, f"{path}-wal"):
                shutil.copy(file, folder)
        yield folder / path.name
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def make_read_only(folder):
    subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)


def test_shm_of_a_snapshot_is_older_than_its_wal(path):
    with snapshot_of_five_more(path) as copy:
        make_read_only(copy.parent)
        said = {finding.check: finding.said for finding in verify(copy) if finding.sound}
        assert list(said) == CHECKS
        assert said["log"] == "10 commits in the -wal"
        assert said["jobs"] == "30 ready"
        assert backup(copy, path.with_name("backup.db")).jobs == 30


def test_damaged_wal_of_a_snapshot_is_found(path):
    with snapshot_of_five_more(path) as copy:
        flip(Path(f"{copy}-wal"), 20 * (PAGE_SIZE + 24))
        make_read_only(copy.parent)
        found = {finding.check: finding for finding in verify(copy)}
        assert found["jobs"].said == "9 ready"
        assert "7 commits follow a damaged frame of its -wal" in found["log"].said
        assert not found["log"].sound


def test_a_body_that_has_changed_is_found(path):
    make(path, batches=3)
    flip(path, path.read_bytes().index(LARGE[:100]))
    assert unsound(path).keys() == {"bodies"}


@pytest.mark.parametrize(
    ("statement", "check", "said"),
    [
        ("UPDATE meta SET last_id = 8", "state", "meta row has impossible values"),
        ("DELETE FROM meta", "state", "table meta is empty"),
        ("INSERT INTO pauses VALUES ('a b', 1, 1.0)", "state", "row of pauses has impossible values"),
        ("INSERT INTO pauses VALUES ('a', 1, 1e300)", "state", "row of pauses has impossible values"),
        ("DELETE FROM bodies WHERE id = 3", "bodies", "the body of job 3 is missing"),
        ("DELETE FROM jobs WHERE id = 3", "bodies", "of job 3, belongs to no row"),
        ("INSERT INTO bodies VALUES (1, x'00')", "bodies", "of job 1, belongs to no row"),
        ("UPDATE jobs SET crc32 = 1 WHERE id = 2", "bodies", "the body of job 2 has changed"),
        ("UPDATE jobs SET tube = 'a b' WHERE id = 2", "jobs", "the row of job 2 has changed"),
        ("UPDATE jobs SET pri = -1 WHERE id = 2", "jobs", "the row of job 2 has changed"),
        ("UPDATE jobs SET due_at = 1.0 WHERE id = 2", "jobs", "the row of job 2 has changed"),
        ("UPDATE jobs SET buried_seq = 1 WHERE id = 2", "jobs", "the row of job 2 has changed"),
        ("UPDATE jobs SET state = 'delayed' WHERE id = 2", "jobs", "the row of job 2 has changed"),
        ("UPDATE jobs SET state = 'buried' WHERE id = 2", "jobs", "the row of job 2 has changed"),
        ("UPDATE jobs SET why = 'client' WHERE id = 2", "jobs", "the row of job 2 has changed (holder or why)"),
        ("DROP TRIGGER jobs_update", "schema", "the trigger jobs_update is missing or was changed"),
    ],
)
def test_each_thing_that_can_not_be_is_found(path, statement, check, said):
    make(path, batches=3)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        allow_writing(connection)
        connection.execute(statement)
    found = unsound(path)
    assert list(found) == [check]
    assert said in found[check]


def test_a_page_that_has_changed_is_found(path):
    database = open_database(path)
    for batch in range(1, 40):
        write_batch(database.connection, batch)
    (page,) = database.connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'jobs'").fetchone()
    assert database.close() is None
    with path.open("r+b") as file:
        file.seek((page - 1) * PAGE_SIZE)
        file.write(bytes(PAGE_SIZE))
    assert "sqlite" in unsound(path)


@pytest.mark.parametrize("content", [b"", b"text", b"SQLite format 3\0".ljust(4096, b"\0")])
def test_what_is_no_database_of_ours(path, content):
    path.write_bytes(content)
    assert unsound(path).keys() == {"file"}


def test_a_file_that_was_cut_short(path):
    make(path, batches=3)
    with path.open("r+b") as file:
        file.truncate(PAGE_SIZE * 3)
    assert "bytes are left of" in unsound(path)["file"]


def test_a_newer_one(path):
    make(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 99")
    assert "use a newer beanlite" in unsound(path)["file"]


def test_a_file_that_is_not_there(path):
    with pytest.raises(BeanliteError, match=r"queue\.db can't be opened: No such file"):
        list(verify(path))
