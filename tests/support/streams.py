"""Commands as processes whose stdin or stdout is not as it should be."""

import os
import subprocess
import sys
from pathlib import Path

from tests.support.wire import until

COMMAND = (sys.executable, "-m", "beanlite")
DONE_UNPRINTED = "beanlite: done, but the result can't be printed: No space left on device\n"


def onto_full_disk(*words):
    """Run a command whose stdout is on a full disk; return its exit code and what it says on stderr."""
    with Path("/dev/full").open("wb") as full:
        return _run(words, stdout=full)


def without_reader(*words):
    """Run a command whose stdout is a pipe that has lost its reader; return the same."""
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as pipe:
        return _run(words, stdout=pipe)


def from_unreadable(*words):
    """Run a command whose stdin is open for writing only, as under nohup; return the same."""
    with Path(os.devnull).open("wb") as unreadable:
        return _run(words, stdin=unreadable)


def from_broken(*words):
    """Run a command whose stdin fails when it is read; return the same."""
    with Path("/proc/self/mem").open("rb") as broken:
        return _run(words, stdin=broken)


def from_late(given, *words):
    """Run a command whose stdin is non-blocking and empty until the command waits for it; return the same."""
    read, write = os.pipe()
    os.set_blocking(read, False)  # for the command as well, which has the same end of the pipe
    with (
        os.fdopen(read, "rb"),
        subprocess.Popen(
            [*COMMAND, *words],
            stdin=read,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=_environment(),
            text=True,
        ) as process,
    ):
        with os.fdopen(write, "wb") as pipe:
            until(lambda: os.get_blocking(read) or process.poll() is not None)
            pipe.write(given)
        said = process.communicate()[1]
    return process.returncode, said


def _run(words, **streams):
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, **streams}
    done = subprocess.run(
        [*COMMAND, *words], stderr=subprocess.PIPE, check=False, env=_environment(), text=True, timeout=30, **streams
    )
    return done.returncode, done.stderr


def _environment():
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
