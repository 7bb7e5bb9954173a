"""How servers are named on the command line: a single one, one with its standbys, and none twice."""

import json

import pytest

from beanlite.cli import main
from tests.support.servers import free_port


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


@pytest.mark.parametrize(
    ("first", "second"),
    [("one=h:1", "one=h:2"), ("h:1", "one=h:1"), ("one=h:1", "h:1"), ("h:1,h:2", "two=h:3,h:1"), ("h:1,h:1", "h:2")],
)
def test_no_server_is_named_twice(capsys, first, second):
    assert main(["jobs", "--connect", first, "--connect", second]) == 2
    assert capsys.readouterr().err == "beanlite: --connect: two servers have the same name, or the same address\n"


def test_wrong_file_for_tls_is_a_wrong_flag_of_where(tmp_path, capsys):
    file = tmp_path / "servers.toml"
    file.write_text('[servers.one]\nnumber = 0\nconnect = "tls://127.0.0.1:1"\n')
    assert main(["where", "mail", "--servers", str(file), "--tls-ca", "/nowhere"]) == 2
    assert capsys.readouterr().err == "beanlite: --tls-ca: /nowhere can't be read: No such file or directory\n"
