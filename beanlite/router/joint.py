"""The kinds of commands that go to several servers, by how their replies are joined."""

from __future__ import annotations

from collections.abc import Callable

from beanlite.protocol.replies import INTERNAL_ERROR, NOT_FOUND, PAUSED
from beanlite.router.asks import DoubtAsk
from beanlite.router.ids import with_outer_id
from beanlite.router.lane import Ask, Lane
from beanlite.router.looks import LookAsk, TubeAsk
from beanlite.router.state import ClientState


class MergedAsk(Ask):
    """A command for several servers, whose replies are merged.

    That takes so long that the next command waits for those of several: other clients have their turn in between.
    """

    __slots__ = ("_combine", "_first", "_left", "_numbers", "_parts", "_session")

    def __init__(self, session: ClientState, numbers: list[int], combine: Callable[[list[bytes]], bytes]) -> None:
        """``combine`` makes the reply of the bodies of those that answer OK, without the CR LF at their ends.

        They are in the order of ``numbers``, those of the servers.
        """
        super().__init__()
        self._session = session
        self._numbers = numbers
        self._left = len(numbers)
        self._combine = combine
        self._parts: list[tuple[Lane, bytes]] = []
        self._first = b""

    def part(self, lane: Lane | None, line: bytes, body: bytes) -> None:
        """Take what one server says; None: it is away."""
        if lane is not None and line.startswith(b"OK "):
            self._parts.append((lane, body[:-2]))
        else:
            self._first = self._first or line
        self._left -= 1
        if self._left == 0:
            if self._session.barrier is self:
                self._session.barrier = None
            self._parts.sort(key=lambda part: self._numbers.index(part[0].number))
            self.reply = self._combine([body for _, body in self._parts]) if self._parts else self._first


class PartAsk(LookAsk):
    """What one server is asked for a merged reply."""

    __slots__ = ("_merge",)

    def __init__(self, merge: MergedAsk, data: bytes) -> None:
        super().__init__(data)
        self._merge = merge

    def answer(self, lane: Lane, line: bytes, body: bytes) -> None:
        """Take the reply."""
        self._merge.part(lane, line, body)

    def is_for(self, ask: Ask) -> bool:
        """Whether it is a part of that command."""
        return self._merge is ask

    def fail(self, lane: Lane) -> None:
        """Leave the server out."""
        self._merge.part(None, INTERNAL_ERROR, b"")


class PauseAsk(Ask):
    """A pause of a tube that has moved, on both servers."""

    __slots__ = ("_left", "_said")

    def __init__(self, left: int) -> None:
        super().__init__()
        self._left = left
        self._said: list[bytes] = []

    def answer(self, lane: Lane, line: bytes, body: bytes) -> None:
        """Take the reply of one server: the tube need not exist on both."""
        self._said.append(line)
        self._end()

    def fail(self, lane: Lane) -> None:
        """Leave the server out."""
        self._left -= 1
        self._end()

    def _end(self) -> None:
        if not self._left:
            self.reply = INTERNAL_ERROR
        elif len(self._said) == self._left:
            others = [said for said in self._said if said not in {NOT_FOUND, PAUSED}]
            self.reply = others[0] if others else PAUSED if PAUSED in self._said else NOT_FOUND


class PeekBothAsk(TubeAsk):
    """A peek in a tube that has moved: in the old server first, then in the new one."""

    __slots__ = ("_second",)

    def __init__(self, session: ClientState, data: bytes, second: Lane) -> None:
        super().__init__(session, data)
        self._second: Lane | None = second

    def answer(self, lane: Lane, line: bytes, body: bytes) -> None:
        """Take the reply of one server."""
        second = self._second
        if second is not None and lane is not second and not line.startswith(b"FOUND "):
            self._second = None
            second.send(self._data, self)
            return
        self._session.barrier = None
        self.reply = with_outer_id(line, lane.number) + body if line.startswith(b"FOUND ") else line

    def fail(self, lane: Lane) -> None:
        """Look at the other server alone."""
        self.answer(lane, INTERNAL_ERROR, b"")

    def lose(self, lane: Lane) -> bool:
        """Do so, too, if this was the old one, where the next connection would begin with no tube."""
        if self._second is None:
            return super().lose(lane)
        self.fail(lane)
        return True


class KickBothAsk(DoubtAsk):
    """A kick in a tube that has moved, likewise; after a lost connection nobody knows how many were kicked."""

    __slots__ = ("_bound", "_kicked", "_second")

    def __init__(self, session: ClientState, bound: int, second: Lane) -> None:
        super().__init__(session)
        self._bound = bound
        self._kicked = 0
        self._second: Lane | None = second

    def answer(self, lane: Lane, line: bytes, body: bytes) -> None:
        """Take the reply of one server."""
        word, _, number = line[:-2].partition(b" ")
        if word == b"KICKED" and number.isdigit():
            self._kicked += int(number)
            second = self._second
            if second is not None and self._kicked < self._bound:
                self._second = None
                second.send(b"kick %d\r\n" % (self._bound - self._kicked), self)
                return
        if self._kicked or word == b"KICKED":  # those of the first server are kicked if the second one refuses it, too
            line = b"KICKED %d\r\n" % self._kicked
        self._session.barrier = None
        self.reply = line

    def fail(self, lane: Lane) -> None:
        """Kick at the other server alone."""
        if self._second is None and not self._kicked:
            super().fail(lane)
        else:
            self.answer(lane, b"KICKED 0\r\n", b"")
