"""The beanstalk protocol: bytes in, replies out, in order. No I/O.

A ``Session`` is one client's side. ``receive`` carries out the commands that are complete; ``replies`` gathers what
they answer, and ``waits`` tells that these may leave only when the batch being gathered is stored. It stops while
``blocked``: in a reserve that waits, in a kick that goes on in slices, because the client has enough to read, or
because it has sent so much at once that others have to be served meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from beanlite.core.engine import Engine
from beanlite.core.heap import KeyHeap
from beanlite.core.job import Job
from beanlite.core.queues import Outcome
from beanlite.protocol import arguments, commands, stats
from beanlite.protocol.commands import CLOSING, KICKING, REPLETE, WAITING, YIELDING

LINE_MAX: Final = 224  # bytes of a command line with its CR LF
REPLIES_MAX: Final = 1 << 20  # bytes of bodies in replies not yet sent, after which a client has to read first
UNSENT_MAX: Final = 10_000  # replies not yet sent, likewise
STEPS_MAX: Final = 1000  # lines and bodies carried out in one go: some 1 ms, and as much to store them

_BODY: Final = "a put's body"
_REFUSED_BODY: Final = "the body of a put that was refused"
_LONG_LINE: Final = "the rest of a line that is too long"


@dataclass(slots=True)
class Service:
    """What the sessions of a server share."""

    engine: Engine
    max_job_size: int
    journaled: bool
    facts: Callable[[], stats.Facts]
    counters: stats.Counters


class Session:
    """One client's side of the protocol."""

    __slots__ = (
        "_amid",
        "_missing",
        "_parts",
        "_put",
        "_skip",
        "blocked",
        "body_bytes",
        "client",
        "counters",
        "engine",
        "half_closed",
        "kick",
        "replies",
        "service",
        "waits",
    )

    def __init__(self, service: Service) -> None:
        self.service = service
        self.engine = service.engine
        self.counters = service.counters
        self.client = service.engine.clients.connect()
        self.replies: list[bytes] = []
        self.waits = False
        self.blocked: str | None = None
        self.half_closed = False
        self._parts: list[bytes] = []
        """What has been received and not yet carried out."""
        self._missing = 0
        """How many bytes must come before there is something to carry out."""
        self._amid: str | None = None
        """What comes next where that is no line."""
        self._put = (0, 0, 0, 0, True)
        """The put whose body comes next."""
        self._skip = 0
        """How much of a refused body is still to come."""
        self.kick: tuple[KeyHeap, int, int] | None = None
        """A kick under way: the queue, how many are left to kick, how many have been."""
        self.body_bytes = 0
        """Of bodies in replies that are not yet sent; who sends them begins anew."""

    # -- the connection's side

    def receive(self, data: bytes, now_ns: int) -> None:
        """Take bytes from the client, and carry out what is complete."""
        if self._parts or self.blocked:
            self._parts.append(data)
            self._missing -= len(data)
            if self._missing > 0 or self.blocked:
                return
            data = b"".join(self._parts)
            self._parts.clear()
        self._run(data, now_ns)

    def put_off(self, data: bytes) -> None:
        """Take bytes from the client, to be carried out in a later turn, by ``run``."""
        self._parts.append(data)
        self._missing -= len(data)
        if self._missing <= 0:  # a large body is not looked at before it is there
            self.blocked = self.blocked or YIELDING

    def half_close(self, now_ns: int) -> None:
        """The client sends no more; it may still read. It can't be told to wait any longer."""
        self.half_closed = True
        if self.blocked is WAITING:
            self.engine.clients.stop_waiting(self.client)
            self.blocked = None
            self.replies.append(commands.TIMED_OUT)
            self.run(now_ns)

    def wake(self, outcome: Job | Outcome, now_ns: int) -> None:
        """The waiting is over; the commands behind the reserve can go on."""
        self.blocked = None
        if isinstance(outcome, Job):
            self.replies.append(self.job_reply(commands.RESERVED, outcome))
        else:
            self.replies.append(commands.DEADLINE_SOON if outcome is Outcome.DEADLINE_SOON else commands.TIMED_OUT)
        if self._parts and not self.blocked:
            self.run(now_ns)

    def fail(self) -> None:
        """A bug of ours has come up: the client is told so, behind all that it has been answered, and then closed."""
        if self.blocked is CLOSING:
            return
        self.engine.clients.stop_waiting(self.client)
        self._parts.clear()
        self.kick = None
        self.replies.append(commands.INTERNAL_ERROR)
        self.blocked = CLOSING

    def take_replies(self, *, sent: bool = True) -> bytes:
        """All replies so far. Unless they are ``sent``, they still count as to be read by the client."""
        replies = self.replies
        data = replies[0] if len(replies) == 1 else b"".join(replies)
        replies.clear()
        self.waits = False
        if sent:
            self.body_bytes = 0
        return data

    @property
    def pending(self) -> int:
        """Bytes received and not yet carried out."""
        return sum(map(len, self._parts))

    # -- framing

    def run(self, now_ns: int) -> None:
        """Go on with what has been received: a kick's next slice, or the commands behind whatever blocked."""
        if self.blocked is REPLETE or self.blocked is YIELDING:
            self.blocked = None
        elif self.blocked is KICKING:
            commands.go_on_kicking(self, now_ns)
        if not self.blocked:
            buffer = b"".join(self._parts)
            self._parts.clear()
            self._run(buffer, now_ns)

    def _run(self, buffer: bytes, now_ns: int) -> None:
        """Carry out the commands in the buffer, as far as they are complete and nothing blocks; keep the rest."""
        replies = self.replies
        size = len(buffer)
        at = 0
        self._missing = 0
        steps = STEPS_MAX
        while at < size and not self.blocked:
            steps -= 1
            if not steps:
                self.blocked = YIELDING
                break
            if self._amid is not None:
                if self._amid is _BODY:
                    stop = at + self._put[3] + 2
                    if stop > size:
                        self._missing = stop - size
                        break
                    self._amid = None
                    replies.append(self._finish_put(buffer, at, now_ns))
                    at = stop
                    continue
                at = self._throw_away(buffer, at)
                continue
            end = buffer.find(b"\r\n", at)
            if end < 0 or end - at > LINE_MAX - 2:
                if size - at < LINE_MAX:
                    break
                self._amid = _LONG_LINE
                continue
            line = buffer[at:end]
            at = end + 2
            word, blank, args = line.partition(b" ")
            command = _WITH_ARGS.get(word) if blank else _BARE.get(word)
            reply = command(self, args, now_ns) if command is not None else self._odd_line(line, now_ns)
            if reply is not None:
                replies.append(reply)
        if at < size or self.blocked:
            self._keep(buffer[at:])

    def _keep(self, rest: bytes) -> None:
        """What is not carried out yet is, when the session goes on."""
        if rest and self.blocked is not CLOSING:
            self._parts.append(rest)
            if self.blocked is YIELDING and len(self.replies) > UNSENT_MAX:
                self.blocked = REPLETE
        elif self.blocked is YIELDING:  # with nothing left there is no need
            self.blocked = None

    def _throw_away(self, buffer: bytes, at: int) -> int:
        """Leave out a refused body, or the rest of a line that is too long; returns where what is left begins."""
        if self._amid is _REFUSED_BODY:
            skipped = min(self._skip, len(buffer) - at)
            self._skip -= skipped
            if not self._skip:
                self._amid = None
                self.replies.append(b"JOB_TOO_BIG\r\n")
            return at + skipped
        end = buffer.find(b"\r\n", at)
        if end >= 0:
            self._amid = None
            self.replies.append(commands.BAD_FORMAT)
            return end + 2
        if buffer.endswith(b"\r"):
            self._parts.append(b"\r")  # the first half of the line's end, perhaps
        return len(buffer)

    def _odd_line(self, line: bytes, now_ns: int) -> bytes | None:
        """A line that is no command to the letter; the reference matches words by their beginning."""
        if b"\0" in line:
            return commands.BAD_FORMAT
        if line.startswith(b"quit"):
            self.blocked = CLOSING
            return None
        if line.startswith(b"pause-tube"):
            return commands.pause_tube(self, line[len(b"pause-tube") :], now_ns)
        return commands.BAD_FORMAT if line.startswith(_PREFIXES) else commands.UNKNOWN_COMMAND

    # -- put

    def begin_put(self, args: bytes, _now_ns: int) -> bytes | None:
        """A put line: the body follows, unless the line is refused at once."""
        put = arguments.parse_put(args)
        if put is None:
            return commands.BAD_FORMAT
        self.counters.put += 1
        if put[3] > self.service.max_job_size:
            self._skip = put[3] + 2
            self._amid = _REFUSED_BODY
            return None
        if not put[4]:
            return commands.BAD_FORMAT
        if not self.client.producer:
            self.engine.clients.becomes_producer(self.client)
        self._put = put
        self._amid = _BODY
        return None

    def _finish_put(self, buffer: bytes, at: int, now_ns: int) -> bytes:
        pri, delay_s, ttr_s, size, _ = self._put
        end = at + size
        if not buffer.startswith(b"\r\n", end):
            return b"EXPECTED_CRLF\r\n"
        engine = self.engine
        if engine.draining:
            return b"DRAINING\r\n"
        if engine.full or size > engine.room_bytes:
            return b"OUT_OF_MEMORY\r\n"
        self.waits = True
        return b"INSERTED %d\r\n" % engine.put(self.client, pri, delay_s, ttr_s, buffer[at:end], now_ns).id

    # -- replies with a body

    def job_reply(self, form: bytes, job: Job) -> bytes:
        """One of the two forms of a reply with a job."""
        if job.id > self.engine.ledger.stored_id:
            self.waits = True  # nobody works on, or sees, a job that a crash could still undo
        body = job.body
        size = len(body)
        self.body_bytes += size
        if self.body_bytes > REPLIES_MAX:
            self.blocked = REPLETE
        return form % (job.id, size, body)

    def ok_reply(self, body: bytes) -> bytes:
        """OK, with statistics or a list."""
        self.body_bytes += len(body)
        if self.body_bytes > REPLIES_MAX:
            self.blocked = REPLETE
        return b"OK %d\r\n%b\r\n" % (len(body), body)


