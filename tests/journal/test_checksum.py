"""The checksum of a row: it is right however the row was written, and any change of the row is noticed."""

import shutil
import sqlite3
from contextlib import closing

import pytest

from beanlite.errors import JournalRefused
from beanlite.journal import checksum
from beanlite.journal.checksum import checksum_of_row, find_changed
from beanlite.journal.columns import COUNTERS, NAMES, TEXTS, as_list
from beanlite.journal.migrations import find_migrations
from beanlite.journal.sqlite.file.database import open_database
from beanlite.journal.sqlite.file.migrations import allow_writing
from beanlite.journal.sqlite.file.replay import read_jobs, read_state
from beanlite.journal.sqlite.tools.dump import export
from tests.support.inside import connect, serving
from tests.support.journal_files import put

CHANGES = {
    "tube": "'other'",
    "state": "CASE state WHEN 'buried' THEN 'ready' ELSE 'buried' END",
    "pri": "pri + 1",
    "delay_s": "delay_s + 1",
    "ttr_s": "ttr_s + 1",
    "created_at": "created_at + 1",
    "due_at": "coalesce(due_at, 0.0) + 1",
    "buried_seq": "coalesce(buried_seq, 0) + 1",
    **{name: f"{name} + 1" for name in COUNTERS},
    "since": "since + 1",
    "holder_conn": "coalesce(holder_conn, 0) + 1",
    **{name: f"coalesce({name}, '') || 'x'" for name in TEXTS},
    "row_crc32": "row_crc32 + 1",
}
STATES = {
    "as put": {},
    "delayed": {"state": "delayed", "due_at": 4e9, "delay_s": 7},
    "buried": {"state": "buried", "buried_seq": 3, "buries": 1, "reserves": 1, "why": "client"},
    "reserved": {"state": "reserved", "due_at": 1.7e9, "reserves": 1, "holder": "10.0.0.1:5", "holder_conn": 9},
}


def stored(connection):
    return connection.execute(f"SELECT {as_list()}, row_crc32 FROM jobs").fetchall()  # noqa: S608


def changed(path, statement):
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        allow_writing(connection)
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.execute(statement)


def test_each_column_is_changed():
    assert CHANGES.keys() == {*NAMES[1:], "row_crc32"}


@pytest.mark.parametrize("state", STATES)
def test_a_change_of_any_column_is_noticed(path, state):
    with closing(open_database(path)) as database:
        put(database.connection, 1, **STATES[state])
        database.connection.execute("UPDATE meta SET last_id = 1")
        assert len(list(read_jobs(database.connection, path))) == 1
        for column, value in CHANGES.items():
            if (state, column) == ("buried", "due_at"):
                continue  # this is never read
            database.connection.execute("BEGIN")
            database.connection.execute(f"UPDATE jobs SET {column} = {value}")  # noqa: S608
            with pytest.raises(JournalRefused, match="the row of job 1 has changed; restore a backup"):
                list(read_jobs(database.connection, path))
            database.connection.execute("ROLLBACK")


async def test_whatever_happens_to_jobs_each_row_has_its_checksum(tmp_path):
    """Also jobs that were restored at a start, whose times in memory are slightly different."""
    seen = set()
    for _ in range(2):
        async with serving(tmp_path / "q.db") as (server, _):
            reader, writer = await connect(server)
            for number in range(40):
                writer.write(b"put %d %d 60 4\r\nbody\r\n" % (number, number % 3))
            writer.write(b"reserve\r\nreserve\r\nreserve\r\nkick 3\r\npause-tube default 1\r\npause-tube default 0\r\n")
            writer.write(b"".join(b"reserve-job %d\r\n" % number for number in range(5, 30)))
            writer.write(b"".join(b"bury %d 7\r\n" % number for number in range(5, 15)))
            writer.write(b"".join(b"release %d 3 %d\r\n" % (number, number % 2) for number in range(15, 25)))
            writer.write(b"kick-job 6\r\nuse x\r\n")
            while await reader.readline() != b"USING x\r\n":
                pass
        with closing(open_database(tmp_path / "q.db")) as database:
            rows = stored(database.connection)
            assert [row[0] for row in rows if checksum_of_row(row[:-1]) != row[-1]] == []
            seen |= {row[2] for row in rows}
            assert sum(map(len, read_jobs(database.connection, tmp_path / "q.db"))) == len(rows)
    assert seen >= {"ready", "buried"}


