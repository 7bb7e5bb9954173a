"""--help has the options in sections."""

import re

import pytest

from beanlite.cli import main


def sections(command, capsys):
    """The options of each section."""
    assert main([*command.split(), "--help"]) == 0
    said = capsys.readouterr().out
    parts = re.findall(r"^(\w[\w ]*):\n((?:  .*\n)+)", said, re.MULTILINE)
    return {title: re.findall(r"^  (?:-\w, )?(--[\w-]+)", text, re.MULTILINE) for title, text in parts}


@pytest.mark.parametrize("command", ["jobs", "kick", "move"])
def test_help_has_a_section_for_each_group_of_options(command, capsys):
    told = sections(command, capsys)
    assert list(told) == ["Arguments", "Options", "Which jobs", "Where to look"][command == "jobs" :]
    assert told["Which jobs"][:3] == ["--tube", "--state", "--older"]
    assert told["Where to look"][:3] == ["--connect", "--servers", "--tls-ca"]
    assert {"--config", "--db"} & set(told["Options"]) == set()
    assert "--help" in told["Options"]


@pytest.mark.parametrize(("command", "options"), [("where", ["--json"]), ("shard move", ["--to", "--new", "--json"])])
def test_help_of_what_needs_the_file_of_servers_offers_no_address(command, options, capsys):
    told = sections(command, capsys)
    assert told["Options"] == [*options, "--help"]
    assert told["Where to look"] == ["--servers", "--tls-ca", "--tls-cert", "--tls-key"]


def test_help_of_other_commands_has_options_alone(capsys):
    assert list(sections("backup", capsys)) == ["Arguments", "Options"]
