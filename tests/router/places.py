"""What is killed, halted and cut off: servers, routers and databases, each behind a proxy.

The first server has a file, the second one a PostgreSQL of its own. The third is two servers, of which one stands by,
with a primary and a synchronous standby.
"""

import asyncio
import shutil
import signal
import time
from contextlib import suppress

from tests.support import servers
from tests.support.cutting import Cutting
from tests.support.forks import fork
from tests.support.postgres import Cluster, Pair, new_home
from tests.support.servers import RunningServer, free_port
from tests.support.wire import Wire

STARTS_WITHIN_S = 60.0
LOOK_S = 0.05
ALONE, IN_PAIRS = 2, 3
LEASE = "2s"
FENCED = 6
CUTS = ("refuse", "silence", "question", "answer")


class Gate(Cutting):
    """A proxy whose port can be closed, as that of a dead program is."""

    async def shut(self):
        self._server.close()
        self.cut()

    async def open(self):
        self._server = await asyncio.start_server(self._pass_on, "127.0.0.1", self.port)


class Place:
    """Something that can be lost, and the proxy in front of it."""

    def __init__(self, name, kind, port, loses):
        """``loses``: the kind and the number of what clients see lost with it; None: nothing."""
        self.name = name
        self.kind = kind
        self.loses = loses
        self.loses_by = ("kill", "cut") if loses else ()
        """By which faults it is lost. A halt ends nothing, unless another server takes over."""
        self.gates = [Gate(port)]
        self.lock = asyncio.Lock()
        """It is held as long as it is killed, or started again."""

    @property
    def gate(self):
        return self.gates[0]

    async def kill(self, away_s):
        async with self.lock:
            await self.gate.shut()
            self._kill()
            await asyncio.sleep(away_s)
            await asyncio.to_thread(self.start_again)
            await self.gate.open()

    async def halt(self, away_s):
        self._signal(signal.SIGSTOP)
        await asyncio.sleep(away_s)
        self._signal(signal.SIGCONT)

    async def cut(self, how, away_s):
        if how == "refuse":
            await self.gate.shut()
            await asyncio.sleep(away_s)
            await self.gate.open()
            return
        end_s = time.monotonic() + away_s
        while time.monotonic() < end_s:
            self.gate.cut_at = how
            await asyncio.sleep(away_s if how == "silence" else 0.1)
        self.gate.cut_at = None
        if how == "silence":  # what was lost is missing in the middle of the connections
            self.gate.cut()

    def _kill(self):
        raise NotImplementedError

    def start_again(self):
        raise NotImplementedError

    def _signal(self, number):
        raise NotImplementedError


class Program(Place):
    """A server or a router."""

    def __init__(self, name, kind, folder, loses):
        self.port = free_port()
        super().__init__(name, kind, self.port, loses)
        self.folder = folder / name.replace(" ", "-")
        self.folder.mkdir()
        self.program = None
        self.stands_by = False
        """It does not listen as long as another one does."""

    def start(self, *arguments):
        """Start it with these arguments, also later on, and wait until it accepts connections."""
        self._arguments = arguments
        self.start_again()

    def start_again(self):
        log = self.folder / "log"
        with log.open("ab") as sink:
            self.program = RunningServer(fork(self._arguments, self.folder, {}, sink), self.port, self.folder, log)
        end_s = time.monotonic() + STARTS_WITHIN_S
        while not self.stands_by:
            with suppress(TimeoutError):  # on a busy machine
                if servers._wait_until_it_accepts(self.program):
                    return
            if self.program.process.poll() is not None or time.monotonic() > end_s:
                raise servers.ServerDied(f"{self.name}: {self.program.log_text()}")

    @property
    def has_ended(self):
        return not self.lock.locked() and self.program.process.poll() is not None

    def answers(self):
        """Whether it does what a client asks for."""
        with suppress(OSError), Wire(self.program.connect(1.0)) as wire:
            return wire.ask("list-tube-used") == "USING default"
        return False

    def end(self):
        """Kill it for good; return the log."""
        if self.program is None:
            return ""
        self._kill()
        return self.program.log_text()

    def _kill(self):
        self.program.kill()

    def _signal(self, number):
        self.program.process.send_signal(number)


class Alone(Place):
    """A PostgreSQL without a standby, of one server."""

    def __init__(self, name, kind):
        self._home = new_home()
        self._cluster = Cluster(self._home, "alone")
        super().__init__(name, kind, self._cluster.port, None)

    def start(self):
        self._cluster.make()
        self._cluster.start()
        address = self._cluster.new_database().replace(str(self._cluster.port), str(self.gate.port))
        return "--database", address, "--require-sync", "false"

    def end(self):
        self._kill()
        shutil.rmtree(self._home)

    def _kill(self):
        self._cluster.kill()

    def start_again(self):
        self._cluster.start()

    def _signal(self, number):
        self._cluster.signal(number)


class Primary(Place):
    """A primary with a synchronous standby, which is promoted when the primary is killed."""

    def __init__(self, name, kind, loses):
        self._pair = pair = Pair()
        super().__init__(name, kind, pair.primary.port, loses)
        self.gates.append(Gate(pair.standby.port))
        self._clusters = [pair.primary, pair.standby]

    @property
    def gate(self):
        return self.gates[self._clusters.index(self._pair.primary)]

    def start(self):
        places = ",".join(f"127.0.0.1:{gate.port}" for gate in self.gates)
        return "--database", f"postgresql://queue@{places}/queue", "--lease", LEASE

    async def kill(self, away_s):
        await asyncio.to_thread(self._pair.fail_over)
        await asyncio.sleep(away_s)
        await asyncio.to_thread(self._pair.make_standby)

    def end(self):
        self._pair.end()

    def _signal(self, number):
        self._pair.primary.signal(number)


class Member:
    """A server as routers see it, with what it is made of."""

    def __init__(self, number, folder):
        self.number = number
        loses = "server", number
        self.programs = [Program(f"server {number}", "server", folder, loses)]
        self.database: Alone | Primary | None = None
        if number == ALONE:
            self.database = Alone("database 2", "database")
        if number == IN_PAIRS:
            self.programs.append(Program(f"server {number}, the other one", "server", folder, loses))
            self.database = Primary("database 3", "database", loses)
            for program in self.programs:
                program.stands_by = True
            for place in self.places:
                place.loses_by = ("kill", "cut", "halt")

    @property
    def places(self):
        return [*self.programs, self.database] if self.database else self.programs

    def start(self):
        """Start all of it; return the addresses of the proxies."""
        for program in self.programs:
            keeps = self.database.start() if self.database else ("--db", str(program.folder / "queue.db"))
            program.start("serve", "-l", "127.0.0.1", "-p", str(program.port), *keeps)
        self.find()
        return [f"127.0.0.1:{program.gate.port}" for program in self.programs]

    def find(self):
        """Wait until it answers; return the program that does."""
        end_s = time.monotonic() + STARTS_WITHIN_S
        while time.monotonic() < end_s:
            for program in self.programs:
                if program.answers():
                    return program
            time.sleep(LOOK_S)
        raise servers.ServerDied(f"server {self.number} does not answer")
