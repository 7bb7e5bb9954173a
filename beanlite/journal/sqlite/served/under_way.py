"""What is under way in the file."""

import time
from typing import Final

IDLE: Final = 0
WRITING: Final = 1
SYNCING: Final = 2
TELLING: Final = 3
UPKEEP: Final = 4
APART: Final = 5


class UnderWay:
    """The one thing that uses the writer: a batch that is being committed, or upkeep that takes long.

    While a batch is only being synced, the writer itself is free, and upkeep that is done in slices continues.
    """

    __slots__ = ("batch", "began_s", "body_bytes", "jobs", "last_id", "since_s", "what")

    def __init__(self) -> None:
        self.what = IDLE
        """IDLE; or WRITING, SYNCING or TELLING of a batch; or APART, its WRITING in the worker thread; or UPKEEP."""
        self.since_s = time.monotonic()
        """Since when."""
        self.batch = 0
        """The number of the batch, if it is one; of the last one otherwise."""
        self.last_id = 0
        """The last id in it."""
        self.jobs = 0
        """How many jobs it has changed."""
        self.body_bytes = 0
        """The size of its large bodies, and of those that its history keeps."""
        self.began_s = self.since_s
        """When it began to be written."""

    @property
    def busy(self) -> bool:
        """Whether no batch may be written."""
        return self.what != IDLE

    @property
    def syncing(self) -> bool:
        """Whether a batch is being synced."""
        return self.what == SYNCING

    @property
    def working(self) -> bool:
        """Whether a thread is at work in the file."""
        return self.what in {APART, UPKEEP}

    @property
    def may_write(self) -> bool:
        """Whether a slice may be written, provided that it is finished before control returns to the loop."""
        return self.what in {IDLE, SYNCING}

    @property
    def for_s(self) -> float:
        """For how many seconds it has been under way."""
        return time.monotonic() - self.since_s

    def write(self, batch: int, last_id: int) -> None:
        """Note that a batch is about to be written."""
        self.what = WRITING
        self.batch = batch
        self.last_id = last_id
        self.began_s = self.since_s = time.monotonic()

    def write_apart(self) -> None:
        """Note that the worker thread begins to write the batch."""
        self.what = APART

    def wait(self) -> None:
        """Note that the batch could not be written, and waits for another program or for room on the disk."""
        self.what = WRITING

    def sync(self) -> None:
        """Note that the batch is about to be synced."""
        self.what = SYNCING
        self.since_s = time.monotonic()

    def tell(self) -> float:
        """Note that the batch is durable and its clients are about to be told; return how long its sync took."""
        now_s = time.monotonic()
        took_s = now_s - self.since_s
        self.what = TELLING
        self.since_s = now_s
        return took_s

    def keep_up(self) -> None:
        """Note that upkeep begins, during which no batch may be written."""
        self.what = UPKEEP
        self.since_s = time.monotonic()

    def end(self) -> None:
        """Note that nothing is under way any more."""
        self.what = IDLE
