"""Several servers, one of which is away or does not answer: what cannot be known is not claimed, and is told soon."""

import signal

import pytest

from beanlite.cli import main
from beanlite.cli.groups import ServerOption
from tests.support.forks import fork
from tests.support.servers import start_beanlite
from tests.support.wire import Wire, until

FILE = """
    version = 7
    [servers.one]
    number = 1
    connect = "127.0.0.1:{one}"
    [servers.two]
    number = 2
    connect = "127.0.0.1:{two}"
    tubes = "sms"
    hashed = false
"""


class Pair:
    """Two servers, the file that lists them, and what runs a command on them."""

    def __init__(self, servers, folder, capsys):
        self.servers = servers
        self.file = folder / "servers.toml"
        self.file.write_text(FILE.format(**{name: server.port for name, server in servers.items()}))
        self._capsys = capsys

    def run(self, *words):
        """Run a command; return its exit code and the lines of stderr."""
        code = main([*words, "--servers", str(self.file)])
        return code, self._capsys.readouterr().err.splitlines()


@pytest.fixture
def pair(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("beanlite.console.several.AWAY_S", 1.5)
    monkeypatch.setattr(ServerOption.open, "__defaults__", (1.5,))
    with start_beanlite(tmp_path / "one") as one, start_beanlite(tmp_path / "two") as two:
        yield Pair({"one": one, "two": two}, tmp_path, capsys)
        two.signal(signal.SIGCONT)


@pytest.mark.parametrize(
    ("command", "claim"),
    [
        ("tubes nosuch", "no server that answers has a tube nosuch"),
        ("jobs --tube nosuch", "no server that answers has a tube nosuch"),
        ("clients --tube nosuch", "no server that answers has a tube nosuch"),
        ("why nosuch", "no server that answers has a tube nosuch"),
        ("kick --tube nosuch", "no server that answers has a tube nosuch"),
        ("job 99", "no server that answers has a job 99; beanlite job 99 --db PATH shows what the database still has"),
        ("kick 99", "job 99 may be in two; say where it is, as in one:99"),
        ("schedule unset x", "no server that answers has a schedule x"),
        ("policy unset x", "x has no such policy on the servers that answer; beanlite policy list shows all"),
    ],
)
def test_nothing_is_claimed_of_a_server_that_is_away(pair, command, claim):
    pair.servers["two"].kill()
    code, err = pair.run(*command.split())
    assert (code, len(err)) == (1, 2)
    assert err[0].startswith("beanlite: two is left out: no server can be reached at ")
    assert err[1].startswith(f"beanlite: {claim}")


@pytest.mark.parametrize(
    "command",
    ["pause sms 1min", "kick --tube sms", "flush sms --yes", "job two:1", "put --tube sms x", "put --tube sms --lines"],
)
def test_halted_server_that_is_needed_is_named(pair, monkeypatch, command):
    monkeypatch.setattr("beanlite.cli.change.TIMEOUT_S", 1.5)
    monkeypatch.setattr("beanlite.cli.put.TIMEOUT_S", 1.5)
    pair.servers["two"].signal(signal.SIGSTOP)
    code, err = pair.run(*command.split())
    where = f"127.0.0.1:{pair.servers['two'].port} does not answer"
    assert (code, err) == (1, [f"beanlite: two{':' if command.startswith('put') else ' is away:'} {where}"])


def test_halted_server_gets_no_schedule(pair, monkeypatch):
    monkeypatch.setattr("beanlite.cli.schedule.TIMEOUT_S", 1.5)
    pair.servers["two"].signal(signal.SIGSTOP)
    code, err = pair.run("schedule", "set", "x", "--every", "1h", "--tube", "sms", "--body", "x")
    assert (code, err[-1]) == (1, f"beanlite: two is away: 127.0.0.1:{pair.servers['two'].port} does not answer")


def test_schedule_is_not_left_behind_on_another_server(pair):
    words = ["schedule", "set", "x", "--every", "1h", "--body", "x", "--tube"]
    assert pair.run(*words, "mail") == (0, [])
    refused = "beanlite: sms belongs to two, and one has a schedule x: unset that first"
    assert pair.run(*words, "sms") == (1, [refused])
    assert pair.run(*words, "web") == (0, [])
    assert pair.run("schedule", "unset", "x") == (0, [])
    assert pair.run(*words, "sms") == (0, [])


def test_pause_takes_the_name_of_a_tube_alone(pair):
    assert pair.run("pause", "mail*", "1min") == (2, ["beanlite: no tube can have the name 'mail*'"])


def is_watched(server):
    with Wire(server.connect()) as client:
        return any(each["last"] == "watch-events" for each in client.request("list-clients")["clients"])


@pytest.mark.parametrize("goes", ["before", "meanwhile"])
def test_tail_tells_at_once_and_once_of_a_server_that_is_away(pair, tmp_path, goes):
    if goes == "before":
        pair.servers["two"].kill()
    said = tmp_path / "tail"
    with said.open("wb") as sink:
        tail = fork(["tail", "--servers", str(pair.file)], tmp_path, {}, sink)
    if goes == "meanwhile":
        until(lambda: is_watched(pair.servers["two"]))
        pair.servers["two"].kill()
    until(lambda: said.read_text().endswith("\n"))
    assert tail.poll() is None
    tail.send_signal(signal.SIGINT)
    assert tail.wait(10) == 130
    where = f"127.0.0.1:{pair.servers['two'].port}"
    why = (
        f"no server can be reached at {where}: Connection refused"
        if goes == "before"
        else f"{where}: the server closed"
    )
    assert said.read_text().startswith(f"beanlite: two is left out: {why}")
    assert "TLS" not in said.read_text()
    assert said.read_text().count("\n") == 1
