"""How far the -wal has grown while a server writes to it."""

from __future__ import annotations

import os
from typing import Final

from beanlite.journal.sqlite.wal import index_size, read_frame_count

# A checkpoint is due when this many frames (pages of 4 KiB) have been added to the -wal. Commits wait for a checkpoint,
# and the time it takes grows with their number.
CHECKPOINT_FRAMES: Final = 1000


class Frames:
    """Counts the frames of the -wal, and sees that its index, the -shm, has room for them."""

    def __init__(self, index: int) -> None:
        """``index``: a descriptor of the -shm."""
        self._index = index
        self._allocated = 0
        """How many the -shm has allocated blocks for."""
        self.committed = 0
        """How many the -wal had after the last commit."""
        self.added = 0
        """How many have been added since the last checkpoint."""
        self.at_checkpoint = 0
        """How many the -wal had at the last checkpoint."""
        self.pinned = False
        """A reader kept the last checkpoint from reaching the end of the -wal, which grows as long as that lasts."""

    @property
    def checkpoint_due(self) -> bool:
        """Whether the -wal has grown enough for a checkpoint."""
        return self.added >= CHECKPOINT_FRAMES

    def read(self) -> None:
        """Read how many there are, because another program has committed some. OSError."""
        self.committed = read_frame_count(self._index)

    def count(self) -> int:
        """Count what has just been committed; returns how many of the frames before it are still there. OSError."""
        before, now = self.committed, read_frame_count(self._index)
        # Fewer than before: all of them had been moved into the file, and SQLite has begun the -wal anew.
        self.added += now - before if now >= before else now
        self.committed = now
        return min(before, now)

    def allocate(self, frames: int) -> None:
        """Allocate the blocks that the -shm needs for this many more frames. OSError: there is no room for them.

        SQLite itself allocates one block for every 4 KiB. Where blocks are smaller and the disk is full, the process
        would die of SIGBUS when it writes to one that has not been allocated.
        """
        frames += self.committed
        if frames > self._allocated:
            os.posix_fallocate(self._index, 0, index_size(frames))
            self._allocated = frames

    def begin_checkpoint(self) -> None:
        """A checkpoint begins: count anew towards the next one."""
        self.added = 0

    def end_checkpoint(self, frames: int, moved: int) -> None:
        """A checkpoint has ended; the -wal has this many frames, and this many of them have been moved."""
        self.at_checkpoint = frames
        self.pinned = moved < frames
