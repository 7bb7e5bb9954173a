"""A page that is in no place, or in two: whatever opens a file notices it, though all rows in reach are right."""

import io
import sqlite3
import struct
from contextlib import closing

import pytest

from beanlite.errors import JournalRefused
from beanlite.journal.sqlite.file.database import open_database
from beanlite.journal.sqlite.file.fileformat import PAGE_SIZE
from beanlite.journal.sqlite.tools.backup import backup
from beanlite.journal.sqlite.tools.compact import compact
from beanlite.journal.sqlite.tools.dump import export
from beanlite.journal.sqlite.tools.verify import verify
from tests.support.journal_files import make_killed, put, snapshot

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
    assert_damaged(file.path, "3 pages are in no list and no b-tree")


def test_an_entry_of_the_pointer_map_that_has_changed(file):
    at = 5 * (file.leaf - 3)
    file.write(2, bytes([file.page(2)[at] ^ 4]), at=at)
    assert_damaged(file.path, f"page {file.leaf} is not where its pointer map has it")


def test_pages_that_are_still_in_the_wal(path):
    make_killed(path, batches=300)
    assert path.stat().st_size <= 30 * PAGE_SIZE
    assert all(finding.sound for finding in verify(path))
    database = open_database(path)
    assert path.stat().st_size > 30 * PAGE_SIZE
    database.close()


def test_a_file_without_a_pointer_map(file):
    with closing(sqlite3.connect(file.path, isolation_level=None)) as connection:
        connection.executescript("PRAGMA journal_mode = DELETE; PRAGMA auto_vacuum = NONE; VACUUM")
    assert all(finding.sound for finding in verify(file.path))
    open_database(file.path).close()
