"""Rights over TLS in a real server: certificates and tokens, what they may do, reloads, commands and a client."""

import asyncio
import os
import ssl
from pathlib import Path

import greenstalk
import pytest

from beanlite.cli import main
from beanlite.net import pending
from beanlite.net.allowed import Access
from tests.support import access
from tests.support.access import DIGEST, RuledServer
from tests.support.authority import Authority
from tests.support.certificates import tls_flags, tls_port, wrap
from tests.support.inside import serving, until as until_inside
from tests.support.servers import start_beanlite
from tests.support.wire import Wire, put_bytes, until

TOKEN, allow = access.TOKEN, access.allow  # which the tests of routers have from here
TOKENS = f'[tokens]\nci = "{DIGEST}"\n'

MAILER = allow("cert:mailer.example.org", ["default", "mail.*"], "worker", "reader")
TWO_NAMES = "URI:spiffe://example.org/mailer,DNS:other.example.org"
CI = allow("token:ci", ["ci.*"], "producer", "reader")


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def own(authority):
    both = authority.issue("server")
    return both, both


@pytest.fixture(scope="module")
def contexts(authority):
    """What clients have, by the names in their certificates: as alternatives, or as the common name alone."""
    contexts = {}
    for common, alternatives in (
        ("mailer", "DNS:mailer.example.org"),
        ("spiffe", TWO_NAMES),
        ("common.example.org", "IP:127.0.0.1"),
        ("mailer.example.org", "DNS:stranger.example.org"),
    ):
        contexts[alternatives] = context(authority, authority.issue(common, alternatives))
    return contexts


def context(authority, both=None):
    made = ssl.create_default_context(cafile=authority.file)
    if both is not None:
        made.load_cert_chain(both)
    return made


@pytest.fixture
def mailer(contexts):
    return contexts["DNS:mailer.example.org"]


@pytest.fixture(params=["uvloop", "asyncio"])
def environment(request, tmp_path):
    """The environment of the server; for asyncio's own loop, uvloop is hidden."""
    if request.param == "uvloop":
        return {}
    (tmp_path / "uvloop.py").write_text("raise ImportError")
    return {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])])}


@pytest.fixture
def serve(tmp_path, authority, own):
    servers = []

    def start(text, *, clients=authority.file, environment=None):
        rules = tmp_path / "access.toml"
        rules.write_text(text)
        flags = [*tls_flags(own, clients), "--access", str(rules), "-V"]
        servers.append(start_beanlite(tmp_path, "--no-journal", *flags, environment=environment))
        until(lambda: " tls=" in servers[-1].log_text())
        return RuledServer(servers[-1], rules)

    yield start
    for server in servers:
        server.stop()
        assert "Traceback" not in server.log_text()
        assert TOKEN[:20] not in server.log_text()


# -- certificates


@pytest.mark.parametrize(
    ("alternatives", "name", "shown"),
    [
        ("DNS:mailer.example.org", "mailer.example.org", "mailer.example.org"),
        (TWO_NAMES, "spiffe://example.org/mailer", "spiffe://example.org/mailer"),
        (TWO_NAMES, "other.example.org", "spiffe://example.org/mailer"),
        ("IP:127.0.0.1", "common.example.org", "common.example.org"),
    ],
)
def test_certificate_gives_its_rights_and_its_name(serve, contexts, environment, alternatives, name, shown):
    serving = serve(allow(f"cert:{name}", ["mail.*"], "producer", "worker", "reader"), environment=environment)
    with serving.connect(contexts[alternatives]) as wire:
        assert wire.ask("use other") == "UNAUTHORIZED"
        assert wire.ask("use mail.de") == "USING mail.de"
        assert wire.put(b"x") == 1
        assert [wire.ask(line) for line in ("watch mail.de", "ignore default")] == ["WATCHING 2", "WATCHING 1"]
        assert wire.ask("reserve") == "RESERVED 1 1"
        (client,) = wire.request("list-clients")["clients"]
        assert client["address"] == "{}:{} {shown}".format(*wire.socket.getsockname(), shown=shown)
        assert wire.request("list-jobs")["jobs"][0]["holder"]["address"] == client["address"]


