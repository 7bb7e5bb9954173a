"""Bodies as large as SQLite has room for, and larger."""

import sqlite3
from contextlib import closing

import pytest

from beanlite.clock import utc_clock
from beanlite.config import Settings
from beanlite.errors import ConfigError
from beanlite.journal.sqlite.database import ROW_BYTES
from beanlite.net.listener import open_listener
from beanlite.server import Server, make_journal
from tests.support.inside import ask, connect, serving
from tests.support.wire import put_bytes


async def test_the_largest_body_is_stored(tmp_path):
    """With less room than SQLite has: a billion bytes take a minute."""
    body = b"x" * 60_000
    async with serving(tmp_path / "q.db") as (server, _):
        server._journal._writer._db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, len(body) + ROW_BYTES)
        assert await ask(await connect(server), put_bytes(body)) == b"INSERTED 1\r\n"


async def test_a_server_does_not_start_if_this_sqlite_has_less_room_than_max_job_size(tmp_path):
    with closing(sqlite3.connect(":memory:")) as connection:
        most = connection.getlimit(sqlite3.SQLITE_LIMIT_LENGTH) - ROW_BYTES
    settings = Settings(port=0, db=tmp_path / "q.db").model_copy(update={"max_job_size": most + 1})
    listener = open_listener(settings)
    with pytest.raises(ConfigError, match=f"^max_job_size = {most + 1} is more than .*; it may be {most} at most$"):
        await Server(settings, listener, make_journal(settings), utc_clock()).serve()
    listener.close()
    assert not list(tmp_path.iterdir())
