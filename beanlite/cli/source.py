"""What a command reads: a file, or stdin."""

import io
import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from beanlite.errors import BeanliteError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

STDIN: Final = Path("-")


def reader(file: Path, what: str = "") -> io.BufferedReader:
    """Open a file, or stdin as -, to be read. BeanliteError, now and whenever it is read: it can't be read.

    At a terminal ``what`` is said to be waited for.
    """
    return io.BufferedReader(_InputFile(file, what))


def has_more(source: io.BufferedReader | None) -> bool:
    """Return whether the next line is there, or at least something new, so that to read it is not to wait.

    None: everything has been read.
    """
    if source is None:
        return True
    file = source.raw
    assert isinstance(file, _InputFile)
    file.waits = False
    try:
        return b"\n" in source.peek() or file.is_readable()
    finally:
        file.waits = True


class _InputFile(io.FileIO):
    """A file whose errors are not mistaken for those of the database or of stdout."""

    waits = True
    """Whether a read waits for a pipe in which nothing is, or else tells so."""
    _ended = False
    """Nothing more comes. A terminal tells that once, and would then wait for more."""

    def __init__(self, file: Path, what: str) -> None:
        self._name = "stdin" if file == STDIN else str(file)
        with self._reading():
            if file == STDIN:
                if sys.stdin.isatty():
                    source = f"{what} from the terminal".strip()
                    print(f"reading {source}, until Ctrl-D at the beginning of a line", file=sys.stderr)
                super().__init__(sys.stdin.fileno(), closefd=False)
                os.set_blocking(self.fileno(), True)  # otherwise a pause in a pipe would pass for its end
            else:
                super().__init__(file)

    def is_readable(self) -> bool:
        """Return whether a read need not wait."""
        return self._ended or bool(select.select([self], [], [], 0)[0])

    def readinto(self, buffer: "WriteableBuffer", /) -> int | None:
        if self._ended:
            return 0
        with self._reading():
            if not self.waits and not self.is_readable():
                return None
            count = super().readinto(buffer)
            self._ended = count == 0 and not self.seekable()
        return count

    def readall(self) -> bytes:
        with self._reading():
            return super().readall()

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise BeanliteError(f"{self._name} can't be read: {error.strerror}") from error
