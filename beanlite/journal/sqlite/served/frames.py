"""Tracks the growth of the -wal while a server writes to it."""

import os
from typing import Final

from beanlite.journal.sqlite.file.wal import counts_in, index_size, read_index_header

# A checkpoint is due when this many frames (pages of 4 KiB) have been added to the -wal. Commits wait for a checkpoint,
# and the time it takes grows with their number.
CHECKPOINT_FRAMES: Final = 1000
# A -wal of more frames than this (200 MB) is worth a warning if a reader keeps it from shrinking.
_FRAMES_MAX: Final = 50_000
# The counter of commits goes around after so many.
_COMMITS: Final = 1 << 32


class Frames:
    """The frames of the -wal: their count, and room for them in its index, the -shm."""

    def __init__(self, index: int) -> None:
        """``index`` is a file descriptor of the -shm."""
        self._index = index
        self._allocated = 0
        """The number of frames for which the -shm has allocated blocks."""
        self.committed = 0
        """The number of frames in the -wal after the last commit."""
        self.added = 0
        """The number of frames added since the last checkpoint."""
        self.at_checkpoint = 0
        """The number of frames in the -wal at the last checkpoint."""
        self.pinned = False
        """A reader kept the last checkpoint from reaching the end of the -wal, which grows as long as this goes on."""
        self._at_warning = 0
        """The number of frames at the last warning of that; 0: none since the -wal shrank."""
        self._header = b""
        """The header of the -shm when only known commits had been made; empty: SQLite has to be asked."""
        self._commits = 0
        """The number of commits in that header."""

    @property
    def checkpoint_due(self) -> bool:
        """Whether the -wal has grown enough for a checkpoint."""
        return self.added >= CHECKPOINT_FRAMES

    def are_ours(self) -> bool:
        """Whether all frames are those that were counted last; to be called in a transaction. Raises OSError.

        Each commit changes the header of the -shm, and reading that is much cheaper than asking SQLite. False proves
        nothing: SQLite has to be asked, and ``trust`` called.
        """
        return read_index_header(self._index) == self._header

    def trust(self) -> None:
        """Note that SQLite has been asked about all frames so far; to be called in a transaction. Raises OSError."""
        self._header = read_index_header(self._index)
        self._commits, _ = counts_in(self._header)

    def read(self) -> None:
        """Read the number of frames, because another program has committed some. Raises OSError."""
        _, self.committed = counts_in(read_index_header(self._index))

    def distrust(self) -> None:
        """Have SQLite asked before the next batch, since others' commits before the next ``count`` are not noticed."""
        self._header = b""

    def count(self) -> int:
        """Count the frames of the last commit; returns how many of the earlier frames remain. Raises OSError."""
        known, header = self._header, read_index_header(self._index)
        commits, now = counts_in(header)
        only_one = header == known or commits == (self._commits + 1) % _COMMITS
        self._header = header if known and only_one else b""  # else another program may have committed after us
        self._commits = commits
        before = self.committed
        # Fewer than before: all frames had been moved into the file, and SQLite has restarted the -wal.
        self.added += now - before if now >= before else now
        self.committed = now
        return min(before, now)

    def allocate(self, frames: int) -> None:
        """Allocate the blocks that the -shm needs for this many more frames. OSError: there is no room for them.

        SQLite itself only allocates one block in every 4 KiB. Where blocks are smaller and the disk is full, the
        process would die of SIGBUS on writing to a block that has not been allocated.
        """
        frames += self.committed
        if frames > self._allocated:
            os.posix_fallocate(self._index, 0, index_size(frames))
            self._allocated = frames

    def begin_checkpoint(self) -> None:
        """Note that a checkpoint begins: start counting towards the next one."""
        self.added = 0

    def end_checkpoint(self, frames: int, moved: int) -> None:
        """Note that a checkpoint has ended: the -wal has ``frames`` frames, and ``moved`` of them have been moved.

        Both are -1 if nothing could be moved because another program holds the lock that a checkpoint takes.
        """
        if frames < 0:
            frames, moved = self.committed, 0
        self.at_checkpoint = frames
        self.pinned = moved < frames

    def is_warning_due(self) -> bool:
        """Whether a warning is due that a reader keeps the -wal from shrinking: each time that it has doubled."""
        if self.at_checkpoint <= _FRAMES_MAX:
            self._at_warning = 0
        elif self.pinned and self.at_checkpoint >= 2 * self._at_warning:
            self._at_warning = self.at_checkpoint
            return True
        return False
