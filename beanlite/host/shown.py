"""Certificates that are shown to the other end of a connection over TLS."""

import ssl
from typing import NoReturn

from beanlite.errors import ConfigError


def check_certificate(cert: str, key: str, options: tuple[str, str]) -> None:
    """Raise ConfigError if a server can't show this certificate."""
    show_certificate(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), cert, key, options)


def show_certificate(context: ssl.SSLContext, cert: str, key: str | None, options: tuple[str, str]) -> None:
    """Have a certificate shown to the other end. ConfigError: it can't be used; ``options`` are those that name it."""
    files = cert if key is None else f"{cert} with {key}"

    def refuse() -> NoReturn:  # OpenSSL would ask for a password on the terminal
        raise ConfigError(f"{options[1]}: the key is encrypted; name one without a password")

    try:
        context.load_cert_chain(cert, key, refuse)
    except ssl.SSLError as error:
        if error.reason in {"KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH"}:
            raise ConfigError(f"{options[0]}: {files}: the key is not that of the certificate") from error
        raise ConfigError(
            f"{options[0]}: {files}: no certificate with its key in PEM; {options[1]} names a key in a file of its own"
        ) from error
    except OSError as error:
        raise ConfigError(f"{options[0]}: {files} can't be read: {error.strerror}") from error
