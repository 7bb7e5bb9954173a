"""What ``beanlite top`` shows above a screen: questions, and what the keys do."""

from typing import ClassVar, Final

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen
from textual.widgets import Input, Static

_KEYS: Final = """\
↑ ↓     another tube
Enter   the jobs of the tube, and then a job; there s shows another state, r looks again, and Escape goes back
/       only tubes with this in their names; Escape shows all
k       kick the buried jobs of the tube, after a question
p       pause the tube, or end its pause, after a question
s S     sort by the next column, or by the one before
r       reverse the order
?       these keys
q       quit

in|out are the puts and the deletes of the last seconds, of one scale. wrong is short for what is told above the
tubes, and by beanlite why. A wider terminal shows more columns; the last line has them for the tube at the cursor.
"""


class Question(ModalScreen[bool]):
    """A question that is answered with yes or no."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "dismiss(True)", "Yes"),
        Binding("n,escape", "dismiss(False)", "No"),
    ]

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        """Yield the parts of the screen."""
        yield Static(f"{self._question}  y: yes, n: no", classes="above", markup=False)


class TextQuestion(ModalScreen[str]):
    """A question that is answered with a text; no text means that nothing is to be done."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss('')", "Cancel")]

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        """Yield the parts of the screen."""
        yield Static(self._question, classes="above", markup=False)
        yield Input(compact=True, classes="above")

    @on(Input.Submitted)
    def _answer(self, event: Input.Submitted) -> None:
        self.dismiss(event.value.strip())


class Keys(ModalScreen[None]):
    """What the keys do."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,question_mark,q,enter", "dismiss", "Back")]

    def compose(self) -> ComposeResult:
        """Yield the parts of the screen."""
        yield Static(_KEYS, classes="above", markup=False)
