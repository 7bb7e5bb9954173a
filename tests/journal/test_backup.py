"""Backups of a database that is served, stopped or left by a killed server are sound, and only read the source."""

import errno
import os
import re
import signal
import stat
import struct
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

from beanlite.errors import BeanliteError, JournalRefused
from beanlite.journal.sqlite.file import wholefile
from beanlite.journal.sqlite.file.database import open_database
from beanlite.journal.sqlite.file.replay import read_jobs, read_state
from beanlite.journal.sqlite.tools import backup as backup_module
from beanlite.journal.sqlite.tools.backup import backup
from beanlite.journal.sqlite.tools.compact import compact
from beanlite.journal.sqlite.tools.restore import restore
from beanlite.journal.sqlite.tools.verify import verify
from tests.support.journal_files import (
    KEPT_BATCHES,
    LARGE,
    VERSION,
    export_to_file,
    files_of_at_most,
    flip,
    make,
    make_interrupted,
    make_killed,
    put,
    snapshot,
    writer,
)
from tests.support.sqlite_tool import ask


@pytest.fixture
def dest(tmp_path):
    (tmp_path / "backups").mkdir()
    return tmp_path / "backups" / "queue.db"


def check(copy, result):
    """Check that the copy has exactly the state after the last batch that it names; return that batch's number."""
    database = open_database(copy)
    batch, last_id, *_ = read_state(database.connection, copy)
    jobs = [job for rows in read_jobs(database.connection, copy) for job in rows]
    assert database.close() is None
    first = max(0, batch - KEPT_BATCHES) * 3 + 1
    assert last_id == 3 * batch
    assert [job[0] for job in jobs] == list(range(first, last_id + 1))
    assert all(job[13] == (LARGE if job[0] % 3 == 0 else b"small") for job in jobs)
    assert result.jobs == len(jobs)
    return batch


def test_under_load_each_backup_is_the_state_after_some_batch(path, dest):
    batches = []
    deadline = time.monotonic() + 120
    with writer(path):
        while len(batches) < 10 or batches[0] == batches[-1]:
            assert time.monotonic() < deadline, "the writer has stopped"
            copy = dest.with_name(f"{len(batches)}.db")
            batches.append(check(copy, backup(path, copy)))
    assert batches == sorted(batches)


def test_the_copy_is_one_private_file_of_the_same_kind(path, dest):
    make(path, batches=2)
    result = backup(path, dest)
    assert [file.name for file in dest.parent.iterdir()] == ["queue.db"]
    assert stat.S_IMODE(dest.stat().st_mode) == 0o600
    assert (result.jobs, result.size) == (6, dest.stat().st_size)
    database = open_database(dest)
    pragmas = ("application_id", "user_version", "auto_vacuum", "page_size")
    values = [database.connection.execute(f"PRAGMA {pragma}").fetchone()[0] for pragma in pragmas]
    assert values == [int.from_bytes(b"bean"), VERSION, 2, 4096]
    assert database.close() is None


@pytest.mark.parametrize("suffix", ["-wal", "-journal"])
def test_what_sqlite_would_take_for_a_part_of_the_copy_is_in_its_way(path, dest, suffix):
    make(path)
    Path(f"{dest}{suffix}").write_bytes(b"of a file that was removed")
    with pytest.raises(
        BeanliteError, match=rf"no backup was made to .*queue\.db{suffix} would be taken for a part of it"
    ):
        backup(path, dest)
    assert [file.name for file in dest.parent.iterdir()] == [f"queue.db{suffix}"]


def test_a_served_database_is_only_read(path, dest):
    with writer(path, "idle"):
        before = snapshot(path.parent)
        result = backup(path, dest)
        after = snapshot(path.parent)
    for name in ("queue.db", "queue.db-wal"):
        assert after[name] == before[name]
    check(dest, result)


