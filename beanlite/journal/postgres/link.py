"""Connections to the database that can write, and what their errors mean."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime
from typing import Any, Final, NamedTuple, cast

import asyncpg
from asyncpg.connect_utils import SessionAttribute

from beanlite.client.plain import in_plain_words
from beanlite.errors import JournalRefused
from beanlite.host import log
from beanlite.journal.postgres.address import hosts_of, public_url

# The time limit for connecting to one of the hosts.
CONNECT_S: Final = 2.0
# A statement that has been unanswered for this long is checked on, repeatedly, over another connection.
LOOK_AFTER_S: Final = 1.0
# PostgreSQL does not notice that a client has given up: without this, the processes of such clients would pile up while
# another program holds the lock.
NO_LOCKS: Final = "SELECT set_config('lock_timeout', '100ms', false)"
PATIENTLY: Final = "SELECT set_config('lock_timeout', '0', false)"
# The application names of servers begin with this.
OURS: Final = "beanlite "
_oddities: Final = log.Seldom()
_old_primaries: Final = log.Seldom()
_HISTORY: Final = """
    SELECT system_identifier, ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint,
           pg_postmaster_start_time()
    FROM pg_control_system()
"""
# The settings of each session. A commit has to wait for the synchronous standby, whatever the database's default is; if
# that wait is cancelled, only a warning says so. What another session has just committed has to be seen. Rows are
# always found by their key, even when the planner believes that the table is empty. Of what the URL sets the encoding
# would be believed as well, and a note may have any character.
_SESSION: Final = {
    "client_encoding": "UTF8",
    "synchronous_commit": "on",
    "client_min_messages": "warning",
    "default_transaction_isolation": "read committed",
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "enable_seqscan": "off",
    "jit": "off",
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
}
# Settings that not every version has, so that the start of a session can't name them.
_NO_LIMIT: Final = """
    SELECT count(set_config(name, '0', false)) FROM pg_settings
    WHERE name IN ('idle_session_timeout', 'transaction_timeout')
"""
# By default the kernel would wait a quarter of an hour for a machine that is lost.
_DEAD_MS: Final = 5000
_KEEPALIVE: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 5),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _DEAD_MS),
)
# The errors after which the connection is unusable, or after which the statement may or may not have been carried out.
# Also those that pass when the database has connections, memory or room again.
TROUBLE: Final = (
    OSError,  # includes TimeoutError
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,  # shut down, starting, cancelled
    asyncpg.InsufficientResourcesError,
    asyncpg.TransactionRollbackError,  # a deadlock with another program, which locks tables
    asyncpg.ReadOnlySQLTransactionError,  # the host has become a standby
    asyncpg.TargetServerAttributeNotMatched,
)


class Cancelled(ConnectionError):
    """The wait for the synchronous standby was cancelled: PostgreSQL reports success, but the commit may be lost."""


class Behind(ConnectionError):
    """The host accepts writes, but lacks commits: it was an asynchronous standby, or is no copy of the primary."""


class Timeline(NamedTuple):
    """Where a host's data come from: each promotion of a standby begins a new timeline, with the next number."""

    system: int
    """The same for a primary and all standbys that were made of it."""
    timeline: int


Host = tuple[int, datetime]
"""What tells a host from others, and is the same for all its addresses, until it is started again."""


