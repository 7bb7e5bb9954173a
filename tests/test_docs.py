"""A command, flag or setting that the README doesn't mention fails here."""

import re
from pathlib import Path

import pytest
import typer

from beanlite import cli, config

ROOT = Path(__file__).parent.parent
COMMANDS = typer.main.get_group(cli.app).commands
LONG_FLAGS = sorted(
    {
        flag
        for command in COMMANDS.values()
        for parameter in command.params
        for flag in parameter.opts
        if flag.startswith("--")
    }
)


@pytest.fixture(scope="module")
def readme():
    return (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_is_in_the_readme(command, readme):
    assert f"beanlite {command}" in readme


@pytest.mark.parametrize("flag", LONG_FLAGS)
def test_each_flag_is_in_the_readme(flag, readme):
    assert re.search(rf"(?<![\w-]){flag}(?![\w-])", readme)


@pytest.mark.parametrize("key", config.Settings.model_fields)
def test_each_setting_is_in_the_readme(key, readme):
    """By its flag, its variable or its name in the file."""
    assert re.search(rf"(?<![\w-])({config.flag(key)}|{config.variable(key)}|`{key}`)(?![\w-])", readme)
