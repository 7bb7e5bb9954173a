"""Dated names sort by time, and only our own backups are ever deleted."""

import errno
import os
import time
from pathlib import Path

import pytest

from beanlite.journal.sqlite.file import dated, wholefile
from beanlite.journal.sqlite.file.database import open_database
from beanlite.journal.sqlite.file.dated import dated_backups, delete_left, delete_oldest, stamp
from beanlite.journal.sqlite.file.wholefile import partial_of
from tests.support.journal_files import make, writer

DAY_S = 86400
FIRST_S = 1_795_383_296.789


@pytest.fixture
def folder(tmp_path):
    """A folder with three daily backups of queue.db."""
    folder = tmp_path / "backups"
    folder.mkdir()
    for day in range(3):
        make(dated.dated_path(folder, tmp_path / "queue.db", FIRST_S + day * DAY_S), batches=1)
    return folder


@pytest.fixture
def source(folder):
    return folder.parent / "queue.db"


def names(folder):
    return sorted(file.name for file in folder.iterdir())


def test_a_name_tells_its_moment(source, folder):
    found = dated_backups(folder, source)
    assert [moment_s for _, moment_s in found] == pytest.approx([FIRST_S + day * DAY_S for day in range(3)], abs=0.002)
    assert names(folder) == [file.name for file, _ in found]
    assert stamp(0) == "19700101T000000.000Z"


@pytest.mark.parametrize(("days", "moment_s"), [(-10, FIRST_S + 2 * DAY_S), (5, FIRST_S + 5 * DAY_S)])
def test_a_name_sorts_last_even_where_the_clock_has_gone_back(source, folder, days, moment_s):
    file = dated.dated_path(folder, source, FIRST_S + days * DAY_S)
    make(file, batches=1)
    newest, newest_s = dated_backups(folder, source)[-1]
    assert newest == file
    assert newest_s == pytest.approx(moment_s, abs=0.004)


def test_the_oldest_are_deleted(source, folder):
    *old, newest = dated_backups(folder, source)
    assert delete_oldest(folder, source, 2, newest[0]) == ([old[0][0]], [])
    assert delete_oldest(folder, source, 2, newest[0]) == ([], [])
    assert len(names(folder)) == 2


def test_the_newest_stays_even_where_the_clock_has_gone_back(source, folder):
    (first, _), *later = dated_backups(folder, source)
    assert delete_oldest(folder, source, 1, first) == ([file for file, _ in later], [])
    assert names(folder) == [first.name]


def test_one_that_can_not_be_deleted_keeps_no_other(source, folder, monkeypatch):
    *old, (newest, _) = dated_backups(folder, source)
    left = folder / f".{newest.name}.abc.partial"
    left.touch()
    os.utime(left, (FIRST_S - 365 * DAY_S, FIRST_S - 365 * DAY_S))
    unlink = Path.unlink

    def unlinked(file, missing_ok=False):
        if file in {left, old[0][0]}:
            raise PermissionError(errno.EPERM, "not permitted", str(file))
        unlink(file, missing_ok)

    monkeypatch.setattr(wholefile, "lock_byte", lambda *_: False)
    monkeypatch.setattr(Path, "unlink", unlinked)
    deleted, failures = delete_oldest(folder, source, 1, newest)
    assert deleted == [file for file, _ in old[1:]]
    assert [failure.filename for failure in failures] == [str(left), str(old[0][0])]


def test_one_that_can_not_be_read_is_left_alone(source, folder, monkeypatch):
    backups = dated_backups(folder, source)
    pread = os.pread

    def read(descriptor, size, at):
        if Path(f"/proc/self/fd/{descriptor}").readlink() == backups[0][0]:
            raise OSError(errno.EIO, "Input/output error")
        return pread(descriptor, size, at)

    monkeypatch.setattr(os, "pread", read)
    assert dated_backups(folder, source) == backups[1:]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("queue-20200101T000000.000Z.db", b"not a database, but somebody's"),
        ("queue-20200101T000000.000Z.db", b""),
        ("queue-20200101T000000.000Z.db", b"SQLite format 3\0".ljust(4096, b"\0")),
        ("queue-20200101T000000.000Z.db", b"SQLite format 3\0".ljust(68, b"\0") + b"bean"),
        ("other-20200101T000000.000Z.db", None),
        ("queue-20200101.db", None),
        ("queue-20200230T000000.000Z.db", None),
        ("queue-20200101T000000.000Z.db.gz", None),
        ("my-queue-20200101T000000.000Z.db", None),
    ],
)
def test_what_is_not_ours_is_left_alone(source, folder, name, content):
    newest, _ = dated_backups(folder, source)[-1]
    (folder / name).write_bytes(newest.read_bytes() if content is None else content)
    delete_oldest(folder, source, 1, newest)
    (folder.parent / name).hardlink_to(folder / name)
    delete_oldest(folder, source, 1, newest)
    assert names(folder) == sorted([name, newest.name])


