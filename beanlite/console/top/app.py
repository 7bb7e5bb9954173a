"""The screens of ``beanlite top``: the server with its tubes, the jobs of a tube, a job."""

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from typing import Any, ClassVar, Final, NamedTuple

from rich.text import Text
from textual import events, on, work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import Screen
from textual.widgets import DataTable, Footer, Static

from beanlite.beanstalk.client import Server, address_text
from beanlite.console import listing, tables, units
from beanlite.console.filters import STATES, Record, filter_by
from beanlite.console.live import Live
from beanlite.console.top.sampling import Sample, Sampler
from beanlite.console.why import STYLES
from beanlite.errors import BeanliteError

# Seconds between samples.
_EVERY_S: Final = 1.0
# From this age on the screen shows how old the list of tubes is.
_OLD_S: Final = 2.0
# How many findings the screen shows.
_FINDINGS: Final = 3
# The most rows of a table.
_ROWS: Final = 200


class TableColumn(NamedTuple):
    """A column: the key of the fact that it shows, and its width in characters, including the sort mark.

    A column of width 0 takes the space that the others leave.
    """

    key: str
    title: str
    show: Callable[[Any], str]
    width: int
    wide: bool = False
    """The column is left out on a narrow terminal."""
    mark: Callable[[Record], str] = lambda _: ""
    """What precedes the fact."""


# Short words for why no job is reserved from a tube.
_SHUT: Final = {"paused": "paused", "max_reserved": "full", "rate": "rate"}


def _shut_mark(tube: Record) -> str:
    words = [_SHUT.get(word, word) for word in tube.get("shut", ())]
    return f"({', '.join(words)}) " if words else ""


_TUBES: Final = (
    TableColumn("name", "tube", str, 0, mark=_shut_mark),
    TableColumn("ready", "ready", units.short, 6),
    TableColumn("reserved", "reserved", units.short, 9),
    TableColumn("delayed", "delayed", units.short, 8),
    TableColumn("buried", "buried", units.short, 7),
    TableColumn("puts_per_s", "puts/s", units.rate, 7),
    TableColumn("deletes_per_s", "deletes/s", units.rate, 10),
    TableColumn("first_ready_s", "next waits", units.age, 12, wide=True),
    TableColumn("first_buried_s", "buried for", units.age, 12, wide=True),
    TableColumn("using", "using", units.short, 6, wide=True),
    TableColumn("watching", "watching", units.short, 9, wide=True),
    TableColumn("waiting", "waiting", units.short, 8, wide=True),
    TableColumn("total_jobs", "put in all", units.short, 11, wide=True),
    TableColumn("pause_left_s", "paused for", lambda left_s: units.age(left_s) if left_s else "", 12, wide=True),
)
_JOBS: Final = (
    TableColumn("id", "id", str, 9),
    TableColumn("state", "state", str, 8),
    TableColumn("pri", "pri", str, 5),
    TableColumn("in_state_s", "in state", units.age, 12),
    TableColumn("size", "size", units.size, 9),
    TableColumn("age_s", "age", units.age, 12, wide=True),
    TableColumn("left_s", "left", units.age, 12, wide=True),
    TableColumn("timeouts", "timeouts", units.short, 8, wide=True),
    TableColumn("holder", "last holder", tables.peer, 24, wide=True),
    TableColumn("preview", "body", str, 0),
)
# From this width on the terminal has room for the wide columns.
_WIDE: Final = 150


