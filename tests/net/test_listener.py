"""Listening before the settings are read, and only where they can't say otherwise."""

import asyncio
import inspect
import re
import signal
import socket
from contextlib import ExitStack

import pytest

from beanlite.cli.serve import flags_of, serve
from beanlite.errors import BeanliteError, ListenError
from beanlite.net import health, listener as listen
from beanlite.net.addresses import peer_name
from beanlite.settings.config import Settings
from beanlite.web import serving
from tests.support.forks import fork
from tests.support.servers import free_port, start_beanlite


@pytest.fixture
def port(monkeypatch):
    monkeypatch.setattr(listen, "_early", {})
    yield free_port()
    for listener in listen._early.values():
        for sock in listener.sockets:
            sock.close()


@pytest.mark.parametrize("host", ["a..b", "a" * 64])
@pytest.mark.parametrize(
    "words",
    [
        ["serve", "--no-journal", "-l", "{}"],
        ["serve", "--no-journal", "--health", "{}:1"],
        ["route", "--listen", "{}:1", "--servers", "x"],
    ],
)
def test_name_that_no_machine_can_have_is_not_listened_on(words, host, port, tmp_path):
    words = [word.format(host) for word in words] + (["--port", str(port)] if "--health" in words else [])
    with (tmp_path / "log").open("w+") as log:
        assert fork(words, tmp_path, {}, log).wait(30) == 5
        log.seek(0)
        assert re.fullmatch(
            f"beanlite: can't listen on {host}(, for --health)?: no machine can have this name\n", log.read()
        )


@pytest.mark.parametrize("host", ["a..b", "ü" * 64])
def test_page_is_not_served_at_a_name_that_no_machine_can_have(host):
    with pytest.raises(BeanliteError, match=f"can't listen on {host}:1: no machine can have this name"):
        serving.listen((host, 1))


def test_a_port_of_thousands_of_digits_is_left_to_the_settings():
    listen.listen_early(["-p", "9" * 5000])
    assert not listen._early


def accepts(port, host="127.0.0.1"):
    try:
        socket.create_connection((host, port), 5).close()
    except ConnectionError:
        return False
    return True


@pytest.mark.parametrize(
    "flags", ["-p{}", "-p {} -b /tmp -f 0 -F -z 5 -u me -s 1 -V -c -n", "-l 127.0.0.1 -p {}", "--no-journal -p {}"]
)
def test_early_socket_of_beanstalkds_flags_is_found_by_the_settings(port, flags):
    listen.listen_early(flags.format(port).split())
    assert accepts(port)
    listener = listen.open_listener(Settings(port=port))
    assert listener.sockets[0].getsockname() == ("127.0.0.1", port)
    assert not listen._early
    listener.close()
    assert [sock.fileno() for sock in listener.sockets] == [-1]


@pytest.mark.parametrize(
    "flags",
    ["serve -p {}", "-p {} --config x", "-p {} -q", "-p x{}", "-v -p {}", "-p {} backup"],
)
def test_anything_else_is_left_to_the_settings(port, flags):
    listen.listen_early(flags.format(port).split())
    assert not accepts(port)


@pytest.mark.parametrize("name", ["BEANLITE_HOST", "BEANLITE_SOCKET", "BEANLITE_DATABASE", "LISTEN_PID"])
def test_the_environment_may_say_otherwise(port, monkeypatch, name):
    monkeypatch.setenv(name, "1")
    listen.listen_early(["-p", str(port)])
    assert not accepts(port)


def test_the_environment_may_name_the_port(port, monkeypatch):
    monkeypatch.setattr(listen, "PORT", port)
    monkeypatch.setenv("BEANLITE_PORT", str(port))
    listen.listen_early(["-l", "127.0.0.1"])
    assert not listen._early


@pytest.mark.parametrize("name", ["beanlite_port", "Beanlite_Host"])
def test_the_environment_is_in_small_letters_too(port, monkeypatch, name):
    monkeypatch.setattr(listen, "PORT", port)
    monkeypatch.setenv(name, "1")
    listen.listen_early([])
    assert not listen._early


def test_what_was_opened_early_for_other_settings_is_closed(port):
    listen.listen_early(["-p", str(port)])
    listener = listen.open_listener(Settings(port=free_port()))
    assert not listen._early
    assert not accepts(port)
    listener.close()


HERE, ABSENT = (socket.AF_INET, "127.0.0.1"), (socket.AF_INET, "198.51.100.7")


@pytest.fixture
def name_has(monkeypatch, port):
    """A function that gives a name these addresses, each with its family."""

    def has(*addresses):
        found = [(family, socket.SOCK_STREAM, 0, "", (address, port)) for family, address in addresses]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)

    return has


