"""The server: what its parts are, how they know of each other, its signals, its start and its stop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import resource
import signal
import time
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Final

from beanlite import __version__, is_compiled, log, signals
from beanlite.clock import utc_clock
from beanlite.commit.group import Barrier
from beanlite.core.engine import Engine
from beanlite.errors import JournalRefused, is_ours
from beanlite.net.connection import Connection, Host
from beanlite.net.debug import LoggedConnection
from beanlite.net.listener import BACKLOG, Listener, become, open_listener, room_for
from beanlite.net.roster import FAREWELL_S, Roster
from beanlite.net.turns import Turns
from beanlite.protocol.session import Service
from beanlite.protocol.stats import Counters, Facts

if TYPE_CHECKING:
    from beanlite.config import Settings
    from beanlite.journal.sqlite import Database
    from beanlite.journal.sqlite.writer import Journal

# How many connections are accepted before those that are refused are closed: they take descriptors, too.
ACCEPTED_AT_ONCE: Final = 4
# How often the log tells how far a start is with reading its jobs.
PROGRESS_S: Final = 1.0
# How often a start that reads jobs looks whether a signal has come.
HEAR_S: Final = 0.05


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
        if settings.journal:
            import_module("beanlite.journal.sqlite.writer")  # now: another user may not be allowed to read it
        if settings.user is not None:
            become(settings.user)
        with asyncio.Runner(loop_factory=new_loop) as runner:
            try:
                runner.run(Server(settings, listener, utc_clock()).serve())
            finally:
                signals.hold()  # for good: at its end the loop restores their defaults
    finally:
        listener.close()
    return 0


def _new_loop() -> Callable[[], asyncio.AbstractEventLoop]:
    """Uvloop's where it can be had: it is faster."""
    try:
        from uvloop import new_event_loop  # noqa: PLC0415
    except ImportError:
        return asyncio.new_event_loop
    return new_event_loop


