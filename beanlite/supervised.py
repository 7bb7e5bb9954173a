"""What a supervisor is told while the server serves: how it fares, and that commits make progress."""

from __future__ import annotations

import asyncio
from typing import Final

from beanlite import systemd
from beanlite.commit.group import GroupCommit
from beanlite.core.engine import Engine
from beanlite.journal.base import Journal

# How often it is told how the server fares, if it has no watchdog that is to be fed more often.
STATUS_S: Final = 10.0
# How many times within the time of the watchdog.
LOOKS: Final = 4


class Supervised:
    """Tells systemd now and then; does nothing where there is none."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, engine: Engine, journal: Journal, group_commit: GroupCommit
    ) -> None:
        self._loop = loop
        self._journal = journal
        self._engine = engine
        self._group_commit = group_commit
        self._watchdog_s = systemd.watchdog_s()
        self._every_s = STATUS_S if self._watchdog_s is None else min(STATUS_S, self._watchdog_s / LOOKS)
        self._stored = -1
        """The last batch that was durable when it was looked at last."""
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """The server serves from now on."""
        if systemd.is_told():
            systemd.tell("READY=1")
            self._look()

    def end(self) -> None:
        """The server stops."""
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
        """Whether something has become durable since the last look, or nothing waits for that.

        While the disk is full commits wait for the operator, who would not be helped by a restart; nor is one of any
        use while a database on another machine is away.
        """
        before, self._stored = self._stored, self._engine.ledger.stored_batch
        is_excused = self._engine.admission.disk_full or self._journal.is_elsewhere
        return self._group_commit.idle or self._stored != before or is_excused

    def _status(self) -> str:
        admission = self._engine.admission
        words = ["Draining" if admission.draining else "Serving"]
        if admission.disk_full:
            words.append("disk full, puts are refused")
        return f"{', '.join(words)}: {len(self._engine.jobs)} jobs"