class Link:
    """A connection, and whether its replies can be trusted."""

    def __init__(self, connection: asyncpg.Connection[asyncpg.Record], url: str) -> None:
        self.connection = connection
        self.url = url
        """The URL of that host alone."""
        self.pid = int(connection.get_server_pid())
        """The server process of the connection; asyncpg does not give it once the connection has ended."""
        self.told_pid = self.pid
        """The number that the connection was told at its start: that of a pooler, if there is one in between."""
        self.history: Timeline | None = None
        """None: the database does not say."""
        self.host: Host | None = None
        """None: as for ``history``."""
        self._cancelled = False
        connection.add_log_listener(self._hear)

    def _hear(self, _connection: object, message: asyncpg.PostgresLogMessage) -> None:
        # PostgreSQL has no code of its own for "canceling wait for synchronous replication", but a batch gives no cause
        # for any other warning, except that transaction ids run out.
        if message.sqlstate == "01000":
            if message.server_source_function == "GetNewTransactionId":
                _oddities.warning("database warning", text=message.message)
            else:
                self._cancelled = True

    async def row(self, statement: str, *parameters: object, within_s: float | None = None) -> asyncpg.Record | None:
        """Execute a statement, and return its only row, or None. One of TROUBLE: it may or may not have taken effect.

        ``within_s``: if the statement takes longer, the connection is dropped. (A timeout of asyncpg's would have the
        database cancel the statement, over another connection.)
        """
        with self._heeding_its_end(within_s):
            row = await self.connection.fetchrow(statement, *parameters)
        self.believe()
        return row

    async def rows(self, statement: str, *parameters: object, within_s: float | None = None) -> list[asyncpg.Record]:
        """Execute a query, and return its rows. ``within_s``, and what is raised: as for ``row``."""
        with self._heeding_its_end(within_s):
            return await self.connection.fetch(statement, *parameters)

    @contextmanager
    def _heeding_its_end(self, within_s: float | None) -> Iterator[None]:
        """Turn what asyncpg raises if the connection ends between two of its steps into a ConnectionError.

        It trips over its own state then.
        """
        timer = None if within_s is None else asyncio.get_running_loop().call_later(within_s, self.drop)
        try:
            yield
        except AttributeError as error:
            if not self.connection.is_closed():
                raise
            raise ConnectionError("the connection has ended") from error
        except asyncpg.InternalClientError as error:
            if not str(error).startswith("cannot switch to state"):  # to that of a statement, amid its end
                raise
            raise ConnectionError("the connection has ended") from error
        finally:
            if timer is not None:
                timer.cancel()

    async def glance(self, statement: str) -> asyncpg.Record | None:
        """Return the only row of a query of the lease, or None. ConnectionError: it would have to wait for a lock."""
        await self.row(NO_LOCKS, within_s=CONNECT_S)
        try:
            row = await self.row(statement, within_s=CONNECT_S)
        except asyncpg.LockNotAvailableError as error:
            raise ConnectionError("another program has locked the table lease") from error
        await self.row(PATIENTLY, within_s=CONNECT_S)
        return row

    async def learn_history(self) -> None:
        """Ask for the history and the host. Raises one of TROUBLE."""
        try:
            row = await self.row(_HISTORY, within_s=CONNECT_S)
        except TROUBLE:
            raise
        except asyncpg.PostgresError:  # what is not quite PostgreSQL may lack the functions
            return
        if row is not None:
            system, timeline, started = row
            self.history = Timeline(system, timeline)
            self.host = system, started

    def is_of_the_system(self, history: Timeline | None) -> bool:
        """Whether this host and one with that history were the same once; False if one of them does not say."""
        return self.history is not None and history is not None and self.history.system == history.system

    def is_older(self, history: Timeline | None) -> bool:
        """Whether this is an old primary, after which a host with that history was promoted."""
        if self.history is None or history is None:
            return False
        return self.is_of_the_system(history) and self.history.timeline < history.timeline

    def expect_successor(self, history: Timeline | None) -> None:
        """Raise ConnectionError if this is an old primary, after which a host with that history was promoted."""
        if self.is_older(history):
            self.warn_of_old_primary()
            raise ConnectionError(f"{public_url(self.url)} is an old primary: another was promoted after it")

    def warn_of_old_primary(self) -> None:
        """Log that it is passed over."""
        _old_primaries.warning("ignoring an old primary", database=public_url(self.url))

    def believe(self) -> None:
        """Raise Cancelled unless everything committed over this connection is known to be durable."""
        if self._cancelled:
            raise Cancelled("the wait for the synchronous standby was cancelled")

    def drop(self) -> None:
        """Close the connection abruptly; a statement that is under way raises one of TROUBLE."""
        self.connection.terminate()


Expect = Callable[[Link], Awaitable[None]]


async def connect(url: str, name: str, expect: Expect | None = None) -> Link:
    """Connect to the host that accepts writes; of several, to the one that was promoted last.

    Takes and raises what ``connect_to_all`` does.
    """
    links = await connect_to_all(url, name, expect)
    newest = newest_of(links)
    for link in links:
        if link.is_older(newest.history):
            link.warn_of_old_primary()
        if link is not newest:
            link.drop()
    return newest


async def connect_to_all(url: str, name: str, expect: Expect | None = None) -> list[Link]:
    """Connect to all hosts that accept writes, of which there is one at least.

    All are asked at the same time, and each has CONNECT_S for each answer. ``name`` is the application name that the
    database shows. ``expect`` raises one of TROUBLE if a host is to be passed over. One of TROUBLE: no such host
    answers at present; Behind if one of them was. JournalRefused: that will not change by itself.
    """
    with _refusing(url):
        hosts = hosts_of(url)
    attempts = [asyncio.ensure_future(_connect_to(one, name, expect)) for one in hosts]
    try:
        await asyncio.wait(attempts)
        return _links_of(attempts)
    except BaseException:
        await _abandon(attempts)
        raise


