"""A table on a screen of ``beanlite top``."""

from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.widgets import DataTable

from beanlite.console import units
from beanlite.console.filters import Record
from beanlite.console.top.layout import TableColumn


class Table(DataTable[Text]):
    """A table of records, as wide as the terminal."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "select_cursor", "Open")]

    def __init__(self, columns: Sequence[TableColumn], key_of: Callable[[Record], str]) -> None:
        super().__init__(cursor_type="row", zebra_stripes=True)
        self._all = columns
        self._key_of = key_of
        self.heads: list[TableColumn] = []

    def show(self, records: Iterable[Record], sort_key: str = "") -> None:
        """Show these records, and keep the cursor on its record. `sort_key` is the key of the sort column."""
        at, top = self.cursor_row, self.scroll_y
        current = self.key_at(at)
        self.clear(columns=True)
        width = self.app.size.width
        self.heads = [column for column in self._all if width >= column.from_width]
        room = width - 2 - sum(column.width + 2 * self.cell_padding for column in self.heads)
        for column in self.heads:
            title = Text(f"{column.title}▾" if column.key == sort_key else column.title)
            self.add_column(title, width=column.width or max(room, 8), key=column.key)
        for record in records:
            self.add_row(*(_cell(column, record) for column in self.heads), key=self._key_of(record))
        if current is not None and current in self.rows:
            at = self.get_row_index(current)
        self.move_cursor(row=at, scroll=False)
        self.scroll_to(y=top, animate=False, force=True)

    def key_at(self, row: int) -> str | None:
        """Return the key of the record in a row; None if there is no such row."""
        return self.ordered_rows[row].key.value if 0 <= row < self.row_count else None


def _cell(column: TableColumn, record: Record) -> Text:
    value = record.get(column.key)
    text = column.mark(record) + ("" if value is None else units.on_one_line(column.show(value)))
    is_text = column.width == 0 or isinstance(value, (str, dict))
    return Text(text, justify="left" if is_text else "right", no_wrap=True, overflow="ellipsis")
