"""A connection to the database that may write, and what its errors mean."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, cast
from urllib.parse import SplitResult, urlsplit, urlunsplit

import asyncpg
from asyncpg.connect_utils import SessionAttribute

from beanlite.errors import JournalRefused

# How long it may take to get a connection to one of the hosts.
CONNECT_S: Final = 2.0
# What each session has set. A commit has to wait for the synchronous standby, whatever the database's default is.
# Rows are always found by their key: the planner may think that the table is empty.
_SESSION: Final = {
    "synchronous_commit": "on",
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "enable_seqscan": "off",
    "jit": "off",
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
}
# By default the kernel would wait for a quarter of an hour for a machine that is lost.
_DEAD_MS: Final = 5000
_KEEPALIVE: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 5),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _DEAD_MS),
)
# A host in a URL, with its port.
_PLACE: Final = re.compile(r"([^:\[\]]*|\[[^\]]*\])(:[0-9]*)?")
# The errors that mean that the connection is of no use any more, or that what it was asked may or may not be done.
TROUBLE: Final = (
    OSError,  # with TimeoutError
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,  # shut down, starting, cancelled
    asyncpg.TooManyConnectionsError,
    asyncpg.ReadOnlySQLTransactionError,  # it is a standby now
    asyncpg.TargetServerAttributeNotMatched,
)


class Cancelled(ConnectionError):
    """The wait for the synchronous standby was cancelled: PostgreSQL calls that a success, but it may be none."""


class Link:
    """A connection, and whether what it says can be believed."""

    def __init__(self, connection: asyncpg.Connection[asyncpg.Record]) -> None:
        self.connection = connection
        self.pid = int(connection.get_server_pid())
        """The process that serves it; once the connection has ended asyncpg does not tell any more."""
        self._cancelled = False
        connection.add_log_listener(self._noticed)

    def _noticed(self, _connection: object, message: asyncpg.PostgresLogMessage) -> None:
        # PostgreSQL has no code of its own for "canceling wait for synchronous replication"; and a batch gives no
        # reason for any other warning.
        self._cancelled = self._cancelled or message.sqlstate == "01000"

    async def row(self, statement: str, *parameters: object, within_s: float | None = None) -> asyncpg.Record | None:
        """Carry out a statement, and return its only row, or None. One of TROUBLE: whether it is done is unknown.

        ``within_s``: if it takes longer, the connection is dropped. (A timeout of asyncpg's would have the database
        cancel the statement, by another connection.)
        """
        timer = None if within_s is None else asyncio.get_running_loop().call_later(within_s, self.drop)
        try:
            row = await self.connection.fetchrow(statement, *parameters)
        except AttributeError as error:
            if not self.connection.is_closed():
                raise
            # asyncpg meets its own end if that came between two of its steps.
            raise ConnectionError("the connection has ended") from error
        finally:
            if timer is not None:
                timer.cancel()
        self.believe()
        return row

    def believe(self) -> None:
        """Raise Cancelled unless all that it was asked is done for good."""
        if self._cancelled:
            raise Cancelled("the wait for the synchronous standby was cancelled")

    def drop(self) -> None:
        """End it at once, without a word; whoever waits for it gets one of TROUBLE."""
        self.connection.terminate()


async def connect(url: str, name: str) -> Link:
    """Connect to that of the hosts that may write, each of which has CONNECT_S.

    ``name`` is what the database shows as the application's. One of TROUBLE: none can be had now. JournalRefused:
    that will not change by itself.
    """
    trouble: Exception | None = None
    refusal: JournalRefused | None = None
    with _refusing(url):
        hosts = _hosts(url)
    for one in hosts:
        try:
            with _refusing(one):
                connection = await asyncpg.connect(
                    one,
                    timeout=CONNECT_S,
                    target_session_attrs=SessionAttribute.read_write,
                    server_settings=_SESSION | {"application_name": name},
                )
        except JournalRefused as error:
            refusal = error
        except TROUBLE as error:
            trouble = error
        else:
            _notice_dead_hosts(connection)
            return Link(connection)
    if trouble is None:
        assert refusal is not None
        raise refusal
    if refusal is not None:  # the others may do by and by
        raise ConnectionError(str(refusal)) from trouble
    raise trouble


def _notice_dead_hosts(connection: asyncpg.Connection[asyncpg.Record]) -> None:
    sock = cast(Any, connection)._transport.get_extra_info("socket")  # noqa: SLF001 - there is no other way to it
    if sock.family != socket.AF_UNIX:
        for level, option, value in _KEEPALIVE:
            sock.setsockopt(level, option, value)


def _split(url: str) -> tuple[SplitResult, str, list[str]]:
    """The URL's parts, the user with the password, and the hosts. ValueError: there is no telling them apart."""
    parts = urlsplit(url)
    who, _, places = parts.netloc.rpartition("@")
    hosts = places.split(",")
    if "@" in f"{who}{parts.path}{parts.fragment}" or not all(map(_PLACE.fullmatch, hosts)):
        raise ValueError("a character is not encoded")
    return parts, who, hosts


def _hosts(url: str) -> list[str]:
    """The same URL for each host that it names: a host that does not answer must not use up the time of the others."""
    parts, who, hosts = _split(url)
    at = "@" if who else ""
    return [urlunsplit(parts._replace(netloc=f"{who}{at}{host}")) for host in hosts]


def shown(url: str) -> str:
    """The URL without the password, for people; hardly anything of one in which the password may be anywhere."""
    try:
        parts, who, hosts = _split(url)
    except ValueError:
        parts = None
    if parts is None or "@" in parts.query:
        scheme, colon, _ = url.partition("://")
        return f"{scheme if colon else ''}://..."
    user = who.partition(":")[0]
    return f"{parts.scheme}://{user}{'@' if who else ''}{','.join(hosts)}{parts.path}"


def name_of(node: str) -> str:
    """What the database shows as the name of the program that a server is; it cuts off what is longer."""
    return f"beanlite {node}".encode("ascii", "replace").decode()[:63]


@contextmanager
def _refusing(url: str) -> Iterator[None]:
    """Turn what only the operator can mend into JournalRefused."""
    try:
        yield
    except (
        asyncpg.InvalidAuthorizationSpecificationError,  # with a wrong password
        asyncpg.InvalidCatalogNameError,
        asyncpg.ClientConfigurationError,
        asyncpg.InsufficientPrivilegeError,
        ssl.CertificateError,  # which is a ValueError, too
    ) as error:
        raise JournalRefused(f"{shown(url)} can't be used: {said(error)}") from error
    except ValueError:  # which may say the password
        raise JournalRefused(
            f"{shown(url)} is no address of a database; what is special in its password has to be percent-encoded"
        ) from None


def said(error: BaseException) -> str:
    """What an error says, in one line."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return " ".join(str(error).split())[:200] or type(error).__name__


async def close(link: Link) -> None:
    """End a connection in an orderly way, if it can be had at once."""
    try:
        async with asyncio.timeout(CONNECT_S):
            await link.connection.close()
    except TROUBLE:
        link.drop()
