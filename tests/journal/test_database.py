"""Opening a database file: what is made, what is refused and left untouched, and what is left after closing it."""

import fcntl
import os
import shlex
import shutil
import sqlite3
import stat
import tempfile
from contextlib import closing
from pathlib import Path

import pytest

from beanlite.errors import JournalFailed, JournalRefused
from beanlite.journal.sqlite.file.database import open_database
from beanlite.journal.sqlite.file.replay import read_state
from beanlite.journal.sqlite.tools.verify import verify
from tests.support.journal_files import (
    VERSION,
    files_of_at_most,
    make,
    make_killed,
    refusal,
    snapshot,
    write_batch,
    writer,
)

NOBODY = 65534


@pytest.fixture
def unprivileged():
    """A folder of a user who, unlike root, is subject to permissions."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        user = os.geteuid()
        if user == 0:
            os.chown(folder, NOBODY, NOBODY)
            os.seteuid(NOBODY)
        yield folder
        os.seteuid(user)
        folder.chmod(0o755)


def edit(path, sql):
    """Change a stopped database behind the server's back, which requires the function that its triggers call."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.create_function("only_the_beanlite_server_may_write", 0, lambda: 1)
        connection.executescript(sql)


def test_new_file(path):
    previous = os.umask(0)
    try:
        database = open_database(path)
        assert read_state(database.connection, path) == (0, 0, [], [], [])
        write_batch(database.connection, 1)
    finally:
        os.umask(previous)
    assert {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()} == {
        "queue.db": 0o600,
        "queue.db-wal": 0o600,
        "queue.db-shm": 0o600,
    }
    pragmas = {
        "application_id": int.from_bytes(b"bean"),
        "auto_vacuum": 2,
        "journal_mode": "wal",
        "journal_size_limit": 64 * 2**20,
        "mmap_size": 0,
        "page_size": 4096,
        "secure_delete": 0,
        "synchronous": 2,
        "temp_store": 2,
        "user_version": VERSION,
        "wal_autocheckpoint": 0,
    }
    execute = database.connection.execute
    assert {pragma: execute(f"PRAGMA {pragma}").fetchone()[0] for pragma in pragmas} == pragmas
    assert database.close() is None


def test_an_empty_file_is_treated_like_a_missing_one(path):
    path.touch()
    database = open_database(path)
    assert read_state(database.connection, path) == (0, 0, [], [], [])
    assert database.close() is None


def test_close_leaves_one_file_with_everything(path):
    make(path, batches=3)
    assert [file.name for file in path.parent.iterdir()] == ["queue.db"]
    database = open_database(path)
    assert read_state(database.connection, path) == (3, 9, [], [], [])
    database.close()


def test_opening_and_closing_changes_nothing(path):
    make(path, batches=3)
    before = snapshot(path.parent)
    assert open_database(path).close() is None
    assert snapshot(path.parent) == before


def first_journal(path):
    """Make the journal that is left beside a first start that ended amid its migration: the file was empty before."""
    numbers = (0, 1, 0, 512, 4096)  # records, nonce, pages of the file before, size of a sector and of a page
    header = bytes.fromhex("d9d505f920a163d7") + b"".join(number.to_bytes(4) for number in numbers)
    Path(f"{path}-journal").write_bytes(header.ljust(512, b"\0"))


def test_backup_beside_a_failed_first_starts_journal_is_not_emptied(path):
    make(path, batches=3)
    first_journal(path)
    before = snapshot(path.parent)
    assert "queue.db-journal belongs to another file" in refusal(path)
    assert snapshot(path.parent) == before
    Path(f"{path}-journal").unlink()
    database = open_database(path)
    assert read_state(database.connection, path) == (3, 9, [], [], [])
    database.close()


def test_what_a_failed_first_start_has_left_is_emptied(path):
    assert open_database(path).close() is None  # everything was written, and only the journal not deleted yet
    first_journal(path)
    database = open_database(path)
    assert read_state(database.connection, path) == (0, 0, [], [], [])
    assert database.close() is None
    assert [file.name for file in path.parent.iterdir()] == ["queue.db"]


