"""One connection for what is not measured: filling tubes, clearing them, statistics."""

import itertools
import time
from typing import Final

from beanlite.beanstalk.client import Client
from tests.bench.replies import Jobs, Lines
from tests.bench.workloads import body_of, put_batch

CLEARED_WITHIN_S: Final = 5.0  # the server may still be taking back what closed connections had reserved
_BATCH_BYTES: Final = 1 << 20


class Control(Client):
    """A client that fills tubes and clears them. Its methods raise OSError and UnexpectedReply."""

    def fill(self, tubes: list[str], size: int, count: int) -> None:
        """Put `count` jobs with bodies of `size` bytes, spread over the tubes."""
        most = _batch(size)
        for number, tube in enumerate(tubes):
            self.ask(b"use %b\r\n" % tube.encode())
            share = len(range(number, count, len(tubes)))
            for batch in itertools.chain(itertools.repeat(most, share // most), [share % most]):
                self._socket.sendall(put_batch(size, batch))
                self._read(Lines(b"INSERTED "), batch)

    def clear(self, tubes: list[str], size: int) -> int:
        """Delete all jobs of the tubes, which have bodies of `size` bytes; return how many could not be deleted."""
        for tube in tubes:
            self.ask(b"watch %b\r\n" % tube.encode())
        self.ask(b"ignore default\r\n")
        end_s = time.monotonic() + CLEARED_WITHIN_S
        while True:
            for tube in tubes:
                self.ask(b"use %b\r\n" % tube.encode())
                while self.ask(b"kick 1000000\r\n") != b"KICKED 0\r\n":
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

    def _read(self, replies: Lines | Jobs, want: int) -> list[bytes]:
        """Return the ids in `want` replies, of which the first may be in the file's buffer already."""
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
    """Return how many commands to send at once with bodies of this size."""
    return max(1, min(500, _BATCH_BYTES // (size + 64)))