def test_a_stopped_database_is_only_read(path, dest):
    make(path, batches=3)
    before = path.read_bytes(), path.stat().st_mtime_ns
    check(dest, backup(path, dest))
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before
    assert sorted(file.name for file in path.parent.iterdir()) == ["backups", "queue.db"]


def test_unfinished_change_of_a_killed_program_is_undone_not_copied(path, dest):
    make_interrupted(path, batches=4)
    assert backup(path, dest).jobs == 12
    assert all(finding.sound for finding in verify(path))
    assert all(finding.sound for finding in verify(dest))
    assert ask(dest, "SELECT count(*) FROM sqlite_schema WHERE name = 'theirs'") == "0\n"


def test_what_a_server_was_killed_amid_in_its_first_start_is_empty(path, dest):
    make(path)
    header = bytes.fromhex("d9d505f920a163d7") + struct.pack(">5I", 0, 0, 0, 512, 4096)  # there were no pages before
    Path(f"{path}-journal").write_bytes(header.ljust(512, b"\0"))
    with pytest.raises(JournalRefused, match=r"queue\.db is empty; there is nothing in it"):
        backup(path, dest)


def test_the_files_of_a_killed_server_are_only_read(path, dest):
    make_killed(path, batches=10)
    wal = Path(f"{path}-wal")
    before = path.read_bytes(), wal.read_bytes()
    result = backup(path, dest)
    assert check(dest, result) == 10
    assert (path.read_bytes(), wal.read_bytes()) == before
    database = open_database(path)
    assert read_state(database.connection, path).batch == 10
    assert database.close() is None


def make_large(path):
    """Make a database of about 20 MB."""
    database = open_database(path)
    for number in range(1, 401):
        put(database.connection, number, bytes(50_000), large=True)
    database.connection.execute("UPDATE meta SET last_id = 400")
    assert database.close() is None


def test_the_copy_is_synced_bit_by_bit_and_progress_is_reported(path, dest, monkeypatch):
    make_large(path)
    synced, told = [0], []
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: synced.append(os.fstat(descriptor).st_size))
    result = backup(path, dest, told.append)
    assert told == synced[1:]
    gaps = [later - earlier for earlier, later in pairwise([*synced, result.size])]
    assert 0 < min(gaps) <= max(gaps) < 10 << 20


