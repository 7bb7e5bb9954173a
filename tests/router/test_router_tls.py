"""TLS on both sides of a router, tokens, and Unix sockets."""

import asyncio
import contextlib
import resource
import signal
import socket
import ssl
from hashlib import sha256

import pytest

from beanlite.net.handshakes import most_pending
from beanlite.net.tls import Tls
from beanlite.router.dial import _Handshake
from tests.router.routers import Routed, start_router
from tests.router.test_router import start_again
from tests.support.certificates import Authority, tls_flags, tls_port
from tests.support.servers import start_beanlite
from tests.support.tls_clients import rest_of, shake_hands
from tests.support.wire import Wire, put_bytes, until

TOKEN = "0123456789abcdef" * 4
RULES = f"""
[[allow]]
who = ["token:ci"]
role = ["producer", "worker", "reader"]
tubes = ["default", "a", "b"]
[[allow]]
who = ["net:127.0.0.0/8"]
role = ["producer", "worker"]
tubes = ["b"]
[tokens]
ci = "{sha256(TOKEN.encode()).hexdigest()}"
"""


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def own(authority):
    return authority.sign("localhost")


@pytest.fixture
def fleet(tmp_path, authority, own):
    """A router with TLS in front of two servers with TLS and rules."""
    rules = tmp_path / "access.toml"
    rules.write_text(RULES)
    flags = [*tls_flags(own), "--access", str(rules)]
    servers = [start_beanlite(tmp_path / str(number), *flags) for number in range(2)]
    router_flags = ["--listen-tls-cert", str(own[0]), "--listen-tls-key", str(own[1]), "--tls-ca", str(authority.file)]
    with start_router(tmp_path / "router", servers, [["a"], ["b"]], router_flags, over_tls=True) as router:
        yield router
    assert "Traceback" not in router.log_text()


def connect(router: Routed, authority: Authority) -> Wire:
    client = socket.create_connection(("127.0.0.1", router.port), 10)
    return Wire(authority.client().wrap_socket(client, server_hostname="localhost"))


def test_token_is_passed_on_to_each_server(fleet, authority):
    with connect(fleet, authority) as wire:
        assert wire.ask(f"auth {TOKEN}") == "AUTHENTICATED"
        for tube in ("a", "b"):
            assert wire.ask(f"use {tube}") == f"USING {tube}"
            assert wire.put(bytes(60_000 if tube == "a" else 10)) > 0
        assert [wire.ask("watch a"), wire.ask("watch b")] == ["WATCHING 2", "WATCHING 3"]
        assert {wire.ask("reserve")[:10] for _ in range(2)} == {"RESERVED 6"}


def test_wrong_token_costs_the_connection(fleet, authority):
    with connect(fleet, authority) as wire:
        assert wire.ask("auth x") == "UNAUTHORIZED"
        assert wire.is_closed()


def test_refusals_of_servers_are_passed_on(fleet, authority):
    with connect(fleet, authority) as wire:
        assert wire.ask("use a") == "UNAUTHORIZED"
        assert wire.ask("put 0 0 1 1", b"x") == "UNAUTHORIZED"
        assert wire.ask("use b") == "USING b"
        assert wire.put(b"x") == 66
        assert wire.ask("auth x") == "UNKNOWN_COMMAND"


def test_half_close_ends_a_wait_over_tls(fleet, authority):
    """The client says only by TLS that it sends no more, as does the router to the server."""
    tls, incoming, outgoing = half_closing(authority)
    with socket.create_connection(("127.0.0.1", fleet.port), 10) as client:
        shake_hands(tls, client, incoming, outgoing)
        tls.write(b"watch b\r\nignore default\r\nreserve\r\nlist-tube-used\r\n")
        with contextlib.suppress(ssl.SSLWantReadError):
            tls.unwrap()
        client.sendall(outgoing.read())
        incoming.write(rest_of(client))
    said = b""
    with contextlib.suppress(ssl.SSLError):
        while data := tls.read(1 << 14):
            said += data
    assert said == b"WATCHING 2\r\nWATCHING 1\r\nTIMED_OUT\r\nUSING default\r\n"


def test_server_that_is_lost_amid_the_handshake_is_read_from_no_more(authority, own):
    """The loop refuses to read again from a connection that it has found broken when it was written to."""

    class Raw(asyncio.Transport):
        sent = b""
        breaks = is_broken = False

        def write(self, data):
            self.sent += data
            self.is_broken = self.breaks

        def is_closing(self):
            return self.is_broken

        def pause_reading(self):
            pass

        def resume_reading(self):
            assert not self.is_broken

    async def shake():
        raw, loop = Raw(), asyncio.get_running_loop()
        handshake = _Handshake(loop, authority.client(), "localhost", asyncio.Protocol())
        tls = Tls(handshake)
        tls.connection_made(raw)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*own)
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        server = context.wrap_bio(incoming, outgoing, server_side=True)
        incoming.write(raw.sent)
        with contextlib.suppress(ssl.SSLWantReadError):
            server.do_handshake()
        tls.data_received(outgoing.read())
        raw.breaks = True
        tls.shake()
        assert not handshake.over.done()
        tls.connection_lost(None)
        with pytest.raises(ConnectionResetError):
            await handshake.over

    asyncio.run(shake())


@pytest.fixture
def behind(tmp_path, authority, own):
    """A router in front of a server with TLS."""
    servers = [start_beanlite(tmp_path / "server", *tls_flags(own))]
    flags = ["--tls-ca", str(authority.file)]
    with start_router(tmp_path / "router", servers, flags=flags, over_tls=True) as router:
        yield router
    assert "Traceback" not in router.log_text()


