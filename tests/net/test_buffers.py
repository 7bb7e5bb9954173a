"""What is buffered for all clients together has a bound, and those who have held the most time go first."""

import asyncio
import contextlib
import signal
import socket
from pathlib import Path

import pytest

from beanlite.commit import group
from beanlite.core.admission import Admission
from beanlite.core.memory import PART, Memory
from beanlite.core.queues import Queues
from beanlite.net.buffers import COUNTED_FROM, UNSENT_BYTES_MAX, Buffers
from beanlite.net.refusals import Refusals
from tests.support import inside
from tests.support.inside import PUT, ask, connect, serving
from tests.support.servers import start_beanlite
from tests.support.wire import Wire, until

MIB = 1 << 20


class Holder:
    closed = False

    def cut_off(self):
        self.closed = True


@pytest.fixture
def memory():
    memory = Memory(Queues())
    memory.bound(100_000 * PART, 1, fetches=False)
    return memory


def test_client_with_the_oldest_buffer_is_closed(memory):
    refusals = Refusals()
    buffers = Buffers(memory, Admission(memory), refusals)
    first, second, third, small = (Holder() for _ in range(4))
    buffers.note(small, COUNTED_FROM - 1)
    buffers.note(first, 30_000)
    buffers.note(second, 30_000)
    buffers.note(first, 60_000)  # it has held some since then
    assert memory.buffer_bytes == 90_000
    buffers.note(third, 50_000)
    assert [each.closed for each in (first, second, third, small)] == [True, False, False, False]
    assert memory.buffer_bytes == 80_000
    assert refusals.counts["buffers"] == 1
    buffers.note(second, 0)
    buffers.note(second, 40_000)
    buffers.note(small, 50_000)
    assert [each.closed for each in (first, second, third, small)] == [True, False, True, False]
    for each in (first, second, third, small):
        buffers.note(each, 0)
    assert memory.buffer_bytes == 0
    assert buffers.amounts == {}


def test_one_client_alone_may_fill_all_buffers(memory):
    buffers, holder = Buffers(memory, Admission(memory), Refusals()), Holder()
    buffers.note(holder, 1_000_000)
    assert not holder.closed


def test_half_sent_bodies_close_the_first_client_and_spare_the_rest(tmp_path):
    flags = ("--no-journal", "--max-memory", "16MiB", "--max-job-size", str(2 * MIB))
    with start_beanlite(tmp_path, *flags) as server, Wire(server.connect()) as other:
        wires = [Wire(server.connect()) for _ in range(5)]
        for number, wire in enumerate(wires, 1):
            wire.send(b"put 0 0 10 %d\r\n" % MIB + b"x" * (MIB - 10_000))
            until(lambda: int(other.stats()["memory-buffers"]) > min(number, 4) * (MIB - 20_000))  # noqa: B023
        until(lambda: other.stats()["refused-buffers"] == "1")
        assert wires[0].is_closed()
        wires[0].close()
        for wire in wires[1:]:
            wire.send(b"x" * 10_000 + b"\r\n")
            assert wire.reply().startswith("INSERTED ")
            wire.close()
        until(lambda: other.stats()["memory-buffers"] == "0")
        assert "too much is buffered for slow clients" in server.log_text()


def peak_kib(server):
    """Return the most that has been resident so far."""
    status = Path(f"/proc/{server.process.pid}/status").read_text(encoding="utf-8")
    return int(status.partition("VmHWM:")[2].split()[0])


def test_crowd_that_is_cut_off_at_once_stays_within_the_bound(tmp_path):
    """What clients have sent meanwhile is there at once when a server that was halted goes on."""
    flags = ("--max-memory", "16MiB", "--max-job-size", str(MIB))
    with contextlib.ExitStack() as crowd:
        server = crowd.enter_context(start_beanlite(tmp_path, *flags, forked=False))
        other = crowd.enter_context(Wire(server.connect()))
        sockets = [crowd.enter_context(server.connect()) for _ in range(300)]
        until(lambda: other.stats()["current-connections"] == "301")
        Path(f"/proc/{server.process.pid}/clear_refs").write_text("5")  # the peak counts from here
        before_kib = peak_kib(server)
        server.signal(signal.SIGSTOP)
        for sock in sockets:
            sock.setblocking(False)
            sock.send(b"put 0 0 10 %d\r\n" % MIB + b"x" * 900_000)
        server.signal(signal.SIGCONT)
        until(lambda: int(other.stats()["refused-buffers"]) > 100)
        assert peak_kib(server) - before_kib < 1.25 * 16 * 1024


