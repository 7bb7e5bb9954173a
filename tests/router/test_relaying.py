"""A router with ``--relay``: at the servers each client has its own address, certificate and rights."""

import signal
import socket

import pytest

from beanlite.cli import main
from tests.router.routers import start_router
from tests.server.test_access_over_tls import TOKEN, TOKENS, allow, authority, context, own  # noqa: F401
from tests.server.test_history import ask
from tests.support.certificates import tls_flags, tls_port, wrap
from tests.support.servers import start_beanlite
from tests.support.wire import Wire, until

TRUST = allow("cert:router.example.org", ["*"], "operator")
MAILER = allow("cert:mailer.example.org", ["mail.*", "sms.*"], "producer", "worker", "reader")
CI = allow("token:ci", ["ci.*"], "producer", "reader")
NET = allow("net:127.0.0.1", ["net.*"], "producer")
RULES = MAILER + CI + NET + TOKENS


@pytest.fixture
def start(tmp_path, authority, own):  # noqa: F811
    """Return a function that starts a router with TLS in front of two servers with TLS and rules."""
    routers = []

    def start(rules, *flags):
        (tmp_path / "access.toml").write_text(rules)
        server_flags = [*tls_flags(own, authority.file), "--access", str(tmp_path / "access.toml"), "--history", "7d"]
        servers = [start_beanlite(tmp_path / str(number), *server_flags) for number in range(2)]
        cert = authority.issue("router", "DNS:router.example.org")
        router_flags = ["--relay", "--tls-ca", str(authority.file), "--tls-cert", str(cert), *flags]
        tubes = [["mail.*", "default"], ["sms.*", "ci.*", "net.*"]]
        routers.append(start_router(tmp_path / "router", servers, tubes, router_flags, over_tls=True))
        return routers[0]

    yield start
    for router in routers:
        with router:
            pass
        assert "Traceback" not in router.log_text()
        assert TOKEN not in router.log_text()


@pytest.fixture
def listening(own, authority):  # noqa: F811
    """The flags with which the router asks its clients for certificates."""
    both = str(own[0])
    return ["--listen-tls-cert", both, "--listen-tls-key", both, "--listen-tls-clients", str(authority.file)]


@pytest.fixture
def mailer(authority):  # noqa: F811
    return context(authority, authority.issue("mailer", "DNS:mailer.example.org"))


def connect(router, tls):
    client = socket.create_connection(("127.0.0.1", router.port), 10)
    return Wire(tls.wrap_socket(client, server_hostname="localhost"))


def operator(router, authority, at=0):  # noqa: F811
    """Connect to a server as the router does, to look at it."""
    cert = authority.issue("operator", "DNS:router.example.org")
    return Wire(wrap(router.upstreams[at], context(authority, cert)))


def test_rule_for_a_certificate_holds_through_the_router(start, listening, mailer):
    with connect(start(TRUST + RULES, *listening), mailer) as wire:
        for tube in ("mail.a", "sms.a"):
            assert wire.ask(f"use {tube}") == f"USING {tube}"
            assert wire.put(b"x") > 0
            assert wire.ask(f"watch {tube}").startswith("WATCHING")
        assert wire.ask("ignore default") == "WATCHING 2"
        assert {wire.ask("reserve")[:8] for _ in range(2)} == {"RESERVED"}
        assert wire.ask("use ci.a") == "UNAUTHORIZED"
        assert wire.ask("use other") == "UNAUTHORIZED"


def test_servers_show_and_record_the_client_of_the_router(start, listening, mailer, authority, capsys, tmp_path):  # noqa: F811
    router = start(TRUST + RULES, *listening)
    with connect(router, mailer) as wire, operator(router, authority) as other:
        assert wire.ask("use mail.a") == "USING mail.a"
        job_id = wire.put(b"x") >> 6
        shown = "{}:{} mailer.example.org".format(*wire.socket.getsockname())
        assert shown in [client["address"] for client in other.request("list-clients")["clients"]]
        assert wire.ask(f"delete {(job_id << 6) + 1}") == "DELETED"
        path = tmp_path / "0" / "queue.db"
        until(
            lambda: (
                ask(path, "SELECT job, what, by FROM events") == [(job_id, what, shown) for what in ("put", "delete")]
            )
        )
        where = ["--connect", f"tls://localhost:{tls_port(router.upstreams[0])}", "--tls-ca", str(authority.file)]
        cert = str(authority.issue("tool", "DNS:router.example.org"))
        assert main(["clients", *where, "--tls-cert", cert]) == 0
        assert shown in capsys.readouterr().out


