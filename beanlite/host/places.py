"""Where a server listens and is reached, as text: HOST:PORT, with an IPv6 host in brackets."""

from typing import Final

# A server that listens on all addresses is reached from this machine over the loopback interface.
_LOOPBACK_OF: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - as a server may have been configured


def as_place(host: str, port: int) -> str:
    """Return a host and a port as one text."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def host_and_port(place: str) -> tuple[str, int]:
    """Split a text such as ``[::1]:11300`` into host and port."""
    host, _, port = place.rpartition(":")
    return host.strip("[]"), int(port)


def is_port(text: str) -> bool:
    """Whether the text is the number of a port, or 0."""
    return text.isdecimal() and len(text) <= 20 and int(text) <= 65535  # Python refuses thousands of digits


def is_place(text: str) -> bool:
    """Whether the text is a host and a port that one can connect to."""
    host, _, port = text.rpartition(":")
    return bool(host) and host != "unix" and is_port(port) and int(port) > 0


def reached_at(host: str) -> str:
    """Return the host at which a client on this machine reaches a server that listens on this one."""
    return _LOOPBACK_OF.get(host, host)
