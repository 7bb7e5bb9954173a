"""Several servers as one: what commands merge, where changes go, and what is told of a server that is away."""

import asyncio
import json
import signal
from dataclasses import dataclass

import pytest

from beanlite.cli import main
from beanlite.console.several import AWAY_S, Place, Places, Several
from beanlite.console.top.app import Top
from tests.operators.test_top import SMALL, shown
from tests.support.servers import free_port, start_beanlite
from tests.support.wire import Wire, until

NAMES = ("one", "two", "three")
FILE = """
    version = 7
    [servers.one]
    number = 1
    connect = "127.0.0.1:{one}"
    [servers.two]
    number = 2
    connect = ["127.0.0.1:{nobody}", "127.0.0.1:{two}"]
    tubes = ["mail", "mail.*"]
    [servers.three]
    number = 3
    connect = "127.0.0.1:{three}"
    tubes = "sms"
    hashed = false
    [moved]
    orders = {{ from = "two", to = "three" }}
"""


@dataclass
class Fleet:
    """Three servers, the file that lists them, and what runs a command on them."""

    servers: dict
    file: str
    capsys: pytest.CaptureFixture

    def run(self, *words, code=0):
        """Run a command; return the lines of stdout and of stderr."""
        exit_code = main([*words, "--servers", self.file])
        printed = self.capsys.readouterr()
        assert exit_code == code, printed
        return printed.out.splitlines(), printed.err.splitlines()

    def rows(self, *words, code=0):
        """Run a command that prints JSON lines; return the objects."""
        return [json.loads(line) for line in self.run(*words, "--json", code=code)[0]]

    def put(self, server, tube, *bodies, pri=1024):
        """Put jobs into a server, whichever the tube belongs to; return their ids."""
        with Wire(self.servers[server].connect()) as client:
            client.ask(f"use {tube}")
            return [client.put(body, pri=pri) for body in bodies]

    def states(self, *jobs):
        """Return the state of each of these jobs."""
        return [self.rows("job", job)[0]["state"] for job in jobs]


@pytest.fixture
def fleet(tmp_path, capsys):
    servers = {name: start_beanlite(tmp_path / name) for name in NAMES}
    file = tmp_path / "servers.toml"
    file.write_text(FILE.format(nobody=free_port(), **{name: server.port for name, server in servers.items()}))
    yield Fleet(servers, str(file), capsys)
    for server in servers.values():
        server.signal(signal.SIGCONT)
        server.kill()


def test_lists_name_the_server_of_each_row(fleet):
    for name in NAMES:
        fleet.put(name, "mail", b"a", b"b")
    assert {(row["server"], row["ready"]) for row in fleet.rows("tubes", "mail")} == {(name, 2) for name in NAMES}
    (title, *lines), _ = fleet.run("jobs")
    assert title.split()[:2] == ["id", "tube"]
    assert [line.split()[0] for line in lines] == ["one:1", "two:1", "three:1", "one:2", "two:2", "three:2"]
    with Wire(fleet.servers["two"].connect()) as client:
        client.ask("watch mail")
        assert [(row["server"], row["uses"]) for row in fleet.rows("clients")] == [("two", "default")]
    assert [row["server"] for row in fleet.rows("stats")] == list(NAMES)
    total = next(line.split() for line in fleet.run("stats")[0] if line.startswith("current-jobs-ready "))
    assert total == ["current-jobs-ready", "6", "2", "2", "2"]


def test_limit_and_order_hold_over_all_servers(fleet):
    fleet.put("one", "mail", b"1", b"2", b"3", pri=7)
    fleet.put("two", "mail", b"1", pri=3)
    fleet.put("three", "mail", b"1", b"2", pri=9)
    by_pri = fleet.rows("jobs", "--sort", "pri", "-n", "3")
    assert [(row["server"], row["pri"]) for row in by_pri] == [("two", 3), ("one", 7), ("one", 7)]
    queue = fleet.rows("jobs", "--sort", "queue", "--tube", "mail", "--state", "ready", "-n", "5")
    assert [(row["server"], row["id"]) for row in queue] == [
        ("two", 1), ("one", 1), ("one", 2), ("one", 3), ("three", 1),
    ]  # fmt: skip
    assert [row["server"] for row in fleet.rows("tubes", "--sort", "ready", "-n", "2")] == ["one", "three"]


