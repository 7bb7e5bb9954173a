"""The core of a client: bytes in, results out. It does no I/O and has no clock.

Commands are answered in the order in which they were sent. Each has a token, by which whoever has sent it knows it
again; a batch of jobs is an answer with their number, a `JobCount`, and then one for each. Puts and others that depend
on the tube that is used name their tube: as long as it is another one they are held back until the server has confirmed
it. A ``use`` that is refused leaves the tube as it was, so that a put right behind it would go to a tube that nobody
meant.
"""

from collections import deque
from typing import Any, Final

from beanlite.client import calls
from beanlite.client.calls import Call, Shape
from beanlite.client.errors import ClientError, NotSent, TimedOut, UnexpectedReply, UnknownCommand, declined


class JobCount(int):
    """How many jobs a batch has; each is an answer of its own."""


Answer = tuple[Any, Any]
"""The token of a command, and its result or its ClientError."""

DEFAULT: Final = "default"
"""The tube that a new connection uses and watches."""
# No line of the protocol is longer, but that of a list of errors of another program.
_LINE_MAX: Final = 1024
_SHOWN: Final = 60
_BATCH: Final = b"RESERVED_BATCH"
# How a server that speaks TLS answers what is none.
_ALERT: Final = b"\x15\x03"
_TLS: Final = "the server speaks TLS at this port"
_SWITCH: Final = object()  # the token of a use that held commands wait for
_SKIP: Final = object()  # that of a reply to a body that was read as a command