def waiting_at(server):
    with Wire(server.connect()) as wire:
        return wire.stats()["current-waiting"]


def test_half_closed_client_of_a_server_with_tls_gets_all_replies(behind):
    with behind.connect() as client:
        client.sendall(b"reserve\r\nreserve\r\n" + put_bytes(b"x"))
        until(lambda: waiting_at(behind.upstreams[0]) == "1")
        client.shutdown(socket.SHUT_WR)
        assert rest_of(client) == b"TIMED_OUT\r\nTIMED_OUT\r\nINSERTED 65\r\n"


def test_half_close_over_tls_needs_no_descriptor(behind):
    with behind.connect() as client:
        client.sendall(b"reserve\r\n")
        until(lambda: waiting_at(behind.upstreams[0]) == "1")
        resource.prlimit(behind.process.pid, resource.RLIMIT_NOFILE, (3, 3))
        client.shutdown(socket.SHUT_WR)
        assert rest_of(client) == b"TIMED_OUT\r\n"


def test_worker_outlasts_the_restart_of_a_server_with_tls(behind, own):
    (server,) = behind.upstreams
    port = tls_port(server)
    with Wire(behind.connect()) as worker, Wire(behind.connect()) as producer:
        producer.ask("list-tube-used")
        worker.send(b"reserve\r\n")
        until(lambda: waiting_at(server) == "1")
        server.stop()
        start_again(server, "--tls", f"127.0.0.1:{port}", "--tls-cert", str(own[0]), "--tls-key", str(own[1]))
        assert producer.put(b"x") == 65
        assert worker.reply() == "RESERVED 65 1"


def half_closing(authority):
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    return authority.client().wrap_bio(incoming, outgoing, server_hostname="localhost"), incoming, outgoing


def test_token_is_not_passed_on_from_a_client_that_can_be_overheard(tmp_path):
    servers = [start_beanlite(tmp_path / "server")]
    with start_router(tmp_path / "router", servers) as router, Wire(router.connect()) as wire:
        assert wire.ask(f"auth {TOKEN}") == "UNAUTHORIZED"
        assert wire.is_closed()


def test_token_is_not_passed_on_over_plain_tcp(tmp_path, authority, own):
    servers = [start_beanlite(tmp_path / "server")]
    flags = ["--listen-tls-cert", str(own[0]), "--listen-tls-key", str(own[1])]
    with start_router(tmp_path / "router", servers, flags=flags) as router, connect(router, authority) as wire:
        assert wire.ask(f"auth {TOKEN}") == "UNAUTHORIZED"
        assert wire.is_closed()
    assert "Traceback" not in router.log_text()


def test_log_says_what_a_server_may_want_that_closes_its_connections(tmp_path, authority, own):
    servers = [start_beanlite(tmp_path / "server", *tls_flags(own, authority.file))]
    flags = ["--tls-ca", str(authority.file)]
    with start_router(tmp_path / "router", servers, flags=flags, over_tls=True) as router:
        until(lambda: "server away" in router.log_text())
    assert "perhaps for want of a certificate that it accepts (--tls-cert)" in router.log_text()


def test_broken_authority_at_a_reload_changes_nothing(tmp_path, authority, own):
    ca = tmp_path / "ca.pem"
    ca.write_bytes(authority.file.read_bytes())
    servers = [start_beanlite(tmp_path / "server", *tls_flags(own))]
    with start_router(tmp_path / "router", servers, flags=["--tls-ca", str(ca)], over_tls=True) as router:
        ca.write_text("")
        router.process.send_signal(signal.SIGHUP)
        until(lambda: "file of servers not taken" in router.log_text())
        with Wire(router.connect()) as wire:
            assert wire.put(b"x") == 65


def test_reload_takes_the_certificate_that_clients_are_shown(tmp_path, authority, own):
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    other = Authority(tmp_path / "other")

    def show(pair):
        for source, target in zip(pair, (cert, key), strict=True):
            target.write_bytes(source.read_bytes())
            target.chmod(0o600)

    show(own)
    flags = ["--listen-tls-cert", str(cert), "--listen-tls-key", str(key)]
    with start_router(tmp_path / "router", [start_beanlite(tmp_path / "server")], flags=flags) as router:
        before = connect(router, authority)
        cert.write_text("")
        router.process.send_signal(signal.SIGHUP)
        until(lambda: "--listen-tls-cert" in router.log_text())
        with connect(router, authority) as wire:
            assert wire.put(b"x") == 65
        show(other.sign("localhost"))
        router.process.send_signal(signal.SIGHUP)
        until(lambda: "read again" in router.log_text())
        with before, connect(router, other) as wire:
            assert [before.put(b"x"), wire.put(b"x")] == [129, 193]


def test_handshakes_under_way_are_as_few_as_a_reload_allows(tmp_path, own):
    """Else silent connections could take the descriptors of clients, after the limit of open files was lowered."""
    flags = ["--listen-tls-cert", str(own[0]), "--listen-tls-key", str(own[1])]
    with (
        start_router(tmp_path / "router", [start_beanlite(tmp_path / "server")], flags=flags) as router,
        contextlib.ExitStack() as stack,
    ):
        resource.prlimit(router.process.pid, resource.RLIMIT_NOFILE, (650, 650))
        router.process.send_signal(signal.SIGHUP)
        until(lambda: "read again" in router.log_text())
        room = int(router.log_text().partition("fewer clients max_clients=10000 room=")[2].split()[0])
        for _ in range(most_pending(room) + 1):
            stack.enter_context(router.connect())
        until(lambda: "too many are under way" in router.log_text())
