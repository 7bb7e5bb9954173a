"""Compaction: the file gets smaller, with the same jobs; it is refused while the file may be in use."""

import stat

import pytest

from beanlite.errors import BeanliteError, JournalRefused
from beanlite.journal.sqlite.file.database import open_database
from beanlite.journal.sqlite.file.replay import read_jobs, read_state
from beanlite.journal.sqlite.tools import replace
from beanlite.journal.sqlite.tools.compact import compact
from tests.support.journal_files import (
    LARGE,
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


def make_large(path, jobs=400):
    """Make a file of about 20 MB, nearly all of it free if it is to have but a few jobs."""
    database = open_database(path)
    for number in range(1, 401):
        put(database.connection, number, bytes(50_000), large=True)
    database.connection.execute("DELETE FROM bodies WHERE id > ?", (jobs,))
    database.connection.execute("DELETE FROM jobs WHERE id > ?", (jobs,))
    database.connection.execute("UPDATE meta SET last_id = 400")
    assert database.close() is None
    path.chmod(0o640)


def test_it_is_smaller_and_has_the_same_jobs(path):
    make_large(path, jobs=2)
    size = path.stat().st_size
    result = compact(path)
    assert (result.jobs, result.before, result.after) == (2, size, path.stat().st_size)
    assert size > 10_000_000
    assert result.after < 200_000
    assert [file.name for file in path.parent.iterdir()] == ["queue.db"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    database = open_database(path)
    assert [job[0] for jobs in read_jobs(database.connection, path) for job in jobs] == [1, 2]
    assert read_state(database.connection, path).last_id == 400
    assert database.close() is None


@pytest.mark.parametrize(
    ("spoil", "match"),
    [
        (lambda path: make_killed(path, batches=3), "has a -wal, as a killed server leaves it"),
        (lambda _: None, "can't be opened: No such file or directory"),
        (lambda path: path.write_text("somebody's"), "is not an SQLite file"),
        (lambda path: make(path, batches=3) or flip(path, path.read_bytes().index(LARGE[:100])), "the body of job"),
    ],
)
def test_what_is_refused_is_left_alone(path, spoil, match):
    spoil(path)
    before = snapshot(path.parent)
    with pytest.raises(JournalRefused, match=match):
        compact(path)
    assert snapshot(path.parent) == before


def test_what_another_program_was_killed_amid_is_rolled_back(path):
    make_interrupted(path, batches=4)
    assert compact(path).jobs == 12
    assert [file.name for file in path.parent.iterdir()] == ["queue.db"]
    assert ask(path, "SELECT count(*) FROM sqlite_schema WHERE name = 'theirs'") == "0\n"


def test_a_served_one_is_refused(path):
    with writer(path, "idle"):
        before = snapshot(path.parent)
        with pytest.raises(JournalRefused, match="a server or another command holds"):
            compact(path)
        assert snapshot(path.parent) == before


def test_what_another_program_writes_meanwhile_is_not_lost(path):
    """It has tables of its own in the file."""
    make_large(path)
    told = []

    def meanwhile(_size):
        if not told:
            told.append(tell(path, "CREATE TABLE theirs (a); INSERT INTO theirs VALUES (1)"))

    with pytest.raises(JournalRefused, match=r"another program has written to .* meanwhile; try again"):
        compact(path, meanwhile)
    assert told == [""]
    assert compact(path).jobs == 400
    assert ask(path, "SELECT * FROM theirs") == "1\n"


def test_one_that_another_program_has_open_is_refused(path):
    """What it wrote afterwards would go into a file that no longer has a name."""
    make(path, batches=3)
    with outsider(path) as do:
        do("CREATE TABLE theirs (a);")
        tell(path, "PRAGMA wal_checkpoint(TRUNCATE)")
        with pytest.raises(JournalRefused, match="another program"):
            compact(path)
        do("INSERT INTO theirs VALUES (1);")
    assert ask(path, "SELECT * FROM theirs") == "1\n"
    assert compact(path).jobs == 9


def test_no_room(path):
    make_large(path, jobs=2)
    before = snapshot(path.parent)
    with files_of_at_most(100_000), pytest.raises(BeanliteError, match=r"the copy of .* failed"):
        compact(path)
    assert snapshot(path.parent) == before


def test_an_error_after_the_new_file_is_in_place_says_so(path, monkeypatch):
    make(path, batches=4)
    inode = path.stat().st_ino
    monkeypatch.setattr(replace, "sync", sync_that_fails_once_replaced(path))
    with pytest.raises(BeanliteError, match=r"is replaced, but a power failure may undo that: Input/output error$"):
        compact(path)
    assert path.stat().st_ino != inode
