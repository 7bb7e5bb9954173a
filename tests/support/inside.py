"""The real server and journal in this process, with a disk that a test controls."""

import asyncio
import contextlib
import os

from beanlite.errors import JournalFailed
from beanlite.host.clock import Clock
from beanlite.journal.sqlite.served import leisure
from beanlite.journal.sqlite.served.chronicle import Chronicle
from beanlite.net.certificates import load_certificates
from beanlite.net.listener import open_listener
from beanlite.server.server import Server
from beanlite.server.start import make_journal
from beanlite.settings.config import Settings

PUT = b"put 0 0 10 1\r\nx\r\n"


class Disk:
    """Takes the place of fdatasync: counts the calls, and waits or fails on request.

    As by the kernel, each descriptor is told of an error just once.
    """

    def __init__(self):
        self.free = asyncio.Event()
        self.free.set()
        self.error = None
        self.syncs = 0
        self.under_way = []
        self._told = set()

    def __call__(self, descriptor, done):
        self.under_way.append((descriptor, done))
        asyncio.get_running_loop().create_task(self._sync())

    async def _sync(self):
        await self.free.wait()
        self.poll()

    def poll(self):
        while self.free.is_set() and self.under_way:
            descriptor, done = self.under_way.pop(0)
            if self.error is not None and descriptor not in self._told:
                self._told.add(descriptor)
                done(OSError(self.error, os.strerror(self.error)))
            else:
                self.syncs += 1
                done(None)


@contextlib.asynccontextmanager
async def serving(path, fsync="always", failure=JournalFailed, **others):
    settings = Settings(port=0, db=path, fsync=fsync, **others)
    certificates = None if settings.tls is None else load_certificates(settings)
    listener = open_listener(settings)
    journal = make_journal(settings, listener, clock := Clock())
    server = Server(settings, listener, journal, clock, certificates=certificates)
    task = asyncio.create_task(server.serve())
    try:
        while not server.wiring:
            await asyncio.sleep(0)
            if task.done():
                task.result()
        yield server, task
    finally:
        server._stopped.set()
        try:
            with contextlib.suppress(failure):
                await task
        finally:
            await _tidy_up(server)


def beat_often(monkeypatch):
    """Have an idle server write a heartbeat every 10 ms."""
    monkeypatch.setattr(leisure, "IDLE_S", 0.01)
    monkeypatch.setattr(Chronicle.beat, "__defaults__", (0.01,))  # a default is evaluated when the module is imported


class FullDisk:
    """A database that can't grow until there is room.

    The limit is set where no checkpoint is under way: a statement beside one, on the same connection, makes it fail.
    """

    def __init__(self, writer):
        self._writer = writer
        self._checkpoint = writer.checkpoint
        self._has_room = False
        writer.checkpoint = self._checkpoint_and_look
        (pages,) = writer._db.execute("PRAGMA page_count").fetchone()
        writer._db.execute(f"PRAGMA max_page_count = {pages}")

    def make_room(self):
        """Make room at the end of the next checkpoint."""
        self._has_room = True

    async def _checkpoint_and_look(self):
        await self._checkpoint()
        if self._has_room:
            self._writer._db.execute("PRAGMA max_page_count = 1000000")
            self._writer.checkpoint = self._checkpoint


async def abandon(journal):
    """End the threads of an SQLite journal, and leave its file alone, as the end of the process would."""
    await journal._writer._worker.close()
    await journal._bodies._connection.close()


async def _tidy_up(server):
    """Close everything that is left after a failure, at which the real process ends."""
    for connection in list(server.parts.roster.connections.values()):
        connection.part()
    await abandon(server.parts.journal)
    for _, writer in CLIENTS:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
    CLIENTS.clear()
    server._listener.close()
    for _ in range(10):  # transports close in a later turn of the loop
        await asyncio.sleep(0)


CLIENTS = []  # of the server that is being tested


async def connect(server):
    host, port = server._listener.address.split(":")
    CLIENTS.append(await asyncio.open_connection(host, int(port)))
    return CLIENTS[-1]


async def until(condition):
    """Wait until a condition holds. It is polled, as it depends on a thread or on a timer of the server."""
    for _ in range(10_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it never came true")


async def ask(client, data):
    client[1].write(data)
    return await asyncio.wait_for(client[0].readline(), 10)


async def is_silent(client, beside):
    """Return whether a client gets nothing while another one is answered a few times."""
    for _ in range(5):
        assert await ask(beside, b"list-tube-used\r\n") == b"USING default\r\n"
    return not client[0]._buffer
