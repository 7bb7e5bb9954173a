"""A restore: which file is in place afterwards, what was set aside, and that a kill leaves the old or the new file."""

import fcntl
import os
import signal
import sqlite3
import stat
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from beanlite.errors import BeanliteError, JournalRefused
from beanlite.journal.sqlite.file import wholefile
from beanlite.journal.sqlite.file.database import open_database
from beanlite.journal.sqlite.file.fileformat import journal_of, wal_of
from beanlite.journal.sqlite.file.replay import read_jobs, read_state
from beanlite.journal.sqlite.tools import replace, restore as restore_module
from beanlite.journal.sqlite.tools.restore import restore, undo_restore
from beanlite.journal.sqlite.tools.verify import verify
from tests.support.journal_files import (
    LARGE,
    VERSION,
    files_of_at_most,
    flip,
    make,
    make_interrupted,
    make_killed,
    put,
    snapshot,
    sync_that_fails_once_replaced,
    writer,
)
from tests.support.sqlite_tool import ask, outsider, tell


@pytest.fixture
def source(tmp_path):
    """A backup with three jobs."""
    source = tmp_path / "backups" / "backup.db"
    source.parent.mkdir()
    make(source, batches=1)
    return source


@pytest.fixture
def target(tmp_path):
    """The path of the database, in a folder of its own; the file does not exist yet."""
    (tmp_path / "data").mkdir()
    return tmp_path / "data" / "queue.db"


def ids(path):
    """Return the jobs that a server finds in the file, and the last id; closing must leave a single file."""
    database = open_database(path)
    assert database.lost_batches == 0
    last_id = read_state(database.connection, path).last_id
    found = [job[0] for jobs in read_jobs(database.connection, path) for job in jobs]
    assert database.close() is None
    return found, last_id


def kept_by(result):
    """Return the path of the file that was replaced."""
    assert result.kept is not None
    return Path(result.kept)


def names(target):
    return sorted(file.name for file in target.parent.iterdir())


def test_restore_makes_the_file_where_there_was_none(source, target):
    result = restore(source, target)
    assert (result.jobs, result.kept) == (3, None)
    assert names(target) == ["queue.db"]
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert ids(target) == ([1, 2, 3], 3)


def test_old_target_is_set_aside_and_its_ids_are_not_given_out_again(source, target):
    make(target, batches=4)
    target.chmod(0o640)
    before = target.read_bytes()
    result = restore(source, target)
    assert names(target) == ["queue.db", kept_by(result).name]
    assert kept_by(result).read_bytes() == before
    assert [stat.S_IMODE(file.stat().st_mode) for file in target.parent.iterdir()] == [0o640, 0o640]
    assert ids(target) == ([1, 2, 3], 12)
    assert ids(source) == ([1, 2, 3], 3)


def test_the_ids_of_a_newer_version_are_not_given_out_again_either(source, target):
    """After a downgrade: the copy from before the update takes the place of what the newer version has served."""
    make(target, batches=4)
    with closing(sqlite3.connect(target)) as connection:
        connection.execute(f"PRAGMA user_version = {VERSION + 1}")
    before = target.read_bytes()
    result = restore(source, target)
    assert kept_by(result).read_bytes() == before
    assert names(target) == ["queue.db", kept_by(result).name]
    assert ids(target) == ([1, 2, 3], 12)


def test_outside_writes_while_the_target_is_set_aside_are_not_lost(source, target, monkeypatch):
    """It has tables of its own in the file."""
    make(target, batches=4)
    copy, told = restore_module._copy, []

    def meanwhile(old, new):
        copy(old, new)
        if not told:
            told.append(tell(target, "CREATE TABLE theirs (a); INSERT INTO theirs VALUES (1)"))

    monkeypatch.setattr(restore_module, "_copy", meanwhile)
    with pytest.raises(JournalRefused, match=r"another program has written to .* meanwhile; try again"):
        restore(source, target)
    assert names(target) == ["queue.db"]
    assert ask(target, "SELECT * FROM theirs") == "1\n"
    result = restore(source, target)
    assert ask(kept_by(result), "SELECT * FROM theirs") == "1\n"


