"""What a page says once: what was done, with a way to undo it, or what is wrong in a form."""

import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from beanlite.errors import ConfigError

# How many notices that nobody has seen are kept.
NOTICES_MAX: Final = 100


class Mistake(ConfigError):
    """A wrong value in a field of a form."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"{name}: {why}")
        self.name = name
        self.why = why


def field_of(error: Exception, fields: Collection[str], otherwise: str) -> str:
    """Return the field that is wrong: of a mistake its own, of a server's refusal the one that it begins with."""
    if isinstance(error, Mistake):
        return error.name
    key = str(error.__cause__).partition(":")[0]
    return key if key in fields else otherwise


@dataclass(frozen=True, slots=True)
class WrongForm:
    """A form with a mistake, to be shown again with what was entered."""

    form: str = ""
    """The path that the form is sent to; empty if nothing is wrong."""
    name: str = ""
    """The field; empty if it can't be told."""
    why: str = ""
    fields: Mapping[str, str] = field(default_factory=dict)

    @property
    def ids(self) -> frozenset[str]:
        """The ids of the jobs that were selected."""
        return frozenset(self.fields.get("ids", "").split(","))


@dataclass(frozen=True, slots=True)
class Notice:
    """A notice: a text, or a mistake."""

    text: str = ""
    undo: str = ""
    """The token by which what was done can be undone; empty if it can't."""
    wrong: WrongForm = WrongForm()


class Notices:
    """Notices to be shown once each. They are found by a token, so that no link can make a page say anything."""

    def __init__(self) -> None:
        self._all: dict[str, Notice] = {}

    def leave(self, notice: Notice) -> str:
        """Keep a notice, and return the token by which it is found."""
        token = secrets.token_urlsafe(16)
        self._all[token] = notice
        while len(self._all) > NOTICES_MAX:
            del self._all[next(iter(self._all))]
        return token

    def take(self, token: str) -> Notice:
        """Return the notice of this token, once; an empty one if there is none."""
        return self._all.pop(token, Notice())
