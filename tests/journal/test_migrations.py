"""Migrations are found, and applied as a whole or not at all, after a copy has been made."""

import os
import shutil
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from zlib import crc32

import pytest

from beanlite.errors import JournalRefused
from beanlite.journal.migrations import FOLDER, find_migrations
from beanlite.journal.sqlite.file import migrations
from beanlite.journal.sqlite.file.database import open_database
from beanlite.journal.sqlite.file.migrations import read_version
from beanlite.journal.sqlite.file.replay import read_jobs, read_state
from tests.support.journal_files import ROOT, VERSION, make, put, snapshot
from tests.support.needs import need

NEXT = f"{VERSION + 1:04}_labels.sql"
NEXT_SQL = """
-- A semicolon; in a comment, and statements that hold some.
ALTER TABLE meta ADD COLUMN note TEXT DEFAULT 'a;b';
CREATE TABLE labels (tube TEXT PRIMARY KEY) STRICT;
CREATE TRIGGER labels_insert AFTER INSERT ON labels WHEN NEW.tube IS NULL AND only_the_beanlite_server_may_write()
BEGIN SELECT RAISE(ABORT, 'only the server writes'); END;
INSERT INTO labels VALUES ('default') -- and no semicolon at the end
"""


@pytest.fixture
def path(tmp_path):
    (tmp_path / "data").mkdir()
    return tmp_path / "data" / "queue.db"


@pytest.fixture
def folder(tmp_path):
    """A folder with an additional migration."""
    folder = tmp_path / "migrations"
    shutil.copytree(FOLDER, folder)
    (folder / NEXT).write_text(NEXT_SQL)
    return folder


def version_of(path):
    with closing(sqlite3.connect(path)) as connection:
        return read_version(connection)


def test_migrations_are_found_from_a_checkout():
    assert ROOT / "migrations" == FOLDER
    assert find_migrations()[0].name == "0001_initial.sql"


def test_migrations_are_found_from_an_installed_wheel(tmp_path):
    shutil.copytree(ROOT / "beanlite", tmp_path / "beanlite", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "migrations", tmp_path / "beanlite" / "migrations")
    program = "from beanlite.journal.migrations import FOLDER; print(FOLDER)"
    found = subprocess.check_output([sys.executable, "-c", program], cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)})
    assert found.decode().strip() == str(tmp_path / "beanlite" / "migrations")


@pytest.mark.parametrize("name", [f"{VERSION + 2:04}_gap.sql", "0001_twice.sql", f"{VERSION + 1}_short.sql"])
def test_gaps_in_the_numbers_are_refused(folder, name):
    (folder / NEXT).rename(folder / name)
    with pytest.raises(RuntimeError, match="not numbered"):
        find_migrations(folder)


def test_an_installation_without_migrations_is_refused(path, folder, tmp_path):
    with pytest.raises(JournalRefused, match=r"installation can't be read: .*/nowhere: No such file or directory"):
        open_database(path, tmp_path / "nowhere")
    for migration in folder.glob("*.sql"):
        migration.unlink()
    with pytest.raises(JournalRefused, match="installation is incomplete"):
        open_database(path, folder)
    assert not path.exists()


def test_a_new_file_gets_all_migrations_without_a_copy(path, folder, caplog):
    caplog.set_level("INFO")
    database = open_database(path, folder)
    assert caplog.messages == []
    assert read_state(database.connection, path) == (0, 0, [], [], [])
    assert database.connection.execute("SELECT * FROM labels").fetchall() == [("default",)]
    assert database.close() is None
    assert version_of(path) == VERSION + 1
    assert list(path.parent.iterdir()) == [path]


def test_an_older_file_is_migrated_after_a_copy(path, folder, caplog):
    caplog.set_level("INFO")
    make(path, batches=2)
    database = open_database(path, folder)
    assert read_state(database.connection, path).batch == 2
    assert database.connection.execute("SELECT note FROM meta").fetchall() == [("a;b",)]
    assert int.from_bytes(path.read_bytes()[60:64]) == VERSION + 1, "the version is in the -wal only"
    assert database.close() is None
    assert version_of(path) == VERSION + 1

    copy = path.with_name(f"queue.db.before-v{VERSION + 1}")
    (told,) = [record.fields for record in caplog.records if record.getMessage() == "migrated"]
    assert told == {"file": path, "from_version": VERSION, "to_version": VERSION + 1, "copy": copy}
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert version_of(copy) == VERSION
    older = open_database(copy)
    assert read_state(older.connection, copy).batch == 2
    assert [job[0] for rows in read_jobs(older.connection, copy) for job in rows] == [1, 2, 3, 4, 5, 6]
    assert older.close() is None


def test_a_file_whose_name_is_no_text_is_migrated(path, folder):
    path = path.with_name(os.fsdecode(b"queue\xff.db"))
    make(path, batches=2)
    assert open_database(path, folder).close() is None
    assert version_of(path) == VERSION + 1
    assert version_of(path.with_name(f"{path.name}.before-v{VERSION + 1}")) == VERSION


def test_a_migrated_file_is_left_alone(path, folder):
    make(path)
    open_database(path, folder).close()
    before = snapshot(path.parent)
    open_database(path, folder).close()
    assert snapshot(path.parent) == before


def test_an_older_server_refuses_a_migrated_file(path, folder):
    open_database(path, folder).close()
    before = snapshot(path.parent)
    with pytest.raises(JournalRefused, match=f"has version {VERSION + 1}, this beanlite knows {VERSION}"):
        open_database(path)
    assert snapshot(path.parent) == before