def test_a_signal_after_the_new_file_is_in_place_is_too_late(source, target, monkeypatch):
    make(target, batches=4)
    inode, sync = target.stat().st_ino, wholefile.sync

    def interrupted(path):
        if target.stat().st_ino != inode:
            signal.raise_signal(signal.SIGINT)
        sync(path)

    monkeypatch.setattr(replace, "sync", interrupted)
    result = restore(source, target)
    assert names(target) == ["queue.db", kept_by(result).name]
    assert ids(target) == ([1, 2, 3], 12)


def test_a_signal_as_the_locks_of_the_target_end_is_too_late(source, target, monkeypatch):
    """Everything is in place, and the command has not heard so yet."""
    replacing = replace.replacing

    @contextmanager
    def interrupted(path):
        with replacing(path) as lock:
            yield lock
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(restore_module, "replacing", interrupted)
    restore(source, target)
    assert ids(target)[0] == [1, 2, 3]


def test_reader_does_no_harm_while_the_target_is_set_aside(source, target, monkeypatch):
    make(target, batches=4)
    copy = restore_module._copy

    def meanwhile(old, new):
        copy(old, new)
        with closing(sqlite3.connect(f"file:{target}?mode=ro", uri=True)) as reader:
            reader.execute("SELECT * FROM jobs").fetchone()
        assert wal_of(target).exists()

    monkeypatch.setattr(restore_module, "_copy", meanwhile)
    result = restore(source, target)
    assert names(target) == ["queue.db", kept_by(result).name]
    assert ids(target) == ([1, 2, 3], 12)
    assert ids(kept_by(result))[0] == list(range(1, 13))


def test_target_that_another_program_has_open_is_refused(source, target):
    """What it wrote afterwards would go into a file that no longer has a name."""
    make(target, batches=4)
    with outsider(target) as do:
        do("CREATE TABLE theirs (a);")
        with pytest.raises(JournalRefused, match="another program holds a lock on it: end what that does there"):
            restore(source, target)
        assert not [name for name in names(target) if name not in {"queue.db", "queue.db-wal", "queue.db-shm"}]
        do("INSERT INTO theirs VALUES (1);")
    assert ask(target, "SELECT * FROM theirs") == "1\n"
    assert ask(kept_by(restore(source, target)), "SELECT * FROM theirs") == "1\n"


def test_outside_writes_once_the_target_is_set_aside_are_not_lost(source, target, monkeypatch):
    make(target, batches=4)
    lock, told = fcntl.flock, []

    def meanwhile(descriptor, how):
        lock(descriptor, how)
        if how == fcntl.LOCK_EX:  # of the new file: the target has been set aside
            told.append(tell(target, "CREATE TABLE theirs (a)"))

    monkeypatch.setattr(fcntl, "flock", meanwhile)
    with pytest.raises(JournalRefused, match=r"another program has written to .* meanwhile; try again"):
        restore(source, target)
    assert told == [""]
    assert names(target) == ["queue.db"]


def test_nobody_can_write_once_the_target_is_to_be_replaced(source, target, monkeypatch):
    make_killed(target, batches=4)
    move, told = replace._move_wal, []

    def meanwhile(*given):
        told.append(tell(target, "CREATE TABLE theirs (a)"))
        return move(*given)

    monkeypatch.setattr(replace, "_move_wal", meanwhile)
    restore(source, target)
    assert "database is locked" in told[0]


def test_an_error_after_the_new_file_is_in_place_says_so(source, target, monkeypatch):
    make(target, batches=4)
    monkeypatch.setattr(replace, "sync", sync_that_fails_once_replaced(target))
    with pytest.raises(BeanliteError, match=r"is replaced, but .*: Input/output error; what was there is .*") as told:
        restore(source, target)
    kept = Path(str(told.value).rpartition(" ")[2])
    assert ids(target) == ([1, 2, 3], 12)
    assert ids(kept)[0] == list(range(1, 13))


def test_whoever_may_not_give_files_to_their_owner_is_told(source, target, monkeypatch):
    make(target, batches=4)

    def chown(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "chown", chown)
    untouched(target, source, BeanliteError, r"can't be given the old one's owner and group \(\d+:\d+\); be root$")


