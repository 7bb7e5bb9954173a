"""Tubes, and the clients that put into them and reserve from them.

They share a file because a tube knows the clients that wait for its jobs, and a client the tubes that it watches.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from typing import Final

from beanlite.core.heap import KeyHeap
from beanlite.core.kept import Kept
from beanlite.core.rules import Rules
from beanlite.core.timers import NEVER_NS, TimerOwner
from beanlite.core.totals import Tally

# Shared by all tubes that have no such jobs, or no waiting clients; never added to.
NO_JOBS: Final = KeyHeap()
NOBODY: Final[OrderedDict[Client, None]] = OrderedDict()

# Why a tube hands out no job: it is paused; as many of its jobs are reserved as may be; no more may be reserved yet; or
# clients that have waited longer are served first.
PAUSED: Final = 1
FULL: Final = 2
SLOWED: Final = 4
OPENING: Final = 8

# Up to so many delayed jobs that are due soon are counted, more are estimated. With so many a slice of a list ends.
DUE_MAX: Final = 10_000
PERSON_BYTES_MAX: Final = 128
CLAIM_MAX: Final = 100
_CLAIM: Final = re.compile(rb"[!#-~]{1,%d}" % CLAIM_MAX)
_QUOTE: Final = '"'
_NAME: Final = re.compile(rb"[A-Za-z0-9+/;.$_()][A-Za-z0-9+/;.$_()-]{0,199}")


def is_tube_name(name: bytes) -> bool:
    """Whether a tube may have this name: 1 to 200 of the bytes that the protocol allows, the first not a hyphen."""
    return _NAME.fullmatch(name) is not None


def is_person(name: str) -> bool:
    """Whether this may be recorded as a person's name: printable text of 1 to PERSON_BYTES_MAX bytes."""
    return name != "" and name.isprintable() and len(name.encode()) <= PERSON_BYTES_MAX


def is_claim(name: bytes) -> bool:
    """Whether a client may call itself this: 1 to CLAIM_MAX printable ASCII characters without blanks and quotes."""
    return _CLAIM.fullmatch(name) is not None


def with_claim(address: str, claim: str) -> str:
    """Return the address of a client that calls itself ``claim``, which is in quotes, as the server can't verify it."""
    return f"{without_claim(address)} {_QUOTE}{claim}{_QUOTE}"


def without_claim(address: str) -> str:
    """Return what the server knows of a client's address."""
    return address.partition(f" {_QUOTE}")[0] if address.endswith(_QUOTE) else address


def claim_in(address: str) -> str | None:
    """Return what the client of an address calls itself, if it has said so."""
    return address.partition(f" {_QUOTE}")[2].removesuffix(_QUOTE) or None


class Peer:
    """The identity of a client, which jobs remember long after its connection has been closed."""

    __slots__ = ("address", "number", "person")

    def __init__(self, address: str, number: int, person: str = "") -> None:
        self.address = address
        """``host:port``, or ``unix``; followed by its name if the server knows it: ``10.0.0.1:5123 mailer``; and by
        what it calls itself, in quotes: ``10.0.0.1:5123 mailer "web1/mail/17"``."""
        self.number = number
        """The number of the connection, counted from the start of the server."""
        self.person = person
        """The person on whose behalf it acted; empty if it did not say."""


def is_of_host(peer: Peer, host: str) -> bool:
    """Whether a client is of a host, which is an address of IPv4 or IPv6, or ``unix``."""
    return f"{peer.address} ".startswith((f"{host}:", f"[{host}]:", f"{host} "))