def test_name_in_the_subject_does_not_count_beside_others(serve, contexts):
    with serve(MAILER).connect(contexts["DNS:stranger.example.org"]) as wire:
        assert wire.ask("watch mail.de") == "UNAUTHORIZED"
        assert wire.ask("reserve-with-timeout 0") == "UNAUTHORIZED"


def test_certificate_that_is_not_verified_gives_no_rights(serve, mailer):
    with serve(MAILER, clients=None).connect(mailer) as wire:
        assert wire.ask("watch mail.de") == "UNAUTHORIZED"


def test_certificate_with_unreadable_names_has_no_name(serve, authority, mailer, environment):
    """The authority has signed it, so that the handshake succeeds."""
    odd = authority.issue("mailer.example.org", "DER:30038201FF")  # a DNS name that is no UTF-8
    serving = serve(MAILER + allow("cert:mailer.example.org", ["a"], "producer"), environment=environment)
    with serving.connect(context(authority, odd)) as wire, serving.connect(mailer) as other:
        assert wire.ask("use a") == "UNAUTHORIZED"
        assert other.ask("use a") == "USING a"


def der(name):
    """The alternative name in a certificate, whatever its bytes are."""
    return f"DER:30{len(name) + 2:02x}82{len(name):02x}{name.hex()}"


@pytest.mark.parametrize(
    "alternatives",
    [
        der(b"mailer.example.org\0.example.com"),
        der(b"mailer.example.org\n"),
        der("mäiler.example.org".encode()),
        der(b""),
        "DNS:*.example.org,DNS:*",
        "DNS:cert:mailer.example.org",
        "DNS:token:ci",
        "DNS:mailer.example.org." + "x" * 10_000,
        "email:mailer.example.org@example.org",
    ],
    ids=["nul", "line", "utf-8", "empty", "wildcard", "prefix", "token", "long", "mail"],
)
def test_odd_name_gives_no_rights_of_another(serve, authority, mailer, alternatives):
    serving = serve(TOKENS + MAILER + CI)
    with serving.connect(context(authority, authority.issue("odd", alternatives))) as wire:
        assert wire.ask("watch mail.de") == "UNAUTHORIZED"
        assert wire.ask("use ci.a") == "UNAUTHORIZED"
    with serving.connect(mailer) as wire:
        assert wire.ask("watch mail.de") == "WATCHING 2"


def test_one_of_many_names_counts(serve, authority):
    many = ",".join(f"DNS:n{number}.example.org" for number in range(400))
    with serve(MAILER).connect(context(authority, authority.issue("many", f"{many},DNS:mailer.example.org"))) as wire:
        assert wire.ask("watch mail.de") == "WATCHING 2"


def test_certificate_of_another_authority_is_no_client(serve, authority, tmp_path):
    (tmp_path / "rogue").mkdir()
    rogue = Authority(tmp_path / "rogue").issue("mailer", "DNS:mailer.example.org")
    serving = serve(MAILER)
    with pytest.raises(OSError), serving.connect(context(authority, rogue)) as wire:
        wire.ask("watch mail.de")
    with Wire(serving.server.connect()) as wire:
        assert wire.stats()["refused-handshake"] == "1"


def test_address_over_tls_has_the_rights_of_rules_for_addresses(serve, authority):
    with serve(allow("net:127.0.0.1", ["a"], "producer"), clients=None).connect(context(authority)) as wire:
        assert wire.ask("use a") == "USING a"
        assert wire.ask("use mail.de") == "UNAUTHORIZED"


@pytest.mark.parametrize("size", [1, 60_000])
def test_put_of_a_worker_is_refused_and_the_next_command_works(serve, mailer, environment, size):
    with serve(MAILER, environment=environment).connect(mailer) as wire:
        wire.send(put_bytes(b"x" * size) + b"watch mail.de\r\n")
        assert [wire.reply(), wire.reply()] == ["UNAUTHORIZED", "WATCHING 2"]
        assert wire.ask("reserve-with-timeout 0") == "TIMED_OUT"
        stats = wire.stats()
        assert (stats["total-jobs"], stats["refused-unauthorized"]) == ("0", "1")


