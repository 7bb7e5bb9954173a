"""A simple synchronous client of the protocol."""

import socket
from typing import Final, Self

from beanlite.errors import ConfigError
from beanlite.host.places import as_place, is_port

Address = tuple[str, int] | tuple[str]
"""Host and port, or the path of a Unix socket."""

TIMEOUT_S: Final = 30.0


class UnexpectedReply(Exception):
    """A server sent an unexpected reply to a command; the text shows it."""


def parse_address(where: str, option: str = "--connect") -> Address:
    """Parse an address that an operator has given as HOST:PORT or unix:PATH. ConfigError: it is neither."""
    if where.startswith("unix:") and where != "unix:":
        return (where.removeprefix("unix:"),)
    host, _, port = where.rpartition(":")
    if not host or not is_port(port):
        raise ConfigError(f"{option} takes HOST:PORT or unix:PATH, not {where!r}")
    return (host.strip("[]"), int(port))


def address_text(address: Address) -> str:
    """Return an address in the form that ``parse_address`` takes."""
    if len(address) != 2:
        return f"unix:{address[0]}"
    return as_place(*address)


def connect(address: Address) -> socket.socket:
    """Connect to a server. OSError: that fails."""
    if len(address) == 2:
        sock = socket.create_connection((address[0], address[1]), TIMEOUT_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(TIMEOUT_S)
    try:
        sock.connect(address[0])
    except OSError:
        sock.close()
        raise
    return sock


class Client:
    """A connection that sends a command and waits for the reply. Its methods raise OSError and UnexpectedReply."""

    def __init__(self, address: Address) -> None:
        self._socket = connect(address)
        self._lines = self._socket.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._lines.close()
        self._socket.close()

    def stats(self, tube: str | None = None) -> dict[str, str]:
        """Return the server's statistics or a tube's; empty if there is no such tube."""
        line = self.ask(b"stats\r\n" if tube is None else b"stats-tube %b\r\n" % tube.encode())
        if line == b"NOT_FOUND\r\n":
            return {}
        if not line.startswith(b"OK "):
            raise UnexpectedReply(f"{line!r} came where OK was due")
        text = self.body(line).decode(errors="replace")
        pairs = (line.partition(": ") for line in text.splitlines())
        return {key: value.strip('"') for key, colon, value in pairs if colon}

    def ask(self, command: bytes) -> bytes:
        """Send a command, given with its CR LF, and return the first line of the reply."""
        self._socket.sendall(command)
        return self.line()

    def line(self) -> bytes:
        """Return the next line that the server sends."""
        line = self._lines.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionResetError("the server closed a connection")
        return line

    def body(self, line: bytes) -> bytes:
        """Return the body that follows a line ending with its size."""
        size = int(line.split()[-1])
        body = self._lines.read(size + 2)
        if len(body) < size + 2:
            raise ConnectionResetError("the server closed a connection")
        return body[:size]

    def wait_as_long_as_it_takes(self) -> None:
        """Disable the timeout for replies."""
        self._socket.settimeout(None)