def test_a_copy_that_can_not_be_synced_is_removed(path, dest, monkeypatch):
    def full(_descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    make_large(path)
    monkeypatch.setattr(os, "fdatasync", full)
    with pytest.raises(BeanliteError, match=r"no backup was made to .*queue\.db: No space left on device"):
        backup(path, dest)
    assert list(dest.parent.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_backup_that_is_ended_by_a_signal_leaves_nothing(path, dest, number):
    make_large(path)
    code = f"import os, sys; os.fdatasync = lambda _: os.kill(os.getpid(), {number:d}); from beanlite.cli import main"
    flags = ["backup", str(dest), "--db", str(path)]
    assert subprocess.run([sys.executable, "-c", f"{code}; sys.exit(main({flags}))"], check=False).returncode == 130
    assert list(dest.parent.iterdir()) == []


def test_a_signal_just_as_sqlite_calls_back_is_not_lost(path, dest, monkeypatch):
    def struck(_syncs):
        raise KeyboardInterrupt  # as the interpreter does before a function's first line

    make_large(path)
    monkeypatch.setattr(backup_module._Syncs, "__call__", struck)
    with pytest.raises(KeyboardInterrupt):
        backup(path, dest)
    assert list(dest.parent.iterdir()) == []


@pytest.mark.parametrize("moment", ["rename", "synced"])
def test_backup_interrupted_as_it_gets_its_name_loses_it_again(path, dest, monkeypatch, moment):
    make(path)
    rename, sync = Path.rename, wholefile.sync

    def renamed(file, name):
        rename(file, name)
        if moment == "rename":
            raise KeyboardInterrupt

    def synced(file):
        sync(file)
        if file == dest.parent:
            raise KeyboardInterrupt

    monkeypatch.setattr(Path, "rename", renamed)
    monkeypatch.setattr(wholefile, "sync", synced)
    with pytest.raises(KeyboardInterrupt):
        backup(path, dest)
    assert list(dest.parent.iterdir()) == []


def test_an_existing_file_is_never_overwritten(path, dest):
    make(path)
    dest.write_text("precious")
    before = snapshot(dest.parent)
    with pytest.raises(BeanliteError, match=r"no backup was made to .*queue\.db: File exists"):
        backup(path, dest)
    assert snapshot(dest.parent) == before


@pytest.mark.parametrize("name", [".", "none/queue.db"])
def test_a_name_that_will_not_do(path, dest, name):
    make(path)
    with pytest.raises(BeanliteError, match="no backup was made to "):
        backup(path, dest.parent / name)
    assert list(dest.parent.iterdir()) == []


def foreign(path):
    path.write_bytes(b"SQLite format 3\0".ljust(4096, b"\0"))


def damaged_schema(path):
    make(path)
    flip(path, 103)


def damaged(path):
    make(path, batches=3)
    flip(path, path.read_bytes().index(LARGE[:100]))


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda _: None, "can't be opened: No such file or directory"),
        (Path.touch, "is empty; there is nothing in it"),
        (foreign, "is an SQLite database, but not one of beanlite's"),
        (damaged_schema, r"queue\.db is damaged \(.*malformed.*\); restore a backup"),
        (damaged, r"queue\.db is damaged: the body of job \d+ has changed; restore a backup"),
    ],
)
def test_a_source_that_is_refused(path, dest, spoil, reason):
    spoil(path)
    before = snapshot(path.parent)
    with pytest.raises(JournalRefused, match=reason):
        backup(path, dest)
    assert snapshot(path.parent).keys() == before.keys()
    assert list(dest.parent.iterdir()) == []


@pytest.mark.parametrize("most", [40_000, 10_000_000])
def test_no_room(path, dest, most):
    make_large(path)
    with files_of_at_most(most), pytest.raises(BeanliteError, match=r"the copy of .*queue\.db to .* failed"):
        backup(path, dest)
    assert list(dest.parent.iterdir()) == []
    assert [file.name for file in path.parent.iterdir() if file.is_file()] == ["queue.db"]


def test_an_interrupted_copy_is_removed(path, dest):
    def interrupt(_size):
        raise KeyboardInterrupt

    make_large(path)
    with pytest.raises(KeyboardInterrupt):
        backup(path, dest, interrupt)
    assert list(dest.parent.iterdir()) == []


@pytest.mark.parametrize("beside", ["-wal", "-shm"])
def test_a_file_beside_a_live_database_is_never_replaced(path, beside):
    with writer(path, "idle"):
        before = Path(f"{path}{beside}").stat().st_ino
        with pytest.raises(BeanliteError, match=f"{beside} was not replaced: it belongs to the database {path}"):
            backup(path, Path(f"{path}{beside}"), replace=True)
        assert Path(f"{path}{beside}").stat().st_ino == before


def test_a_file_is_replaced_only_if_that_is_asked_for(path, dest):
    make(path, batches=2)
    dest.write_text("old")
    check(dest, backup(path, dest, replace=True))
    assert [file.name for file in dest.parent.iterdir()] == ["queue.db"]


def test_a_replacement_that_fails_leaves_what_was_there(path, dest):
    make_large(path)
    dest.write_text("old")
    with files_of_at_most(40_000), pytest.raises(BeanliteError, match=r"the copy of .*queue\.db to .* failed"):
        backup(path, dest, replace=True)
    assert dest.read_text() == "old"
    assert [file.name for file in dest.parent.iterdir()] == ["queue.db"]


def test_the_database_itself_is_never_replaced(path):
    make(path, batches=2)
    before = path.read_bytes()
    with pytest.raises(BeanliteError, match="it is the database itself"):
        backup(path, path, replace=True)
    assert path.read_bytes() == before


