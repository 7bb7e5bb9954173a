"""The web page that runs beside a server: it starts and ends with the server, and its end never ends the server."""

import asyncio
import http.client
import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from beanlite.beside import child, webpage
from beanlite.beside.beside import Beside, _reached_at
from beanlite.beside.webpage import WebPage
from beanlite.errors import ConfigError
from beanlite.host import log
from beanlite.settings import sources
from beanlite.web.safety import password_line
from tests.support.authority import Authority
from tests.support.inside import until as until_inside
from tests.support.servers import ServerDied, free_port, start_beanlite
from tests.support.web import ask_over_tls, sign_in
from tests.support.wire import Wire, until

SERVED = re.compile(r"serving the web page at=http://(\S+)/ pid=(\d+)")


@pytest.fixture
def server(tmp_path):
    with start_beanlite(tmp_path / "q", "--history", "1d", "--web", "127.0.0.1:0") as server:
        yield server


def pages_of(server):
    """Return the address and the process id of each page that was started so far."""
    return [(where, int(pid)) for where, pid in SERVED.findall(server.log_text())]


def page_of(server, number=1):
    """Wait for one of them, and return its address and process id."""
    until(lambda: len(pages_of(server)) >= number)
    return pages_of(server)[number - 1]


def ask(where, path="/", login="", **headers):
    """Return a page's response, to a user given as NAME:PASSWORD; None if the connection is refused."""
    connection = http.client.HTTPConnection(where, timeout=30)
    try:
        connection.request("GET", path, headers=headers | (sign_in(login) if login else {}))
        response = connection.getresponse()
        return response.status, response.read().decode()
    except ConnectionRefusedError:
        return None
    finally:
        connection.close()


