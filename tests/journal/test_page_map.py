"""A page that is in no place, or in two: whatever opens a file notices it, though all rows in reach are right."""

import io
import os
import shutil
import sqlite3
import struct
import subprocess
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from beanlite.errors import JournalRefused
from beanlite.journal.sqlite.file import page_map
from beanlite.journal.sqlite.file.database import open_database
from beanlite.journal.sqlite.file.fileformat import PAGE_SIZE
from beanlite.journal.sqlite.tools.backup import backup
from beanlite.journal.sqlite.tools.compact import compact
from beanlite.journal.sqlite.tools.dump import export
from beanlite.journal.sqlite.tools.verify import verify
from tests.support.journal_files import make_killed, put, snapshot, write_batch
from tests.support.sqlite_tool import need_it

INNER, LEAF = 5, 13


class File:
    """The pages of a stopped file of small jobs, some of which were deleted; it does not record how many are left."""

    def __init__(self, path):
        self.path = path
        with closing(open_database(path)) as database:
            connection = database.connection
            connection.execute("BEGIN")
            for number in range(1, 2001):
                put(connection, number)
            connection.execute("UPDATE meta SET last_id = 2000")
            connection.execute("COMMIT")
            connection.execute("DELETE FROM jobs WHERE id BETWEEN 500 AND 1500")
            (self.root,) = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'jobs'").fetchone()
        self.content = bytearray(path.read_bytes())
        self.leaf = int.from_bytes(self.page(self.root)[8:12])
        self.trunk = int.from_bytes(self.content[32:36])
        assert self.page(self.root)[0] == INNER
        assert self.page(self.leaf)[0] == LEAF
        assert int.from_bytes(self.page(self.trunk)[4:8]) > 3

    def page(self, number):
        return self.content[(number - 1) * PAGE_SIZE : number * PAGE_SIZE]

    def write(self, number, content, at=0):
        begin = (number - 1) * PAGE_SIZE + at
        self.content[begin : begin + len(content)] = content
        self.path.write_bytes(self.content)


@pytest.fixture
def file(path):
    return File(path)


def refusals(path):
    """Return why a start, a copy and an export are refused, and what verify finds."""
    dest = path.with_name("dest.db")
    yield next(finding.said for finding in verify(path) if not finding.sound)
    for what in (open_database, compact, lambda path: backup(path, dest), lambda path: export(path, io.BytesIO())):
        with pytest.raises(JournalRefused) as refused:
            what(path)
        yield str(refused.value)


def assert_damaged(path, how):
    before = snapshot(path.parent)
    assert set(refusals(path)) == {
        f"{path} is damaged: {how}; restore a backup, or save what is sound with beanlite salvage"
    }
    assert snapshot(path.parent) == before


def assert_sound(path):
    """Check that nothing is found; return what is said."""
    found = list(verify(path))
    said = [f"{finding.check}: {finding.said}" for finding in found]
    assert all(finding.sound for finding in found), said
    export(path, io.BytesIO())
    return "; ".join(said)


def test_a_leaf_in_the_place_of_the_page_above_it(file):
    leaves = int.from_bytes(file.page(file.root)[3:5]) + 1
    file.write(file.root, file.page(file.leaf))
    assert_damaged(file.path, f"{leaves} pages are in no list and no b-tree")


def test_a_leaf_and_the_page_above_it_that_have_changed_places(file):
    leaves = int.from_bytes(file.page(file.root)[3:5]) + 1
    root = file.page(file.root)
    file.write(file.root, file.page(file.leaf))
    file.write(file.leaf, root)
    assert_damaged(file.path, f"{leaves} pages are in no list and no b-tree")


def test_a_page_in_use_that_is_listed_as_free(file):
    file.write(file.trunk, struct.pack(">I", file.leaf), at=8)
    assert_damaged(file.path, f"page {file.leaf} is not where its pointer map has it")