async def test_replies_of_a_client_that_is_cut_off_count_until_it_is_gone(tmp_path):
    async with serving(tmp_path / "q.db", max_memory=16 * MIB) as (server, _):
        client, other = await connect(server), await connect(server)
        memory = server.parts.engine.memory
        assert await ask(client, b"put 0 0 60 60000\r\n%b\r\n" % (b"x" * 60_000)) == b"INSERTED 1\r\n"
        (connection, _) = server.parts.roster.connections.values()
        client[1].transport.pause_reading()
        client[1].write(b"peek 1\r\n" * 200)
        await inside.until(lambda: connection.transport.get_write_buffer_size() > 100_000)
        unread_bytes = connection.transport.get_write_buffer_size()
        for _ in range(2):
            connection.ending.cut_off()
            assert memory.held_bytes == unread_bytes
        assert await ask(other, b"peek 2\r\n") == b"NOT_FOUND\r\n"
        assert memory.held_bytes == 0


async def narrow(server):
    """Return a client that reads nothing, its connection, and what has it read: the kernel keeps little in between."""
    reader, writer = await connect(server)
    assert await ask((reader, writer), b"list-tube-used\r\n") == b"USING default\r\n"
    *_, connection = server.parts.roster.connections.values()
    connection.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    writer.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    writer.transport.pause_reading()
    return (reader, writer), connection, writer.transport.resume_reading


async def test_client_that_reads_no_small_replies_is_served_no_more(tmp_path):
    async with serving(tmp_path / "q.db") as (server, _):
        _, connection, read = await narrow(server)
        for _ in range(5000):
            connection.data_received(b"list-tube-used\r\n")
            if not connection._flow.reading:
                break
        assert connection.transport.get_write_buffer_size() <= UNSENT_BYTES_MAX + 20
        read()
        await inside.until(lambda: connection._flow.reading)


async def test_no_bodies_are_fetched_for_a_client_that_reads_none(tmp_path):
    body, jobs = b"x" * 20_000, 8
    async with serving(tmp_path / "q.db") as (server, _):
        (reader, writer), connection, read = await narrow(server)
        other = await connect(server)
        engine = server.parts.engine
        for job_id in range(1, jobs + 1):
            assert await ask(other, b"put 0 0 60 20000\r\n%b\r\n" % body) == b"INSERTED %d\r\n" % job_id
            engine.bodies.unload(engine.jobs.find(job_id))
        writer.write(b"".join(b"peek %d\r\n" % job_id for job_id in range(1, jobs + 1)))
        await inside.until(lambda: not connection._flow.reading)
        assert await inside.is_silent(await connect(server), other)
        assert connection.transport.get_write_buffer_size() < 2 * len(body)
        read()
        for job_id in range(1, jobs + 1):
            assert await reader.readline() == b"FOUND %d 20000\r\n" % job_id
            assert await reader.readexactly(len(body) + 2) == body + b"\r\n"


async def test_client_whose_turn_comes_before_it_has_read_waits_on(tmp_path):
    body = b"x" * 60_000
    async with serving(tmp_path / "q.db") as (server, _):
        (reader, writer), connection, read = await narrow(server)
        assert await ask(await connect(server), b"put 0 0 60 60000\r\n%b\r\n" % body) == b"INSERTED 1\r\n"
        writer.write(b"peek 1\r\n")
        await inside.until(lambda: connection._flow.unread)
        unread_bytes = connection.transport.get_write_buffer_size()
        connection.session.postpone(b"peek 1\r\n")
        connection.resume()
        assert connection.transport.get_write_buffer_size() == unread_bytes
        read()
        for _ in range(2):
            assert await reader.readline() == b"FOUND 1 60000\r\n"
            assert await reader.readexactly(len(body) + 2) == body + b"\r\n"


