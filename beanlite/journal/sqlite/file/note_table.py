"""The notes in the file."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from beanlite.journal.note_rows import COLUMNS, checksum_of_note, note_of
from beanlite.journal.sqlite.file.fileformat import damaged, refused
from beanlite.journal.sqlite.file.migrations import read_version

SET_NOTE: Final = f"REPLACE INTO notes ({COLUMNS}, crc32) VALUES (?, ?, ?)"
UNSET_NOTE: Final = "DELETE FROM notes WHERE id = ?"

# The first version with this table.
_HAS_NOTES: Final = 7
_NOTES: Final = f"SELECT {COLUMNS}, crc32 FROM notes ORDER BY id"
_STRAY: Final = "SELECT id FROM notes WHERE id NOT IN (SELECT id FROM jobs) LIMIT 1"
# How many notes are read at a time.
_CHUNK: Final = 1000


def row_of_note(job_id: int, note: bytes) -> tuple[int, str, int]:
    """Return the values of the columns, the last of which is the checksum of the others."""
    return job_id, note.decode(), checksum_of_note(job_id, note)


def read_notes(connection: sqlite3.Connection, path: Path) -> Iterator[list[tuple[int, bytes]]]:
    """Read all notes, in lists. JournalRefused: the file is damaged."""
    with refused(path):
        if read_version(connection) < _HAS_NOTES:
            return
        rows = connection.execute(_NOTES)
        while chunk := rows.fetchmany(_CHUNK):
            notes = []
            for job_id, text, checksum in chunk:
                try:
                    note = note_of(job_id, text)
                except ValueError as error:
                    raise damaged(path, str(error)) from error
                if checksum_of_note(*note) != checksum:
                    raise damaged(path, f"the note of job {job_id} has changed")
                notes.append(note)
            yield notes


def check_notes(connection: sqlite3.Connection, path: Path) -> int:
    """Return how many notes there are. JournalRefused: one has changed, or has no job."""
    count = sum(map(len, read_notes(connection, path)))
    if count:
        with refused(path):
            stray = connection.execute(_STRAY).fetchone()
        if stray is not None:
            raise damaged(path, f"the note of job {stray[0]} has no job")
    return count
