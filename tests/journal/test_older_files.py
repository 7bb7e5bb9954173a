"""Files of older versions, such as backups from before an update, can be read by all commands that only read."""

import shutil
import sqlite3
from contextlib import closing
from zlib import crc32

import pytest

from beanlite.journal.migrations import find_migrations
from beanlite.journal.sqlite.file.database import open_database
from beanlite.journal.sqlite.file.migrations import read_version, stand_in
from beanlite.journal.sqlite.file.replay import read_jobs
from beanlite.journal.sqlite.tools.backup import backup
from beanlite.journal.sqlite.tools.reading import reading
from beanlite.journal.sqlite.tools.restore import restore
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
