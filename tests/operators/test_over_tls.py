"""Operators' commands over TLS: who is trusted, what is shown, and what a mistake is answered with."""

import json
import socket
import ssl
import subprocess
import threading
from contextlib import contextmanager

import pytest

from beanlite.beanstalk.client import target_of
from beanlite.beanstalk.over_tls import OverTls
from beanlite.cli import main
from tests.support.authority import Authority
from tests.support.servers import start_beanlite
from tests.support.tls_front import TlsFront
from tests.support.wire import Wire


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with start_beanlite(tmp_path_factory.mktemp("server"), "--no-journal") as server:
        with Wire(server.connect()) as client:
            client.ask("use mail")
            client.put(b"hello")
        yield server


@pytest.fixture(scope="module")
def front(authority, server):
    with TlsFront(server.port, authority.issue("server")) as front:
        yield front


@pytest.fixture
def run(capsys):
    """Return a function that runs a command on a server, and returns the exit code, stdout and stderr."""

    def run(where, *words):
        exit_code = main([*words, "--connect", str(where)])
        printed = capsys.readouterr()
        return exit_code, printed.out, printed.err

    return run


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_command_reaches_server_over_tls(host, front, authority, run):
    exit_code, out, err = run(f"tls://{host}:{front.port}", "tubes", "--tls-ca", str(authority.file))
    assert (exit_code, err) == (0, "")
    assert "mail" in out


def test_each_kind_of_command_works_over_tls(front, authority, run, tmp_path):
    ca = ["--tls-ca", str(authority.file)]
    (tmp_path / "jobs").write_text(json.dumps({"body": "x" * 60_000, "tube": "large"}) + "\n")
    assert run(front.where, "put", "--jobs", str(tmp_path / "jobs"), *ca)[0] == 0
    exit_code, out, _ = run(front.where, "jobs", "--tube", "large", "--json", *ca)
    assert (exit_code, out.count("\n")) == (0, 1)
    assert run(front.where, "bury", "--tube", "large", *ca)[0] == 0
    assert run(front.where, "delete", "--tube", "large", "--state", "buried", "--yes", *ca)[0] == 0


def test_client_that_connects_again_reads_files_that_have_changed(tmp_path, caplog):
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    trusted, cert = tmp_path / "trusted.pem", authority.issue("client")
    trusted.write_bytes(authority.file.read_bytes())
    target = target_of(OverTls("localhost", 1, str(trusted), str(cert)))
    first = target.context()
    assert first is target.context()
    trusted.write_bytes(other.file.read_bytes())
    second = target.context()
    assert [context.get_ca_certs()[0]["subject"][0][0][1] for context in (first, second)] == ["ca", "other"]
    cert.write_text("half of a certificate")
    assert [target.context(), target.context()] == [second, second]
    (line,) = {record.getMessage() for record in caplog.records}
    assert line == "files for TLS can't be used; those of before are"
    authority.issue("client")
    third = target.context()
    assert third is target.context()
    assert third is not second


def test_unknown_authority_is_not_trusted(front, run):
    exit_code, _, err = run(front.where, "tubes")
    assert exit_code == 1
    assert err.startswith(f"beanlite: no server can be reached at {front.where}: the server's certificate is not")
    assert "--tls-ca names its authority" in err


@pytest.mark.parametrize(
    ("names", "days", "why"),
    [("DNS:other.example.org", 5, "is for another name"), ("DNS:localhost,IP:127.0.0.1", -1, "has expired")],
)
def test_unfit_certificate_of_server_is_refused(names, days, why, server, authority, run):
    with TlsFront(server.port, authority.issue("unfit", names, days=days)) as front:
        exit_code, _, err = run(front.where, "tubes", "--tls-ca", str(authority.file))
    assert exit_code == 1
    assert f"the server's certificate {why}" in err


def test_certificate_for_a_name_does_not_hold_for_an_address(server, authority, run):
    with TlsFront(server.port, authority.issue("named", "DNS:localhost")) as front:
        ca = str(authority.file)
        assert run(f"tls://localhost:{front.port}", "tubes", "--tls-ca", ca)[0] == 0
        exit_code, _, err = run(front.where, "tubes", "--tls-ca", ca)
    assert exit_code == 1
    assert "is for another name" in err


def test_client_certificate_is_shown(server, authority, run, tmp_path):
    mailer = authority.issue("mailer")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    text = mailer.read_text()
    begin = text.index("-----BEGIN PRIVATE")
    cert.write_text(text[:begin])
    key.write_text(text[begin:])
    with TlsFront(server.port, authority.issue("server2"), clients=authority.file) as front:
        ca = ["--tls-ca", str(authority.file)]
        assert run(front.where, "tubes", *ca, "--tls-cert", str(mailer))[0] == 0
        assert run(front.where, "tubes", *ca, "--tls-cert", str(cert), "--tls-key", str(key))[0] == 0


@pytest.mark.parametrize("version", ["TLSv1_2", "TLSv1_3"])
def test_unfit_client_certificate_is_told(version, server, authority, run, tmp_path):
    stranger = Authority(tmp_path, "other").issue("stranger")
    with TlsFront(server.port, authority.issue("server3"), clients=authority.file) as front:
        front.context.maximum_version = ssl.TLSVersion[version]
        none = run(front.where, "tubes", "--tls-ca", str(authority.file))
        other = run(front.where, "tubes", "--tls-ca", str(authority.file), "--tls-cert", str(stranger))
    for exit_code, _, err in (none, other):
        assert (exit_code, "--tls-cert" in err, err.count("\n")) == (1, True, 1), err
    if version == "TLSv1_2":  # later, the alert may be lost
        assert "the server asks for a client certificate" in none[2]
        assert "it does not trust its authority" in other[2]


