"""Clients that use TLS are served as others are; handshakes are bounded, and a refused one is told in plain words."""

import asyncio
import contextlib
import os
import signal
import socket
import ssl
import subprocess
import threading
import unittest.mock
from pathlib import Path
from typing import Any, cast

import greenstalk
import pytest

from beanlite import is_compiled
from beanlite.core.memory import TLS_BYTES
from beanlite.net import handshakes, tls as tls_module
from beanlite.net.refusals import Refusals
from tests.support.certificates import Authority, tls_flags, tls_port, wrap
from tests.support.inside import serving, until as until_inside
from tests.support.needs import need
from tests.support.servers import start_beanlite
from tests.support.wire import Wire, put_bytes, until

MIB = b"x" * (1 << 20)


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def own(authority):
    return authority.sign("server")


@pytest.fixture(scope="module")
def known(authority):
    """What a client with a certificate has."""
    return authority.client(authority.sign("client"))


@pytest.fixture(params=["uvloop", "asyncio"])
def server(request, tmp_path, authority, own):
    """One that asks for certificates; for asyncio's own loop, uvloop is hidden."""
    environment = {}
    if request.param == "asyncio":
        (tmp_path / "uvloop.py").write_text("raise ImportError")
        environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])])
    flags = [*tls_flags(own, authority.file), "-z", "2000000", "--tls-min", "1.2"]
    with start_beanlite(tmp_path / "q", *flags, environment=environment) as server:
        until(lambda: " tls=" in server.log_text())
        yield server


def rest_of(client):
    """What is left to read up to the end, which the server has to announce."""
    said = b""
    while data := client.recv(1 << 16):
        said += data
    return said


def shake_hands(tls, client, incoming, outgoing):
    """Do the handshake of a client; its last part is still to be sent."""
    while True:
        with contextlib.suppress(ssl.SSLWantReadError):
            tls.do_handshake()
            return
        client.sendall(outgoing.read())
        incoming.write(client.recv(1 << 16))


def is_refused(connect):
    """Whether the server ends a connection instead of answering a command."""
    try:
        with Wire(connect()) as wire:
            wire.ask("list-tube-used")
    except OSError:
        return True
    return False


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_client_puts_and_gets_a_large_body(server, authority, version):
    context = authority.client(authority.sign("other"))
    context.minimum_version = context.maximum_version = version
    with Wire(wrap(server, context)) as wire:
        assert isinstance(wire.socket, ssl.SSLSocket)
        assert wire.socket.version() == version.name.replace("_", ".")
        assert wire.put(MIB) == 1
        assert wire.ask("reserve") == f"RESERVED 1 {len(MIB)}"
        assert wire.body == MIB