class Tube(TimerOwner):
    """A named queue of jobs. It lives while it is used, watched or holds a job.

    There may be very many tubes, most of which have nothing delayed or buried, so these queues are made when needed.
    """

    __slots__ = (
        "buried",
        "cmd_delete",
        "cmd_pause",
        "delayed",
        "hold_ns",
        "kept",
        "moved_ns",
        "name",
        "open_ns",
        "pause_s",
        "pause_until_ns",
        "ready",
        "reserved",
        "rules",
        "shut",
        "taken",
        "tally",
        "total_jobs",
        "urgent",
        "using",
        "waiting",
        "watching",
    )

    def __init__(self, name: bytes, serial: int) -> None:
        super().__init__(serial)
        self.name = name
        self.ready = KeyHeap()
        self.delayed = NO_JOBS
        self.buried = NO_JOBS
        self.waiting: OrderedDict[Client, None] = NOBODY
        """The clients that wait in a reserve, the longest wait first, with some that have just ceased to. While the
        tube isn't shut, either this or ``ready`` is empty."""
        self.reserved = 0
        self.urgent = 0
        self.using = 0
        self.watching = 0
        self.total_jobs = 0
        self.cmd_delete = 0
        self.cmd_pause = 0
        self.tally: Tally | None = None
        """Counts since the totals were last taken, or None if there are none yet. ``Ledger.tally`` makes it."""
        self.taken: Tally | None = None
        """Counts before that, since the tube was made or the server started; None if there are none, or if nobody can
        ask for them."""
        self.pause_s = 0
        self.pause_until_ns = 0
        """0: not paused."""
        self.shut = 0
        """Why no job is handed out: PAUSED, FULL, SLOWED and OPENING, added up; 0: jobs are."""
        self.rules: Rules | None = None
        """What operators have set for it; None: nothing."""
        self.kept: Kept | None = None
        """What it remembers for these rules; None if it has none."""
        self.moved_ns = 0
        """When a job was last reserved, touched, deleted, released or buried, or when the server was started with jobs
        of the tube; within a second or two. 0: never."""
        self.open_ns = 0
        """Since when it has had ready jobs and has not been shut, within a second or two; 0: not known."""
        self.hold_ns = -1
        """For how long jobs were reserved on average, when something last happened for some minutes; -1: not known."""

    @property
    def jobs(self) -> int:
        """How many jobs it holds, in whatever state."""
        return len(self.ready) + len(self.delayed) + self.reserved + len(self.buried)

    def add_taken(self, tally: Tally) -> None:
        """Add a tally that has been taken for the totals, so that its counts are still known for this tube."""
        if self.taken is None:
            self.taken = Tally(self.name)
        self.taken.add(tally)

    @property
    def holds_jobs(self) -> bool:
        """Whether the tube has a job in any state."""
        return bool(self.ready.keys or self.reserved or self.delayed.keys or self.buried.keys)


class Client(TimerOwner):
    """A connection as the engine sees it: what it uses, watches, has reserved and waits for."""

    __slots__ = (
        "deadlines",
        "gone",
        "offers",
        "peer",
        "producer",
        "reserved_ns",
        "use",
        "wait_until_ns",
        "waiting",
        "waits_for_offer",
        "waits_since_ns",
        "watched",
        "worker",
    )

    def __init__(self, tube: Tube, serial: int, peer: Peer) -> None:
        super().__init__(serial)
        self.peer = peer
        self.use = tube
        self.watched: dict[Tube, None] = {tube: None}
        self.deadlines = KeyHeap()
        """The keys of its reserved jobs, with the first to time out on top."""
        self.waiting = False
        self.wait_until_ns = NEVER_NS
        self.waits_since_ns = 0
        self.waits_for_offer = False
        """A job that ends its wait is offered to it rather than reserved for it."""
        self.offers: Offers | None = None
        """What holds the jobs that it is offered; None: it has never been offered one."""
        self.producer = False
        self.worker = False
        self.reserved_ns = 0
        """When it was last given a job; 0: never."""
        self.gone = False
        """The connection has ended, and the jobs that it had reserved are being made ready."""


class Offers(Client):
    """What holds the jobs that are offered to a client, in its place: it can do nothing with them but take them.

    The keys in ``deadlines`` begin with the ends of the offers.
    """
