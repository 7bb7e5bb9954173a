"""Where a server is reached, from an address such as ``beanlite://queue.example.org:11300``.

An address can name several servers, one of which is active at a time.
"""

import socket
import ssl
from collections.abc import Callable
from typing import Final, NamedTuple

from beanlite.client import calls

PORT: Final = 11300
# A connection takes so long at most.
CONNECT_S: Final = 10.0
# What tells of a server that is gone without a word: 30 s of silence, and three questions that are not answered.
KEEPALIVE: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 60_000),
)
# The waits before another try to connect grow from the first to the last; each is a random part of that.
_FIRST_WAIT_S: Final = 0.05
_LONGEST_WAIT_S: Final = 5.0
_PORT_MAX: Final = 65535


class Target(NamedTuple):
    """A host and port, or the path of a Unix socket; and what TLS needs, or what returns that, or None."""

    host: str
    port: int
    path: str | None
    tls: ssl.SSLContext | Callable[[], ssl.SSLContext] | None
    token: str | None
    name: str | None

    def context(self) -> ssl.SSLContext | None:
        """Return what a new connection needs for TLS; None: it is without."""
        return self.tls if self.tls is None or isinstance(self.tls, ssl.SSLContext) else self.tls()

    def __str__(self) -> str:
        """Return the address as it was given."""
        if self.path is not None:
            return f"unix:{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"beanlite{'' if self.tls is None else 's'}://{host}:{self.port}"


def targets(url: str, *, tls: ssl.SSLContext | bool | None, token: str | None, name: str | None) -> tuple[Target, ...]:
    """Read an address. ValueError: it is none, or a token would be sent in clear text, or token or name can't be."""
    if token is not None:
        calls.auth(token)
    if name is not None:
        calls.call_itself(name)
    if url.startswith("unix:") and url != "unix:":
        if tls:
            raise ValueError("a Unix socket has no TLS")
        return (Target("", 0, url.removeprefix("unix:"), None, token, name),)
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in {"beanlite", "beanlites"}:
        raise ValueError(f"an address is beanlite://HOST:PORT, beanlites://HOST:PORT or unix:PATH, not {url!r}")
    places = [_host_and_port(place) for place in rest.rstrip("/").split(",")]
    if scheme == "beanlites" and tls is False:
        raise ValueError("beanlites:// is with TLS")
    context = None
    if tls or scheme == "beanlites":
        context = tls if isinstance(tls, ssl.SSLContext) else ssl.create_default_context()
    if token is not None and context is None:
        raise ValueError("a token is sent over TLS or to a Unix socket only, since others could read it")
    return tuple(Target(host, port, None, context, token, name) for host, port in places)


def _host_and_port(place: str) -> tuple[str, int]:
    host, colon, digits = place.rpartition(":")
    if not colon or place.endswith("]"):
        host, digits = place, str(PORT)
    if not host or not digits.isdecimal() or not 0 < int(digits) <= _PORT_MAX:
        raise ValueError(f"an address is beanlite://HOST:PORT, and {place!r} is no host and port")
    return host.strip("[]"), int(digits)


def no_such_host() -> OSError:
    """Return the resolver's error for a name for which Python does not ask it, since no host can have it."""
    return socket.gaierror(socket.EAI_NONAME, "Name or service not known")


def failed_in_row(before: int, since_s: float, *, has_answered: bool) -> int:
    """Return how many connections in a row have failed, now that one has ended, which was made so long ago.

    One that has answered nothing has failed as well, unless the longest wait has passed by itself; ``before``: so many
    had failed before it.
    """
    return 1 if has_answered or since_s > _LONGEST_WAIT_S else before + 1


def wait_s(failures: int, chance: float, servers: int = 1) -> float:
    """Return how long to wait before the next try to connect, after so many in a row that failed; chance: 0 to 1.

    Several servers are tried in turn, without waits in between.
    """
    rounds, at = divmod(failures - 1, servers)
    longest = min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2.0 ** min(rounds + 1, 20))
    return 0.0 if at else longest * chance
