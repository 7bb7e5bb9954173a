"""A look at SQLite's write-ahead log before SQLite recovers it.

Recovery ends without a word at the first frame that is damaged. After a power failure that is the last one or a few:
what was not synced. But when whole batches follow that frame, it is the medium that has lost what was safe.
Only the headers of the frames are read, 24 bytes of each.
"""

import os
import struct
import sys
from collections import Counter
from pathlib import Path
from typing import Final, NamedTuple

from beanlite.errors import JournalRefused
from beanlite.journal.sqlite.fileformat import PAGE_SIZE, shm_of, wal_of

_FRAME = struct.Struct(">II8s8s")  # page number, size of the database after a commit else 0, salts, checksums
_HEADER_SIZE = 32
_BYTE_ORDERS = {0x377F0682: "<", 0x377F0683: ">"}
# The -shm, SQLite's index of the log (https://sqlite.org/walformat.html), begins with two copies of a header. In it is
# how many frames are committed: no statement tells that without a checkpoint.
_INDEX = struct.Struct("=I8xBxxxI12s8s8s")  # version, whether it is made, frames, ..., salts, checksums
_FRAMES_AT: Final = 16
_FRAMES_BYTES: Final = 4


# It grows by so much at a time, for so many frames; the first part has the header, too, and so a few less.
_INDEX_PART_BYTES: Final = 32 << 10
_INDEX_PART_FRAMES: Final = 4096
_INDEX_HEADER_FRAMES: Final = 34


class Index(NamedTuple):
    """What the -shm says of the log."""

    frames: int
    """Committed since the log was last begun anew."""
    salts: bytes
    """What marks these."""


def log_bytes(frames: int) -> int:
    """How large a log of so many frames is at least."""
    return _HEADER_SIZE + frames * (_FRAME.size + PAGE_SIZE) if frames else 0


def last_frame_at(frames: int) -> int:
    """Where the last one of so many frames begins."""
    return log_bytes(frames) - _FRAME.size - PAGE_SIZE


def index_bytes(frames: int) -> int:
    """How large the index of a log of so many frames is."""
    return (1 + (frames + _INDEX_HEADER_FRAMES) // _INDEX_PART_FRAMES) * _INDEX_PART_BYTES


def frames_of(index: int) -> int:
    """How many frames of the log are committed, by its index, of which this is a descriptor."""
    return int.from_bytes(os.pread(index, _FRAMES_BYTES, _FRAMES_AT), sys.byteorder)


def read_index(path: Path) -> Index | None:
    """The index that a server has left behind; None if there is none, or it was just being written.

    To be called before SQLite opens the file, which makes a new one.
    """
    try:
        with shm_of(path).open("rb", buffering=0) as index:
            header, copy = index.read(_INDEX.size), index.read(_INDEX.size)
    except FileNotFoundError:
        return None
    if len(copy) < _INDEX.size or header != copy:
        return None
    _, is_made, frames, _, salts, _ = _INDEX.unpack(header)
    return Index(frames, salts) if is_made else None


def commit_frames(path: Path, salts: bytes | None = None) -> list[int]:
    """The numbers, from 1, of the frames in the log of the database file that end a transaction.

    To be called before SQLite opens the file. Frames left over from before the log was last started anew don't count,
    nor, if `salts` are given, any others than theirs. JournalRefused: the log can't be read.
    """
    frame_size = _FRAME.size + PAGE_SIZE
    try:
        with wal_of(path).open("rb", buffering=0) as log:
            header = log.read(_HEADER_SIZE)
            starts = range(_HEADER_SIZE, os.fstat(log.fileno()).st_size - frame_size + 1, frame_size)
            frames = [_FRAME.unpack(os.pread(log.fileno(), _FRAME.size, start)) for start in starts]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise JournalRefused(f"{wal_of(path)} can't be read: {error.strerror}") from error
    salts = salts or _salts(header)
    if salts is None and frames:
        # Without its header SQLite recovers nothing of a log, so all that is in it counts.
        salts = Counter(frame[2] for frame in frames).most_common(1)[0][0]
    return [number for number, (_, size, frame_salts, _) in enumerate(frames, 1) if size and frame_salts == salts]


def _salts(header: bytes) -> bytes | None:
    """What marks the frames that belong to this header; None if its magic number or its checksum is wrong."""
    order = _BYTE_ORDERS.get(int.from_bytes(header[:4]))
    if order is None or len(header) < _HEADER_SIZE:
        return None
    words = struct.unpack(f"{order}6I", header[:24])
    sum0 = sum1 = 0
    for word0, word1 in zip(words[::2], words[1::2], strict=True):
        sum0 = (sum0 + word0 + sum1) & 0xFFFFFFFF
        sum1 = (sum1 + word1 + sum0) & 0xFFFFFFFF
    return header[16:24] if struct.pack(">II", sum0, sum1) == header[24:] else None
