"""A signal that comes when a command has done everything, and only tells of it, changes nothing."""

import fcntl
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from beanlite.console import listing
from beanlite.console.file import File
from beanlite.console.filters import filter_by
from tests.support.journal_files import export_to_file, make
from tests.support.streams import COMMAND
from tests.support.wire import until

ROOT = Path(__file__).parents[2]
PIPE_BYTES = 4096


@pytest.fixture
def folder(tmp_path):
    """A folder with a database of twelve jobs, a copy with three, and an export of that."""
    make(tmp_path / "queue.db", batches=4)
    make(tmp_path / "copy.db", batches=1)
    export_to_file(tmp_path / "copy.db", tmp_path / "copy.jsonl")
    return tmp_path


def interrupt(number, line, folder):
    """Run a command, and send it the signal while it can't print its result; return its exit code and the result."""
    there, here = os.pipe()
    fcntl.fcntl(here, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    os.write(here, bytes(PIPE_BYTES))
    screen, terminal = pty.openpty()
    with subprocess.Popen(
        [*COMMAND, *line.split()], cwd=folder, stdout=here, stderr=terminal, env={**os.environ, "PYTHONPATH": str(ROOT)}
    ) as process:
        os.close(here)
        os.close(terminal)
        said = bytearray()

        def has_ended_progress():
            said.extend(os.read(screen, PIPE_BYTES))
            return said.endswith(b"\x1b[K")

        until(has_ended_progress)
        process.send_signal(number)
        with os.fdopen(there, "rb") as pipe:
            result = pipe.read()[PIPE_BYTES:].decode()
    os.close(screen)
    return process.returncode, result


def count_jobs(path):
    with File(path) as file:
        return len(listing.jobs(file, filter_by(), "id", 0, None).records)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    ("line", "jobs"),
    [
        ("import copy.jsonl --new-ids --db queue.db", 15),
        ("restore copy.db --db queue.db", 3),
        ("compact --db queue.db", 12),
        ("backup other.db --db queue.db", 12),
    ],
)
def test_what_is_done_when_a_signal_comes_is_done(number, line, jobs, folder):
    code, result = interrupt(number, line, folder)
    assert (code, result.count("\n")) == (0, 2 if line.startswith("restore") else 1)
    assert count_jobs(folder / ("other.db" if line.startswith("backup") else "queue.db")) == jobs


# Imports into what the arguments name, where a signal comes as soon as that is done; prints the exit code.
IMPORT = """
import signal, sys
from contextlib import contextmanager
from beanlite.cli import exchange, main
from beanlite.journal.postgres import dump

file_for, number = exchange._file_for, signal.Signals[sys.argv[1]]

@contextmanager
def left_amid_signal(target):
    with file_for(target) as file:
        yield file
        signal.raise_signal(number)

exchange._file_for = left_amid_signal
dump.load = lambda file, url, new_ids: None
print(main(["import", "copy.jsonl", "--new-ids", *sys.argv[2:]]))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("into", [("--db", "queue.db"), ("--database", "postgresql://127.0.0.1:1/queue")])
def test_signal_at_the_end_of_an_import_does_not_hide_that(number, into, folder):
    command = [sys.executable, "-c", IMPORT, number.name, *into]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=True, text=True)
    assert (" imported\n0\n" in done.stdout, done.stderr) == (True, "")
