"""A tube: its queues, who waits for it, and its counters."""

from __future__ import annotations

import re
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from beanlite.core.heap import KeyHeap
from beanlite.core.timers import NEVER_NS

if TYPE_CHECKING:
    from beanlite.core.client import Client

_NAME: Final = re.compile(rb"[A-Za-z0-9+/;.$_()][A-Za-z0-9+/;.$_()-]{0,199}")


def is_tube_name(name: bytes) -> bool:
    """Whether a tube can be called so: 1 to 200 bytes of those that the protocol allows, no hyphen first."""
    return _NAME.fullmatch(name) is not None


class Tube:
    """A named queue of jobs. It lives while it is used, watched or holds a job."""

    __slots__ = (
        "alarm_ns",
        "buried",
        "cmd_delete",
        "cmd_pause",
        "delayed",
        "name",
        "pause_s",
        "pause_until_ns",
        "ready",
        "reserved",
        "serial",
        "total_jobs",
        "urgent",
        "using",
        "waiting",
        "watching",
    )

    def __init__(self, name: bytes, serial: int) -> None:
        self.name = name
        self.serial = serial
        self.ready = KeyHeap()
        self.delayed = KeyHeap()
        self.buried = KeyHeap()
        self.waiting: OrderedDict[Client, None] = OrderedDict()
        """The clients that wait in a reserve, longest wait first. While the tube isn't paused, either this or ready
        is empty."""
        self.reserved = 0
        self.urgent = 0
        self.using = 0
        self.watching = 0
        self.total_jobs = 0
        self.cmd_delete = 0
        self.cmd_pause = 0
        self.pause_s = 0
        self.pause_until_ns = 0
        """0: not paused."""
        self.alarm_ns = NEVER_NS

    @property
    def holds_jobs(self) -> bool:
        """Whether there is a job of it in any state."""
        return bool(self.ready.keys or self.reserved or self.delayed.keys or self.buried.keys)