class Table(DataTable[Text]):
    """A table of records, as wide as the terminal."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "select_cursor", "Open")]

    def __init__(self, columns: Sequence[TableColumn]) -> None:
        super().__init__(cursor_type="row", zebra_stripes=True)
        self._all = columns
        self.heads: list[TableColumn] = []

    def show(self, records: Iterable[Record], sort_key: str = "") -> None:
        """Show these records, and keep the cursor on its record. `sort_key` is the key of the sort column."""
        at, top = self.cursor_row, self.scroll_y
        current = self.key_at(at)
        self.clear(columns=True)
        width = self.app.size.width
        self.heads = [column for column in self._all if width >= _WIDE or not column.wide]
        room = width - 2 - sum(column.width + 2 * self.cell_padding for column in self.heads)
        for column in self.heads:
            title = Text(f"{column.title}▾" if column.key == sort_key else column.title)
            self.add_column(title, width=column.width or max(room, 8), key=column.key)
        for record in records:
            key = str(record[self.heads[0].key])
            self.add_row(*(_cell(column, record) for column in self.heads), key=key)
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


class TubesScreen(Screen[None]):
    """The server and its tubes."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "sort(1)", "Sort by the next column"),
        Binding("S", "sort(-1)", "Sort by the one before", show=False),
        Binding("r", "reverse", "Reverse"),
        Binding("q", "app.quit", "Quit"),
    ]

    def __init__(self, address: Server) -> None:
        super().__init__()
        self._address = address
        self._where = address_text(address)
        self._sample: Sample | None = None
        self._sort = _TUBES[1]
        self._largest = True
        self._over = threading.Event()

    def compose(self) -> ComposeResult:
        """Yield the parts of the screen."""
        yield Static(f"Looking at {self._where} …", id="summary", markup=False)
        yield Table(_TUBES)
        yield Footer(compact=True)

    def on_mount(self) -> None:
        """Start taking samples of the server."""
        self._look()

    def on_unmount(self) -> None:
        """Have the sampling thread end."""
        self._over.set()

    @work(thread=True)
    def _look(self) -> None:
        """Take samples regularly, in a thread of its own, and reconnect if a connection is lost."""
        while not self._over.is_set():
            try:
                with closing(Sampler(self._address)) as sampler:
                    while not self._over.is_set():
                        self._tell(self._take, sampler.sample())
                        self._over.wait(_EVERY_S)
            except BeanliteError as error:
                self._tell(self._fail, str(error))
                self._over.wait(_EVERY_S)

    def _tell(self, method: Callable[[Any], None], what: object) -> None:
        """Have a method called in the loop, unless the screen is closed."""
        if not self._over.is_set():
            self.app.call_later(method, what)

    def _take(self, sample: Sample) -> None:
        is_new = self._sample is None or sample.tubes is not self._sample.tubes
        self._sample = sample
        if is_new:
            self._show()
        else:
            self.query_one("#summary", Static).update(summary(sample, self._where))

    def _fail(self, why: str) -> None:
        self.query_one("#summary", Static).update(Text(f"{why}\nTrying again every second.", style="bold red"))

    def _show(self) -> None:
        if self._sample is None:
            return
        self.query_one("#summary", Static).update(summary(self._sample, self._where))
        rows = listing.first(self._sample.tubes, self._sort.key, largest=self._largest, limit=_ROWS)
        self.query_one(Table).show(rows, sort_key=self._sort.key)

    def action_sort(self, step: int) -> None:
        """Sort by the next column, or by the previous one."""
        heads = self.query_one(Table).heads
        if heads:
            self._sort_by(heads[(heads.index(self._sort) + step) % len(heads)] if self._sort in heads else heads[0])

    def action_reverse(self) -> None:
        """Reverse the order."""
        self._largest = not self._largest
        self._show()

    @on(DataTable.HeaderSelected)
    def _header(self, event: DataTable.HeaderSelected) -> None:
        self._sort_by(next(column for column in _TUBES if column.key == event.column_key.value))

    def _sort_by(self, column: TableColumn) -> None:
        self._sort, self._largest = column, column.width != 0  # names from a to z
        self._show()

    @on(DataTable.RowSelected)
    def _open(self, event: DataTable.RowSelected) -> None:
        self.app.push_screen(JobsScreen(self._address, str(event.row_key.value)))

    def on_resize(self, _: events.Resize) -> None:
        """Fit the table to the new size."""
        self._show()


def summary(sample: Sample, name: str) -> Text:
    """Return the facts about the server as a whole, on five lines of no more than 80 characters, and what is wrong."""
    stats = sample.stats
    now, middle, worst = map(units.milliseconds, sample.latency)
    jobs = ", ".join(f"{units.short(stats[f'current-jobs-{state}'])} {state}" for state in STATES)
    rates = ", ".join(
        f"{units.rate(stats.get(f'{what}_per_s'))} {what}/s" for what in ("puts", "reserves", "deletes", "batches")
    )
    trouble = [word for key, word in (("disk-full", "DISK FULL"), ("draining", "DRAINING")) if stats[key] == "true"]
    memory = f"{units.size(stats['memory-used'])} of {units.size(stats['memory-max'])}"
    clients = f"{units.short(stats['current-connections'])} clients, {units.short(stats['current-waiting'])} wait"
    old_s = sample.at_s - sample.tubes_at_s
    old = f"; tubes as of {units.age(old_s)} ago" if old_s >= _OLD_S else ""
    lines = (
        ("server", f"{stats['version']} at {name}, up {units.age(stats['uptime'])}{old}"),
        ("jobs", f"{jobs}; {units.short(stats['current-tubes'])} tubes"),
        ("rates", rates if "puts_per_s" in stats else ""),
        ("latency", f"{now}; of the last minute: median {middle}, worst {worst}"),
        ("memory", f"{memory}; {clients}; -wal {units.size(stats['journal-wal-bytes'])}"),
    )
    text = Text(no_wrap=True, overflow="ellipsis")
    for title, line in lines:
        text.append(f"{title:<9}", style="bold").append(f"{line}\n")
    text.right_crop(1)
    if trouble:
        text.append(f"  {' '.join(trouble)}", style="bold red")
    for finding in sample.findings[:_FINDINGS]:
        text.append(f"\n{finding['severity']:<9}", style=STYLES[finding["severity"]])
        text.append(units.on_one_line(finding["text"]))
    more = len(sample.findings) - _FINDINGS
    return text.append(f"\n{'':9}and {more} more: beanlite why", style="dim") if more > 0 else text


