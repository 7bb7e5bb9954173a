"""``beanlite access`` and ``beanlite token``: what they print, and their exit codes."""

import json
import re
from hashlib import sha256

import pytest

from beanlite.cli import main
from beanlite.server.access_file import read_access

TEXT = """
[[allow]]
who = ["cert:mailer", "net:10.1.0.0/16"]
role = ["producer"]
tubes = ["mail.*"]

[[allow]]
who = ["uid:0"]
role = ["operator"]
tubes = ["mail.de", "sms"]

[[allow]]
who = ["page", "person:ann"]
role = ["operator"]
tubes = ["mail.*"]
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "access.toml"
    path.write_text(TEXT)
    return path


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["--as", "cert:mailer", "put", "mail.de"], 0, "allowed by rule 1: cert:mailer, net:10.1.0.0/16: producer on"),
        (["--as", "cert:mailer", "use", "mail.de"], 0, "allowed by rule 1: "),
        (["--as", "net:10.1.2.3", "put", "mail.?"], 0, "allowed by rule 1: "),
        (
            ["--as", "cert:x", "--as", "uid:root", "put", "mail.de"],
            0,
            "allowed by rule 2: uid:0: operator on mail.de, sms",
        ),
        (["--as", "cert:mailer", "reserve", "mail.de"], 1, "not allowed: no rule gives cert:mailer the role worker on"),
        (["--as", "cert:mailer", "use", "x"], 1, "not allowed: no rule gives cert:mailer any role on x"),
        (["--as", "net:10.2.0.1", "put", "mail.de"], 1, "not allowed: "),
        (["--as", "uid:0", "list-jobs"], 1, "not allowed: no rule gives uid:0 the role reader on *"),
        (["--as", "person:ann", "peek", "mail.de"], 0, "allowed by rule 3: page, person:ann: operator on mail.*"),
        (["--as", "page", "pause-tube", "mail.?"], 0, "allowed by rule 3: "),
        (["--as", "person:bob", "peek", "mail.de"], 1, "not allowed: no rule gives person:bob the role reader on mail"),
        (["--as", "page", "act-for", "mail.de"], 1, "not allowed: no rule gives page the role operator on *"),
        (["--as", "cert:x", "stats"], 0, "allowed: everybody may stats"),
        (["--as", "cert:x", "quit", "mail.de"], 0, "allowed: everybody may quit"),
    ],
)
def test_check_tells_which_rule_decides(file, capsys, args, code, said):
    assert main(["access", "check", *args, "--file", str(file)]) == code
    assert capsys.readouterr().out.startswith(said)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--as", "cert:x", "putt"], "'putt' is no word of the protocol"),
        (["--as", "cert:x", "put", "a b"], "'a b' is neither the name of a tube nor a glob"),
        (["--as", "x", "put"], "--as: 'x' is no identity such as cert:NAME"),
        (["--as", "person:", "put"], "--as: 'person:' is no identity such as cert:NAME"),
        (["--as", "net:10.0.0.0/8", "put"], "--as: '10.0.0.0/8' does not appear to be an IPv4 or IPv6 address"),
        (["put"], "Missing option '--as'"),
    ],
)
def test_mistake_in_the_command_is_told(file, capfd, args, said):
    assert main(["access", "check", *args, "--file", str(file)]) == 2
    assert capfd.readouterr().err.startswith(f"beanlite: {said}")


def test_check_prints_json(file, capsys):
    main(["access", "check", "--as", "uid:0", "pause-tube", "sms", "--file", str(file), "--json"])
    rule = {"number": 2, "who": ["uid:0"], "role": ["operator"], "tubes": ["mail.de", "sms"]}
    assert json.loads(capsys.readouterr().out) == {"allowed": True, "role": "operator", "rule": rule}
    assert main(["access", "check", "--as", "uid:1", "put", "sms", "--file", str(file), "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == {"allowed": False, "role": "producer", "rule": None}


def test_list_prints_all_rules(file, capsys, tmp_path):
    settings = tmp_path / "beanlite.toml"
    settings.write_text(f'access = "{file}"\n')
    assert main(["access", "list", "--config", str(settings)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "1: cert:mailer, net:10.1.0.0/16: producer on mail.*",
        "2: uid:0: operator on mail.de, sms",
        "3: page, person:ann: operator on mail.*",
    ]
    main(["access", "list", "--file", str(file), "--json"])
    assert [json.loads(line)["number"] for line in capsys.readouterr().out.splitlines()] == [1, 2, 3]


def test_list_without_a_file_says_what_is_missing(capfd):
    assert main(["access", "list"]) == 2
    assert "the settings name no file of rules (access); name one with --file" in capfd.readouterr().err


@pytest.mark.parametrize("name", ["ci", "ci.2"])
def test_new_token_is_printed_with_its_line_for_the_file(tmp_path, capsys, name):
    assert main(["token", "new", name]) == 0
    secret, line = (text.partition(":")[2].strip() for text in capsys.readouterr().out.splitlines())
    assert re.fullmatch("[0-9a-f]{64}", secret)
    file = tmp_path / "access.toml"
    file.write_text(f"[tokens]\n{line}\n")
    assert read_access(file).digests == {name: sha256(secret.encode()).hexdigest()}
    main(["token", "new", name, "--json"])
    facts = json.loads(capsys.readouterr().out)
    assert facts == {"name": name, "token": facts["token"], "sha256": sha256(facts["token"].encode()).hexdigest()}
    assert facts["token"] != secret


def test_name_of_a_token_is_checked(capfd):
    assert main(["token", "new", "a b"]) == 2
    assert "the name of a token has 1 to 64 letters" in capfd.readouterr().err
