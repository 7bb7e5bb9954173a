"""A job, its states, and the keys that order it in its queue."""

from __future__ import annotations

from enum import Enum
from typing import Final

from beanlite.core.tube import Client, Peer, Tube


class State(Enum):
    """What a job is; the values are what the statistics and the journal call it. ``transitions`` has the ways."""

    READY = "ready"
    DELAYED = "delayed"
    RESERVED = "reserved"
    BURIED = "buried"
    GONE = "gone"
    """Deleted: only the ledger still refers to it."""


# The states under names of their own, which the hot path compares by identity.
READY: Final = State.READY
DELAYED: Final = State.DELAYED
RESERVED: Final = State.RESERVED
BURIED: Final = State.BURIED
GONE: Final = State.GONE

# The most that a pri, a delay_s or a ttr_s can be.
U32_MAX: Final = (1 << 32) - 1
SECOND_NS: Final = 1_000_000_000
# Why a job is buried.
BURIED_BY_CLIENT: Final = "client"
BURIED_BY_OPERATOR: Final = "operator"
# Jobs that are moved from queue to queue, or written, in one go before other clients get their turn.
SLICE: Final = 500

# The low bits of a key, which are the job's id.
ID_BITS: Final = 64
ID_MASK: Final = (1 << ID_BITS) - 1


class Past:
    """What has happened to a job, reservations aside."""

    __slots__ = ("buries", "kicks", "releases", "timeouts", "why")

    def __init__(self, timeouts: int = 0, releases: int = 0, buries: int = 0, kicks: int = 0) -> None:
        self.timeouts = timeouts
        self.releases = releases
        self.buries = buries
        self.kicks = kicks
        self.why: str | None = None
        """Why the job is buried; None unless it is."""


# Shared by all jobs to which nothing has happened; never changed.
NO_PAST: Final = Past()


class Job:
    """One job. A million of them are the server's memory, so nothing is kept here that can be computed.

    ``key`` places the job in the queue of its state: what orders that queue in the high bits, the id in the low 64, so
    that a queue is a heap of plain integers. Ready: the pri. Delayed: the end of the delay, in ns. Reserved: the end of
    the ttr, in ns. Buried: the number of the burial.

    It takes more than a dozen attributes all the same.
    """

    __slots__ = (
        "body",  # None: it is in the journal only
        "created_ns",
        "delay_s",
        "holder",  # the client that has it reserved
        "id",
        "key",
        "last_holder",  # who has it reserved, or had it last
        "past",  # NO_PAST for most: to be changed through own_past
        "pri",
        "reserves",
        "since_ns",  # when it came into its state
        "size",  # of the body
        "state",
        "ttr_s",
        "tube",
    )

    def __init__(
        self,
        job_id: int,
        tube: Tube,
        pri: int,
        delay_s: int,
        ttr_s: int,
        created_ns: int,
        body: bytes | None,
        size: int,
    ) -> None:
        self.id = job_id
        self.tube = tube
        self.pri = pri
        self.delay_s = delay_s
        self.ttr_s = ttr_s
        self.created_ns = created_ns
        self.body = body
        self.size = size
        self.state: State = READY
        self.key = 0
        self.since_ns = created_ns
        self.holder: Client | None = None
        self.last_holder: Peer | None = None
        self.reserves = 0
        self.past = NO_PAST

    def own_past(self) -> Past:
        """The job's past, to be changed."""
        if self.past is NO_PAST:
            self.past = Past()
        return self.past

    @property
    def why(self) -> str | None:
        """Why it is buried; None unless it is."""
        return self.past.why

    @property
    def due_ns(self) -> int:
        """When the delay or the ttr ends; only meaningful while the job is delayed or reserved."""
        return self.key >> ID_BITS
