"""Handshakes of TLS that are refused, each told of in plain words."""

import os
import socket
import ssl
import subprocess
from typing import cast

import pytest

from tests.support.certificates import Authority, tls_flags, tls_port, wrap
from tests.support.servers import start_beanlite
from tests.support.tls_clients import rest_of
from tests.support.wire import Wire, until


def is_refused(connect):
    """Whether the server ends a connection instead of answering a command."""
    try:
        with Wire(connect()) as wire:
            wire.ask("list-tube-used")
    except OSError:
        return True
    return False


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
