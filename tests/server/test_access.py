"""Rights in a real server: the user of a Unix socket, tokens, addresses, reloads, and what the log says."""

import json
import os
import pwd
import re
import signal
import socket
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest

from beanlite.cli import main
from beanlite.errors import ConfigError
from beanlite.server.access_file import PAGE_LIMITED, mistakes_in, read_access
from beanlite.web.safety import password_line
from tests.server.test_beside import ask, page_of
from tests.support.needs import need
from tests.support.servers import RunningServer, start_beanlite
from tests.support.wire import Wire, until

TOKEN = "0123456789abcdef" * 4
DIGEST = sha256(TOKEN.encode()).hexdigest()
UID = os.getuid()
USER = pwd.getpwuid(UID).pw_name
ALL = 'role = ["producer", "worker", "reader"]\n'
OF_TOKEN = f'[[allow]]\nwho = ["token:ci"]\n{ALL}tubes = ["default", "ci.*"]\n[tokens]\nci = "{DIGEST}"\n'


def allow(who, tubes, roles=("producer", "worker", "reader")):
    return f"[[allow]]\nwho = {json.dumps(who)}\nrole = {json.dumps(list(roles))}\ntubes = {json.dumps(tubes)}\n"


@pytest.fixture
def file(tmp_path):
    return tmp_path / "access.toml"


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


class Serving:
    """A server with rules."""

    def __init__(self, server, file):
        self.server = server
        self.file = file

    def connect(self):
        return Wire(self.server.connect())

    def reload(self, text):
        self.file.write_text(text)
        count = self.ends()
        self.server.signal(signal.SIGHUP)
        until(lambda: self.ends() > count)
        return self.server.log_text()

    def ends(self):
        return self.server.log_text().count("reloaded")


@pytest.fixture
def serve(tmp_path, file):
    servers = []

    def start(text, *flags, unix=True):
        file.write_text(text)
        flags = ("--access", str(file), *flags)
        server = OnSocket(tmp_path, *flags) if unix else start_beanlite(tmp_path, "--no-journal", *flags)
        servers.append(server)
        return Serving(server, file)

    yield start
    for server in servers:
        server.stop()


# -- the file


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("=", "the file of access is not TOML: Invalid statement (at line 1, column 1)"),
        ("# not written yet\n", "the file of access is empty; `allow = []` is a file without rules"),
        ("[allow]\n", "allow: each rule is a table [[allow]], with two brackets"),
        ("[other]\n", "other: the file has only [[allow]] and [tokens]"),
        (allow(["uid:0"], ["a"]) + "x = 1\n", "[[allow]] number 1: x: a rule has who, role and tubes"),
        (allow([], ["a"]), "[[allow]] number 1: who: it is a list of texts, such as"),
        (allow("uid:0", ["a"]), "[[allow]] number 1: who: it is a list of texts"),
        (allow(["uid:0"], [1]), "[[allow]] number 1: tubes: it is a list of texts"),
        ("[[allow]]\nwho = ['uid:0']\nrole = ['reader']\n", "[[allow]] number 1: tubes: it is missing"),
        (allow(["uid:0"], ["a b"]), "[[allow]] number 1: tubes: 'a b' is neither the name of a tube nor a glob"),
        (allow(["uid:0"], ["a"], ["boss"]), "[[allow]] number 1: role: 'boss' is not one of producer, worker, reader"),
        (allow(["user:0"], ["a"]), "[[allow]] number 1: who: 'user:0' is no identity such as cert:NAME, uid:NAME"),
        (allow(["cert:a b"], ["a"]), "[[allow]] number 1: who: 'cert:a b' is no identity"),
        (
            allow(["uid:no such user"], ["a"]),
            "[[allow]] number 1: who: uid:no such user: this machine has no such",
        ),
        (allow(["gid:no such group"], ["a"]), "[[allow]] number 1: who: gid:no such group: this machine has no such"),
        (allow(["token:ci"], ["a"]), "[[allow]] number 1: who: token:ci: there is no such name in [tokens]"),
        (allow(["net:10.0.0.1/8"], ["a"]), "[[allow]] number 1: who: 10.0.0.1/8 has host bits set"),
        (allow(["uid:0"], ["a"]) + allow(["x"], ["a"]), "[[allow]] number 2: who: 'x' is no identity"),
        (f'[tokens]\n"a b" = "{DIGEST}"\n', "[tokens] a b: a name has 1 to 64 letters"),
        (f'[tokens]\na = "{DIGEST}"\nb = "{DIGEST}"\n', "[tokens] b: another name has the same token"),
    ],
)
def test_mistake_is_one_line_that_names_file_and_place(file, text, said):
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_access(file)
    assert str(caught.value).startswith(f"{file}: {said}")
    assert mistakes_in(file) == [str(caught.value)]