@pytest.mark.parametrize(
    ("error", "raised", "match"),
    [
        (OSError(5, "Input/output error"), BeanliteError, "was not replaced: Input/output error"),
        (KeyboardInterrupt(), KeyboardInterrupt, "^$"),
    ],
)
def test_a_restore_that_fails_at_the_last_moment_sets_nothing_aside(error, raised, match, source, target, monkeypatch):
    make(target, batches=4)

    def failing(*_):
        raise error

    monkeypatch.setattr(replace, "_move_wal", failing)
    untouched(target, source, raised, match)


def test_the_wal_of_a_killed_server_goes_with_its_file(source, target):
    make_killed(target, batches=5)
    before = target.read_bytes(), wal_of(target).read_bytes()
    kept = kept_by(restore(source, target))
    assert (kept.read_bytes(), wal_of(kept).read_bytes()) == before
    assert not wal_of(target).exists()
    assert ids(target) == ([1, 2, 3], 15)
    undo_restore(target)
    assert ids(target)[0] == list(range(1, 16))
    assert not kept.exists()
    assert not wal_of(kept).exists()


def damage(path):
    """Make a file that SQLite can't read, beside a -wal."""
    make_killed(path, batches=5)
    for page in range(1, path.stat().st_size // 4096):
        flip(path, page * 4096)
    flip(path, 103)


def test_damaged_target_is_replaced_and_set_aside_with_its_wal(source, target):
    damage(target)
    before = target.read_bytes(), wal_of(target).read_bytes()
    kept = kept_by(restore(source, target))
    assert (kept.read_bytes(), wal_of(kept).read_bytes()) == before
    assert names(target) == ["queue.db", kept.name, wal_of(kept).name]
    assert ids(target)[0] == [1, 2, 3]
    with pytest.raises(JournalRefused, match="damaged"):
        undo_restore(target)
    assert ids(target)[0] == [1, 2, 3]


def test_a_rollback_journal_goes_with_its_file(source, target):
    make_interrupted(target, batches=4)
    amid, journal = target.read_bytes(), journal_of(target).read_bytes()
    kept = kept_by(restore(source, target))
    assert (kept.read_bytes(), journal_of(kept).read_bytes()) == (amid, journal)
    assert names(target) == sorted(["queue.db", kept.name, journal_of(kept).name])
    assert ids(target) == ([1, 2, 3], 12)
    undo_restore(target)
    assert ids(target) == (list(range(1, 13)), 12)
    assert not kept.exists()
    assert not journal_of(kept).exists()


def test_an_undo_over_a_rollback_journal(source, target):
    make(target, batches=2)
    restore(source, target)
    target.rename(target.with_name("restored"))
    make_interrupted(target, batches=4)
    undo_restore(target)
    assert ids(target) == ([1, 2, 3, 4, 5, 6], 12)


def test_ids_are_not_given_out_again_after_another_programs_lock(source, target, monkeypatch):
    make(target, batches=4)
    with closing(sqlite3.connect(target)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE").fetchone()
    lock, others = fcntl.flock, [sqlite3.connect(target, isolation_level=None)]
    others[0].execute("BEGIN EXCLUSIVE")

    def meanwhile(descriptor, how):
        lock(descriptor, how)
        if how == fcntl.LOCK_EX:  # of the new file
            others[0].close()

    monkeypatch.setattr(fcntl, "flock", meanwhile)
    restore(source, target)
    assert ids(target) == ([1, 2, 3], 12)


def test_target_with_two_names_is_refused(source, target):
    make(target, batches=4)
    target.with_name("link").hardlink_to(target)
    untouched(target, source, JournalRefused, r"queue\.db has 2 names \(hard links\)")


@pytest.mark.parametrize("mode", ["WAL", "DELETE"])
def test_whoever_writes_to_the_old_file_afterwards_gets_an_error(source, target, mode):
    """What was written would be lost, or would get into the -wal of the new file."""
    make(target, batches=4)
    with closing(sqlite3.connect(target, isolation_level=None)) as connection:
        connection.execute(f"PRAGMA journal_mode = {mode}").fetchone()
    with closing(sqlite3.connect(target, isolation_level=None)) as late:
        if mode == "DELETE":  # it has read the file, and has no lock on it any more
            late.execute("SELECT * FROM jobs").fetchall()
        restore(source, target)
        with pytest.raises(sqlite3.DatabaseError, match="file is not a database"):
            late.execute("CREATE TABLE theirs (a)")
    assert ids(target) == ([1, 2, 3], 12)


def test_a_lone_wal_is_set_aside(source, target):
    make_killed(target, batches=5)
    target.unlink()
    kept = kept_by(restore(source, target))
    assert wal_of(kept).exists()
    assert ids(target) == ([1, 2, 3], 15)


def test_a_live_source_is_as_good(source, target):
    with writer(source.with_name("live.db")):
        restore(source.with_name("live.db"), target)
    assert all(finding.sound for finding in verify(target))


def test_a_view_that_an_operator_has_replaced_is_no_damage(source, target):
    with closing(sqlite3.connect(source)) as connection:
        connection.executescript(
            "DROP VIEW ready; CREATE VIEW ready AS SELECT *, 1 FROM all_jobs WHERE state = 'ready'"
        )
    assert restore(source, target).jobs == 3
    with closing(sqlite3.connect(target)) as connection:
        assert connection.execute("SELECT count(*) FROM ready").fetchone() == (3,)


def untouched(target, source, error, match):
    """Check that a restore fails, and changes nothing."""
    before = snapshot(target.parent)
    with pytest.raises(error, match=match):
        restore(source, target)
    assert snapshot(target.parent) == before


def test_a_server_that_holds_the_target_is_left_alone(source, target):
    with writer(target, "idle"):
        untouched(target, source, JournalRefused, "a server or another command holds")


@pytest.mark.parametrize(
    ("spoil", "match"),
    [
        (lambda source: flip(source, source.read_bytes().index(LARGE[:100])), "the body of job 3 has changed"),
        (lambda source: flip(source, 0), "is not an SQLite file"),
        (lambda source: source.write_bytes(b""), "is empty"),
        (lambda source: os.truncate(source, 8192), "is damaged: 8192 bytes are left"),
        (Path.unlink, "can't be opened"),
    ],
)
def test_a_source_that_is_not_sound_changes_nothing(source, target, spoil, match):
    make(target, batches=4)
    spoil(source)
    untouched(target, source, JournalRefused, match)


def test_a_body_that_belongs_to_no_job_is_found(source, target):
    database = open_database(source)
    put(database.connection, 4)
    database.connection.execute("INSERT INTO bodies (id, body) VALUES (9, x'00')")
    database.connection.execute("UPDATE meta SET last_id = 9")
    database.close()
    untouched(target, source, JournalRefused, "of job 9, belongs to no row")


def test_what_never_was_a_queue_is_not_replaced(source, target):
    target.write_text("somebody's")
    untouched(target, source, JournalRefused, "is not a beanlite database")


def test_file_is_not_restored_to_itself(source):
    with pytest.raises(BeanliteError, match="can't be restored to itself"):
        restore(source, source)


def test_what_killed_restores_have_left_goes_with_the_next_one(source, target):
    make(target, batches=4)
    first = kept_by(restore(source, target))
    unfinished = target.with_name("queue.db.replaced-20990101T000000.000Z")
    left = [
        target.with_name(".queue.db.restored-20990101T000000.000Z.abc.partial"),
        unfinished,
        wal_of(unfinished),
        target.with_name(".queue.db.replaced-20990102T000000.000Z.abc.partial"),
        target.with_name(".queue.db.replaced-20990102T000000.000Z-wal.abc.partial"),
    ]
    for file in left:
        file.touch()
        os.utime(file, (0, 0))
    second = kept_by(restore(source, target))
    assert names(target) == ["queue.db", first.name, second.name]


def test_no_room(source, target):
    make(target, batches=4)
    database = open_database(source)
    for number in range(4, 40):
        put(database.connection, number, bytes(50_000), large=True)
    database.connection.execute("UPDATE meta SET last_id = 39")
    assert database.close() is None
    with files_of_at_most(100_000):
        untouched(target, source, BeanliteError, "the copy of .* failed")


def test_a_folder_that_is_not_there(source, target):
    with pytest.raises(JournalRefused, match="can't be opened: No such file or directory"):
        restore(source, target.parent / "none" / "queue.db")
