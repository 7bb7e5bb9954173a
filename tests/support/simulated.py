"""A whole server in simulated time, without sockets, disk or waiting."""

import asyncio
import selectors
from collections import deque
from typing import Any

from beanlite.core.job import SECOND_NS
from beanlite.host.clock import Clock
from beanlite.journal.base import Journal, JournalFacts
from beanlite.net.connection import Connection
from beanlite.net.listener import Listener
from beanlite.server.server import Server
from beanlite.settings.config import Settings

TURNS = 50  # of the loop: more than any exchange takes
TURN_S = 50e-6


class _Selector(selectors.SelectSelector):
    """A selector that lets simulated time pass where the loop would wait."""

    now_s = 0.0

    def select(self, timeout=None):
        ready = super().select(0)
        self.now_s += timeout if timeout and not ready else TURN_S
        return ready


class SimulatedLoop(asyncio.SelectorEventLoop):
    """A loop whose time advances by a little with each turn and, when there is nothing to do, to the next timer."""

    def __init__(self):
        self._simulated = _Selector()
        super().__init__(self._simulated)

    def time(self):
        return self._simulated.now_s


class FakeJournal(Journal):
    """Makes batches durable at once or on request, or fails."""

    def __init__(self):
        self.waiting = deque()
        self.holds = False
        """Whether batches wait for ``let_go``."""

    busy = property(lambda self: bool(self.waiting))
    syncing = property(lambda _self: False)

    async def recover(self, engine, _now_ns, _stopped):
        engine.recovered(0, 0)
        return True

    def attach(self, listener):
        self.listener = listener

    def commit(self, changes):
        self.waiting.append((changes.batch, changes.last_id))
        if not self.holds:
            self.let_go()

    def let_go(self):
        while self.waiting:
            self.listener.durable(*self.waiting.popleft())
        self.listener.ready()

    def fail(self, error):
        self.listener.failed(error)

    def poll(self):
        pass

    def begin_stop(self):
        pass

    async def flush(self):
        pass

    def facts(self):
        return JournalFacts(keeps_jobs=True, records=0, log_bytes=0, log_bytes_max=0)

    async def close(self):
        return None


class Client(asyncio.Transport):
    """A client and the transport of its connection."""

    def __init__(self, server):
        super().__init__({"peername": ""})
        self.said = b""
        self.closed = False
        self.closes = True
        """Whether the client closes its side when the server closes the connection."""
        self.protocol: Any = Connection(server.wiring.host)
        self.protocol.connection_made(self)

    def send(self, data):
        self.protocol.data_received(data)

    async def ask(self, data):
        """Send data, and return what is answered without any time passing."""
        self.said = b""
        self.send(data)
        await settle()
        return self.said

    def write(self, data):
        if self.closed:
            raise RuntimeError("the transport is closed")  # as uvloop's does
        self.said += data

    def close(self):
        if self.closes and not self.closed:
            self.closed = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    def abort(self):
        self.close()

    def write_eof(self):
        self.close()

    def set_protocol(self, protocol):
        self.protocol = protocol

    def is_closing(self):
        return self.closed

    def get_write_buffer_size(self):
        return 0

    def set_write_buffer_limits(self, high=None, low=None):
        pass

    def pause_reading(self):
        pass

    def resume_reading(self):
        pass


async def settle():
    for _ in range(TURNS):
        await asyncio.sleep(0)


def simulated(play):
    """Run ``play(server, journal)``, then stop the server in an orderly way; return the error that it ended with."""

    async def run():
        loop = asyncio.get_running_loop()
        journal = FakeJournal()

        def now_ns():
            return round(loop.time() * SECOND_NS) + SECOND_NS

        server = Server(Settings(), Listener([], "nowhere"), journal, Clock(now_ns, now_ns))
        task = asyncio.create_task(server.serve())
        await settle()
        await play(server, journal)
        server._stopped.set()
        try:
            await task
        except Exception as error:  # noqa: BLE001 - what it failed with is the result
            return error

    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        return runner.run(run())