@pytest.mark.parametrize("order", [[], ["--sort", "queue", "--tube", "mail", "--state", "ready"]])
def test_list_goes_on_where_it_ended_in_each_server(fleet, order):
    for name, count in (("one", 1), ("two", 8), ("three", 3)):
        fleet.put(name, "mail", *[b"x"] * count)
    whole = [(row["server"], row["id"]) for row in fleet.rows("jobs", *order)]
    assert len(whole) == 12
    parts, after = [], []
    while True:
        out, err = fleet.run("jobs", *order, "-n", "5", "--json", *after)
        parts += [(row["server"], row["id"]) for row in map(json.loads, out)]
        if not err:
            break
        after = ["--after", err[0].rpartition(" ")[2]]
    assert parts == whole


def test_groups_are_added_up(fleet):
    for name in NAMES:
        fleet.put(name, "mail", b'{"customer": 1}')
    fleet.put("one", "mail", b'{"customer": 2}')
    assert fleet.rows("jobs", "--group-by", "customer") == [{"value": "1", "jobs": 3}, {"value": "2", "jobs": 1}]


def test_job_is_found_with_its_server_and_without(fleet):
    fleet.put("one", "a", b"of one")
    fleet.put("two", "mail", b"of two", b"alone")
    assert [(row["server"], row["body"]) for row in fleet.rows("job", "1")] == [("one", "of one"), ("two", "of two")]
    assert [row["body"] for row in fleet.rows("job", "two:1")] == ["of two"]
    assert fleet.run("job", "two:2", "--body", "raw")[0] == ["alone"]
    assert fleet.run("job", "three:1", code=1)[1][0].startswith("beanlite: there is no job three:1")
    assert fleet.run("job", "four:1", code=2)[1] == ["beanlite: there is no server four, only one, two, three"]


def test_what_is_wrong_is_told_with_the_server_and_its_address(fleet):
    fleet.put("three", "sms", b"x")
    until(lambda: any(line.startswith("warning: three: nobody consumes sms") for line in fleet.run("why", "sms")[0]))
    out, _ = fleet.run("why", "sms")
    assert any(line.endswith(f"beanlite clients --connect 127.0.0.1:{fleet.servers['three'].port}") for line in out)
    assert "server   three" in out
    assert [row["server"] for row in fleet.rows("why")] == list(NAMES)


def test_stopped_server_is_left_out_and_named(fleet):
    for name in NAMES:
        fleet.put(name, "mail", b"x")
    fleet.servers["three"].stop()
    port = fleet.servers["three"].port
    why = f"beanlite: three is left out: no server can be reached at 127.0.0.1:{port}: Connection refused"
    for command in (["tubes"], ["jobs"], ["job", "1"], ["clients"], ["why"], ["stats"]):
        out, err = fleet.run(*command, code=1)
        assert err[-1] == why
        assert out or command == ["clients"]
    assert {row["server"] for row in fleet.rows("jobs", code=1)} == {"one", "two"}
    assert fleet.run("job", "three:1", code=1)[1][0].startswith("beanlite: three is away: no server can be reached")
    assert "away     three: no server can be reached" in "\n".join(fleet.run("top", "--once", code=1)[0])
    for name in "one", "two":
        fleet.servers[name].stop()
    assert fleet.run("tubes", code=1)[1][0].startswith("beanlite: one: no server can be reached")


def test_halted_server_is_left_out_in_time(fleet):
    fleet.put("one", "mail", b"x")
    fleet.servers["two"].signal(signal.SIGSTOP)
    out, err = fleet.run("jobs", code=1)
    assert out[1].split()[0] == "one:1"
    assert len(err) == 1
    assert err[0].startswith("beanlite: two is left out: ")


def test_server_that_goes_away_amid_questions_is_left_out(fleet):
    places = Places(tuple(Place(name, at, (("127.0.0.1", fleet.servers[name].port),)) for at, name in enumerate(NAMES)))
    for name in NAMES:
        fleet.put(name, "mail", *[b"x"] * 3)
    with Several(places) as several:
        request = {"order": "id", "limit": 4}
        first = several.list_jobs(request)
        fleet.servers["two"].kill()
        rest = several.list_jobs({**request, "after": first["next"]})
    assert [job["server"] for job in first["jobs"]] == ["one", "two", "three", "one"]
    assert [(job["server"], job["id"]) for job in rest["jobs"]] == [("three", 2), ("one", 3), ("three", 3)]
    assert rest["next"] is None
    assert list(several.away) == ["two"]


