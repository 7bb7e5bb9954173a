"""Prints to a stdout that may be on a full disk, or have lost its reader."""

import contextlib
import os
import select
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, Self

# The file descriptors.
_STDOUT: Final = 1
_STDERR: Final = 2


def prefix(server: str) -> str:
    """Return what precedes a line about one of several servers; a single one has no name."""
    return f"{server}: " if server else ""


def server_key(server: str) -> dict[str, str]:
    """Return the server as a part of an object of JSON; a single one has no name."""
    return {"server": server} if server else {}


def print_done(text: str, failure: str = "done, but the result can't be printed") -> None:
    """Print what a command has done. If that fails it is done all the same, and one line on stderr says so.

    An exit code other than 0 would have a script do it again. A reader that has gone wants to hear no more.
    """
    try:
        print(f"{text}\n", end="", flush=True)  # in one write, so that no other thread's comes between
    except BrokenPipeError:
        print_no_more()
    except OSError as error:
        print_no_more()
        print(f"beanlite: {failure}: {error.strerror}", file=sys.stderr)


def print_no_more() -> None:
    """Discard what is printed from now on, and what is still buffered: Python would report that it can't be flushed."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class LineStdout:
    """The stdout of a process that prints lines there; what all other code prints to it is on stderr from now on.

    That is true of the file descriptor, and so of code in any language, and of the processes that it starts.
    """

    def __init__(self) -> None:
        """Take the stdout of the process."""
        self._number = os.dup(_STDOUT)
        os.dup2(_STDERR, _STDOUT)
        self._before = sys.stdout, sys.__stdout__
        # Other code may close it. Its lines appear at once, as those of the log do.
        stdout = sys.stdout
        self._others = open(_STDOUT, "w", 1, stdout.encoding, stdout.errors, closefd=False)  # noqa: SIM115 - left open
        sys.stdout = sys.__stdout__ = self._others  # type: ignore[misc]
        self._thread = ThreadPoolExecutor(1, "stdout")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Print what others have printed; what they leave behind may print on, and goes to stderr all the same."""
        for stream in (sys.stdout, self._others):
            with contextlib.suppress(Exception):  # whatever other code has made of it
                stream.flush()
        sys.stdout, sys.__stdout__ = self._before  # type: ignore[misc]

    def print_line(self, text: str, failure: str) -> "Future[None]":
        """Print as `print_done` does, behind the lines before it; return at once, however long nobody reads them."""
        return self._thread.submit(self._print, text, failure)

    def _print(self, text: str, failure: str) -> None:
        try:
            self._write(f"{text}\n".encode())
        except OSError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._number)
            if not isinstance(error, BrokenPipeError):
                print(f"beanlite: {failure}: {error.strerror}", file=sys.stderr)

    def _write(self, line: bytes) -> None:
        while line:
            try:
                line = line[os.write(self._number, line) :]
            except BlockingIOError:  # another process has made the terminal or pipe non-blocking
                select.select([], [self._number], [])
