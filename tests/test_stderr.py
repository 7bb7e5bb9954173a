"""A stderr that nobody reads stops nobody: neither the server, nor its end."""

import io
import os
import pty
import signal
import socket
import subprocess
import sys
import termios
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from beanlite.host.stderr import Stderr, last_words
from tests.support.servers import ServerDied, start_beanlite
from tests.support.wire import Wire, until

ROOT = Path(__file__).parent.parent
LINE = b"a line\n"
LONG = b"x" * (3 << 16) + b"\n"


@pytest.fixture(autouse=True)
def promptly():
    """What waits for a reader waits for ever: it is to fail instead."""

    def give_up(*_):
        raise AssertionError("it waits")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(30)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def fill(path_or_number):
    """Leave no room, by way of a descriptor of our own: not to block is a property of what it has opened."""
    path = path_or_number if isinstance(path_or_number, Path) else f"/proc/self/fd/{path_or_number}"
    descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
    size = 0
    with suppress(BlockingIOError):
        while True:
            size += os.write(descriptor, b"." * (1 << 16))
    os.close(descriptor)
    return size


def drain(descriptor):
    """All that there is to read."""
    read = b""
    os.set_blocking(descriptor, False)
    with suppress(BlockingIOError):
        while data := os.read(descriptor, 1 << 16):
            read += data
    return read


@contextmanager
def a_pipe():
    reader, writer = os.pipe()
    yield reader, writer
    os.close(reader)
    os.close(writer)


@contextmanager
def a_socket():
    """As systemd's journal has it."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours.fileno(), theirs.fileno()


@contextmanager
def a_terminal():
    reader, terminal = pty.openpty()
    yield reader, terminal
    os.close(reader)
    os.close(terminal)


kinds = pytest.mark.parametrize("kind", [a_pipe, a_socket, a_terminal])


@kinds
@pytest.mark.parametrize("data", [LINE, LONG], ids=["line", "long"])
def test_unread_lines_are_lost_and_counted_and_later_ones_are_written(kind, data):
    with kind() as (reader, writer), Stderr(writer) as stderr:
        while not stderr.lost_lines:
            assert stderr.write(data) == len(data)
        # A terminal passes on a while later what it has been given, and only then has room again.
        before = -1
        while stderr.lost_lines < before + 2:
            before = stderr.lost_lines
            assert stderr.write(LINE + LINE) == 2 * len(LINE)
        assert stderr.lost_lines == before + 2
        before = -1
        while stderr.lost_lines != before:
            drain(reader)
            before = stderr.lost_lines
            assert stderr.write(LINE) == len(LINE)
        read = b""
        while not read.endswith(b"\n"):
            read += drain(reader)
        assert read.replace(b"\r\n", b"\n").splitlines()[-1] == b"a line"


def test_a_line_that_was_cut_short_is_ended_before_the_next():
    with a_pipe() as (reader, writer), Stderr(writer) as stderr:
        stderr.write(LONG)
        assert stderr.lost_lines == 1
        begun = drain(reader)
        assert begun == b"x" * len(begun)
        stderr.write(LINE)
        stderr.write(LINE)
        assert drain(reader) == b"\n" + LINE + LINE


def test_lines_for_a_reader_that_has_gone_are_lost():
    reader, writer = os.pipe()
    os.close(reader)
    with Stderr(writer) as stderr:
        stderr.write(LINE)
        assert stderr.lost_lines == 1
    os.close(writer)


def test_a_stopped_terminal_loses_lines_and_one_that_goes_on_does_not():
    with a_terminal() as (reader, terminal), Stderr(terminal) as stderr:
        termios.tcflow(terminal, termios.TCOOFF)  # as Ctrl-S does
        stderr.write(LINE)
        assert stderr.lost_lines == 1
        termios.tcflow(terminal, termios.TCOON)
        stderr.write(LINE)
        assert stderr.lost_lines == 1
        assert drain(reader) == b"a line\r\n"


def test_last_words_wait_a_little_for_who_reads(monkeypatch):
    with a_pipe() as (reader, writer), Stderr(writer) as stderr:
        fill(writer)
        monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(stderr))
        signal.signal(signal.SIGALRM, lambda *_: drain(reader))
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        last_words("a line")
        assert not stderr.lost_lines
        assert drain(reader) == LINE


@pytest.mark.parametrize(
    ("code", "exit_code"), [("raise RuntimeError('x' * 10000)", 1), ("print('x', file=sys.stderr)", 0)]
)
def test_python_itself_ends_when_nobody_reads(code, exit_code):
    with a_pipe() as (_, writer):
        fill(writer)
        code = f"import sys; from beanlite.host import stderr; stderr.install(); {code}"
        assert subprocess.call([sys.executable, "-c", code], stderr=writer, cwd=ROOT, timeout=20) == exit_code


@pytest.fixture
def pipe(tmp_path):
    """A pipe with a name, for the shell to open, and the descriptor that it is read from."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    yield path, reader
    with suppress(OSError):
        os.close(reader)


@pytest.mark.parametrize(
    ("form", "said"), [("text", "lines are lost lines=3"), ("json", 'lines are lost", "lines": 3}')]
)
def test_server_whose_log_is_unread_serves_on_and_says_so_afterwards(tmp_path, pipe, form, said):
    path, reader = pipe
    fill(path)
    with (
        start_beanlite(tmp_path / "q", "--log-format", form, before=f"exec 2>{path}") as server,
        Wire(server.connect()) as wire,
    ):
        assert wire.put(b"job") == 1
        server.signal(signal.SIGUSR1)
        until(lambda: wire.ask("put 0 0 1 1", b"x") == "DRAINING")
        assert drain(reader).strip(b".") == b""
        server.signal(signal.SIGUSR1)
        read = []
        until(lambda: read.append(drain(reader).decode()) or "draining" in "".join(read))
        note, line = "".join(read).splitlines()  # lost were: recovered, started, draining
        assert note.endswith(said)
        assert "draining" in line
        fill(path)
        assert wire.ask("reserve") == "RESERVED 1 3"
        assert server.stop() == 0


def test_a_log_whose_reader_has_gone(tmp_path, pipe):
    path, reader = pipe
    with start_beanlite(tmp_path / "q", before=f"exec 2>{path}") as server, Wire(server.connect()) as wire:
        os.close(reader)
        server.signal(signal.SIGUSR1)
        until(lambda: wire.ask("put 0 0 1 1", b"x") == "DRAINING")
        assert server.stop() == 0


def test_a_start_that_fails_ends_although_nobody_reads_why(tmp_path, pipe):
    path, _ = pipe
    fill(path)
    with pytest.raises(ServerDied, match="ended with 2"):
        start_beanlite(tmp_path / "q", "--max-watched", "0", before=f"exec 2>{path}")


def test_a_server_without_a_stderr(tmp_path):
    with start_beanlite(tmp_path, before="exec 2>&-") as server, Wire(server.connect()) as wire:
        assert Path(f"/proc/{server.process.pid}/fd/2").readlink() == Path(os.devnull)
        assert wire.put(b"job") == 1
        assert server.stop() == 0
