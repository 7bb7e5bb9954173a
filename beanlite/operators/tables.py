"""Tables on a terminal, and JSON for scripts."""

import base64
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from beanlite.operators import units
from beanlite.operators.filters import Record

# What is not shown on a terminal is not cut to fit one.
_ENDLESS: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Column:
    """One fact about each record: under which key it is found, and how it is shown."""

    key: str
    title: str
    show: Callable[[Any], str]
    shrinks: bool = False
    """Whether it is cut when the terminal is too narrow: it is text, the others are numbers."""

    def text(self, record: Record) -> str:
        """What stands in the column, on one line."""
        value = record.get(self.key)
        return "" if value is None else units.on_one_line(self.show(value))


JOBS: Final = (
    Column("id", "id", str),
    Column("tube", "tube", str, shrinks=True),
    Column("state", "state", str),
    Column("pri", "pri", str),
    Column("age_s", "age", units.age),
    Column("in_state_s", "in state", units.age),
    Column("size", "size", units.size),
    Column("holder", "holder", str),
    Column("preview", "body", str, shrinks=True),
)
TUBES: Final = (
    Column("tube", "tube", str, shrinks=True),
    Column("ready", "ready", units.count),
    Column("delayed", "delayed", units.count),
    Column("reserved", "reserved", units.count),
    Column("buried", "buried", units.count),
    Column("bytes", "bytes", units.size),
    Column("oldest_ready_s", "oldest ready", units.age),
    Column("waiting", "waiting", units.count),
    Column("pause_left_s", "paused for", lambda left_s: units.age(left_s) if left_s else ""),
    Column("puts_per_s", "puts/s", units.rate),
    Column("deletes_per_s", "deletes/s", units.rate),
)


def console() -> Console:
    """Where tables are printed to: as wide as the terminal, or without an end if it is none."""
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
    return Console(highlight=False, markup=False, emoji=False, width=None if sys.stdout.isatty() else _ENDLESS)


def print_table(records: Iterable[Record], columns: Sequence[Column]) -> int:
    """Print a line for each record, and leave out the columns that are empty in all; returns how many there were."""
    rows = [[column.text(record) for column in columns] for record in records]
    shown = [(at, column) for at, column in enumerate(columns) if any(row[at] for row in rows)]
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for _, column in shown:
        table.add_column(column.title, no_wrap=not column.shrinks, justify="left" if column.shrinks else "right")
    for row in rows:
        table.add_row(*(Text(row[at], no_wrap=True, overflow="ellipsis") for at, _ in shown))
    if rows:
        _print(table)
    return len(rows)


def print_facts(facts: Record) -> None:
    """Print what is known of one thing, a line for each fact."""
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for key, value in facts.items():
        table.add_row(key, Text(units.on_one_line(str(value)), overflow="fold"))
    _print(table)


def print_json(records: Iterable[Record]) -> None:
    """Print an object a line."""
    for record in records:
        print(json.dumps(record, ensure_ascii=False))  # noqa: T201 - as the command line does


def _print(table: Table) -> None:
    """Print it without the blanks that fill its lines up."""
    target = console()
    with target.capture() as capture:
        target.print(table)
    for line in capture.get().splitlines():
        print(line.rstrip())  # noqa: T201 - as the command line does


def body_fields(body: bytes) -> Record:
    """A body as JSON can have it: as text, or as base64 if it is none."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(body).decode()}
