"""The server: listeners, the loop's one timer, signals, start and stop."""

from __future__ import annotations

import asyncio
import os
import platform
import resource
import signal
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from beanlite import __version__, is_compiled, log, signals
from beanlite.clock import utc_clock
from beanlite.commit.group import GroupCommit
from beanlite.core.engine import Engine
from beanlite.core.job import SECOND_NS
from beanlite.core.timers import NEVER_NS
from beanlite.errors import is_ours, place_of, spares_others
from beanlite.journal.base import Journal
from beanlite.journal.memory import MemoryJournal
from beanlite.net.connection import Connection
from beanlite.net.listener import BACKLOG, Listener, become, open_listener, room_for
from beanlite.protocol.commands import new_commands
from beanlite.protocol.session import Service
from beanlite.protocol.stats import Facts

if TYPE_CHECKING:
    from beanlite.config import Settings
    from beanlite.core.tube import Client

TIMER_MAX_S: Final = 3600.0
ACCEPTED_AT_ONCE: Final = 4  # connections, before those that are refused are closed: they take descriptors, too
FAREWELL_S: Final = 2.0  # how long clients have to read their last replies at the stop
TURN_BYTES: Final = 1 << 16  # some thousand commands, or 10 ms
TURN_NS: Final = 2_000_000  # after which those who have much to do go on in the next


def run(settings: Settings) -> int:
    """Serve until told to stop; returns 0. BeanliteError: the start failed, or the disk did."""
    room = room_for(settings.max_connections)
    if room < settings.max_connections:
        log.warning(
            "the limit of open files allows fewer connections", max_connections=settings.max_connections, room=room
        )
        settings = settings.model_copy(update={"max_connections": room})
    listener = open_listener(settings)
    try:
        new_loop = _new_loop()
        journal = make_journal(settings)  # before the rights are given up that reading the installation may take
        if settings.user is not None:
            become(settings.user)
        with asyncio.Runner(loop_factory=new_loop) as runner:
            try:
                runner.run(Server(settings, listener, journal).serve())
            finally:
                signals.hold()  # for good: the loop's end gives them their defaults back
    finally:
        listener.close()
    return 0


def _new_loop() -> Callable[[], asyncio.AbstractEventLoop]:
    """Uvloop's where it is to be had: some 20 % faster."""
    try:
        from uvloop import new_event_loop  # noqa: PLC0415
    except ImportError:
        return asyncio.new_event_loop
    return new_event_loop


def make_journal(settings: Settings) -> Journal:
    """The journal that the settings ask for; it is opened by ``Journal.recover``."""
    if not settings.journal:
        return MemoryJournal()
    from beanlite.journal.sqlite.journal import SqliteJournal  # noqa: PLC0415 - --no-journal starts faster without it

    return SqliteJournal(settings.db, settings.fsync, settings.fsync_interval_ms, settings.max_job_size)


def _is_rare(times: int) -> bool:
    """Whether it is the 1st, 2nd, 4th, 8th … time: a flood must not fill the log."""
    return times & (times - 1) == 0


