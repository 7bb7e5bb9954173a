"""Of an option that is given twice no value is left out without a word, but by ``serve``, as by beanstalkd."""

import pytest
import typer

from beanlite.cli import COMMANDS, build_app, main


def commands_of(group, *words):
    """Yield each command below a group, with its words."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands_of(command, *words, name)
        else:
            yield [*words, name], command


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in {"serve", "config"}])
def test_option_that_takes_one_value_is_refused_when_given_twice(name, capsys):
    asked = 0
    for words, command in commands_of(typer.main.get_command(build_app([name, "config"]))):
        options = [each for each in command.params if each.param_type_name == "option"]
        for option in options if words[0] == name else ():
            if option.multiple or option.is_flag:
                continue
            asked += 1
            assert main([*words, option.opts[0], "1", option.opts[-1], "2"]) == 2, (words, option.opts)
            refused = (
                f"beanlite: {option.opts[0]} is given twice, and takes one value; beanlite {' '.join(words)} --help"
            )
            assert capsys.readouterr().err == f"{refused} tells how\n"
    assert asked or name in {"salvage", "token"}


def test_last_value_holds_for_a_server(capsys):
    assert main(["config", "-p", "1", "-p", "2"]) == 0
    assert "port                         2 " in capsys.readouterr().out


def test_flags_and_options_of_several_values_may_be_given_twice(capsys):
    twice = [
        "--json",
        "--json",
        "--connect",
        "unix:none",
        "--connect",
        "unix:nowhere",
        "--where",
        "a=1",
        "--where",
        "b=2",
    ]
    assert main(["jobs", *twice]) == 1
    assert "No such file or directory" in capsys.readouterr().err
