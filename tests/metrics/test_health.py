"""What a probe is answered, and that nobody can make more of it than that."""

import asyncio
import signal
import socket

import pytest

from beanlite.host.clock import Clock
from beanlite.journal.sqlite.served.journal import SqliteJournal
from beanlite.net import health
from beanlite.net.listener import open_listener
from beanlite.server.server import Server
from beanlite.server.start import make_journal
from beanlite.settings.config import Settings
from beanlite.settings.values import is_loopback
from tests.support.health import ask, start_watched
from tests.support.inside import PUT, connect, serving, until
from tests.support.servers import ServerDied, start_beanlite
from tests.support.wire import Wire


@pytest.fixture(scope="module")
def where(tmp_path_factory):
    server, where = start_watched(tmp_path_factory.mktemp("server"))
    with server:
        yield where


def test_without_the_setting_nobody_listens_and_nothing_is_measured(tmp_path):
    with start_beanlite(tmp_path) as server:
        assert "health" not in server.log_text()


@pytest.mark.parametrize(
    ("method", "path", "status", "body"),
    [
        ("GET", "/healthz", 200, "alive\n"),
        ("GET", "/readyz", 200, "ready\n"),
        ("GET", "/readyz?verbose", 200, "ready\n"),
        ("HEAD", "/healthz", 200, ""),
        ("HEAD", "/metrics", 200, ""),
        ("HEAD", "/nothing", 404, ""),
        ("GET", "/", 404, "there are /healthz, /readyz and /metrics\n"),
        ("POST", "/metrics", 405, "only GET and HEAD\n"),
        ("DELETE", "/healthz", 405, "only GET and HEAD\n"),
    ],
)
def test_answers(where, method, path, status, body):
    assert ask(where, path, method) == (status, body)


def raw(where, *parts):
    host, port = where.split(":")
    with socket.create_connection((host, int(port)), 20) as client:
        for part in parts:
            client.sendall(part)
        said = b""
        while data := client.recv(1 << 16):
            said += data
    return said.partition(b"\r\n")[0]


@pytest.mark.parametrize(
    ("parts", "answer"),
    [
        ([b"GET /healthz HTTP/1.0\r\n\r\n"], b"HTTP/1.1 200 OK"),
        ([b"GET /hea", b"lthz?x=1 HTTP/1.1\r\nHost: x\r\n", b"\r\n"], b"HTTP/1.1 200 OK"),
        ([b"GET /healthz HTTP/1.1\r\n\r\nGET /nothing HTTP/1.1\r\n\r\n"], b"HTTP/1.1 200 OK"),  # one answer each
        ([b"stats\r\n\r\n"], b"HTTP/1.1 400 Bad Request"),
        ([b"GET /healthz\r\n\r\n"], b"HTTP/1.1 400 Bad Request"),
        ([b"\xff \xff \xff\r\n\r\n"], b"HTTP/1.1 400 Bad Request"),
        ([b"GET /" + b"x" * health.REQUEST_MAX], b"HTTP/1.1 400 Bad Request"),
        ([b"GET /healthz HTTP/1.1\r\nX: ".ljust(health.REQUEST_MAX - 4, b"x") + b"\r\n\r\n"], b"HTTP/1.1 200 OK"),
        (
            [b"GET /healthz HTTP/1.1\r\nX: ".ljust(health.REQUEST_MAX - 3, b"x") + b"\r\n\r\n"],
            b"HTTP/1.1 400 Bad Request",
        ),
    ],
)
def test_what_comes_over_the_wire(where, parts, answer):
    assert raw(where, *parts) == answer


def test_an_address_that_is_taken_is_told_at_the_start(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            ServerDied, match=f"can't listen on 127.0.0.1 port {port}, for --health: Address already in use\n?$"
        ):
            start_beanlite(tmp_path, "--health", f"127.0.0.1:{port}")


def place(server):
    return server._vitals._health._servers[0].sockets[0].getsockname()


