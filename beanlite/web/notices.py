"""What the page tells of a change once it is done, on the page that follows."""

import secrets
from typing import Final

# How many notices that nobody has seen are kept.
KEPT: Final = 100


class Notices:
    """Texts to be shown once each. They are found by a token, so that no link can make a page say anything."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def leave(self, text: str) -> str:
        """Keep a text, and return the token by which it is found."""
        token = secrets.token_urlsafe(16)
        self._texts[token] = text
        while len(self._texts) > KEPT:
            del self._texts[next(iter(self._texts))]
        return token

    def take(self, token: str) -> str:
        """Return the text of this token, once; empty if there is none."""
        return self._texts.pop(token, "")
