"""Signals and errors while a server starts."""

import asyncio
import errno
import os
import signal
from contextlib import closing
from typing import Any

import pytest

from beanlite.clock import Clock
from beanlite.config import Settings
from beanlite.errors import ListenError
from beanlite.journal.sqlite import journal, replay
from beanlite.journal.sqlite.database import open_database
from beanlite.net.listener import open_listener
from beanlite.server import Server, make_journal
from tests.support.inside import ask, connect, serving
from tests.support.journal_files import put

CHUNKS = 5


@pytest.fixture
def path(tmp_path):
    """A database with several thousand jobs."""
    with closing(open_database(tmp_path / "queue.db")) as database:
        database.connection.execute("BEGIN")
        for number in range(1, CHUNKS * 1000 + 1):
            put(database.connection, number)
        database.connection.execute("UPDATE meta SET last_id = ?", (CHUNKS * 1000,))
        database.connection.execute("COMMIT")
    return tmp_path / "queue.db"


@pytest.fixture
def read(monkeypatch):
    """The number of jobs that have been read, and a signal, set by the test, that is raised at the first chunk."""
    read: dict[str, Any] = {"jobs": 0, "signal": None}

    def read_jobs(*args, read_jobs=replay.read_jobs, **kwargs):
        for rows in read_jobs(*args, **kwargs):
            if not read["jobs"]:
                signal.raise_signal(read["signal"])
            read["jobs"] += len(rows)
            yield rows

    monkeypatch.setattr(journal, "read_jobs", read_jobs)
    monkeypatch.setattr(journal, "HEAR_S", 0)  # at each chunk
    return read


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_stop_does_not_wait_for_all_jobs_to_be_read_and_changes_nothing(path, read, number):
    before = path.read_bytes()
    read["signal"] = number
    settings = Settings(port=0, db=path)
    listener = open_listener(settings)
    await asyncio.wait_for(
        Server(settings, listener, make_journal(settings, listener, clock := Clock()), clock).serve(), 10
    )
    listener.close()
    assert 0 < read["jobs"] < CHUNKS * 1000
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


async def test_a_server_that_is_to_drain_reads_all_jobs_and_then_serves_so(path, read):
    read["signal"] = signal.SIGUSR1
    async with serving(path) as (server, _):
        assert len(server.engine.jobs) == CHUNKS * 1000
        client = await connect(server)
        assert await ask(client, b"put 0 0 10 1\r\nx\r\n") == b"DRAINING\r\n"
        assert await ask(client, b"reserve-job 5000\r\n") == b"RESERVED 5000 4\r\n"


async def test_a_socket_that_the_loop_can_not_have_ends_the_start_in_order(tmp_path, monkeypatch):
    async def refuse(*_, **__):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(asyncio.get_running_loop(), "create_server", refuse)
    settings = Settings(port=0, db=tmp_path / "queue.db")
    listener = open_listener(settings)
    journal = make_journal(settings, listener, clock := Clock())
    try:
        with pytest.raises(ListenError, match=r"can't listen on .*: No locks available"):
            await Server(settings, listener, journal, clock).serve()
    finally:
        listener.close()
    assert [file.name for file in tmp_path.iterdir()] == ["queue.db"]
