"""A full disk refuses puts until there is room: the real server and journal in this process."""

import asyncio
import contextlib
import sqlite3

import pytest

from beanlite.journal.sqlite.served import upkeep
from tests.support.inside import PUT, FullDisk, ask, connect, serving, until


async def test_a_full_disk_refuses_puts_and_goes_on_when_there_is_room(tmp_path, monkeypatch):
    monkeypatch.setattr(upkeep, "FULL_RETRY_S", 0.01)
    async with serving(tmp_path / "q.db") as (server, _):
        client, other = await connect(server), await connect(server)
        assert await ask(client, PUT) == b"INSERTED 1\r\n"
        journal = server.parts.journal._writer
        monkeypatch.setattr(journal.room, "take_reserve", lambda: False)
        disk = FullDisk(journal)
        client[1].write(b"put 0 0 10 60000\r\n" + b"y" * 60000 + b"\r\n")
        await until(lambda: server.parts.engine.admission.disk_full)
        assert await ask(other, PUT) == b"OUT_OF_MEMORY\r\n"
        assert not client[0]._buffer
        assert not (tmp_path / "q.db-reserve").exists()
        disk.make_room()
        assert await asyncio.wait_for(client[0].readline(), 10) == b"INSERTED 2\r\n"
        assert await ask(other, b"delete 1\r\n") == b"DELETED\r\n"
        assert await ask(other, PUT) == b"OUT_OF_MEMORY\r\n"
        monkeypatch.undo()
        await until(lambda: not server.parts.engine.admission.disk_full)
        assert await ask(other, PUT) == b"INSERTED 3\r\n"


async def test_puts_are_accepted_again_although_each_look_finds_a_batch(tmp_path, monkeypatch, disk):
    async with serving(tmp_path / "q.db") as (server, _):
        client = await connect(server)
        assert await ask(client, PUT) == b"INSERTED 1\r\n"
        monkeypatch.setattr(upkeep, "FULL_RETRY_S", 0.0)
        disk.free.clear()
        client[1].write(b"delete 1\r\n")
        await until(lambda: server.parts.journal.syncing)
        server.parts.journal._upkeep._disk_full()
        for _ in range(10):
            await asyncio.sleep(0)
        monkeypatch.setattr(upkeep, "FULL_RETRY_S", 3600.0)
        for _ in range(10):
            await asyncio.sleep(0)
        disk.free.set()
        assert await asyncio.wait_for(client[0].readline(), 10) == b"DELETED\r\n"
        await until(lambda: not server.parts.engine.admission.disk_full)


@pytest.mark.parametrize("hindrance", ["a full disk", "a lock"])
async def test_large_batch_is_written_apart_at_the_next_try_too(tmp_path, monkeypatch, hindrance):
    size = upkeep.APART_BYTES + 1
    async with serving(tmp_path / "q.db", max_job_size=size) as (server, _):
        client, writer = await connect(server), server.parts.journal._writer
        on_the_loop, write = [], writer.write

        def note(batch):
            on_the_loop.append(batch.body_bytes)
            write(batch)

        monkeypatch.setattr(writer, "write", note)
        with contextlib.closing(sqlite3.connect(tmp_path / "q.db", isolation_level=None)) as outsider:
            if hindrance == "a lock":
                outsider.execute("BEGIN IMMEDIATE")
            else:
                disk = FullDisk(writer)
            client[1].write(b"put 0 0 10 %d\r\n%b\r\n" % (size, b"y" * size))
            tries = server.parts.journal._upkeep
            await until(lambda: tries._lock is not None or server.parts.engine.admission.disk_full)
            if hindrance == "a lock":
                outsider.execute("ROLLBACK")
            else:
                disk.make_room()
            assert await asyncio.wait_for(client[0].readline(), 10) == b"INSERTED 1\r\n"
        assert not any(on_the_loop)


async def test_disk_that_is_full_again_at_once_is_asked_no_oftener(tmp_path):
    async with serving(tmp_path / "q.db") as (server, _):
        for _ in range(3):
            server.parts.journal._upkeep._disk_full()
            server.parts.engine.admission.accept_puts(server.parts.journal._writer.room.for_bodies())
        waits = [task for task in asyncio.all_tasks() if "_await_room" in repr(task.get_coro())]
        assert len(waits) == 1


async def test_look_amid_the_making_of_room_makes_it_no_second_time(tmp_path):
    async with serving(tmp_path / "q.db") as (server, _):
        upkeep_of_it = server.parts.journal._upkeep
        making = asyncio.ensure_future(upkeep_of_it._make_room())
        await asyncio.sleep(0)
        upkeep_of_it._room_due = True
        await making
        assert not upkeep_of_it._room_due
