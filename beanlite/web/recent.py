"""The changes that were made on the page lately, by whom and from where."""

import secrets
import time
from collections import deque
from dataclasses import dataclass, field
from functools import partial

from beanlite.web.running import Running
from beanlite.web.undoing import UNDOS_MAX


@dataclass(slots=True)
class PageChange:
    """A change."""

    person: str
    """The user that made it; empty if users are not asked to log in."""
    address: str
    """Where that user's browser is, or the proxy in front."""
    what: str
    back: str
    """The page on which it was made."""
    undo: str = ""
    """The token by which it can be undone; empty if it can't."""
    running: Running | None = None
    """The progress of a change of jobs."""
    undone: bool = False
    at: float = field(default_factory=time.time)
    key: str = field(default_factory=partial(secrets.token_urlsafe, 9))
    """What no other change has, not even one of before a restart of the page."""


class Recent:
    """The last changes."""

    def __init__(self) -> None:
        self._all: deque[PageChange] = deque(maxlen=UNDOS_MAX)

    def note(self, entry: PageChange) -> None:
        """Remember a change."""
        self._all.append(entry)

    def undone(self, token: str) -> None:
        """Note that a change has been undone."""
        for entry in self._all:
            if entry.undo == token:
                entry.undone = True

    def entries(self, person: str | None) -> list[PageChange]:
        """Return the changes of a person, or of all if it is None, the newest first."""
        return [entry for entry in reversed(self._all) if person is None or entry.person == person]
