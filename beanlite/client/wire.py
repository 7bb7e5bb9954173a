"""A connection that blocks: the socket for a `Dialogue`."""

import select
import socket
import ssl
import time
from contextlib import suppress
from typing import Any, Final, TypeVar

from beanlite.client import calls
from beanlite.client.calls import Call
from beanlite.client.dialogue import DEFAULT, Answer, Dialogue, JobCount
from beanlite.client.errors import (
    UNFIT,
    BadFormat,
    ClientError,
    Declined,
    UnknownCommand,
    cannot_connect,
)
from beanlite.client.target import CONNECT_S, KEEPALIVE, Target, no_such_host

T = TypeVar("T")

# A large buffer is mapped, and unmapped, for each reply.
_RECEIVE_BYTES: Final = 1 << 14
# The errors of a connection that the server has closed.
_ENDS: Final = (ConnectionError, ssl.SSLEOFError)
# Where errors of sockets are raised.
_OWN_MODULES: Final = frozenset({__name__, "socket", "ssl"})
# The system takes a longer time for a much shorter one: it counts milliseconds in 32 bits.
_LIMIT_MAX_S: Final = 2_000_000
# Python keeps such small buffers ready, and need not allocate one.
_LINE_BYTES: Final = 256
_HANG_UP: Final = "the server closed the connection"
# Only Linux tells that the other side has closed; elsewhere the next command finds it out.
_CLOSED: Final = getattr(select, "POLLRDHUP", 0)


class Wire:
    """A connection, which one command at a time goes over, or several at once."""

    def __init__(self, where: Target, timeout_s: float | None, connect_s: float = CONNECT_S) -> None:
        """Connect, within a time. OSError: that fails."""
        self._dialogue = Dialogue()
        self._timeout_s = timeout_s
        self.is_lost = False
        self.failure: OSError | None = None
        """Why it has ended by itself."""
        self.watched = frozenset({DEFAULT})
        """The tubes that the server has confirmed as watched."""
        self.held = 0
        """How many jobs are reserved on it."""
        self.knows_notes: bool | None = None
        self.knows_batches = True
        """Whether the server may know them."""
        self.socket = _connected(where, connect_s)
        self._ends = select.poll()
        self._ends.register(self.socket, _CLOSED)
        self.made_at = time.monotonic()

    def greet(self, where: Target) -> None:
        """Show the token and the name. Unauthorized: the token is not accepted."""
        if where.token is not None:
            self._if_known(calls.auth(where.token))
        if where.name is not None:
            self._if_known(calls.call_itself(where.name))
        self.ask(calls.list_tube_used())
        self._dialogue.has_answered = False
        self.socket.settimeout(None)
        self._allow(0)

    def _if_known(self, call: Call[None]) -> None:
        try:
            self.ask(call)
        except UnknownCommand:
            return

    def watch(self, tubes: frozenset[str]) -> None:
        """Watch these tubes and no others. Declined: the server does not allow it."""
        if tubes == self.watched:
            return
        more, less = sorted(tubes - self.watched), sorted(self.watched - tubes)
        results = self.ask_all([*map(calls.watch, more), *map(calls.ignore, less)])
        refusals = [result for result in results if isinstance(result, ClientError)]
        # What was not refused has changed: the jobs in hand are worth the connection.
        changed = zip([*more, *less], results, strict=True)
        self.watched ^= {tube for tube, result in changed if not isinstance(result, ClientError)}
        if refusals:
            raise refusals[0]

    def note(self, job_id: int, text: str) -> None:
        """Leave a note on a job, if the server knows notes."""
        if self.knows_notes is None:
            try:
                self.ask(calls.note(0, ""))
            except UnknownCommand:
                self.knows_notes = False
            except Declined:
                self.knows_notes = True
        if self.knows_notes:
            with suppress(Declined):  # what becomes of the job is more important
                self.ask(calls.note(job_id, text))

    @property
    def is_asking(self) -> bool:
        """Whether a command is under way."""
        return bool(self._dialogue.sent)

    @property
    def has_answered(self) -> bool:
        """Whether the server has answered a command since the greeting."""
        return self._dialogue.has_answered

    def raise_if_last(self, until: float | None, over: type[ClientError]) -> None:
        """Return if another connection may do better than this one, which has ended; as that of `Dialogue`."""
        self._dialogue.raise_if_last(self.made_at, until, over)

    def notice_end(self) -> None:
        """Close the connection if the server has done so while nothing was asked."""
        if not self.is_lost and self._ends.poll(0):
            self.failure = ConnectionResetError(_HANG_UP)
            self.close()

    def close(self) -> None:
        """Close the connection."""
        self.is_lost = True
        self.socket.close()

    def ask(self, call: Call[T], tube: str | None = None, waits_s: float | None = 0) -> T:
        """Send a command, and return its result; ``waits_s``: how long the server waits with it at most."""
        dialogue = self._dialogue
        if (tube is None or tube == dialogue.used) and (waits_s == 0 or self._timeout_s is None):
            data, shape = call
            try:
                dialogue.sent.append((shape, None))
                self.socket.sendall(data)
                answers = dialogue.receive(self.socket.recv(_RECEIVE_BYTES if shape.returns_body else _LINE_BYTES))
                if dialogue.unexpected is not None:
                    self.close()
                elif not answers:
                    answers = self._exchange(1)
            except OSError as error:
                answers = self._lost(error)
            except BaseException:
                self.close()
                raise
        else:
            answers = self._sent([call], tube, waits_s)
        result: Any = answers[0][1]
        if isinstance(result, ClientError):
            raise result from self.failure
        return result  # type: ignore[no-any-return] # it is what the call promises

    def ask_all(
        self, several: list[Call[T]], tube: str | None = None, waits_s: float | None = 0
    ) -> list[T | ClientError]:
        """Send several commands at once, and return their results and errors."""
        return [result for _, result in self._sent(several, tube, waits_s)]

    def reserve_several(self, count: int) -> list[tuple[int, bytes] | ClientError]:
        """Reserve so many jobs if they are ready, otherwise one; beanlite has a word for that."""
        if self.knows_batches:
            try:
                answers = self._sent([calls.reserve_batch(count)], None, None)
                first = answers[0][1]
                if isinstance(first, JobCount):
                    return [result for _, result in answers[1:] + self._exchange(first + 1 - len(answers))]
            except BaseException:  # as in _sent
                self.close()
                raise
            if not isinstance(first, BadFormat | UnknownCommand):
                return [first]
            self.knows_batches = False
        return self.ask_all([calls.RESERVE, *[calls.reserve(0)] * (count - 1)], None, None)

    def _sent(self, several: list[Call[T]], tube: str | None, waits_s: float | None) -> list[Answer]:
        if tube is not None:
            calls.encoded(tube)
        try:
            for call in several:
                self._dialogue.send(call, None, tube)
            if waits_s != 0:
                self._allow(waits_s)
            answers = self._exchange(len(several))
        except BaseException:  # an answer that came later would be taken for that to another command
            self.close()
            raise
        if waits_s != 0 and not self.is_lost:
            self._allow(0)
        return answers

    def _exchange(self, count: int) -> list[Answer]:
        """Send what is to be sent, and return so many answers; if that is interrupted, the caller has to close."""
        dialogue, sock = self._dialogue, self.socket
        answers: list[Answer] = []
        try:
            while len(answers) < count:
                if dialogue.out:
                    sock.sendall(dialogue.take())
                received = sock.recv(_RECEIVE_BYTES)
                if not received:
                    raise ConnectionResetError(_HANG_UP)
                answers += dialogue.receive(received)
        except OSError as error:
            answers += self._lost(error)
        if dialogue.unexpected is not None:
            self.close()
        return answers

    def _lost(self, error: OSError) -> list[Answer]:
        """Return the answers: what the server has said before it closed the connection, and errors."""
        answers: list[Answer] = []
        try:
            _raise_if_foreign(error)
            self.failure = error
            if isinstance(error, _ENDS):
                try:
                    answers = self._dialogue.receive(self.socket.recv(_RECEIVE_BYTES))
                except OSError as last:  # an alert of TLS tells more
                    _raise_if_foreign(last)
                    self.failure = last
        finally:
            self.close()
        return answers + self._dialogue.lose()

    def _allow(self, waits_s: float | None) -> None:
        """Have the next answer take so long, beyond the time that any may take."""
        if self._timeout_s is not None:
            limit_s = None if waits_s is None else waits_s + self._timeout_s
            self.socket.settimeout(None if limit_s is None or limit_s > _LIMIT_MAX_S else limit_s)


