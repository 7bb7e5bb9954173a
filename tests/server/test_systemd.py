"""The messages that the server sends to systemd, over a real socket: start, status, reload, watchdog and stop."""

import asyncio
import os
import signal
import socket
from contextlib import closing

import pytest

from beanlite.journal.sqlite.file.database import open_database
from beanlite.journal.sqlite.served import recovery
from tests.support.inside import PUT, ask, connect, serving, until as until_inside
from tests.support.journal_files import put
from tests.support.servers import start_beanlite
from tests.support.wire import until


class Systemd:
    """Receives messages as systemd does."""

    def __init__(self, path):
        self.path = path
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(path)
        self.socket.setblocking(False)
        self.messages = []

    def listen(self):
        while True:
            try:
                self.messages.append(self.socket.recv(4096).decode().split("\n"))
            except BlockingIOError:
                return self.messages

    def heard(self, line):
        return any(line in message for message in self.listen())


@pytest.fixture
def systemd(tmp_path, monkeypatch):
    heard = Systemd(str(tmp_path / "notify"))
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    yield heard
    heard.socket.close()


def test_the_life_of_a_server(tmp_path, systemd):
    with start_beanlite(tmp_path / "q", environment={"NOTIFY_SOCKET": systemd.path}) as server:
        until(lambda: systemd.heard("STATUS=Serving: 0 jobs"))
        assert systemd.messages[0] == ["READY=1"]
        server.signal(signal.SIGHUP)
        until(lambda: systemd.listen()[-1] == ["READY=1"] and len(systemd.messages) > 1)
        first, second = systemd.messages[-2]
        assert first == "RELOADING=1"
        assert second.removeprefix("MONOTONIC_USEC=").isdecimal()
        assert "reloaded" in server.log_text()
        server.stop()
        assert systemd.listen()[-1] == ["STOPPING=1", "STATUS=Stopping"]
        assert not any("WATCHDOG=1" in message for message in systemd.messages)


def test_an_abstract_socket(tmp_path):
    name = f"beanlite-test-{os.getpid()}"
    systemd = Systemd(f"\0{name}")
    with start_beanlite(tmp_path, "--no-journal", environment={"NOTIFY_SOCKET": f"@{name}"}):
        until(lambda: systemd.heard("READY=1"))
    systemd.socket.close()


def test_nobody_there_is_no_trouble(tmp_path):
    with start_beanlite(tmp_path, environment={"NOTIFY_SOCKET": str(tmp_path / "none")}) as server:
        assert server.stop() == 0


async def test_a_long_start_asks_for_more_time_while_it_makes_progress(tmp_path, systemd, monkeypatch):
    monkeypatch.setattr(recovery, "PROGRESS_S", -1)
    with closing(open_database(tmp_path / "queue.db")) as database:
        database.connection.execute("BEGIN")
        for number in range(1, 2001):
            put(database.connection, number)
        database.connection.execute("UPDATE meta SET last_id = 2000")
        database.connection.execute("COMMIT")
    async with serving(tmp_path / "queue.db"):
        await until_inside(lambda: systemd.heard("READY=1"))
        assert systemd.messages[:3] == [
            ["STATUS=Recovering: 1000 of 2000 jobs", "WATCHDOG=1", "EXTEND_TIMEOUT_USEC=60000000"],
            ["STATUS=Recovering: 2000 of 2000 jobs", "WATCHDOG=1", "EXTEND_TIMEOUT_USEC=60000000"],
            ["READY=1"],
        ]
        assert systemd.messages[3] == ["STATUS=Serving: 2000 jobs"]


@pytest.fixture
def watched(systemd, monkeypatch):
    """The watchdog's interval is so short that a test need not wait."""
    monkeypatch.setenv("WATCHDOG_USEC", "40000")
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))

    async def fed():
        """Return whether the fourth message from now feeds the watchdog."""
        seen = len(systemd.listen())
        await until_inside(lambda: len(systemd.listen()) > seen + 3)
        return "WATCHDOG=1" in systemd.messages[seen + 3]

    return fed


async def test_the_watchdog_is_fed_while_nothing_is_to_be_done(tmp_path, watched):
    async with serving(tmp_path / "q.db"):
        assert await watched()


async def test_the_watchdog_starves_while_a_sync_hangs(tmp_path, watched, disk):
    async with serving(tmp_path / "q.db") as (server, _):
        client = await connect(server)
        assert await ask(client, PUT) == b"INSERTED 1\r\n"
        disk.free.clear()
        waiting = asyncio.create_task(ask(client, PUT))
        await until_inside(lambda: disk.under_way)
        assert not await watched()
        assert not await watched()
        disk.free.set()
        assert await waiting == b"INSERTED 2\r\n"
        assert await watched()


async def test_a_full_disk_is_told_and_no_reason_for_a_restart(tmp_path, systemd, watched, disk):
    async with serving(tmp_path / "q.db") as (server, _):
        client = await connect(server)
        disk.free.clear()
        waiting = asyncio.create_task(ask(client, PUT))
        await until_inside(lambda: disk.under_way)
        server.parts.engine.admission.refuse_puts()
        server._drain()
        assert await watched()
        assert await watched()
        assert systemd.heard("STATUS=Draining, disk full, puts are refused: 1 jobs")
        disk.free.set()
        assert await waiting == b"INSERTED 1\r\n"


def test_a_watchdog_of_another_process_is_not_ours(tmp_path, systemd):
    environment = {"NOTIFY_SOCKET": systemd.path, "WATCHDOG_USEC": "40000", "WATCHDOG_PID": "1"}
    with start_beanlite(tmp_path / "q", environment=environment):
        until(lambda: systemd.heard("STATUS=Serving: 0 jobs"))
    assert not systemd.heard("WATCHDOG=1")
