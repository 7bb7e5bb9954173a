"""Who a client is: what its certificate, the kernel and its address say of it.

Names are those of rules, with users and groups as numbers: ``cert:mailer.example.org``, ``uid:33``.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
import struct
from typing import Any, Final, NamedTuple

CERT: Final = "cert:"
UID: Final = "uid:"
GID: Final = "gid:"
TOKEN: Final = "token:"  # noqa: S105 - no password
# A person for whom a client acts, and the page that the server runs beside itself.
PERSON: Final = "person:"
PAGE: Final = "page"

# Linux: the other end's process, user and group; and its other groups, which Python's socket has no name for.
_CREDENTIALS: Final = struct.Struct("iII")
_SO_PEERGROUPS: Final = 59
# What Python takes from the kernel at most: 256 groups.
_GROUPS_BYTES: Final = 1024
# In each URI and in no other name, so that an authority that is careless with one kind can't grant another.
_HAS_SCHEME: Final = "://"
# What can stand in a rule and in a log line: others are passed over.
_NAME: Final = re.compile(r"[!-~]{1,200}")


class Identity(NamedTuple):
    """Who a client is."""

    names: frozenset[str]
    shown: str
    """The name of it that is shown beside its address; empty if it has only that."""
    host: str | None
    """Its address without the port; None on a Unix socket."""
    is_private: bool
    """Nobody between it and the server can read what it sends: it came over TLS or a Unix socket."""

    def with_token(self, name: str) -> Identity:
        """Return what it is once it has given a token with this name."""
        return self._replace(names=self.names | {TOKEN + name}, shown=name)


def identity_of(transport: asyncio.BaseTransport) -> Identity:
    """Return who the client at the other end is."""
    peer = transport.get_extra_info("peername")
    if not isinstance(peer, tuple):
        names = _names_of_process(transport.get_extra_info("socket"))
        return Identity(frozenset(names), names[0] if names else "", None, is_private=True)
    tls = transport.get_extra_info("ssl_object")
    if tls is None:
        return Identity(frozenset(), "", peer[0], is_private=False)
    names = names_in(_certificate_of(tls))
    shown = names[0].removeprefix(CERT) if names else ""
    return Identity(frozenset(names), shown, peer[0], is_private=True)


def _certificate_of(tls: ssl.SSLObject) -> dict[str, Any] | None:
    """Return the client's certificate; None if Python can't read it, although its authority has signed it."""
    try:
        return tls.getpeercert()
    except (ValueError, ssl.SSLError):  # names that are no UTF-8, or no names at all
        return None


def names_in(certificate: dict[str, Any] | None) -> list[str]:
    """Return the names in a certificate that was verified: DNS names and URIs, or the common name if it has neither.

    ``certificate`` is what ``SSLObject.getpeercert`` returns, which is empty if it was not verified.
    """
    if not certificate:
        return []
    names = [
        value
        for kind, value in certificate.get("subjectAltName", ())
        if kind == "DNS" or (kind == "URI" and _HAS_SCHEME in value)
    ]
    if not names:
        parts = [part for parts in certificate.get("subject", ()) for part in parts]
        names = [value for kind, value in parts if kind == "commonName" and _HAS_SCHEME not in value]
    return [CERT + name for name in names if _NAME.fullmatch(name) is not None]


def _names_of_process(sock: socket.socket) -> list[str]:
    """Return the user and the groups of the process at the other end of a Unix socket; none if it has gone."""
    try:
        _, uid, gid = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    except OSError:
        return []
    try:
        data = sock.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _GROUPS_BYTES)
        groups = [each for (each,) in struct.iter_unpack("I", data)]
    except OSError:  # an older kernel, or more groups than that
        groups = []
    return [f"{UID}{uid}", *(f"{GID}{each}" for each in dict.fromkeys([gid, *groups]))]