def has_gone(pid):
    """Return whether a process has ended, even if it has not been reaped."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state == "Z"


def test_the_page_shows_this_server_and_its_database(server):
    with Wire(server.connect()) as wire:
        wire.put(b"by a client")
    where, _ = page_of(server)
    status, text = ask(where)
    assert status == 200
    assert f"127.0.0.1:{server.port}" in text
    assert "by a client" in ask(where, "/jobs")[1]
    assert "start beanlite web with --db" not in ask(where, "/job/1")[1]


# -- a page that knows its users


def with_users(tmp_path, users, *flags):
    """Start a server whose page all machines reach, and which asks for a password."""
    return start_beanlite(tmp_path, "--web", "0.0.0.0:0", "--web-password-file", str(users), *flags)


@pytest.fixture
def users(tmp_path):
    """A file of users with one operator."""
    path = tmp_path / "users"
    path.write_text(password_line("ann", "operator", "horse") + "\n")
    return path


def near(where):
    """Return how this machine reaches a page that listens on all addresses."""
    return where.replace("0.0.0.0", "127.0.0.1")


def test_page_that_others_reach_asks_for_a_password(tmp_path, users):
    with with_users(tmp_path / "q", users) as server:
        where = near(page_of(server)[0])
        assert [ask(where, login=login)[0] for login in ("", "ann:wrong", "ann:horse")] == [401, 401, 200]
        assert "ann" in ask(where, login="ann:horse")[1]
        assert ask(where, login="ann:horse", host="queue.example.org")[0] == 200


def test_page_for_this_machine_alone_may_ask_for_a_password(tmp_path, users):
    with start_beanlite(tmp_path / "q", "--web", "127.0.0.1:0", "--web-password-file", str(users)) as server:
        where, _ = page_of(server)
        assert [ask(where, login=login)[0] for login in ("", "ann:horse")] == [401, 200]
        assert ask(where, login="ann:horse", host="queue.example.org")[0] == 421


def test_reload_has_the_page_read_its_users_again(tmp_path, users):
    with with_users(tmp_path / "q", users) as server:
        assert ask(near(page_of(server)[0]), login="ann:horse")[0] == 200
        users.write_text(password_line("bob", "reader", "battery") + "\n")
        server.signal(signal.SIGHUP)
        where = near(page_of(server, 2)[0])
        assert [ask(where, login=login)[0] for login in ("ann:horse", "bob:battery")] == [401, 200]
        assert "starting it again" not in server.log_text()
        users.write_text("nonsense\n")
        server.signal(signal.SIGHUP)
        until(lambda: "not reloaded" in server.log_text())
        assert "web_password_file: " in server.log_text()
        assert ask(where, login="bob:battery")[0] == 200


def test_users_are_read_again_from_a_file_that_looks_as_old(tmp_path, users):
    with with_users(tmp_path / "q", users) as server:
        assert ask(near(page_of(server)[0]), login="ann:horse")[0] == 200
        written_ns = users.stat().st_mtime_ns
        users.write_text(password_line("bob", "operator", "horse") + "\n")
        os.utime(users, ns=(written_ns, written_ns))
        server.signal(signal.SIGHUP)
        assert ask(near(page_of(server, 2)[0]), login="ann:horse")[0] == 401


def test_reload_never_lets_everybody_in_where_others_reach_the_page(tmp_path, users):
    """The new settings are consistent, but their address needs a restart: the page would stay where others reach it."""
    file = tmp_path / "settings.toml"
    file.write_text(f'web = "0.0.0.0:0"\nweb_password_file = "{users}"\n')
    with start_beanlite(tmp_path / "q", "--config", str(file)) as server:
        where = near(page_of(server)[0])
        file.write_text('web = "127.0.0.1:0"\n')
        server.signal(signal.SIGHUP)
        until(lambda: "reloaded" in server.log_text())
        assert "web = 0.0.0.0:0 needs web_password_file: everybody could change anything" in server.log_text()
        assert ask(where, login="")[0] == 401


def test_reload_refuses_a_pipe_instead_of_the_file_of_users(tmp_path, users):
    with with_users(tmp_path / "q", users) as server:
        where = near(page_of(server)[0])
        users.unlink()
        os.mkfifo(users)
        server.signal(signal.SIGHUP)
        until(lambda: "not reloaded" in server.log_text())
        assert f"web_password_file: {users} is no regular file" in server.log_text()
        assert ask(where, login="ann:horse")[0] == 200


NO_USER = "line 1: a line is NAME:operator:HASH or NAME:reader:HASH"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "can't be read: No such file or directory"),
        ("", "has no user in it"),
        ("ann:boss:x", NO_USER),
        ("ann:reader:$argon2id$v=19$m=65536,t=3,p=4$c2FsdHNhbHQ", NO_USER),
    ],
)
def test_file_of_users_that_can_not_be_used_ends_the_start(tmp_path, text, why):
    users = tmp_path / "users"
    if text is not None:
        users.write_text(text)
    with pytest.raises(ServerDied, match=f"web_password_file: {users}.*{why}"):
        with_users(tmp_path / "q", users)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_file_of_users_that_the_server_may_not_read_ends_the_start(tmp_path, users):
    users.chmod(0o600)
    with pytest.raises(ServerDied, match=r"web_password_file: .* can't be read: Permission denied"):
        with_users(tmp_path / "q", users, "--no-journal", "--user", "nobody")


# -- how it lives and ends


def test_before_its_database_is_there_the_page_shows_the_rest(server, tmp_path):
    asked = {"server": f"127.0.0.1:{server.port}", "listen": "127.0.0.1:0", "db": str(tmp_path / "none.db")}
    command = webpage.page_command(asked)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        where = process.stderr.readline().strip().removeprefix("http://").rstrip("/")
        status, text = ask(where)
        assert (status, "Worth a look" in text, "none.db" in text) == (200, True, True)
    assert ask(where) is None


def test_a_stop_ends_both_and_leaves_one_file(server):
    where, pid = page_of(server)
    assert ask(where, "/tube/default")[0] in {200, 404}
    assert server.stop() == 0
    assert has_gone(pid)
    assert ask(where) is None
    for trouble in ("starting it again", "did not end"):
        assert trouble not in server.log_text()
    assert sorted(file.name for file in server.directory.glob("queue.db*")) == ["queue.db"]


def test_a_server_that_is_killed_takes_it_along(server):
    where, pid = page_of(server)
    server.kill()
    until(lambda: has_gone(pid))
    assert ask(where) is None


def test_one_that_is_killed_leaves_the_server_alone_and_comes_again(server):
    _, pid = page_of(server)
    with Wire(server.connect()) as wire:
        os.kill(pid, signal.SIGKILL)
        assert wire.put(b"job") == 1
        where, second = page_of(server, 2)
        assert (second != pid, ask(where)[0]) == (True, 200)
        assert wire.put(b"job") == 2
    (line,) = [line for line in server.log_text().splitlines() if "process ended" in line]
    assert line.endswith('web page process ended; starting it again error="killed by SIGKILL" in_s=1.000')


def test_it_has_no_file_and_no_socket_of_the_server(server):
    def files(pid):
        found = set()
        for file in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # closed meanwhile
                found.add(str(file.readlink()))
        return found

    _, pid = page_of(server)
    of_server = files(server.process.pid)
    assert any("queue.db" in file for file in of_server)
    assert any(file.startswith("socket:") for file in of_server)
    assert {file for file in files(pid) & of_server if file.startswith("socket:") or "queue.db" in file} == set()


def test_it_has_nothing_of_the_servers_settings_in_its_environment(tmp_path):
    # In the page's process these settings would contradict each other.
    folder = tmp_path / "backups"
    folder.mkdir()
    environment = {"BEANLITE_BACKUP_DIR": str(folder), "NOTIFY_SOCKET": str(tmp_path / "none")}
    with start_beanlite(
        tmp_path / "q", "--web", "127.0.0.1:0", "--backup-every", "24h", environment=environment
    ) as server:
        _, pid = page_of(server)
        names = [item.partition(b"=")[0] for item in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")]
        assert not [name for name in names if name.startswith((b"BEANLITE_", b"NOTIFY_"))]


def test_a_server_on_a_unix_socket(tmp_path):
    where = f"127.0.0.1:{free_port()}"
    flags = ["--no-journal", "--socket", "socket", "--web", where]
    command = [sys.executable, "-m", "beanlite", "serve", *flags]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL) as server:
        try:
            until(lambda: ask(where))
            status, text = ask(where)
        finally:
            server.terminate()
    assert (status, f"unix:{tmp_path}/socket" in text) == (200, True)


def test_a_port_that_is_taken_is_no_trouble_for_the_queue(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        where = f"127.0.0.1:{other.getsockname()[1]}"
        with start_beanlite(tmp_path, "--no-journal", "--web", where) as server, Wire(server.connect()) as wire:
            until(lambda: f"starting it again error=\"can't listen on {where}: " in server.log_text())
            assert wire.put(b"job") == 1


@pytest.mark.parametrize(
    ("family", "name", "reached"),
    [
        (socket.AF_INET, ("192.0.2.1", 11300), "192.0.2.1:11300"),
        (socket.AF_INET, ("0.0.0.0", 11300), "127.0.0.1:11300"),
        (socket.AF_INET6, ("::", 11300, 0, 0), "[::1]:11300"),
        (socket.AF_UNIX, "/run/beanlite.sock", "unix:/run/beanlite.sock"),
        (socket.AF_UNIX, b"\0abstract", None),
    ],
)
def test_where_a_server_is_reached(family, name, reached):
    class Socket:
        def __init__(self):
            self.family = family

        def getsockname(self):
            return name

    sockets: Any = [Socket()]
    if reached is None:
        with pytest.raises(ConfigError, match="abstract socket"):
            _reached_at(sockets)
    else:
        assert _reached_at(sockets) == reached


# -- with a command given by the test


@pytest.fixture
def told(monkeypatch):
    """The lines that are logged."""
    lines = []
    for level in ("info", "warning"):
        monkeypatch.setattr(log, level, lambda event, **fields: lines.append((event, fields)))
    return lines


def started(code):
    found = WebPage(asyncio.get_running_loop(), [sys.executable, "-c", code], {})
    found.begin()
    return found


async def end(found):
    found.end()
    await found.wait()


async def test_one_that_ends_again_and_again_is_started_less_and_less_often(told, monkeypatch):
    monkeypatch.setattr(webpage, "MOST_S", 0.03)
    found = WebPage(asyncio.get_running_loop(), [sys.executable, "-c", "raise SystemExit(3)"], {})
    found._wait_s = 0.01
    found.begin()
    await until_inside(lambda: len(told) >= 4)
    await end(found)
    assert told[0] == ("web page process ended; starting it again", {"error": "exit code 3", "in_s": 0.01})
    assert [fields["in_s"] for _, fields in told[:4]] == [0.01, 0.02, 0.03, 0.03]


async def test_after_a_long_life_it_is_started_as_soon_as_at_first(told, monkeypatch):
    monkeypatch.setattr(webpage, "STEADY_S", 0.0)
    found = WebPage(asyncio.get_running_loop(), [sys.executable, "-c", ""], {})
    found._wait_s = 200.0
    found.begin()
    await until_inside(lambda: told)
    await end(found)
    assert told[0][1]["in_s"] == webpage.FIRST_S


async def test_one_that_can_not_even_be_started(told):
    found = WebPage(asyncio.get_running_loop(), ["/none/such"], {})
    found.begin()
    await end(found)
    ((_, fields),) = told
    assert "No such file" in fields["error"]


async def test_page_that_waits_for_its_next_start_is_started_by_a_change(told):
    found = WebPage(asyncio.get_running_loop(), ["/none/such"], {})
    found._wait_s = 200.0
    found.begin()
    found.change([sys.executable, "-c", "import sys; print('http://x', file=sys.stderr, flush=True); input()"], {})
    await until_inside(lambda: told[-1][0] == "serving the web page")
    await end(found)


async def test_what_goes_wrong_in_it_is_told_by_the_last_line(told):
    code = "import sys; sys.stderr.write('ERROR: a bug\\nTraceback:\\nValueError: x\\n'); sys.stderr.flush(); input()"
    found = started(code)
    await until_inside(lambda: told)
    await end(found)
    assert told == [("web page error", {"error": "ValueError: x"})]


async def test_one_that_does_not_want_to_end_is_killed(told, monkeypatch):
    monkeypatch.setattr(child, "ENDS_WITHIN_S", 0.0)
    code = "import signal, sys; signal.signal(15, signal.SIG_IGN); sys.stderr.write('http://x/\\n'); signal.pause()"
    found = started(code)
    await until_inside(lambda: told)
    process = found._child.process
    await end(found)
    assert process.returncode == -9
    assert told[-1] == ("web page process did not end; killed", {"seconds": 5.0})


# -- a page that encrypts


def encrypting(tmp_path, both):
    return start_beanlite(
        tmp_path, "--no-journal", "--web", "127.0.0.1:0", "--web-tls-cert", str(both), "--web-tls-key", str(both)
    )


def secure_page(server, number=1):
    found = re.compile(r"serving the web page at=https://(\S+)/ ")
    until(lambda: len(found.findall(server.log_text())) >= number)
    return found.findall(server.log_text())[number - 1]


def test_page_beside_server_encrypts_and_renews_its_certificate(tmp_path):
    authority = Authority(tmp_path)
    with encrypting(tmp_path / "q", authority.issue("page")) as server:
        status, headers, first = ask_over_tls(secure_page(server), authority.file)
        assert (status, headers["strict-transport-security"]) == (200, None)
        server.signal(signal.SIGHUP)
        until(lambda: server.log_text().count("reloaded") == 1)
        assert ask_over_tls(secure_page(server), authority.file)[2] == first  # nothing is new, so it goes on
        authority.issue("page")
        server.signal(signal.SIGHUP)
        status, _, second = ask_over_tls(secure_page(server, 2), authority.file)
        assert (status, second != first) == (200, True)


def test_page_is_started_anew_for_another_certificate_alone(tmp_path):
    authority = Authority(tmp_path)
    both = authority.issue("page")
    flags = {"journal": False, "web": "127.0.0.1:0", "web_tls_cert": both, "web_tls_key": both}
    with socket.create_server(("127.0.0.1", 0)) as listening:
        beside, settings = Beside([listening]), sources.load(None, flags)
        command = beside._page_command(settings)
        assert beside._page_command(settings) == command
        authority.issue("page")
        assert beside._page_command(settings) != command


def test_reload_with_damaged_certificate_of_page_changes_nothing(tmp_path):
    authority = Authority(tmp_path)
    both = authority.issue("page")
    with encrypting(tmp_path / "q", both) as server:
        where = secure_page(server)
        assert ask_over_tls(where, authority.file)[0] == 200
        both.write_text("damaged")
        server.signal(signal.SIGHUP)
        until(lambda: "not reloaded" in server.log_text())
        assert "web_tls_cert" in server.log_text()
        assert ask_over_tls(where, authority.file)[0] == 200


def test_certificate_of_page_that_can_not_be_used_ends_the_start(tmp_path):
    for name, why in [("none.pem", "can't be read: No such file"), ("empty.pem", "no certificate with its key in PEM")]:
        if name == "empty.pem":
            (tmp_path / name).touch(0o600)
        with pytest.raises(ServerDied, match=f"web_tls_cert: .*{name}.*{why}"):
            encrypting(tmp_path, tmp_path / name)


def test_certificate_of_page_needs_its_key_and_the_page(tmp_path):
    for flags, why in [
        (["--web", "127.0.0.1:0", "--web-tls-cert", "x"], "web_tls_cert and web_tls_key need each other"),
        (["--web-tls-cert", "x", "--web-tls-key", "x"], "web_tls_cert is of no use without web"),
    ]:
        with pytest.raises(ServerDied, match=why):
            start_beanlite(tmp_path, "--no-journal", *flags)
