"""What a real server records in its file for later queries: history, totals, and whether it is alive."""

import asyncio
import signal
import sqlite3
from contextlib import closing

from beanlite.commit import group
from beanlite.journal.sqlite.served import leisure
from tests.support.inside import PUT, ask as ask_wire, beat_often, connect, serving, until as until_inside
from tests.support.servers import start_beanlite
from tests.support.wire import Wire, until

HISTORY = ("--history", "7d")


def ask(path, sql):
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
        return connection.execute(sql).fetchall()


def test_history_and_totals_outlive_a_kill(tmp_path):
    path = tmp_path / "queue.db"
    with start_beanlite(tmp_path, *HISTORY) as server, Wire(server.connect()) as wire:
        held, late = wire.put(b"held"), wire.put(b"late", delay_s=5)
        wire.ask("reserve")
        until(lambda: ask(path, "SELECT put, reserved FROM hours") == [(2, 1)])
        assert ask(path, "SELECT status FROM alive") == [("serving",)]
        address = f"127.0.0.1:{wire.socket.getsockname()[1]}"
        assert ask(path, "SELECT id, holder, holder_conn > 0 FROM reserved") == [(held, address, 1)]
        server.kill()
    until(lambda: ask(path, f"SELECT due_in_s < 0 FROM all_jobs WHERE id = {late}") == [(1,)])  # noqa: S608
    with start_beanlite(tmp_path, *HISTORY) as server, Wire(server.connect()) as wire:
        told = ask(path, "SELECT job, what, by, delay_s FROM events ORDER BY at, job")
        assert told == [
            (held, "put", address, 0),
            (late, "put", address, 5),
            (held, "reserve", address, 0),
            (held, "restart", None, 0),
            (late, "restart", None, 0),
        ]
        assert ask(path, "SELECT id, holder, in_state_s < 60 FROM ready") == [(held, address, 1), (late, None, 1)]
        wire.ask(f"delete {held}")
        until(lambda: ask(path, "SELECT put, reserved, deleted FROM hours") == [(2, 1, 1)])
        server.signal(signal.SIGTERM)
        server.process.wait()
    assert ask(path, "SELECT status FROM alive") == [("stopped in an orderly way",)]
    assert ask(path, "SELECT what FROM events WHERE n > (SELECT max(n) FROM events WHERE what = 'restart')") == [
        ("delete",)
    ]


def test_a_stop_writes_what_was_counted_last(tmp_path):
    with start_beanlite(tmp_path) as server, Wire(server.connect()) as wire:
        wire.put(b"job")
        wire.ask("reserve")
    assert ask(tmp_path / "queue.db", "SELECT put, reserved, held_s > 0 FROM hours") == [(1, 1, 1)]
    assert ask(tmp_path / "queue.db", "SELECT * FROM history") == []


async def test_a_batch_that_is_tried_again_tells_everything_once(tmp_path, monkeypatch):
    monkeypatch.setattr(group, "TOTALS_S", 0.0)
    path = tmp_path / "q.db"
    async with serving(path, history="7d") as (server, _):
        client = await connect(server)
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            waiting = asyncio.create_task(ask_wire(client, PUT))
            await until_inside(lambda: server.parts.journal._under_way.busy)
            await asyncio.sleep(0.01)
            other.execute("COMMIT")
        assert await waiting == b"INSERTED 1\r\n"
        await until_inside(lambda: ask(path, "SELECT put FROM hours"))
        assert ask(path, "SELECT what FROM history") == [("put",)]
        assert ask(path, "SELECT put FROM hours") == [(1,)]


async def test_what_is_too_old_goes_while_nothing_else_happens(tmp_path, monkeypatch):
    monkeypatch.setattr(leisure, "PRUNE_LOOK_S", 0.01)
    path = tmp_path / "q.db"
    async with serving(path, history="1s") as (server, _):
        client = await connect(server)
        for number in range(1, 31):
            assert await ask_wire(client, PUT) == b"INSERTED %d\r\n" % number
        await until_inside(lambda: ask(path, "SELECT * FROM history") == [])
        assert len(ask(path, "SELECT * FROM jobs")) == 30


async def test_an_idle_server_gives_a_sign_of_life(tmp_path, monkeypatch, disk):
    beat_often(monkeypatch)
    path = tmp_path / "q.db"
    async with serving(path):
        ((before,),) = ask(path, "SELECT seen_at FROM server")
        await until_inside(lambda: ask(path, "SELECT seen_at FROM server") > [(before,)])
        syncs = disk.syncs
        await until_inside(lambda: disk.syncs > syncs)