@pytest.mark.parametrize("absent", [ABSENT, (200, "::1")], ids=["address", "family"])
@pytest.mark.parametrize("first", [True, False])
def test_an_address_that_the_machine_lacks_is_passed_over(name_has, caplog, absent, first):
    name_has(*((absent, HERE) if first else (HERE, absent)))
    (sock,) = listen.tcp_sockets("two.example.org", 1, 8)
    assert sock.getsockname()[0] == "127.0.0.1"
    sock.close()
    (fields,) = [record.fields for record in caplog.records]
    assert fields["name"] == "two.example.org"
    assert fields["address"] == absent[1]


def test_where_the_machine_lacks_all_addresses_nothing_is_listened_on(name_has):
    name_has(ABSENT, (200, "::1"))
    with pytest.raises(ListenError, match=r"can't listen on two\.example\.org port 1: "):
        listen.tcp_sockets("two.example.org", 1, 8)


def test_an_address_that_is_taken_is_not_passed_over(name_has):
    name_has(HERE, HERE)
    with pytest.raises(ListenError, match=r"can't listen on two\.example\.org port 1: Address already in use"):
        listen.tcp_sockets("two.example.org", 1, 8)


def test_early_all_addresses_are_listened_on_or_none(port, name_has):
    name_has(HERE, ABSENT)
    listen.listen_early(["-l", "two.example.org", "-p", str(port)])
    assert not listen._early


def test_a_port_that_is_taken_is_left_for_the_settings_to_complain_of(port):
    with socket.create_server(("127.0.0.1", port)):
        listen.listen_early(["-p", str(port)])
        assert not listen._early


@pytest.mark.usefixtures("port")
def test_a_unix_socket(tmp_path):
    listen.listen_early(["-l", f"unix:{tmp_path}/s"])
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(f"{tmp_path}/s")
    listener = listen.open_listener(Settings(socket=tmp_path / "s"))
    assert listener.path == tmp_path / "s"
    listener.close()


def test_stopping_server_leaves_the_socket_of_its_successor(tmp_path):
    path = tmp_path / "s"
    first = listen.listen_at((str(path),))
    first.sockets[0].close()  # as the loop does long before the end, if clients still wait for replies
    clock, made_ns = tmp_path / "clock", path.stat().st_mtime_ns
    while not clock.exists() or clock.stat().st_mtime_ns == made_ns:  # it moves in ticks
        clock.touch()
    second = listen.listen_at((str(path),))
    path.chmod(0o660)  # as an operator may
    first.close()
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
    second.close()
    assert not path.exists()


@pytest.mark.parametrize("spelt", ["unix:./s", "unix:.//s", "unix:///{folder}/s", "unix://{folder}/s"])
def test_every_spelling_of_a_unix_socket_finds_the_early_one(port, tmp_path, monkeypatch, spelt):
    monkeypatch.chdir(tmp_path)
    flag = spelt.format(folder=tmp_path)
    listen.listen_early(["-l", flag, "-p", str(port)])
    assert len(listen._early) == 1
    listener = listen.open_listener(Settings(**flags_of_serve(host=flag)))
    assert not listen._early
    assert (tmp_path / "s").is_socket()
    listener.close()


def flags_of_serve(**given):
    """What `serve` makes of flags; those that are not given are None."""
    names = inspect.signature(serve).parameters
    return flags_of({**dict.fromkeys(names), **given}, print)


@pytest.mark.parametrize("spelt", ["::", "0::0", "0:0:0:0:0:0:0:0"])
def test_the_wildcard_of_ipv6_is_also_that_of_ipv4(port, spelt):
    listener = listen.open_listener(Settings(host=spelt, port=port))
    assert accepts(port)
    assert accepts(port, "::1")
    listener.close()


def test_the_wildcard_of_ipv4_is_only_that(port):
    listener = listen.open_listener(Settings(host="0.0.0.0", port=port))
    assert accepts(port)
    assert not accepts(port, "::1")
    listener.close()


async def test_the_health_page_on_the_wildcard_of_ipv6_is_reached_over_ipv4(port):
    async def nothing():
        return b""

    page = health.Health(asyncio.get_running_loop(), lambda: (True, "ready"), nothing, "")
    await page.open("::", port)
    assert accepts(port)
    assert accepts(port, "::1")
    page.close()


def test_web_page_on_the_wildcard_of_ipv6_is_reached_over_ipv4(port):
    with serving.listen(("::", port)):
        assert accepts(port)
        assert accepts(port, "::1")


def test_a_client_that_comes_over_ipv4_is_named_by_its_ipv4_address():
    for peer, name in ((("::ffff:10.0.0.7", 4711, 0, 0), "10.0.0.7:4711"), (("::1", 4711, 0, 0), "[::1]:4711")):
        assert peer_name(asyncio.BaseTransport({"peername": peer})) == name


def test_hundreds_of_clients_come_at_once_and_the_kernel_keeps_them(tmp_path):
    """Who finds the queue full tries again a second later, if it is patient."""
    with start_beanlite(tmp_path, "--no-journal") as server, ExitStack() as clients:
        server.signal(signal.SIGSTOP)
        clients.callback(server.signal, signal.SIGCONT)
        for _ in range(300):
            clients.enter_context(server.connect(timeout_s=5))
