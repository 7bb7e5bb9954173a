"""Files of older versions, such as backups from before an update, can be read by all commands that only read."""

import io
import json
import shutil
import sqlite3
from contextlib import closing
from zlib import crc32

import pytest

from beanlite.errors import JournalRefused
from beanlite.journal.migrations import find_migrations
from beanlite.journal.sqlite.file.database import open_database
from beanlite.journal.sqlite.file.migrations import read_version, stand_in
from beanlite.journal.sqlite.file.replay import check_jobs, read_jobs
from beanlite.journal.sqlite.tools.backup import backup
from beanlite.journal.sqlite.tools.dump import export
from beanlite.journal.sqlite.tools.load import load
from beanlite.journal.sqlite.tools.reading import reading
from beanlite.journal.sqlite.tools.restore import restore
from beanlite.journal.sqlite.tools.salvage import salvage
from beanlite.journal.sqlite.tools.verify import verify


@pytest.fixture
def path(tmp_path):
    """A database of the first version, with one job."""
    folder = tmp_path / "first"
    folder.mkdir()
    shutil.copy(find_migrations()[0], folder)
    path = tmp_path / "queue.db"
    database = open_database(path, folder)
    database.connection.execute(
        """
        INSERT INTO jobs (id, tube, state, pri, delay_s, ttr_s, created_at, reserves, timeouts, releases, buries, kicks,
                          crc32, body)
        VALUES (1, 'default', 'ready', 0, 0, 60, 1.7e9, 0, 0, 0, 0, 0, ?, ?)
        """,
        (crc32(b"body"), b"body"),
    )
    database.connection.execute("UPDATE meta SET last_id = 1")
    assert database.close() is None
    return path


def test_verify(path):
    assert [finding.said for finding in verify(path) if not finding.sound] == []


def test_a_backup_has_the_version_of_its_source(path):
    copy = path.with_name("copy.db")
    assert backup(path, copy).jobs == 1
    with closing(sqlite3.connect(copy)) as connection:
        assert read_version(connection) == 1


def test_jobs_are_not_added_and_the_file_stays_as_it_is(path):
    before = path.read_bytes()
    with pytest.raises(JournalRefused, match="has version 1, and jobs can be added to it when a server"):
        load([], path)
    assert path.read_bytes() == before
    assert list(path.parent.glob("queue.db*")) == [path]


def test_restore_and_serve(path):
    target = path.with_name("target.db")
    assert restore(path, target).jobs == 1
    database = open_database(target)
    assert [job[0] for jobs in read_jobs(database.connection, target) for job in jobs] == [1]
    assert database.close() is None


def test_columns_that_are_newer_than_the_file_are_null(path, tmp_path):
    newer = tmp_path / "newer.sql"
    newer.write_text("ALTER TABLE jobs ADD COLUMN newer TEXT")
    with closing(sqlite3.connect(path)) as connection:
        stand_in(connection, [*find_migrations(), newer])
        assert connection.execute("SELECT id, newer FROM jobs").fetchall() == [(1, None)]


def test_a_file_of_today_is_read_as_it_is(tmp_path):
    open_database(tmp_path / "new.db").close()
    with reading(tmp_path / "new.db") as connection:
        assert connection.execute("SELECT count(*) FROM temp.sqlite_schema").fetchone() == (0,)


# Rows as version 4 wrote them, with their checksums: of jobs to which something has happened, and of one just put.
VERSION_4 = [
    (
        1,
        "mail",
        "ready",
        10,
        0,
        60,
        1.7e9,
        None,
        None,
        2,
        0,
        1,
        0,
        0,
        1.7e9 + 50.5,
        "10.0.0.1:4711",
        7,
        None,
        755960440,
    ),
    (2, "mail", "buried", 10, 5, 60, 1.7e9 + 1, None, 3, 1, 0, 0, 1, 0, 1.7e9 + 60, "unix", 8, "by client", 92537771),
    (3, "default", "ready", 0, 30, 120, 1.7e9 + 2, None, None, 0, 0, 0, 0, 1, 1.7e9 + 61, None, None, None, 1957332579),
    (4, "default", "ready", 1, 0, 60, 1.7e9 + 4, None, None, 0, 0, 0, 0, 0, 1.7e9 + 4, None, None, None, 1539264288),
]


@pytest.fixture
def version_4(tmp_path):
    """A file of version 4: the first one whose rows have all that their checksums cover."""
    folder = tmp_path / "four"
    folder.mkdir()
    for migration in find_migrations()[:4]:
        shutil.copy(migration, folder)
    path = tmp_path / "four.db"
    database = open_database(path, folder)
    database.connection.executemany(
        """
        INSERT INTO jobs (id, tube, state, pri, delay_s, ttr_s, created_at, due_at, buried_seq, reserves, timeouts,
                          releases, buries, kicks, since, holder, holder_conn, why, row_crc32, crc32, body)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
        """,
        [(*row, crc32(b"body"), b"body") for row in VERSION_4],
    )
    database.connection.execute("UPDATE meta SET last_id = 4, jobs = 4")
    assert database.close() is None
    return path


def lines_of(path):
    sink = io.BytesIO()
    export(path, sink)
    return [json.loads(line) for line in sink.getvalue().splitlines()]


def test_checksums_of_rows_of_version_4_are_still_right(version_4, tmp_path):
    """A column that is added later must not change the checksum of a row in which it has its default."""
    assert [finding.said for finding in verify(version_4) if not finding.sound] == []
    before = lines_of(version_4)
    saved = salvage(version_4, tmp_path / "saved.db")
    assert (saved.jobs, saved.lost, saved.doubtful) == (4, [], [])
    assert lines_of(tmp_path / "saved.db") == before
    database = open_database(version_4)  # brings it up to date
    ids = [job[0] for jobs in read_jobs(database.connection, version_4) for job in jobs]
    assert ids == [1, 2, 3, 4]
    check_jobs(database.connection, version_4)
    assert database.close() is None
    assert lines_of(version_4) == before
