"""Checks the replies to a batch of commands.

A batch is parsed as a whole: counting and splitting run at C speed, while with a loop over lines Python would be the
limit. This requires bodies without line ends.
"""

import re
from typing import Final

_TIMED_OUT: Final = b"TIMED_OUT\r\n"
_RESERVED: Final = b"RESERVED "
_SHOWN: Final = 100  # bytes


class OtherReply(Exception):
    """A server sent another reply to a command than is due; the text shows it."""


class Lines:
    """Replies of one line that all begin alike."""

    __slots__ = ("_start",)

    def __init__(self, start: bytes) -> None:
        self._start = start.removesuffix(b"\n")  # so that adjacent matches don't share a line end

    def read(self, data: bytes, want: int) -> list[bytes] | None:
        """Return [], as there are no ids, or None if some of the `want` replies are missing. OtherReply."""
        lines = data.count(b"\n")
        if lines < want:
            return None
        starts = data.startswith(self._start) + data.count(b"\n" + self._start)
        if lines == starts == want and data.endswith(b"\n"):
            return []
        raise _unexpected(data, rb"%b[^\n]*\n" % re.escape(self._start), self._start)


class Jobs:
    """Reserved jobs, all with the same body."""

    __slots__ = ("_least", "_may_end", "_tail")

    def __init__(self, body: bytes, *, may_end: bool) -> None:
        self._tail = b" %d\r\n%b\r\n" % (len(body), body)
        self._least = len(_RESERVED) + 1 + len(self._tail)
        self._may_end = may_end
        """Whether TIMED_OUT is a good reply, too: no jobs are left."""

    def read(self, data: bytes, want: int) -> list[bytes] | None:
        """Return the ids of the jobs, or None if some of the `want` replies are missing. OtherReply."""
        if len(data) < want * self._least and not data.endswith(b"\r\n"):
            return None  # in the middle of a large body: avoids counting over and over
        jobs = data.count(_RESERVED)
        ends = data.count(_TIMED_OUT) if self._may_end else 0
        due = 2 * jobs + ends - data.count(b"\n")  # more than 0: incomplete replies; less: a reply that is not a job
        if due < 0:
            raise self._unexpected(data)
        if due or jobs + ends < want:
            return None
        # Other clients may have given jobs back meanwhile, so that jobs can follow a TIMED_OUT.
        reserved = data.replace(_TIMED_OUT, b"") if ends else data
        if not jobs and ends == want and not reserved:
            return []
        ids = reserved[len(_RESERVED) : -len(self._tail)].split(self._tail + _RESERVED)
        is_whole = reserved.startswith(_RESERVED) and reserved.endswith(self._tail)
        if is_whole and len(ids) == jobs and b"".join(ids).isdigit():
            return ids
        raise self._unexpected(data)

    def _unexpected(self, data: bytes) -> OtherReply:
        return _unexpected(data, rb"RESERVED \d+%b|TIMED_OUT\r\n" % re.escape(self._tail), _RESERVED)


def _unexpected(data: bytes, good: bytes, wanted: bytes) -> OtherReply:
    """Return the error that shows the first reply that is not good."""
    skipped = re.match(b"(?:%b)*" % good, data)
    rest = (data[skipped.end() :] if skipped else b"") or data
    if not rest.startswith(wanted):
        rest = rest.splitlines(keepends=True)[0]
    shown = rest if len(rest) <= _SHOWN else rest[:_SHOWN] + b"..."
    return OtherReply(f"{shown!r} came where {wanted.decode().strip()} was due")
