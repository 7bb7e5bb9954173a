"""The server: its parts and how they are wired to each other, its signals, its start and its stop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import resource
import signal
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from beanlite import __version__, is_compiled
from beanlite.beside.beside import Beside, check_page
from beanlite.commit.crossings import Crossings
from beanlite.commit.fetch import Fetcher
from beanlite.commit.group import GroupCommit
from beanlite.core.engine import Engine
from beanlite.core.events import Event
from beanlite.core.job import SECOND_NS
from beanlite.core.tube import Client
from beanlite.errors import ListenError, is_ours
from beanlite.host import log, signals
from beanlite.host.clock import Clock
from beanlite.host.loop import loop_factory, run_loop
from beanlite.host.machine import share_one_heap
from beanlite.journal.base import Journal
from beanlite.journal.memory import MemoryJournal
from beanlite.net.addresses import Addresses
from beanlite.net.buffers import Buffers
from beanlite.net.connection import Connection, Host
from beanlite.net.debug import LoggedConnection
from beanlite.net.feed import Feed
from beanlite.net.listener import BACKLOG, Listener, advertised, become, open_listener, room_for
from beanlite.net.operators import Operators
from beanlite.net.refusals import Refusals
from beanlite.net.roster import Roster
from beanlite.net.turns import Turns
from beanlite.protocol.commands import new_commands
from beanlite.protocol.operators.commands import new_operator_commands
from beanlite.protocol.session import Service
from beanlite.protocol.stats import Facts
from beanlite.server.reload import Parts, Reloads, bound
from beanlite.server.supervised import Supervised
from beanlite.standby.forward import Forwarder, make_forwarder

if TYPE_CHECKING:
    from beanlite.metrics.vitals import Vitals
    from beanlite.settings.config import Settings

# How many connections are accepted in one go. Those to be refused take up file descriptors, too, until they are closed.
ACCEPTED_AT_ONCE: Final = 4
# Writing a larger body takes so long that other clients may have to wait for more than 0.1 s for their commits.
UNNOTICED_BYTES: Final = 8 << 20


def run(settings: Settings, load: Callable[[], Settings]) -> int:
    """Serve until stopped; returns 0. Raises BeanliteError if the start fails or, later, the journal.

    ``load`` reads the settings again.
    """
    room = room_for(settings.max_connections)
    if room < settings.max_connections:
        log.warning(
            "the limit of open files allows fewer connections", max_connections=settings.max_connections, room=room
        )
        settings = settings.model_copy(update={"max_connections": room})
    if settings.max_job_size > UNNOTICED_BYTES:
        log.warning(
            "bodies larger than this hold up other clients", bytes=UNNOTICED_BYTES, max_job_size=settings.max_job_size
        )
    share_one_heap()
    listener = open_listener(settings)
    try:
        check_page(settings, listener.sockets)
        new_loop = loop_factory()
        clock = Clock()
        # Before ``become``, since the other user may not be allowed to read the modules that are imported here.
        forwarder = make_forwarder(settings, listener)
        journal = make_journal(settings, listener, clock, forwarder)
        if settings.user is not None:
            become(settings.user)
        run_loop(new_loop, lambda: Server(settings, listener, journal, clock, load, forwarder).serve())
    finally:
        listener.close()
    return 0


async def _accept(
    listener: Listener, come: list[socket.socket], new_connection: Callable[[], Connection], to: list[asyncio.Server]
) -> ListenError | None:
    """Serve the accepted sockets in ``come``, and accept others with servers that are added to ``to``.

    Returns the error if it can't listen.
    """
    loop = asyncio.get_running_loop()
    for sock in come:
        with contextlib.suppress(OSError):  # the client has gone
            await loop.connect_accepted_socket(new_connection, sock)
    try:
        for sock in listener.sockets:
            to.append(await loop.create_server(new_connection, sock=sock, backlog=ACCEPTED_AT_ONCE))
            sock.listen(BACKLOG)  # the length of the kernel's queue; asyncio's backlog is how many it accepts at a time
    except OSError as error:
        return ListenError(f"can't listen on {listener.address}: {error.strerror}")
    return None


def make_journal(settings: Settings, listener: Listener, clock: Clock, forwarder: Forwarder | None = None) -> Journal:
    """Make the journal that the settings ask for; it is not open until ``Journal.recover``."""
    if not settings.journal:
        return MemoryJournal()
    if settings.database is not None:
        from beanlite.journal.postgres.journal import Place, PostgresJournal  # noqa: PLC0415 - it may not be installed

        node = settings.node or f"{platform.node()} {listener.address}"
        url = settings.database.get_secret_value()
        place = Place(url, node, advertised(settings, listener), settings.lease_s, settings.require_sync)
        stand_by = listener.stand_by if forwarder is None else forwarder.stand_by
        return PostgresJournal(place, clock.since_boot_ns, stand_by)
    # Imported only here, since --no-journal starts faster without them.
    from beanlite.journal.sqlite.served.history import HistoryBounds  # noqa: PLC0415
    from beanlite.journal.sqlite.served.journal import SqliteJournal  # noqa: PLC0415

    history = HistoryBounds(settings.history_s, settings.history_bytes, settings.history_bodies)
    return SqliteJournal(
        settings.db, settings.fsync, settings.fsync_interval_ms, settings.max_job_size, listener.address, history
    )


class Server:
    """A server, run by an event loop."""

    def __init__(
        self,
        settings: Settings,
        listener: Listener,
        journal: Journal,
        clock: Clock,
        load: Callable[[], Settings] | None = None,
        forwarder: Forwarder | None = None,
    ) -> None:
        """``load`` reads the settings again."""
        self._settings = settings
        self._reloads = Reloads(settings, load or (lambda: settings))
        self._listener = listener
        self._forwarder = forwarder
        self._beside = Beside(listener.sockets)
        self._instance = os.urandom(8).hex()
        self._oddities = log.Seldom()
        self._clock = clock
        self._started_ns = clock.since_boot_ns()
        self._failure: Exception | None = None
        self._journal = journal
        self.engine = Engine()
        self._refusals = Refusals()
        self._memory_source = bound(settings, self.engine, self._refusals, fetches=journal.fetches)
        if settings.history is not None and settings.journal:
            self.engine.ledger.start_recording()
        self.service = Service(
            self.engine,
            settings.max_job_size,
            self._facts,
            new_commands(),
            new_operator_commands(),
            self._refusals.note,
            self._buffered,
            self._watch,
            self._clock.utc_s,
            journaled=not journal.immediate,
        )
        self._vitals = self._make_vitals()

    async def serve(self) -> None:
        """Run from start to stop. Raises BeanliteError for a failure that the operator has to know about."""
        self.loop = asyncio.get_running_loop()
        self._stopped = asyncio.Event()
        self.loop.set_exception_handler(self._on_loop_error)
        self._hear_signals()
        if self._vitals is None:
            await self._serve()
            return
        await self._vitals.open(self._stopped)
        try:
            await self._serve()
        finally:
            self._vitals.close()

    async def _serve(self) -> None:
        if not await self._journal.recover(self.engine, self._clock, self._stopped):
            if self._forwarder is not None:
                await self._forwarder.close()
            if self._failure is not None:
                raise self._failure  # a bug, found by ``_on_loop_error``
            log.info("stopped during the start")
            return
        self._wire()
        if self._vitals is not None:
            self._vitals.recovered = True
        await self._beside.back_up(self._settings)
        self.turns.follow_up(self.turns.now())
        come = [] if self._forwarder is None else self._forwarder.hand_over()
        servers: list[asyncio.Server] = []
        unheard = await _accept(self._listener, come, self._new_connection, servers)
        if unheard is None:
            await self._until_stopped()
        await self._stop(servers)
        if unheard is not None:
            raise unheard

    async def _until_stopped(self) -> None:
        log.info(
            "started",
            version=__version__,
            compiled=is_compiled(),
            max_memory=self.engine.memory.max_bytes,
            max_memory_from=self._memory_source,
            address=self._listener.address,
        )
        self._supervised.begin()
        self._beside.show(self._settings)
        reloading = self.loop.create_task(self._reloads.serve(self._parts, self._stop_for))
        await self._stopped.wait()
        self._supervised.end()
        reloading.cancel()

    def _new_connection(self) -> Connection:
        return LoggedConnection(self._host) if log.is_debug() else Connection(self._host)

    def _wire(self) -> None:
        """Make the parts that need the loop and the journal, and connect them to each other."""
        self.group_commit = GroupCommit(
            self.loop,
            self.engine,
            self._journal,
            self._stop_for,
            self._may_have_room,
            self._happened,
            None if self._vitals is None else self._vitals.latencies,
        )
        settings = self._settings
        addresses = Addresses(
            settings.connections_per_address, spare_local=settings.max_connections_per_address is None
        )
        self.roster = Roster(
            self.loop, settings.max_connections, addresses, Operators(settings.operators), self._refusals
        )
        self._parts = Parts(
            self.engine, self.service, self._journal, self._refusals, addresses, self.roster, self._beside.back_up
        )
        self._supervised = Supervised(self.loop, self.engine, self._journal, self.group_commit)
        self.feed = Feed(self.loop, self.engine.ledger, self.roster.connections, self._clock.utc_s)
        self.turns = Turns(self.loop, self.engine, self.group_commit, self._clock, self.roster.wake)
        self._crossings = Crossings(self.engine.memory)
        self.fetcher = Fetcher(self.loop, self.engine, self._journal, self._stop_for)
        self._host = Host(
            self.turns,
            Buffers(self.engine.memory, self.engine.admission, self._refusals),
            self.group_commit,
            self.service,
            self.roster.admit,
            self.roster.forget,
            self.roster.part,
            self.fetcher.fetch,
            self.roster.spare_others,
        )

    def _make_vitals(self) -> Vitals | None:
        """Make what reports health and metrics, if the settings ask for it."""
        if self._settings.health is None:
            return None
        from beanlite.metrics.vitals import Vitals  # noqa: PLC0415 - the start is faster without it

        forwarder = self._forwarder
        return Vitals(self._settings, self.engine, self.service, self._journal, self._clock, self._facts, forwarder)

    def _buffered(self, client: Client) -> int:
        """The number of bytes that are counted as buffered for a client."""
        connection = self.roster.connections.get(client)
        return 0 if connection is None else self._host.buffers.amounts.get(connection, 0)

    def _watch(self, client: Client, tube: bytes | None, what: list[str] | None, now_ns: int) -> None:
        self.feed.watch(client, tube, what, now_ns)

    def _happened(self, events: list[Event]) -> None:
        self.feed.tell(events)

    def _may_have_room(self) -> None:
        self.turns.resume_soon()
        self._crossings.look()

    # -- start and stop

    def _hear_signals(self) -> None:
        for signum in signals.STOPS:
            self.loop.add_signal_handler(signum, self._stopped.set)
        if signal.getsignal(signals.RELOADS) is not signal.SIG_IGN:  # which it is under nohup
            self.loop.add_signal_handler(signals.RELOADS, self._hang_up_or_reload, signals.has_terminal())
        self.loop.add_signal_handler(signals.DRAINS, self._drain)
        signals.hear()

    def _hang_up_or_reload(self, had_terminal: bool) -> None:  # noqa: FBT001 - a signal's handler
        """Handle SIGHUP: stop if it came because the terminal was closed, otherwise reload the settings."""
        if had_terminal and not signals.has_terminal():
            self._stopped.set()
        else:
            self._reloads.want(stands_by=self._journal.stands_by)

    def _drain(self) -> None:
        log.info("draining: puts are refused")
        self.engine.admission.drain()

    def _stop_for(self, failure: Exception) -> None:
        """Acknowledge nothing more, and stop because of this failure."""
        if self._failure is None:
            self._failure = failure
        if hasattr(self, "group_commit"):
            self.group_commit.close()  # otherwise a state that a bug left half changed could still be written
        self._stopped.set()

    def _on_loop_error(self, _loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        """Handle what asyncio would only log: trouble with a peer or the network is logged, a bug ends the server."""
        error = context.get("exception")
        if not isinstance(error, Exception) or (isinstance(error, (OSError, MemoryError)) and not is_ours(error)):
            self._oddities.warning(str(context.get("message")), error=error)
        else:
            self._stop_for(error)

    async def _stop(self, servers: list[asyncio.Server]) -> None:
        for server in servers:
            server.close()
        self.roster.close()
        self._beside.end()
        await self._settle()
        self.turns.follow_up(self.turns.now())
        self.engine.begin_stop()
        for client in self.roster.connections:  # otherwise they would be given jobs that others leave, and carry on
            self.engine.clients.stop_waiting(client)
        await self.roster.part_from_all()
        await self._settle()  # the jobs that the connections had reserved are ready again
        await self.fetcher.close()
        await self._beside.ended()  # otherwise a process that still reads the file would leave a -wal behind
        left = await self._journal.close()
        log.info("stopped", jobs=len(self.engine.jobs), **({} if left is None else {"left": left}))

    async def _settle(self) -> None:
        """Store and acknowledge everything. Raises the failure, if there is one."""
        if self._failure is None:
            await self.group_commit.flush()
        if self._failure is not None:
            raise self._failure

    def _facts(self) -> Facts:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        system = platform.uname()
        journal = self._journal.facts()
        return Facts(
            pid=os.getpid(),
            version=__version__,
            user_s=usage.ru_utime,
            system_s=usage.ru_stime,
            uptime_s=(self._clock.since_boot_ns() - self._started_ns) // SECOND_NS,
            instance=self._instance,
            hostname=system.node,
            os=system.version,
            platform=system.machine,
            journaled=journal.keeps_jobs,
            batches=self.engine.ledger.stored_batch if journal.keeps_jobs else 0,
            records=journal.records,
            wal_bytes=journal.log_bytes,
            wal_bytes_max=journal.log_bytes_max,
            refused=self._refusals.counts,
            backup_succeeded_at=self._beside.backup_succeeded_at,
            backup_failed_at=self._beside.backup_failed_at,
        )
