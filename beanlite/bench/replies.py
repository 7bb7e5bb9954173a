"""What must come back for a batch of commands.

A batch is read as a whole: counting and splitting run at C's speed, and a loop over lines would make Python the limit.
Bodies hold no line end, or this would not do.
"""

import re
from typing import Final

from beanlite.beanstalk.client import UnexpectedReply

_TIMED_OUT: Final = b"TIMED_OUT\r\n"
_RESERVED: Final = b"RESERVED "
_SHOWN: Final = 100  # bytes


class Lines:
    """Replies of one line, which all begin alike."""

    __slots__ = ("_start",)

    def __init__(self, start: bytes) -> None:
        self._start = start.removesuffix(b"\n")  # so that no two of them share a line end

    def read(self, data: bytes, want: int) -> list[bytes] | None:
        """None as long as some of the `want` replies are missing. There are no ids in them. UnexpectedReply."""
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
        """Whether TIMED_OUT is as good a reply: there is nothing left."""

    def read(self, data: bytes, want: int) -> list[bytes] | None:
        """The ids of the jobs; None as long as some of the `want` replies are missing. UnexpectedReply."""
        if len(data) < want * self._least and not data.endswith(b"\r\n"):
            return None  # amid a big body: spares counting over and over
        jobs = data.count(_RESERVED)
        ends = data.count(_TIMED_OUT) if self._may_end else 0
        due = 2 * jobs + ends - data.count(b"\n")  # lines that have begun, or a reply that is no job
        if due < 0:
            raise self._unexpected(data)
        if due or jobs + ends < want:
            return None
        # Others may have given jobs back meanwhile, so that some come after there were none.
        reserved = data.replace(_TIMED_OUT, b"") if ends else data
        if not jobs and ends == want and not reserved:
            return []
        ids = reserved[len(_RESERVED) : -len(self._tail)].split(self._tail + _RESERVED)
        is_whole = reserved.startswith(_RESERVED) and reserved.endswith(self._tail)
        if is_whole and len(ids) == jobs and b"".join(ids).isdigit():
            return ids
        raise self._unexpected(data)

    def _unexpected(self, data: bytes) -> UnexpectedReply:
        return _unexpected(data, rb"RESERVED \d+%b|TIMED_OUT\r\n" % re.escape(self._tail), _RESERVED)


def _unexpected(data: bytes, good: bytes, wanted: bytes) -> UnexpectedReply:
    """Skip what is good, and show what comes then."""
    skipped = re.match(b"(?:%b)*" % good, data)
    rest = (data[skipped.end() :] if skipped else b"") or data
    if not rest.startswith(wanted):
        rest = rest.splitlines(keepends=True)[0]
    shown = rest if len(rest) <= _SHOWN else rest[:_SHOWN] + b"..."
    return UnexpectedReply(f"{shown!r} came where {wanted.decode().strip()} was due")
