"""From bytes to commands: finds the lines and bodies in a client's input, and carries them out in order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from beanlite.core.job import Job
from beanlite.core.queues import Outcome
from beanlite.protocol import commands, offers, replies
from beanlite.protocol.blocked import CLOSING, FETCHING, KICKING, REPLETE, WAITING, YIELDING
from beanlite.protocol.noting import NoteLine
from beanlite.protocol.odd_lines import is_stranger, odd_line
from beanlite.protocol.session import Service, Session

if TYPE_CHECKING:
    from mypy_extensions import i64  # an int of the machine in compiled code, and any other int in the sources

CR: Final = 13
LF: Final = 10
BLANK: Final = 32
_PUT_WORDS: Final = 5  # put PRI DELAY TTR BYTES
LINE_MAX: Final = 224  # bytes of a command line with its CR LF
UNSENT_MAX: Final = 10_000  # replies that are not sent yet; with more, the client has to read some first
# A client may send this many bytes ahead while its session is blocked; beyond that the server stops reading from it.
READ_AHEAD_MAX: Final = 1 << 18
STEPS_MAX: Final = 200  # lines and bodies carried out in one go, before others get their turn
# A small part of the input is joined to the one before it until that has this many bytes: a part by itself takes some
# tens of bytes more than it has.
PART_BYTES: Final = 1 << 12
SMALL_PART: Final = 1 << 9


def line_closes_from(max_job_size: int) -> int:
    """Return from which size a line without an end closes the connection; a shorter one may be meant as a body."""
    return max(1 << 20, max_job_size)


def is_one_put(data: bytes) -> bool:
    """Whether data is no more than a put: its body may have any number of lines."""
    line, _, rest = data.partition(b"\r\n")
    words = line.split(b" ")
    is_put = len(words) == _PUT_WORDS and words[0] == b"put" and len(line) < LINE_MAX  # int() refuses long numbers
    return is_put and words[4].isdigit() and int(words[4]) + 2 >= len(rest)


class FramedSession(Session):
    """A session as its connection sees it: bytes go in, and replies come out.

    The connection calls ``receive`` with the bytes that have arrived, or ``postpone`` if others are to be served first;
    ``half_close`` when the client sends no more; ``wake`` when the engine reports that its wait is over; ``resume`` as
    described below; and ``fail`` if any of these has raised an exception.

    After each call it looks for ``replies``. If the session ``waits``, they are taken with ``hold``, to be sent when
    the batch being gathered is stored. This also applies to a slice of a kick, which waits without a reply. Otherwise
    the replies are taken and sent at once, but not before any that are still held. When none are held any more, the
    connection calls ``replies_sent``.

    Then it acts on the reason for which the session is ``blocked``:

    - None: all complete input has been carried out. If the client sends no more (``half_closed``), the connection is
      closed when the replies are sent.
    - WAITING: nothing is to be done before ``wake``. Input ends the wait for an offer.
    - LOOKING, WORKING: ``resume`` is called when it is the turn of a command that takes long.
    - FETCHING: the bodies that the session is ``gathering`` are fetched from the journal, and each is handed to
      ``bring``; ``resume`` is called after the last one.
    - KICKING: ``resume`` is called when the slice is stored, and carries out the next one.
    - YIELDING: ``resume`` is called when others have had their turn.
    - REPLETE: ``resume`` is called when the replies are sent.
    - CLOSING: the connection is closed when the replies are sent.

    While the session is blocked, ``receive`` only keeps its input. ``pending`` tells how much, and the connection
    reads no more from a client that is too far ahead.
    """

    __slots__ = ("_missing", "_parts", "_skipped_bytes", "pending")

    def __init__(self, service: Service, address: str) -> None:
        super().__init__(service, address)
        self._parts: list[bytes] = []
        self.pending = 0
        """How many bytes have been received and not yet carried out: those in ``_parts``, which may be very many."""
        self._missing = 0
        """How many more bytes are needed before there is something to carry out."""
        self._skipped_bytes = 0
        """How many bytes of an overlong line have been skipped; if not 0, the next input is the rest of that line."""

    # -- what the connection calls

    def receive(self, data: bytes, now_ns: int) -> None:
        """Take bytes from the client, and carry out all that is complete."""
        if self._parts or self.blocked is not None:
            self._add_part(data)
            self._missing -= len(data)
            if offers.waits_for_offer(self):
                offers.stop_waiting(self)
            if self._missing > 0 or self.blocked is not None:
                return
            data = self._take_parts(now_ns)
        self._carry_out(data, now_ns)

    def receive_first(self, data: bytes, now_ns: int) -> None:
        """Take bytes that begin or continue a look; carry out that, with its body, and the rest in a later turn."""
        at = 0
        if self._parts:
            self._add_part(data)
            self._missing -= len(data)
            if self._missing > 0:
                return
            has_line = self.put is not None
            data = self._take_parts(now_ns)
            if has_line and self.put is None:  # the body was complete
                self._missing = 0
                if data:
                    self.postpone(data)
                return
        if self.put is None:
            end = data.find(b"\r\n")
            at = len(data) if end < 0 else end + 2
            self._carry_out(data[:at], now_ns)
        if self.put is not None and self.blocked is None:
            stop = at + self.put.size + 2
            self._carry_out(data[at:stop], now_ns)
            at = stop
        if at < len(data):
            self.postpone(data[at:])

    def postpone(self, data: bytes) -> None:
        """Take bytes from the client, to be carried out in a later turn by ``resume``."""
        self._add_part(data)
        self._missing -= len(data)
        if offers.waits_for_offer(self):
            offers.stop_waiting(self)
        if self._missing <= 0 and self.blocked is None:  # there is nothing to resume until a large body is complete
            self.blocked = YIELDING

    def resume(self, now_ns: int, steps: int = STEPS_MAX) -> None:
        """Unblock the session, with what it was blocked for; then carry out up to ``steps`` more steps."""
        if self.aside is not None:
            if len(self.replies) > UNSENT_MAX:
                self.blocked = REPLETE
            else:
                self.carry_out_aside(now_ns)
        elif self.blocked is REPLETE or self.blocked is YIELDING:
            self.blocked = None
        elif self.blocked is KICKING:
            commands.resume_kick(self, now_ns)
        elif self.blocked is FETCHING:
            self.answer_with_bodies(now_ns)
        if self._parts and offers.waits_for_offer(self):
            offers.stop_waiting(self)
        if self.blocked is None:
            self._carry_out(self._take_parts(now_ns), now_ns, steps)

    def wake(self, outcome: Job | Outcome) -> None:
        """End the wait with its outcome; the commands after it have to wait for their turn.

        Otherwise clients whose next commands are puts and reserves could wake each other without end.
        """
        # In a function of its own: compiled code would take what is assigned to `blocked` here for its value below.
        offers.end_wait(self, outcome)
        if self._parts and self.blocked is None:
            self.blocked = YIELDING

    def half_close(self, now_ns: int) -> None:
        """Note that the client sends no more, but may still read. From now on none of its reserves waits."""
        self.half_closed = True
        if self.blocked is WAITING:
            self.engine.clients.stop_waiting(self.client)
            self.blocked = None
            self.replies.append(replies.TIMED_OUT)
            self.resume(now_ns)

    def stop_waiting(self) -> None:
        """Note that the client is gone: give it no job, and do without the bodies that are being fetched for it."""
        self.drop_aside()
        self.engine.clients.stop_waiting(self.client)

    def fail(self, bug: Exception) -> None:
        """Report a bug of ours, or a lack of memory, to the client after all other replies, and close the session."""
        self.dismiss(replies.OUT_OF_MEMORY if isinstance(bug, MemoryError) else replies.INTERNAL_ERROR)

    def dismiss(self, last: bytes) -> None:
        """Send the client a last reply after all others, and close the session."""
        if self.blocked is CLOSING:
            return
        self.engine.clients.stop_waiting(self.client)
        self.forget()
        self.kick = None
        self.replies.append(last)
        self.blocked = CLOSING

    def forget(self) -> None:
        """Forget what the client has sent, as far as it is not carried out: it will not be."""
        self._parts.clear()
        self.pending = 0
        self.drop_aside()

    @property
    def wants_more(self) -> bool:
        """Whether to read more from the client, rather than let it get further ahead."""
        return not self.blocked or (self.blocked is not YIELDING and self.pending <= READ_AHEAD_MAX)

    def begins_with_look(self, data: bytes) -> bool:
        """Whether the next command changes no job, or is an operator's, which waits for its turn in any case.

        Also true if its line is not complete: then nothing is carried out.
        """
        if self.blocked is not None or self.refused_bytes:
            return False
        if self.put is not None:
            return self.put.is_request and not isinstance(self.put, NoteLine)
        if self._parts:
            data = self._parts[0] + data
        line, end, _ = data[:LINE_MAX].partition(b"\r\n")
        if not end and len(data) < LINE_MAX:
            return True
        word = line.partition(b" ")[0]
        return word in commands.LOOKS or (self.operator and word in self.words.operators)

    # -- framing

    def _add_part(self, part: bytes) -> None:
        parts = self._parts
        if len(part) < SMALL_PART and parts and len(parts[-1]) < PART_BYTES:
            parts[-1] += part
        else:
            parts.append(part)
        self.pending += len(part)

    def _take_parts(self, now_ns: int) -> bytes:
        """Take all input that has been received and not yet carried out, as one buffer.

        If the input begins with a complete body, its put is finished here: cutting a large body out of the buffer would
        copy it once more.
        """
        parts, put, size, self.pending = self._parts, self.put, self.pending, 0
        if put is not None:
            behind = size - put.size  # how much has come after the body
            if behind >= 2:
                last = parts.pop()
                while len(last) < behind:
                    last = parts.pop() + last
                at = len(last) - behind
                parts.append(last[:at])
                body = b"".join(parts) if last.startswith(b"\r\n", at) else None
                parts.clear()
                answer = commands.finish_put(self, put, body, now_ns)
                if answer is not None:
                    self.replies.append(answer)
                return last[at + 2 :]
        buffer = b"".join(parts)
        parts.clear()
        return buffer

    def _carry_out(self, buffer: bytes, now_ns: int, steps: int = STEPS_MAX) -> None:
        """Carry out up to ``steps`` complete lines and bodies of the buffer, until something blocks; keep the rest."""
        size: i64 = len(buffer)
        at: i64 = self._skip_long_line(buffer, 0) if self._skipped_bytes else 0
        self._missing = 0
        while at < size and self.blocked is None and steps:
            steps -= 1
            put = self.put
            if put is not None:
                stop: i64 = at + put.size + 2
                if stop > size:
                    self._missing = stop - size
                    break
                body = buffer[at : stop - 2] if buffer[stop - 2] == CR and buffer[stop - 1] == LF else None
                answer = commands.finish_put(self, put, body, now_ns)
                if answer is not None:
                    self.replies.append(answer)
                at = stop
            elif self.refused_bytes:
                at = self._skip_refused(buffer, at)
            else:
                at = self._carry_out_line(buffer, at, now_ns)
        if at < size or self.blocked is not None:
            self._keep(buffer[at:], more=not steps)

    def _carry_out_line(self, buffer: bytes, at: i64, now_ns: int) -> i64:
        """Carry out the line that begins at ``at``, if it is complete; returns where the next line or body begins."""
        # A line is short: when this is compiled, to pass over its bytes costs less than to call ``find``.
        end: i64 = at
        blank: i64 = -1
        last: i64 = min(len(buffer), at + LINE_MAX) - 1
        while end < last:
            byte: i64 = buffer[end]
            if byte <= BLANK:
                if byte == CR and buffer[end + 1] == LF:
                    break
                if byte == BLANK and blank < 0:
                    blank = end
            end += 1
        else:
            return self._keep_line(buffer, at)
        bare = blank < 0
        command = self.words.find(buffer[at : end if bare else blank], bare=bare) if self.is_known else None
        if command is None:
            answer = odd_line(self, buffer[at:end], now_ns)
        else:
            self.last = command
            answer = command.give(self, b"" if bare else buffer[blank + 1 : end], now_ns)
        if answer is not None:
            self.replies.append(answer)
        return end + 2

    def _keep(self, rest: bytes, *, more: bool) -> None:
        """Keep ``rest`` to be carried out later. ``more``: the steps were used up, so others get their turn first."""
        if more and self.blocked is None:
            self.blocked = YIELDING
        if rest and self.blocked is not CLOSING:
            self._add_part(rest)
            if offers.waits_for_offer(self):
                offers.stop_waiting(self)
                self.blocked = YIELDING
            if self.blocked is YIELDING and len(self.replies) > UNSENT_MAX:
                self.blocked = REPLETE
        elif self.blocked is YIELDING:  # nothing is left to do, so there is no need
            self.blocked = None

    def _keep_line(self, buffer: bytes, at: int) -> int:
        """Keep a line whose end has not come yet, or skip it if it is too long; returns where the next line begins."""
        if len(buffer) - at >= LINE_MAX:
            if not self.is_known and is_stranger(self, buffer[at : at + LINE_MAX]):
                self.replies.append(replies.BAD_FORMAT)
                return len(buffer)
            return self._skip_long_line(buffer, at)
        self._add_part(buffer[at:])
        return len(buffer)

    def _skip_refused(self, buffer: bytes, at: int) -> int:
        """Skip what has come of the body of a refused put; returns where the next line begins."""
        skipped = min(self.refused_bytes, len(buffer) - at)
        self.refused_bytes -= skipped
        if not self.refused_bytes:
            self.replies.append(self.refusal)
        return at + skipped

    def _skip_long_line(self, buffer: bytes, at: int) -> int:
        """Skip what has come of the rest of an overlong line; returns where the next line begins."""
        end = buffer.find(b"\r\n", at)
        if end >= 0:
            self._skipped_bytes = 0
            self.replies.append(replies.BAD_FORMAT)
            return end + 2
        self._skipped_bytes += len(buffer) - at
        if self._skipped_bytes >= line_closes_from(self.service.max_job_size):
            self.service.refused("line")
            self.replies.append(replies.BAD_FORMAT)
            self.blocked = CLOSING
        elif buffer.endswith(b"\r"):
            self._add_part(b"\r")  # perhaps the first half of CR LF
        return len(buffer)