class Server:
    """A server in its loop. It has more attributes than most classes because it holds all the parts."""

    def __init__(self, settings: Settings, listener: Listener, clock: Callable[[], int]) -> None:
        """``clock`` tells the time in nanoseconds, as ``beanlite.clock`` counts it."""
        self._settings = settings
        self._listener = listener
        self._started_s = time.monotonic()
        self._instance = os.urandom(8).hex()
        self._oddities = log.Seldom()
        self._clock = clock
        self._failure: Exception | None = None
        self._journal: Journal | None = None
        self.engine = Engine()
        self.service = Service(self.engine, settings.max_job_size, settings.journal, self._facts, Counters())

    async def serve(self) -> None:
        """From start to stop. BeanliteError: a failure that the operator has to know of."""
        self.loop = asyncio.get_running_loop()
        self._stopped = asyncio.Event()
        self.loop.set_exception_handler(self._on_loop_error)
        self._hear_signals()
        if self._settings.journal and not await self._recover():
            return
        self._wire()
        self.turns.follow_up(self.turns.now())
        connection = LoggedConnection if self._settings.log_level == "debug" else Connection
        servers = []
        for sock in self._listener.sockets:
            server = await self.loop.create_server(lambda: connection(self._host), sock=sock, backlog=ACCEPTED_AT_ONCE)
            servers.append(server)
            sock.listen(BACKLOG)  # this queue is the kernel's; asyncio's own means how many it takes from it at a time
        log.info("started", version=__version__, compiled=is_compiled(), address=self._listener.address)
        await self._stopped.wait()
        await self._stop(servers)

    def _wire(self) -> None:
        """Make the parts that need the loop and the journal, and let them know of each other."""
        self.barrier = Barrier(
            self.loop, self.engine, self._journal, self._settings.fsync_interval_ms, self._stop_for, self._batch_taken
        )
        self.roster = Roster(self.loop, self._settings.max_connections)
        self.turns = Turns(self.loop, self.engine, self.barrier, self._clock, self.roster.wake)
        self._host = Host(
            self.turns,
            self.barrier,
            self.service,
            self.roster.admit,
            self.roster.forget,
            self.roster.part,
            self.roster.spare_others,
        )

    def _batch_taken(self) -> None:
        self.turns.resume_soon()

    # -- start and stop

    def _hear_signals(self) -> None:
        for signum in signals.STOPS:
            if signum != signal.SIGHUP or signal.getsignal(signum) is not signal.SIG_IGN:  # it is under nohup
                self.loop.add_signal_handler(signum, self._stopped.set)
        self.loop.add_signal_handler(signals.DRAINS, self._drain)
        signals.hear()

    async def _recover(self) -> bool:
        """Take over what is in the database; False if a stop was asked for meanwhile.

        JournalRefused: that can't be done.
        """
        try:
            return await self._open_journal()
        except MemoryError as error:
            self.engine.jobs.clear()  # room for the rest of the way out
            raise JournalRefused(f"there is not enough memory for what {self._settings.db} holds") from error

    async def _open_journal(self) -> bool:
        from beanlite.journal.sqlite import check_body_size, open_database, read_state  # noqa: PLC0415 - not for --no-journal
        from beanlite.journal.sqlite.writer import Journal  # noqa: PLC0415

        began_s = time.monotonic()
        check_body_size(self._settings.max_job_size)
        database = open_database(self._settings.db, fsync=self._settings.fsync)
        path = database.path
        if database.damaged_wal is not None:
            log.error(
                "the -wal was damaged: commits are lost", commits=database.lost_batches, copy=database.damaged_wal
            )
        elif database.lost_batches:
            log.warning("commits that were not synced when the power failed are lost", commits=database.lost_batches)
        engine = self.engine
        state = read_state(database.connection, path)
        jobs = await self._restore_jobs(database)
        if jobs is None:
            database.close()
            log.info("stopped before the start was over")
            return False
        for name, pause_s, until_ns in state.pauses:
            engine.restore_pause(name, pause_s, until_ns)
        engine.last_id = engine.taken_id = engine.stored_id = state.last_id
        engine.stored_batch = state.batch
        engine.batch = state.batch + 1
        self._journal = Journal(database)
        signals.hold()  # for the thread that this starts: signals are for the one that can tell what they mean
        try:
            has_room = await self._journal.start()
        finally:
            signals.hear()
        if not has_room:
            log.warning("disk full: puts are refused until there is room again")
            engine.full = True
        log.info("recovered", file=path, jobs=jobs, seconds=round(time.monotonic() - began_s, 3))
        return True

    async def _restore_jobs(self, database: Database) -> int | None:
        """Take over all jobs, and tell how many there are; None if a stop was asked for meanwhile."""
        from beanlite.journal.sqlite import check_jobs, check_names, count_jobs, read_jobs  # noqa: PLC0415 - as above

        now_ns = self._clock()
        jobs = of = 0
        shown_s = heard_s = time.monotonic()
        with contextlib.closing(read_jobs(database.connection, database.path)) as chunks:
            for rows in chunks:
                try:
                    self.engine.restore(rows, now_ns)
                except (TypeError, ValueError):
                    check_jobs(database.connection, database.path)
                    raise  # the file is as it should be: our own bug
                jobs += len(rows)
                now_s = time.monotonic()
                if now_s - shown_s > PROGRESS_S:
                    shown_s = now_s
                    of = of or count_jobs(database.connection, database.path)
                    log.info("recovering", jobs=jobs, of=of)
                if now_s - heard_s > HEAR_S:
                    heard_s = now_s
                    await asyncio.sleep(0)
                    if self._stopped.is_set():
                        return None
        check_names(self.engine.tubes, database.path)
        return jobs

    def _drain(self) -> None:
        log.info("draining: puts are refused from now on")
        self.engine.draining = True

    def _stop_for(self, failure: Exception) -> None:
        """Acknowledge nothing more, and stop."""
        if self._failure is None:
            self._failure = failure
        if hasattr(self, "barrier"):
            self.barrier.close()  # or what a bug has left half changed could still be written
        self._stopped.set()

    def _on_loop_error(self, _loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        """What asyncio would only log: trouble with a peer or the network stays a line; our own bug ends the server."""
        error = context.get("exception")
        if not isinstance(error, Exception) or (isinstance(error, OSError) and not is_ours(error)):
            self._oddities.warning(str(context.get("message")), error=error)
        else:
            self._stop_for(error)

    async def _stop(self, servers: list[asyncio.Server]) -> None:
        for server in servers:
            server.close()
        self.roster.close()
        await self._settle()
        self.turns.follow_up(self.turns.now())
        self.engine.stopping = True
        for client in self.roster.connections:
            self.engine.stop_waiting(client)  # or they would get the jobs that others leave, and continue unseen
        self.roster.part_from_all()
        deadline_s = time.monotonic() + FAREWELL_S
        while len(self.roster) and time.monotonic() < deadline_s:  # noqa: ASYNC110 - once, at the end
            await asyncio.sleep(0.01)
        await self._settle()  # what the connections had reserved is ready again
        left = await self._journal.close() if self._journal is not None else None
        log.info("stopped", jobs=self.engine.jobs.count, **({} if left is None else {"left": left}))

    async def _settle(self) -> None:
        """Have everything stored and acknowledged."""
        if self._failure is None:
            await self.barrier.drain()
        if self._failure is not None:
            raise self._failure

    def _facts(self) -> Facts:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        system = platform.uname()
        journal = self._journal
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
            journaled=journal is not None,
            batches=self.engine.stored_batch,
            records=journal.records if journal is not None else 0,
            wal_bytes=journal.wal_bytes if journal is not None else 0,
            wal_bytes_max=journal.wal_bytes_max if journal is not None else 0,
        )
