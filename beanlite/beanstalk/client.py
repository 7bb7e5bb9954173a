"""The client, with the addresses, the files for TLS and the words for errors of operators' commands."""

import os
import select
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final, Self, TypeVar

from beanlite.beanstalk.over_tls import FromFiles, OverTls, in_plain_words
from beanlite.client import calls
from beanlite.client.calls import Call, Shape
from beanlite.client.errors import ClientError, ConnectionLost, Declined, UnexpectedReply, UnknownCommand
from beanlite.client.target import Target
from beanlite.client.wire import Wire
from beanlite.errors import BeanliteError, ConfigError
from beanlite.host.places import as_place, is_port
from beanlite.settings.defaults import PAGE_TOKEN, TOKEN

T = TypeVar("T")
Address = tuple[str, int] | tuple[str]
"""Host and port, or the path of a Unix socket."""
Server = Address | OverTls
"""Where a server is reached."""

TIMEOUT_S: Final = 30.0
_SCHEME: Final = "tls://"
_ENDS: Final = (ConnectionError, ssl.SSLEOFError)
_CLOSED: Final = "the server closed a connection"


class Unauthorized(BeanliteError):
    """The server does not accept the token, or no rule of it allows something."""


class Unreachable(BeanliteError):
    """The server can't be reached, or the connection was lost."""


def parse_address(where: str, option: str = "--connect") -> Address:
    """Parse an address that an operator has given as HOST:PORT or unix:PATH. ConfigError: it is neither."""
    if where.startswith("unix:") and where != "unix:":
        return (where.removeprefix("unix:"),)
    host, _, port = where.rpartition(":")
    if not _is_host(host) or not is_port(port):
        raise ConfigError(f"{option} takes HOST:PORT or unix:PATH, not {where!r}")
    return (host.strip("[]"), int(port))


def _is_host(text: str) -> bool:
    return bool(text) and "/" not in text  # which a URL has, of whatever scheme


def parse_server(where: str, ca: str | None = None, cert: str | None = None, key: str | None = None) -> Server:
    """Parse the address of a server: also tls://HOST:PORT, and the files that only this one has. ConfigError."""
    given = {"--tls-ca": ca, "--tls-cert": cert, "--tls-key": key}
    if where.startswith(_SCHEME):
        host, _, port = where.removeprefix(_SCHEME).rpartition(":")
        if not _is_host(host) or not is_port(port):
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


def target_of(address: Server, name: str | None = None) -> Target:
    """Return where the client connects, with the token of the environment. ConfigError: that or a file is wrong.

    A connection that is made later reads files for TLS that have changed.
    """
    variable = PAGE_TOKEN if PAGE_TOKEN in os.environ else TOKEN
    token = os.environ.get(variable) or None
    # The page of a server on this machine shows its token over loopback, which nobody else can read either.
    if variable == TOKEN and len(address) == 2:
        token = None
    if token is not None:
        try:
            calls.auth(token)
        except ValueError:
            raise ConfigError(f"{variable} is no token: it has a space, or a character that is not ASCII") from None
    if isinstance(address, OverTls):
        return Target(address.host, address.port, None, FromFiles(address), token, name)
    if len(address) == 1:
        return Target("", 0, address[0], None, token, name)
    return Target(*address, None, None, token, name)


def connect(address: Server) -> socket.socket:
    """Return the socket of a new connection, as for `Client`."""
    return Client(address).socket


class Client(Wire):
    """A connection that sends a command and waits for the reply.

    Its methods raise Unreachable if the connection fails, and Declined if the server refuses a command.
    """

    def __init__(self, address: Server, within_s: float = TIMEOUT_S) -> None:
        """Connect, within a time, in which each reply has to come as well. ConfigError: a file for TLS can't be used.

        Unreachable; Unauthorized: the token is not accepted.
        """
        self.name = address_text(address)
        self._address = address
        self._is_accepted = False
        """The server has replied once."""
        target = target_of(address)
        try:
            super().__init__(target, within_s, within_s)
        except OSError as error:
            raise Unreachable(f"no server can be reached at {self.name}: {in_plain_words(error)}") from error
        if target.token is not None:
            try:
                self._authenticate(target.token)
            except BaseException:
                self.close()
                raise
        self.wait(within_s)

    def _authenticate(self, token: str) -> None:
        """Show the token. A server that knows no tokens asks for none."""
        try:
            self.ask(calls.auth(token))
        except UnknownCommand:
            return
        except Declined as error:
            variable = PAGE_TOKEN if PAGE_TOKEN in os.environ else TOKEN
            raise Unauthorized(f"{self.name} does not accept the token in {variable}: {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, call: Call[T], tube: str | None = None, waits_s: float | None = 0) -> T:
        """Send a command, and return its result."""
        with self._in_plain_words():
            return super().ask(call, tube, waits_s)

    def follow(self, call: Call[T], word: bytes) -> Iterator[T]:
        """Send a command, and yield its result and all that follows by itself, each behind a line with this word."""
        sent = self._dialogue.sent
        data, shape = call

        def read(words: list[bytes], body: bytes) -> T | Declined:
            sent.append((more, None))
            return shape.read(words, body)

        more = Shape(word, read, returns_body=True)
        self._dialogue.send((data, Shape(shape.word, read, returns_body=True, refusal=shape.refusal)), None)
        self.wait(None)
        with self._in_plain_words():
            while True:
                for _, result in self._exchange(1):
                    if isinstance(result, ClientError):
                        raise result from self.failure
                    self._is_accepted = True
                    yield result

    def abort(self) -> None:
        """Have a thread that waits for a reply get an error, so that the connection can be closed."""
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    @property
    def is_idle(self) -> bool:
        """Whether the server has neither sent anything unasked nor closed the connection."""
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        return not poll.poll(0)

    def wait(self, within_s: float | None) -> None:
        """Have replies come within this time from now on, or whenever they do."""
        self._timeout_s = within_s
        self.socket.settimeout(within_s)

    @contextmanager
    def _in_plain_words(self) -> Iterator[None]:
        """Turn the errors of the connection into Unreachable."""
        try:
            yield
            self._is_accepted = True
        except Declined:
            self._is_accepted = True
            raise
        except UnexpectedReply as error:
            raise Unreachable(f"{self.name}: {error}") from error
        except ConnectionLost as error:
            if isinstance(self.failure, TimeoutError):
                raise Unreachable(f"{self.name} does not answer") from self.failure
            raise Unreachable(f"{self.name}: {self._end()}") from error

    def _end(self) -> str:
        """Return why the connection has ended.

        With TLS 1.3 a client takes itself for accepted before the server has seen its certificate. The alert of the
        server, which tells of that, is lost if the client has sent something meanwhile.
        """
        if self.failure is not None and not isinstance(self.failure, _ENDS):
            return in_plain_words(self.failure)
        if self._is_accepted or len(self._address) == 1:
            return _CLOSED
        if isinstance(self._address, OverTls):
            return f"{_CLOSED}; it may ask for a certificate (--tls-cert), or not accept this one"
        if self._dialogue.has_alert:
            return "the server speaks TLS at this port; name it as tls://HOST:PORT"
        why = "it may have as many as max_connections allows, or speak TLS at this port (tls://HOST:PORT)"
        return f"{_CLOSED}; {why}"
