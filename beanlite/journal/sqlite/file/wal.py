"""The format of SQLite's write-ahead log, the -wal, and of its index, the -shm; reads both before a recovery.

SQLite's recovery ends silently at the first damaged frame. After a power failure, that is one of the last frames, which
had not been synced. But if several complete batches follow that frame, the disk has lost data that had been synced.
Only the frame headers are read, 24 bytes each.
"""

import errno
import os
import struct
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from beanlite.errors import JournalUnreadable
from beanlite.journal.sqlite.file.fileformat import HEADER_BYTES, PAGE_SIZE, read_at, shm_of, wal_of

# The header of a frame: its page number; the size of the database if the frame ends a transaction, else 0; the salts;
# the checksums. See https://sqlite.org/fileformat.html and https://sqlite.org/walformat.html.
_FRAME_HEADER = struct.Struct(">II8s8s")
# A frame is its header and one page.
_FRAME_SIZE: Final = _FRAME_HEADER.size + PAGE_SIZE
# The -wal begins with a header of this size.
_HEADER_SIZE: Final = 32
# That header begins with one of two magic numbers, which give the byte order in which its checksums were computed.
_BYTE_ORDERS = {0x377F0682: "<", 0x377F0683: ">"}

# The -shm begins with two copies of this header: version, whether it is complete, frames, …, salts, checksums. It gives
# the number of committed frames, which no SQL statement returns without a checkpoint.
_INDEX_HEADER = struct.Struct("=I8xBxxxI12s8s8s")
_INDEX_HEADER_BYTES: Final = 48
# The counter of commits and the number of frames in that header.
_COUNTS: Final = struct.Struct("=8xI4xI").unpack_from
_COUNTS_END: Final = 20
# After the copies come the number of frames that have been moved into the file, and further on the number that the last
# checkpoint set out to move, which is written before it moves the first. This struct begins at the first copy's salts.
_SALTS_OFFSET: Final = 32
_PROGRESS = struct.Struct("=8s56xI28xI")
# The -shm grows in blocks of this size.
_INDEX_PART_BYTES: Final = 32 << 10
# A block has entries for this many frames.
_INDEX_PART_FRAMES: Final = 4096
# In the first block, the header takes the place of this many entries.
_INDEX_HEADER_FRAMES: Final = 34


# As a constant of this module, which compiled code need not look up.
_pread: Final = os.pread


class Index(NamedTuple):
    """The state of the -wal according to the -shm."""

    frames: int
    """The number of frames committed since the -wal was last restarted."""
    salts: bytes
    """The salts of these frames."""


class Progress(NamedTuple):
    """How far the frames have been moved into the file."""

    salts: bytes
    """The salts of these frames."""
    moved: int
    to_move: int
    """Greater than ``moved`` during a checkpoint, or after one that was interrupted."""

    @property
    def may_begin_anew(self) -> bool:
        """Whether the next commit may restart the -wal, or start the first one."""
        return self.to_move > 0 or not any(self.salts)


def min_wal_size(frames: int) -> int:
    """Return the minimum size in bytes of a -wal with this many frames."""
    return _HEADER_SIZE + frames * _FRAME_SIZE if frames else 0


def last_frame_offset(frames: int) -> int:
    """Return the offset of the last of this many frames."""
    return min_wal_size(frames) - _FRAME_SIZE


