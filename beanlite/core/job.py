"""A job, its states, and the keys that order it in its queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from beanlite.core.client import Client
    from beanlite.core.tube import Tube

READY: Final = "ready"
DELAYED: Final = "delayed"
RESERVED: Final = "reserved"
BURIED: Final = "buried"
GONE: Final = "gone"  # deleted; only a record of change still refers to it

U32_MAX: Final = (1 << 32) - 1  # of a pri, a delay_s or a ttr_s
SECOND_NS: Final = 1_000_000_000

ID_BITS: Final = 64
ID_MASK: Final = (1 << ID_BITS) - 1


class Past:
    """What happened to a job, beside reservations."""

    __slots__ = ("buries", "kicks", "releases", "timeouts")

    def __init__(self, timeouts: int = 0, releases: int = 0, buries: int = 0, kicks: int = 0) -> None:
        self.timeouts = timeouts
        self.releases = releases
        self.buries = buries
        self.kicks = kicks


NO_PAST: Final = Past()


class Job:
    """One job. A million of them are the server's memory, so there is nothing here that can be computed.

    ``key`` places the job in the queue of its state: what orders that queue in the high bits, the id in the low 64, so
    that a queue is a heap of plain integers. Ready: the pri. Delayed: the end of the delay, in ns. Reserved: the end of
    the ttr, in ns. Buried: the number of the burial.
    """

    __slots__ = (
        "body",
        "created_ns",
        "delay_s",
        "holder",  # the client that has it reserved
        "id",
        "key",
        "past",  # NO_PAST for most: to be changed through own_past
        "pri",
        "reserves",
        "state",
        "ttr_s",
        "tube",
    )

    def __init__(
        self, job_id: int, tube: Tube, pri: int, delay_s: int, ttr_s: int, created_ns: int, body: bytes
    ) -> None:
        self.id = job_id
        self.tube = tube
        self.pri = pri
        self.delay_s = delay_s
        self.ttr_s = ttr_s
        self.created_ns = created_ns
        self.body = body
        self.state = READY
        self.key = 0
        self.holder: Client | None = None
        self.reserves = 0
        self.past = NO_PAST

    def own_past(self) -> Past:
        """The job's past, to be changed."""
        if self.past is NO_PAST:
            self.past = Past()
        return self.past

    @property
    def due_ns(self) -> int:
        """When the delay or the ttr ends; of meaning only while delayed or reserved."""
        return self.key >> ID_BITS