def test_closing_beside_a_reader_says_that_the_wal_is_needed(path):
    database = open_database(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM jobs").fetchall()
        write_batch(database.connection, 1)
        database.connection.execute("PRAGMA busy_timeout = 0")
        assert database.close() == "a -wal that a reader is using"
    database = open_database(path)
    assert read_state(database.connection, path).batch == 1
    assert database.close() is None


def test_closing_beside_an_idle_reader_leaves_everything_in_the_file(path):
    database = open_database(path)
    with closing(sqlite3.connect(path)) as reader:
        reader.execute("SELECT * FROM jobs").fetchall()
        write_batch(database.connection, 1)
        assert database.close() is None
        assert b"small" in path.read_bytes()


def test_closing_on_a_disk_that_fails(path):
    database = open_database(path)
    for batch in range(1, 21):
        write_batch(database.connection, batch)
    with files_of_at_most(path.stat().st_size), pytest.raises(JournalFailed, match=r"the last checkpoint of .* failed"):
        database.close()
    database = open_database(path)
    assert read_state(database.connection, path).batch == 20
    assert database.close() is None


def test_database_is_opened_through_a_symbolic_link(tmp_path, path):
    link = tmp_path / "link.db"
    link.symlink_to(path)
    database = open_database(link)
    assert database.path == path
    write_batch(database.connection, 1)
    assert (tmp_path / "queue.db-wal").exists()
    assert database.close() is None
    assert link.is_symlink()


def test_a_second_server_is_refused_until_the_first_is_killed(path):
    with writer(path, "idle") as process:
        assert refusal(path) == f"a server or another command holds {path}; stop it, or name another file"
        process.kill()
        process.wait()
        database = open_database(path)
    assert read_state(database.connection, path).batch == 10
    assert database.lost_batches == 0
    assert database.close() is None


def empty_with_wal(path):
    make_killed(path, batches=1)
    path.write_bytes(b"")


def missing_with_wal(path):
    make_killed(path, batches=1)
    path.unlink()


def restored_over_killed(path):
    """A backup has replaced the file, but the -wal still belongs to the old file."""
    make_killed(path, batches=1)
    backup = path.with_name("backup.db")
    make(backup)
    edit(backup, "PRAGMA journal_mode = DELETE")
    backup.rename(path)


def truncated(path):
    make(path, batches=3)
    os.truncate(path, path.stat().st_size - 4096)


def garbage_in_schema(path):
    make(path)
    with path.open("r+b") as file:
        file.seek(100)
        file.write(b"\xff" * 900)


def foreign(path):
    edit(path, "CREATE TABLE theirs (x); INSERT INTO theirs VALUES (1)")


def foreign_in_wal_mode(path):
    edit(path, "PRAGMA journal_mode = WAL; CREATE TABLE theirs (x)")


def newer(path):
    make(path)
    edit(path, f"PRAGMA user_version = {VERSION + 1}")


def without_a_guard(path):
    make(path)
    edit(path, "DROP TRIGGER jobs_update")


def without_a_column(path):
    make(path)
    edit(path, "ALTER TABLE pauses RENAME COLUMN pause_s TO seconds")


THEIRS = 'CREATE TRIGGER "my \'own" AFTER INSERT ON JOBS BEGIN DELETE FROM jobs WHERE id = NEW.id; END'
OTHER_GUARD = "DROP TRIGGER jobs_update; CREATE TRIGGER jobs_update AFTER UPDATE ON jobs BEGIN SELECT 1; END"


def with_a_trigger(path):
    make(path)
    edit(path, THEIRS)


def with_a_unique_index(path):
    make(path)
    edit(path, "CREATE UNIQUE INDEX one_each ON Jobs (tube)")


def with_another_guard(path):
    make(path)
    edit(path, OTHER_GUARD)


def with_other_pages(path):
    make(path)
    edit(path, "PRAGMA journal_mode = DELETE; PRAGMA page_size = 8192; VACUUM")


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (empty_with_wal, "is missing or empty, but .*-wal is not; put back"),
        (missing_with_wal, "is missing or empty, but .*-wal is not; put back"),
        (restored_over_killed, "-wal belongs to another file than .*queue.db, as after a copy .* move the -wal"),
        (truncated, r"is damaged: \d+ bytes are left of \d+; restore a backup"),
        (garbage_in_schema, r"is damaged \(.*malformed.*\); restore a backup"),
        (lambda path: path.write_bytes(b"hello"), "is not an SQLite file; name another one"),
        (lambda path: path.write_bytes(b"hello" * 1000), "is not an SQLite file; name another one"),
        (lambda path: path.write_bytes(b"SQLite format 3\0"), "is not an SQLite file; name another one"),
        (foreign, "is an SQLite database, but not one of beanlite's; name another one"),
        (foreign_in_wal_mode, "is an SQLite database, but not one of beanlite's; name another one"),
        (newer, f"has version {VERSION + 1}, this beanlite knows {VERSION}; use a newer beanlite"),
        (without_a_guard, "is damaged: the trigger jobs_update is missing or was changed; restore a backup"),
        (
            with_a_trigger,
            "has a trigger of another program on its table jobs, my 'own, which could change or remove jobs",
        ),
        (
            with_a_unique_index,
            "has an index of another program on its table jobs, one_each, which could keep jobs",
        ),
        (with_another_guard, "is damaged: the trigger jobs_update has changed; restore a backup"),
        (with_other_pages, "was given pages of another size than 4096; undo that, by VACUUM"),
        (without_a_column, "is damaged: the table pauses is missing or was changed; restore a backup"),
        (Path.mkdir, "can't be opened: it is a directory"),
        (os.mkfifo, "can't be opened: it is not a regular file"),
    ],
)
def test_refused_file_stays_untouched(path, spoil, reason):
    spoil(path)
    before = snapshot(path.parent)
    with pytest.raises(JournalRefused, match=reason):
        open_database(path)
    assert snapshot(path.parent) == before