def test_plain_server_is_told_from_one_with_tls(server, authority, run):
    exit_code, _, err = run(f"tls://127.0.0.1:{server.port}", "tubes", "--tls-ca", str(authority.file))
    assert exit_code == 1
    assert "TLS at this port" in err


def test_plain_connection_to_server_with_tls_says_how(front, run):
    exit_code, _, err = run(f"127.0.0.1:{front.port}", "tubes")
    assert exit_code == 1
    assert "tls://HOST:PORT" in err


def test_old_version_of_tls_is_told(server, authority, run):
    with TlsFront(server.port, authority.issue("server5")) as front:
        front.context.set_ciphers("ALL:@SECLEVEL=0")
        with pytest.deprecated_call():
            front.context.minimum_version = ssl.TLSVersion.TLSv1_1
            front.context.maximum_version = ssl.TLSVersion.TLSv1_1
        exit_code, _, err = run(front.where, "tubes", "--tls-ca", str(authority.file))
    assert exit_code == 1
    assert "no version of TLS in common" in err


def test_wrong_options_for_tls_are_refused(authority, run, tmp_path):
    mailer, empty = authority.issue("mailer2"), tmp_path / "empty.pem"
    empty.touch()
    ca, tls = str(authority.file), "tls://localhost:1"
    for where, options, why in [
        ("localhost:1", ["--tls-ca", ca], "--tls-ca is for --connect tls://HOST:PORT"),
        (tls, ["--tls-key", str(mailer)], "--tls-key needs --tls-cert"),
        (tls, ["--tls-ca", "nowhere.pem"], "nowhere.pem can't be read"),
        (tls, ["--tls-ca", str(empty)], "has no certificate of an authority"),
        (tls, ["--tls-cert", ca], "no certificate with its key in PEM"),
        (tls, ["--tls-cert", "nowhere.pem"], "nowhere.pem can't be read"),
        (tls, ["--tls-cert", ca, "--tls-key", str(mailer)], "the key is not that of the certificate"),
        ("tls://localhost", [], "takes tls://HOST:PORT"),
        ("localhost", [], "takes HOST:PORT, tls://HOST:PORT or unix:PATH"),
        ("beanlite://localhost:1", [], "takes HOST:PORT, tls://HOST:PORT or unix:PATH"),
        ("tls:///localhost:1", [], "takes tls://HOST:PORT"),
    ]:
        exit_code, _, err = run(where, "tubes", *options)
        assert (exit_code, why in err, err.count("\n")) == (2, True, 1), err


def test_encrypted_key_is_refused_without_a_question(authority, run, tmp_path):
    mailer, key = authority.issue("mailer3"), tmp_path / "key.pem"
    words = ["openssl", "pkey", "-in", mailer, "-aes256", "-passout", "pass:secret", "-out", key]
    subprocess.run(words, check=True)
    exit_code, _, err = run("tls://localhost:1", "tubes", "--tls-cert", str(mailer), "--tls-key", str(key))
    assert (exit_code, "the key is encrypted" in err, err.count("\n")) == (2, True, 1), err


@contextmanager
def answering(path, *replies):
    """Serve one client at a Unix socket with these replies; yield the lines that it sends."""
    lines = []

    def serve(listening):
        with listening, listening.accept()[0] as client, client.makefile("rb") as sent:
            for reply in replies:
                lines.append(sent.readline())
                client.sendall(reply)

    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(path))
    listening.listen()
    thread = threading.Thread(target=serve, args=(listening,), daemon=True)
    thread.start()
    yield lines
    thread.join(10)


def test_token_is_sent_first(run, tmp_path, monkeypatch):
    monkeypatch.setenv("BEANLITE_TOKEN", "abc")
    with answering(tmp_path / "s", b"AUTHENTICATED\r\n", b"OK 6\r\na: 1\r\n\r\n") as lines:
        assert run(f"unix:{tmp_path}/s", "stats")[0] == 0
    assert lines == [b"auth abc\r\n", b"stats\r\n"]


def test_server_without_tokens_is_served_all_the_same(front, authority, run, monkeypatch):
    monkeypatch.setenv("BEANLITE_TOKEN", "abc")
    assert run(front.where, "stats", "--tls-ca", str(authority.file))[0] == 0


def test_wrong_token_is_one_clear_line(run, tmp_path, monkeypatch):
    monkeypatch.setenv("BEANLITE_TOKEN", "wrong")
    with answering(tmp_path / "s", b"UNAUTHORIZED\r\n"):
        exit_code, _, err = run(f"unix:{tmp_path}/s", "tubes")
    assert exit_code == 1
    assert err == f"beanlite: unix:{tmp_path}/s does not accept the token in BEANLITE_TOKEN: UNAUTHORIZED\n"


def test_token_is_not_sent_in_clear_text(run, monkeypatch):
    monkeypatch.setenv("BEANLITE_TOKEN", "abc")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        first = []

        def hear():
            with listening.accept()[0] as client:
                first.append(client.recv(100))

        thread = threading.Thread(target=hear, daemon=True)
        thread.start()
        assert run(f"127.0.0.1:{listening.getsockname()[1]}", "stats")[0] == 1
        thread.join(10)
    assert first == [b"stats\r\n"]


def test_token_with_a_line_end_begins_no_command(run, tmp_path, monkeypatch):
    monkeypatch.setenv("BEANLITE_TOKEN", "abc\r\nquit")
    exit_code, _, err = run(f"unix:{tmp_path}/s", "tubes")
    assert (exit_code, "BEANLITE_TOKEN is no token" in err) == (2, True)
