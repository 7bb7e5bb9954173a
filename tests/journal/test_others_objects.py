"""What an operator has added to the file, broken or not, is not taken for damage of the queue."""

import shlex
import shutil
import sqlite3
import subprocess
from contextlib import closing

import pytest

from beanlite.errors import JournalRefused
from beanlite.journal.migrations import find_migrations
from beanlite.journal.sqlite.file.database import open_database
from beanlite.journal.sqlite.file.migrations import allow_writing
from beanlite.journal.sqlite.tools.backup import backup
from beanlite.journal.sqlite.tools.compact import compact
from beanlite.journal.sqlite.tools.look import looking
from beanlite.journal.sqlite.tools.restore import restore
from beanlite.journal.sqlite.tools.verify import verify
from tests.journal.test_restore import ids
from tests.support.journal_files import export_to_file, make, refusal

THEIRS = {
    "a broken view": "CREATE TABLE gone (a); CREATE VIEW mine AS SELECT a FROM gone; DROP TABLE gone",
    "a view of what never was": "CREATE VIEW mine AS SELECT * FROM none",
    "our view, broken": "DROP VIEW ready; CREATE VIEW ready AS SELECT * FROM none",
    "our view, gone": "DROP VIEW ready",
    "a table of a module that is not there": """
        PRAGMA writable_schema = ON;
        INSERT INTO sqlite_schema VALUES ('table', 'mine', 'mine', 0, 'CREATE VIRTUAL TABLE mine USING none(a)');
        PRAGMA writable_schema = RESET;
    """,
    "a table with a wrong value": """
        CREATE TABLE mine (a);
        INSERT INTO mine VALUES (NULL);
        PRAGMA writable_schema = ON;
        UPDATE sqlite_schema SET sql = 'CREATE TABLE mine (a NOT NULL)' WHERE name = 'mine';
        PRAGMA writable_schema = RESET;
    """,
}


def add(path, statements):
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        allow_writing(connection)
        connection.executescript(statements)


@pytest.fixture(params=THEIRS)
def path(request, tmp_path):
    """A sound database with four jobs' worth of batches, to which this was added."""
    path = tmp_path / "queue.db"
    make(path, batches=4)
    add(path, THEIRS[request.param])
    return path


def test_it_is_served_verified_copied_and_compacted(path, tmp_path):
    assert ids(path) == (list(range(1, 13)), 12)
    assert [finding.said for finding in verify(path) if not finding.sound] == []
    assert backup(path, tmp_path / "backup.db").jobs == 12
    assert export_to_file(path, tmp_path / "lines") == 14
    assert restore(path, tmp_path / "restored.db").jobs == 12
    assert compact(path).jobs == 12
    assert ids(path) == (list(range(1, 13)), 12)


def test_an_older_file_with_a_broken_view_is_migrated(tmp_path):
    (tmp_path / "first").mkdir()
    shutil.copy(find_migrations()[0], tmp_path / "first")
    path = tmp_path / "queue.db"
    assert open_database(path, tmp_path / "first").close() is None
    add(path, THEIRS["a broken view"])
    assert ids(path) == ([], 0)
    assert all(finding.sound for finding in verify(path))


def test_a_view_that_can_not_be_used_is_named(tmp_path):
    make(tmp_path / "queue.db", batches=1)
    add(tmp_path / "queue.db", "DROP VIEW all_jobs; CREATE VIEW all_jobs AS SELECT 1 AS id")
    with looking(tmp_path / "queue.db") as look, pytest.raises(JournalRefused) as told:
        look.list_jobs({"limit": 10})
    assert "these views are not as beanlite makes them: all_jobs; no job depends on them" in str(told.value)
    assert "restore" not in str(told.value)


BY_VALUE = "json_extract(CAST(body AS TEXT), '$.a')"


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        (f"CREATE INDEX mine ON jobs ({BY_VALUE})", "an index of another program on its table jobs, mine,"),
        (f"CREATE INDEX mine ON jobs (tube) WHERE {BY_VALUE} = 1", "an index of another program on its table jobs,"),
        ("CREATE INDEX mine ON pauses (tube COLLATE ours)", "an index of another program on its table pauses, mine,"),
        (
            f"ALTER TABLE jobs ADD COLUMN a ANY AS ({BY_VALUE})",
            "a generated column of another program on its table jobs, a,",
        ),
    ],
)
def test_what_may_refuse_a_job_yet_to_come_is_named_with_its_removal(tmp_path, statement, what):
    path = tmp_path / "queue.db"
    make(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        allow_writing(connection)
        connection.create_collation("ours", lambda a, b: (a > b) - (a < b))
        connection.execute(statement)
    said = refusal(path)
    assert f"{path} has {what}" in said
    assert "which could keep jobs from being stored; remove it: sqlite3 " in said
    assert [finding.said for finding in verify(path) if not finding.sound] == [said]
    subprocess.run(shlex.split(said.partition("remove it: ")[2]), check=True)
    assert ids(path) == ([], 0)
