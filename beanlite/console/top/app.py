"""The application that ``beanlite top`` is."""

from typing import ClassVar

from textual.app import App
from textual.binding import Binding, BindingType

from beanlite.console.several import Places
from beanlite.console.top.tubes_screen import TubesScreen


class Top(App[None]):
    """The application."""

    TITLE = "beanlite top"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+c", "quit", "Quit", show=False)]
    CSS = """
    #summary { height: auto; padding: 0 1; }
    #job, #tube, #filter { padding: 0 1; }
    #tube { height: 1; }
    ModalScreen { align: center middle; }
    .above { width: 90%; height: auto; padding: 0 1; background: $surface; border-left: thick $primary; }
    Table { height: 1fr; }
    .past Table, .past #tube { opacity: 50%; }
    """

    def __init__(self, places: Places) -> None:
        super().__init__()
        self._places = places

    def on_mount(self) -> None:
        """Show the tubes first."""
        self.push_screen(TubesScreen(self._places))