@pytest.mark.parametrize("value", [TOKEN[:-1], TOKEN.upper()[:63] + "G", "secret", "1"])
def test_what_is_not_the_digest_of_a_token_is_not_repeated(file, value):
    file.write_text(f'[tokens]\nci = "{value}"\n')
    assert mistakes_in(file) == [f"{file}: [tokens] ci: this is no line that `beanlite token new ci` has printed"]


@pytest.mark.parametrize(
    "text",
    [
        allow([f"token:{TOKEN}"], ["a"]),
        allow([TOKEN], ["a"]),
        allow([f"token {TOKEN.upper()}"], ["a"]),
        f'[tokens]\n{TOKEN} = "ci"\n',
        f"{TOKEN} = 1\n",
    ],
)
def test_token_in_a_wrong_place_is_not_repeated(file, text):
    file.write_text(text)
    (mistake,) = mistakes_in(file)
    assert "…" in mistake
    assert TOKEN[:32] not in mistake.lower()


def test_file_that_is_not_there_is_a_mistake(file):
    assert mistakes_in(file) == [f"{file}: the file of access can't be read: No such file or directory"]


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_file_that_others_can_change_is_refused(file, mode):
    file.write_text(allow(["uid:0"], ["a"]))
    file.chmod(mode)
    said = f"{file}: others may change the file of access (mode {mode:o}); chmod go-w it"
    assert mistakes_in(file) == [said]
    with pytest.raises(ConfigError, match="others may change the file"):
        read_access(file)
    file.chmod(0o644)
    assert not mistakes_in(file)


def test_server_refuses_a_file_that_belongs_to_another_user(file):
    need(os.geteuid() == 0, "only root can give files to others")
    file.write_text(allow(["uid:0"], ["a"]))
    os.chown(file, 54321, -1)
    with pytest.raises(ConfigError, match="belongs to user 54321, not to root or the"):
        read_access(file)
    assert read_access(file, serves=False).rules


def test_pipe_is_no_file_of_access(file):
    os.mkfifo(file)
    assert mistakes_in(file) == [f"{file}: the file of access is no regular file"]


def test_config_check_reports_each_mistake_in_the_file(file, capfd, tmp_path):
    file.write_text(allow(["x"], ["a"], ["boss"]))
    settings = tmp_path / "beanlite.toml"
    settings.write_text(f'access = "{file}"\n')
    assert main(["config", "--config", str(settings), "--check"]) == 2
    assert len(capfd.readouterr().err.splitlines()) == 2
    file.write_text(allow(["uid:0"], ["a"]))
    assert main(["config", "--config", str(settings), "--check"]) == 0


@pytest.mark.parametrize("who", ["page", "person:ann"])
def test_config_check_warns_of_a_page_that_no_rule_names(file, capfd, who):
    file.write_text(allow([who], ["a"]))
    assert main(["config", "--access", str(file), "--web", "127.0.0.1:0", "--check"]) == 0
    said = f"beanlite: {file}: the page may do nothing: no rule names page\n" if who != "page" else ""
    assert capfd.readouterr().err == said
    assert main(["config", "--access", str(file), "--check"]) == 0
    assert not capfd.readouterr().err


def test_config_check_tells_what_keeps_people_from_logging_in(file, capfd, tmp_path):
    users = tmp_path / "users"
    file.write_text(allow(["page"], ["*"], ["reader"]))
    check = ["config", "--access", str(file), "--web", "0.0.0.0:0", "--web-password-file", str(users), "--check"]
    assert main(check) == 2
    said = f"beanlite: {file}: {PAGE_LIMITED}\n"
    assert (
        capfd.readouterr().err
        == f"{said}beanlite: web_password_file: {users} can't be read: No such file or directory\n"
    )
    users.write_text(password_line("ann", "reader", "horse") + "\n")
    assert main(check) == 0
    assert capfd.readouterr().err == said
    file.write_text(allow(["page"], ["*"], ["operator"]))
    assert main(check) == 0
    assert not capfd.readouterr().err


def test_start_with_a_mistake_in_the_file_fails(serve):
    server = serve(allow(["x"], ["a"])).server
    assert server.process.wait() == 2
    assert "[[allow]] number 1: who: 'x' is no identity" in server.log_text()


