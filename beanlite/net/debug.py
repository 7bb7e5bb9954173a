"""Logs connections and refused commands at debug level. At other levels these classes are not used."""

from __future__ import annotations

import asyncio
from typing import Final

from beanlite.host import log
from beanlite.net.connection import Connection
from beanlite.protocol.framing import FramedSession
from beanlite.protocol.odd_lines import AUTH
from beanlite.protocol.session import Service

# Replies to commands that were not carried out because they were wrong, or came at the wrong time.
REFUSALS: Final = (
    b"BAD_FORMAT",
    b"DRAINING",
    b"EXPECTED_CRLF",
    b"INTERNAL_ERROR",
    b"JOB_TOO_BIG",
    b"NOTE_TOO_BIG",
    b"OUT_OF_MEMORY",
    b"UNAUTHORIZED",
    b"UNKNOWN_COMMAND",
)
# How many bytes of a refused command are logged.
SHOWN_MAX: Final = 80
# How many of the lines that are received at once are examined one by one: logging all would hold up other clients.
LINES_MAX: Final = 16


class LoggedConnection(Connection):
    """Logs when it is opened and closed, and which commands are refused."""

    __slots__ = ()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Log that the connection is opened, unless it is one too many."""
        super().connection_made(transport)
        if not self.ending.leaving:
            log.debug("connection opened", address=self.session.client.peer.address)

    def connection_lost(self, exc: Exception | None) -> None:
        """Log that the connection is closed, if that was not logged before."""
        self._tell_once()
        super().connection_lost(exc)

    def part(self) -> None:
        """Log that the connection is closed, because the server has ended it."""
        self._tell_once()
        super().part()

    def _tell_once(self) -> None:
        if not self.ending.leaving:
            log.debug("connection closed", address=self.session.client.peer.address)

    def _new_session(self, service: Service, address: str) -> FramedSession:
        return LoggedSession(service, address)


class LoggedSession(FramedSession):
    """Logs which of the first lines received at once are refused, except those that are put off until a later turn."""

    __slots__ = ("_answered", "_line")

    def __init__(self, service: Service, address: str) -> None:
        super().__init__(service, address)
        self._answered = True
        self._line = b""
        """The part of the command being received that would be logged."""

    def receive(self, data: bytes, now_ns: int) -> None:
        """Carry out complete commands, the first lines one by one."""
        at = lines = 0
        while at < len(data):
            lines += 1
            if lines > LINES_MAX:
                super().receive(data[at:], now_ns)
                self._answered = True
                return
            end = data.find(b"\n", at) + 1 or len(data)
            if self._answered:
                self._line = b""
            self._line = (self._line + data[at : min(end, at + SHOWN_MAX)])[:SHOWN_MAX]
            seen = len(self.replies)
            super().receive(data[at:end], now_ns)
            for reply in self.replies[seen:]:
                if reply.startswith(REFUSALS):
                    self._tell(reply)
            self._answered = len(self.replies) > seen or self.blocked is not None
            at = end

    def _tell(self, reply: bytes) -> None:
        line, _, _ = self._line.partition(b"\r\n")  # without the body
        if line[: len(AUTH)].lower() == AUTH:  # a token is nobody's business, whether it is right or wrong
            line = AUTH
        log.debug(
            "command refused",
            address=self.client.peer.address,
            reply=reply.decode().rstrip(),
            line=line.decode("ascii", "backslashreplace"),
        )