def index_size(frames: int) -> int:
    """Return the size in bytes of the -shm for a -wal of this many frames."""
    return (1 + (frames + _INDEX_HEADER_FRAMES) // _INDEX_PART_FRAMES) * _INDEX_PART_BYTES


def read_index_header(index: int) -> bytes:
    """Read the header of an open -shm. OSError: it can't be read."""
    return _pread(index, _INDEX_HEADER_BYTES, 0)


def counts_in(header: bytes) -> tuple[int, int]:
    """Return what the header of the -shm counts: commits, modulo 2 ** 32, and the committed frames."""
    if len(header) < _COUNTS_END:
        return 0, 0
    counts: tuple[int, int] = _COUNTS(header)
    return counts


def read_frame_count(index: int) -> int:
    """Read the number of committed frames from an open -shm. OSError: it can't be read."""
    return counts_in(read_index_header(index))[1]


def read_progress(index: int) -> Progress:
    """Read from an open -shm how far the -wal has been moved into the file. OSError: it can't be read."""
    data = read_at(index, _PROGRESS.size, _SALTS_OFFSET)
    if len(data) < _PROGRESS.size:
        raise OSError(errno.EIO, "its -shm is cut short")
    salts, moved, to_move = _PROGRESS.unpack(data)
    return Progress(salts, moved, to_move)


def read_index(path: Path) -> Index | None:
    """Read the -shm that a server has left; None if there is none, or if it was being written when the server died.

    To be called before SQLite opens the file, because SQLite then creates a new -shm.
    """
    try:
        with shm_of(path).open("rb", buffering=0) as index:
            return read_open_index(index.fileno())
    except FileNotFoundError:
        return None


def read_open_index(index: int) -> Index | None:
    """Read an open -shm; None if it is being written, or was being written when its server died."""
    size = _INDEX_HEADER.size
    header, copy = read_at(index, size, 0), read_at(index, size, size)
    if len(copy) < size or header != copy:
        return None
    _, is_complete, frames, _, salts, _ = _INDEX_HEADER.unpack(header)
    return Index(frames, salts) if is_complete else None


def has_its_own_index(path: Path) -> bool:
    """Whether SQLite may have an index of its own in memory, as where it may not write; the -shm may be older then."""
    return not all(os.access(each, os.W_OK, effective_ids=True) for each in (path.parent, shm_of(path)))


def commit_frames(path: Path, salts: bytes | None = None) -> list[int]:
    """Return the numbers, from 1, of the frames in the -wal of the database file that end a transaction.

    To be called before SQLite opens the file. Frames left over from before the -wal was last restarted don't count;
    with ``salts``, only frames with these salts count. JournalUnreadable: the -wal can't be read.
    """
    try:
        with wal_of(path).open("rb", buffering=0) as wal:
            salts = salts or _read_salts(read_at(wal.fileno(), _HEADER_SIZE, 0))
            if salts is None:
                # Without a valid header SQLite recovers nothing at all, so everything in the -wal counts as lost.
                counts = Counter(frame[2] for frame in _frames(wal.fileno())).most_common(1)
                salts = counts[0][0] if counts else b""
            # Not a list of all frames: after a reader has kept the -wal from shrinking, there may be millions.
            frames = enumerate(_frames(wal.fileno()), 1)
            return [number for number, (_, size, frame_salts, _) in frames if size and frame_salts == salts]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise JournalUnreadable(f"{wal_of(path)} can't be read: {error.strerror}") from error


def _frames(wal: int) -> Iterator[tuple[int, int, bytes, bytes]]:
    """Yield the headers of all frames in an open -wal, which may shrink meanwhile. OSError: it can't be read."""
    for start in range(_HEADER_SIZE, os.fstat(wal).st_size - _FRAME_SIZE + 1, _FRAME_SIZE):
        header = read_at(wal, _FRAME_HEADER.size, start)
        if len(header) < _FRAME_HEADER.size:
            return
        yield _FRAME_HEADER.unpack(header)


def headers_in(wal: int, salts: bytes) -> Iterator[bytes]:
    """Yield the headers of the database file in those frames of an open -wal that have these salts. Raises OSError."""
    for number, (page, _, frame_salts, _) in enumerate(_frames(wal), 1):
        if page == 1 and frame_salts == salts:
            yield read_at(wal, HEADER_BYTES, last_frame_offset(number) + _FRAME_HEADER.size)


def pages_in(wal: int) -> Iterator[bytes]:
    """Yield the pages in all frames of an open -wal, committed or not. OSError: it can't be read."""
    for number, _ in enumerate(_frames(wal), 1):
        yield read_at(wal, PAGE_SIZE, last_frame_offset(number) + _FRAME_HEADER.size)


def is_header_damaged(path: Path) -> bool:
    """Whether the -wal of the database file has frames, but no valid header. JournalUnreadable: it can't be read."""
    try:
        with wal_of(path).open("rb", buffering=0) as wal:
            has_frames = os.fstat(wal.fileno()).st_size >= min_wal_size(1)
            return has_frames and _read_salts(read_at(wal.fileno(), _HEADER_SIZE, 0)) is None
    except FileNotFoundError:
        return False
    except OSError as error:
        raise JournalUnreadable(f"{wal_of(path)} can't be read: {error.strerror}") from error


def newest_pages(path: Path) -> tuple[int, dict[int, int]]:
    """Open the -wal; returns its descriptor, or -1, and the offset of the last committed state of each page in it."""
    commits = commit_frames(path)
    if not commits:
        return -1, {}
    wal = os.open(wal_of(path), os.O_RDONLY | os.O_CLOEXEC)
    salts = [frame[2] for frame in islice(_frames(wal), commits[-1])]  # fewer if it shrinks meanwhile
    return wal, newest_in(wal, Index(len(salts), salts[-1])) if salts else {}


def newest_in(wal: int, index: Index) -> dict[int, int]:
    """Return the offset in an open -wal of the last state of each page in its committed frames."""
    return {
        page: last_frame_offset(number) + _FRAME_HEADER.size
        for number, (page, _, salts, _) in enumerate(islice(_frames(wal), index.frames), 1)
        if salts == index.salts
    }


def read_salts(wal: int) -> bytes | None:
    """Return the salts of an open -wal; None if it has no valid header. OSError: it can't be read."""
    return _read_salts(read_at(wal, _HEADER_SIZE, 0))


def _read_salts(header: bytes) -> bytes | None:
    """Return the salts of the frames that belong to this header; None if its magic number or its checksum is wrong."""
    order = _BYTE_ORDERS.get(int.from_bytes(header[:4]))
    if order is None or len(header) < _HEADER_SIZE:
        return None
    words = struct.unpack(f"{order}6I", header[:24])
    sum0 = sum1 = 0
    for word0, word1 in zip(words[::2], words[1::2], strict=True):
        sum0 = (sum0 + word0 + sum1) & 0xFFFFFFFF
        sum1 = (sum1 + word1 + sum0) & 0xFFFFFFFF
    return header[16:24] if struct.pack(">II", sum0, sum1) == header[24:] else None
