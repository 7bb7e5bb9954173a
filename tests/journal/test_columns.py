"""What is written by hand about a job's columns agrees with the one table of them."""

import sqlite3
from contextlib import closing

import pytest

from beanlite.core.restore import StoredJob
from beanlite.journal import rows
from beanlite.journal.columns import COUNTERS, JOB, NAMES, PUT, TIMES
from beanlite.journal.sqlite.file import rows as sqlite_rows
from beanlite.journal.sqlite.file.database import open_database
from beanlite.journal.sqlite.served import batch as sqlite_batch
from beanlite.journal.sqlite.tools import salvage
from beanlite.journal.sqlite.tools.filling import JobRow
from tests.support.core import Core, put

# The types that SQLite has for those of PostgreSQL.
SQLITE = {"bigint": "INTEGER", "float8": "REAL", "text": "TEXT"}


@pytest.fixture
def table(tmp_path):
    """The table that the migrations make: the type of each column, in their order."""
    open_database(tmp_path / "q.db").close()
    with closing(sqlite3.connect(tmp_path / "q.db")) as connection:
        return dict(connection.execute("SELECT name, type FROM pragma_table_info('jobs') ORDER BY cid"))


def test_migrations_make_these_columns_in_the_file(table):
    ours = {column.name: SQLITE[column.type] for column in JOB}
    assert table == ours | {"row_crc32": "INTEGER", "crc32": "INTEGER", "body": "BLOB"}


def test_row_has_a_value_for_each_column():
    core = Core()
    put(core, core.client())
    row = rows.row_of(core.engine.jobs[1])
    assert len(row) == len(NAMES)
    values = dict(zip(NAMES, row, strict=True))
    assert {name: values[name] for name in COUNTERS} == dict.fromkeys(COUNTERS, 0)
    assert {type(values[name]) for name in ("created_at", "since")} == {float}
    # What a job has that is ready since its put is what the statement for such jobs writes.
    constants = {"NULL": None, "0": 0, "'ready'": "ready", "created_at": values["created_at"]}
    assert {column.name: values[column.name] for column in JOB if column.ready} == {
        column.name: constants[column.ready] for column in JOB if column.ready
    }


def test_stored_job_has_the_columns_in_their_order():
    in_memory = {"created_ns": "created_at", "place": "due_at", "since_ns": "since"}
    fields = [in_memory.get(field, field) for field in StoredJob._fields]
    assert [field for field in fields if field in NAMES] == [name for name in NAMES if name != "buried_seq"]
    assert [field for field in fields if field not in NAMES] == ["body", "crc32", "row_crc32"]


def test_imported_row_is_the_beginning_of_a_row():
    assert (*JobRow._fields[:-1], *NAMES[-4:]) == NAMES


def test_salvage_finds_the_times_where_the_migrations_put_them(table):
    assert tuple(list(table).index(name) for name in TIMES) == salvage._TIMES


def test_statements_have_as_many_parameters_as_rows_have_values():
    assert sqlite_rows.INSERT_JOB.count("?") == len(NAMES) + 3
    assert len(PUT) + 3 == sqlite_batch._READY_PARAMETERS