def test_access_and_forward_exclude_each_other(file, capfd):
    file.write_text("allow = []\n")
    assert main(["config", "--access", str(file), "--standby", "forward", "--check"]) == 2
    assert "access and standby = forward exclude each other" in capfd.readouterr().err


# -- who a client is


@pytest.mark.parametrize(
    ("who", "shown"), [(f"uid:{UID}", f"uid:{UID}"), (f"uid:{USER}", USER), (f"gid:{os.getgid()}", f"uid:{UID}")]
)
def test_user_of_a_unix_socket_has_its_rights_and_its_name(serve, who, shown):
    serving = serve(allow([who], ["mail.*"]))
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
    serving = serve(allow(["gid:54321"], ["a"]))
    code = (
        "import socket as s, sys; c = s.socket(s.AF_UNIX); c.connect(sys.argv[1]); c.sendall(b'use a\\r\\nquit\\r\\n')"
    )
    command = [sys.executable, "-c", code + "; print(c.recv(99))", str(serving.server.path)]
    said = [subprocess.check_output(command, extra_groups=groups) for groups in ([54321], [54322])]
    assert said == [b"b'USING a\\r\\n'\n", b"b'UNAUTHORIZED\\r\\n'\n"]


def test_other_user_has_no_rights(serve):
    serving = serve(allow([f"uid:{UID + 1}"], ["*"], ["operator"]))
    with serving.connect() as wire:
        assert wire.ask("put 0 0 60 1", b"x") == "UNAUTHORIZED"
        assert wire.ask("list-jobs 2", b"{}") == "UNAUTHORIZED"
        assert wire.stats()["current-jobs-ready"] == "0"


def test_address_has_its_rights(serve):
    serving = serve(allow(["net:127.0.0.0/8"], ["a"]) + allow(["net:10.0.0.0/8"], ["*"]), unix=False)
    with serving.connect() as wire:
        assert wire.ask("use a") == "USING a"
        assert wire.ask("use b") == "UNAUTHORIZED"
        (client,) = wire.request("list-clients")["clients"]
        assert client["address"] == "{}:{}".format(*wire.socket.getsockname())


def test_operator_of_all_tubes_needs_no_setting(serve):
    serving = serve(allow([f"uid:{UID}"], ["*"], ["operator"]), "--operators", "none")
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


@pytest.mark.parametrize("text", [OF_TOKEN, OF_TOKEN + allow(["net:127.0.0.1"], ["default"])])
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
    both = allow([f"uid:{UID}"], ["a"])
    serving = serve(both + OF_TOKEN)
    with serving.connect() as loses, serving.connect() as stays:
        assert loses.ask(f"auth {TOKEN}") == "AUTHENTICATED"
        assert stays.ask("watch a") == "WATCHING 2"
        assert loses.ask("use ci.1") == "USING ci.1"
        loses.send(b"reserve\r\n")
        serving.reload(allow([f"uid:{UID}"], ["a", "b"]))
        assert loses.reply() == "UNAUTHORIZED"
        assert loses.is_closed()
        assert stays.ask("use b") == "USING b"


def test_reload_with_a_mistake_in_it_changes_nothing(serve):
    serving = serve(allow([f"uid:{UID}"], ["a"]))
    with serving.connect() as wire:
        assert wire.ask("use a") == "USING a"
        log = serving.reload(allow([f"uid:{UID}"], ["b"]) + allow(["x"], ["a"]))
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


def test_rules_that_come_with_a_reload_end_clients_that_they_limit(tmp_path, file):
    file.write_text(allow(["net:127.0.0.1"], ["a"]))
    settings = tmp_path / "beanlite.toml"
    settings.write_text("")
    with start_beanlite(tmp_path, "--no-journal", "--config", str(settings)) as server, Wire(server.connect()) as wire:
        wire.put(b"x")
        settings.write_text(f'access = "{file}"\n')
        server.signal(signal.SIGHUP)
        assert wire.is_closed()
        with Wire(server.connect()) as limited:
            assert limited.ask("use b") == "UNAUTHORIZED"
            settings.write_text("")
            server.signal(signal.SIGHUP)
            until(lambda: server.log_text().count("reloaded") == 2)
            assert limited.ask("use b") == "USING b"
            assert limited.ask("auth x") == "UNKNOWN_COMMAND"


# -- events and the page


