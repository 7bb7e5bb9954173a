"""Warnings that could come endlessly: each problem is logged, but the log is not flooded."""

import asyncio
import contextlib
import errno
import sqlite3
import subprocess
import sys

import pytest

from beanlite.journal.sqlite.served import frames, timing, upkeep
from tests.support.inside import PUT, FullDisk, ask, connect, serving, until
from tests.support.wire import put_bytes

TIMES = 3
LARGE = put_bytes(b"x" * 60_000)  # about 15 frames of the -wal


@pytest.fixture
def logged(caplog):
    """A function that returns how many lines of the log begin with a text."""
    return lambda event: sum(message.startswith(event) for message in caplog.messages)


async def put(client, data=PUT):
    assert (await ask(client, data)).startswith(b"INSERTED")


async def test_a_reader_that_keeps_the_wal_from_shrinking(tmp_path, monkeypatch, logged):
    monkeypatch.setattr(frames, "CHECKPOINT_FRAMES", 10)
    monkeypatch.setattr(frames, "_FRAMES_MAX", 30)
    async with serving(tmp_path / "q.db") as (server, _):
        client = await connect(server)
        for reading in (1, 2):
            with contextlib.closing(sqlite3.connect(tmp_path / "q.db", isolation_level=None)) as reader:
                reader.execute("BEGIN")
                reader.execute("SELECT count(*) FROM jobs").fetchone()
                while server.parts.journal._writer.frames.at_checkpoint < 30 << 3:
                    await put(client, LARGE)
                assert logged("a reader keeps the -wal from shrinking") == reading * 3  # at 30, 60 and 120
            while server.parts.journal._writer.frames.at_checkpoint > 30:
                await put(client, LARGE)


CHECKPOINTER = """
import fcntl, sys
with open(sys.argv[1], "r+b") as index:
    fcntl.lockf(index, fcntl.LOCK_EX, 1, 121)
    print("locked", flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def checkpointing(path):
    """Another program that is amid a checkpoint all the while."""
    command = [sys.executable, "-c", CHECKPOINTER, f"{path}-shm"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        assert program.stdout.readline() == b"locked\n"
        yield


async def test_a_program_that_never_ends_its_checkpoint(tmp_path, monkeypatch, logged):
    """SQLite then reports no number of frames at all."""
    monkeypatch.setattr(frames, "CHECKPOINT_FRAMES", 10)
    monkeypatch.setattr(frames, "_FRAMES_MAX", 30)
    async with serving(tmp_path / "q.db") as (server, _):
        client = await connect(server)
        with checkpointing(tmp_path / "q.db"):
            while server.parts.journal._writer.frames.committed < 30 << 3:
                await put(client, LARGE)
        assert logged("a reader keeps the -wal from shrinking") == 3


async def test_slow_syncs(tmp_path, monkeypatch, logged):
    monkeypatch.setattr(timing, "SLOW_SYNC_S", -1.0)
    async with serving(tmp_path / "q.db") as (server, _):
        client = await connect(server)
        for _ in range(TIMES):
            await put(client)
    assert logged("slow sync") == 1


def dropped(part):
    """How many of its warnings were not logged."""
    return sum(times for _, times in part._oddities._dropped.values())


async def test_commits_that_wait_for_a_lock(tmp_path, monkeypatch, logged):
    monkeypatch.setattr(upkeep, "LOCKED_S", -1.0)
    async with serving(tmp_path / "q.db", fsync="never") as (server, _):
        client = await connect(server)
        for _ in range(TIMES):
            with contextlib.closing(sqlite3.connect(tmp_path / "q.db", isolation_level=None)) as outsider:
                outsider.execute("BEGIN IMMEDIATE")
                client[1].write(PUT)
                await until(lambda: server.parts.journal.busy)
                await asyncio.sleep(0)
            assert (await asyncio.wait_for(client[0].readline(), 10)).startswith(b"INSERTED")
        assert dropped(server.parts.journal._upkeep) == TIMES - 1
    assert logged("commits wait") == 1


async def test_commits_that_wait_for_room(tmp_path, monkeypatch, logged):
    monkeypatch.setattr(upkeep, "FULL_RETRY_S", 0.001)
    async with serving(tmp_path / "q.db") as (server, _):
        client = await connect(server)
        for times in range(1, TIMES + 1):
            await until(lambda: not server.parts.engine.admission.disk_full)
            disk = FullDisk(server.parts.journal._writer)
            client[1].write(LARGE)
            await until(
                lambda times=times: logged("commits are waiting") + dropped(server.parts.journal._upkeep) == times
            )
            disk.make_room()
            assert (await asyncio.wait_for(client[0].readline(), 10)).startswith(b"INSERTED")
    assert logged("commits are waiting") == 1


async def test_connections_that_can_not_be_accepted(tmp_path, logged):
    """As asyncio reports them when the file descriptors are used up."""
    async with serving(tmp_path / "q.db") as (server, _):
        for _ in range(TIMES):
            error = OSError(errno.EMFILE, "Too many open files")
            server.loop.call_exception_handler({"message": "socket.accept() failed", "exception": error})
        await put(await connect(server))
    assert logged("socket.accept() failed") == 1
