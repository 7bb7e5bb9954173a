"""A sync that fails ends the server, which acknowledges nothing more."""

import asyncio
import errno

import pytest

from beanlite.errors import JournalFailed
from tests.support.inside import PUT, beat_often, connect, serving, until


async def test_failed_sync_ends_the_server_and_acknowledges_nothing(tmp_path, disk):
    async with serving(tmp_path / "q.db") as (server, task):
        client, second = await connect(server), await connect(server)
        disk.error = errno.EIO
        client[1].write(PUT)
        second[1].write(PUT)
        with pytest.raises(JournalFailed, match="sync"):
            await asyncio.wait_for(asyncio.shield(task), 10)
        assert not client[0]._buffer
        assert not second[0]._buffer


async def test_failed_sync_of_a_slice_and_of_a_batch_is_told_to_both(tmp_path, disk, monkeypatch):
    beat_often(monkeypatch)
    async with serving(tmp_path / "q.db") as (server, task):
        client = await connect(server)
        disk.free.clear()
        await until(lambda: disk.under_way)  # for a heartbeat
        client[1].write(PUT)
        await until(lambda: len(disk.under_way) == 2)
        disk.error = errno.EIO
        disk.free.set()
        with pytest.raises(JournalFailed, match="sync"):
            await asyncio.wait_for(asyncio.shield(task), 10)
        assert not client[0]._buffer