def test_a_copy_is_never_overwritten(path, folder):
    make(path)
    path.with_name(f"queue.db.before-v{VERSION + 1}").write_text("precious")
    before = snapshot(path.parent)
    with pytest.raises(
        JournalRefused, match=rf"queue.db.before-v{VERSION + 1} is in the way of a copy of .*; move it away"
    ):
        open_database(path, folder)
    assert snapshot(path.parent) == before


def test_a_failed_migration_leaves_the_file_as_it_was(path, folder):
    make(path, batches=1)
    with (folder / NEXT).open("a") as file:
        file.write("; INSERT INTO nowhere VALUES (1);")
    before = path.read_bytes()
    with pytest.raises(JournalRefused, match=rf"the migration {NEXT} of .* failed: no such table: nowhere"):
        open_database(path, folder)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_a_file_has_all_its_migrations_or_none(path, folder):
    make(path, batches=1)
    (folder / f"{VERSION + 2:04}_wrong.sql").write_text("CREATE TABLE more (x); INSERT INTO nowhere VALUES (1);")
    before = path.read_bytes()
    with pytest.raises(JournalRefused, match=rf"the migration {VERSION + 2:04}_wrong.sql of .* failed"):
        open_database(path, folder)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_what_is_made_of_a_database_with_the_name_of_a_copy_stays(path):
    make(path)
    ends = (".partial", ".partial-journal", ".partial.begun", ".partial.begun-journal")
    theirs = [path.with_name(f"queue.db.before-{number}{end}") for number in ("v5.before-v7", "vx") for end in ends]
    ours = [path.with_name(f"queue.db.before-v{VERSION + 1}{end}") for end in ends]
    for file in (*ours, *theirs):
        file.touch()
    open_database(path).close()
    assert sorted(path.parent.iterdir()) == sorted([path, *theirs])


def test_no_room_for_the_copy(path, folder, monkeypatch):
    def full(_descriptor):
        raise OSError(28, os.strerror(28))

    make(path)
    before = snapshot(path.parent)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        JournalRefused, match=rf"can't be copied to .*before-v{VERSION + 1} before its migration: .*No space left"
    ):
        open_database(path, folder)
    assert snapshot(path.parent) == before


def test_no_room_for_more_than_a_part_of_the_copy(path, folder, tmp_path):
    """SQLite writes a part once there is more than its cache holds, and can't undo that then."""
    need(os.geteuid() == 0, "only root can mount")
    database = open_database(path)
    put(database.connection, 1, bytes(20_000_000), large=True)
    database.connection.execute("UPDATE meta SET last_id = 1")
    assert database.close() is None
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=30m", "none", str(disk)], check=True)
    try:
        shutil.copy(path, disk)
        with pytest.raises(JournalRefused, match=r"can't be copied to .* before its migration: .*full"):
            open_database(disk / "queue.db", folder)
        assert [file.name for file in disk.iterdir()] == ["queue.db"]
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_torn_copy_gets_no_name_beside_a_restored_file(path, folder, tmp_path, monkeypatch):
    """A start was killed amid the copy, and then a file of the newer version was restored."""
    make(path, batches=2)
    child = os.fork()
    if not child:
        try:
            monkeypatch.setattr(migrations, "vacuum_into", killed_amid_a_copy)
            open_database(path, folder)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    for file in list(path.parent.iterdir()):
        if "before" in file.name:
            os.utime(file, (0, 0))  # another process may be making one that is young
        else:
            file.unlink()
    assert list(path.parent.iterdir())
    open_database(tmp_path / "newer.db", folder).close()
    (tmp_path / "newer.db").rename(path)
    assert open_database(path, folder).close() is None
    assert list(path.parent.iterdir()) == [path]


def killed_amid_a_copy(_, dest):
    dest.write_bytes(b"SQLite format 3\0")
    os._exit(9)


def test_migration_fills_in_only_facts_that_the_first_version_knew(path, tmp_path):
    first = tmp_path / "first"
    first.mkdir()
    shutil.copy(FOLDER / "0001_initial.sql", first)
    database = open_database(path, first)
    states = [  # state, delay_s, due_at, buried_seq, reserves, kicks
        ("ready", 0, None, None, 0, 0),
        ("ready", 0, None, None, 1, 0),
        ("ready", 0, None, None, 0, 1),
        ("ready", 5, None, None, 0, 0),
        ("buried", 0, None, 1, 1, 0),
    ]
    for number, (state, delay_s, due_at, buried_seq, reserves, kicks) in enumerate(states, 1):
        database.connection.execute(
            "INSERT INTO jobs VALUES (?, 't', ?, 0, ?, 60, 1.7e9, ?, ?, ?, 0, 0, 0, ?, ?, x'00')",
            (number, state, delay_s, due_at, buried_seq, reserves, kicks, crc32(b"\0")),
        )
    database.connection.execute("UPDATE meta SET last_id = 5")
    assert database.close() is None
    database = open_database(path)
    facts = database.connection.execute("SELECT id, since, holder, holder_conn, why FROM jobs").fetchall()
    assert facts == [(1, 1.7e9, None, None, None), *((number, None, None, None, None) for number in range(2, 6))]
    assert [len(rows) for rows in read_jobs(database.connection, path)] == [5]
    assert database.close() is None
    assert version_of(path.with_name(f"queue.db.before-v{VERSION}")) == 1
