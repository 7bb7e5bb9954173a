"""The page beside a server that asks for a password, and one that encrypts: at the start, and after a reload."""

import os
import re
import signal
import socket

import pytest

from beanlite.beside.beside import Beside
from beanlite.settings import sources
from beanlite.web.safety import password_line
from tests.support.authority import Authority
from tests.support.servers import ServerDied, start_beanlite
from tests.support.web import ask, ask_over_tls, page_of
from tests.support.wire import until

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


def test_each_wrong_password_is_in_the_servers_log(tmp_path, users):
    with with_users(tmp_path / "q", users) as server:
        where = near(page_of(server)[0])
        assert [ask(where, login=login)[0] for login in ("ann:wrong", "bob:secret")] == [401, 401]
        until(lambda: server.log_text().count("wrong password") == 2)
        log = server.log_text()
    for user in ("ann", "bob"):
        assert f"WARNING beanlite: wrong password address=127.0.0.1 user={user}\n" in log
    assert "secret" not in log
    assert "web page error" not in log


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


@pytest.mark.parametrize("before", ["0.0.0.0:0", "127.0.0.1:0"])
@pytest.mark.parametrize("after", ['web = "127.0.0.2:0"', "# no page"])
def test_page_that_needs_a_restart_to_move_keeps_its_users_until_then(tmp_path, users, before, after):
    """The settings are consistent, but the page stays where it is."""
    file = tmp_path / "settings.toml"
    file.write_text(f'web = "{before}"\nweb_password_file = "{users}"\n')
    with start_beanlite(tmp_path / "q", "--config", str(file)) as server:
        where = near(page_of(server)[0])
        file.write_text(f"max_tubes = 3\n{after}\n")
        server.signal(signal.SIGHUP)
        until(lambda: "reloaded" in server.log_text())
        for setting in ("web", "web_password_file"):
            assert f"setting needs a restart setting={setting} " in server.log_text()
        assert "setting changed setting=max_tubes was=200000 now=3" in server.log_text()
        assert [ask(where, login=login)[0] for login in ("", "ann:horse")] == [401, 200]


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
