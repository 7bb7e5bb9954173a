"""The first screen of ``beanlite top``: a server and its tubes."""

import threading
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import ClassVar

from rich.text import Text
from textual import events, on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable, Footer, Input, Static

from beanlite.console import listing, units
from beanlite.console.filters import Record, tube_name
from beanlite.console.several import Place, Places
from beanlite.console.top import acting
from beanlite.console.top.dialogs import Keys, Question, TextQuestion
from beanlite.console.top.grid import Table
from beanlite.console.top.jobs_screen import JobsScreen
from beanlite.console.top.layout import TUBES, TableColumn, name_filter, tube_text
from beanlite.console.top.sampling import EVERY_S, Sample, Sampler, merged
from beanlite.console.top.summary import ROWS, heading, summary
from beanlite.console.top.told_screen import ToldScreen
from beanlite.errors import BeanliteError


class TubesScreen(ToldScreen):
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

    def __init__(self, places: Places) -> None:
        super().__init__()
        self._places = {place.name: place for place in places.places}
        self._where = heading(places)
        self._samples: dict[str, Sample] = {}
        """The last sample of each server that answers."""
        self._away: dict[str, str] = {}
        """Why the others do not."""
        self._sample: Sample | None = None
        """What is shown: the samples as one; if no server answers any more, the last one."""
        self._sort = TUBES[1]
        self._largest = True
        self._over = threading.Event()

    def compose(self) -> ComposeResult:
        """Yield the parts of the screen."""
        yield Static(f"Looking at {self._where} …", id="summary", markup=False)
        yield Input(placeholder="a part of the name; * is any text, ? any character", id="filter", compact=True)
        yield Table(TUBES, tube_name)
        yield Static("", id="tube", markup=False)
        yield Footer(compact=True)

    def on_mount(self) -> None:
        """Start taking samples of the server."""
        self._input.display = False
        self.query_one(Table).focus()
        for place in self._places.values():
            self._look(place)

    @property
    def _input(self) -> Input:
        return self.query_one("#filter", Input)

    @property
    def _current(self) -> Record | None:
        """The tube under the cursor."""
        table = self.query_one(Table)
        return self._named(table.key_at(table.cursor_row))

    def _named(self, name: str | None) -> Record | None:
        tubes = [] if self._sample is None else self._sample.tubes
        return next((tube for tube in tubes if tube_name(tube) == name), None)

    def _place_of(self, tube: Record) -> Place:
        """Return the server that has a tube."""
        return self._places[tube["server"]] if "server" in tube else next(iter(self._places.values()))

    def on_unmount(self) -> None:
        """Have the sampling thread end."""
        self._over.set()

    @work(thread=True)
    def _look(self, place: Place) -> None:
        """Take samples of a server regularly, in a thread of its own, and reconnect if a connection is lost."""
        while not self._over.is_set():
            try:
                with closing(Sampler(place, is_one_of_several=len(self._places) > 1)) as sampler:
                    while not self._over.is_set():
                        self.tell(self._take, place.name, sampler.sample())
                        self._over.wait(EVERY_S)
            except BeanliteError as error:
                self.tell(self._fail, place.name, str(error))
                self._over.wait(EVERY_S)

    def _take(self, server: str, sample: Sample) -> None:
        before = self._samples.get(server)
        self._samples[server] = sample
        self._away.pop(server, None)
        self._sample = merged(self._samples.values())
        if before is None or sample.tubes is not before.tubes:
            self._show()
        else:
            self._summarize()

    def _fail(self, server: str, why: str) -> None:
        self._away[server] = why
        if self._samples.pop(server, None) is not None and self._samples:
            self._sample = merged(self._samples.values())
            self._show()
        else:
            self._summarize()

    def _summarize(self) -> None:
        """Tell how the servers do; if none answers, why, and dim what the last one said."""
        self.set_class(not self._samples, "past")
        if self._samples and self._sample is not None:
            text = summary(self._sample, self._where, away=self._away)
        else:
            why = "\n".join(f"{name}: {each}" if name else each for name, each in self._away.items())
            text = Text(f"{why}\nTrying again every second.", style="bold red")
        self.query_one("#summary", Static).update(text)

    def _show(self) -> None:
        if self._sample is None:
            return
        self._summarize()
        fits = name_filter(self._input.value)
        tubes = [tube for tube in self._sample.tubes if fits(tube["name"])]
        rows = listing.first(tubes, self._sort.key, largest=self._largest, limit=ROWS)
        self.query_one(Table).show(rows, sort_key=self._sort.key)
        self._show_current()

    @on(DataTable.RowHighlighted)
    def _show_current(self) -> None:
        tube = self._current
        self.query_one("#tube", Static).update(Text("" if tube is None else tube_text(tube), no_wrap=True))

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
        if tube is None or self._sample is None:
            return
        name, seen_s = tube_name(tube), self._sample.tubes_at_s
        if not tube["buried"]:
            self.notify(f"{name} has no buried jobs", markup=False)
            return

        def kick(agreed: bool | None) -> None:  # noqa: FBT001 - as the screen calls it
            if agreed:
                self._change(partial(acting.kick, self._place_of(tube), tube["name"], seen_s))

        self.app.push_screen(Question(f"Kick {units.jobs(tube['buried'])} that are buried in tube {name}?"), kick)

    def action_pause(self) -> None:
        """Ask for how long to pause the tube under the cursor."""
        tube = self._current
        if tube is None:
            return

        def pause(time: str | None) -> None:
            if time:
                self._change(partial(acting.pause, self._place_of(tube), tube["name"], time))

        question = f"Pause tube {tube_name(tube)} for how long? Such as 90s, 5min or 3h; 0 ends a pause."
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
        tube = self._named(event.row_key.value)
        if tube is not None:
            self.app.push_screen(JobsScreen(self._place_of(tube), tube["name"]))

    def on_resize(self, _: events.Resize) -> None:
        """Fit the table to the new size."""
        self._show()
