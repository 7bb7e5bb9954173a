"""A reserve over several servers, or over some that are away, as a session sees it. ``wait`` has it."""

from __future__ import annotations

from typing import Final

from beanlite.router.lane import Lane

NEVER_S: Final = float("inf")


class AnyWait:
    """What a reserve over several servers is for the session; ``Wait`` is one."""

    __slots__ = ()

    def opened(self, lane: Lane) -> None:
        """Take note that a lane is open."""

    def heard(self, lane: Lane) -> None:
        """Give a server more time: it is saying something, or is read from again."""

    def come_back(self) -> None:
        """Take note that a server can be reached again."""

    def failed(self, lane: Lane) -> None:
        """Take note that no connection could be made."""

    def lost(self, lane: Lane) -> None:
        """Take note that a connection was lost."""

    def half_close(self) -> None:
        """Wait no longer, because the client sends no more."""

    def look_again(self) -> None:
        """Take note that tubes may have moved."""

    def tick(self) -> None:
        """Do what is due."""

    @property
    def due_s(self) -> float:
        """When ``tick`` has something to do."""
        return NEVER_S

    def use_late(self, lane: Lane, line: bytes, body: bytes) -> bool:
        """Take a job that comes late; return False if none is waited for."""
        return False
