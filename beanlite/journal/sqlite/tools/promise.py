"""Reads the last id from pages that SQLite does not recover."""

from pathlib import Path
from typing import Final, NamedTuple

from beanlite.journal.sqlite.file.wal import pages_in
from beanlite.journal.sqlite.tools.btree import Value, lone_row
from beanlite.journal.validity import COUNTER_MAX, is_number

_WIDTH: Final = 6


def said_of(values: list[Value]) -> str:
    """Return the values of a row as the text of its column ``said``."""
    return " ".join("-" if value is None else str(value) for value in values)


class Meta(NamedTuple):
    """The row of the table meta."""

    last_id: int
    unchecked_id: int
    jobs: int | None


def meta_of(values: list[Value]) -> Meta | None:
    """Return the row of meta with these values; None if it is another table's, or not as it was written."""
    if len(values) != _WIDTH or values[5] != said_of(values[1:5]):
        return None
    last_id, unchecked_id, jobs = values[2:5]
    if not (is_number(last_id, COUNTER_MAX - 1) and is_number(unchecked_id, COUNTER_MAX - 1)):
        return None
    return Meta(last_id, unchecked_id, jobs if isinstance(jobs, int) else None)


def last_id_in(wal: Path) -> int:
    """Return the highest last id in any frame of a -wal; 0 if there is none. OSError: it can't be read."""
    with wal.open("rb", buffering=0) as opened:
        found = (meta_of(lone_row(page)) for page in pages_in(opened.fileno()))
        return max((meta.last_id for meta in found if meta is not None), default=0)
