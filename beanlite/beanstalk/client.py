"""A simple synchronous client of the protocol."""

import os
import select
import socket
import ssl
from contextlib import suppress
from typing import Final, Self

from beanlite.beanstalk.over_tls import OverTls, context_for
from beanlite.errors import BeanliteError, ConfigError
from beanlite.host.places import as_place, is_port
from beanlite.settings.defaults import PAGE_TOKEN, TOKEN

Address = tuple[str, int] | tuple[str]
"""Host and port, or the path of a Unix socket."""
Server = Address | OverTls
"""Where a server is reached."""

TIMEOUT_S: Final = 30.0
# How a server that speaks TLS answers what is none: by an alert.
_ALERT: Final = b"\x15\x03"
_SCHEME: Final = "tls://"
_REPLY_MAX: Final = 1024
# The errors of a connection that the server has closed.
_ENDS: Final = (ConnectionError, ssl.SSLEOFError)
_CLOSED: Final = "the server closed a connection"


class Unauthorized(BeanliteError):
    """The server does not accept the token, or no rule of it allows something."""


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


def parse_server(where: str, ca: str | None = None, cert: str | None = None, key: str | None = None) -> Server:
    """Parse the address of a server: also tls://HOST:PORT, and the files that only this one has. ConfigError."""
    given = {"--tls-ca": ca, "--tls-cert": cert, "--tls-key": key}
    if where.startswith(_SCHEME):
        host, _, port = where.removeprefix(_SCHEME).rpartition(":")
        if not host or not is_port(port):
            raise ConfigError(f"--connect takes tls://HOST:PORT, not {where!r}")
        if key is not None and cert is None:
            raise ConfigError("--tls-key needs --tls-cert: the certificate of this key")
        return OverTls(host.strip("[]"), int(port), ca, cert, key)
    for option, value in given.items():
        if value is not None:
            raise ConfigError(f"{option} is for --connect tls://HOST:PORT")
    try:
        return parse_address(where)
    except ConfigError:
        raise ConfigError(f"--connect takes HOST:PORT, tls://HOST:PORT or unix:PATH, not {where!r}") from None


def address_text(address: Server) -> str:
    """Return an address in the form in which it is parsed."""
    if isinstance(address, OverTls):
        return f"{_SCHEME}{as_place(address.host, address.port)}"
    if len(address) != 2:
        return f"unix:{address[0]}"
    return as_place(*address)


def connect(address: Server, within_s: float = TIMEOUT_S) -> socket.socket:
    """Connect to a server, and show it the token. OSError: that fails. ConfigError, Unauthorized: of TLS, the token."""
    sock = _connect(address, within_s)
    variable = PAGE_TOKEN if PAGE_TOKEN in os.environ else TOKEN
    token = os.environ.get(variable)
    # The page of a server on this machine shows its token over loopback, which nobody else can read either.
    if token and (variable == PAGE_TOKEN or is_private(address)):
        try:
            _authenticate(sock, token, address, variable)
        except BaseException:
            sock.close()
            raise
    return sock


def is_private(address: Server) -> bool:
    """Whether nobody on the way can read what is sent there, so that the token may be."""
    return isinstance(address, OverTls) or len(address) == 1


def _connect(address: Server, within_s: float) -> socket.socket:
    if isinstance(address, OverTls):
        context = context_for(address)
        sock = _connect((address.host, address.port), within_s)
        try:
            return context.wrap_socket(sock, server_hostname=address.host)
        except OSError:
            sock.close()
            raise
    if len(address) == 2:
        sock = socket.create_connection((address[0], address[1]), within_s)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(within_s)
    try:
        sock.connect(address[0])
    except OSError:
        sock.close()
        raise
    return sock


def _authenticate(sock: socket.socket, token: str, address: Server, variable: str) -> None:
    """Show the token. Unauthorized: it is not accepted. A server that knows no tokens asks for none."""
    if not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(f"{variable} is no token: it has a space, or a character that is not ASCII")
    line = b""
    try:
        sock.sendall(b"auth %b\r\n" % token.encode())
        while not line.endswith(b"\r\n") and len(line) < _REPLY_MAX:
            data = sock.recv(_REPLY_MAX)
            if not data:
                break
            line += data
    except _ENDS:
        pass
    if not line:
        raise _not_accepted(address, line)
    if line not in {b"AUTHENTICATED\r\n", b"UNKNOWN_COMMAND\r\n"}:
        word = line.decode(errors="replace").strip()
        raise Unauthorized(f"{address_text(address)} does not accept the token in {variable}: {word}")


def _not_accepted(address: Server, beginning: bytes) -> ConnectionError:
    """Return the error of a server that has closed a connection before its first reply, and what may be the cause.

    With TLS 1.3 a client takes itself for accepted before the server has seen its certificate. The alert of the server,
    which tells of that, is lost if the client has sent something meanwhile.
    """
    if isinstance(address, OverTls):
        return ConnectionResetError(f"{_CLOSED}; it may ask for a certificate (--tls-cert), or not accept this one")
    if len(address) == 1:
        return ConnectionResetError(_CLOSED)
    if beginning.startswith(_ALERT):
        return ConnectionResetError("the server speaks TLS at this port; name it as tls://HOST:PORT")
    return ConnectionResetError(f"{_CLOSED}; if it speaks TLS at this port, name it as tls://HOST:PORT")


class Client:
    """A connection that sends a command and waits for the reply. Its methods raise OSError and UnexpectedReply."""

    def __init__(self, address: Server, within_s: float = TIMEOUT_S) -> None:
        """Connect, within a time, in which each reply has to come as well. ConfigError: a file for TLS can't be used.

        Unauthorized: the token is not accepted.
        """
        self._socket = connect(address, within_s)
        self.wait(within_s)
        self._lines = self._socket.makefile("rb")
        self._address = address
        self._is_accepted = False
        """The server has replied once."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._lines.close()
        self._socket.close()

    def abort(self) -> None:
        """Have a thread that waits for a reply get an error, so that the connection can be closed."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

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

    @property
    def is_idle(self) -> bool:
        """Whether the server has neither sent anything unasked nor closed the connection."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return not poll.poll(0)

    def ask(self, command: bytes) -> bytes:
        """Send a command, given with its CR LF, and return the first line of the reply."""
        try:
            self._socket.sendall(command)
        except _ENDS:  # what the server has said before tells more
            if self._is_accepted:
                raise
        return self.line()

    def line(self) -> bytes:
        """Return the next line that the server sends."""
        try:
            line = self._lines.readline()
        except _ENDS:
            line = b""
        if not line.endswith(b"\r\n"):
            raise ConnectionResetError(_CLOSED) if self._is_accepted else _not_accepted(self._address, line)
        self._is_accepted = True
        return line

    def body(self, line: bytes) -> bytes:
        """Return the body that follows a line ending with its size."""
        size = int(line.split()[-1])
        body = self._lines.read(size + 2)
        if len(body) < size + 2:
            raise ConnectionResetError(_CLOSED)
        return body[:size]

    def wait(self, within_s: float | None) -> None:
        """Have replies come within this time from now on, or whenever they do."""
        self._socket.settimeout(within_s)