async def status_of(server, path="/readyz", host="localhost"):
    reader, writer = await asyncio.open_connection(*place(server))
    writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    answer = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    await writer.wait_closed()
    return int(answer.split()[1]), answer.partition(b"\r\n\r\n")[2].decode()


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:11381", 200),
        ("127.0.0.1", 200),
        ("[::1]:11381", 200),
        ("[::1]", 200),
        ("10.1.2.3:11381", 200),
        ("localhost:11381", 200),
        ("LOCALHOST.", 200),
        ("queue.localhost:11381", 200),
        ("beanlite:11381", 200),  # a service of Compose or Kubernetes, or this machine
        ("", 200),
        ("rebound.example.com:11381", 421),
        ("rebound.example.com", 421),
        ("rebound.example.com.:11381", 421),
        ("127.0.0.1.example.com", 421),
        ("localhost.example.com:11381", 421),
        ("a.b:c:d", 421),
    ],
)
@pytest.mark.parametrize("path", ["/metrics", "/readyz", "/healthz"])
def test_a_name_that_was_rebound_is_refused(where, path, host, status):
    answer = raw(where, b"HEAD %b HTTP/1.1\r\nX: y\r\nhOST:%b \r\n\r\n" % (path.encode(), host.encode()))
    assert int(answer.split()[1]) == status


def test_a_second_host_does_not_hide_the_first(where):
    for hosts in ([b"rebound.example.com", b"localhost"], [b"localhost", b"rebound.example.com"]):
        sent = b"GET /readyz HTTP/1.1\r\n" + b"".join(b"Host: %b\r\n" % host for host in hosts) + b"\r\n"
        assert raw(where, sent) == b"HTTP/1.1 421 Misdirected Request"


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_a_name_that_was_rebound_is_refused_at_all_addresses(tmp_path, host):
    async with serving(tmp_path / "queue.db", health="[::]:0") as (server, _):
        reader, writer = await asyncio.open_connection(host, place(server)[1])
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: rebound.example.com\r\n\r\n")
        assert (await asyncio.wait_for(reader.readline(), 10)).startswith(b"HTTP/1.1 421")
        writer.close()


