"""A screen of ``beanlite top`` whose threads ask servers."""

from collections.abc import Callable
from typing import Any

from textual.screen import Screen


class ToldScreen(Screen[None]):
    """A screen that is told what its threads have found; it may be closed by then."""

    def tell(self, method: Callable[..., None], *found: object) -> None:
        """Have a method of the screen called in the loop, unless the screen is closed; to be called by a thread."""
        self.app.call_later(self._hear, method, found)

    def _hear(self, method: Callable[..., None], found: tuple[Any, ...]) -> None:
        if self.display:  # not so once it begins to close, when parts of it may be gone already
            method(*found)