async def expect_newest(link: Link, url: str) -> None:
    """Ask the other hosts whether one was promoted after that of the connection. ConnectionError: one was.

    Raises as ``connect`` does.
    """
    if len(hosts_of(url)) > 1:
        newest = await connect(url, "beanlite")
        newest.drop()
        link.expect_successor(newest.history)


async def _connect_to(url: str, name: str, expect: Expect | None) -> Link:
    with _refusing(url):
        connection = await asyncpg.connect(
            url,
            timeout=CONNECT_S,
            target_session_attrs=SessionAttribute.read_write,
            server_settings=_SESSION | {"application_name": name},
        )
    _notice_dead_hosts(connection)
    link = Link(connection, url)
    try:
        await link.row(_NO_LIMIT, within_s=CONNECT_S)
        await link.learn_history()
        if expect is not None:
            await expect(link)
    except BaseException:
        link.drop()
        raise
    return link


def _links_of(attempts: Sequence[asyncio.Future[Link]]) -> list[Link]:
    """Return all connections that were made. Raises as ``connect`` does."""
    links: list[Link] = []
    trouble: Exception | None = None
    refusal: JournalRefused | None = None
    for attempt in attempts:
        try:
            links.append(attempt.result())
        except JournalRefused as error:
            refusal = error
        except (*TROUBLE, asyncpg.PostgresError) as error:
            if not isinstance(trouble, Behind):
                trouble = error
    if links:
        return links
    if trouble is None:
        assert refusal is not None
        raise refusal
    if refusal is not None and not isinstance(trouble, Behind):  # the other hosts may recover
        raise ConnectionError(str(refusal)) from trouble
    raise trouble


def newest_of(links: list[Link]) -> Link:
    """Return the connection to the host that was promoted last, or else the first."""
    newest = links[0]
    for link in links:
        if newest.is_older(link.history):
            newest = link
    return newest


async def _abandon(attempts: Sequence[asyncio.Future[Link]]) -> None:
    for attempt in attempts:
        attempt.cancel()
    await asyncio.wait(attempts)
    for attempt in attempts:
        if not attempt.cancelled() and attempt.exception() is None:
            attempt.result().drop()


def _notice_dead_hosts(connection: asyncpg.Connection[asyncpg.Record]) -> None:
    sock = cast(Any, connection)._transport.get_extra_info("socket")  # noqa: SLF001 - there is no other way to get the socket
    if sock.family != socket.AF_UNIX:
        for level, option, value in _KEEPALIVE:
            sock.setsockopt(level, option, value)


def name_of(node: str) -> str:
    """Return the application name of a server, with the characters and the length that PostgreSQL allows."""
    return re.sub("[^ -~]", "?", f"{OURS}{node}")[:63]


@contextmanager
def _refusing(url: str) -> Iterator[None]:
    """Turn errors that only the operator can mend into JournalRefused."""
    try:
        yield
    except (asyncpg.ClientConfigurationError, ssl.CertificateError) as error:  # which are also ValueErrors
        raise JournalRefused(f"{public_url(url)} can't be used: {text_of(error)}") from error
    except TROUBLE:
        raise
    except asyncpg.PostgresError as error:  # a wrong password, no such database, an unknown parameter
        raise JournalRefused(f"{public_url(url)} can't be used: {text_of(error)}") from error
    except (ValueError, OverflowError):  # the text of the former may contain the password; the latter is of a port
        raise JournalRefused(
            f"{public_url(url)} is no address of a database; what is special in its password has to be percent-encoded"
        ) from None


def text_of(error: BaseException) -> str:
    """Return the text of an error, in one line."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, asyncpg.TargetServerAttributeNotMatched):
        return "it accepts no writes"
    text = in_plain_words(error) if isinstance(error, OSError) else str(error)
    return " ".join(text.split())[:200] or type(error).__name__


@asynccontextmanager
async def beside(link: Link) -> AsyncIterator[Link]:
    """Connect to the same host, to look after a connection; statements wait for no lock. Raises as ``connect`` does."""
    other = await connect(link.url, "beanlite")
    try:
        await other.row(NO_LOCKS, within_s=LOOK_AFTER_S)
        yield other
    finally:
        other.drop()


@asynccontextmanager
async def session(url: str) -> AsyncIterator[Link]:
    """Connect for the time of a block, as no server. Raises as ``connect`` does."""
    link = await connect(url, "beanlite")
    try:
        yield link
        await close(link)
    finally:
        link.drop()


async def close(link: Link) -> None:
    """Close a connection in an orderly way if that succeeds within CONNECT_S; else drop it."""
    try:
        async with asyncio.timeout(CONNECT_S):
            await link.connection.close()
    except TROUBLE:
        link.drop()
