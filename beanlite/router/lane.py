"""A client's connection to one server, without I/O: what is to be sent, and to which command each reply belongs."""

from __future__ import annotations

from collections import deque
from typing import Final

from beanlite.protocol.replies import AUTHENTICATED, INTERNAL_ERROR, NOT_FOUND, UNAUTHORIZED, UNKNOWN_COMMAND
from beanlite.router.known import KnownServer

DEFAULT: Final = b"default"
AUTH: Final = b"auth "
# Replies that a body follows.
_WITH_BODY: Final = (b"RESERVED ", b"FOUND ", b"OK ", b"OFFERED ")
# No first line of a reply is longer.
_LINE_MAX: Final = 1024
# With so many bytes that wait for a connection, nothing more is read for it.
_OUT_MAX: Final = 1 << 16
# With more reserved jobs than this, it is no longer known which they are.
_HELD_MAX: Final = 10_000

# The states of a lane. Greeted is what a new connection is told before anything else: token, name, and tubes.
CLOSED: Final = 0
CONNECTING: Final = 1
GREETING: Final = 2
OPEN: Final = 3


class Ask:
    """A command that was sent to a server: whose reply it gets, and what becomes of it without a reply."""

    __slots__ = ("reply",)

    is_secret = False
    """Nobody but the server may read it."""

    def __init__(self) -> None:
        self.reply: bytes | None = None
        """What the client is answered; None: that is not known yet."""

    def answer(self, lane: Lane, line: bytes, body: bytes) -> None:
        """Take the reply of the server: its line, and its body if it has one, both with CR LF."""
        self.reply = line + body

    def lose(self, lane: Lane) -> bool:
        """Take note that the connection was lost; return False if the client has to be told that by losing its own.

        That is so if nobody knows whether the command was carried out.
        """
        return False

    def fail(self, lane: Lane) -> None:
        """Take note that the command was not sent, because the server is away."""
        self.reply = INTERNAL_ERROR

    def is_for(self, ask: Ask) -> bool:
        """Whether another command, or this one, is answered with its reply."""
        return self is ask

    def refuse(self, lane: Lane, line: bytes) -> None:
        """Take note that it was not sent, because the server has answered the greeting with this line."""
        self.fail(lane)
        if self.reply == INTERNAL_ERROR:
            self.reply = line


class InternalAsk(Ask):
    """A command of the router's own, of which the client hears nothing."""

    __slots__ = ()

    def lose(self, lane: Lane) -> bool:
        """Do without it."""
        return True


class GreetAsk(InternalAsk):
    """What a new connection is told first."""

    __slots__ = ()

    def answer(self, lane: Lane, line: bytes, body: bytes) -> None:
        """Go on with what was to be sent, or not, if the server refuses it."""
        lane.greeted(line)


class Owner:
    """The session of a client, as its lanes see it."""

    __slots__ = ("dirty", "opening")

    def __init__(self) -> None:
        self.dirty: list[Lane] = []
        """The lanes that have something to send."""
        self.opening: list[Lane] = []
        """The lanes for which a connection is to be made."""

    def greeting(self, lane: Lane) -> list[bytes]:
        """Return the lines that a new connection begins with, and note in the lane what it uses and watches then."""
        raise NotImplementedError

    def refused(self, lane: Lane, line: bytes) -> None:
        """Take note that a server refuses the greeting."""
        raise NotImplementedError


