"""The table of commands: when a command counts, and what the statistics say of it."""

import pytest

from beanlite.protocol.command_table import new_commands


def counted_by(core, data):
    """The commands that count one more after this, by their words."""
    commands = core.service.commands
    before = [command.count for command in commands]
    client = core.client()
    core.send(client, data)
    core.close(client)
    return [command.word for command, count in zip(commands, before, strict=True) for _ in range(command.count - count)]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"put 0 0 1 5\r\n", [b"put"]),  # before its body has come
        (b"put 0 0 1 99999\r\n", [b"put"]),  # too big
        (b"put 0 0 1 5 \r\n", [b"put"]),  # more follows than should
        (b"put 0 0 1\r\n", []),
        (b"delete 1\r\n", [b"delete"]),  # there is no such job
        (b"delete x\r\ndelete\r\n", []),
        (b"reserve\r\n", [b"reserve"]),
        (b"reserve \r\nreservex\r\n", []),
        (b"reserve-with-timeout 0\r\n", [b"reserve-with-timeout"]),
        (b"stats-tube -a\r\n", []),
        (b"pause-tube -a 1\r\n", [b"pause-tube"]),  # a name that no tube can have
        (b"pause-tubea 1\r\n", [b"pause-tube"]),
        (b"pause-tube a\r\npause-tubea\r\n", []),
        (b"nothing\r\nquit\r\n", []),
    ],
)
def test_a_command_counts_when_its_arguments_are_well_formed(core, data, words):
    assert counted_by(core, data) == words


def test_each_command_stands_once_in_the_table():
    words = [command.word for command in new_commands()]
    assert len(set(words)) == len(words) == 30


def test_the_statistics_tell_all_counts_but_eight(core):
    reply = core.send(core.client(), b"stats\r\n")
    told = {line.split(b":")[0].removeprefix(b"cmd-") for line in reply.splitlines() if line.startswith(b"cmd-")}
    words = {command.word for command in core.service.commands}
    assert told < words
    uncounted = {b"reserve-job", b"reserve-batch", b"kick-job", b"note", b"name", b"offer", b"take", b"decline"}
    assert words - told == uncounted