def test_token_of_a_client_follows_its_certificate(start, listening, mailer):
    with connect(start(TRUST + RULES, *listening), mailer) as wire:
        assert wire.ask(f"auth {TOKEN}") == "AUTHENTICATED"
        assert [wire.ask(f"use {tube}") for tube in ("ci.a", "mail.a")] == ["USING ci.a", "USING mail.a"]


def test_client_that_can_be_overheard_has_the_rights_of_its_address(start):
    with Wire(start(TRUST + RULES).connect()) as wire:
        assert wire.ask("use net.a") == "USING net.a"
        assert wire.put(b"x") > 0
        assert wire.ask("use mail.a") == "UNAUTHORIZED"


def test_router_refuses_a_client_without_a_certificate(start, listening, authority):  # noqa: F811
    with pytest.raises(OSError), connect(start(TRUST + RULES, *listening), context(authority)) as wire:
        wire.ask("use mail.a")


def test_server_that_does_not_trust_the_router_is_away(start, listening, mailer, tmp_path):
    """What the router itself may do there is nothing that its clients may do."""
    some = allow("cert:router.example.org", ["mail.*"], "producer", "worker")
    router = start(some + RULES, *listening)
    with connect(router, mailer) as wire:
        assert wire.ask("use mail.a") == "USING mail.a"
        assert wire.ask("put 0 0 60 1", b"x") == "INTERNAL_ERROR"
        lines = [line for line in router.log_text().splitlines() if "relay-for" in line]
        assert [("server=s1" in line, "server=s2" in line) for line in sorted(lines)] == [(True, False), (False, True)]
        assert all("give the router the role operator on all tubes" in line for line in lines)
        (tmp_path / "access.toml").write_text(TRUST + RULES)
        for server in router.upstreams:
            server.signal(signal.SIGHUP)
        until(lambda: router.log_text().count("server back") == 2)
        assert wire.put(b"x") > 0


def test_trust_that_is_withdrawn_is_noticed_by_the_next_client(start, listening, mailer, tmp_path):
    router = start(TRUST + RULES, *listening)
    with connect(router, mailer) as wire:
        assert wire.ask("use mail.a") == "USING mail.a"
        assert wire.put(b"x") > 0
        (tmp_path / "access.toml").write_text(RULES)
        router.upstreams[0].signal(signal.SIGHUP)
        assert wire.reply() == "UNAUTHORIZED"
        assert wire.is_closed()
    with connect(router, mailer) as wire:
        assert wire.ask("use mail.a") == "USING mail.a"
        assert wire.ask("put 0 0 60 1", b"x") == "INTERNAL_ERROR"
    until(lambda: "relay-for" in router.log_text())


def test_client_without_rules_is_shown_with_its_address(tmp_path):
    router = start_router(tmp_path / "router", [start_beanlite(tmp_path)], flags=["--relay"])
    with router, Wire(router.connect()) as wire, Wire(router.upstreams[0].connect()) as other:
        assert wire.put(b"x") > 0
        shown = "{}:{}".format(*wire.socket.getsockname())
        assert shown in [client["address"] for client in other.request("list-clients")["clients"]]


def test_authority_for_clients_needs_a_certificate_to_show(tmp_path, capsys):
    assert main(["route", "--servers", str(tmp_path / "x"), "--listen-tls-clients", str(tmp_path / "ca.pem")]) == 2
    assert "--listen-tls-clients needs --listen-tls-cert" in capsys.readouterr().err
