"""Reads the pages of a database file without SQLite, which gives up where it meets damage.

The format is described at https://sqlite.org/fileformat.html. It records three times which pages are in use: in the
parent pages of the b-trees, in the pointer map, and in the freelist. Two out of three decide, so that damage to one of
them neither loses existing rows nor brings back deleted ones.
"""

import os
import struct
from collections.abc import Iterator, Mapping, Set as AbstractSet
from pathlib import Path
from typing import Final, NamedTuple

from beanlite.journal.sqlite.file.fileformat import PAGE_SIZE, read_at
from beanlite.journal.sqlite.file.wal import newest_pages
from beanlite.journal.sqlite.tools.chain import damaged_frames

# The types of pages: interior pages and leaves of indexes and tables.
_INNER_INDEX: Final = 2
_INNER_TABLE: Final = 5
_LEAF_INDEX: Final = 10
LEAF_TABLE: Final = 13
# The kinds of pages of a table without rowids.
INDEX: Final = frozenset({_INNER_INDEX, _LEAF_INDEX})
_TREE: Final = (_INNER_INDEX, _INNER_TABLE, _LEAF_INDEX, LEAF_TABLE)
# The pointer map has an entry for each page: its type, and its parent page. The types of b-tree pages:
_ROOT, _BELOW = 1, 5
_ENTRY_BYTES: Final = 5
_PAGES_PER_MAP: Final = PAGE_SIZE // _ENTRY_BYTES + 1
# The most bytes of a row that a table page and an index page hold. Of a larger row, the page holds at least the minimum
# below, and overflow pages hold the rest.
_MOST_IN_TABLE: Final = PAGE_SIZE - 35
_MOST_IN_INDEX: Final = (PAGE_SIZE - 12) * 64 // 255 - 23
_LEAST: Final = (PAGE_SIZE - 12) * 32 // 255 - 23
# The size in bytes of an integer, by its serial type in a record.
_INT_BYTES: Final = (0, 1, 2, 3, 4, 6, 8)
_FLOAT, _ZERO, _ONE = 7, 8, 9
# All rowids are above the first and not above the last.
_FIRST, _LAST = -(1 << 63) - 1, (1 << 63) - 1

Value = int | float | str | bytes | None
Spans = dict[int, list[tuple[Value, int, int]]]


class OwnRows(NamedTuple):
    """What rows of a table there may be on a page."""

    kinds: AbstractSet[int]
    """The kinds of pages that they are on."""
    widths: AbstractSet[int]
    """How many columns one may have."""


class Broken(Exception):
    """A malformed row."""


