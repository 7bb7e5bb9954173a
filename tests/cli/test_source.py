"""What a command reads from a terminal: it says that it waits, and until when."""

import os
import pty

import pytest

from beanlite.cli import main
from beanlite.cli.source import STDIN, reader
from tests.support.servers import start_beanlite


@pytest.fixture
def terminal(monkeypatch):
    """A terminal as stdin; the end of it at which somebody types is returned."""
    typed, read = pty.openpty()
    with open(read) as stdin:  # noqa: PTH123 - a descriptor
        monkeypatch.setattr("sys.stdin", stdin)
        yield typed
    os.close(typed)


def test_a_terminal_is_told_that_it_is_waited_for(terminal, capsys):
    with reader(STDIN) as source:
        assert capsys.readouterr().err == "reading from the terminal, until Ctrl-D at the beginning of a line\n"
        os.write(terminal, b"typed\n\x04")
        assert source.read() == b"typed\n"


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ([], "the body of a job for the tube mail"),
        (["--lines"], "jobs for the tube mail, one a line,"),
        (["--jobs", "-"], "jobs, a JSON object a line,"),
    ],
)
def test_put_says_what_it_waits_for_at_a_terminal(options, what, terminal, capsys, tmp_path):
    os.write(terminal, b'{"body": "typed"}\n\x04')
    with start_beanlite(tmp_path) as server:
        assert main(["put", "--tube", "mail", *options, "--connect", f"127.0.0.1:{server.port}"]) == 0
    end = "from the terminal, until Ctrl-D at the beginning of a line\n"
    assert capsys.readouterr() == ("1\n", f"reading {what} {end}")


def test_nobody_else_is(monkeypatch, capsys, tmp_path):
    (tmp_path / "in").write_bytes(b"body")
    with (tmp_path / "in").open() as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        assert reader(STDIN).read() == b"body"
    with reader(tmp_path / "in") as source:
        assert source.read() == b"body"
    assert capsys.readouterr().err == ""