async def test_events_that_are_not_read_are_counted(tmp_path):
    async with serving(tmp_path / "q.db") as (server, _):
        (_, writer), connection, _ = await narrow(server)
        other = await connect(server)
        writer.write(b"watch-events 2\r\n{}\r\n")
        await inside.until(lambda: server.parts.feed._watchers)
        other[1].write(PUT * 1000)
        unread_bytes = connection.transport.get_write_buffer_size
        await inside.until(lambda: unread_bytes() > 50_000)
        assert server.parts.engine.memory.buffer_bytes == unread_bytes()


async def test_job_for_a_client_that_has_much_to_read_is_counted_too(tmp_path):
    put = b"put 0 0 60 60000\r\n%b\r\n" % (b"x" * 60_000)
    async with serving(tmp_path / "q.db") as (server, _):
        client, _, read = await narrow(server)
        other = await connect(server)
        assert await ask(other, put) == b"INSERTED 1\r\n"
        client[1].write(b"peek 1\r\nuse none\r\nwatch none\r\nignore default\r\nreserve\r\n")
        memory = server.parts.engine.memory
        await inside.until(lambda: memory.buffer_bytes)
        before = memory.buffer_bytes
        assert await ask(other, b"use none\r\n") == b"USING none\r\n"
        assert await ask(other, put) == b"INSERTED 2\r\n"
        await inside.until(lambda: memory.buffer_bytes >= before + 60_000)
        read()
        await inside.until(lambda: not memory.buffer_bytes)


async def test_replies_that_are_not_read_before_a_quit_count_until_they_are(tmp_path):
    body, peeks = b"x" * 60_000, 4
    async with serving(tmp_path / "q.db") as (server, _):
        reader, writer = client = await connect(server)
        assert await ask(client, b"put 0 0 60 60000\r\n%b\r\n" % body) == b"INSERTED 1\r\n"
        (connection,) = server.parts.roster.connections.values()
        connection.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        writer.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 15)
        writer.transport.pause_reading()
        writer.write(b"peek 1\r\n" * peeks + b"quit\r\n")
        await inside.until(lambda: connection.session.client.gone)
        assert server.parts.engine.memory.buffer_bytes > 100_000
        writer.transport.resume_reading()
        assert await reader.read() == b"FOUND 1 60000\r\n%b\r\n" % body * peeks
        writer.close()
        await inside.until(lambda: not server.parts.engine.memory.buffer_bytes)


async def test_bodies_that_are_gathered_for_a_reply_are_counted(tmp_path, disk, monkeypatch):
    body = b"x" * 60_000
    async with serving(tmp_path / "q.db") as (server, _):
        client, other, another = [await connect(server) for _ in range(3)]
        engine = server.parts.engine
        for job_id in range(1, 4):
            await ask(client, b"put 0 0 60 60000\r\n%b\r\n" % body)
            engine.bodies.unload(engine.jobs.find(job_id))
        disk.free.clear()
        other[1].write(PUT)
        await inside.until(lambda: server.wiring.group_commit.syncing)
        another[1].write(PUT)
        await inside.until(lambda: engine.last_id == 5)
        fetch = server.parts.journal.fetch

        async def fetch_while_the_batch_is_full(job_ids):
            monkeypatch.setattr(group, "BATCH_REPLIES", 0)
            return await fetch(job_ids)

        monkeypatch.setattr(server.parts.journal, "fetch", fetch_while_the_batch_is_full)
        client[1].write(b"reserve-batch 3 0\r\n")
        await inside.until(lambda: engine.memory.buffer_bytes == 3 * len(body))
        disk.free.set()
        assert await asyncio.wait_for(client[0].readline(), 10) == b"RESERVED_BATCH 3\r\n"
        await inside.until(lambda: not engine.memory.buffer_bytes)


def test_buffers_change_the_room_for_puts_without_waiting_for_a_batch(memory):
    admission = Admission(memory)
    admission.grant()
    room_bytes = admission.room_bytes
    buffers, holder = Buffers(memory, admission, Refusals()), Holder()
    buffers.note(holder, 50_000)
    assert admission.room_bytes == room_bytes - 50_000 * 4 // 5
    buffers.note(holder, 0)
    assert admission.room_bytes == room_bytes
