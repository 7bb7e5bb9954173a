"""The kinds of commands that change nothing, by what becomes of their replies."""

from __future__ import annotations

from beanlite.router.ids import with_outer_id
from beanlite.router.lane import Ask, Lane
from beanlite.router.state import ClientState


class LookAsk(Ask):
    """A command that changes nothing, and is sent again after a lost connection."""

    __slots__ = ("_data",)

    def __init__(self, data: bytes) -> None:
        """Remember the command as it is sent."""
        super().__init__()
        self._data = data

    def lose(self, lane: Lane) -> bool:
        """Send it again."""
        lane.send(self._data, self)
        return True


class ShowAsk(LookAsk):
    """A command whose reply has a job that is not reserved by it."""

    __slots__ = ()

    def answer(self, lane: Lane, line: bytes, body: bytes) -> None:
        """Take the reply."""
        self.reply = with_outer_id(line, lane.number) + body if line.startswith(b"FOUND ") else line


class TubeAsk(ShowAsk):
    """A command about the tube that the client uses, be it for the first of its jobs."""

    __slots__ = ("_session", "_tube")

    def __init__(self, session: ClientState, data: bytes) -> None:
        """Remember the tube."""
        super().__init__(data)
        self._session = session
        self._tube = session.used

    def lose(self, lane: Lane) -> bool:
        """Send it again if the next connection begins with that tube; else have the client lose its own."""
        session = self._session
        return session.used == self._tube and session.home is lane and super().lose(lane)


class JobStatsAsk(LookAsk):
    """The command stats-job, whose reply begins with the id."""

    __slots__ = ()

    def answer(self, lane: Lane, line: bytes, body: bytes) -> None:
        """Take the reply."""
        if not line.startswith(b"OK "):
            self.reply = line
            return
        first, _, rest = body.partition(b"\n")[2].partition(b"\n")
        text = b"---\n%b\n%b" % (with_outer_id(first + b"\r\n", lane.number)[:-2], rest[:-2])
        self.reply = b"OK %d\r\n%b\r\n" % (len(text), text)