def test_a_free_page_that_is_listed_twice(file):
    first, second = struct.unpack_from(">II", file.page(file.trunk), 8)
    file.write(file.trunk, struct.pack(">I", second), at=8)
    assert_damaged(file.path, f"page {second} is not where its pointer map has it")
    assert first != second


def test_free_pages_that_no_list_has(file):
    listed = int.from_bytes(file.page(file.trunk)[4:8])
    file.write(file.trunk, struct.pack(">I", listed - 3), at=4)
    file.write(1, struct.pack(">I", listed - 2), at=36)
    assert_damaged(file.path, "3 pages are in no list and no b-tree")


def test_number_of_free_pages_that_has_changed(file):
    free = int.from_bytes(file.content[36:40])
    file.write(1, struct.pack(">I", 1), at=36)
    assert_damaged(file.path, f"its header has 1 free pages, and its list {free}")


def test_entry_of_a_root_that_has_changed(file):
    file.write(2, bytes([0]), at=5 * (file.root - 3))
    assert_damaged(file.path, f"page {file.root} is not where its pointer map has it")


def test_an_entry_of_the_pointer_map_that_has_changed(file):
    at = 5 * (file.leaf - 3)
    file.write(2, bytes([file.page(2)[at] ^ 4]), at=at)
    assert_damaged(file.path, f"page {file.leaf} is not where its pointer map has it")


def test_pages_that_are_still_in_the_wal(path):
    make_killed(path, batches=300)
    assert path.stat().st_size <= 30 * PAGE_SIZE
    assert_sound(path)
    database = open_database(path)
    assert path.stat().st_size > 30 * PAGE_SIZE
    database.close()


def test_table_of_another_program_that_comes_amid_a_look(path, monkeypatch):
    snapshot = page_map._snapshot
    statements = iter(["CREATE TABLE theirs AS SELECT * FROM jobs"])

    @contextmanager
    def after_others(connection):
        for statement in statements:
            with closing(sqlite3.connect(path)) as other:
                other.execute(statement)
        with snapshot(connection):
            yield

    with closing(open_database(path)) as database:
        for batch in range(1, 200):
            write_batch(database.connection, batch)
        monkeypatch.setattr(page_map, "_snapshot", after_others)
        assert_sound(path)
    assert next(statements, None) is None


def test_left_shm_of_a_file_that_has_no_wal(path):
    origin = path.with_name("origin.db")
    with closing(open_database(origin)) as database:
        for batch in range(1, 200):
            write_batch(database.connection, batch)
        backup(origin, path)
        shutil.copy(f"{origin}-shm", f"{path}-shm")
    assert_sound(path)


def test_folder_where_nobody_may_write_beside_a_wal(path, monkeypatch):
    make_killed(path, batches=300)
    Path(f"{path}-shm").write_bytes(b"")
    monkeypatch.setattr(os, "access", lambda *_, **__: False)
    assert "pages: not seen" in assert_sound(path)


def test_pages_with_reserved_bytes(file):
    need_it()
    with closing(open_database(file.path)) as database:
        database.connection.execute("BEGIN")
        for number in range(2001, 12_001):
            put(database.connection, number, b"x" * 300)
        database.connection.execute("UPDATE meta SET last_id = 12000")
        database.connection.execute("COMMIT")
    other = file.path.with_name("other.db")
    command = ["sqlite3", file.path, ".filectrl reserve_bytes 12", f"VACUUM INTO '{other}'"]
    subprocess.run(command, check=True, capture_output=True)
    assert other.read_bytes()[20] == 12
    assert_sound(other)
    open_database(other).close()


def test_a_file_without_a_pointer_map(file):
    with closing(sqlite3.connect(file.path, isolation_level=None)) as connection:
        connection.executescript("PRAGMA journal_mode = DELETE; PRAGMA auto_vacuum = NONE; VACUUM")
    assert_sound(file.path)
    open_database(file.path).close()
