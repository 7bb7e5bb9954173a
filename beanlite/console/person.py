"""The person on whose behalf a server is asked to change something."""

import getpass
import os

from beanlite.console.filters import Record
from beanlite.core.tube import PERSON_BYTES_MAX


def login_name() -> str:
    """Return the login name of the person who runs the command; empty if the system has none."""
    try:
        return os.environ.get("SUDO_USER") or getpass.getuser()
    except (KeyError, OSError):  # Python 3.13 raises the latter
        return ""


def on_behalf_of(person: str) -> Record:
    """Return the person as a part of a request, with the name as the server accepts it; empty without a name."""
    printable = "".join(character if character.isprintable() else "·" for character in person)
    name = printable.encode()[:PERSON_BYTES_MAX].decode(errors="ignore")
    return {"by": name} if name else {}
