"""Bodies that take long to write, up to SQLite's limit and beyond it."""

import asyncio
import sqlite3
import threading
from contextlib import closing

import pytest

from beanlite.errors import ConfigError
from beanlite.host.clock import Clock
from beanlite.journal.sqlite.file.database import ROW_BYTES
from beanlite.journal.sqlite.served import upkeep
from beanlite.net.listener import open_listener
from beanlite.server.server import Server
from beanlite.server.start import UNNOTICED_BYTES, make_journal
from beanlite.settings.config import Settings
from tests.support.inside import PUT, ask, connect, is_silent, serving, until
from tests.support.servers import start_beanlite
from tests.support.wire import Wire, put_bytes


async def test_write_of_a_large_body_delays_only_those_that_await_a_commit(tmp_path):
    size = upkeep.APART_BYTES + 1
    begun, free = threading.Event(), threading.Event()
    let_go = []

    def halt(statement):
        if statement.startswith("INSERT INTO bodies"):
            begun.set()
            let_go.append(free.wait(5))

    async with serving(tmp_path / "q.db", max_job_size=size) as (server, _):
        client, second, other = [await connect(server) for _ in range(3)]
        assert await ask(client, PUT) == b"INSERTED 1\r\n"
        server.parts.journal._writer._db.set_trace_callback(halt)
        client[1].write(put_bytes(b"x" * size))
        await until(begun.is_set)
        second[1].write(PUT)
        assert await ask(other, b"reserve\r\n") == b"RESERVED 1 1\r\n"
        assert await other[0].readline() == b"x\r\n"
        assert await is_silent(client, other)
        assert await is_silent(second, other)
        assert not let_go
        free.set()
        assert await asyncio.wait_for(client[0].readline(), 10) == b"INSERTED 2\r\n"
        assert await asyncio.wait_for(second[0].readline(), 10) == b"INSERTED 3\r\n"
    async with serving(tmp_path / "q.db") as (server, _):  # which accepts no body of this size, but has this one
        client = await connect(server)
        assert await ask(client, b"delete 3\r\n") == b"DELETED\r\n"
        client[1].write(b"peek 2\r\n")
        assert await client[0].readline() == b"FOUND 2 %d\r\n" % size
        assert await client[0].readexactly(size + 2) == b"x" * size + b"\r\n"


@pytest.mark.parametrize("beyond", [0, 1])
def test_a_start_tells_that_larger_bodies_hold_others_up(tmp_path, beyond):
    with start_beanlite(tmp_path, "-z", str(UNNOTICED_BYTES + beyond)) as server, Wire(server.connect()) as wire:
        wire.put(b"x")
        assert ("hold up other clients" in server.log_text()) == bool(beyond)


async def test_the_largest_body_is_stored(tmp_path):
    """The limit is lowered for this test: a billion bytes would take a minute."""
    body = b"x" * 60_000
    async with serving(tmp_path / "q.db") as (server, _):
        server.parts.journal._writer._db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, len(body) + ROW_BYTES)
        assert await ask(await connect(server), put_bytes(body)) == b"INSERTED 1\r\n"


async def test_server_refuses_max_job_size_beyond_the_limit_of_this_sqlite(tmp_path):
    with closing(sqlite3.connect(":memory:")) as connection:
        most = connection.getlimit(sqlite3.SQLITE_LIMIT_LENGTH) - ROW_BYTES
    settings = Settings(port=0, db=tmp_path / "q.db").model_copy(update={"max_job_size": most + 1})
    listener = open_listener(settings)
    with pytest.raises(ConfigError, match=f"^max_job_size = {most + 1} is more than .*; it may be {most} at most$"):
        await Server(settings, listener, make_journal(settings, listener, clock := Clock()), clock).serve()
    listener.close()
    assert not list(tmp_path.iterdir())
