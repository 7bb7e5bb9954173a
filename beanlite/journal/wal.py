"""A look at SQLite's write-ahead log before SQLite recovers it.

Recovery ends without a word at the first frame that is damaged. After a power failure that is the last one or a few:
what was not synced. But when whole batches follow that frame, it is the medium that has lost what was safe.
Only the headers of the frames are read, 24 bytes of each.
"""

import os
import struct
from collections import Counter
from pathlib import Path

from beanlite.errors import JournalRefused
from beanlite.journal.fileformat import PAGE_SIZE, wal_of

_FRAME = struct.Struct(">II8s8s")  # page number, size of the database after a commit else 0, salts, checksums
_HEADER_SIZE = 32
_BYTE_ORDERS = {0x377F0682: "<", 0x377F0683: ">"}


def commit_frames(path: Path) -> list[int]:
    """The numbers, from 1, of the frames in the log of the database file that end a transaction.

    To be called before SQLite opens the file. Frames left over from before the log was last started anew don't count.
    JournalRefused: the log can't be read.
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
    salts = _salts(header)
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
