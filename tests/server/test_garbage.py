"""The server runs without a garbage collector: nothing that it does may leave a reference cycle behind."""

import asyncio
import gc
import re
import socket
import sqlite3
import sys

import pytest
import uvloop

from beanlite.host.clock import Clock
from beanlite.journal.sqlite.served.frames import CHECKPOINT_FRAMES
from beanlite.journal.sqlite.served.journal import SqliteJournal
from beanlite.net.listener import open_listener
from beanlite.server.server import Server
from beanlite.server.start import make_journal
from beanlite.settings.config import Settings

SESSION = (
    b"use garbage\r\nwatch garbage\r\nput 0 0 60 1\r\nx\r\nput 0 0 60 5000\r\n" + b"x" * 5000 + b"\r\n",
    b"put 0 0 60 1\r\nx\r\nput 0 1000 60 1\r\nx\r\nreserve\r\nreserve\r\nstats\r\nstats-tube garbage\r\nnonsense\r\n",
    b"kick 1\r\npeek-ready\r\npause-tube garbage 60\r\nreserve-with-timeout 0\r\npause-tube garbage 0\r\nreserve\r\n",
    b"reserve\r\nput 0 0 60 70000\r\n" + b"x" * 70000 + b"\r\n",
)


async def talk(address):
    """Play a client's life; it disconnects with jobs reserved, in the middle of a put."""
    loop = asyncio.get_running_loop()
    with socket.socket() as client:
        client.setblocking(False)
        await loop.sock_connect(client, address)
        for data in SESSION:
            await loop.sock_sendall(client, data + b"list-tube-used\r\n")
            said = b""
            while not said.endswith(b"USING garbage\r\n"):
                said += await asyncio.wait_for(loop.sock_recv(client, 1 << 16), 10)
        ids = re.findall(rb"RESERVED (\d+) ", said)
        await loop.sock_sendall(client, b"bury %b 0\r\nput 0 0 60 9\r\nx" % ids[0])
        await asyncio.wait_for(loop.sock_recv(client, 1 << 16), 10)


async def until(condition):
    while not condition():
        await asyncio.sleep(0)


def lock_for_a_moment(server):
    """Hold the write lock from another connection, so that commits have to be retried."""
    outsider = sqlite3.connect(server._settings.db, isolation_level=None)
    outsider.execute("BEGIN IMMEDIATE")
    server.loop.call_later(0.005, outsider.close)


async def garbage_of(settings, lives, meanwhile):
    """Return how many objects the collector finds after ``lives`` clients; ``meanwhile`` is called before each."""
    server = Server(
        settings, listener := open_listener(settings), make_journal(settings, listener, clock := Clock()), clock
    )
    task = asyncio.create_task(server.serve())
    await until(lambda: server.wiring)
    host, port = server._listener.address.split(":")

    async def live(count):
        for _ in range(count):
            meanwhile(server)
            await talk((host, int(port)))
            if isinstance(server.parts.journal, SqliteJournal):
                server.parts.journal._writer.frames.added += CHECKPOINT_FRAMES  # a checkpoint is due
            await until(lambda: not server.parts.engine.counts.clients)

    await live(3)
    gc.collect()
    gc.disable()
    try:
        await live(lives)
        return gc.collect()
    finally:
        gc.enable()
        server._stopped.set()
        await task


def found_with(settings, tmp_path, meanwhile=lambda _server: None):
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(garbage_of(Settings(port=0, db=tmp_path / "queue.db", **settings), 30, meanwhile))


@pytest.mark.parametrize("settings", [{"journal": False}, {"fsync": "always"}, {"fsync": "1ms"}], ids=str)
def test_what_clients_do_leaves_no_garbage(tmp_path, settings):
    assert found_with(settings, tmp_path) < 30


def test_nor_do_syncs_in_a_thread(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "caio.linux_aio", None)
    assert found_with({"fsync": "always"}, tmp_path) < 30


def test_nor_do_bugs_that_clients_meet(tmp_path, caplog):
    def fail(_args):
        raise ZeroDivisionError

    def meet_it(server):
        server.parts.service.words.with_arguments[b"touch"].read = fail
        host, port = server._listener.address.split(":")
        with socket.create_connection((host, int(port))) as client:
            client.sendall(b"touch 1\r\n")

    assert found_with({"fsync": "always"}, tmp_path, meet_it) < 30
    assert "ZeroDivisionError" in caplog.text


def test_nor_do_commits_that_are_tried_again(tmp_path):
    assert found_with({"fsync": "always"}, tmp_path, lock_for_a_moment) < 30
