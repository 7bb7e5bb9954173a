"""One connection for what is not measured: filling tubes, clearing them away, statistics."""

import itertools
import socket
import time
from typing import Final, Self

from beanlite.bench.replies import Jobs, Lines, UnexpectedReply
from beanlite.bench.workloads import body_of, put_batch

Address = tuple[str, int] | tuple[str]
"""Host and port, or the path of a unix socket."""

TIMEOUT_S: Final = 30.0
CLEARED_WITHIN_S: Final = 5.0  # the server may still be taking back what closed connections had reserved
_BATCH_BYTES: Final = 1 << 20


def connect(address: Address) -> socket.socket:
    """A connection to a server. OSError."""
    if len(address) == 2:
        sock = socket.create_connection((address[0], address[1]), TIMEOUT_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(TIMEOUT_S)
    try:
        sock.connect(address[0])
    except OSError:
        sock.close()
        raise
    return sock


class Control:
    """A connection that asks and waits. OSError, UnexpectedReply."""

    def __init__(self, address: Address) -> None:
        self._socket = connect(address)
        self._lines = self._socket.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.close()
        self._socket.close()

    def stats(self, tube: str | None = None) -> dict[str, str]:
        """The server's statistics or a tube's; empty if there is no such tube."""
        line = self._ask(b"stats\r\n" if tube is None else b"stats-tube %b\r\n" % tube.encode())
        if line == b"NOT_FOUND\r\n":
            return {}
        if not line.startswith(b"OK "):
            raise UnexpectedReply(f"{line!r} came where OK was due")
        text = self._lines.read(int(line[3:]) + 2).decode(errors="replace")
        pairs = (line.partition(": ") for line in text.splitlines())
        return {key: value.strip('"') for key, colon, value in pairs if colon}

    def fill(self, tubes: list[str], size: int, count: int) -> None:
        """Put `count` jobs with bodies of `size` bytes, spread over the tubes."""
        most = _batch(size)
        for number, tube in enumerate(tubes):
            self._ask(b"use %b\r\n" % tube.encode())
            share = len(range(number, count, len(tubes)))
            for batch in itertools.chain(itertools.repeat(most, share // most), [share % most]):
                self._socket.sendall(put_batch(size, batch))
                self._read(Lines(b"INSERTED "), batch)

    def clear(self, tubes: list[str], size: int) -> int:
        """Delete all jobs of the tubes, which have bodies of `size` bytes; returns how many can't be deleted."""
        for tube in tubes:
            self._ask(b"watch %b\r\n" % tube.encode())
        self._ask(b"ignore default\r\n")
        end_s = time.monotonic() + CLEARED_WITHIN_S
        while True:
            for tube in tubes:
                self._ask(b"use %b\r\n" % tube.encode())
                while self._ask(b"kick 1000000\r\n") != b"KICKED 0\r\n":
                    pass
            self._delete_ready(size)
            left = sum(self._jobs_in(tube) for tube in tubes)
            if not left or time.monotonic() > end_s:
                return left
            time.sleep(0.05)

    def _delete_ready(self, size: int) -> None:
        most = _batch(size)
        jobs = Jobs(body_of(size), may_end=True)
        while True:
            self._socket.sendall(b"reserve-with-timeout 0\r\n" * most)
            ids = self._read(jobs, most)
            if not ids:
                return
            self._socket.sendall(b"".join([b"delete %b\r\n" % job for job in ids]))
            self._read(Lines(b"DELETED\r\n"), len(ids))

    def _jobs_in(self, tube: str) -> int:
        stats = self.stats(tube)
        return sum(int(stats.get(f"current-jobs-{state}", 0)) for state in ("ready", "reserved", "delayed", "buried"))

    def _ask(self, command: bytes) -> bytes:
        self._socket.sendall(command)
        line = self._lines.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionResetError("the server closed a connection")
        return line

    def _read(self, replies: Lines | Jobs, want: int) -> list[bytes]:
        """The ids in `want` replies, of which the first may be in the file's buffer already."""
        data = b""
        while want:
            more = self._lines.read1(1 << 20)
            if not more:
                raise ConnectionResetError("the server closed a connection")
            data += more
            ids = replies.read(data, want)
            if ids is not None:
                return ids
        return []


def _batch(size: int) -> int:
    """How many commands go at once with bodies of this size."""
    return max(1, min(500, _BATCH_BYTES // (size + 64)))