def test_put_goes_to_the_server_of_the_tube(fleet, tmp_path):
    assert fleet.run("put", "--tube", "mail", "a", "b")[0] == ["two:1", "two:2"]
    assert fleet.rows("put", "--tube", "orders", "a") == [{"server": "three", "id": 1}]
    lines = tmp_path / "jobs"
    lines.write_text(
        "".join(json.dumps({"tube": tube, "body": ""}) + "\n" for tube in ("sms", "mail", "mail.eu", "sms"))
    )
    assert fleet.run("put", "--jobs", str(lines))[0] == ["three:2", "two:3", "two:4", "three:3"]
    fleet.servers["two"].stop()
    assert fleet.run("put", "--tube", "sms", "a") == (["three:4"], [])  # the other one is not needed
    assert fleet.run("put", "--tube", "mail", "a", code=1)[1][0].startswith("beanlite: two is away: ")
    addresses = [word for name in ("one", "three") for word in ("--connect", f"127.0.0.1:{fleet.servers[name].port}")]
    assert main(["put", "x", *addresses]) == 2
    assert "nothing says which server has tube default: name one by --connect" in fleet.capsys.readouterr().err


def test_change_by_id_goes_to_the_server_of_the_job(fleet):
    fleet.put("one", "a", b"x", b"x")
    fleet.put("two", "mail", b"x", b"x", b"x")
    assert fleet.run("bury", "two:1", "one:2", "3")[0] == ["two: 2 jobs buried", "one: 1 job buried"]
    assert fleet.states("two:1", "one:2", "two:3", "one:1", "two:2") == ["buried"] * 3 + ["ready"] * 2
    refused = fleet.run("bury", "two:2", "1", code=1)[1]
    assert refused == ["beanlite: one and two have a job 1 each; say one:1 or two:1"]
    assert fleet.run("bury", "two:2", "99", code=1)[1] == ["beanlite: there is no job 99"]
    assert fleet.states("two:2") == ["ready"]
    fleet.servers["one"].stop()
    assert fleet.run("kick", "two:1") == (["two: 1 job kicked"], [])
    assert fleet.run("kick", "--tube", "mail") == (["two: 1 job kicked"], [])
    assert fleet.run("bury", "2", code=1)[1][-1] == "beanlite: job 2 may be in one; say where it is, as in one:2"


def test_change_by_tube_goes_where_the_tube_belongs(fleet):
    for name in NAMES:
        fleet.put(name, "orders", b"x")
    assert sorted(fleet.run("bury", "--tube", "orders")[0]) == ["three: 1 job buried", "two: 1 job buried"]
    assert sorted(fleet.run("pause", "orders", "1min")[0]) == [
        f"{name}: orders is paused for 1 min" for name in ("three", "two")
    ]
    assert fleet.states("one:1") == ["ready"]
    fleet.put("one", "mail", b"x")
    assert fleet.run("bury", "--tube", "mail", code=1)[1] == [
        "beanlite: tube mail belongs to two, and only one has it: name that server by --connect"
    ]


def test_selection_is_changed_in_each_server_that_is_there(fleet):
    for name in NAMES:
        fleet.put(name, "t", b"spam", b"ham")
    fleet.servers["one"].stop()
    changes = fleet.rows("delete", "--text", "spam", "--yes", code=1)
    assert [(each["server"], each["done"]) for each in changes] == [("two", 1), ("three", 1)]
    assert [row["preview"] for row in fleet.rows("jobs", code=1)] == ["ham", "ham"]


def test_jobs_are_not_moved_to_a_tube_of_another_server(fleet):
    fleet.put("two", "mail", b"x")
    fleet.put("three", "orders", b"x")
    refused = "beanlite: tube sms belongs to three, and 1 job would have to leave two; none was moved"
    assert fleet.run("move", "--state", "ready", "--to", "sms", code=1)[1] == [refused]
    assert fleet.run("move", "three:1", "--to", "sms")[0] == ["three: 1 job moved"]
    assert fleet.run("move", "two:1", "--to", "mail.old")[0] == ["two: 1 job moved"]


