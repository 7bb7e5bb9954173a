"""What a command reads: a file, or stdin."""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from beanlite.errors import BeanliteError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

STDIN: Final = Path("-")


def reader(file: Path, what: str = "") -> BinaryIO:
    """Open a file, or stdin as -, to be read. BeanliteError, now and whenever it is read: it can't be read.

    At a terminal ``what`` is said to be waited for.
    """
    return io.BufferedReader(_InputFile(file, what))


class _InputFile(io.FileIO):
    """A file whose errors are not mistaken for those of the database or of stdout."""

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

    def readinto(self, buffer: "WriteableBuffer", /) -> int | None:
        with self._reading():
            return super().readinto(buffer)

    def readall(self) -> bytes:
        with self._reading():
            return super().readall()

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise BeanliteError(f"{self._name} can't be read: {error.strerror}") from error
