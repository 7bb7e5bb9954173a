"""The server: its start, its signals, and its stop."""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from beanlite import __version__, is_compiled
from beanlite.beside.beside import Beside
from beanlite.errors import ListenError, is_ours
from beanlite.host import log, signals
from beanlite.host.clock import Clock
from beanlite.journal.base import Journal
from beanlite.net.certificates import Certificates
from beanlite.net.listener import BACKLOG, Listener
from beanlite.server.access_file import read_access
from beanlite.server.policies import begin_with
from beanlite.server.reload import Reloads
from beanlite.server.wiring import Wiring, make_parts, wire
from beanlite.settings.config import Settings
from beanlite.standby.forward import Forwarder

if TYPE_CHECKING:
    from beanlite.metrics.vitals import Vitals

# How many connections are accepted in one go. Those to be refused take up file descriptors, too, until they are closed.
ACCEPTED_AT_ONCE: Final = 4


async def _accept(
    listener: Listener,
    clients: list[socket.socket],
    new_connection: Callable[[], asyncio.Protocol],
    to: list[asyncio.Server],
) -> ListenError | None:
    """Serve the accepted sockets in ``clients``, and accept others with servers that are added to ``to``.

    Returns the error if it can't listen.
    """
    loop = asyncio.get_running_loop()
    for sock in clients:
        with contextlib.suppress(OSError):  # the client has gone
            await loop.connect_accepted_socket(new_connection, sock)
    try:
        for sock in listener.sockets:
            to.append(await loop.create_server(new_connection, sock=sock, backlog=ACCEPTED_AT_ONCE))
            sock.listen(BACKLOG)  # the length of the kernel's queue; asyncio's backlog is how many it accepts at a time
    except OSError as error:
        return ListenError(f"can't listen on {listener.address}: {error.strerror}")
    return None


class Server:
    """A server in a running event loop."""

    def __init__(
        self,
        settings: Settings,
        listener: Listener,
        journal: Journal,
        clock: Clock,
        load: Callable[[], Settings] | None = None,
        forwarder: Forwarder | None = None,
        certificates: Certificates | None = None,
    ) -> None:
        """``load`` reads the settings again. ``certificates``: those of the listener for TLS, if there is one."""
        self.loop = asyncio.get_running_loop()
        self._settings = settings
        self._reloads = Reloads(settings, load or (lambda: settings))
        self._listener = listener
        self._forwarder = forwarder
        self._beside = Beside(listener.sockets)
        self._oddities = log.Seldom()
        self._clock = clock
        self._stopped = asyncio.Event()
        self._failure: Exception | None = None
        access = None if settings.access is None else read_access(settings.access)
        self.parts = make_parts(self.loop, settings, journal, clock, self._beside, access, certificates)
        self.wiring: Wiring | None = None
        """None until the journal is recovered."""
        self._vitals = self._make_vitals()

    async def serve(self) -> None:
        """Run from start to stop. Raises BeanliteError for a failure that the operator has to know about."""
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
        if not await self.parts.journal.recover(self.parts.engine, self._clock, self._stopped):
            if self._forwarder is not None:
                await self._forwarder.close()
            if self._failure is not None:
                raise self._failure  # a bug, found by ``_on_loop_error``
            log.info("stopped during the start")
            return
        self.wiring = wiring = wire(
            loop=self.loop,
            parts=self.parts,
            clock=self._clock,
            latencies=None if self._vitals is None else self._vitals.latencies,
            tell_failure=self._stop_for,
        )
        if self._vitals is not None:
            self._vitals.recovered = True
        await self._beside.back_up(self._settings)
        begin_with(self._settings.policies, self.parts.service, wiring.turns.now())
        wiring.turns.follow_up(wiring.turns.now())
        clients = [] if self._forwarder is None else self._forwarder.hand_over()
        servers: list[asyncio.Server] = []
        unheard = await _accept(self._listener, clients, wiring.new_connection, servers)
        handshakes = self.parts.handshakes
        if unheard is None and handshakes is not None and self._listener.tls is not None:
            handshakes.open(wiring.new_connection)
            unheard = await _accept(self._listener.tls, [], handshakes.new, servers)
        if unheard is None:
            await self._until_stopped(wiring)
        await self._stop(wiring, servers)
        if unheard is not None:
            raise unheard

    async def _until_stopped(self, wiring: Wiring) -> None:
        log.info(
            "started",
            version=__version__,
            compiled=is_compiled(),
            max_memory=self.parts.engine.memory.max_bytes,
            max_memory_from=self.parts.memory_limit.source if self._settings.max_memory is None else "max_memory",
            address=self._listener.address,
            **({} if self._listener.tls is None else {"tls": self._listener.tls.address}),
        )
        wiring.supervised.begin()
        self._beside.show(self._settings)
        reloading = self.loop.create_task(
            self._reloads.serve(self.parts, self._beside, wiring.turns.now, self._stop_for)
        )
        await self._stopped.wait()
        wiring.supervised.end()
        reloading.cancel()

    def _make_vitals(self) -> "Vitals | None":
        """Make what reports health and metrics, if the settings ask for it."""
        if self._settings.health is None:
            return None
        from beanlite.metrics.vitals import Vitals  # noqa: PLC0415 - the start is faster without it

        return Vitals(self._settings, self.parts.service, self.parts.journal, self._clock, self._forwarder)

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
            self._reloads.want(stands_by=self.parts.journal.stands_by)

    def _drain(self) -> None:
        log.info("draining: puts are refused")
        self.parts.engine.admission.drain()

    def _stop_for(self, failure: Exception) -> None:
        """Acknowledge nothing more, and stop because of this failure."""
        if self._failure is None:
            self._failure = failure
        if self.wiring is not None:
            self.wiring.group_commit.close()  # otherwise a state that a bug left half changed could still be written
        self._stopped.set()

    def _on_loop_error(self, _loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        """Handle what asyncio would only log: trouble with a peer or the network is logged, a bug ends the server."""
        error = context.get("exception")
        if not isinstance(error, Exception) or (isinstance(error, (OSError, MemoryError)) and not is_ours(error)):
            self._oddities.warning(str(context.get("message")), error=error)
        else:
            self._stop_for(error)

    async def _stop(self, wiring: Wiring, servers: list[asyncio.Server]) -> None:
        engine, roster = self.parts.engine, self.parts.roster
        for server in servers:
            server.close()
        if self.parts.handshakes is not None:
            self.parts.handshakes.close()
        roster.close()
        self._beside.end()
        await self._settle(wiring)
        wiring.turns.follow_up(wiring.turns.now())
        engine.begin_stop()
        for client in roster.connections:  # otherwise they would be given jobs that others leave, and carry on
            engine.clients.stop_waiting(client)
        await roster.part_from_all()
        await self._settle(wiring)  # the jobs that the connections had reserved are ready again
        wiring.group_commit.close()  # what time still brings is done by the next start: nobody has been told of it
        await wiring.fetcher.close()
        await self._beside.wait()  # otherwise a process that still reads the file would leave a -wal behind
        trouble = await self.parts.journal.close()
        log.info("stopped", jobs=len(engine.jobs), **({} if trouble is None else {"left": trouble}))

    async def _settle(self, wiring: Wiring) -> None:
        """Store and acknowledge everything. Raises the failure, if there is one."""
        if self._failure is None:
            await wiring.group_commit.flush()
        if self._failure is not None:
            raise self._failure