def test_client_that_watches_is_sent_events_of_its_tubes_alone(serve):
    serving = serve(allow([f"uid:{UID}"], ["own"], ["reader"]) + OF_TOKEN.replace('"ci.*"', '"own"'))
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
    serving = serve(allow(["page"], ["*"], ["operator"]), "--web", "127.0.0.1:0", unix=unix)
    where, _ = page_of(serving.server)
    assert "no rule names page" not in serving.server.log_text()
    status, text = ask(where, "/clients")
    assert status == 200
    assert re.search(r"(unix|127\.0\.0\.1:\d+) page", text)
    with serving.connect() as wire:
        assert wire.stats()["refused-unauthorized"] == "0"


def test_page_has_the_rights_of_its_rules(serve):
    everybody = allow([f"uid:{UID}"], ["*"], ["operator"])
    serving = serve(everybody, "--web", "127.0.0.1:0")
    where, _ = page_of(serving.server)
    status, text = ask(where)
    assert status == 403
    assert "No rule of the server at unix:" in text
    assert "allows diagnose to page" in text
    assert serving.server.log_text().count("the page may do nothing: no rule names page") == 1
    serving.reload(everybody + allow(["page"], ["mail"], ["reader"]))
    with serving.connect() as wire:
        wire.put(b"secret")
        wire.ask("use mail")
        wire.put(b"letter")
    status, text = ask(where, "/jobs")
    assert (status, "letter" in text, "secret" in text) == (200, True, False)
    assert ask(where, "/job/1")[0] == 404
    assert serving.reload(everybody).count("no rule names page") == 2
    assert ask(where, "/jobs")[0] == 403


def test_people_who_log_in_at_the_servers_page_have_their_own_rights(serve, tmp_path):
    users = tmp_path / "users"
    users.write_text("".join(password_line(name, "operator", "horse") + "\n" for name in ("ann", "bob")))
    ann = allow(["person:ann"], ["mail"], ["reader"])
    serving = serve(allow(["page"], ["*"], ["reader"]) + ann, "--web", "0.0.0.0:0", "--web-password-file", str(users))
    where = page_of(serving.server)[0].replace("0.0.0.0", "127.0.0.1")
    assert serving.server.log_text().count(PAGE_LIMITED) == 1
    assert "may not act for others" in ask(where, login="ann:horse")[1]
    assert serving.reload(allow([f"uid:{UID}", "page"], ["*"], ["operator"]) + ann).count(PAGE_LIMITED) == 1
    with serving.connect() as wire:
        wire.put(b"secret")
        wire.ask("use mail")
        wire.put(b"letter")
    status, text = ask(where, "/jobs", "ann:horse")
    assert (status, "letter" in text, "secret" in text) == (200, True, False)
    assert ask(where, "/jobs", "bob:horse")[0] == 403
    assert ask(where, "/jobs")[0] == 401


def test_person_has_its_rights_and_its_name(serve):
    serving = serve(allow([f"uid:{UID}"], ["*"], ["operator"]) + allow(["person:Ann Smith"], ["a"], ["operator"]))
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
        serving.reload(allow([f"uid:{UID}"], ["*"], ["operator"]))
        assert wire.reply() == "UNAUTHORIZED"
        assert wire.is_closed()
        with serving.connect() as again:
            assert [again.ask(line) for line in ("act-for Ann Smith", "use a")] == ["ACTING", "UNAUTHORIZED"]


def test_quotes_of_a_person_are_not_those_of_a_claim(serve):
    serving = serve(allow([f"uid:{UID}"], ["*"], ["operator"]) + allow(['person:"ann"'], ["*"], ["operator"]))
    with serving.connect() as wire, serving.connect() as other:
        assert [wire.ask(line) for line in ('act-for "ann"', "name web1")] == ["ACTING", "NAMED"]
        client = other.request("list-clients")["clients"][0]
        assert (client["address"], client["name"]) == ("unix 'ann'", "web1")


def test_client_that_may_not_everything_acts_for_nobody(serve):
    serving = serve(allow([f"uid:{UID}"], ["a*"], ["operator"]) + allow(["person:ann"], ["*"], ["operator"]))
    with serving.connect() as wire:
        assert wire.ask("act-for ann") == "UNAUTHORIZED"
        assert [wire.ask(f"use {tube}") for tube in "ba"] == ["UNAUTHORIZED", "USING a"]


def test_person_with_the_token_of_a_program(serve):
    serving = serve(allow(["person:ann"], ["a"]) + allow(["token:ci"], ["*"], ["operator"]) + OF_TOKEN)
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
