"""The screens of ``beanlite top`` with the jobs of a tube, and with a job."""

from typing import ClassVar, Final

from rich.text import Text
from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import DataTable, Footer, Static

from beanlite.console import listing, tables, units
from beanlite.console.bodies import beginning
from beanlite.console.filters import STATES, Record, filter_by, job_name
from beanlite.console.several import Place, reach
from beanlite.console.top.grid import Table
from beanlite.console.top.layout import JOBS
from beanlite.console.top.sampling import WITHIN_S
from beanlite.console.top.summary import ROWS
from beanlite.console.top.told_screen import ToldScreen
from beanlite.console.why import asked_of
from beanlite.errors import BeanliteError

# How many bytes of a body are shown, and how much of its text: to lay out more takes the screen long.
_BYTES_MAX: Final = 1 << 16
_LINES_MAX: Final = 1000
_CHARACTERS_MAX: Final = 1 << 16


class JobsScreen(ToldScreen):
    """The first jobs of a tube."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "app.pop_screen", "Back"),
        Binding("s", "state", "Another state"),
        Binding("r", "look", "Look again"),
        Binding("q", "app.quit", "Quit"),
    ]

    def __init__(self, place: Place, tube: str) -> None:
        super().__init__()
        self._place = place
        self._tube = tube
        self._state: str | None = None

    def compose(self) -> ComposeResult:
        """Yield the parts of the screen."""
        yield Static("", id="summary", markup=False)
        yield Table(JOBS, job_name)
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
            with reach(self._place, within_s=WITHIN_S) as server:
                page = listing.jobs(server, which, sort, ROWS, None)
        except BeanliteError as error:
            self.tell(self._say, Text(str(error), style="bold red"))
            return
        many = "first " if page.after is not None else ""
        order = "as they come out of their queue" if sort == "queue" else "by id"
        of_one = f" of {self._place.name}" if self._place.name else ""
        jobs = f"{many}{units.jobs(len(page.records))}, {self._state or 'in any state'}, {order}"
        title = f"tube {self._tube}{of_one}: {jobs}"
        self.tell(self._show, title, page.records)

    def _show(self, title: str, jobs: list[Record]) -> None:
        self._say(Text(title, style="bold"))
        self.query_one(Table).show(jobs)

    def _say(self, text: Text) -> None:
        self.query_one("#summary", Static).update(text)

    @on(DataTable.RowSelected)
    def _open(self, event: DataTable.RowSelected) -> None:
        self.app.push_screen(JobScreen(self._place, int(str(event.row_key.value))))


class JobScreen(ToldScreen):
    """All facts about a job."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "app.pop_screen", "Back"),
        Binding("q", "app.quit", "Quit"),
    ]

    def __init__(self, place: Place, job_id: int) -> None:
        super().__init__()
        self._place = place
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
            with reach(self._place, within_s=WITHIN_S) as server:
                job = server.show_job(self._job_id)
        except BeanliteError as error:
            text = str(error)
        else:
            text = f"job {self._job_id} has gone" if job is None else _text_of(job, self._place)
        self.tell(self._say, text)

    def _say(self, text: str) -> None:
        self.query_one("#job", Static).update(Text(text))


def _text_of(job: Record, place: Place) -> str:
    """Return the facts about a job as text, of a large body only the beginning."""
    body: bytes = job["body"]
    text = tables.job_text({**job, "body": beginning(body, _BYTES_MAX)}, "auto")
    shown = "\n".join(text[:_CHARACTERS_MAX].split("\n", _LINES_MAX)[:_LINES_MAX])
    if len(shown) == len(text) and len(body) <= _BYTES_MAX:
        return text
    command = asked_of(f"beanlite job {job['id']}", place.options)
    return f"{shown}\n\nThe rest is left out: {command} shows all."
