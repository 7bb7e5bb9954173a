"""How connections end: with every reply read and no reset, and however many end at once, others are served."""

import asyncio
import os
import signal
import socket
import threading
from contextlib import suppress
from pathlib import Path

import pytest
import uvloop

from beanlite.net import roster
from beanlite.net.turns import LATE, TURN_NS, Turns
from beanlite.protocol.blocked import CLOSING, WAITING
from tests.support import inside
from tests.support.inside import CLIENTS, ask, connect, serving
from tests.support.servers import start_beanlite
from tests.support.tls_clients import rest_of
from tests.support.wire import Wire

BODY = b"x" * 60_000
PEEKS = 40
PART = 20_000
LOOPS = pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])


@pytest.fixture(params=["uvloop", "asyncio"])
def server(request, tmp_path):
    """One for two connections; for asyncio's own loop, uvloop is hidden."""
    environment = {}
    if request.param == "asyncio":
        (tmp_path / "uvloop.py").write_text("raise ImportError")
        environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])])
    with start_beanlite(tmp_path / "q", "--max-connections", "2", environment=environment) as server:
        yield server


def send_in_thread(client, data):
    def send():
        with suppress(ConnectionError):  # the test looks at what is read
            client.sendall(data)

    thread = threading.Thread(target=send)
    thread.start()
    return thread


def test_replies_before_a_quit_are_read_whatever_is_sent_after_it(server):
    with socket.socket() as client, Wire(server.connect()) as wire:
        job_id = wire.put(BODY)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # so that the rest is still the server's to send
        client.connect((server.host, server.port))
        thread = send_in_thread(client, b"peek %d\r\n" % job_id * PEEKS + b"quit\r\n" + b"junk\r\n" * 1_000_000)
        assert rest_of(client) == b"FOUND %d %d\r\n%b\r\n" % (job_id, len(BODY), BODY) * PEEKS
        thread.join()


async def leave_something_unsent(server, disk, end):
    """Return a client that is done, and has not read its last reply, for which the kernel has no room."""
    client = socket.socket()
    client.settimeout(20)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    host, port = server._listener.address.split(":")
    client.connect((host, int(port)))
    await inside.until(lambda: len(server.parts.roster) == 1)
    (connection,) = server.parts.roster.connections.values()
    connection.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    disk.free.clear()  # the end is heard while the replies are held
    client.sendall(b"put 0 0 60 %d\r\n%b\r\npeek-ready\r\n" % (len(BODY), BODY))
    client.sendall(b"quit\r\n") if end == "quit" else client.shutdown(socket.SHUT_WR)
    session = connection.session
    await inside.until(lambda: session.half_closed or session.blocked is CLOSING)
    disk.free.set()
    await inside.until(lambda: not server.parts.roster.connections)
    assert connection.transport.get_write_buffer_size()
    return client


@LOOPS
@pytest.mark.parametrize("end", ["quit", "half-close"])
def test_client_that_is_done_and_reads_nothing_is_cut_off(tmp_path, monkeypatch, disk, new_loop, end):
    monkeypatch.setattr(roster, "FAREWELL_S", 0.1)

    async def serve():
        async with serving(tmp_path / "q.db") as (server, _):
            with await leave_something_unsent(server, disk, end):
                await inside.until(lambda: not len(server.parts.roster))

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(serve())


@LOOPS
@pytest.mark.parametrize("end", ["quit", "half-close"])
def test_client_that_is_done_and_reads_slowly_gets_all(tmp_path, monkeypatch, disk, new_loop, end):
    monkeypatch.setattr(roster, "FAREWELL_S", 0.5)
    looks = []
    look = roster.Farewell._end_if_quiet
    monkeypatch.setattr(roster.Farewell, "_end_if_quiet", lambda self: (looks.append(self), look(self)))

    async def serve():
        async with serving(tmp_path / "q.db") as (server, _):
            with await leave_something_unsent(server, disk, end) as client:
                data = b""
                for number in range(3):
                    data += client.recv(PART)
                    await inside.until(lambda: len(looks) > number)  # noqa: B023
                data += await asyncio.to_thread(rest_of, client)
                assert data == b"INSERTED 1\r\nFOUND 1 %d\r\n%b\r\n" % (len(BODY), BODY)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(serve())


