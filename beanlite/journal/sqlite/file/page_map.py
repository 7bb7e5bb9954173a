"""Checks that each page of a database file is in its place, and in no other, without reading the leaves.

The file tells twice what a page is: in the b-trees and the list of free pages, and in the pointer map, which has an
entry for each page (https://sqlite.org/fileformat.html). SQLite's own integrity_check compares them, too, but in a file
with views it may leave out which pages no b-tree has, and which ones are free.
"""

import sqlite3
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from beanlite.journal.sqlite.file.fileformat import PAGE_SIZE, damaged, read_at, refused, wal_of, wal_size
from beanlite.journal.sqlite.file.wal import Index, has_its_own_index, newest_in, read_open_index, read_salts

# An entry of the map: what kind of page it is, and the page above it in the b-tree, or 0.
_ENTRY: Final = struct.Struct(">BI")
# The kinds of pages that are looked for: roots, pages that are free, and those below others. The last one is ours.
_ROOT, _FREE, _BELOW, _FOUND = 1, 2, 5, 255
_ROOT_ENTRY: Final = _ENTRY.pack(_ROOT, 0)
_FREE_ENTRY: Final = _ENTRY.pack(_FREE, 0)
# The types of interior pages, of indexes and of tables.
_INNER: Final = (2, 5)
# A b-tree of more levels would have more pages than a file can have.
_LEVELS_MAX: Final = 40
# While others commit again and again, it may take several looks to see one state of the file.
_LOOKS_MAX: Final = 50

_Read = Callable[[int], bytes]


class _Misplaced(Exception):
    """A page is not what the map says."""


def check_page_map(connection: sqlite3.Connection, path: Path, file: int, index: int) -> bool:
    """Raise JournalRefused if a page is in two places or in none, as after a disk has written one over another.

    ``file`` and ``index`` are descriptors of the file and of its -shm, which is -1 if there is none. Returns whether
    that could be seen: not if others commit all the time, nor beside a -wal in a folder where nobody may write.
    """
    if wal_size(path) and has_its_own_index(path):
        return False
    with refused(path):
        for _ in range(_LOOKS_MAX):
            before = _state(path, index)
            with _snapshot(connection):
                roots = [
                    root for (root,) in connection.execute("SELECT rootpage FROM sqlite_schema WHERE rootpage > 0")
                ]
                (count,) = connection.execute("PRAGMA page_count").fetchone()
                if before is None or _state(path, index) != before:
                    continue  # the snapshot may be of another state
                try:
                    with _reader(path, file, before) as read:
                        _look(read, roots, count)
                except _Misplaced as fault:
                    after = _state(path, index)
                    if after is not None and after.salts == before.salts:
                        raise damaged(path, str(fault)) from None
                else:
                    return True
    return False


@contextmanager
def _snapshot(connection: sqlite3.Connection) -> Iterator[None]:
    """Begin a read transaction, unless the connection is in a transaction; it ends with the context."""
    if connection.in_transaction:
        yield
        return
    connection.execute("BEGIN")
    try:
        yield
    finally:
        connection.execute("ROLLBACK")


def _state(path: Path, index: int) -> Index | None:
    """Return the state of the -wal; None if it is not known, since it is just changing or the -shm is not its own."""
    if index < 0 or not wal_size(path):
        return Index(0, b"")
    state = read_open_index(index)
    if state is not None and state.frames:
        with wal_of(path).open("rb", buffering=0) as wal:  # on which SQLite takes no locks
            if read_salts(wal.fileno()) != state.salts:
                return None
    return state


@contextmanager
def _reader(path: Path, file: int, state: Index) -> Iterator[_Read]:
    """Yield what reads a page as the last commit that the -shm knows of has left it."""
    with ExitStack() as stack:
        wal, offsets = -1, dict[int, int]()
        if state.frames:
            wal = stack.enter_context(wal_of(path).open("rb", buffering=0)).fileno()
            offsets = newest_in(wal, state)

        def read(number: int) -> bytes:
            at = offsets.get(number)
            page = read_at(file, PAGE_SIZE, (number - 1) * PAGE_SIZE) if at is None else read_at(wal, PAGE_SIZE, at)
            return page.ljust(PAGE_SIZE, b"\0")

        yield read