class Dialogue:
    """The commands and replies of one connection."""

    def __init__(self) -> None:
        self.unexpected: UnexpectedReply | None = None
        """The error of something that has come and is no reply to what was asked: the dialogue is over."""
        self.has_answered = False
        """Whether a command was answered since the greeting."""
        self.used = DEFAULT
        """The tube that the server has confirmed as the one that is used."""
        self._next: str | None = None
        """The tube of a ``use`` that is not answered yet."""
        self._held: dict[str, list[tuple[Call[Any], Any]]] = {}
        """By tube, the commands that wait until it is used, with their tokens."""
        self.sent: deque[tuple[Shape[Any], Any]] = deque()
        """The commands that are not answered yet."""
        self.out: list[bytes] = []
        """What `take` will return."""
        self._parts: list[bytes] = []
        """What has been received of a reply that is not complete."""
        self._size = 0
        self._wanted = 0
        """How many bytes of it there have to be before another look makes sense."""

    def send(self, call: Call[Any], token: object, tube: str | None = None) -> None:
        """Take a command; `take` returns what is to be sent now.

        ``tube`` has to be the one that is used when it is carried out. ValueError: no tube can have that name.
        """
        if tube is not None and (tube != self.used or self._next is not None):
            calls.encoded(tube)
            self._held.setdefault(tube, []).append((call, token))
            if self._next is None:
                self._switch()
            return
        data, shape = call
        self.sent.append((shape, token))
        self.out.append(data)

    def take(self) -> bytes:
        """Return what is to be sent now, once."""
        out = self.out
        if len(out) == 1:
            return out.pop()
        data = b"".join(out)
        out.clear()
        return data

    def receive(self, data: bytes) -> list[Answer]:
        """Return the answers in what has been received; if there is something else in it, `unexpected` says so."""
        if self._parts:
            data = self._whole(data)
        answers: list[Answer] = []
        at, size, line = 0, len(data), data
        try:
            while at < size:
                end = data.find(b"\r\n", at)
                if end < 0:
                    self._keep_line(data[at:])
                    break
                line = data[at:end]
                words = line.split(b" ")
                shape, token = self.sent[0]
                start, at = at, end + 2
                if words[0] != shape.word and words[0] != shape.refusal:
                    self._decline(line, shape, token, answers)
                    continue
                body = b""
                if shape.returns_body:
                    at += _length(words) + 2
                    if at > size:
                        self._keep(data[start:], at - start)
                        break
                    body = _body(data[end + 2 : at])
                if token is _SWITCH:
                    self.sent.popleft()
                    self._switched(None, answers)
                else:
                    answers.append((token, shape.read(words, body)))
                    self.sent.popleft()
            if answers:
                self.has_answered = True
        except (IndexError, ValueError):  # nothing was asked, or there is no number where one has to be
            self._break_off(line, answers)
        return answers

    def _whole(self, data: bytes) -> bytes:
        """Return what has been received of a reply that was not complete; nothing if there is too little to read."""
        self._parts.append(data)
        self._size += len(data)
        if self._size < self._wanted:
            return b""
        data = b"".join(self._parts)
        self._parts.clear()
        return data

    def _break_off(self, line: bytes, answers: list[Answer]) -> None:
        self.unexpected = UnexpectedReply(f"{line[:_SHOWN]!r} is not a reply to what was asked")
        answers += self.lose(self.unexpected)

    def raise_if_last(self, made_at: float, until: float | None, over: type[ClientError] = TimedOut) -> None:
        """Return if another connection may do better than this one, which was made then and has ended.

        UnexpectedReply: what came was none. ``over``: this one was made when the time was over.
        """
        if self.unexpected is not None:
            raise self.unexpected
        if until is not None and made_at > until:
            raise over("no answer came in time: the connection has ended again")

    @property
    def has_alert(self) -> bool:
        """Whether the server has answered as one that speaks TLS."""
        return bool(self._parts) and self._parts[0].startswith(_ALERT)

    def lose(self, error: UnexpectedReply | None = None) -> list[Answer]:
        """Return the answers when the connection has ended: to each command that is not answered an error.

        ``error``: that of the reply to the first of them.
        """
        why = _TLS if self.has_alert else "the connection ended before the answer came"
        answers: list[Answer] = []
        if error is not None and self.sent and self.sent[0][1] is _SWITCH:
            assert self._next is not None
            answers += [(token, error) for _, token in self._held.pop(self._next, [])]
        for shape, token in self.sent:
            if token is not _SWITCH and token is not _SKIP:
                answers.append((token, error or shape.lost(why)))
            error = None
        answers += [(token, NotSent(why)) for held in self._held.values() for _, token in held]
        self.sent.clear()
        self._held.clear()
        return answers

    def _keep_line(self, rest: bytes) -> None:
        if len(rest) > _LINE_MAX:
            raise ValueError
        self._keep(rest, len(rest) + 1)

    def _keep(self, rest: bytes, wanted: int) -> None:
        self._parts.append(rest)
        self._size = len(rest)
        self._wanted = wanted

    def _decline(self, line: bytes, shape: Shape[Any], token: object, answers: list[Answer]) -> None:
        error = declined(line)
        if error is None:
            self._expect_batch(line, shape, token, answers)
            return
        self.sent.popleft()
        if token is _SKIP:
            return
        if shape.has_body and isinstance(error, UnknownCommand):
            self.sent.appendleft((shape, _SKIP))
        if token is _SWITCH:
            self._switched(error, answers)
        else:
            answers.append((token, error))

    def _expect_batch(self, line: bytes, shape: Shape[Any], token: object, answers: list[Answer]) -> None:
        word, _, digits = line.partition(b" ")
        if word != _BATCH or shape is not calls.BATCH or not 0 < int(digits) <= calls.BATCH_MAX:
            raise ValueError
        count = JobCount(digits)
        answers.append((token, count))
        self.sent.popleft()
        self.sent.extendleft([(calls.RESERVE[1], token)] * count)  # in which there is no other batch

    def _switch(self) -> None:
        """Use the tube of the commands that have been held for longest."""
        self._next = next(iter(self._held))
        self.send(calls.use(self._next), _SWITCH)

    def _switched(self, error: ClientError | None, answers: list[Answer]) -> None:
        """Send what was held for a tube, or answer it with the error that the tube can't be used."""
        tube = self._next
        assert tube is not None
        held = self._held.pop(tube, [])
        self._next = None
        if error is None:
            self.used = tube
            self._release(held)
        else:
            answers += [(token, error) for _, token in held]
            self._release(self._held.pop(self.used, []))
        if self._held:
            self._switch()

    def _release(self, held: list[tuple[Call[Any], Any]]) -> None:
        for call, token in held:
            self.send(call, token)


def _length(words: list[bytes]) -> int:
    if not words[-1].isdigit():
        raise ValueError
    return int(words[-1])


def _body(data: bytes) -> bytes:
    if not data.endswith(b"\r\n"):
        raise ValueError
    return data[:-2]
