"""The beanstalk protocol: bytes in, replies out, in order. No I/O.

A ``Session`` is one client's side. ``receive`` carries out the commands that are complete; ``replies`` gathers what
they answer, and ``waits`` tells that these may leave only when the batch being gathered is stored. It stops while
``blocked``: in a reserve that waits, in a kick that goes on in slices, or because the client has enough to read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from beanlite import commands, parse, stats
from beanlite.commands import BARE, KICKING, PREFIXES, REPLETE, WAITING, WITH_ARGS
from beanlite.engine import DEADLINE_SOON, Engine
from beanlite.heap import KeyHeap
from beanlite.job import Job

LINE_MAX: Final = 224  # bytes of a command line with its CR LF
REPLIES_MAX: Final = 1 << 20  # bytes of bodies in replies not yet sent, after which a client has to read first


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
        "_body_bytes",
        "_discarding",
        "_missing",
        "_parts",
        "_put",
        "_skip",
        "_skip_reply",
        "blocked",
        "client",
        "closing",
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
        self.client = service.engine.connect()
        self.replies: list[bytes] = []
        self.waits = False
        self.blocked: str | None = None
        self.closing = False
        """The client has said quit."""
        self.half_closed = False
        self._parts: list[bytes] = []
        """What has been received and not yet carried out."""
        self._missing = 0
        """How many bytes must come before there is something to carry out."""
        self._put: tuple[int, int, int, int, bool] | None = None
        """A put whose body is still to come."""
        self._skip = 0
        """Bytes of a refused body that are still to be thrown away, and then answered."""
        self._skip_reply = b""
        self._discarding = False
        """In a line that is too long."""
        self.kick: tuple[KeyHeap, int, int] | None = None
        """A kick under way: the queue, how many are left to kick, how many have been."""
        self._body_bytes = 0

    # -- the connection's side

    def receive(self, data: bytes, now_ns: int) -> None:
        """Take bytes from the client, and carry out what is complete."""
        self._parts.append(data)
        self._missing -= len(data)
        if self._missing <= 0 and not self.blocked:
            self.run(now_ns)

    def half_close(self, now_ns: int) -> None:
        """The client sends no more; it may still read. It can't be told to wait any longer."""
        self.half_closed = True
        if self.blocked is WAITING:
            self.engine.stop_waiting(self.client)
            self.blocked = None
            self.replies.append(commands.TIMED_OUT)
            self.run(now_ns)

    def wake(self, outcome: Job | str, now_ns: int) -> None:
        """The waiting is over; the commands behind the reserve can go on."""
        self.blocked = None
        if isinstance(outcome, Job):
            self.replies.append(self.job_reply(b"RESERVED", outcome))
        else:
            self.replies.append(commands.DEADLINE_SOON if outcome is DEADLINE_SOON else commands.TIMED_OUT)
        if self._parts and not self.blocked:
            self.run(now_ns)

    def take_replies(self) -> bytes:
        """All replies so far; they are on their way."""
        replies = self.replies
        data = replies[0] if len(replies) == 1 else b"".join(replies)
        replies.clear()
        self.waits = False
        self._body_bytes = 0
        return data

    @property
    def pending(self) -> int:
        """Bytes received and not yet carried out."""
        return sum(map(len, self._parts))

    # -- framing

    def run(self, now_ns: int) -> None:  # noqa: C901 - the hot loop: a call for each branch would cost a tenth
        """Carry out the commands that have come, as far as they are complete and nothing blocks.

        To be called, too, to go on with a kick, and when a client that was replete has read its replies.
        """
        parts = self._parts
        buffer = parts[0] if len(parts) == 1 else b"".join(parts)
        parts.clear()
        replies = self.replies
        size = len(buffer)
        at = 0
        self._missing = 0
        if self.blocked is REPLETE:
            self.blocked = None
        elif self.blocked is KICKING:
            commands.go_on_kicking(self, now_ns)
        while at < size and not self.blocked and not self.closing:
            if self._put is not None:
                stop = at + self._put[3] + 2
                if stop > size:
                    self._missing = stop - size
                    break
                replies.append(self._finish_put(self._put, buffer, at, now_ns))
                at = stop
                continue
            if self._skip or self._discarding:
                at = self._throw_away(buffer, at)
                continue
            end = buffer.find(b"\r\n", at, at + LINE_MAX)
            if end < 0:
                if size - at < LINE_MAX:
                    break
                self._discarding = True
                continue
            line = buffer[at:end]
            at = end + 2
            word, blank, args = line.partition(b" ")
            command = WITH_ARGS.get(word) if blank else BARE.get(word)
            reply = command(self, args, now_ns) if command is not None else self._odd_line(line, now_ns)
            if reply is not None:
                replies.append(reply)
        if at < size and not self.closing:
            parts.append(buffer[at:] if at else buffer)

    def _throw_away(self, buffer: bytes, at: int) -> int:
        """Leave out a refused body, or the rest of a line that is too long; returns where it ends."""
        if self._skip:
            skipped = min(self._skip, len(buffer) - at)
            self._skip -= skipped
            if not self._skip:
                self.replies.append(self._skip_reply)
            return at + skipped
        end = buffer.find(b"\r\n", at)
        if end >= 0:
            self._discarding = False
            self.replies.append(commands.BAD_FORMAT)
            return end + 2
        if buffer.endswith(b"\r"):
            self._parts.append(b"\r")  # the first half of its end, perhaps
        return len(buffer)

    def _odd_line(self, line: bytes, now_ns: int) -> bytes | None:
        """A line that is no command to the letter; the reference matches words by their beginning."""
        if b"\0" in line:
            return commands.BAD_FORMAT
        if line.startswith(b"quit"):
            self.closing = True
            return None
        if line.startswith(b"pause-tube"):
            return commands.pause_tube(self, line[len(b"pause-tube") :], now_ns)
        return commands.BAD_FORMAT if line.startswith(PREFIXES) else commands.UNKNOWN_COMMAND

    # -- put

    def begin_put(self, args: bytes) -> bytes | None:
        """A put line: the body follows, unless the line is refused at once."""
        put = parse.parse_put(args)
        if put is None:
            return commands.BAD_FORMAT
        self.counters.put += 1
        size = put[3]
        if size > self.service.max_job_size:
            self._skip = size + 2
            self._skip_reply = b"JOB_TOO_BIG\r\n"
            return None
        if not put[4]:
            return commands.BAD_FORMAT
        self.engine.becomes_producer(self.client)
        self._put = put
        return None

    def _finish_put(self, put: tuple[int, int, int, int, bool], buffer: bytes, at: int, now_ns: int) -> bytes:
        self._put = None
        pri, delay_s, ttr_s, size, _ = put
        end = at + size
        if not buffer.startswith(b"\r\n", end):
            return b"EXPECTED_CRLF\r\n"
        engine = self.engine
        if engine.draining:
            return b"DRAINING\r\n"
        if engine.full:
            return b"OUT_OF_MEMORY\r\n"
        self.waits = True
        return b"INSERTED %d\r\n" % engine.put(self.client, pri, delay_s, ttr_s, buffer[at:end], now_ns).id

    # -- replies with a body

    def job_reply(self, word: bytes, job: Job) -> bytes:
        """RESERVED or FOUND."""
        if job.batch > self.engine.stored_batch:
            self.waits = True  # nobody works on, or sees, a job that a crash could still undo
        self._count_bytes(len(job.body))
        return b"%b %d %d\r\n%b\r\n" % (word, job.id, len(job.body), job.body)

    def ok_reply(self, body: bytes) -> bytes:
        """OK, with statistics or a list."""
        self._count_bytes(len(body))
        return b"OK %d\r\n%b\r\n" % (len(body), body)

    def _count_bytes(self, size: int) -> None:
        self._body_bytes += size
        if self._body_bytes > REPLIES_MAX:
            self.blocked = REPLETE