def test_a_newer_version_that_is_noted_only_in_the_wal(path):
    make_killed(path, batches=1, last=f"PRAGMA user_version = {VERSION + 1}")
    assert refusal(path) == f"{path} has version {VERSION + 1}, this beanlite knows {VERSION}; use a newer beanlite"


def test_a_directory_that_does_not_exist(tmp_path):
    assert "can't be opened: No such file or directory" in refusal(tmp_path / "none" / "queue.db")
    assert list(tmp_path.iterdir()) == []


def test_a_file_without_permission(unprivileged):
    path = unprivileged / "queue.db"
    make(path)
    path.chmod(0o400)
    assert "can't be opened: Permission denied" in refusal(path)


def test_a_wal_without_permission(unprivileged):
    path = unprivileged / "queue.db"
    make_killed(path, batches=1)
    path.with_name("queue.db-wal").chmod(0)
    assert "Permission denied; check the owner and the mode of the folder and the file" in refusal(path)


def test_a_directory_without_permission(unprivileged):
    path = unprivileged / "queue.db"
    make(path)
    before = snapshot(unprivileged)
    unprivileged.chmod(0o555)
    assert refusal(path) == f"the directory {unprivileged} is not writable; SQLite must keep files beside {path} there"
    assert "can't be opened: Permission denied" in refusal(unprivileged / "new.db")
    assert snapshot(unprivileged) == before


def test_a_new_file_that_can_not_be_made_is_not_left_behind(tmp_path, path):
    folder = tmp_path / "migrations"
    folder.mkdir()
    (folder / "0001_wrong.sql").write_text("CREATE TABLE jobs (id); CREATE TABLE jobs (id);")
    data = tmp_path / "data"
    data.mkdir()
    with pytest.raises(JournalRefused, match=r"the migration 0001_wrong.sql of .* failed: table jobs already exists"):
        open_database(data / path.name, folder)
    assert list(data.iterdir()) == []


