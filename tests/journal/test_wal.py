"""The batches in a damaged -wal beyond the place where SQLite's recovery ends."""

import os
import stat
from pathlib import Path

import pytest

from beanlite.errors import JournalRefused
from beanlite.journal.sqlite.file import wal as module
from beanlite.journal.sqlite.file.database import open_database
from beanlite.journal.sqlite.file.replay import read_state
from beanlite.journal.sqlite.file.wal import commit_frames
from beanlite.journal.sqlite.tools.backup import backup
from beanlite.journal.sqlite.tools.load import load
from beanlite.journal.sqlite.tools.restore import restore, undo_restore
from beanlite.journal.sqlite.tools.verify import verify
from tests.support.journal_files import export_to_file, flip, make, make_killed, write_batch

FRAME = 24 + 4096


@pytest.fixture
def wal(path):
    """A -wal with ten batches, left by a killed server."""
    make_killed(path, batches=10)
    return Path(f"{path}-wal")


def start_of(frame):
    return 32 + (frame - 1) * FRAME


def recovered(path):
    """Open and close the file; return its last batch, the number of lost batches, and the copy of the -wal."""
    database = open_database(path)
    batch = read_state(database.connection, path).batch
    lost = database.lost_batches, database.damaged_wal
    assert database.close() is None
    return batch, *lost


def test_no_wal(path):
    make(path)
    assert commit_frames(path) == []


def test_one_frame_ends_each_batch(path, wal):
    commits = commit_frames(path)
    assert len(commits) == 10
    assert start_of(commits[-1] + 1) == wal.stat().st_size
    assert recovered(path) == (10, 0, None)


@pytest.mark.parametrize("offset", [0, 8, 16, 24, 4000])
def test_damaged_in_the_middle(path, wal, offset):
    flip(wal, start_of(commit_frames(path)[2]) + offset)  # in the last frame of batch 3
    content = wal.read_bytes()
    batch, lost, copy = recovered(path)
    assert batch == 2
    assert lost in (7, 8)  # the damage may hide that batch 3 ends here
    assert copy.name.startswith("queue.db-wal.damaged-")
    assert copy.read_bytes() == content
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600


def test_a_copy_that_a_killed_start_had_begun_goes(tmp_path):
    path = tmp_path / "queue[1].db"
    make_killed(path, batches=10)
    flip(Path(f"{path}-wal"), start_of(commit_frames(path)[2]))
    partial = tmp_path / ".queue[1].db-wal.damaged-20200101T000000Z.abc.partial"
    partial.touch()
    assert recovered(path)[2].exists()
    assert not partial.exists()


def test_a_damaged_header_loses_everything(path, wal):
    flip(wal, 17)
    batch, lost, copy = recovered(path)
    assert (batch, lost) == (0, 10)
    assert copy.exists()


def test_a_first_block_of_zeros_loses_everything(path, wal):
    with wal.open("r+b") as file:
        file.write(bytes(4096))
    batch, lost, _ = recovered(path)
    assert batch == 0
    assert lost in (9, 10)


@pytest.mark.parametrize("cut", [1, 100, FRAME, FRAME + 1])
def test_a_last_batch_cut_short_is_what_a_power_failure_leaves(path, wal, cut):
    os.truncate(wal, wal.stat().st_size - cut)
    assert recovered(path) == (9, 0, None)


def test_a_batch_and_a_slice_beside_it_may_both_be_lost(path, wal):
    flip(wal, start_of(commit_frames(path)[-2]) + 4000)
    assert recovered(path) == (8, 0, None)


def test_three_commits_were_not_all_under_way(path, wal):
    flip(wal, start_of(commit_frames(path)[-3]) + 4000)
    batch, lost, copy = recovered(path)
    assert (batch, lost) == (7, 3)
    assert copy.exists()


def test_a_last_batch_torn_is_what_a_power_failure_leaves(path, wal):
    flip(wal, wal.stat().st_size - 1)
    assert recovered(path) == (9, 0, None)
    assert [file.name for file in path.parent.iterdir()] == ["queue.db"]


def test_frames_from_before_the_wal_was_begun_anew_do_not_count(path):
    database = open_database(path)
    for batch in range(1, 11):
        write_batch(database.connection, batch)
    database.connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    write_batch(database.connection, 11)
    commits = commit_frames(path)
    assert len(commits) == 1
    assert start_of(commits[0] + 1) < Path(f"{path}-wal").stat().st_size
    database.close()


def test_a_wal_that_can_not_be_read(path, wal):
    wal.unlink()
    wal.mkdir()
    with pytest.raises(JournalRefused, match=r"queue\.db-wal can't be read: Is a directory"):
        open_database(path)


def contents(folder):
    """Return all files but the -shm, which SQLite makes anew."""
    return {file.name: file.read_bytes() for file in folder.iterdir() if not file.name.endswith("-shm")}


DAMAGED = pytest.mark.parametrize("offset", [16, start_of(9)], ids=["in the header", "in the middle"])
LOST = "commits follow a damaged frame of its -wal"


@DAMAGED
@pytest.mark.parametrize("copy", [backup, export_to_file, restore])
def test_what_a_start_reports_as_lost_is_not_left_out_silently(path, wal, tmp_path, copy, offset):
    flip(wal, offset)
    before = contents(tmp_path)
    with pytest.raises(JournalRefused, match=LOST):
        copy(path, tmp_path / "new")
    assert contents(tmp_path) == before


@DAMAGED
def test_verify_finds_it(path, wal, offset):
    flip(wal, offset)
    found = [finding for finding in verify(path) if not finding.sound]
    assert [finding.check for finding in found] == ["log"]
    assert LOST in found[0].said


@DAMAGED
@pytest.mark.usefixtures("wal")
def test_an_undo_does_not_remove_what_it_can_not_bring_back(path, tmp_path, offset):
    make(tmp_path / "sound.db")
    result = restore(tmp_path / "sound.db", path)
    flip(Path(f"{result.kept}-wal"), offset)
    before = contents(tmp_path)
    with pytest.raises(JournalRefused, match=LOST):
        undo_restore(path)
    assert contents(tmp_path) == before


@DAMAGED
def test_nothing_is_imported_where_commits_are_lost(path, wal, offset):
    flip(wal, offset)
    before = contents(path.parent)
    with pytest.raises(JournalRefused, match=LOST):
        load([], path)
    assert contents(path.parent) == before


def test_a_wal_may_shrink_while_it_is_read(wal, path, monkeypatch):
    """Another program, or the server itself, has moved it into the file meanwhile."""
    size, commits = wal.stat().st_size, commit_frames(path)
    fstat = os.fstat

    def then_cut(descriptor):
        status = fstat(descriptor)
        if status.st_size == size:
            os.truncate(wal, start_of(commits[4]) + 10)
        return status

    monkeypatch.setattr(os, "fstat", then_cut)
    assert commit_frames(path) == commits[:4]
    monkeypatch.setattr(module, "commit_frames", lambda _: commits)
    descriptor, pages = module.newest_pages(path)
    os.close(descriptor)
    assert max(pages.values()) < start_of(commits[4])


def test_a_short_index_is_an_error_that_can_be_told(path):
    with Path(f"{path}-shm").open("wb+") as index, pytest.raises(OSError, match="its -shm is cut short"):
        module.read_progress(index.fileno())
