"""Rights in a real server: the user of a Unix socket, tokens, addresses, reloads, and what the log says."""

import json
import os
import pwd
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from beanlite.server.access_file import PAGE_LIMITED
from beanlite.web.safety import password_line
from tests.support.access import DIGEST, TOKEN, RuledServer, allow
from tests.support.needs import need
from tests.support.servers import RunningServer, start_beanlite
from tests.support.web import ask, page_of
from tests.support.wire import Wire, until

UID = os.getuid()
USER = pwd.getpwuid(UID).pw_name
ALL = 'role = ["producer", "worker", "reader"]\n'
OF_TOKEN = f'[[allow]]\nwho = ["token:ci"]\n{ALL}tubes = ["default", "ci.*"]\n[tokens]\nci = "{DIGEST}"\n'


class OnSocket(RunningServer):
    """A server that listens on a Unix socket."""

    def __init__(self, directory, *flags):
        self.path = directory / "socket"
        log = directory / "server.log"
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
        command = [sys.executable, "-m", "beanlite", "serve", "--no-journal", "--socket", str(self.path), *flags]
        with log.open("wb") as sink:
            process = subprocess.Popen(
                command, cwd=directory, env=environment, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink
            )
        super().__init__(process, 0, directory, log)
        until(lambda: "started" in self.log_text() or process.poll() is not None)

    def connect(self, timeout_s=10.0):
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(timeout_s)
        try:
            sock.connect(str(self.path))
        except OSError:
            sock.close()
            raise
        return sock


@pytest.fixture
def serve(tmp_path):
    servers = []

    def start(text, *flags, unix=True):
        rules = tmp_path / "access.toml"
        rules.write_text(text)
        flags = ("--access", str(rules), *flags)
        server = OnSocket(tmp_path, *flags) if unix else start_beanlite(tmp_path, "--no-journal", *flags)
        servers.append(server)
        return RuledServer(server, rules)

    yield start
    for server in servers:
        server.stop()


# -- who a client is


@pytest.mark.parametrize(
    ("who", "shown"), [(f"uid:{UID}", f"uid:{UID}"), (f"uid:{USER}", USER), (f"gid:{os.getgid()}", f"uid:{UID}")]
)
def test_user_of_a_unix_socket_has_its_rights_and_its_name(serve, who, shown):
    serving = serve(allow(who, ["mail.*"]))
    with serving.connect() as wire:
        assert wire.ask("put 0 0 60 1", b"x") == "UNAUTHORIZED"
        assert wire.ask("use mail.de") == "USING mail.de"
        assert wire.put(b"x") == 1
        assert [wire.ask(line) for line in ("watch mail.de", "ignore default")] == ["WATCHING 2", "WATCHING 1"]
        assert wire.ask("reserve") == "RESERVED 1 1"
        (client,) = wire.request("list-clients")["clients"]
        assert client["address"] == f"unix {shown}"
        (job,) = wire.request("list-jobs")["jobs"]
        assert job["holder"] == {"address": f"unix {shown}", "number": client["number"], "name": None}
        assert wire.ask("pause-tube mail.de 5") == "UNAUTHORIZED"
        assert wire.stats()["refused-unauthorized"] == "2"
    assert f'refused: no right client="unix {shown}" word=put refused=1' in serving.server.log_text()


def test_other_groups_of_a_user_count(serve):
    need(os.geteuid() == 0, "only root can choose groups")
    serving = serve(allow("gid:54321", ["a"]))
    code = (
        "import socket as s, sys; c = s.socket(s.AF_UNIX); c.connect(sys.argv[1]); c.sendall(b'use a\\r\\nquit\\r\\n')"
    )
    command = [sys.executable, "-c", code + "; print(c.recv(99))", str(serving.server.path)]
    said = [subprocess.check_output(command, extra_groups=groups) for groups in ([54321], [54322])]
    assert said == [b"b'USING a\\r\\n'\n", b"b'UNAUTHORIZED\\r\\n'\n"]


