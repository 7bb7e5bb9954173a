"""What is written by hand about a job's columns agrees with the one table of them."""

import re
import sqlite3
from contextlib import closing
from operator import attrgetter
from pathlib import Path

import pytest

from beanlite.core.restore import StoredJob
from beanlite.journal import rows
from beanlite.journal.columns import COUNTERS, JOB, LATER, NAMES, PUT, SHOWN, TEXTS
from beanlite.journal.sqlite.file import rows as sqlite_rows
from beanlite.journal.sqlite.file.database import open_database
from beanlite.journal.sqlite.served import batch as sqlite_batch
from tests.support.core import Core, put, stored_job

# The types that SQLite has for those of PostgreSQL.
SQLITE = {"bigint": "INTEGER", "float8": "REAL", "text": "TEXT"}
# A value of its own for each column that operators see as it is.
VALUES = {name: f"why {n}" if name in TEXTS else 1000 + n for n, name in enumerate(SHOWN)}
LATER_NAMES = tuple(column.name for column in LATER)


@pytest.fixture
def table(tmp_path):
    """The table that the migrations make: the type of each column, in their order."""
    open_database(tmp_path / "q.db").close()
    with closing(sqlite3.connect(tmp_path / "q.db")) as connection:
        return dict(connection.execute("SELECT name, type FROM pragma_table_info('jobs') ORDER BY cid"))


def test_migrations_make_these_columns_in_the_file(table):
    ours = {column.name: SQLITE[column.type] for column in JOB}
    assert table == ours | {"row_crc32": "INTEGER", "crc32": "INTEGER", "body": "BLOB"}
    assert tuple(name for name in table if name in NAMES) == NAMES
    assert tuple(table)[len(table) - len(LATER) :] == LATER_NAMES


def test_view_has_what_operators_see(tmp_path):
    with closing(open_database(tmp_path / "q.db")) as database:
        view = {name for (name,) in database.connection.execute("SELECT name FROM pragma_table_info('all_jobs')")}
    assert [name for name in SHOWN if name not in view] == []


def test_protocol_names_what_operators_see():
    text = Path(__file__).parents[2].joinpath("docs", "protocol.md").read_text(encoding="utf-8")
    said = set(re.findall("`([a-z_]+)`", text.partition("A job is an object:")[2].partition("###")[0]))
    assert [name for name in SHOWN if name not in said] == []


def test_later_columns_are_of_kinds_that_the_checksum_knows():
    assert [name for name in LATER_NAMES if name not in (*COUNTERS, *TEXTS)] == []


def test_row_has_what_a_job_has():
    core = Core()
    put(core, core.client())
    job = core.engine.jobs[1]
    job.own_past()
    for name, path in SHOWN.items():
        owner, _, attribute = path.rpartition(".")
        setattr(attrgetter(owner)(job) if owner else job, attribute, VALUES[name])
    row = rows.row_of(job)
    assert [name for name in SHOWN if VALUES[name] not in row] == []
    values = dict(zip(NAMES, row, strict=True))
    assert {name: values[name] for name in SHOWN} == VALUES


def test_start_restores_what_a_row_has():
    core = Core()
    core.engine.restore([stored_job(1, core.now_ns, **VALUES)], core.now_ns)
    job = core.engine.jobs[1]
    assert [name for name, path in SHOWN.items() if attrgetter(path)(job) != VALUES[name]] == []


@pytest.mark.parametrize("name", COUNTERS)
def test_start_restores_a_counter_that_is_the_only_one(name):
    core = Core()
    core.engine.restore([stored_job(1, core.now_ns, **{name: 5})], core.now_ns)
    job = core.engine.jobs[1]
    assert {each: attrgetter(SHOWN[each])(job) for each in COUNTERS} == dict.fromkeys(COUNTERS, 0) | {name: 5}


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


def test_stored_job_has_the_columns():
    in_memory = {"created_ns": "created_at", "place": "due_at", "since_ns": "since"}
    fields = {in_memory.get(field, field) for field in StoredJob._fields}
    assert set(NAMES) - fields == {"buried_seq"}
    assert fields - set(NAMES) == {"body", "crc32", "row_crc32"}
    assert StoredJob._fields[len(StoredJob._fields) - len(LATER) :] == LATER_NAMES


def test_statements_have_as_many_parameters_as_rows_have_values():
    assert sqlite_rows.INSERT_JOB.count("?") == len(NAMES) + 3
    assert len(PUT) + 3 == sqlite_batch._READY_PARAMETERS