def test_greenstalk_with_a_certificate_has_its_rights(serve, mailer):
    serving = serve(MAILER + allow("net:127.0.0.1", ["mail.*"], "producer"))
    with Wire(serving.server.connect()) as producer:
        producer.ask("use mail.de")
        producer.put(b"hello")
    serving.reload(MAILER)
    with greenstalk.Client(wrap(serving.server, mailer), watch="mail.de") as client:
        with pytest.raises(greenstalk.UnknownResponseError):
            client.put("x")
        job = client.reserve(timeout=10)
        assert job.body == "hello"
        client.delete(job)


# -- tokens


def test_token_over_tls_adds_its_rights_to_those_of_the_certificate(serve, mailer, environment):
    with serve(MAILER + CI + TOKENS, environment=environment).connect(mailer) as wire:
        assert wire.ask(f"auth {TOKEN}") == "AUTHENTICATED"
        assert wire.ask("use ci.1") == "USING ci.1"
        assert wire.put(b"x") == 1
        assert wire.ask("watch mail.de") == "WATCHING 2"
        (client,) = wire.request("list-clients")["clients"]
        assert client["address"] == "{}:{} ci".format(*wire.socket.getsockname())


def test_wrong_token_over_tls_ends_the_connection(serve, authority):
    serving = serve(CI + TOKENS, clients=None)
    with serving.connect(context(authority)) as wire:
        wire.send(f"auth {TOKEN[:-1]}0\r\nstats\r\n".encode())
        assert wire.reply() == "UNAUTHORIZED"
        assert wire.is_closed()
    with serving.connect(context(authority)) as wire:
        assert wire.ask("use ci.1") == "UNAUTHORIZED"
        assert wire.ask(f"auth {TOKEN}") == "UNAUTHORIZED"  # it is not the first line
        assert wire.is_closed()


def test_token_on_the_plain_port_beside_tls_is_refused(serve):
    with Wire(serve(CI + TOKENS, clients=None).server.connect()) as wire:
        assert wire.ask(f"auth {TOKEN}") == "UNAUTHORIZED"
        assert wire.is_closed()


async def test_client_over_tls_without_rights_has_a_short_time(tmp_path, own, authority, monkeypatch):
    monkeypatch.setattr(pending, "PENDING_S", 0.2)
    settings = {"tls": "127.0.0.1:0", "tls_cert": own[0], "tls_key": own[1]}
    async with serving(tmp_path / "queue.db", **settings) as (server, _):
        server.parts.roster._gate._access = Access([], {}, {})
        host, port = server._listener.tls.address.split(":")
        to = {"ssl": context(authority), "server_hostname": "localhost"}
        reader, writer = await asyncio.open_connection(host, int(port), **to)
        assert await asyncio.wait_for(reader.read(), 10) == b"UNAUTHORIZED\r\n"
        writer.close()
        await until_inside(lambda: not len(server.parts.roster))
        assert server.parts.engine.memory.tls_clients == 0


# -- reloads


def test_reload_ends_a_client_whose_certificate_has_lost_a_right(serve, mailer, contexts, environment):
    other = allow("cert:stranger.example.org", ["b"], "producer")
    serving = serve(MAILER + other, environment=environment)
    with serving.connect(mailer) as loses, serving.connect(contexts["DNS:stranger.example.org"]) as stays:
        assert loses.ask("watch mail.de") == "WATCHING 2"
        assert stays.ask("use b") == "USING b"
        loses.send(b"reserve\r\n")
        until(lambda: stays.stats()["current-waiting"] == "1")
        serving.reload(other)
        assert loses.reply() == "UNAUTHORIZED"
        loses.socket.suppress_ragged_eofs = False
        assert loses.socket.recv(1) == b""  # TLS says that it is the end
        assert stays.ask("use b") == "USING b"
    with serving.connect(mailer) as again:
        assert again.ask("watch mail.de") == "UNAUTHORIZED"


def test_reload_ends_a_client_whose_token_is_withdrawn(serve, mailer):
    serving = serve(MAILER + CI + TOKENS)
    with serving.connect(mailer) as wire, serving.connect(mailer) as stays:
        assert wire.ask(f"auth {TOKEN}") == "AUTHENTICATED"
        assert stays.ask("watch mail.de") == "WATCHING 2"
        serving.reload(MAILER)
        assert wire.reply() == "UNAUTHORIZED"
        assert wire.is_closed()
        assert stays.ask("watch mail.fr") == "WATCHING 3"


