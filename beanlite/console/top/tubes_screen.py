"""The first screen of ``beanlite top``: a server and its tubes."""

import threading
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any, ClassVar

from rich.text import Text
from textual import events, on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widgets import DataTable, Footer, Input, Static

from beanlite.beanstalk.client import Server, address_text
from beanlite.console import listing, units
from beanlite.console.filters import Record
from beanlite.console.top import acting
from beanlite.console.top.dialogs import Keys, Question, TextQuestion
from beanlite.console.top.grid import Table
from beanlite.console.top.jobs_screen import JobsScreen
from beanlite.console.top.layout import TUBES, TableColumn, in_words, name_filter
from beanlite.console.top.sampling import EVERY_S, Sample, Sampler
from beanlite.console.top.summary import ROWS, summary
from beanlite.errors import BeanliteError


class TubesScreen(Screen[None]):
    """The server and its tubes."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "Filter"),
        Binding("escape", "end_filter", "All tubes", show=False),
        Binding("k", "kick", "Kick"),
        Binding("p", "pause", "Pause"),
        Binding("s", "sort(1)", "Sort"),
        Binding("S", "sort(-1)", "Sort by the one before", show=False),
        Binding("r", "reverse", "Reverse"),
        Binding("question_mark", "keys", "Keys"),
        Binding("q", "app.quit", "Quit"),
    ]

    def __init__(self, address: Server) -> None:
        super().__init__()
        self._address = address
        self._where = address_text(address)
        self._sample: Sample | None = None
        self._sort = TUBES[1]
        self._largest = True
        self._over = threading.Event()

    def compose(self) -> ComposeResult:
        """Yield the parts of the screen."""
        yield Static(f"Looking at {self._where} …", id="summary", markup=False)
        yield Input(placeholder="a part of the name; * is any text, ? any character", id="filter", compact=True)
        yield Table(TUBES)
        yield Static("", id="tube", markup=False)
        yield Footer(compact=True)

    def on_mount(self) -> None:
        """Start taking samples of the server."""
        self._input.display = False
        self.query_one(Table).focus()
        self._look()

    @property
    def _input(self) -> Input:
        return self.query_one("#filter", Input)

    @property
    def _current(self) -> Record | None:
        """The tube under the cursor."""
        table = self.query_one(Table)
        name = table.key_at(table.cursor_row)
        tubes = [] if self._sample is None else self._sample.tubes
        return next((tube for tube in tubes if tube["name"] == name), None)

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
                        self._over.wait(EVERY_S)
            except BeanliteError as error:
                self._tell(self._fail, str(error))
                self._over.wait(EVERY_S)

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
        fits = name_filter(self._input.value)
        tubes = [tube for tube in self._sample.tubes if fits(tube["name"])]
        rows = listing.first(tubes, self._sort.key, largest=self._largest, limit=ROWS)
        self.query_one(Table).show(rows, sort_key=self._sort.key)
        self._show_current()

    @on(DataTable.RowHighlighted)
    def _show_current(self) -> None:
        tube = self._current
        self.query_one("#tube", Static).update(Text("" if tube is None else in_words(tube), no_wrap=True))

    def action_sort(self, step: int) -> None:
        """Sort by the next column, or by the previous one."""
        heads = self.query_one(Table).heads
        if heads:
            self._sort_by(heads[(heads.index(self._sort) + step) % len(heads)] if self._sort in heads else heads[0])

    def action_reverse(self) -> None:
        """Reverse the order."""
        self._largest = not self._largest
        self._show()

    def action_filter(self) -> None:
        """Ask for a part of the names of tubes, and show those alone."""
        self._input.display = True
        self._input.focus()

    def action_end_filter(self) -> None:
        """Show all tubes."""
        self._input.value = ""
        self._input.display = False
        self.query_one(Table).focus()

    @on(Input.Changed, "#filter")
    def _filter(self) -> None:
        self._show()

    @on(Input.Submitted, "#filter")
    def _end_of_filter(self) -> None:
        self._input.display = bool(self._input.value)
        self.query_one(Table).focus()

    def action_keys(self) -> None:
        """Show what the keys do."""
        self.app.push_screen(Keys())

    def action_kick(self) -> None:
        """Ask whether to kick the buried jobs of the tube under the cursor."""
        tube = self._current
        if tube is None:
            return
        name = tube["name"]
        if not tube["buried"]:
            self.notify(f"{name} has no buried jobs", markup=False)
            return

        def kick(agreed: bool | None) -> None:  # noqa: FBT001 - as the screen calls it
            if agreed:
                self._change(partial(acting.kick, self._address, name))

        self.app.push_screen(Question(f"Kick {units.jobs(tube['buried'])} that are buried in tube {name}?"), kick)

    def action_pause(self) -> None:
        """Ask for how long to pause the tube under the cursor."""
        tube = self._current
        if tube is None:
            return
        name = tube["name"]

        def pause(time: str | None) -> None:
            if time:
                self._change(partial(acting.pause, self._address, name, time))

        question = f"Pause tube {name} for how long? Such as 90s, 5min or 3h; 0 ends a pause."
        self.app.push_screen(TextQuestion(question), pause)

    @work(thread=True)
    def _change(self, change: Callable[[], str]) -> None:
        """Make a change, in a thread, and tell what has become of it."""
        try:
            tell = partial(self.notify, units.on_one_line(change()), markup=False)
        except BeanliteError as error:
            tell = partial(self.notify, units.on_one_line(str(error)), severity="error", markup=False)
        self.app.call_from_thread(tell)

    @on(DataTable.HeaderSelected)
    def _header(self, event: DataTable.HeaderSelected) -> None:
        self._sort_by(next(column for column in TUBES if column.key == event.column_key.value))

    def _sort_by(self, column: TableColumn) -> None:
        self._sort, self._largest = column, column.width != 0  # names from a to z
        self._show()

    @on(DataTable.RowSelected)
    def _open(self, event: DataTable.RowSelected) -> None:
        self.app.push_screen(JobsScreen(self._address, str(event.row_key.value)))

    def on_resize(self, _: events.Resize) -> None:
        """Fit the table to the new size."""
        self._show()