@pytest.mark.parametrize(("name", "value"), [("sqlite_version_info", (3, 36, 9)), ("threadsafety", 1)])
def test_an_sqlite_that_will_not_do(path, monkeypatch, name, value):
    monkeypatch.setattr(sqlite3, name, value)
    assert "this Python" in refusal(path)
    assert not path.exists()


def test_additions_by_an_operator_do_no_harm(path):
    make(path)
    edit(path, "CREATE INDEX by_tube ON jobs (tube); CREATE VIEW mine AS SELECT 1; CREATE TABLE theirs (x UNIQUE)")
    edit(path, "CREATE TRIGGER a INSTEAD OF INSERT ON mine BEGIN SELECT 1; END")
    edit(path, "CREATE TRIGGER b INSTEAD OF DELETE ON ready BEGIN SELECT 1; END")
    edit(path, "CREATE TRIGGER c AFTER INSERT ON theirs BEGIN DELETE FROM jobs; END")
    assert open_database(path).close() is None


@pytest.mark.parametrize("spoil", [with_a_trigger, with_a_unique_index])
def test_how_to_remove_what_is_not_ours_is_told(path, spoil):
    spoil(path)
    with pytest.raises(JournalRefused) as why:
        open_database(path)
    tool, file, statement = shlex.split(str(why.value).partition("remove it: ")[2])
    assert (tool, file) == ("sqlite3", str(path))
    assert [finding.said for finding in verify(path) if not finding.sound] == [str(why.value)]
    edit(path, statement)
    assert all(finding.sound for finding in verify(path))
    assert open_database(path).close() is None


def test_a_creation_that_was_killed_is_done_again(tmp_path, path):
    """Such a file is ours, but of version 0, with a rollback journal beside it that undoes the incomplete creation."""
    with closing(sqlite3.connect(tmp_path / "origin.db", isolation_level=None)) as connection:
        connection.executescript("""
            PRAGMA application_id = 0x6265616E;
            PRAGMA cache_size = 1;
            BEGIN;
            CREATE TABLE jobs (x);
            INSERT INTO jobs SELECT zeroblob(40000) FROM pragma_function_list LIMIT 10;
        """)
        shutil.copy(tmp_path / "origin.db", path)
        shutil.copy(tmp_path / "origin.db-journal", f"{path}-journal")
        connection.rollback()
    assert path.stat().st_size > 40000
    database = open_database(path)
    assert read_state(database.connection, path) == (0, 0, [], [], [])
    assert database.close() is None


def test_file_replaced_while_it_is_being_locked_is_not_served(path, monkeypatch):
    lock = fcntl.flock

    def replaced(descriptor, operation):
        path.with_name("new.db").rename(path)
        lock(descriptor, operation)

    make(path)
    make(path.with_name("new.db"))
    monkeypatch.setattr(fcntl, "flock", replaced)
    assert refusal(path) == f"{path} has just been replaced; try again"


def test_file_of_a_first_start_that_was_quicker_stays(path, monkeypatch):
    lock = fcntl.flock

    def quicker(descriptor, operation):
        other = os.open(path, os.O_RDWR)
        lock(other, operation)
        try:
            lock(descriptor, operation)
        finally:
            os.close(other)

    monkeypatch.setattr(fcntl, "flock", quicker)
    assert refusal(path) == f"a server or another command holds {path}; stop it, or name another file"
    assert path.exists()


@pytest.mark.parametrize("size", [504, 505])
def test_path_that_is_too_long_for_sqlite(tmp_path, size):
    folder = tmp_path / ("a" * 200)
    path = folder / ("b" * (size - len(f"{folder}/{'c' * 50}/"))) / ("c" * 50)
    path.parent.mkdir(parents=True)
    assert len(str(path)) == size
    if size == 504:
        make(path, batches=1)
    else:
        why = "its path is longer than the 504 bytes that SQLite takes"
        assert refusal(path) == f"{path} can't be used: unable to open database file; {why}"
        assert list(path.parent.iterdir()) == []