class Lane:
    """The connection of a client to one server."""

    __slots__ = (
        "_amid_body",
        "_behind",
        "_greeting",
        "_greets",
        "_out_bytes",
        "_owner",
        "_parts",
        "_size",
        "_wanted",
        "asks",
        "clogged",
        "ended",
        "greets_again",
        "held",
        "last",
        "last_line",
        "number",
        "out",
        "placeholder",
        "refusal",
        "server",
        "state",
        "unread",
        "used",
        "watched",
        "withholds",
    )

    def __init__(self, owner: Owner, server: KnownServer) -> None:
        self._owner = owner
        self.server = server
        self.number = server.number
        self.state = CLOSED
        self.out: list[bytes] = []
        """What is to be sent once the connection is open."""
        self._out_bytes = 0
        self.asks: deque[Ask] = deque()
        """What has been sent, or is in ``out``, and is not answered."""
        self.used = DEFAULT
        """What the server takes for the tube that the client uses."""
        self.watched: set[bytes] = set()
        """What it takes for the tubes that the client watches."""
        self.placeholder = False
        """The client watches none of its tubes; it watches default or ``last`` because it has to watch one."""
        self.last = b""
        """The tube that was to be ignored as the last one, which a server refuses that lets it not watch default."""
        self.held: set[int] = set()
        """The jobs that are reserved, as far as is known: those whose ttr has ended are among them."""
        self.ended = False
        """Nothing more is sent on this connection, which the server will close."""
        self.clogged = False
        """The server takes no more for now."""
        self.unread = False
        """The router does not read what the server says for now: its silence means nothing."""
        self.withholds = False
        """The server was not shown the client's token, because others could read it."""
        self.greets_again = False
        """The connection before was lost amid the greeting: if this one is, too, the server is not tried once more."""
        self.refusal = b""
        """The reply to a ``use`` of the router's own that was refused."""
        self.last_line = b""
        """What the server has said unasked."""
        self._amid_body = False
        """The body of the last command is being passed on: the server takes whatever is sent for a part of it."""
        self._behind: list[tuple[bytes, Ask]] = []
        """The commands of the router's own that are sent behind it."""
        self._greeting: list[bytes] = []
        self._greets = 0
        self._parts: list[bytes] = []
        self._size = 0
        self._wanted = 0

    # -- to the server

    def ensure(self) -> None:
        """Have a connection made, if there is none."""
        if self.state == CLOSED:
            self.state = CONNECTING
            self.used = DEFAULT
            self.watched = {DEFAULT}
            self._greeting = self._owner.greeting(self)
            self._owner.opening.append(self)

    def send(self, data: bytes, ask: Ask) -> None:
        """Have a command sent, behind a body. After the end of the connection it is not, and is lost with that."""
        self.ensure()
        if self._amid_body:
            self._behind.append((data, ask))
            return
        self.asks.append(ask)
        if not self.ended:
            self.pass_on(data)

    def pass_on(self, data: bytes) -> None:
        """Have more bytes sent, which belong to the last command."""
        if not self.out:
            self._owner.dirty.append(self)
        self.out.append(data)
        self._out_bytes += len(data)

    def begin_body(self) -> None:
        """Note that the last command has a body, which is passed on as it comes."""
        self._amid_body = True

    def end_body(self) -> None:
        """Note that all of it was passed on, and send what has waited for that."""
        self._amid_body = False
        if self._behind:
            behind, self._behind = self._behind, []
            for data, ask in behind:
                self.send(data, ask)

    def disown(self, ask: Ask) -> None:
        """Want no reply to a command any more, if it has none."""
        if ask in self.asks:
            self.asks[self.asks.index(ask)] = InternalAsk()

    def take(self) -> bytes:
        """Return what is to be sent now, once."""
        if self.state != OPEN:
            return b""
        out = self.out
        data = out[0] if len(out) == 1 else b"".join(out)
        out.clear()
        self._out_bytes = 0
        return data

    @property
    def takes_more(self) -> bool:
        """Whether to read more from the client that may be for the server."""
        return not self.clogged and self._out_bytes <= _OUT_MAX

    # -- the connection

    def opened(self, *, is_private: bool) -> bytes:
        """Note that the connection is made; return what is to be sent first.

        ``is_private``: nobody can overhear it; else no token is shown to the server.
        """
        greeting = [line for line in self._greeting if is_private or not line.startswith(AUTH)]
        self.withholds = len(greeting) < len(self._greeting)
        if not is_private and any(ask.is_secret for ask in self.asks):
            self._owner.refused(self, UNAUTHORIZED)
            return b""
        self._greets = len(greeting)
        if not greeting:
            self._open()
            return b""
        self.state = GREETING
        self.asks.extendleft([GreetAsk() for _ in greeting])
        return b"".join(greeting)

    def greeted(self, line: bytes) -> None:
        """Take a reply to a part of the greeting."""
        if self.state != GREETING:
            return
        self._greets -= 1
        if line.startswith((b"USING ", b"WATCHING ", b"NAMED")) or line in {AUTHENTICATED, UNKNOWN_COMMAND, NOT_FOUND}:
            if not self._greets:
                self._open()
        else:
            self._owner.refused(self, line)

    def _open(self) -> None:
        self.state = OPEN
        self.greets_again = False
        if self.out:
            self._owner.dirty.append(self)

    def connect_again(self) -> None:
        """Have a connection made in place of this one, whose greeting is not answered, to begin with the same."""
        self.state = CONNECTING
        while self.asks and isinstance(self.asks[0], GreetAsk):
            self.asks.popleft()
        self._parts.clear()
        self._size = self._wanted = 0
        self.clogged = self.unread = False
        self._owner.opening.append(self)

    def close(self) -> list[Ask]:
        """Forget the connection, which is lost or could not be made; return the commands that have no reply."""
        asks = [ask for ask in self.asks if not isinstance(ask, GreetAsk)] + [ask for _, ask in self._behind]
        self.state = CLOSED
        self.asks.clear()
        self.out.clear()
        self._out_bytes = 0
        self.held.clear()
        self._behind.clear()
        self._amid_body = False
        self._parts.clear()
        self._size = self._wanted = 0
        self.ended = self.clogged = self.unread = self.placeholder = self.greets_again = False
        self.refusal = self.last = self.last_line = b""
        return asks

    def hold(self, job_id: int) -> None:
        """Note that a job is reserved."""
        if len(self.held) < _HELD_MAX:
            self.held.add(job_id)

    # -- from the server

    def receive(self, data: bytes) -> bool:  # noqa: PLR0911 - a case each
        """Hand out the replies in what has been received; return False if there is something else in it."""
        if self._parts:
            self._parts.append(data)
            self._size += len(data)
            if self._size < self._wanted:
                return True
            data = b"".join(self._parts)
            self._parts.clear()
        at, size = 0, len(data)
        asks = self.asks
        while at < size:
            end = data.find(b"\r\n", at) + 2
            if end < 2:
                return self._keep(data, at, size - at + 1) and size - at <= _LINE_MAX
            line = data[at:end]
            stop, body = end, b""
            if line.startswith(_WITH_BODY):
                length = line[line.rindex(b" ") + 1 : -2]
                if not length.isdigit():
                    return False
                stop = end + int(length) + 2
                if stop > size:
                    return self._keep(data, at, stop - at)
                body = data[end:stop]
            if not asks:
                self.last_line = line
                return False
            asks.popleft().answer(self, line, body)
            if self.state == CLOSED:  # the greeting was refused
                return False
            at = stop
        return True

    def _keep(self, data: bytes, at: int, wanted: int) -> bool:
        rest = data[at:]
        self._parts.append(rest)
        self._size = len(rest)
        self._wanted = wanted
        return True
