"""Reports to systemd while the server serves: its status, and that commits make progress."""

import asyncio
from typing import Final

from beanlite.commit.group import GroupCommit
from beanlite.core.engine import Engine
from beanlite.host import systemd
from beanlite.journal.base import Journal

# The interval of the reports, unless systemd's watchdog needs them more often.
STATUS_S: Final = 10.0
# How many reports there are within the watchdog's timeout.
LOOKS: Final = 4


class Supervised:
    """Reports to systemd periodically; does nothing without systemd."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, engine: Engine, journal: Journal, group_commit: GroupCommit
    ) -> None:
        self._loop = loop
        self._journal = journal
        self._engine = engine
        self._group_commit = group_commit
        self._watchdog_s = systemd.watchdog_s()
        self._every_s = STATUS_S if self._watchdog_s is None else min(STATUS_S, self._watchdog_s / LOOKS)
        self._last_batch = -1
        """The last durable batch as of the previous look."""
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Report that the server serves, and keep reporting."""
        if systemd.is_told():
            systemd.tell("READY=1")
            self._look()

    def end(self) -> None:
        """Report that the server stops."""
        if self._timer is not None:
            self._timer.cancel()
        systemd.tell("STOPPING=1", "STATUS=Stopping")

    def _look(self) -> None:
        self._timer = self._loop.call_later(self._every_s, self._look)
        lines = [f"STATUS={self._status()}"]
        if self._watchdog_s is not None and self._makes_progress():
            lines.append("WATCHDOG=1")
        systemd.tell(*lines)

    def _makes_progress(self) -> bool:
        """Whether something has become durable since the last look, or nothing waits to become durable.

        While the disk is full, commits wait for the operator, and a restart would not help; nor would it while a
        database on another machine can't be reached.
        """
        before, self._last_batch = self._last_batch, self._engine.ledger.stored_batch
        is_excused = self._engine.admission.disk_full or self._journal.is_elsewhere
        return self._group_commit.idle or self._last_batch != before or is_excused

    def _status(self) -> str:
        admission = self._engine.admission
        words = ["Draining" if admission.draining else "Serving"]
        if admission.disk_full:
            words.append("disk full, puts are refused")
        return f"{', '.join(words)}: {len(self._engine.jobs)} jobs"
