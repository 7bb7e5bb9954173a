"""Recognises a -wal beside a file to which it does not belong, because a copy was put in the place of its own.

A backup is not in WAL mode before it is first served, so a -wal beside one is not its own. Any other copy may look as
if it were: SQLite would put the -wal into it, which damages it, or undoes what the copy was meant to bring back.

So the server notes on the -wal what the header of its file was when the -wal was begun. Until it is begun anew, that
header changes only when frames are moved into the file, and then it is one of those in the frames. Any other header is
that of another file. Each start changes the header, so that the file is not the same as a copy that was made while it
was stopped; afterwards the header changes with the size of the file and of the free space in it.

The note is an extended attribute, as is the mark. Where there is none, as on a copy of the -wal, nothing is known; nor
is anything after a power failure, which may leave an older state of one of the files.
"""

import contextlib
import os
import re
import sqlite3
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple

from beanlite.journal.sqlite.file.fileformat import (
    APPLICATION_ID,
    HEADER_BYTES,
    WAL_MODE,
    journal_of,
    read_at,
    wal_of,
    wal_size,
)
from beanlite.journal.sqlite.file.mark import ATTRIBUTE, boot_id
from beanlite.journal.sqlite.file.wal import headers_in, read_salts

# Sets what is set already, but SQLite counts it as a change of the header.
CHANGE_HEADER: Final = f"PRAGMA application_id = {APPLICATION_ID}"


class _Note(NamedTuple):
    """The contents of the attribute: these values, in this order, separated by spaces."""

    inode: int
    """The inode number of the -wal; a copy that includes the attribute has a different one."""
    boot_id: str
    """The kernel's boot id."""
    salts: str
    """Those of the -wal, in hexadecimal: they change when it is begun anew, or when another one is copied over it."""
    base: str
    """What the header of the file was when the -wal was begun."""
    promised_id: int
    """No id above it had been given out then; later promises are in the -wal."""

    @classmethod
    def read(cls, wal: int) -> "_Note | None":
        """Read the note on an open -wal; None if there is none that belongs to it."""
        try:
            inode, boot, salts, base, promised_id = os.getxattr(wal, ATTRIBUTE).decode().split(" ")
            note = cls(int(inode), boot, salts, base, int(promised_id))
        except (OSError, ValueError):  # there is none, or there can't be one
            return None
        return note if note == _note(wal, base, note.promised_id) else None


def _note(wal: int, base: str, promised_id: int) -> _Note | None:
    salts, boot = read_salts(wal), boot_id()
    return None if salts is None or boot is None else _Note(os.fstat(wal).st_ino, boot, salts.hex(), base, promised_id)


def _changing(header: bytes) -> str:
    """Return what changes in a header, in hexadecimal: SQLite's count of changes, pages, free pages, and the schema."""
    return header[24:44].hex()


class Tie:
    """Keeps the note on a -wal right while a server writes to it."""

    def __init__(self, connection: sqlite3.Connection, file: int, wal: int) -> None:
        """``file`` and ``wal`` are file descriptors of the file and its -wal."""
        self._db = connection
        self._file = file
        self._wal = wal
        self.base: str | None = None
        """The header of the file, if all frames have been moved into it: the next commit begins the -wal anew."""

    def begin(self) -> None:
        """Move the changed header into the file, as far as readers allow. Raises sqlite3.Error or OSError."""
        try:
            _, frames, count = self._db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF not in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_FULL}:
                raise
            return
        self.note_checkpoint(frames, count)

    def note_checkpoint(self, frames: int, moved: int) -> None:
        """To be called after a checkpoint that has moved ``moved`` of the frames. OSError: the file can't be read."""
        self.base = _changing(read_at(self._file, HEADER_BYTES, 0)) if 0 <= frames == moved else None

    def note_commit(self, promised_id: int, others_came: Callable[[], bool]) -> None:
        """To be called after a commit if ``base`` is set. OSError: the -wal can't be read.

        ``others_came``: other programs have committed something as well, and that may have been moved into the file.
        """
        base, self.base = self.base, None
        if base is None:
            return
        note = _note(self._wal, base, promised_id)
        if note is not None and not others_came():  # in this order: they may come in between, and begin it anew
            with contextlib.suppress(OSError):  # not supported, or no room: nothing is known then
                os.setxattr(self._wal, ATTRIBUTE, " ".join(map(str, note)).encode())


def has_stray_wal(file: int, path: Path) -> bool:
    """Whether the -wal beside an open file of ours belongs to another file. OSError: the -wal can't be read.

    To be called before SQLite opens the file, since its locks would be lost.
    """
    header = read_at(file, HEADER_BYTES, 0)
    if not header or not wal_size(path) or journal_of(path).exists():
        return False
    if header[18:20] != WAL_MODE:
        return True
    try:
        wal = os.open(wal_of(path), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:  # its server has just stopped
        return False
    try:
        note = _Note.read(wal)
        if note is None:
            return False
        possible = chain([note.base], map(_changing, headers_in(wal, bytes.fromhex(note.salts))))
        if _changing(header) in possible:
            return False
        # Otherwise a server is writing to them.
        return _Note.read(wal) == note and read_at(file, HEADER_BYTES, 0) == header
    finally:
        os.close(wal)


def moved_away(path: Path) -> Path | None:
    """Return the stray -wal that a restore moved away before it was killed; None if there is none.

    The file is still the one to which it does not belong: until it is replaced, the partial file of the restore is
    there. OSError: the folder can't be read.
    """
    names = os.listdir(path.parent)  # noqa: PTH208 - names are all that is needed
    for name in names:
        match = re.fullmatch(rf"{re.escape(path.name)}\.replaced-([-.\w]+)\.stray-wal", name)
        if match is not None:
            partial = f".{path.name}.restored-{match[1]}."
            if any(other.startswith(partial) and other.endswith(".partial") for other in names):
                return path.with_name(name)
    return None


def forget(wal: int) -> None:
    """Remove the note from an open -wal."""
    with contextlib.suppress(OSError):  # there is none, or there can't be one
        os.removexattr(wal, ATTRIBUTE)


def promised_id_on(wal: Path) -> int:
    """Return the promise noted on a -wal; 0 if there is none. OSError: it can't be read."""
    with wal.open("rb", buffering=0) as opened:
        note = _Note.read(opened.fileno())
    return 0 if note is None else note.promised_id
