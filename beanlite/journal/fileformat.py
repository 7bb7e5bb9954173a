"""Which files are ours, told from their first bytes before SQLite may touch them; and how a refusal is worded."""

import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from beanlite.errors import JournalRefused

APPLICATION_ID = 0x6265616E  # "bean"; says whose file it is, at byte 68
PAGE_SIZE = 4096

_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_WAL_MODE = b"\x02\x02"


def wal_of(path: Path) -> Path:
    """The name of the write-ahead log that SQLite keeps beside the database file."""
    return path.with_name(path.name + "-wal")


def shm_of(path: Path) -> Path:
    """The name of the index that SQLite keeps of the write-ahead log."""
    return path.with_name(path.name + "-shm")


def wal_size(path: Path) -> int:
    """Bytes in the write-ahead log of the database file; 0 if there is none."""
    try:
        return wal_of(path).stat().st_size
    except FileNotFoundError:
        return 0


def check_file(descriptor: int, path: Path, newest: int) -> None:
    """Raise JournalRefused unless the open file is empty, or ours and of a version up to `newest`.

    The offsets are those of SQLite's database header. What is in the -wal only is not seen here.
    """
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise JournalRefused(f"{path} is not a regular file; name another one")
    header = os.pread(descriptor, 100, 0)
    if not header:
        if wal_size(path):
            raise JournalRefused(
                f"{path} is missing or empty, but {wal_of(path)} is not; put back what belongs to that"
            )
        return
    if len(header) < 100 or not header.startswith(b"SQLite format 3\0"):
        raise JournalRefused(f"{path} is not an SQLite file; name another one")
    if int.from_bytes(header[68:72]) != APPLICATION_ID:
        raise JournalRefused(f"{path} is an SQLite database, but not one of beanlite's; name another one")
    check_version(path, int.from_bytes(header[60:64]), newest)
    if not wal_size(path):
        # With a -wal the file may rightly be short: a checkpoint that was cut off is repeated from there.
        page_size = int.from_bytes(header[16:18])
        size = page_size * int.from_bytes(header[28:32])
        if status.st_size < size:
            raise JournalRefused(f"{path} is damaged: {status.st_size} bytes are left of {size}; restore a backup")
    elif header[18:20] != _WAL_MODE:
        # SQLite would write the log's pages over it all the same. Backups are in this mode until they are first served.
        raise JournalRefused(f"{wal_of(path)} belongs to another file than {path}, as after a restore; remove it")


def check_version(path: Path, version: int, newest: int) -> None:
    """Raise JournalRefused if a file of this version is of a newer beanlite."""
    if version > newest:
        raise JournalRefused(f"{path} has version {version}, this beanlite knows {newest}; use a newer beanlite")


@contextmanager
def refused(path: Path) -> Iterator[None]:
    """Turn what SQLite raises about the file into JournalRefused."""
    try:
        yield
    except sqlite3.Error as error:
        # An error of Python's own layer has no code; an extended code has the plain one in its low byte.
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGE:
            raise JournalRefused(f"{path} is damaged ({error}); restore a backup") from error
        advice = "check the disk, and the owner and the mode of the file, its -wal and its -shm"
        raise JournalRefused(f"{path} can't be used: {error}; {advice}") from error