def test_other_user_has_no_rights(serve):
    serving = serve(allow(f"uid:{UID + 1}", ["*"], "operator"))
    with serving.connect() as wire:
        assert wire.ask("put 0 0 60 1", b"x") == "UNAUTHORIZED"
        assert wire.ask("list-jobs 2", b"{}") == "UNAUTHORIZED"
        assert wire.stats()["current-jobs-ready"] == "0"


def test_address_has_its_rights(serve):
    serving = serve(allow("net:127.0.0.0/8", ["a"]) + allow("net:10.0.0.0/8", ["*"]), unix=False)
    with serving.connect() as wire:
        assert wire.ask("use a") == "USING a"
        assert wire.ask("use b") == "UNAUTHORIZED"
        (client,) = wire.request("list-clients")["clients"]
        assert client["address"] == "{}:{}".format(*wire.socket.getsockname())


def test_operator_of_all_tubes_needs_no_setting(serve):
    serving = serve(allow(f"uid:{UID}", ["*"], "operator"), "--operators", "none")
    with serving.connect() as wire:
        wire.put(b"x")
        assert wire.request("change-jobs", do="delete", up_to_id=9)["done"] == 1


# -- tokens


def test_token_gives_its_rights_and_its_name_over_a_unix_socket(serve):
    serving = serve(OF_TOKEN, "-V")
    with serving.connect() as wire:
        assert wire.ask(f"auth {TOKEN}") == "AUTHENTICATED"
        wire.put(b"x")
        assert wire.request("list-clients")["clients"][0]["address"] == "unix ci"
        assert wire.ask("use other") == "UNAUTHORIZED"
        assert wire.ask(f"auth {TOKEN}") == "UNAUTHORIZED"
        assert wire.is_closed()
    for line in (f"auth {TOKEN[:-1]}0", f"auth  {TOKEN}", f"AUTH {TOKEN}", f"auth{TOKEN}"):
        with serving.connect() as wire:
            assert wire.ask(line) in {"UNAUTHORIZED", "UNKNOWN_COMMAND"}
    log = serving.server.log_text()
    assert TOKEN[:20] not in log
    assert DIGEST[:20] not in log
    assert "line=auth" in log


@pytest.mark.parametrize("text", [OF_TOKEN, OF_TOKEN + allow("net:127.0.0.1", ["default"])])
def test_token_over_plain_tcp_closes_the_connection(serve, text):
    with serve(text, unix=False).connect() as wire:
        assert wire.ask(f"auth {TOKEN}") == "UNAUTHORIZED"
        assert wire.is_closed()


def test_token_is_shown_in_no_log_where_there_are_no_rules(tmp_path):
    with start_beanlite(tmp_path, "--no-journal", "-V") as server, Wire(server.connect()) as wire:
        assert wire.ask(f"auth {TOKEN}") == "UNKNOWN_COMMAND"
        until(lambda: "reply=UNKNOWN_COMMAND line=auth\n" in server.log_text())
        assert TOKEN not in server.log_text()


# -- reloads


def test_client_that_loses_a_right_is_ended_and_others_stay(serve):
    both = allow(f"uid:{UID}", ["a"])
    serving = serve(both + OF_TOKEN)
    with serving.connect() as loses, serving.connect() as stays:
        assert loses.ask(f"auth {TOKEN}") == "AUTHENTICATED"
        assert stays.ask("watch a") == "WATCHING 2"
        assert loses.ask("use ci.1") == "USING ci.1"
        loses.send(b"reserve\r\n")
        serving.reload(allow(f"uid:{UID}", ["a", "b"]))
        assert loses.reply() == "UNAUTHORIZED"
        assert loses.is_closed()
        assert stays.ask("use b") == "USING b"


def test_reload_with_a_mistake_in_it_changes_nothing(serve):
    serving = serve(allow(f"uid:{UID}", ["a"]))
    with serving.connect() as wire:
        assert wire.ask("use a") == "USING a"
        log = serving.reload(allow(f"uid:{UID}", ["b"]) + allow("x", ["a"]))
        assert "not reloaded: settings unchanged" in log
        assert wire.ask("use a") == "USING a"
    with serving.connect() as wire:
        assert wire.ask("use b") == "UNAUTHORIZED"