def test_a_later_column_is_covered_unless_it_has_its_default(monkeypatch):
    row = (1, "default", "ready", 0, 0, 60, 1.7e9, None, None, 0, 0, 0, 0, 0, 1.7e9, None, None, None)
    created_ns = (1_700_000_000 - 946_684_800) * 10**9
    stored = (1, b"default", None, 0, 0, 60, created_ns, None, 0, 0, 0, 0, 0, b"", 0, created_ns, None, None, None)
    monkeypatch.setattr(checksum, "_LATER", ())
    before = checksum_of_row(row)
    monkeypatch.setattr(checksum, "_LATER", (("touches", 0), ("note", None)))
    assert checksum_of_row((*row, 0, None)) == before
    assert find_changed([(*stored, before, 0, None)], 0) is None
    for values in ((1, None), (0, "x"), (2, None), ("1", None), (0, "None")):
        after = checksum_of_row((*row, *values))
        assert after != before
        assert find_changed([(*stored, before, *values)], 0) == 1
        assert find_changed([(*stored, after, *values)], 0) is None
        assert find_changed([(*stored, after, 0, None)], 0) == 1
    assert len({checksum_of_row((*row, *values)) for values in ((1, None), ("1", None), (0, "1"), (1, "1"))}) == 4


@pytest.fixture
def older(path, tmp_path):
    """A file of the previous version, with two jobs and a pause."""
    folder = tmp_path / "older"
    folder.mkdir()
    for migration in find_migrations()[:2]:
        shutil.copy(migration, folder)
    with closing(open_database(path, folder)) as database:
        for number in (1, 2):
            database.connection.execute(
                """
                INSERT INTO jobs (id, tube, state, pri, delay_s, ttr_s, created_at, since, reserves, timeouts, releases,
                                  buries, kicks, crc32, body)
                VALUES (?, 'default', 'ready', 0, 0, 60, 1.7e9, 1.7e9, 0, 0, 0, 0, 0, 0, x'')
                """,
                (number,),
            )
        database.connection.execute("INSERT INTO pauses VALUES ('default', 60, 4e9)")
        database.connection.execute("UPDATE meta SET last_id = 9")
    return path


def test_rows_of_an_older_version_need_none_but_no_others(older):
    with closing(open_database(older)) as database:
        assert read_state(database.connection, older)[1:3] == (9, [(b"default", 60, (4 * 10**9 - 946_684_800) * 10**9)])
        assert [len(rows) for rows in read_jobs(database.connection, older)] == [2]
        put(database.connection, 3, row_crc32=None)
    with pytest.raises(JournalRefused, match="the row of job 3 has changed"), (older.parent / "lines").open("wb") as to:
        export(older, to)


@pytest.mark.parametrize("column", [1, 2, 3])
def test_what_meta_says_is_said_twice(older, column):
    open_database(older).close()
    content = older.read_bytes()
    changed(older, "UPDATE meta SET batch = 258, last_id = 772, unchecked_id = 1286")  # of two bytes each
    before = older.read_bytes()
    assert content != before
    place = before.index(b"258 772 1286") - 6
    assert before[place : place + 6] == bytes([1, 2, 3, 4, 5, 6])
    older.write_bytes(before[: place + 2 * column - 1] + b"\x7f" + before[place + 2 * column :])
    with closing(open_database(older)) as database, pytest.raises(JournalRefused, match="meta row does not match"):
        read_state(database.connection, older)


def test_a_pause_that_has_changed(older):
    open_database(older).close()
    content = older.read_bytes()
    place = content.index(b"default\x3c") + 7
    older.write_bytes(content[:place] + b"\x3d" + content[place + 1 :])
    with closing(open_database(older)) as database, pytest.raises(JournalRefused, match="pause of b'default' has chan"):
        read_state(database.connection, older)