class Server:
    """A server in its loop."""

    def __init__(self, settings: Settings, listener: Listener, journal: Journal) -> None:
        self._settings = settings
        self._listener = listener
        self._started_s = time.monotonic()
        self._instance = os.urandom(8).hex()
        self._connections: dict[Client, Connection] = {}
        self._going_on: deque[Connection] = deque()
        self._go_on_due = False
        self._refused = 0
        self._oddities = log.Seldom()
        self._bugs: dict[str, int] = {}
        """How often clients have met bugs of ours, by the place of each."""
        self._clock = utc_clock()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = NEVER_NS
        self.turn_ns = 0
        """The time as last read in this turn of the loop; 0: not yet."""
        self.turn_until_ns = 0
        """When it has been long enough for those who send much at once."""
        self.turn_bytes = 0
        """How much more may be received before it has to be read again."""
        self._behind = False
        """More is due than one tick does: the timer goes on with it, once in each turn of the loop."""
        self._failure: Exception | None = None
        self._journal = journal
        self.engine = Engine()
        self._timers = self.engine.timers
        self.service = Service(
            self.engine, settings.max_job_size, self._facts, new_commands(), journaled=settings.journal
        )

    async def serve(self) -> None:
        """From start to stop. BeanliteError: a failure that the operator has to know of."""
        self.loop = asyncio.get_running_loop()
        self._stopped = asyncio.Event()
        self.loop.set_exception_handler(self._see_bug)
        self._hear_signals()
        if not await self._journal.recover(self.engine, self._clock(), self._stopped):
            log.info("stopped before the start was over")
            return
        self.barrier = GroupCommit(self.loop, self.engine, self._journal, self._stop_for, self.see_going_on)
        self.follow_up(self.now())
        servers = []
        for sock in self._listener.sockets:
            servers.append(await self.loop.create_server(lambda: Connection(self), sock=sock, backlog=ACCEPTED_AT_ONCE))
            sock.listen(BACKLOG)  # this queue is the kernel's; asyncio's own means how many it takes from it at a time
        log.info("started", version=__version__, compiled=is_compiled(), address=self._listener.address)
        await self._stopped.wait()
        await self._stop(servers)

    # -- what connections ask of it

    def now(self) -> int:
        """The time, what is due by then done; a slice of it if that is a lot. The turn's end will follow it up.

        Commands needn't ask for themselves until ``turn_bytes`` are used up. With the clock read and followed up at
        each command, 50 clients in put, reserve, delete had 0.94 of the speed.
        """
        now_ns = self._clock()
        if not self.turn_ns:
            self.loop.call_soon(self._end_turn)
            self.turn_until_ns = now_ns + TURN_NS
        self.turn_ns = now_ns
        self.turn_bytes = TURN_BYTES
        if self._timers.next_ns <= now_ns and not self._behind:
            self.engine.tick(now_ns)
            self._behind = self._timers.next_ns <= now_ns
        return now_ns

    def _end_turn(self) -> None:
        now_ns = self.now()
        self.turn_ns = self.turn_bytes = 0
        self.follow_up(now_ns)

    def follow_up(self, now_ns: int) -> None:
        """After anything has changed: wake who waited for it, have it written, set the timer."""
        ledger = self.engine.ledger
        self.wake(now_ns)
        if not self.barrier.deferring and (ledger.deferred or ledger.changed or ledger.pauses):
            self.barrier.defer()
        if self._timers.next_ns < self._timer_ns:
            self._set_timer(now_ns)

    def admit(self, connection: Connection) -> bool:
        """Take a new connection, if there is room for one more and the server does not stop."""
        if self._stopped.is_set():
            return False
        if len(self._connections) >= self._settings.max_connections:
            self._refused += 1
            if _is_rare(self._refused):
                log.warning("connection refused", limit=self._settings.max_connections, refused=self._refused)
            return False
        self._connections[connection.session.client] = connection
        return True

    def spare_others(self, bug: Exception) -> None:
        """Log a bug that one client has met, and that has left alone what others share; raise any other."""
        if not spares_others(bug):
            raise bug
        place = place_of(bug)
        times = self._bugs[place] = self._bugs.get(place, 0) + 1
        if _is_rare(times):
            log.error("a client has met a bug of ours, and is closed", exc=bug, place=place, times=times)

    def let_go(self, client: Client) -> None:
        """A client has gone: what it had not finished is for others. Nothing to do if that was known."""
        if not client.gone:
            self.engine.clients.disconnect(client, self.now())

    def forget(self, connection: Connection) -> None:
        """A connection is closed."""
        client = connection.session.client
        self._connections.pop(client, None)
        self.let_go(client)

    def wake(self, now_ns: int) -> None:
        """Tell those whose waiting is over."""
        clients = self.engine.clients
        while clients.woken:
            for client, outcome in clients.take_woken():
                connection = self._connections.get(client)
                if connection is not None:  # else it has just gone, and its jobs with it
                    connection.wake(outcome, now_ns)

    def go_on_later(self, connection: Connection) -> None:
        """A connection has more to do than is done in one go: it goes on in the next turn, or in one after that."""
        self._going_on.append(connection)
        self.see_going_on()

    def see_going_on(self) -> None:
        """Have those go on who have more to do, if there are any."""
        if self._going_on and not self._go_on_due:
            self._go_on_due = True
            self.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        """Serve those who have more to do: until the turn has been long enough, or the batch is full."""
        self._go_on_due = False
        until_ns = self.now() + TURN_NS
        for _ in range(len(self._going_on)):
            if self.barrier.full:
                return  # when the batch has been taken, it calls see_going_on
            self._going_on.popleft().go_on()
            if self.barrier.syncing:
                self.barrier.poll()
            if self.now() > until_ns:
                break
        self.see_going_on()

    # -- time

    def _set_timer(self, now_ns: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ns = self._timers.next_ns
        delay_s = max(0.0, min((self._timer_ns - now_ns) / SECOND_NS, TIMER_MAX_S))
        self._timer = self.loop.call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._timer_ns = NEVER_NS
        self._behind = False
        self.follow_up(self.now())

    # -- start and stop

    def _hear_signals(self) -> None:
        for signum in signals.STOPS:
            if signum != signal.SIGHUP or signal.getsignal(signum) is not signal.SIG_IGN:  # it is under nohup
                self.loop.add_signal_handler(signum, self._stopped.set)
        self.loop.add_signal_handler(signals.DRAINS, self._drain)
        signals.hear()

    def _drain(self) -> None:
        log.info("draining: puts are refused from now on")
        self.engine.drain()

    def _stop_for(self, failure: Exception) -> None:
        """Acknowledge nothing more, and stop."""
        if self._failure is None:
            self._failure = failure
        if hasattr(self, "barrier"):
            self.barrier.close()  # or what a bug has left half changed could still be written
        self._stopped.set()

    def _see_bug(self, _loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        """What asyncio would only log: a peer's or the network's doing is a line, our own bug ends the server."""
        error = context.get("exception")
        if not isinstance(error, Exception) or (isinstance(error, OSError) and not is_ours(error)):
            self._oddities.warning(str(context.get("message")), error=error)
        else:
            self._stop_for(error)

    async def _stop(self, servers: list[asyncio.Server]) -> None:
        for server in servers:
            server.close()
        for connection in self._connections.values():
            connection.listen_no_more()  # or what there is to store might never end
        await self._settle()
        self.follow_up(self.now())
        self.engine.begin_stop()
        for client in self._connections:
            self.engine.clients.stop_waiting(client)  # or they would be given what others leave, and resume unseen
        for connection in list(self._connections.values()):
            connection.stop()
        deadline_s = time.monotonic() + FAREWELL_S
        while self._connections and time.monotonic() < deadline_s:  # noqa: ASYNC110 - once, at the end
            await asyncio.sleep(0.01)
        await self._settle()  # what the connections had reserved is ready again
        left = await self._journal.close()
        log.info("stopped", jobs=len(self.engine.jobs), **({} if left is None else {"left": left}))

    async def _settle(self) -> None:
        """Have everything stored and acknowledged."""
        if self._failure is None:
            await self.barrier.flush()
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
            uptime_s=int(time.monotonic() - self._started_s),
            instance=self._instance,
            hostname=system.node,
            os=system.version,
            platform=system.machine,
            journaled=journal.keeps_jobs,
            batches=self.engine.ledger.stored_batch if journal.keeps_jobs else 0,
            records=journal.records,
            wal_bytes=journal.log_bytes,
            wal_bytes_max=journal.log_bytes_max,
        )
