"""Signals and errors while a server starts."""

import asyncio
import errno
import os
import signal
from contextlib import closing
from typing import Any

import pytest

from beanlite.errors import JournalBusy, ListenError
from beanlite.host.clock import Clock
from beanlite.journal.sqlite.file import database, replay
from beanlite.journal.sqlite.file.database import open_database
from beanlite.journal.sqlite.served import batch, recovery
from beanlite.net.listener import open_listener
from beanlite.server.server import Server
from beanlite.server.start import make_journal
from beanlite.settings.config import Settings
from tests.support.inside import PUT, ask, connect, serving, until
from tests.support.journal_files import put
from tests.support.sqlite_tool import ask as ask_tool, outsider

CHUNKS = 5
RESERVED = 1500


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

    monkeypatch.setattr(recovery, "read_jobs", read_jobs)
    monkeypatch.setattr(recovery, "HEAR_S", 0)  # at each chunk
    return read


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_stop_cuts_short_the_reading_of_jobs_and_changes_nothing(path, read, number):
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
        assert len(server.parts.engine.jobs) == CHUNKS * 1000
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


# -- while another program holds the file's write lock

WAITS = "start is waiting: another program has locked the file"
MISSED = "stopped: jobs made ready by the restart are missing in the history"


@pytest.fixture(params=["before it is opened", "while jobs are read"])
def other(path, request, monkeypatch):
    """Another program, which has the write lock from this moment of the start on; SQLite waits for none."""
    monkeypatch.setattr(database, "_BUSY_TIMEOUT_S", 0)
    with outsider(path) as do:
        begun = []

        def begin():
            if not begun:
                do("BEGIN IMMEDIATE;")
                begun.append(True)

        def read_jobs(*args, read_jobs=replay.read_jobs, **kwargs):
            begin()
            yield from read_jobs(*args, **kwargs)

        if request.param == "while jobs are read":
            monkeypatch.setattr(recovery, "read_jobs", read_jobs)
        else:
            begin()
        yield do


async def start(path, **others):
    """Start a server that does not come to serve, and wait for its end."""
    settings = Settings(port=0, db=path, **others)
    with closing(open_listener(settings)) as listener:
        made = make_journal(settings, listener, clock := Clock())
        await asyncio.wait_for(Server(settings, listener, made, clock).serve(), 10)


async def test_a_start_waits_for_a_lock_and_notices_what_was_done_meanwhile(path, other, caplog, request):
    async def release():
        await until(lambda: WAITS in caplog.messages)
        other("CREATE TABLE mine (x);")
        other("COMMIT;")

    releasing = asyncio.create_task(release())
    async with serving(path) as (server, _):
        await releasing
        assert len(server.parts.engine.jobs) == CHUNKS * 1000
        assert (await ask(await connect(server), PUT)).startswith(b"INSERTED")
    was_unread = request.node.callspec.params["other"] == "while jobs are read"
    assert ("another program wrote to the file; the queue is unchanged" in caplog.messages) == was_unread


async def test_a_stop_ends_the_wait_for_a_lock(path, other, caplog):
    caplog.set_level("INFO")

    async def stop():
        await until(lambda: WAITS in caplog.messages)
        signal.raise_signal(signal.SIGTERM)

    before = path.read_bytes()
    stopping = asyncio.create_task(stop())
    await start(path)
    await stopping
    assert "stopped during the start" in caplog.messages
    other("ROLLBACK;")
    assert open_database(path).close() is None
    assert path.read_bytes() == before


@pytest.mark.usefixtures("other")
async def test_lock_held_for_long_ends_the_start_so_that_it_is_tried_again(path, monkeypatch):
    monkeypatch.setattr(recovery, "LOCK_WAIT_S", 0)
    with pytest.raises(JournalBusy, match=r"is locked; another program holds a lock on it: end .*, and try again"):
        await start(path)
    assert JournalBusy.exit_code == 4


@pytest.fixture
def locker(path, monkeypatch):
    """Another program, which has the write lock when the start is about to record what it did to reserved jobs."""
    with closing(open_database(path)) as opened:
        opened.connection.execute("BEGIN")
        for number in range(CHUNKS * 1000 + 1, CHUNKS * 1000 + RESERVED + 1):
            put(opened.connection, number, state="reserved", due_at=1.7e9)
        opened.connection.execute("UPDATE meta SET last_id = ?", (CHUNKS * 1000 + RESERVED,))
        opened.connection.execute("COMMIT")
    monkeypatch.setattr(database, "_BUSY_TIMEOUT_S", 0)
    with outsider(path) as do:
        begun = []

        def batch_of(*args, batch_of=batch.batch_of):
            if not begun:
                do("BEGIN IMMEDIATE;")
                begun.append(True)
            return batch_of(*args)

        monkeypatch.setattr(recovery, "batch_of", batch_of)
        yield do


async def test_a_start_waits_for_a_lock_to_record_what_it_did(path, locker, caplog):
    async def release():
        await until(lambda: WAITS in caplog.messages)
        locker("COMMIT;")

    releasing = asyncio.create_task(release())
    async with serving(path, history="1d"):
        await releasing
    told = ask_tool(path, "SELECT count(*), count(DISTINCT job) FROM history WHERE what = 'restart'")
    assert told == f"{RESERVED}|{RESERVED}\n"


async def test_a_lock_held_for_long_ends_the_start_that_records(path, locker, monkeypatch):
    monkeypatch.setattr(recovery, "LOCK_WAIT_S", 0)
    with pytest.raises(JournalBusy, match="another program holds the write lock"):
        await start(path, history="1d")
    locker("ROLLBACK;")
    assert ask_tool(path, "SELECT count(*) FROM jobs WHERE state = 'reserved'") == f"{RESERVED}\n"


async def test_a_stop_ends_the_wait_of_a_start_that_records(path, locker, caplog):
    async def stop():
        await until(lambda: WAITS in caplog.messages)
        signal.raise_signal(signal.SIGTERM)
        await until(lambda: MISSED in caplog.messages)
        locker("ROLLBACK;")

    stopping = asyncio.create_task(stop())
    await start(path, history="1d")
    await stopping
    assert ask_tool(path, "SELECT count(*) FROM jobs WHERE state = 'reserved'") == "0\n"