def test_commands_that_come_with_the_handshake_are_carried_out(server, known):
    """The last part of a handshake and 20,000 commands arrive at once."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = known.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with socket.create_connection((server.host, tls_port(server)), 10) as client:
        shake_hands(tls, client, incoming, outgoing)
        for _ in range(20):
            tls.write(b"list-tube-used\r\n" * 1000)
        threading.Thread(target=client.sendall, args=(outgoing.read(),), daemon=True).start()
        said = b""
        while said.count(b"\n") < 20_000:
            incoming.write(client.recv(1 << 16))
            while incoming.pending or tls.pending():
                try:
                    said += tls.read(1 << 14)
                except ssl.SSLWantReadError:
                    break
        assert said == b"USING default\r\n" * 20_000


def test_a_client_library_works(server, known):
    with greenstalk.Client(wrap(server, known)) as client:
        client.put("hello")
        assert client.reserve().body == "hello"


@pytest.mark.parametrize("end", ["quit", "eof"])
def test_replies_before_the_end_are_read(server, known, end):
    with Wire(server.connect()) as wire, wrap(server, known) as client:
        wire.put(MIB)
        client.sendall(b"put 0 0 60 1\r\nx\r\n" + b"peek 1\r\n" * 10 + (b"quit\r\njunk\r\n" if end == "quit" else b""))
        if end == "eof":
            socket.socket.shutdown(client, socket.SHUT_WR)
        assert rest_of(client) == b"INSERTED 2\r\n" + b"FOUND 1 %d\r\n%b\r\n" % (len(MIB), MIB) * 10


def test_a_client_that_says_goodbye_first_still_gets_its_replies(server, known):
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = known.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with socket.create_connection((server.host, tls_port(server)), 10) as client:
        shake_hands(tls, client, incoming, outgoing)
        tls.write(b"put 0 0 60 1\r\nx\r\n")
        with pytest.raises(ssl.SSLWantReadError):
            tls.unwrap()  # so that TLS, but not the socket, is half-closed
        client.sendall(outgoing.read())
        while data := client.recv(1 << 16):
            incoming.write(data)
        assert tls.read(100) == b"INSERTED 1\r\n"
        with pytest.raises(ssl.SSLZeroReturnError):  # the server says goodbye, too
            tls.read(100)


def test_a_client_that_does_not_read_is_not_served_on(server, known):
    with Wire(server.connect()) as wire, wrap(server, known) as client:
        wire.put(MIB)
        sending = threading.Thread(target=client.sendall, args=(b"peek 1\r\n" * 50,), daemon=True)
        sending.start()
        until(lambda: int(wire.stats()["memory-buffers"]) > 0)
        served = int(wire.stats()["cmd-peek"])
        assert served < 50
        said = 0
        while said < 50 * len(MIB):
            said += len(client.recv(1 << 16))
        until(lambda: int(wire.stats()["cmd-peek"]) == 50)
        sending.join()


def test_a_stop_answers_what_was_carried_out(server, known):
    with wrap(server, known) as client:
        client.sendall(b"put 0 0 60 1\r\nx\r\nwatch a\r\nreserve\r\nreserve\r\n")
        with Wire(server.connect()) as wire:
            until(lambda: wire.stats()["current-waiting"] == "1")
        server.signal(signal.SIGTERM)
        assert rest_of(client) == b"INSERTED 1\r\nWATCHING 2\r\nRESERVED 1 1\r\nx\r\n"


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
        assert server.process.wait(5) == 0


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


async def test_what_takes_long_to_decrypt_waits_for_its_turn(tmp_path, own, authority, monkeypatch):
    """With no time at all, each slice has a turn of its own; commands, and the end, keep their order."""
    need(not is_compiled(), "compiled code has its own copy of the constant")
    monkeypatch.setattr(tls_module, "TURN_S", -1.0)
    reads = []
    read = tls_module.Tls._read
    monkeypatch.setattr(tls_module.Tls, "_read", lambda self, data: (reads.append(len(data)), read(self, data)))
    async with serving(tmp_path / "queue.db", **settings_of(own)) as (server, _):
        host, port = server._listener.tls.address.split(":")
        client = await asyncio.open_connection(host, int(port), ssl=authority.client(), server_hostname="localhost")
        client[1].write(put_bytes(MIB[:60_000]) * 20 + b"list-tube-used\r\n" * 3000 + b"quit\r\n")
        said = await asyncio.wait_for(client[0].read(), 20)
        client[1].close()
    assert said == b"".join(b"INSERTED %d\r\n" % n for n in range(1, 21)) + b"USING default\r\n" * 3000
    assert len(reads) > 60


# -- refusals

REFUSED = "TLS handshake refused address=127.0.0.1:"


def reasons(server):
    return [line.partition("reason=")[2].partition(" refused=")[0].strip('"') for line in lines(server)]


def lines(server):
    return [line for line in server.log_text().splitlines() if REFUSED in line]


def old(authority):
    context = authority.client(authority.sign("old"))
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    return context


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda authority, _: authority.client(), "the client has sent no certificate"),
        (
            lambda authority, folder: authority.client(Authority(folder, "rogue").sign("stranger")),
            "the client's certificate: unable to get local issuer certificate",
        ),
        (
            lambda authority, _: authority.client(authority.sign("late", days=-1)),
            "the client's certificate: certificate has expired",
        ),
        (lambda _, folder: Authority(folder, "rogue").client(), "the client does not trust the server's certificate"),
    ],
    ids=["none", "another authority's", "expired", "distrust"],
)
def test_wrong_certificate_is_refused(server, authority, tmp_path, make, reason):
    context = make(authority, tmp_path / "others")
    assert is_refused(lambda: wrap(server, context))
    until(lambda: reasons(server))
    assert reasons(server) == [reason]
    with Wire(server.connect()) as wire:
        stats = wire.stats()
        assert stats["refused-handshake"] == "1"
        assert stats["total-connections"] == str(int(stats["current-connections"]) + 1)  # that of ``start_beanlite``


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated")
def test_old_version_is_refused(server, authority):
    context = old(authority)
    assert is_refused(lambda: wrap(server, context))
    until(lambda: reasons(server))
    assert reasons(server) == ["the client's version of TLS is too old"]


def test_version_before_1_3_is_refused_by_default(own, authority, tmp_path):
    context = authority.client()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with start_beanlite(tmp_path, *tls_flags(own)) as server:
        until(lambda: " tls=" in server.log_text())
        assert is_refused(lambda: wrap(server, context))
        until(lambda: reasons(server))
        assert reasons(server) == ["the client's version of TLS is too old"]


def test_version_1_2_without_tickets_is_refused(server, authority):
    context = authority.client(authority.sign("old"))
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_TICKET
    assert is_refused(lambda: wrap(server, context))
    until(lambda: reasons(server))
    assert reasons(server) == ["the client has TLS 1.2 without session tickets"]


def test_ticket_of_version_1_2_is_taken_back(server, authority):
    context = authority.client(authority.sign("again"))
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with Wire(wrap(server, context)) as first:
        assert first.ask("list-tube-used") == "USING default"
        session = cast(ssl.SSLSocket, first.socket).session
    plain = socket.create_connection((server.host, tls_port(server)), 10)
    second = context.wrap_socket(plain, server_hostname="localhost", session=session)
    with Wire(second) as wire:
        assert second.session_reused
        assert wire.ask("list-tube-used") == "USING default"


@pytest.mark.parametrize(("count", "reason"), [(10, []), (60, ["it is too long"])])
def test_handshake_with_many_certificates_is_refused(server, authority, tmp_path, count, reason):
    """Reading them takes the server's time, whoever has signed them."""
    certificate, key = authority.sign("client")
    chain = tmp_path / "chain.pem"
    chain.write_text(certificate.read_text() + authority.file.read_text() * count)
    context = authority.client((chain, key))
    assert is_refused(lambda: wrap(server, context)) == bool(reason)
    until(lambda: reasons(server) == reason)