def test_job_of_a_client_that_is_ended_is_ready_again(serve, mailer, contexts):
    other = allow("cert:stranger.example.org", ["mail.de"], "producer", "worker")
    serving = serve(MAILER + other)
    with serving.connect(mailer) as loses, serving.connect(contexts["DNS:stranger.example.org"]) as stays:
        assert stays.ask("use mail.de") == "USING mail.de"
        assert stays.put(b"x") == 1
        assert loses.ask("watch mail.de") == "WATCHING 2"
        assert loses.ask("reserve") == "RESERVED 1 1"
        serving.reload(other)
        assert [stays.ask(line) for line in ("watch mail.de", "ignore default")] == ["WATCHING 2", "WATCHING 1"]
        assert stays.ask("reserve-with-timeout 10") == "RESERVED 1 1"


def serial_of(wire):
    """The number of the server's certificate."""
    return wire.socket.getpeercert()["serialNumber"]


def test_reload_takes_rules_and_certificates_together_or_neither(serve, mailer, own, authority):
    serving = serve(MAILER)
    with serving.connect(mailer) as wire:
        assert wire.ask("watch mail.de") == "WATCHING 2"
        serial = serial_of(wire)
        own[0].write_text(own[0].read_text()[:300])
        assert "not reloaded" in serving.reload("allow = []")
        assert wire.ask("watch mail.fr") == "WATCHING 3"
        assert authority.issue("server") == own[0]
        assert "not reloaded" in serving.reload("[other]")
        assert wire.ask("watch mail.it") == "WATCHING 4"
        with serving.connect(mailer) as other:
            assert serial_of(other) == serial
        serving.reload("allow = []")
        assert wire.reply() == "UNAUTHORIZED"
        assert wire.is_closed()
        with serving.connect(mailer) as other:
            assert serial_of(other) != serial


# -- beanlite's own commands


@pytest.fixture
def tubes(capsys, monkeypatch, authority):
    """Return a function that lists tubes over TLS with a token, and returns the exit code, stdout and stderr."""

    def run(serving, token, *words):
        monkeypatch.setenv("BEANLITE_TOKEN", token)
        where = f"tls://localhost:{tls_port(serving.server)}"
        code = main(["tubes", "--connect", where, "--tls-ca", str(authority.file), *words])
        return code, *capsys.readouterr()

    return run


def test_command_shows_its_token_over_tls(serve, tubes):
    serving = serve(CI + allow("net:127.0.0.1", ["mail", "ci.1"], "producer") + TOKENS, clients=None)
    with Wire(serving.server.connect()) as producer:
        for tube in ("mail", "ci.1"):
            producer.ask(f"use {tube}")
            producer.put(b"x")
        code, out, err = tubes(serving, TOKEN)
    assert (code, err) == (0, "")
    assert "ci.1" in out
    assert "mail" not in out
    code, _, err = tubes(serving, TOKEN[:-1] + "0")
    assert code == 1
    assert "does not accept the token in BEANLITE_TOKEN: UNAUTHORIZED" in err
    assert TOKEN[:20] not in err


def test_command_without_a_right_says_why(serve, tubes, capsys, monkeypatch):
    serving = serve(CI + TOKENS, clients=None)
    code, _, err = tubes(serving, "")
    assert code == 1
    assert "no rule of the server allows it" in err
    monkeypatch.setenv("BEANLITE_TOKEN", TOKEN)
    assert main(["tubes", "--connect", f"127.0.0.1:{serving.server.port}"]) == 1
    assert "is sent over tls:// and to a Unix socket only" in capsys.readouterr().err
    assert "AUTHENTICATED" not in serving.server.log_text()


def test_command_with_a_certificate_has_its_rights(serve, tubes, authority, mailer):
    both = str(authority.issue("tool", "DNS:mailer.example.org"))
    serving = serve(MAILER)
    with serving.connect(mailer) as wire:
        assert wire.ask("watch mail.de") == "WATCHING 2"
        code, out, err = tubes(serving, "", "--tls-cert", both)
    assert (code, err) == (0, "")
    assert "mail.de" in out
