"""Prints to a stdout that may be on a full disk, or have lost its reader."""

import io
import os
import sys
import threading
from pathlib import Path
from typing import TextIO


def prefix(server: str) -> str:
    """Return what precedes a line about one of several servers; a single one has no name."""
    return f"{server}: " if server else ""


def server_key(server: str) -> dict[str, str]:
    """Return the server as a part of an object of JSON; a single one has no name."""
    return {"server": server} if server else {}


def print_done(text: str, failure: str = "done, but the result can't be printed", stream: TextIO | None = None) -> None:
    """Print what a command has done. If that fails it is done all the same, and one line on stderr says so.

    An exit code other than 0 would have a script do it again. A reader that has gone wants to hear no more.
    """
    try:
        print(f"{text}\n", end="", file=stream, flush=True)  # in one write, so that no other thread's comes between
    except BrokenPipeError:
        print_no_more()
    except OSError as error:
        print_no_more()
        print(f"beanlite: {failure}: {error.strerror}", file=sys.stderr)


def print_no_more() -> None:
    """Discard what is printed from now on, and what is still buffered: Python would report that it can't be flushed."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class SharedStdout(io.TextIOWrapper):
    """A stdout on which other code prints as well; what is printed by `print_line` has a line of its own."""

    def __init__(self) -> None:
        """Become the stdout of the process."""
        before = sys.stdout if isinstance(sys.stdout, io.TextIOWrapper) else _plain()
        encoding, errors, by_line = before.encoding, before.errors, before.line_buffering
        super().__init__(before.detach(), encoding, errors, line_buffering=by_line)
        self._lock = threading.RLock()
        self._is_amid_line = False
        sys.stdout = self

    def write(self, text: str) -> int:
        """Write, and remember whether that ends a line."""
        with self._lock:
            if text:
                self._is_amid_line = not text.endswith("\n")
            return super().write(text)

    def print_line(self, text: str, failure: str) -> None:
        """Print as `print_done` does."""
        with self._lock:
            if not self.closed:
                print_done(f"\n{text}" if self._is_amid_line else text, failure, self)
            elif sys.stdout is self:
                sys.stdout = _nowhere()
                print(f"beanlite: {failure}: stdout is closed", file=sys.stderr)


def _plain() -> io.TextIOWrapper:
    """Return the stdout that another object has taken the place of, unless it was closed before the start."""
    return _nowhere() if sys.__stdout__ is None else open(1, "w", encoding="utf-8", closefd=False)


def _nowhere() -> io.TextIOWrapper:
    return Path(os.devnull).open("w", encoding="utf-8")
