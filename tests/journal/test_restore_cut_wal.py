"""A restore over a damaged -wal of a killed server: until the file is replaced, a start still tells what is lost."""

import contextlib
import os
import subprocess
import time
from pathlib import Path

import pytest

from beanlite.errors import BeanliteError, JournalLocked, JournalRefused
from beanlite.journal.sqlite.file.database import open_database
from beanlite.journal.sqlite.file.fileformat import wal_of
from beanlite.journal.sqlite.file.wal import commit_frames, last_frame_offset
from beanlite.journal.sqlite.tools import replace, restore as restoring
from beanlite.journal.sqlite.tools.restore import restore
from tests.journal.test_restore import ids, kept_by, names, source, target, untouched
from tests.journal.test_restore_killed import killed_folders
from tests.support.journal_files import flip, make_killed, refusal, sync_that_fails_once_replaced
from tests.support.needs import need
from tests.support.sqlite_tool import outsider, tell

__all__ = ["source", "target"]  # fixtures


@pytest.fixture
def cut(target):
    """The database of a killed server, of whose ten batches SQLite recovers two."""
    make_killed(target, batches=10)
    flip(wal_of(target), last_frame_offset(commit_frames(target)[2]) + 100)
    return target


FAILURES = pytest.mark.parametrize(
    ("error", "raised", "match"),
    [
        (OSError(5, "Input/output error"), BeanliteError, "was not replaced: Input/output error"),
        (KeyboardInterrupt(), KeyboardInterrupt, "^$"),
    ],
)


@FAILURES
def test_a_restore_that_fails_leaves_a_damaged_wal(error, raised, match, source, cut, monkeypatch):
    fail_at_last(error, monkeypatch)
    untouched(cut, source, raised, match)
    assert open_database(cut).lost_batches >= 7


@FAILURES
def test_a_restore_that_fails_leaves_a_lone_wal(error, raised, match, source, target, monkeypatch):
    make_killed(target, batches=5)
    target.unlink()
    fail_at_last(error, monkeypatch)
    untouched(target, source, raised, match)


def fail_at_last(error, monkeypatch):
    """Have the rename fail."""

    def failing(*_):
        raise error

    monkeypatch.setattr(replace, "_rename", failing)


@pytest.mark.parametrize("lost", [1, 8])
def test_nobody_else_has_the_new_file_before_the_old_wal_is_gone(lost, source, target, monkeypatch):
    make_killed(target, batches=10)
    flip(wal_of(target), last_frame_offset(commit_frames(target)[-lost]) + 100)
    found, pwrite = [], os.pwrite

    def look(*given):
        done = pwrite(*given)
        found.append(tell(target, "SELECT count(*) FROM jobs"))
        return done

    monkeypatch.setattr(os, "pwrite", look)
    restore(source, target)
    assert "database is locked" in found[0]
    assert len(found) == 1
    assert ids(target)[0] == [1, 2, 3]


def test_the_old_file_is_locked_until_the_old_wal_is_gone(source, cut, tmp_path, monkeypatch):
    rename, unlink, read = replace._rename, Path.unlink, tmp_path / "read"

    def rename_opened(*given):
        do(f".open {cut}")
        rename(*given)

    def unlink_looked_at(path, **how):
        if path == wal_of(cut):
            do(f".output {read}\nSELECT count(*) FROM jobs;\n.output stdout")
        unlink(path, **how)

    monkeypatch.setattr(replace, "_rename", rename_opened)
    monkeypatch.setattr(Path, "unlink", unlink_looked_at)
    with outsider(":memory:") as do:
        restore(source, cut)
    assert read.read_text() == ""
    assert ids(cut)[0] == [1, 2, 3]


def test_where_the_old_wal_stays_it_is_said_what_to_do(source, cut, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(replace, "sync", sync_that_fails_once_replaced(cut))
        match = "is replaced, but no server starts on it, as the old -wal is still there; restore again: Input/output"
        with pytest.raises(BeanliteError, match=match):
            restore(source, cut)
    assert "belongs to another file" in refusal(cut)
    restore(source, cut)
    assert ids(cut)[0] == [1, 2, 3]


def test_the_old_wal_goes_though_the_old_file_can_not_be_written(source, cut, monkeypatch):
    def failing(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", failing)
        with pytest.raises(BeanliteError, match="program writes that had the old file open is lost: No space left"):
            restore(source, cut)
    assert ids(cut)[0] == [1, 2, 3]


def test_a_glance_at_a_file_with_a_damaged_wal_is_waited_for(source, cut, monkeypatch):
    with outsider(f"{cut.as_uri()}?mode=ro") as do:
        do("SELECT 1 FROM sqlite_schema LIMIT 0;")
        monkeypatch.setattr(time, "sleep", lambda _: do(".open :memory:"))
        restore(source, cut)
    assert ids(cut)[0] == [1, 2, 3]


def test_no_id_is_given_out_twice_though_the_disk_is_full(source, tmp_path, monkeypatch):
    need(os.geteuid() == 0, "only root can mount")
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(disk)], check=True)
    set_aside = restoring._set_aside

    def fill(*given):
        set_aside(*given)
        with contextlib.suppress(OSError), (disk / "full").open("wb", buffering=0) as full:
            while full.write(bytes(4096)):
                pass

    monkeypatch.setattr(restoring, "_set_aside", fill)
    try:
        make_killed(disk / "queue.db", batches=10)
        with pytest.raises(JournalRefused, match="no space left"):
            restore(source, disk / "queue.db")
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_file_with_a_damaged_wal_is_refused_if_others_have_it(source, cut):
    with outsider(cut) as do:
        do("SELECT 1 FROM sqlite_schema LIMIT 0;")
        before = wal_of(cut).read_bytes()
        with pytest.raises(JournalLocked, match=r"another program has .* open"):
            restore(source, cut)
        assert wal_of(cut).read_bytes() == before


def test_a_damaged_wal_goes_with_its_file(source, cut):
    before = cut.read_bytes(), wal_of(cut).read_bytes()
    kept = kept_by(restore(source, cut))
    assert (kept.read_bytes(), wal_of(kept).read_bytes()) == before
    assert names(cut) == ["queue.db", kept.name, wal_of(kept).name]
    assert ids(cut) == ([1, 2, 3], 30)  # as a frame tells that SQLite does not recover


def test_no_id_of_a_wal_without_a_header_is_given_out_twice(source, target):
    make_killed(target, batches=10)
    flip(wal_of(target), 0)
    restore(source, target)
    assert ids(target) == ([1, 2, 3], 30)


def test_kill_at_any_point_hides_no_loss_of_commits(source, cut):
    wal = wal_of(cut).read_bytes()
    found = []
    for folder in killed_folders("restore", source, cut):
        found.append(state_of(folder))
        restore(source, folder / "queue.db")
        assert ids(folder / "queue.db")[0] == [1, 2, 3]
        assert wal in [file.read_bytes() for file in folder.glob("*wal*")]
    assert len(found) > 10
    assert list(dict.fromkeys(found)) == ["the old one", "refused", "the new one"]


def state_of(folder):
    """Tell what a server finds in a copy of the folder."""
    copy = folder.with_name(f"{folder.name}-copy")
    copy.mkdir()
    for file in folder.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    try:
        database = open_database(copy / "queue.db")
    except JournalRefused:
        return "refused"
    jobs = database.connection.execute("SELECT count(*) FROM jobs").fetchone()[0]
    state = {(3, False): "the new one", (6, True): "the old one"}[jobs, database.lost_batches >= 7]
    database.close()
    return state
