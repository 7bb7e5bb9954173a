"""Reads bodies back while the server runs, on a separate connection and thread.

No other clients wait while the disk is read. Many bodies are read as one row, because the thread has to reacquire the
GIL after each row, which takes long while clients are busy.
"""

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from zlib import crc32

import aiosqlite

from beanlite.errors import JournalFailed
from beanlite.journal.sqlite.file.fileformat import WHAT_TO_DO, failing, refused

# Bodies per row: few for a client that waits, many for read-ahead. SQLite joins up to 64 tables, and returns a body
# from a joined table without an additional copy.
_FEW: Final = 4
_MANY: Final = 30
_COLUMNS: Final = 3
# The page cache of this connection, in KiB. Bodies are read only once, so a cache is of little use.
_CACHE_KIB: Final = 512


def _select(number: int) -> str:
    places = range(1, number + 1)
    columns = ", ".join(f"j{place}.crc32, j{place}.body, b{place}.body" for place in places)
    joins = " ".join(
        f"LEFT JOIN jobs j{place} ON j{place}.id = ?{place} LEFT JOIN bodies b{place} ON b{place}.id = ?{place}"
        for place in places
    )
    return f"SELECT {columns} FROM (SELECT 1) {joins}"


_SELECT: Final = {number: _select(number) for number in (_FEW, _MANY)}


class BodyReader:
    """A connection that only reads bodies."""

    def __init__(self, path: Path) -> None:
        """Open the file, which reads its first page. Raises JournalRefused."""
        self._path = path
        with refused(path):
            connection = sqlite3.connect(
                f"{path.as_uri()}?mode=ro", uri=True, isolation_level=None, check_same_thread=False
            )
            connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
            connection.execute("PRAGMA mmap_size = 0")
        # An error in the connector would be reported to a loop that is closed by then.
        self._connection = aiosqlite.Connection(lambda: connection, iter_chunk_size=64)

    async def open(self) -> None:
        """Start the thread; to be called once."""
        await self._connection

    async def read(self, ids: Sequence[int]) -> list[bytes | None]:
        """Read the bodies of these jobs, None for a job that is gone. JournalFailed: a body is not what was put."""
        bodies: list[bytes | None] = []
        for at in range(0, len(ids), _MANY):
            part = ids[at : at + _MANY]
            number = _FEW if len(part) <= _FEW else _MANY
            parameters = (*part, *[None] * (number - len(part)))
            with failing(self._path):
                ((*row,),) = await self._connection.execute_fetchall(_SELECT[number], parameters)
            for job_id, checksum, inline, large in zip(
                part, row[::_COLUMNS], row[1::_COLUMNS], row[2::_COLUMNS], strict=False
            ):
                body = inline if inline is not None else large
                if checksum is not None and (not isinstance(body, bytes) or crc32(body) != checksum):
                    raise JournalFailed(f"the body of job {job_id} in {self._path} has changed; {WHAT_TO_DO}")
                bodies.append(body)
        return bodies

    async def close(self) -> None:
        """Close the file."""
        await self._connection.close()