def _look(read: _Read, roots: list[int], count: int) -> None:
    """Find each page of the map once. _Misplaced: one is not found, or elsewhere, or twice."""
    header = read(1)
    if not any(header[52:56]):
        return  # without a map SQLite moves no pages; no version of ours has made such a file
    entries = _entries(read, count, PAGE_SIZE - header[20])
    _look_at_free(read, entries, header)
    for root in roots:
        _find(entries, root, _ROOT_ENTRY)
    for root in (1, *roots):
        _look_below(read, entries, root)
    kinds = entries[:: _ENTRY.size]
    lost = kinds.count(_BELOW) + kinds.count(_FREE)
    if lost:
        raise _Misplaced(f"{lost} pages are in no list and no b-tree")


def _entries(read: _Read, count: int, usable_bytes: int) -> bytearray:
    """Return the entries of pages 0 to ``count``; those of the first, and of the map's own pages, are empty."""
    per_page = usable_bytes // _ENTRY.size
    entries = bytearray(2 * _ENTRY.size)
    for first in range(2, count + 1, per_page + 1):
        entries += bytes(_ENTRY.size) + read(first)[: _ENTRY.size * per_page]
    del entries[_ENTRY.size * (count + 1) :]
    return entries


def _look_at_free(read: _Read, entries: bytearray, header: bytes) -> None:
    """Find the pages in the list of free pages, of which the header has the first and the number."""
    free, listed, found = int.from_bytes(header[32:36]), int.from_bytes(header[36:40]), 0
    while free:
        page = read(free)
        leaves = min(int.from_bytes(page[4:8]), PAGE_SIZE // 4 - 2)
        for number in (free, *struct.unpack_from(f">{leaves}I", page, 8)):
            _find(entries, number, _FREE_ENTRY)
        found += 1 + leaves
        free = int.from_bytes(page[:4])
    if found != listed:
        raise _Misplaced(f"its header has {listed} free pages, and its list {found}")


def _look_below(read: _Read, entries: bytearray, root: int) -> None:
    """Find the pages of a b-tree, whose leaves are all on the last level and are not read."""
    level = [root]
    for levels_left in reversed(range(_levels_below(read, root))):
        below: list[int] = []
        for number in level:
            children, entry = _children(read, number), _ENTRY.pack(_BELOW, number)
            for child in children:
                _find(entries, child, entry)
            if levels_left:
                below += children
        level = below


def _find(entries: bytearray, number: int, entry: bytes) -> None:
    at = number * _ENTRY.size
    if entries[at : at + _ENTRY.size] != entry:
        raise _Misplaced(f"page {number} is not where its pointer map has it")
    entries[at] = _FOUND


def _levels_below(read: _Read, root: int) -> int:
    """Return how many levels of pages a b-tree has below its root."""
    number = root
    for levels in range(_LEVELS_MAX):
        children = _children(read, number)
        if not children:
            return levels
        number = children[0]
    raise _Misplaced(f"the b-tree of page {root} has no end")


def _children(read: _Read, number: int) -> list[int]:
    """Return the pages to which an interior page refers; none if it is a leaf."""
    page, start = read(number), 100 if number == 1 else 0
    if page[start] not in _INNER:
        return []
    array = start + 12
    cells = min(int.from_bytes(page[start + 3 : start + 5]), (PAGE_SIZE - array) // 2)
    numbers = [int.from_bytes(page[at : at + 4]) for at in struct.unpack_from(f">{cells}H", page, array)]
    return [*numbers, int.from_bytes(page[start + 8 : start + 12])]