def connect_wire(where: Target, timeout_s: float | None) -> Wire:
    """Connect, and show the token and the name. CannotConnect; Unauthorized: the token is not accepted."""
    try:
        wire = Wire(where, timeout_s, CONNECT_S if timeout_s is None else min(CONNECT_S, timeout_s))
        try:
            wire.greet(where)
        except BaseException:
            wire.close()
            raise
    except (OSError, *UNFIT) as error:
        _raise_if_foreign(error)
        raise cannot_connect(where, error) from error
    return wire


def _raise_if_foreign(error: Exception) -> None:
    """Raise an error that is not the socket's own: a handler of a signal has raised it to interrupt the command.

    What the system reports has a number. A timeout, and what this module raises, have none.
    """
    if not isinstance(error, OSError) or isinstance(error, ssl.SSLError) or error.errno is not None:
        return
    at = error.__traceback__
    while at is not None:
        if at.tb_frame.f_globals.get("__name__") not in _OWN_MODULES:
            raise error
        at = at.tb_next


def _connected(where: Target, within_s: float) -> socket.socket:
    if where.path is not None:
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(within_s)
        try:
            sock.connect(where.path)
        except OSError:
            sock.close()
            raise
        return sock
    try:
        sock = socket.create_connection((where.host, where.port), within_s)
    except UnicodeError:
        raise no_such_host() from None
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for level, option, value in KEEPALIVE:
            sock.setsockopt(level, option, value)
        context = where.context()
        return sock if context is None else context.wrap_socket(sock, server_hostname=where.host)
    except OSError:
        sock.close()
        raise
