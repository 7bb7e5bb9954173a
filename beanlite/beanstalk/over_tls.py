"""The client's side of TLS: whom it trusts, what it shows of itself, and what goes wrong, in plain words."""

import ssl
from pathlib import Path
from typing import Final, NamedTuple

from beanlite.client import plain
from beanlite.errors import ConfigError
from beanlite.host import log
from beanlite.host.shown import show_certificate

# What can be done about it, by how the words for it begin.
_HINTS: Final = {
    plain.NO_TLS: "; without TLS it is HOST:PORT, and not tls://HOST:PORT",
    plain.NO_CERTIFICATE: "; --tls-cert names one",
    plain.NOT_ACCEPTED: "; --tls-cert names it",
    plain.NOT_TRUSTED: "; --tls-ca names its authority",
}


class OverTls(NamedTuple):
    """Where a server is reached over TLS, and by which files; None: the system's authorities, no certificate."""

    host: str
    port: int
    ca: str | None = None
    cert: str | None = None
    key: str | None = None


def context_for(address: OverTls) -> ssl.SSLContext:
    """Return what a connection to a server needs. ConfigError: a file can't be read, or is not what it should be."""
    try:
        context = ssl.create_default_context(cafile=address.ca)
    except ssl.SSLError as error:
        raise ConfigError(f"--tls-ca: {address.ca} has no certificate of an authority in PEM") from error
    except OSError as error:
        raise ConfigError(f"--tls-ca: {address.ca} can't be read: {error.strerror}") from error
    if address.cert is not None:
        show_certificate(context, address.cert, address.key, ("--tls-cert", "--tls-key"))
    return context


class FromFiles:
    """The context for connections to a server, made anew when a file has changed."""

    def __init__(self, address: OverTls) -> None:
        """Read the files. ConfigError: as for ``context_for``."""
        self._address = address
        self._marks = self._look()
        self._context = context_for(address)
        self._told = ""

    def __call__(self) -> ssl.SSLContext:
        """Return the context; as long as a changed file can't be used, the one before."""
        marks = self._look()
        if marks != self._marks:
            try:
                self._context = context_for(self._address)
                self._marks, self._told = marks, ""
            except ConfigError as error:
                if str(error) != self._told:
                    self._told = str(error)
                    log.warning("files for TLS can't be used; those of before are", error=error)
        return self._context

    def _look(self) -> list[tuple[int, int, int] | None]:
        """Return what tells each file from a later one by its name; None: it is not there, or was not named."""
        return [None if name is None else mark_of(Path(name)) for name in self._address[2:]]


def mark_of(file: Path) -> tuple[int, int, int] | None:
    """Return what tells a file from a later one by its name; None: it is not there."""
    try:
        facts = file.stat()
    except OSError:  # it is being replaced
        return None
    return facts.st_mtime_ns, facts.st_ino, facts.st_size


def in_plain_words(error: OSError) -> str:
    """Return what an error of a connection means, and which option may help."""
    text = plain.in_plain_words(error)
    return text + next((hint for words, hint in _HINTS.items() if text.startswith(words)), "")