def test_token_that_is_replaced_ends_its_clients(serve):
    serving = serve(OF_TOKEN)
    with serving.connect() as wire:
        assert wire.ask(f"auth {TOKEN}") == "AUTHENTICATED"
        serving.reload(OF_TOKEN + "\n# the same\n")
        assert wire.ask("use ci.1") == "USING ci.1"
        serving.reload(OF_TOKEN.replace(DIGEST, "0" * 64))
        assert wire.is_closed()


def test_rules_that_come_with_a_reload_end_clients_that_they_limit(tmp_path):
    rules = tmp_path / "access.toml"
    rules.write_text(allow("net:127.0.0.1", ["a"]))
    settings = tmp_path / "beanlite.toml"
    settings.write_text("# everybody may everything\n")
    with start_beanlite(tmp_path, "--no-journal", "--config", str(settings)) as server, Wire(server.connect()) as wire:
        wire.put(b"x")
        settings.write_text(f'access = "{rules}"\n')
        server.signal(signal.SIGHUP)
        assert wire.is_closed()
        with Wire(server.connect()) as limited:
            assert limited.ask("use b") == "UNAUTHORIZED"
            settings.write_text("# everybody may everything\n")
            server.signal(signal.SIGHUP)
            until(lambda: server.log_text().count("reloaded") == 2)
            assert limited.ask("use b") == "USING b"
            assert limited.ask("auth x") == "UNKNOWN_COMMAND"


# -- events and the page


def test_client_that_watches_is_sent_events_of_its_tubes_alone(serve):
    serving = serve(allow(f"uid:{UID}", ["own"], "reader") + OF_TOKEN.replace('"ci.*"', '"own"'))
    with serving.connect() as watcher, serving.connect() as producer:
        assert producer.ask(f"auth {TOKEN}") == "AUTHENTICATED"
        assert watcher.request("watch-events") == {}
        producer.put(b"x")
        producer.ask("use own")
        producer.put(b"y")
        assert watcher.reply().startswith("EVENT ")
        assert json.loads(watcher.body)["tube"] == "own"


@pytest.mark.parametrize("unix", [True, False])
def test_page_of_the_server_is_known_by_its_own_token(serve, unix):
    serving = serve(allow("page", ["*"], "operator"), "--web", "127.0.0.1:0", unix=unix)
    where, _ = page_of(serving.server)
    assert "no rule names page" not in serving.server.log_text()
    status, text = ask(where, "/clients")
    assert status == 200
    assert re.search(r"(unix|127\.0\.0\.1:\d+) page", text)
    with serving.connect() as wire:
        assert wire.stats()["refused-unauthorized"] == "0"


def test_page_has_the_rights_of_its_rules(serve):
    everybody = allow(f"uid:{UID}", ["*"], "operator")
    serving = serve(everybody, "--web", "127.0.0.1:0")
    where, _ = page_of(serving.server)
    status, text = ask(where)
    assert status == 403
    assert "No rule of the server at unix:" in text
    assert "allows diagnose to page" in text
    assert serving.server.log_text().count("the page may do nothing: no rule names page") == 1
    serving.reload(everybody + allow("page", ["mail"], "reader"))
    with serving.connect() as wire:
        wire.put(b"secret")
        wire.ask("use mail")
        wire.put(b"letter")
    status, text = ask(where, "/jobs")
    assert (status, "letter" in text, "secret" in text) == (200, True, False)
    assert ask(where, "/job/1")[0] == 404
    assert serving.reload(everybody).count("no rule names page") == 1
    assert ask(where, "/jobs")[0] == 403


def test_people_who_log_in_at_the_servers_page_have_their_own_rights(serve, tmp_path):
    users = tmp_path / "users"
    users.write_text("".join(password_line(name, "operator", "horse") + "\n" for name in ("ann", "bob")))
    ann = allow("person:ann", ["mail"], "reader")
    serving = serve(allow("page", ["*"], "reader") + ann, "--web", "0.0.0.0:0", "--web-password-file", str(users))
    where = page_of(serving.server)[0].replace("0.0.0.0", "127.0.0.1")
    assert serving.server.log_text().count(PAGE_LIMITED) == 1
    assert "may not act for others" in ask(where, login="ann:horse")[1]
    assert PAGE_LIMITED not in serving.reload(allow([f"uid:{UID}", "page"], ["*"], "operator") + ann)
    with serving.connect() as wire:
        wire.put(b"secret")
        wire.ask("use mail")
        wire.put(b"letter")
    status, text = ask(where, "/jobs", "ann:horse")
    assert (status, "letter" in text, "secret" in text) == (200, True, False)
    assert ask(where, "/jobs", "bob:horse")[0] == 403
    assert ask(where, "/jobs")[0] == 401