def test_a_file_that_has_come_into_being_meanwhile_is_not_overwritten(dest):
    """Such as that of a server."""

    def write():
        with wholefile.written_whole(dest) as partial:
            partial.write_text("copy")
            dest.write_text("precious")

    with pytest.raises(FileExistsError):
        write()
    assert dest.read_text() == "precious"
    assert [file.name for file in dest.parent.iterdir()] == [dest.name]


def test_backup_that_may_replace_spares_a_file_that_came_meanwhile(path, dest, monkeypatch):
    make(path)
    copy = backup_module.copy

    def meanwhile(*args):
        copy(*args)
        dest.write_text("precious")

    monkeypatch.setattr(backup_module, "copy", meanwhile)
    with pytest.raises(BeanliteError, match="File exists"):
        backup(path, dest, replace=True)
    assert dest.read_text() == "precious"


def test_a_file_with_a_rollback_journal_is_not_replaced(path, dest):
    """SQLite would roll it back into the copy."""
    make(path)
    make(dest)
    dest.with_name(f"{dest.name}-journal").write_bytes(b"hot")
    with pytest.raises(BeanliteError, match="-journal would be taken for a part of it"):
        backup(path, dest, replace=True)


def test_what_a_server_holds_is_never_replaced(path, dest):
    make(path)
    with writer(dest, "idle"), pytest.raises(BeanliteError, match="a server or another command holds it"):
        backup(path, dest, replace=True)


def test_backup_with_another_name_is_only_read(path, dest):
    """A snapshot of the folder shares it, as ``cp -al`` makes one."""
    make(path, batches=1)
    backup(path, dest)
    other = path.with_name("snapshot.db")
    other.hardlink_to(dest)
    before = snapshot(dest.parent)
    assert all(finding.sound for finding in verify(dest))
    export_to_file(dest, path.with_name("export"))
    assert restore(dest, path).jobs == 3
    why = r"has 2 names \(hard links\), and .*; remove the others, or copy it, with its -wal if it has one$"
    for change in (open_database, compact):
        with pytest.raises(JournalRefused, match=why):
            change(dest)
    assert snapshot(dest.parent) == before
    other.unlink()
    open_database(dest).close()
    other.hardlink_to(dest)
    (finding,) = verify(dest)  # it has been served, and may have a -wal under either name
    assert re.search(why, finding.said)


@pytest.mark.usefixtures("poor_locks")
@pytest.mark.parametrize("copy", [backup, export_to_file])
def test_file_that_nobody_can_lock_is_replaced(copy, path, dest):
    make(path, batches=1)
    dest.write_bytes(b"old")
    copy(path, dest, replace=True)
    assert dest.stat().st_size > 3


def test_what_a_killed_server_has_left_is_never_replaced(path, dest):
    make(path)
    make_killed(dest, batches=3)
    with pytest.raises(BeanliteError, match="it is a database with a -wal"):
        backup(path, dest, replace=True)


@pytest.mark.parametrize("write", [backup, export_to_file])
@pytest.mark.parametrize("replace", [True, False])
@pytest.mark.parametrize("is_there", [True, False])
def test_a_dest_that_is_a_symbolic_link_is_not_followed(path, dest, tmp_path, write, replace, is_there):
    make(path)
    other = tmp_path / "other"
    if is_there:
        other.write_bytes(b"of somebody else")
    dest.symlink_to(other)
    with pytest.raises(BeanliteError, match=r"backups/queue\.db is a symbolic link; name the file to write itself"):
        write(path, dest, replace=replace)
    assert other.exists() is is_there
    assert dest.is_symlink()


@pytest.mark.parametrize("write", [backup, export_to_file])
def test_a_folder_of_dest_may_be_a_symbolic_link(path, dest, tmp_path, write):
    make(path)
    (tmp_path / "link").symlink_to(dest.parent)
    write(path, tmp_path / "link" / dest.name)
    assert dest.is_file()
