"""Handshakes of TLS are bounded, and hold nobody up."""

import asyncio
import contextlib
import signal
import socket
import ssl
import subprocess
from pathlib import Path
from typing import Any, cast

import pytest

from beanlite.core.memory import TLS_BYTES
from beanlite.net import handshakes
from beanlite.net.refusals import Refusals
from tests.support.certificates import tls_flags, tls_port, wrap
from tests.support.inside import serving, until as until_inside
from tests.support.servers import start_beanlite
from tests.support.tls_clients import rest_of, settings_of
from tests.support.wire import Wire, put_bytes, until


def test_pending_handshakes_do_not_hold_up_a_stop(server, known):
    with Wire(wrap(server, known)) as client, contextlib.ExitStack() as others:
        for beginning in (b"", b"\x16\x03\x01\x02\x00\x01") * 20:
            other = others.enter_context(socket.create_connection((server.host, tls_port(server)), 10))
            other.sendall(beginning)
        with Wire(server.connect()) as wire:
            server.signal(signal.SIGUSR1)
            until(lambda: wire.stats()["draining"] == "true")
        client.send(put_bytes(b"x") + b"list-tube-used\r\n")
        assert [client.reply(), client.reply()] == ["DRAINING", "USING default"]
        server.signal(signal.SIGTERM)
        assert rest_of(client.socket) == b""
        assert server.process.wait(9) == 0