@pytest.mark.parametrize(
    ("host", "only_here"),
    [
        ("localhost", True),
        ("127.0.0.9", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("::ffff:7f00:9", True),
        ("::ffff:10.0.0.1", False),
        ("::", False),
        ("10.0.0.1", False),
        ("queue.example.com", False),
    ],
)
def test_loopback_is_what_only_this_machine_can_reach(host, only_here):
    assert is_loopback(host) == only_here


async def test_over_the_network_any_name_is_served(tmp_path, monkeypatch):
    monkeypatch.setattr(health, "is_loopback", lambda _host: False)
    async with serving(tmp_path / "queue.db", health="127.0.0.1:0") as (server, _):
        assert await status_of(server, host="queue.example.com") == (200, "ready\n")


async def test_clients_that_send_no_request_keep_no_probe_out(tmp_path):
    async with serving(tmp_path / "queue.db", health="127.0.0.1:0") as (server, _):
        connections = server._vitals._health.connections
        silent = [await asyncio.open_connection(*place(server)) for _ in range(health.CONNECTIONS_MAX)]
        silent[0][1].write(b"GET /hea")
        await until(lambda: len(connections) == health.CONNECTIONS_MAX)
        for number in range(3):
            assert await status_of(server) == (200, "ready\n")
            await until(lambda: len(connections) == health.CONNECTIONS_MAX - 1)
            more = await asyncio.open_connection(*place(server))
            await until(lambda: len(connections) == health.CONNECTIONS_MAX)
            assert await asyncio.wait_for(silent[number][0].read(), 10) == b""  # those that have waited longest
            silent.append(more)
        silent[-1][1].write(b"GET /healthz HTTP/1.1\r\n\r\n")
        assert (await silent[-1][0].readline()).startswith(b"HTTP/1.1 200")
        for _, each in silent:
            each.close()
        await until(lambda: not connections)


async def test_a_page_that_is_being_made_is_not_given_up_for_others(tmp_path):
    async with serving(tmp_path / "queue.db", health="127.0.0.1:0") as (server, _):
        free = asyncio.Event()

        async def held_up():
            await free.wait()
            return b"page\n"

        server._vitals._health.page = held_up
        asking = [asyncio.create_task(status_of(server, "/metrics")) for _ in range(health.CONNECTIONS_MAX)]
        await until(lambda: sum(visit.is_busy for visit in server._vitals._health.connections) == len(asking))
        reader, writer = await asyncio.open_connection(*place(server))
        assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()
        free.set()
        assert await asyncio.gather(*asking) == [(200, "page\n")] * health.CONNECTIONS_MAX


async def test_slow_request_is_cut_off(tmp_path, monkeypatch):
    monkeypatch.setattr(health, "LASTS_S", 0.01)
    async with serving(tmp_path / "queue.db", health="127.0.0.1:0") as (server, _):
        reader, writer = await asyncio.open_connection(*place(server))
        writer.write(b"GET /hea")
        assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()


async def test_a_bug_in_the_metrics_harms_nobody_else(tmp_path, caplog):
    async with serving(tmp_path / "queue.db", health="127.0.0.1:0") as (server, _):
        client = await connect(server)

        async def broken():
            raise ZeroDivisionError

        server._vitals._health.page = broken
        assert await status_of(server, "/metrics") == (500, "could not make the metrics; see the log\n")
        assert "could not make the metrics" in caplog.text
        client[1].write(PUT)
        assert await client[0].readline() == b"INSERTED 1\r\n"


async def test_ready_only_while_puts_are_accepted_and_stored(tmp_path, disk):
    async with serving(tmp_path / "queue.db", health="127.0.0.1:0") as (server, _):
        assert await status_of(server) == (200, "ready\n")
        server.parts.engine.admission.refuse_puts()
        assert await status_of(server) == (503, "the disk is full\n")
        server.parts.engine.admission.accept_puts(1 << 30)
        disk.free.clear()
        (await connect(server))[1].write(PUT)
        await until(lambda: server.wiring.group_commit.syncing)
        assert await status_of(server) == (200, "ready\n")
        clock = server._vitals.latencies._clock
        server._vitals.latencies._clock = lambda: clock() + 11 * 1_000_000_000
        assert await status_of(server) == (503, "the journal has not stored anything for 10 s\n")
        disk.free.set()
        await until(lambda: not server.wiring.group_commit.syncing)
        assert await status_of(server) == (200, "ready\n")
        server._drain()
        assert await status_of(server) == (503, "draining\n")
        assert await status_of(server, "/healthz") == (200, "alive\n")
        server._stopped.set()
        assert server._vitals.unready() == "stopping"


def test_draining_over_http(tmp_path):
    server, where = start_watched(tmp_path)
    with server, server.connect() as connection:
        server.signal(signal.SIGUSR1)
        wire = Wire(connection)
        while wire.stats()["draining"] != "true":
            pass
        assert ask(where, "/readyz") == (503, "draining\n")


async def test_alive_and_not_ready_while_it_recovers(tmp_path, monkeypatch):
    free = asyncio.Event()
    recover = SqliteJournal.recover

    async def held_up(self, *given):
        await free.wait()
        return await recover(self, *given)

    monkeypatch.setattr(SqliteJournal, "recover", held_up)
    settings = Settings(port=0, db=tmp_path / "queue.db", health="127.0.0.1:0")
    listener = open_listener(settings)
    server = Server(settings, listener, make_journal(settings, listener, clock := Clock()), clock)
    task = asyncio.create_task(server.serve())
    await until(lambda: hasattr(server._vitals, "_health") and server._vitals._health._servers)
    assert await status_of(server, "/healthz") == (200, "alive\n")
    assert await status_of(server) == (503, "recovering\n")
    status, page = await status_of(server, "/metrics")
    assert status == 200
    assert "beanlite_ready 0.0\n" in page
    free.set()
    await until(lambda: server._vitals.recovered)
    assert await status_of(server) == (200, "ready\n")
    server._stopped.set()
    await task
    listener.close()