@pytest.mark.parametrize("words", [b"put 0 0 60 1\r\nx\r\n", b"GET / HTTP/1.1\r\n\r\n"])
def test_plain_text_is_refused(server, words):
    with socket.create_connection((server.host, tls_port(server)), 10) as client:
        client.sendall(words)
        assert rest_of(client) == b""
    until(lambda: reasons(server))
    assert reasons(server) == ["the client does not speak TLS"]


def test_junk_after_the_handshake_closes_only_its_connection(server, known):
    with Wire(server.connect()) as wire, wrap(server, known) as client:
        client.sendall(b"list-tube-used\r\n")
        assert client.recv(100) == b"USING default\r\n"
        os.write(client.fileno(), b"junk" * 100)
        with pytest.raises(OSError):  # an alert, or a reset
            client.recv(100)
        assert wire.ask("list-tube-used") == "USING default"
        until(lambda: wire.stats()["current-connections"] == "1")


def test_renegotiation_is_refused(own, tmp_path):
    with start_beanlite(tmp_path, *tls_flags(own), "--tls-min", "1.2") as server:
        until(lambda: " tls=" in server.log_text())
        said = subprocess.run(
            ["openssl", "s_client", "-tls1_2", "-connect", f"127.0.0.1:{tls_port(server)}"],
            input="R\nR\n",
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
        assert "RENEGOTIATING" in said.stdout + said.stderr
        assert "no renegotiation" in said.stderr


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        (ssl.TLSVersion.TLSv1_2, ["the client's certificate is on a curve for which it needs TLS 1.3"]),
        (ssl.TLSVersion.TLSv1_3, []),
    ],
)
def test_certificate_on_another_curve_needs_a_new_version(server, authority, version, reason):
    context = authority.client(authority.sign("other", curve="P-384"))
    context.maximum_version = version
    assert is_refused(lambda: wrap(server, context)) == bool(reason)
    until(lambda: reasons(server) == reason)


