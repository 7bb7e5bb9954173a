"""A stderr that never blocks: lines that do not fit are lost, and counted.

Otherwise a pipe that is not read, or a terminal stopped by Ctrl-S, would block the server at its next line, for good.
"""

import io
import os
import select
import sys
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

# How long the last line of a process waits for room.
LAST_WORDS_S: Final = 1.0
# The file descriptor of stderr.
_NUMBER: Final = 2


class Stderr(io.FileIO):
    """A non-blocking writer for the file descriptor of stderr, or for another one."""

    def __init__(self, descriptor: int) -> None:
        terminal = _terminal(descriptor)
        super().__init__(descriptor if terminal is None else terminal, "w", closefd=terminal is not None)
        self._amid_line = False
        """The last line was written in part."""
        self.lost_lines = 0
        """How many lines were lost in whole or in part; the log reports them."""
        self.wait_s = 0.0
        """How long a write may wait for room."""

    def write(self, data: "ReadableBuffer", /) -> int:
        """Accept all data, and write as much of it as fits."""
        text = bytes(data)
        rest = b"\n" + text if self._amid_line else text
        room = select.poll()
        room.register(self, select.POLLOUT)
        until_s = time.monotonic() + self.wait_s
        try:
            while rest and room.poll(max(0.0, until_s - time.monotonic()) * 1000):
                count = super().write(rest[: select.PIPE_BUF])  # a pipe that has room takes at least this much
                if not count:  # a terminal, which may have room for less than that
                    break
                self._amid_line = not rest[:count].endswith(b"\n")
                rest = rest[count:]
        except OSError:  # the reader has gone, or it is a file on a full disk
            pass
        if rest:
            self.lost_lines += rest[-len(text) :].count(b"\n")
        else:
            self._amid_line = False
        return len(text)


def _terminal(descriptor: int) -> int | None:
    """Open the terminal of a descriptor again, non-blocking; other processes that write to it are not affected.

    Returns None if the descriptor is not a terminal that can be opened.
    """
    try:
        return os.open(os.ttyname(descriptor), os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:  # not a terminal, or another user's
        return None


def open_closed() -> None:
    """Open stdin and stdout if they are closed: stdin as one that is at its end, stdout as one that nobody reads.

    Python has None for them, which can't be asked for anything; and the next file to be opened would get their number.
    """
    for name, number, mode in (("stdin", 0, "r"), ("stdout", 1, "w")):
        if getattr(sys, name) is None:
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 - for good


def install() -> None:
    """Make it Python's stderr, for the log, tracebacks and whatever else is printed."""
    if sys.stderr is None:  # closed: if the database got its number, a library could write messages into the file
        os.dup2(os.open(os.devnull, os.O_WRONLY), _NUMBER)
        encoding, errors = "utf-8", "backslashreplace"
    else:
        encoding, errors = sys.stderr.encoding, sys.stderr.errors or "strict"
    sys.stderr = io.TextIOWrapper(Stderr(_NUMBER), encoding, errors, line_buffering=True)


def last_words(text: str) -> None:
    """Print the last line of a process, which waits a little for room."""
    file = getattr(sys.stderr, "buffer", None)
    if isinstance(file, Stderr):
        file.wait_s = LAST_WORDS_S
    print(text, file=sys.stderr, flush=True)  # noqa: T201 - for the operator
