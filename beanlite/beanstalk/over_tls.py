"""The client's side of TLS: whom it trusts, what it shows of itself, and what goes wrong, in plain words."""

import ssl
from pathlib import Path
from typing import Final, NamedTuple

from beanlite.errors import ConfigError
from beanlite.host import log
from beanlite.host.shown import show_certificate

# OpenSSL's codes for a certificate that is not accepted.
_NOT_YET_VALID: Final = 9
_EXPIRED: Final = 10
_OTHER_NAMES: Final = frozenset({62, 64})
_NO_TLS: Final = "the server does not speak TLS at this port; without TLS it is HOST:PORT, and not tls://HOST:PORT"
_NO_CERTIFICATE: Final = "the server asks for a client certificate, or has no cipher in common; --tls-cert names one"
_NOT_ACCEPTED: Final = "the server does not accept the certificate of --tls-cert"
_NO_VERSION: Final = "the server and this client have no version of TLS in common"
# What OpenSSL's reasons mean.
_MEANINGS: Final = {
    "HTTP_REQUEST": _NO_TLS,
    "RECORD_LAYER_FAILURE": _NO_TLS,
    "UNEXPECTED_MESSAGE": _NO_TLS,
    "WRONG_VERSION_NUMBER": _NO_TLS,
    "SSLV3_ALERT_HANDSHAKE_FAILURE": _NO_CERTIFICATE,
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": _NO_CERTIFICATE,
    "SSLV3_ALERT_BAD_CERTIFICATE": _NOT_ACCEPTED,
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": f"{_NOT_ACCEPTED}: it has expired",
    "SSLV3_ALERT_CERTIFICATE_REVOKED": f"{_NOT_ACCEPTED}: it is revoked",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": _NOT_ACCEPTED,
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE": f"{_NOT_ACCEPTED}: it is not for clients",
    "TLSV1_ALERT_ACCESS_DENIED": _NOT_ACCEPTED,
    "TLSV1_ALERT_UNKNOWN_CA": f"{_NOT_ACCEPTED}: it does not trust its authority",
    "NO_PROTOCOLS_AVAILABLE": _NO_VERSION,
    "TLSV1_ALERT_PROTOCOL_VERSION": _NO_VERSION,
    "UNSUPPORTED_PROTOCOL": _NO_VERSION,
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
    """Return what an error of a connection means; that of TLS in words that say what to do."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _about_certificate(error)
    if isinstance(error, ssl.SSLEOFError):
        return "the connection was closed amid TLS; the server may not speak TLS at this port"
    if not isinstance(error, ssl.SSLError):
        return str(error.strerror or error)
    return _MEANINGS.get(error.reason or "", f"TLS failed: {error}")


def _about_certificate(error: ssl.SSLCertVerificationError) -> str:
    if error.verify_code == _EXPIRED:
        return "the server's certificate has expired"
    if error.verify_code == _NOT_YET_VALID:
        return "the server's certificate is not valid yet; one of the two clocks may be wrong"
    if error.verify_code in _OTHER_NAMES:
        return f"the server's certificate is for another name: {error.verify_message.rstrip('.')}"
    return f"the server's certificate is not trusted: {error.verify_message}; --tls-ca names its authority"
