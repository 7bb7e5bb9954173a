"""A job, its states, and the keys that order it in its queue."""

from enum import Enum
from typing import Final

from mypy_extensions import mypyc_attr

from beanlite.core.tube import Client, Peer, Tube


class State(Enum):
    """The state of a job; the values are its names in statistics and journal. ``transitions`` has the legal changes."""

    READY = "ready"
    DELAYED = "delayed"
    RESERVED = "reserved"
    BURIED = "buried"
    OFFERED = "offered"
    """Ready, but held for a client that may take it: only this process knows of it, and shows it as reserved."""
    GONE = "gone"
    """Deleted: only the ledger still refers to it."""


# The states as module constants, which the hot path compares by identity.
READY: Final = State.READY
DELAYED: Final = State.DELAYED
RESERVED: Final = State.RESERVED
BURIED: Final = State.BURIED
OFFERED: Final = State.OFFERED
GONE: Final = State.GONE

# The largest pri, delay_s or ttr_s.
U32_MAX: Final = (1 << 32) - 1
SECOND_NS: Final = 1_000_000_000
# Why a job is buried.
BURIED_BY_CLIENT: Final = "client"
BURIED_BY_OPERATOR: Final = "operator"
BURIED_FOR_TRIES: Final = "tries"
BURIED_FOR_AGE: Final = "expired"
# How many jobs are moved from queue to queue, or written, in one go before other clients get their turn.
SLICE: Final = 500

# The low bits of a key, which are the job's id.
ID_BITS: Final = 64
ID_MASK: Final = (1 << ID_BITS) - 1


class Past:
    """How often a job has timed out, and been released, buried and kicked, and why it is buried."""

    __slots__ = ("buries", "forgiven", "kicks", "releases", "timeouts", "why")

    def __init__(
        self, timeouts: int = 0, releases: int = 0, buries: int = 0, kicks: int = 0, forgiven: int = 0
    ) -> None:
        self.timeouts = timeouts
        self.releases = releases
        self.buries = buries
        self.kicks = kicks
        self.forgiven = forgiven
        """How many of its reservations do not count as tries."""
        self.why: str | None = None
        """Why the job is buried; None if it isn't, or if the reason is not known."""


# Shared by all jobs to which nothing has happened yet; never changed.
NO_PAST: Final = Past()


@mypyc_attr(acyclic=True)  # the garbage collector neither counts jobs nor visits them; what refers back is cleared
class Job:
    """One job. A million of them make up the server's memory, so nothing is kept here that can be computed.

    ``key`` is the job's place in the queue of its state. Its low 64 bits are the id, and its high bits are what orders
    the queue, so that a queue is a heap of plain integers. Ready: the pri. Delayed: the end of the delay, in ns.
    Reserved: the end of the ttr, in ns. Offered: the end of the offer, in ns. Buried: the number of the burial.
    """

    __slots__ = (
        "body",  # None: in the journal only
        "created_ns",
        "delay_s",
        "holder",  # the client that has it reserved, or what holds it for the client to which it is offered
        "id",
        "key",
        "last_holder",  # the client that has it reserved, or had it last
        "past",  # NO_PAST for most: change it through own_past
        "pri",
        "reserves",
        "since_ns",  # when it entered its state
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
        """Return the job's own ``Past``, which may be changed."""
        if self.past is NO_PAST:
            self.past = Past()
        return self.past

    def forgive(self) -> None:
        """Have none of the reservations so far count as a try."""
        if self.reserves:  # else it may have no past of its own
            self.own_past().forgiven = self.reserves

    def spare(self) -> None:
        """Have the last reservation not count as a try, unless it does not anyway."""
        if self.tries > 0:
            self.own_past().forgiven += 1

    @property
    def tries(self) -> int:
        """How many reservations have ended in vain, or will have if it is released now."""
        return self.reserves - self.past.forgiven

    @property
    def why(self) -> str | None:
        """Why the job is buried; None if it isn't, or if the reason is not known."""
        return self.past.why

    @property
    def shown_state(self) -> State:
        """The state that clients and operators see: an offered job is out, as a reserved one is."""
        return RESERVED if self.state is OFFERED else self.state

    @property
    def due_ns(self) -> int:
        """When the delay, the ttr or the offer ends; only meaningful while there is one."""
        return self.key >> ID_BITS
