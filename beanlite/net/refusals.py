"""Counts what clients were refused, and logs it so seldom that a flood can't fill the log."""

from __future__ import annotations

from typing import Final

from beanlite.host import log

# The log message for each kind of refusal.
_EVENTS: Final = {
    "connections": "connection refused",
    "connections-per-address": "connection refused: too many from its address",
    "tubes": "tube refused",
    "watched": "watch refused",
    "memory": "tube or watch refused: out of memory",
    "line": "connection closed: endless line",
    "protocol": "connection closed: HTTP or another protocol",
    "buffers": "connection closed: too much is buffered for slow clients",
    "unauthorized": "refused: no right",
    "max-jobs": "put refused: a policy limits the jobs of the tube",
    "handshake": "TLS handshake refused",
}


class Refusals:
    """How often each limit was met since the start. One that is a setting has its name, without ``max``."""

    def __init__(self) -> None:
        self.counts = dict.fromkeys(_EVENTS, 0)
        self.limits: dict[str, int] = {}
        """The value of each limit, for the log; each tube has its own max_jobs."""

    def note(self, limited: str, **about: object) -> None:
        """Count a refusal, and log it if it is rare, with these fields."""
        times = self.counts[limited] = self.counts[limited] + 1
        if log.is_rare(times):
            limit = {"limit": self.limits[limited]} if limited in self.limits else {}
            log.warning(_EVENTS[limited], **limit, **about, refused=times)

    def note_unauthorized(self, client: str, word: str) -> None:
        """Count a word that a client has no right to, or with an empty word a client without any, as ``note`` does."""
        self.note("unauthorized", client=client, **({"word": word} if word else {}))