def test_policies_are_set_in_all_servers_and_schedules_in_one(fleet):
    assert len(fleet.run("policy", "set", "mail.*", "max_jobs=5")[0]) == 3
    assert [row["server"] for row in fleet.rows("policy", "list")] == list(NAMES)
    assert fleet.run("schedule", "set", "poll", "--every", "5min", "--tube", "mail", "--body", "x")[0][0].startswith(
        "two: "
    )
    assert [row["server"] for row in fleet.rows("schedule", "list")] == ["two"]
    assert fleet.run("schedule", "run", "poll")[0] == ["two:1"]
    assert fleet.run("schedule", "unset", "poll")[0] == ["two: poll is unset"]
    assert fleet.run("schedule", "unset", "poll", code=1)[1] == ["beanlite: no server has a schedule poll"]


def test_where_is_answered_from_the_file_and_from_those_that_are_up(fleet):
    fleet.put("one", "mail", b"x")
    fleet.servers["three"].stop()
    out, err = fleet.run("where", "mail")
    assert "one has 1 job of it, where it does not belong" in out
    assert err[0].startswith("beanlite: three is left out: ")
    for name in "one", "two":
        fleet.servers[name].stop()
    (facts,) = fleet.rows("where", "orders")
    found = {key: facts[key] for key in ("server", "connect", "moved_from", "version", "jobs")}
    address = f"127.0.0.1:{fleet.servers['three'].port}"
    assert found == {"server": "three", "connect": [address], "moved_from": "two", "version": 7, "jobs": {}}


def test_history_of_several_files_is_merged_by_time(fleet, tmp_path, capsys):
    fleet.put("two", "mail", b"x")
    fleet.put("one", "a", b"x")
    for job in ("two:1", "one:1"):
        fleet.run("bury", job)
    fleet.run("kick", "two:1")
    for server in fleet.servers.values():
        server.stop()
    files = [word for name in ("one", "two") for word in ("--db", f"{name}={tmp_path / name / 'queue.db'}")]
    assert main(["history", "--json", *files]) == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(each["server"], each["what"]) for each in events] == [("two", "bury"), ("one", "bury"), ("two", "kick")]
    assert main(["history", "--id", "two:1", "-n", "1", *files]) == 0
    assert "two:1  mail  kick" in capsys.readouterr().out
    assert main(["history", *files, "--database", "postgresql://db/queue"]) == 2
    assert "--db and --database exclude each other" in capsys.readouterr().err


def test_history_of_one_file_may_have_a_name(fleet, tmp_path, capsys):
    fleet.put("one", "mail", b"x")
    fleet.run("bury", "one:1")
    db = tmp_path / "one" / "queue.db"
    for where in (f"one={db}", str(db)):
        assert main(["history", "--json", "--db", where]) == 0
        (event,) = map(json.loads, capsys.readouterr().out.splitlines())
        assert (event["what"], "server" in event) == ("bury", False)
    assert main(["history", "--json", "--db", f"one={db}", "--id", "one:1"]) == 0
    assert json.loads(capsys.readouterr().out)["id"] == 1
    assert main(["history", "--db", f"one={db}", "--id", "two:1"]) == 2
    assert capsys.readouterr().err == "beanlite: there is no server two, only one\n"
    assert main(["history", "--db", str(db), "--id", "one:1"]) == 2
    assert "only one is looked at: say 1" in capsys.readouterr().err
    (tmp_path / "a=b.db").symlink_to(db)
    assert main(["history", "--json", "--db", str(tmp_path / "a=b.db"), "--id", "1"]) == 0
    assert json.loads(capsys.readouterr().out)["what"] == "bury"


@pytest.mark.parametrize("how", ["file", "name"])
def test_job_of_a_single_server_may_be_given_with_its_name(fleet, tmp_path, capsys, how):
    fleet.put("one", "mail", b"x", b"y")
    file = tmp_path / "one.toml"
    file.write_text(f'[servers.one]\nnumber = 1\nconnect = "127.0.0.1:{fleet.servers["one"].port}"\n')
    named = ["--connect", f"one=127.0.0.1:{fleet.servers['one'].port}"]
    where = ["--servers", str(file)] if how == "file" else named

    def run(*words, code=0):
        assert main([*words, *where]) == code, words
        return "".join(capsys.readouterr())

    assert run("job", "one:1") == run("job", "1")
    for command in ("bury", "kick", "reprioritise --pri 7", "delay --by 1h", "note --note x", "copy --to web"):
        word, *options = command.split()
        assert run(word, "one:1", "2", *options).startswith("2 jobs "), command
    assert run("delete", "one:1", "one:9", "--yes", code=1).endswith(
        "not all of these jobs could be deleted: 9 is gone\n"
    )
    assert run("job", "one:1", code=1).startswith("beanlite: there is no job one:1; ")
    for command in ("job two:2", "kick 2 two:2", "delete two:2 --yes", "undelete two:2"):
        assert run(*command.split(), code=2) == "beanlite: there is no server two, only one\n", command


