"""Checks the frames of a -wal one by one. Their checksums are chained, so SQLite reads nothing behind a damaged one.

The format is described at https://sqlite.org/fileformat.html and https://sqlite.org/walformat.html.
"""

import struct
from math import inf
from pathlib import Path
from typing import Final

from beanlite.journal.sqlite.file.fileformat import PAGE_SIZE, read_at, wal_of
from beanlite.journal.sqlite.file.wal import commit_frames, last_frame_offset, read_salts

_WAL_HEADER_BYTES: Final = 32
_FRAME_HEADER_BYTES: Final = 24


def damaged_frames(path: Path, wal: int) -> dict[int, int]:
    """Return the committed frames in an open -wal that are not as they were written.

    By the offset of its page, each has the number of that page, if it can be read. JournalUnreadable: none can be read.
    """
    commits = commit_frames(path)
    if not commits:
        return {}
    salts = read_salts(wal)
    before = read_at(wal, _WAL_HEADER_BYTES, 0)[-8:] if salts else None
    salts = salts or read_at(wal, _FRAME_HEADER_BYTES, last_frame_offset(commits[-1]))[8:16]
    damaged: dict[int, int] = {}
    for number in range(1, commits[-1] + 1):
        at = last_frame_offset(number)
        try:
            frame = read_at(wal, _FRAME_HEADER_BYTES + PAGE_SIZE, at)
        except OSError:
            frame = b""
        head, page = frame[:_FRAME_HEADER_BYTES], frame[_FRAME_HEADER_BYTES:]
        if head[8:16] != salts or len(page) < PAGE_SIZE or not _follows(before, head, page):
            damaged[at + _FRAME_HEADER_BYTES] = int.from_bytes(head[:4])
        before = head[16:] if len(page) == PAGE_SIZE else None
    return damaged


def count_commits(path: Path) -> tuple[int, int]:
    """Return how many commits are in the -wal, and how many of them are not before the first damaged frame.

    JournalUnreadable: none can be read. OSError: the -wal can't be opened.
    """
    try:
        with wal_of(path).open("rb", buffering=0) as wal:
            salts = read_salts(wal.fileno())
            commits = commit_frames(path, salts)
            damaged = damaged_frames(path, wal.fileno())
            if read_salts(wal.fileno()) != salts:  # the -wal was restarted meanwhile
                damaged = {}
    except FileNotFoundError:
        return 0, 0
    if salts is None:
        return len(commits), len(commits)
    sound_to = min(damaged, default=inf)
    return len(commits), sum(last_frame_offset(number) + _FRAME_HEADER_BYTES >= sound_to for number in commits)


def _follows(before: bytes | None, head: bytes, page: bytes) -> bool:
    """Whether the checksum of a frame is that of its content and of ``before``, the one before it, if that is known."""
    return before is None or any(_checksum(before, head[:8] + page, order) == head[16:] for order in "<>")


def _checksum(before: bytes, content: bytes, order: str) -> bytes:
    sum0, sum1 = struct.unpack(">II", before)
    words = struct.unpack(f"{order}{len(content) // 4}I", content)
    for word0, word1 in zip(words[::2], words[1::2], strict=True):
        sum0 = (sum0 + word0 + sum1) & 0xFFFFFFFF
        sum1 = (sum1 + word1 + sum0) & 0xFFFFFFFF
    return struct.pack(">II", sum0, sum1)