_Command = Callable[[Session, bytes, int], bytes | None]

_WITH_ARGS: Final[dict[bytes, _Command]] = {
    b"put": Session.begin_put,
    b"reserve-with-timeout": commands.reserve_with_timeout,
    b"reserve-job": commands.reserve_job,
    b"delete": commands.delete,
    b"release": commands.release,
    b"bury": commands.bury,
    b"touch": commands.touch,
    b"kick": commands.kick,
    b"kick-job": commands.kick_job,
    b"peek": commands.peek,
    b"stats-job": commands.stats_job,
    b"stats-tube": commands.stats_tube,
    b"use": commands.use,
    b"watch": commands.watch,
    b"ignore": commands.ignore,
    b"pause-tube": commands.pause_tube,
}
_BARE: Final[dict[bytes, _Command]] = {
    b"reserve": commands.reserve,
    b"peek-ready": commands.peek_ready,
    b"peek-delayed": commands.peek_delayed,
    b"peek-buried": commands.peek_buried,
    b"stats": commands.stats,
    b"list-tubes": commands.list_tubes,
    b"list-tube-used": commands.list_tube_used,
    b"list-tubes-watched": commands.list_tubes_watched,
}
# What begins like one of these and goes on otherwise is malformed, not unknown.
_PREFIXES: Final = tuple(_BARE)
