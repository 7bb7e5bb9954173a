"""A note as a row of a database: the id of its job, and its text."""

from typing import Final
from zlib import crc32

from beanlite.core.notes import NOTE_MAX, is_note
from beanlite.journal.columns import as_list
from beanlite.journal.validity import COUNTER_MAX, is_number

NAMES: Final = ("id", "note")
COLUMNS: Final = as_list(NAMES)
_ID_BYTES: Final = 8


def note_of(job_id: object, text: object) -> tuple[int, bytes]:
    """Return the note with these values of the columns. ValueError: no server writes such a row."""
    if not (is_number(job_id, COUNTER_MAX) and isinstance(text, str)):
        raise ValueError("a note has the id of a job, and a text")
    note = text.encode(errors="surrogateescape")
    if not note or len(note) > NOTE_MAX or not is_note(note):
        raise ValueError(f"the note of job {job_id} is no text of 1 to {NOTE_MAX} bytes")
    return job_id, note


def checksum_of_note(job_id: int, note: bytes) -> int:
    """Return the checksum of a row."""
    return crc32(note, crc32(job_id.to_bytes(_ID_BYTES, "little")))