@pytest.mark.parametrize(
    ("group", "reasons_told"),
    [("X25519:P-256", []), ("ffdhe8192", ["the client can't exchange keys on the curve P-256"])],
)
def test_group_that_takes_long_is_refused(own, tmp_path, group, reasons_told):
    """Even if the client has computed nothing of its own."""
    with start_beanlite(tmp_path, *tls_flags(own)) as server:
        until(lambda: " tls=" in server.log_text())
        said = subprocess.run(
            ["openssl", "s_client", "-groups", group, "-connect", f"127.0.0.1:{tls_port(server)}"],
            input="",
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
        assert ("Server Temp Key: ECDH, prime256v1" in said.stdout) == (not reasons_told)
        until(lambda: len(lines(server)) == len(reasons_told))
        assert reasons(server) == reasons_told


# -- bounds


def settings_of(own):
    return {"tls": "127.0.0.1:0", "tls_cert": own[0], "tls_key": own[1]}


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
    monkeypatch.setattr(handshakes, "LASTS_S", 0.2)
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


@pytest.mark.parametrize(("most", "share", "there"), [(5, 1, 5), (50, 10, 5)])
async def test_pending_connections_are_bounded(tmp_path, own, monkeypatch, most, share, there):
    monkeypatch.setattr(handshakes, "PENDING_MAX", most)
    monkeypatch.setattr(handshakes, "SHARE", share)
    async with serving(tmp_path / "queue.db", **settings_of(own)) as (server, _):
        server.parts.handshakes._addresses.limit(most // share, spare_local=False)
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


async def test_handshakes_give_way_to_others_in_each_turn(monkeypatch):
    """However many have something to do, a turn of the loop takes only so long."""
    monkeypatch.setattr(handshakes, "TURN_S", 0.0)
    door = handshakes.Handshakes(asyncio.get_running_loop(), cast(Any, None), 10, cast(Any, None), cast(Any, None))
    shaken = []

    class Client:
        def shake(self):
            shaken.append(turn)

    turn = 0
    for _ in range(3):
        door.go_on(cast(Any, Client()))
    for turn in range(4):  # noqa: B007 - the clients look at it
        await asyncio.sleep(0)
    assert shaken == [0, 1, 2]


async def test_one_address_may_begin_several_connections_at_a_small_server():
    most = handshakes.most_pending(100)
    door = handshakes.Handshakes(asyncio.get_running_loop(), cast(Any, None), most, cast(Any, None), cast(Any, None))
    address = b"1234"
    for number in range(8):
        assert not door._addresses.is_full(address)
        door._addresses.add(number, address)
    assert door._addresses.is_full(address)


def test_what_comes_after_goodbye_is_not_kept():
    class Raw(asyncio.Transport):
        def is_closing(self):
            return False

    tls = tls_module.Tls(cast(Any, None))
    tls._raw, tls._incoming, tls._protocol = Raw(), ssl.MemoryBIO(), cast(Any, object())
    tls._tls, tls._outgoing = cast(Any, unittest.mock.Mock(read=lambda _: b"")), ssl.MemoryBIO()
    tls._protocol = unittest.mock.Mock()
    for _ in range(3):
        tls.data_received(b"x" * 1000)
    assert tls._incoming.pending == 1000  # of the first, in which the goodbye was
    tls._protocol.eof_received.assert_called_once()


async def test_handshakes_go_on_after_one_that_lacked_memory():
    loop = asyncio.get_running_loop()
    door = handshakes.Handshakes(loop, cast(Any, None), 10, cast(Any, None), cast(Any, None))
    heard, shaken = [], []
    loop.set_exception_handler(lambda _, context: heard.append(context["exception"]))

    class Client:
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


def test_large_bodies_are_sent_byte_by_byte_as_they_are(server, known):
    """Records, packets and slices end at different places."""
    body = bytes(range(256)) * 2000
    with Wire(wrap(server, known)) as wire:
        for size in (16_383, 16_384, 16_385, 65_535, 65_537, len(body)):
            wire.send(put_bytes(body[:size]))
            number = int(wire.reply().split()[1])
            assert wire.ask(f"peek {number}") == f"FOUND {number} {size}"
            assert wire.body == body[:size]
