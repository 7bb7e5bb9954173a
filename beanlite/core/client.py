"""A client as the engine knows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from beanlite.core.heap import KeyHeap
from beanlite.core.timers import NEVER_NS

if TYPE_CHECKING:
    from beanlite.core.tube import Tube


class Client:
    """One connection's place in the engine: what it uses, watches, has reserved and waits for."""

    __slots__ = (
        "alarm_ns",
        "deadlines",
        "gone",
        "producer",
        "serial",
        "use",
        "wait_until_ns",
        "waiting",
        "watched",
        "worker",
    )

    def __init__(self, tube: Tube, serial: int) -> None:
        self.serial = serial
        self.use = tube
        self.watched: dict[Tube, None] = {tube: None}
        self.deadlines = KeyHeap()
        """The keys of its reserved jobs: the soonest to time out first."""
        self.waiting = False
        self.wait_until_ns = NEVER_NS
        self.producer = False
        self.worker = False
        self.gone = False
        """The connection has ended; what it had reserved is on its way back."""
        self.alarm_ns = NEVER_NS