def test_backups_with_another_name_are_deleted_as_others_are(source, folder, tmp_path):
    """Snapshots of the folder share their files with it, as ``cp -al`` makes them."""
    backups = [file for file, _ in dated_backups(folder, source)]
    copies = [tmp_path / file.name for file in backups]
    for file, copy in zip(backups, copies, strict=True):
        copy.hardlink_to(file)
    assert delete_oldest(folder, source, 1, backups[-1]) == (backups[:-1], [])
    assert all(copy.stat().st_size for copy in copies)


def test_a_link_is_left_alone(source, folder):
    newest, _ = dated_backups(folder, source)[-1]
    make(source)
    link = folder / "queue-20200101T000000.000Z.db"
    link.symlink_to(source)
    delete_oldest(folder, source, 1, newest)
    assert names(folder) == [link.name, newest.name]


def test_one_that_a_server_holds_is_left_alone(source, folder):
    (first, _), (second, _), (newest, _) = dated_backups(folder, source)
    first.unlink()
    with writer(first, "idle"):
        deleted, failures = delete_oldest(folder, source, 1, newest)
    assert deleted == [second]
    assert [(failure.filename, failure.strerror) for failure in failures] == [
        (str(first), "a server or another command holds it")
    ]
    deleted, failures = delete_oldest(folder, source, 1, newest)
    assert (deleted, [failure.filename for failure in failures]) == ([], [str(first)])
    open_database(first).close()  # what is in its -wal is in the file then
    assert delete_oldest(folder, source, 1, newest) == ([first], [])


@pytest.mark.usefixtures("poor_locks")
def test_one_that_nobody_can_lock_is_deleted(source, folder):
    newest, _ = dated_backups(folder, source)[-1]
    assert len(delete_oldest(folder, source, 1, newest)[0]) == 2
    assert names(folder) == [newest.name]


def test_what_a_killed_backup_has_left_goes_with_the_next(source, folder):
    newest, _ = dated_backups(folder, source)[-1]
    with partial_of(folder / "queue-20200101T000000.000Z.db") as live:
        left, others = folder / f".{newest.name}.abc.partial", folder / ".x.abc.partial"
        journal = folder / f"{left.name}-journal"
        for partial in (left, journal, others):
            partial.touch()
        for partial in (left, journal, others, live):
            os.utime(partial, (time.time() - 60, time.time() - 60))
        delete_left(folder, source)
        assert [partial.exists() for partial in (left, journal, others, live)] == [False, False, True, True]


def test_partial_file_removes_a_killed_ones_for_the_same_name(folder):
    left = folder / ".copy.db.abc.partial"
    left.touch()
    os.utime(left, (time.time() - 60, time.time() - 60))
    with partial_of(folder / "copy.db") as first:
        os.utime(first, (time.time() - 60, time.time() - 60))
        with partial_of(folder / "copy.db") as second:
            assert [partial.exists() for partial in (left, first, second)] == [False, True, True]


def test_partial_file_that_nobody_can_claim_goes_after_a_day(source, folder, monkeypatch):
    monkeypatch.setattr(wholefile, "lock_byte", lambda *_: False)
    newest, _ = dated_backups(folder, source)[-1]
    old, new, others = (folder / f".{name}.abc.partial" for name in (newest.name, "queue-20200101T000000.000Z.db", "x"))
    journal = folder / f"{old.name}-journal"
    for partial in (old, journal, new, others):
        partial.touch()
    os.utime(new, (time.time() - 60, time.time() - 60))
    for partial in (old, journal, others):
        os.utime(partial, (FIRST_S - 365 * DAY_S, FIRST_S - 365 * DAY_S))
    delete_oldest(folder, source, 9, newest)
    assert not old.exists()
    assert not journal.exists()
    assert new.exists()
    assert others.exists()


def test_a_partial_file_may_get_its_name_while_old_ones_are_deleted(source, folder, monkeypatch):
    newest, _ = dated_backups(folder, source)[-1]
    partial = folder / f".{newest.name}.abc.partial"
    newest.rename(partial)

    def listed(directory, listdir=os.listdir):
        names = listdir(directory)
        if partial.exists():
            partial.rename(newest)
        return names

    monkeypatch.setattr(os, "listdir", listed)
    assert delete_oldest(folder, source, 3, newest) == ([], [])
    assert len(names(folder)) == 3