class JobsScreen(Screen[None]):
    """The first jobs of a tube."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "app.pop_screen", "Back"),
        Binding("s", "state", "Another state"),
        Binding("r", "look", "Look again"),
        Binding("q", "app.quit", "Quit"),
    ]

    def __init__(self, address: Server, tube: str) -> None:
        super().__init__()
        self._address = address
        self._tube = tube
        self._state: str | None = None

    def compose(self) -> ComposeResult:
        """Yield the parts of the screen."""
        yield Static("", id="summary", markup=False)
        yield Table(_JOBS)
        yield Footer(compact=True)

    def on_mount(self) -> None:
        """Request the jobs."""
        self.action_look()

    def action_state(self) -> None:
        """Show the jobs of the next state; after the last state, all jobs."""
        states = (None, *STATES)
        self._state = states[(states.index(self._state) + 1) % len(states)]
        self.action_look()

    @work(thread=True, exclusive=True)
    def action_look(self) -> None:
        """Request the jobs, in a thread, and show them."""
        which = filter_by(tube=self._tube, state=self._state)
        sort = "queue" if self._state in {"ready", "delayed", "buried"} else "id"
        try:
            with Live(self._address) as server:
                page = listing.jobs(server, which, sort, _ROWS, None)
        except BeanliteError as error:
            self.app.call_from_thread(self._say, Text(str(error), style="bold red"))
            return
        many = "first " if page.after is not None else ""
        order = "as they come out of their queue" if sort == "queue" else "by id"
        title = f"tube {self._tube}: {many}{units.jobs(len(page.records))}, {self._state or 'in any state'}, {order}"
        self.app.call_from_thread(self._say, Text(title, style="bold"))
        self.app.call_from_thread(self.query_one(Table).show, page.records)

    def _say(self, text: Text) -> None:
        self.query_one("#summary", Static).update(text)

    @on(DataTable.RowSelected)
    def _open(self, event: DataTable.RowSelected) -> None:
        self.app.push_screen(JobScreen(self._address, int(str(event.row_key.value))))


class JobScreen(Screen[None]):
    """All facts about a job."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "app.pop_screen", "Back"),
        Binding("q", "app.quit", "Quit"),
    ]

    def __init__(self, address: Server, job_id: int) -> None:
        super().__init__()
        self._address = address
        self._job_id = job_id

    def compose(self) -> ComposeResult:
        """Yield the parts of the screen."""
        with VerticalScroll():
            yield Static("", id="job", markup=False)
        yield Footer(compact=True)

    def on_mount(self) -> None:
        """Request the job."""
        self._look()

    @work(thread=True)
    def _look(self) -> None:
        try:
            with Live(self._address) as server:
                job = server.show_job(self._job_id)
        except BeanliteError as error:
            text = str(error)
        else:
            text = f"job {self._job_id} has gone" if job is None else tables.job_text(job, "auto")
        self.app.call_from_thread(self.query_one("#job", Static).update, Text(text))


class Top(App[None]):
    """The application."""

    TITLE = "beanlite top"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+c", "quit", "Quit", show=False)]
    CSS = """
    #summary { height: auto; padding: 0 1; }
    #job { padding: 0 1; }
    Table { height: 1fr; }
    """

    def __init__(self, address: Server) -> None:
        super().__init__()
        self._address = address

    def on_mount(self) -> None:
        """Show the tubes first."""
        self.push_screen(TubesScreen(self._address))
