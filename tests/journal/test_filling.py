"""Filling a database from another source: it gets all jobs or none, whatever happens meanwhile."""

import errno
import os
import signal
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from beanlite.errors import BeanliteError, JournalFailed, JournalRefused
from beanlite.journal.sqlite.file.database import Database, open_database
from beanlite.journal.sqlite.file.fileformat import PAGE_SIZE
from beanlite.journal.sqlite.file.rows import INLINE_MAX
from beanlite.journal.sqlite.tools import filling as filling_module
from beanlite.journal.sqlite.tools.filling import filling
from beanlite.journal.sqlite.tools.verify import verify
from tests.support.journal_files import files_of_at_most, make, writer
from tests.support.needs import need


def job(job_id, body=b"body", **columns):
    as_put = {"tube": "default", "state": "ready", "pri": 0, "delay_s": 0, "ttr_s": 60, "created_at": 1.7e9}
    return {"id": job_id, "body": body, **as_put, **columns}


def select(path, what):
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(f"SELECT {what}").fetchall()


def fill(path, jobs):
    with filling(path) as queue:
        for each in jobs:
            queue.add(each)


def test_what_was_added_is_sound_and_in_one_file(path):
    with filling(path) as queue:
        queue.add(job(1))
        queue.add(job(2, b"x" * (INLINE_MAX + 1)))
        queue.add(job(5, state="buried", buried_seq=7, buries=1))
        queue.add(job(9, state="delayed", due_at=1.8e9, delay_s=3))
        queue.set_last_id(12)
    assert queue.leftover is None
    assert [finding.check for finding in verify(path) if not finding.sound] == []
    assert select(path, "id, state, due_at, buried_seq, length(body) FROM jobs") == [
        (1, "ready", None, None, 4),
        (2, "ready", None, None, None),
        (5, "buried", None, 7, 4),
        (9, "delayed", 1.8e9, None, 4),
    ]
    assert select(path, "id, length(body) FROM bodies") == [(2, INLINE_MAX + 1)]
    assert select(path, "last_id FROM meta") == [(12,)]
    assert list(path.parent.iterdir()) == [path]


def test_an_empty_queue_keeps_its_ids_and_pauses(path):
    database = open_database(path)
    database.connection.execute("UPDATE meta SET last_id = 100")
    database.connection.execute("INSERT INTO pauses VALUES ('default', 60, 4e9)")
    database.close()
    with filling(path) as queue:
        queue.add(job(1))
        queue.set_last_id(1)
    assert select(path, "last_id, (SELECT count(*) FROM pauses) FROM meta") == [(100, 1)]


def test_whether_there_are_jobs(path):
    with filling(path) as queue:
        assert not queue.has_jobs()
        queue.add(job(1))
        assert queue.has_jobs()


def test_one_that_is_served_is_refused(path):
    with writer(path, "idle"), pytest.raises(JournalRefused, match="a server or another command holds"), filling(path):
        pytest.fail("it was opened")


class Stop(BaseException):
    """Like KeyboardInterrupt, but it does not end pytest."""


@pytest.mark.parametrize("error", [Stop, BeanliteError])
def test_after_an_error_nothing_was_added(error, path):
    def jobs():
        yield job(1)
        raise error

    with pytest.raises(error):
        fill(path, jobs())
    assert list(path.parent.iterdir()) == []
    open_database(path).close()
    with pytest.raises(error):
        fill(path, jobs())
    assert select(path, "count(*) FROM jobs") == [(0,)]
    assert list(path.parent.iterdir()) == [path]


def test_after_an_error_what_another_program_has_just_made_stays(path, monkeypatch):
    def opened(path, **how):
        monkeypatch.undo()
        fill_up(path)
        return open_database(path, **how)

    def fill_up(path):
        with filling(path) as queue:
            queue.add(job(1))
            queue.set_last_id(1)

    monkeypatch.setattr(filling_module, "open_database", opened)
    with pytest.raises(BeanliteError, match="constraint failed"):
        fill(path, [job(1)])
    assert select(path, "count(*) FROM jobs") == [(1,)]


def test_nobody_uses_a_new_file_before_it_is_removed(path, monkeypatch):
    unlink, refusals = Path.unlink, []

    def watched(file, **how):
        with pytest.raises(JournalRefused, match="a server or another command holds") as refusal:
            open_database(path)
        refusals.append(refusal)
        monkeypatch.undo()
        unlink(file, **how)

    monkeypatch.setattr(Path, "unlink", watched)
    with pytest.raises(BeanliteError, match="constraint failed"):
        fill(path, [job(1, state="reversed")])
    assert len(refusals) == 1
    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize("is_new", [True, False])
def test_a_disk_that_fills_up(is_new, path):
    if not is_new:
        open_database(path).close()
    with files_of_at_most(4 << 20), pytest.raises(BeanliteError, match=r"^nothing was added to .*queue\.db: "):
        fill(path, (job(job_id, bytes(1000)) for job_id in range(1, 10_000)))
    if is_new:
        assert list(path.parent.iterdir()) == []
    fill(path, [job(1)])
    assert select(path, "count(*) FROM jobs") == [(1,)]


def test_a_disk_without_room_for_an_empty_database_stays_empty(tmp_path):
    need(os.geteuid() == 0, "only root can mount")
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=92k", "none", str(folder)], check=True)
    try:
        with pytest.raises(JournalRefused, match="no space left on the disk"):
            fill(folder / "queue.db", [job(1)])
        assert list(folder.iterdir()) == []
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_with_too_many_open_files_nothing_is_left(path, monkeypatch):
    def refuse(_):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "dup", refuse)
    with pytest.raises(JournalRefused, match="can't be used: Too many open files"):
        fill(path, [job(1)])
    assert list(path.parent.iterdir()) == []
    monkeypatch.undo()
    fill(path, [job(1)])


def test_disk_that_fails_once_everything_was_added(path):
    make(path, batches=20)
    why = rf"^everything was added to {path}, but the last checkpoint of {path} failed: "
    with files_of_at_most(path.stat().st_size), pytest.raises(JournalFailed, match=why):
        fill(path, [job(1000, bytes(PAGE_SIZE))])
    assert path.stat().st_size > 10 * PAGE_SIZE
    database = open_database(path)
    assert database.connection.execute("SELECT count(*) FROM jobs").fetchone() == (61,)
    assert database.close() is None


def test_a_signal_after_the_commit_is_too_late(path, monkeypatch):
    close, handler = Database.close, signal.getsignal(signal.SIGINT)

    def interrupted(database):
        signal.raise_signal(signal.SIGINT)
        return close(database)

    monkeypatch.setattr(Database, "close", interrupted)
    fill(path, [job(1)])
    assert [file.name for file in path.parent.iterdir()] == ["queue.db"]
    assert signal.getsignal(signal.SIGINT) is handler


def test_a_job_that_cannot_be_one(path):
    with pytest.raises(BeanliteError, match="constraint failed"):
        fill(path, [job(1, state="reversed")])
    assert list(path.parent.iterdir()) == []
