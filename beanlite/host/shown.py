"""Certificates that are shown to the other end of a connection over TLS, and their keys."""

import os
import ssl
import stat
from pathlib import Path
from typing import Final, NoReturn

from beanlite.errors import ConfigError

# A larger file of certificates would take seconds to read, in which nothing else is done.
PEM_BYTES_MAX: Final = 4 << 20
# What only the owner of a key may do with it.
_OTHERS: Final = 0o077


def read_pem(option: str, path: Path) -> str:
    """Return the text of a file that ``option`` names. ConfigError: it is none, or can't be read."""
    facts = _stat(option, path)
    if not stat.S_ISREG(facts.st_mode):  # reading a pipe might never end
        raise ConfigError(f"{option}: {path} is no file")
    if facts.st_size > PEM_BYTES_MAX:
        raise ConfigError(f"{option}: {path} has {facts.st_size} bytes; {PEM_BYTES_MAX} at most are read")
    try:
        return path.read_text(encoding="latin-1")
    except OSError as error:
        raise ConfigError(f"{option}: {path} can't be read: {error.strerror}") from error


def read_key(option: str, path: Path) -> str:
    """Return the text of a file with a key. ConfigError: it can't be read, or others than its owner may use it."""
    text = read_pem(option, path)
    mode = _stat(option, path).st_mode & 0o777
    if mode & _OTHERS:
        raise ConfigError(f"{option}: others may use {path} (mode {mode:o}); chmod 600 it")
    return text


def _stat(option: str, path: Path) -> os.stat_result:
    try:
        return path.stat()
    except OSError as error:  # it may be replaced just now
        raise ConfigError(f"{option}: {path} can't be read: {error.strerror}") from error


def receiving_context() -> ssl.SSLContext:
    """Return what encrypts for clients, without a certificate yet."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    # Every client has this group for the exchange of keys; OpenSSL has others that take far longer.
    context.set_ecdh_curve("prime256v1")
    return context


def page_context(cert: str, key: str, options: tuple[str, str]) -> ssl.SSLContext:
    """Return what encrypts the page. ConfigError: the certificate can't be shown; ``options`` name it and its key."""
    read_pem(options[0], Path(cert))
    read_key(options[1], Path(key))
    context = receiving_context()
    show_certificate(context, cert, key, options)
    return context


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
