"""Prints to a stdout that may be on a full disk, or have lost its reader."""

import contextlib
import io
import os
import select
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

# The file descriptor of stdout.
_NUMBER: Final = 1


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


class SharedStdout:
    """The stdout of a process in which other code prints as well; what `print_line` prints has a line of its own.

    Other code may keep the stream from either of its names, close it, or put another one in its place: a line does not
    depend on the stream, but on the file descriptor.
    """

    def __init__(self) -> None:
        """Become the stdout of the process until `__exit__`."""
        self._before = sys.stdout, sys.__stdout__
        before = sys.stdout if isinstance(sys.stdout, io.TextIOWrapper) else _plain()
        before.flush()
        self._file = _SharedFile()
        self._thread = ThreadPoolExecutor(1, "stdout")
        # As Python has it: a stdout that writes through has no buffer.
        buffer: Any = self._file if before.write_through else io.BufferedWriter(self._file)
        self._stream = _Unclosed(
            buffer,
            before.encoding,
            before.errors,
            line_buffering=before.line_buffering,
            write_through=before.write_through,
        )
        sys.stdout = sys.__stdout__ = self._stream  # type: ignore[misc]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Print what is still buffered, and be the stdout no more."""
        for stream in (sys.stdout, self._stream):
            with contextlib.suppress(Exception):  # whatever other code has made of it
                stream.flush()
        sys.stdout, sys.__stdout__ = self._before  # type: ignore[misc]

    def print_line(self, text: str, failure: str) -> "Future[None]":
        """Print as `print_done` does, behind the lines before it; return at once, however long nobody reads them."""
        return self._thread.submit(self._print, text, failure)

    def _print(self, text: str, failure: str) -> None:
        try:
            with contextlib.suppress(ValueError):  # other code has detached it, or closed its buffer
                self._stream.flush()
            self._file.write_line(f"{text}\n".encode())
        except OSError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), _NUMBER)
            if not isinstance(error, BrokenPipeError):
                print(f"beanlite: {failure}: {error.strerror}", file=sys.stderr)


def _plain() -> io.TextIOWrapper:
    """Return a stream in the place of an object that is none."""
    return open(_NUMBER, "w", encoding="utf-8", closefd=False)


class _Unclosed(io.TextIOWrapper):
    """A stream that remains open for what else prints."""

    mode = "w"

    def close(self) -> None:
        self.flush()


class _SharedFile(io.FileIO):
    """The file descriptor of stdout. It knows whether what was written last ends a line."""

    def __init__(self) -> None:
        super().__init__(_NUMBER, "w", closefd=False)
        self.name = "<stdout>"  # as Python calls it
        self._lock = threading.RLock()  # a handler of a signal may print amid a print
        self._is_amid_line = False
        os.register_at_fork(after_in_child=self._unlock)

    def write(self, data: "ReadableBuffer", /) -> int:
        """Write all of it."""
        with self._lock:
            return self._write(bytes(data))

    def write_line(self, line: bytes) -> None:
        """Write a line, and end the one before it first."""
        with self._lock:
            self._write(b"\n" + line if self._is_amid_line else line)

    def _write(self, data: bytes) -> int:
        rest = memoryview(data)
        while rest:
            try:
                count = os.write(_NUMBER, rest)
            except BlockingIOError:  # another process has made the terminal or pipe non-blocking
                select.select([], [_NUMBER], [])
                continue
            self._is_amid_line = rest[count - 1] != ord("\n")
            rest = rest[count:]
        return len(data)

    def _unlock(self) -> None:
        """Have a lock in a child that no thread of its parent holds."""
        self._lock = threading.RLock()