def test_person_has_its_rights_and_its_name(serve):
    serving = serve(allow(f"uid:{UID}", ["*"], "operator") + allow("person:Ann Smith", ["a"], "operator"))
    with serving.connect() as wire, serving.connect() as other:
        assert wire.ask("act-for Ann Smith") == "ACTING"
        assert [wire.ask(f"use {tube}") for tube in "ba"] == ["UNAUTHORIZED", "USING a"]
        assert wire.put(b"x") == 1
        assert [wire.ask(line) for line in ("watch a", "ignore default")] == ["WATCHING 2", "WATCHING 1"]
        assert wire.ask("reserve") == "RESERVED 1 1"
        assert wire.ask("act-for bob") == "UNAUTHORIZED"
        (client,) = wire.request("list-clients")["clients"]
        assert client["address"] == "unix Ann_Smith"
        assert wire.request("list-jobs")["jobs"][0]["holder"] == {
            "address": "unix Ann_Smith",
            "number": client["number"],
            "name": None,
        }
        assert other.request("watch-events") == {}
        wire.request("change-jobs", do="bury", ids=[1], by="bob")
        assert other.reply().startswith("EVENT ")
        by = {"address": "unix", "number": client["number"], "name": None, "operator": True, "person": "Ann Smith"}
        assert json.loads(other.body)["by"] == by
        serving.reload(allow(f"uid:{UID}", ["*"], "operator"))
        assert wire.reply() == "UNAUTHORIZED"
        assert wire.is_closed()
        with serving.connect() as again:
            assert [again.ask(line) for line in ("act-for Ann Smith", "use a")] == ["ACTING", "UNAUTHORIZED"]


def test_quotes_of_a_person_are_not_those_of_a_claim(serve):
    serving = serve(allow(f"uid:{UID}", ["*"], "operator") + allow('person:"ann"', ["*"], "operator"))
    with serving.connect() as wire, serving.connect() as other:
        assert [wire.ask(line) for line in ('act-for "ann"', "name web1")] == ["ACTING", "NAMED"]
        client = other.request("list-clients")["clients"][0]
        assert (client["address"], client["name"]) == ("unix 'ann'", "web1")


def test_client_that_may_not_everything_acts_for_nobody(serve):
    serving = serve(allow(f"uid:{UID}", ["a*"], "operator") + allow("person:ann", ["*"], "operator"))
    with serving.connect() as wire:
        assert wire.ask("act-for ann") == "UNAUTHORIZED"
        assert [wire.ask(f"use {tube}") for tube in "ba"] == ["UNAUTHORIZED", "USING a"]


def test_person_with_the_token_of_a_program(serve):
    serving = serve(allow("person:ann", ["a"]) + allow("token:ci", ["*"], "operator") + OF_TOKEN)
    with serving.connect() as wire:
        assert [wire.ask(line) for line in (f"auth {TOKEN}", "act-for ann")] == ["AUTHENTICATED", "ACTING"]
        assert [wire.ask(f"use {tube}") for tube in ("ci.1", "a")] == ["UNAUTHORIZED", "USING a"]


def test_person_is_only_a_name_where_there_are_no_rules(tmp_path):
    with start_beanlite(tmp_path, "--no-journal") as server, Wire(server.connect()) as wire:
        assert wire.ask("act-for ann") == "ACTING"
        assert wire.put(b"x") == 1
        (client,) = wire.request("list-clients")["clients"]
        assert client["address"].endswith(" ann")
    with start_beanlite(tmp_path, "--no-journal", "--operators", "none") as server, Wire(server.connect()) as wire:
        assert wire.ask("act-for ann") == "UNKNOWN_COMMAND"