def test_deleted_jobs_are_put_again_where_their_tube_belongs(fleet, tmp_path):
    with start_beanlite(tmp_path / "old", "--history", "1d", "--history-bodies") as old:
        with Wire(old.connect()) as client:
            for tube in ("mail", "sms"):
                client.ask(f"use {tube}")
                client.ask(f"delete {client.put(b'x')}")
        db = ["--db", str(tmp_path / "old" / "queue.db")]
        assert fleet.run("undelete", "1", *db) == (["job 1 is job two:1 now"], [])
        fleet.servers["two"].stop()
        assert fleet.rows("undelete", "2", *db) == [{"server": "three", "id": 1, "was": 2}]
        assert fleet.run("undelete", "1", *db, code=1)[1][0].startswith("beanlite: two is away: ")


def test_one_server_in_the_file_is_shown_as_a_server_alone(fleet, tmp_path, capsys):
    fleet.put("one", "mail", b"x")
    file = tmp_path / "one.toml"
    file.write_text(f'[servers.one]\nnumber = 1\nconnect = "127.0.0.1:{fleet.servers["one"].port}"\n')
    for command in (["tubes"], ["jobs", "--json"], ["kick", "--tube", "mail"]):
        assert main([*command, "--servers", str(file)]) == 0
        as_one = capsys.readouterr().out
        assert main([*command, "--connect", f"127.0.0.1:{fleet.servers['one'].port}"]) == 0
        assert capsys.readouterr().out.split()[:2] == as_one.split()[:2]
        assert "one" not in as_one.split()
    assert main(["where", "mail", "--json", "--servers", str(file)]) == 0
    assert json.loads(capsys.readouterr().out)["jobs"] == {"one": 1}


def test_address_of_a_standby_may_stand_beside_that_of_its_server(fleet, capsys):
    fleet.put("one", "mail", b"a")
    for connect in ("127.0.0.1:{0},127.0.0.1:{1}", "one=127.0.0.1:{1},127.0.0.1:{0}"):
        where = connect.format(free_port(), fleet.servers["one"].port)
        assert main(["jobs", "--json", "--connect", where]) == 0
        assert [json.loads(line)["id"] for line in capsys.readouterr().out.splitlines()] == [1]
        assert main(["top", "--once", "--connect", where]) == 0
        assert where.removeprefix("one=").replace(",", " or ") in capsys.readouterr().out


def test_variable_names_the_file_of_servers(fleet, monkeypatch, capsys):
    fleet.put("two", "mail", b"x")
    monkeypatch.setenv("BEANLITE_SERVERS", fleet.file)
    assert main(["jobs", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["server"] == "two"
    assert main(["jobs", "--json", "--connect", f"127.0.0.1:{fleet.servers['two'].port}"]) == 0
    assert "server" not in json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("ends", [signal.SIGKILL, signal.SIGSTOP])
async def test_screen_says_in_time_that_a_server_is_away_and_goes_on(fleet, tmp_path, ends):
    fleet.servers["four"] = start_beanlite(tmp_path / "four")
    for name in fleet.servers:
        fleet.put(name, "mail", b"x")
    servers = enumerate(fleet.servers.items())
    app = Top(Places(tuple(Place(name, at, (("127.0.0.1", server.port),)) for at, (name, server) in servers)))
    async with app.run_test(size=SMALL) as pilot:
        await shown(pilot, lambda text: all(f"{name}:mail" in text for name in fleet.servers) and "4 ready" in text)
        fleet.servers["three"].signal(ends)
        async with asyncio.timeout(8 * AWAY_S):  # 5 s on a machine that has nothing else to do
            await shown(pilot, lambda text: "away     three: " in text and "three:mail" not in text)
        fleet.put("one", "mail", b"x")
        rest = ("one", "two", "four")
        await shown(pilot, lambda text: "4 ready" in text and all(f"{name}:mail" in text for name in rest))
        await pilot.press("enter")
        await shown(pilot, lambda text: "tube mail of " in text)
        fleet.servers["three"].signal(signal.SIGCONT)