class Pages:
    """The newest state of all pages, including those in the -wal. OSError: the file can't be opened."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._wal, in_wal = newest_pages(path)
            damaged = damaged_frames(path, self._wal)
        except BaseException:
            os.close(self._file)
            raise
        in_file = (os.fstat(self._file).st_size + PAGE_SIZE - 1) // PAGE_SIZE
        # A page number that has changed may be far beyond the end.
        end = max([in_file, *(number for number, at in in_wal.items() if at not in damaged)]) + len(in_wal)
        self._in_wal = {number: at for number, at in in_wal.items() if number <= end}
        self.count = max([in_file, *self._in_wal])
        self.unreadable: set[int] = {number if 0 < number <= self.count else -at for at, number in damaged.items()}
        """Pages in use that can't be read or are malformed; minus the offset of one in the -wal, if it is unknown."""
        if int.from_bytes(self.read(1)[28:32]) > self.count:  # the end of the file is missing
            self.unreadable.add(self.count + 1)

    def close(self) -> None:
        """Close the file and the -wal."""
        for descriptor in (self._file, self._wal):
            if descriptor >= 0:
                os.close(descriptor)

    def read(self, number: int) -> bytes:
        """Read a page; bytes that are missing, or that the disk can't read, are zeros."""
        at = self._in_wal.get(number)
        try:
            if at is not None:
                return read_at(self._wal, PAGE_SIZE, at).ljust(PAGE_SIZE, b"\0")
            return read_at(self._file, PAGE_SIZE, (number - 1) * PAGE_SIZE).ljust(PAGE_SIZE, b"\0")
        except (OSError, OverflowError):  # the latter if no file is so large
            self.unreadable.add(number)
            return bytes(PAGE_SIZE)

    def in_use(self) -> list[int]:
        """Return the pages of all b-trees."""
        free = self._free()
        below = self._below(free)
        has_map = any(self.read(1)[52:56])
        numbers = [1]
        if not _adds_up(self.read(1), 100):
            self.unreadable.add(1)
        for number in range(2, self.count + 1):
            is_below = number in below
            is_mapped = self._map_entry(number)[0] in {_ROOT, _BELOW} if has_map else is_below
            if is_below + is_mapped + (number not in free) >= 2 and _map_of(number) != number:
                numbers.append(number)
                if not _adds_up(self.read(number), 0):
                    self.unreadable.add(number)
        return numbers

    def _free(self) -> set[int]:
        free: set[int] = set()
        trunk = int.from_bytes(self.read(1)[32:36])
        while 1 < trunk <= self.count and trunk not in free:
            page = self.read(trunk)
            free.add(trunk)
            leaves = min(int.from_bytes(page[4:8]), PAGE_SIZE // 4 - 2)
            free.update(struct.unpack_from(f">{leaves}I", page, 8))
            trunk = int.from_bytes(page[:4])
        return free

    def _map_entry(self, number: int) -> tuple[int, int]:
        """Return the entry of a page in the pointer map: its type and its parent page."""
        first = _map_of(number)
        at = max(0, number - first - 1) * _ENTRY_BYTES  # the map has no entry for its own page
        entry = self.read(first)[at : at + _ENTRY_BYTES]
        return entry[0], int.from_bytes(entry[1:])

    def inner(self, in_use: list[int]) -> set[int]:
        """Return the pages that are parents of others according to the pointer map."""
        entries = [self._map_entry(number) for number in in_use if number > 1]
        return {above for kind, above in entries if kind == _BELOW}

    def _below(self, free: set[int]) -> set[int]:
        """Return the pages to which other pages that are not free refer as part of a b-tree."""
        below: set[int] = set()
        for number in range(1, self.count + 1):
            if number in free or _map_of(number) == number:  # the map's pages may begin as those of a b-tree do
                continue
            page = self.read(number)
            start = 100 if number == 1 else 0
            if page[start] in {_INNER_INDEX, _INNER_TABLE}:
                below.add(int.from_bytes(page[start + 8 : start + 12]))
                below.update(int.from_bytes(page[at : at + 4]) for at in _cells(page, start, start + 12))
            elif page[start] == LEAF_TABLE:
                below.update(root for _, root in _roots(self.rows(number)))
        return below

    def copies(self, in_use: list[int]) -> set[int]:
        """Return the table leaves in use that are identical to another page, whether that is in use or not.

        This happens when SQLite moves a page, but also when a disk writes a page to the wrong place.
        """
        once: set[int] = set()
        twice: set[int] = set()
        for number in range(2, self.count + 1):
            page = self.read(number)
            if page[0] == LEAF_TABLE:
                (twice if hash(page) in once else once).add(hash(page))
        return {number for number in in_use if twice and hash(self.read(number)) in twice}

    def spans(self, in_use: list[int]) -> Spans:
        """Return of each leaf in a b-tree which table's rows belong on it, above which rowid, and up to which.

        A leaf has several such spans if an interior page exists twice, and none if it is not below its proper parent.
        """
        spans: Spans = {}
        roots = [(name, root) for page in in_use for name, root in _roots(self.rows(page))]
        queue = [(root, 0, name, _FIRST, _LAST) for name, root in [("sqlite_schema", 1), *roots]]
        visits: set[int] = set()
        while queue:
            number, parent, name, above, to = queue.pop()
            page = self.read(number)[100 if number == 1 else 0 :]
            if page[0] == LEAF_TABLE and parent in {0, self._map_entry(number)[1]}:
                spans.setdefault(number, []).append((name, above, to))
            elif page[0] == _INNER_TABLE and number not in visits:
                visits.add(number)
                for at in _cells(page, 0, 12):
                    cell = self.read(number)[at : at + 13].ljust(13, b"\0")
                    key = _varint(cell, 4)[0]
                    queue.append((int.from_bytes(cell[:4]), number, name, above, key))
                    above = key
                queue.append((int.from_bytes(page[8:12]), number, name, above, to))
        return spans

    def overwritten(self, in_use: list[int], tables: Mapping[str, OwnRows]) -> set[int]:
        """Return the pages of these tables on which there are rows of another one: the disk has written them there."""
        roots = {str(name): root for page in in_use for name, root in _roots(self.rows(page))}
        queue = [(root, tables[name]) for name, root in roots.items() if name in tables]
        seen: set[int] = set()
        overwritten: set[int] = set()
        while queue:
            number, fit = queue.pop()
            if number in seen:
                continue
            seen.add(number)
            page = self.read(number)
            if page[0] not in fit.kinds or any(len(row) not in fit.widths for _, row in self.rows(number)):
                overwritten.add(number)
            elif page[0] == _INNER_INDEX:
                below = [page[8:12], *(page[at : at + 4] for at in _cells(page, 0, 12))]
                queue += [(int.from_bytes(each), fit) for each in below]
        return overwritten

    def rows(self, number: int) -> Iterator[tuple[int, list[Value]]]:
        """Yield the rows on a page, each with its rowid (0 in an index). A malformed row makes the page unreadable."""
        page = self.read(number)
        start = 100 if number == 1 else 0
        kind = page[start]
        if kind not in _TREE or kind == _INNER_TABLE:
            return
        for at in _cells(page, start, start + (12 if kind == _INNER_INDEX else 8)):
            try:
                yield self._row(page, at, kind)
            except (Broken, IndexError, ValueError, OverflowError, struct.error):
                self.unreadable.add(number)

    def _row(self, page: bytes, at: int, kind: int) -> tuple[int, list[Value]]:
        rowid = 0
        size, at = _varint(page, at + 4 if kind == _INNER_INDEX else at)
        if kind == LEAF_TABLE:
            rowid, at = _varint(page, at)
        here = _bytes_here(size, kind)
        if size == here:
            return rowid, _record(page[at : at + size])
        parts = [page[at : at + here]]
        rest = size - here
        following = int.from_bytes(page[at + here : at + here + 4])
        if rest > self.count * PAGE_SIZE:
            raise Broken
        while rest > 0:
            if not 1 < following <= self.count:
                raise Broken
            overflow = self.read(following)
            parts.append(overflow[4 : 4 + rest])
            rest -= len(parts[-1])
            following = int.from_bytes(overflow[:4])
        return rowid, _record(b"".join(parts))


def lone_row(page: bytes) -> list[Value]:
    """Return the only row on the leaf of a table; an empty list if there are others, or if it is malformed."""
    if len(page) < PAGE_SIZE or page[0] != LEAF_TABLE or page[3:5] != b"\0\1":
        return []
    try:
        size, at = _varint(page, _cells(page, 0, 8)[0])
        _, at = _varint(page, at)
        return _record(page[at : at + size])
    except (Broken, IndexError, ValueError, OverflowError, struct.error):
        return []


def _map_of(number: int) -> int:
    """Return the page of the pointer map with the entry for this page, or the page itself if it is one of the map's."""
    return 2 + (number - 2) // _PAGES_PER_MAP * _PAGES_PER_MAP


def _cells(page: bytes, start: int, array: int) -> list[int]:
    """Return the offsets of the cells on a page."""
    cells = min(int.from_bytes(page[start + 3 : start + 5]), (PAGE_SIZE - array) // 2)
    return list(struct.unpack_from(f">{cells}H", page, array))


def _bytes_here(size: int, kind: int) -> int:
    """Return how many bytes of a row are on its page; the rest is on overflow pages."""
    most = _MOST_IN_TABLE if kind == LEAF_TABLE else _MOST_IN_INDEX
    if size <= most:
        return size
    here = _LEAST + (size - _LEAST) % (PAGE_SIZE - 4)
    return here if here <= most else _LEAST


def _cell_bytes(page: bytes, at: int, kind: int) -> int:
    begin = at
    if kind in {_INNER_TABLE, _INNER_INDEX}:
        at += 4  # the child page
    if kind == _INNER_TABLE:
        return _varint(page, at)[1] - begin
    size, at = _varint(page, at)
    if kind == LEAF_TABLE:
        _, at = _varint(page, at)
    here = _bytes_here(size, kind)
    return max(4, at - begin + here + (4 if here < size else 0))


def _adds_up(page: bytes, start: int) -> bool:
    """Whether this is a b-tree page, and each byte of it is either part of a row or known to be free.

    Without this check, a page whose number of rows has changed would look sound.
    """
    kind = page[start]
    if kind not in _TREE:
        return False
    array = start + (12 if kind in {_INNER_TABLE, _INNER_INDEX} else 8)
    free, cells, begin = (int.from_bytes(page[at : at + 2]) for at in range(start + 1, start + 7, 2))
    total = page[start + 7]
    try:
        while free:
            following = int.from_bytes(page[free : free + 2])
            total += int.from_bytes(page[free + 2 : free + 4])
            if 0 < following <= free:
                return False
            free = following
        total += sum(_cell_bytes(page, at, kind) for at in _cells(page, start, array))
    except IndexError:
        return False
    return array + 2 * cells <= begin and begin + total == PAGE_SIZE


def _roots(rows: Iterator[tuple[int, list[Value]]]) -> Iterator[tuple[Value, int]]:
    """Yield the names and root pages of the tables and indexes that these rows describe, if they are schema rows."""
    for _, values in rows:
        if len(values) == 5 and values[0] in {"table", "index"} and isinstance(values[3], int):
            yield values[1], values[3]


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a varint of up to nine bytes, and the offset of its end."""
    value = 0
    for place in range(at, at + 8):
        byte = data[place]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, place + 1
    value = value << 8 | data[at + 8]
    return value - (value >> 63 << 64), at + 9


def _record(data: bytes) -> list[Value]:
    """Return the values of a row. Broken: the row is malformed."""
    end, at = _varint(data, 0)
    place = end
    values: list[Value] = []
    while at < end:
        kind, at = _varint(data, at)
        value, place = _value(data, kind, place)
        values.append(value)
    if place != len(data):
        raise Broken
    return values


def _value(data: bytes, kind: int, at: int) -> tuple[Value, int]:
    if kind == 0:
        return None, at
    if kind in {_ZERO, _ONE}:
        return kind - _ZERO, at
    if kind >= 12:
        end = at + (kind - 12) // 2
    elif 0 < kind <= _FLOAT:
        end = at + (8 if kind == _FLOAT else _INT_BYTES[kind])
    else:
        raise Broken
    raw = data[at:end]
    if len(raw) != end - at:
        raise Broken
    if kind == _FLOAT:
        return float(struct.unpack(">d", raw)[0]), end
    if kind < _FLOAT:
        return int.from_bytes(raw, signed=True), end
    return (raw.decode() if kind % 2 else raw), end