def test_client_that_quits_without_closing_makes_room_for_others(server):
    with Wire(server.connect()) as idle, Wire(server.connect()) as wire:
        idle.send(b"quit\r\n")
        assert idle.is_closed()
        for _ in range(3):
            with Wire(server.connect()) as other:
                assert other.ask("list-tube-used") == "USING default"
                assert wire.ask("list-tube-used") == "USING default"
                other.send(b"quit\r\n")
                assert other.is_closed()


def test_a_stop_resets_nobody(server):
    with server.connect() as client, Wire(server.connect()) as wire:
        commands = b"put 0 0 60 1\r\nx\r\nwatch other\r\nignore default\r\nreserve\r\n"
        thread = send_in_thread(client, commands + b"junk\r\n" * 1_000_000)
        while wire.stats()["current-waiting"] != "1":
            pass
        server.signal(signal.SIGTERM)
        assert rest_of(client) == b"INSERTED 1\r\nWATCHING 2\r\nWATCHING 1\r\n"
        thread.join()
        assert server.stop() == 0


async def test_client_that_quits_without_closing_is_closed_in_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(roster, "FAREWELL_S", 0.0)
    async with serving(tmp_path / "q.db") as (server, _):
        client = await connect(server)
        client[1].write(b"quit\r\n")
        assert await client[0].read() == b""
        await inside.until(lambda: not len(server.parts.roster))


async def test_connection_that_ended_is_not_waited_for(tmp_path, monkeypatch):
    async with serving(tmp_path / "q.db") as (server, _):
        client = await connect(server)
        assert await ask(client, b"list-tube-used\r\n") == b"USING default\r\n"
        (connection,) = server.parts.roster.connections.values()
        later = []
        with monkeypatch.context() as patch:
            patch.setattr(Turns, "leave", lambda _, leave: later.append(leave))
            connection.transport.abort()
            await inside.until(lambda: later)
        connection.part()
        assert len(server.parts.roster) == 1
        later.pop()()
        assert len(server.parts.roster) == 0


async def test_connections_are_kept_alive(tmp_path):
    async with serving(tmp_path / "q.db") as (server, _):
        await connect(server)
        await inside.until(lambda: server.parts.roster.connections)
        (connection,) = server.parts.roster.connections.values()
        sock = connection.transport.get_extra_info("socket")
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


@pytest.mark.parametrize("way", ["eof_received", "connection_lost"])
async def test_some_of_many_clients_that_leave_at_once_leave_in_later_turns(tmp_path, monkeypatch, way):
    many = 20
    async with serving(tmp_path / "q.db") as (server, _):
        for _ in range(many):
            assert await ask(await connect(server), b"list-tube-used\r\n") == b"USING default\r\n"
        times_ns = iter(range(1 << 50, 1 << 51, TURN_NS // 4))
        monkeypatch.setattr(server.wiring.turns, "_clock", lambda: next(times_ns))
        for connection in list(server.parts.roster.connections.values()):
            connection.eof_received() if way == "eof_received" else connection.connection_lost(None)
        assert 0 < server.parts.engine.counts.clients < many
        before = server.parts.engine.counts.clients
        await asyncio.sleep(0)
        assert 0 < server.parts.engine.counts.clients < before
        await inside.until(lambda: not server.parts.engine.counts.clients)
        for _, writer in CLIENTS:
            writer.transport.abort()


async def test_gone_client_gets_no_job_before_its_turn_to_leave_has_come(tmp_path, monkeypatch):
    async with serving(tmp_path / "q.db") as (server, _):
        gone, there = await connect(server), await connect(server)
        gone[1].write(b"reserve\r\n")
        await inside.until(lambda: server.parts.engine.counts.waiting)
        (connection,) = [each for each in server.parts.roster.connections.values() if each.session.blocked is WAITING]
        monkeypatch.setattr(Turns, "now_unless_late", lambda _: LATE)
        connection.connection_lost(None)
        monkeypatch.undo()
        connection.data_received(b"list-tube-used\r\n")  # and is told nothing any more
        assert not server.parts.engine.counts.waiting
        assert not connection.session.client.gone
        assert await ask(there, b"put 0 0 60 1\r\nx\r\n") == b"INSERTED 1\r\n"
        assert server.parts.engine.jobs.find(1).reserves == 0
        await inside.until(lambda: connection.session.client.gone)
        gone[1].transport.abort()