@pytest.mark.parametrize(
    "words",
    [
        ["-noservername"],
        ["-servername", "elsewhere.example.org"],
        ["-servername", "*.a b\n\x7f'\"\\ü"],
        ["-servername", "x" * 255],
        ["-alpn", "h2,http/1.1"],
        ["-alpn", ",".join(["x" * 250] * 20)],
        ["-nextprotoneg", "h2", "-tls1_2"],
        ["-status"],
    ],
)
def test_what_else_a_client_asks_for_does_not_matter(own, tmp_path, words):
    with start_beanlite(tmp_path, *tls_flags(own), "--tls-min", "1.2") as server:
        until(lambda: " tls=" in server.log_text())
        said = subprocess.run(
            ["openssl", "s_client", "-quiet", "-connect", f"127.0.0.1:{tls_port(server)}", *words],
            input="list-tube-used\r\nquit\r\n",
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
        assert said.stdout == "USING default\n", said.stderr


async def knock(server):
    host, port = server._listener.tls.address.split(":")
    return await asyncio.open_connection(host, int(port))


async def visit(server, context):
    """Connect, and leave in order once the server has answered or ended the connection."""
    host, port = server._listener.tls.address.split(":")
    with contextlib.suppress(OSError):
        reader, writer = await asyncio.open_connection(host, int(port), ssl=context, server_hostname="localhost")
        writer.write(b"quit\r\n")
        await asyncio.wait_for(reader.read(), 10)
        writer.close()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("tickets", [True, False], ids=["tickets", "no tickets"])
async def test_openssl_keeps_no_session(tmp_path, own, authority, version, tickets):
    """It would keep 20,480 of them, and nothing would count what they take."""
    context = authority.client(authority.sign("visitor"))
    context.minimum_version = context.maximum_version = version
    if not tickets:
        context.options |= ssl.OP_NO_TICKET
    settings = settings_of(own) | {"tls_clients": authority.file, "tls_min": "1.2"}
    async with serving(tmp_path / "queue.db", **settings) as (server, _):
        for _ in range(3):
            await visit(server, context)
        await until_inside(lambda: server.parts.engine.memory.tls_clients == 0)
        assert server.parts.handshakes.certificates.context.session_stats()["number"] == 0


async def test_silent_connections_cost_no_client_and_are_closed(tmp_path, own, monkeypatch, caplog):
    monkeypatch.setattr(handshakes, "LASTS_S", 0.05)
    async with serving(tmp_path / "queue.db", **settings_of(own)) as (server, _):
        silent = [await knock(server) for _ in range(3)]
        await until_inside(lambda: server.parts.refusals.counts["handshake"] == 3)
        assert server.parts.engine.counts.total_clients == 0
        assert server.parts.engine.memory.tls_clients == 0
        for reader, writer in silent:
            assert await asyncio.wait_for(reader.read(), 10) == b""
            writer.close()
    reasons = [record.fields["reason"] for record in caplog.records if hasattr(record, "fields")]
    assert reasons[:1] == ["it was not over within 0 s"]


async def test_a_handshake_that_stops_halfway_is_closed(tmp_path, own, authority, monkeypatch):
    monkeypatch.setattr(handshakes, "LASTS_S", 2.0)
    outgoing = ssl.MemoryBIO()
    tls = authority.client().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    async with serving(tmp_path / "queue.db", **settings_of(own)) as (server, _):
        reader, writer = await knock(server)
        writer.write(outgoing.read())
        await until_inside(lambda: server.parts.engine.memory.tls_clients == 1)
        assert server.parts.engine.memory.other_bytes >= TLS_BYTES
        await asyncio.wait_for(reader.read(), 10)
        writer.close()
        await until_inside(lambda: server.parts.engine.memory.tls_clients == 0)
        assert server.parts.refusals.counts["handshake"] == 1


async def test_a_client_that_leaves_during_its_handshake_is_counted(tmp_path, own, authority, caplog):
    outgoing = ssl.MemoryBIO()
    tls = authority.client().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    async with serving(tmp_path / "queue.db", **settings_of(own)) as (server, _):
        _, writer = await knock(server)
        writer.write(outgoing.read())
        await until_inside(lambda: server.parts.engine.memory.tls_clients == 1)
        writer.close()
        await until_inside(lambda: server.parts.refusals.counts["handshake"] == 1)
    (fields,) = [record.fields for record in caplog.records if "TLS" in record.getMessage()]
    assert fields["reason"] == "the client has left"
    assert fields["address"].startswith("127.0.0.1:")


async def test_pending_connections_are_bounded(tmp_path, own, monkeypatch):
    there = 5
    monkeypatch.setattr(handshakes, "PENDING_MAX", there)
    async with serving(tmp_path / "queue.db", **settings_of(own)) as (server, _):
        silent = [await knock(server) for _ in range(8)]
        await until_inside(lambda: server.parts.refusals.counts["handshake"] == 3)
        assert len(server.parts.handshakes) == there
        silent[4][1].close()
        await until_inside(lambda: len(server.parts.handshakes) == there - 1)
        silent.append(await knock(server))
        await until_inside(lambda: len(server.parts.handshakes) == there)
        for _, writer in silent:
            writer.close()


def test_silent_connections_do_not_shut_a_client_out(tmp_path, own, authority):
    """Those of this machine's addresses, which are not limited singly, are more than may be pending."""
    with start_beanlite(tmp_path / "q", *tls_flags(own)) as server, contextlib.ExitStack() as silent:
        until(lambda: " tls=" in server.log_text())
        for number in range(600):
            source = f"127.0.0.{2 + number % 3}"
            silent.enter_context(
                socket.create_connection((server.host, tls_port(server)), 10, source_address=(source, 0))
            )
        with Wire(wrap(server, authority.client())) as wire:
            assert int(wire.stats()["refused-handshake"]) >= 600 - handshakes.PENDING_MAX


class Newcomer:
    """A connection of which nothing has come yet."""

    def __init__(self, host):
        self.host = host
        self.closed = False

    def get_extra_info(self, _name):
        return self.host, 1

    def abort(self):
        self.closed = True


async def test_clients_of_this_machine_make_room_for_each_other():
    """Of them there may be any number, so the earliest of all would soon be that of another."""
    door = handshakes.Handshakes(asyncio.get_running_loop(), cast(Any, None), 20, Refusals(), cast(Any, None))
    far = [Newcomer("10.0.0.1") for _ in range(3)]
    near = [Newcomer("127.0.0.1") for _ in range(100)]
    for newcomer in (*far, *near):
        door.begin(cast(Any, newcomer))
    assert [newcomer.closed for newcomer in far] == [False] * 3
    assert [newcomer.closed for newcomer in near] == [True] * 83 + [False] * 17
    others = [Newcomer(f"10.0.1.{number}") for number in range(10)]
    for newcomer in others:
        door.begin(cast(Any, newcomer))
    assert [newcomer.closed for newcomer in (*far, *others)] == [True] + [False] * 12
    assert sum(not newcomer.closed for newcomer in near) == handshakes.SHARE_LEAST
    door.close()


async def test_clients_of_a_host_that_connect_at_once_are_not_refused():
    """If there are too many, they make room for each other, and for those of other hosts."""
    loop = asyncio.get_running_loop()
    door = handshakes.Handshakes(loop, cast(Any, None), 100, Refusals(), cast(Any, None))
    others = [Newcomer("10.0.0.2") for _ in range(5)]
    many = [Newcomer("10.0.0.1") for _ in range(95)]
    for newcomer in (*others, *many):
        door.begin(cast(Any, newcomer))
    assert not any(newcomer.closed for newcomer in (*others, *many))
    more = [Newcomer("10.0.0.1"), Newcomer("10.0.0.3"), Newcomer("127.0.0.1")]
    for newcomer in more:
        door.begin(cast(Any, newcomer))
    assert [newcomer.closed for newcomer in many] == [True] * 3 + [False] * 92
    assert not any(newcomer.closed for newcomer in (*others, *more))
    door.close()


async def test_where_no_host_has_many_the_earliest_makes_room():
    loop = asyncio.get_running_loop()
    door = handshakes.Handshakes(loop, cast(Any, None), 50, Refusals(), cast(Any, None))
    all_of_them = [Newcomer(f"10.0.0.{number % 25}") for number in range(52)]
    for newcomer in all_of_them:
        door.begin(cast(Any, newcomer))
    assert [newcomer.closed for newcomer in all_of_them] == [True] * 2 + [False] * 50
    door.close()


async def test_handshakes_give_way_to_others_in_each_turn(monkeypatch):
    """However many have something to do, a turn of the loop takes only so long."""
    monkeypatch.setattr(handshakes, "TURN_S", 0.0)
    door = handshakes.Handshakes(asyncio.get_running_loop(), cast(Any, None), 10, cast(Any, None), cast(Any, None))
    shaken = []

    class Client:
        is_slow = False

        def shake(self):
            shaken.append(turn)

    turn = 0
    for _ in range(3):
        door.go_on(cast(Any, Client()))
    for turn in range(4):  # noqa: B007 - the clients look at it
        await asyncio.sleep(0)
    assert shaken == [0, 1, 2]


async def test_handshakes_go_on_after_one_that_lacked_memory():
    loop = asyncio.get_running_loop()
    door = handshakes.Handshakes(loop, cast(Any, None), 10, cast(Any, None), cast(Any, None))
    heard, shaken = [], []
    loop.set_exception_handler(lambda _, context: heard.append(context["exception"]))

    class Client:
        is_slow = False

        def __init__(self, error=None):
            self.error = error

        def shake(self):
            if self.error is not None:
                raise self.error
            shaken.append(self)

    door.go_on(cast(Any, Client(MemoryError())))
    door.go_on(cast(Any, Client()))
    for _ in range(3):
        await asyncio.sleep(0)
    door.go_on(cast(Any, Client()))
    await asyncio.sleep(0)
    assert [type(error) for error in heard] == [MemoryError]
    assert len(shaken) == 2


def test_connections_that_come_and_go_leave_nothing(tmp_path, own, authority, known):
    with start_beanlite(tmp_path, *tls_flags(own, authority.file)) as server:
        until(lambda: " tls=" in server.log_text())

        def come_and_go(times):
            for _ in range(times):
                with wrap(server, known) as client:
                    client.sendall(b"list-tube-used\r\n")
                    client.recv(100)
            return int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[1]) << 12

        before = come_and_go(300)
        assert come_and_go(1000) - before < 2_000_000  # of one connection, 30,000 bytes
