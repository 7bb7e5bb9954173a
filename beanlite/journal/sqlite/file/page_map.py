"""Checks that each page of a database file is in its place, and in no other, without reading the leaves.

The file tells twice what a page is: in the b-trees and the list of free pages, and in the pointer map, which has an
entry for each page (https://sqlite.org/fileformat.html). SQLite's own integrity_check compares them, too, but in a file
with views it may leave out which pages no b-tree has, and which ones are free.
"""

import os
import sqlite3
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from beanlite.journal.sqlite.file.fileformat import PAGE_SIZE, damaged, read_at, refused, wal_of
from beanlite.journal.sqlite.file.wal import Index, newest_in, read_open_index

# An entry of the map: what kind of page it is, and the page above it in the b-tree, or 0.
_ENTRY: Final = struct.Struct(">BI")
_PAGES_PER_MAP: Final = PAGE_SIZE // _ENTRY.size + 1
# The kinds of pages that are looked for: those that are free, and those below others. The last one is ours.
_FREE, _BELOW, _FOUND = 2, 5, 255
_FREE_ENTRY: Final = _ENTRY.pack(_FREE, 0)
# The types of interior pages, of indexes and of tables.
_INNER: Final = (2, 5)
# A b-tree of more levels would have more pages than a file can have.
_LEVELS_MAX: Final = 40
# While a server begins its -wal anew again and again, no look is conclusive.
_LOOKS_MAX: Final = 10

_Read = Callable[[int], bytes]


class _Misplaced(Exception):
    """A page is not what the map says."""


def check_page_map(connection: sqlite3.Connection, path: Path, file: int, index: int) -> None:
    """Raise JournalRefused if a page is in two places or in none, as after a disk has written one over another.

    ``file`` and ``index`` are descriptors of the file and of its -shm, which is -1 if there is none. To be called in a
    transaction.
    """
    with refused(path):
        roots = [root for (root,) in connection.execute("SELECT rootpage FROM sqlite_schema WHERE rootpage > 0")]
        for _ in range(_LOOKS_MAX):
            before = _index(index)
            try:
                with _reader(path, file, before) as read:
                    _look(read, [1, *roots])
            except _Misplaced as fault:
                if _index(index).salts == before.salts:
                    raise damaged(path, str(fault)) from None
            else:
                return


def _index(index: int) -> Index:
    """Return the state of the -wal, which has no frames if there is none, or if it is being begun anew."""
    return (read_open_index(index) if index >= 0 else None) or Index(0, b"")


@contextmanager
def _reader(path: Path, file: int, index: Index) -> Iterator[_Read]:
    """Yield what reads a page as the last commit that the index knows has left it."""
    wal, offsets = -1, dict[int, int]()
    if index.frames:
        wal = os.open(wal_of(path), os.O_RDONLY | os.O_CLOEXEC)  # SQLite takes no locks on it
    try:
        if index.frames:
            offsets = newest_in(wal, index)

        def read(number: int) -> bytes:
            at = offsets.get(number)
            page = read_at(file, PAGE_SIZE, (number - 1) * PAGE_SIZE) if at is None else read_at(wal, PAGE_SIZE, at)
            return page.ljust(PAGE_SIZE, b"\0")

        yield read
    finally:
        if wal >= 0:
            os.close(wal)


def _look(read: _Read, roots: list[int]) -> None:
    """Find each page of the map once. _Misplaced: one is not found, or elsewhere, or twice."""
    header = read(1)
    if not any(header[52:56]):
        return  # without a map SQLite moves no pages; no version of ours has made such a file
    entries = _entries(read, int.from_bytes(header[28:32]))
    free = int.from_bytes(header[32:36])
    while free:
        _find(entries, free, _FREE_ENTRY)
        page = read(free)
        leaves = min(int.from_bytes(page[4:8]), PAGE_SIZE // 4 - 2)
        for leaf in struct.unpack_from(f">{leaves}I", page, 8):
            _find(entries, leaf, _FREE_ENTRY)
        free = int.from_bytes(page[:4])
    for root in roots:
        level = [root]
        for _ in range(_levels_below(read, root)):
            below: list[int] = []
            for number in level:
                entry = _ENTRY.pack(_BELOW, number)
                for child in _children(read, number):
                    _find(entries, child, entry)
                    below.append(child)
            level = below
    kinds = entries[:: _ENTRY.size]
    lost = kinds.count(_BELOW) + kinds.count(_FREE)
    if lost:
        raise _Misplaced(f"{lost} pages are in no list and no b-tree")


def _entries(read: _Read, count: int) -> bytearray:
    """Return the entries of pages 0 to ``count``; those of the first, and of the map's own pages, are empty."""
    entries = bytearray(2 * _ENTRY.size)
    for first in range(2, count + 1, _PAGES_PER_MAP):
        entries += bytes(_ENTRY.size) + read(first)[: _ENTRY.size * (_PAGES_PER_MAP - 1)]
    del entries[_ENTRY.size * (count + 1) :]
    return entries


def _find(entries: bytearray, number: int, entry: bytes) -> None:
    at = number * _ENTRY.size
    if entries[at : at + _ENTRY.size] != entry:
        raise _Misplaced(f"page {number} is not where its pointer map has it")
    entries[at] = _FOUND


def _levels_below(read: _Read, root: int) -> int:
    """Return how many levels of pages a b-tree has below its root: all leaves are on the last one."""
    for levels in range(_LEVELS_MAX):
        children = _children(read, root)
        if not children:
            return levels
        root = children[0]
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
