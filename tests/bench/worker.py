"""One generator process: ``python -m tests.bench.worker SPEC``, the spec as JSON.

It connects and prints "ready" to stdout; reads the start time from stdin (CLOCK_MONOTONIC is the same for all processes
of a machine); drives its connections; and prints its result as JSON. If something fails, its last line is the error.
"""

import contextlib
import gc
import heapq
import json
import os
import select
import signal
import socket
import ssl
import sys
import time
from dataclasses import dataclass
from typing import Any, Final

from beanlite.beanstalk.client import TIMEOUT_S, Server, connect
from beanlite.beanstalk.over_tls import OverTls, in_plain_words
from beanlite.errors import BeanliteError
from tests.bench import machine
from tests.bench.histogram import Histogram
from tests.bench.replies import OtherReply
from tests.bench.workloads import BESIDE, Step, roles

_RECEIVE_MAX: Final = 1 << 20  # bytes
# A socket that takes nothing more for now.
_LATER: Final = (BlockingIOError, ssl.SSLWantWriteError)


class LoadFailed(Exception):
    """The load can't go on; the text is one line."""


@dataclass(frozen=True, slots=True)
class Spec:
    """What one process is to do."""

    address: Server
    workload: str
    depth: int
    body: int
    tubes: list[str]
    connections: list[int]
    """The numbers of its connections among those of all processes: they determine role and tube."""
    connections_in_all: int
    beside: int
    """How many more connections send list-tube-used without pause; they are not counted."""
    rate: float
    """Commands per second of all processes together; 0 means as fast as replies arrive."""
    warmup_s: float
    seconds: float


class _Connection:
    __slots__ = ("at", "data", "due_ns", "fd", "ids", "socket", "step", "steps", "unsent", "want")

    def __init__(self, sock: socket.socket, steps: tuple[Step, ...]) -> None:
        self.socket = sock
        self.fd = sock.fileno()
        self.steps = steps
        self.at = -1
        self.step = steps[0]
        self.want = 0
        """How many replies the batch under way gets; 0 between two batches."""
        self.ids: list[bytes] = []
        self.data = b""
        """The replies so far to a batch that is not complete."""
        self.unsent: bytes | memoryview = b""
        self.due_ns = 0
        """When the batch was sent; at a given rate, when it should have been sent."""


class Load:
    """The connections of this process. Its methods raise OSError, OtherReply and LoadFailed."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._epoll = select.epoll()
        self._histogram = Histogram()
        self._commands = 0
        self._jobs = 0
        self._receive_bytes = min(_RECEIVE_MAX, spec.depth * (spec.body + 64))
        self._by_fd: dict[int, _Connection] = {}
        parts = roles(spec.workload, spec.depth, spec.body)
        self._counted = [
            self._connect(spec.tubes[number // len(parts) % len(spec.tubes)], parts[number % len(parts)])
            for number in spec.connections
        ]
        self._beside = [self._connect(spec.tubes[0], BESIDE) for _ in range(spec.beside)]
        self._open = len(self._counted)
        """How many connections still have something to do."""
        self._interval_ns = 0
        if spec.rate:
            self._interval_ns = round(spec.connections_in_all * spec.depth / spec.rate * 1e9)
        self._due: list[tuple[int, int]] = []
        """At a given rate: a heap of the times at which batches are due, with their connections' file descriptors."""

    def _connect(self, tube: str, steps: tuple[Step, ...]) -> _Connection:
        """Make a connection that uses and watches one tube."""
        sock = connect(self._spec.address)
        name = tube.encode()
        sock.sendall(b"use %b\r\nwatch %b\r\nignore default\r\n" % (name, name))
        want = b"USING %b\r\nWATCHING 2\r\nWATCHING 1\r\n" % name
        said = b""
        while said.count(b"\n") < 3:
            said += _receive(sock, 4096)
        if said != want:
            raise LoadFailed(f"{said[:100]!r} came where {want!r} was due")
        sock.settimeout(0)
        connection = _Connection(sock, steps)
        self._by_fd[connection.fd] = connection
        self._epoll.register(connection.fd, select.EPOLLIN)
        return connection

    def run(self, start_ns: int) -> dict[str, Any]:
        """Carry out the load; return the results of the time between the warm-up and the end."""
        time.sleep(max(0, start_ns - time.monotonic_ns()) / 1e9)
        for connection in self._beside:
            self._begin(connection)
        for number, connection in zip(self._spec.connections, self._counted, strict=True):
            connection.due_ns = start_ns
            if self._interval_ns:  # spread evenly
                connection.due_ns += self._interval_ns * number // self._spec.connections_in_all
                heapq.heappush(self._due, (connection.due_ns, connection.fd))
            else:
                self._begin(connection)
        warm_ns = start_ns + round(self._spec.warmup_s * 1e9)
        self._until(warm_ns)
        began_ns, busy_ns, queued_s = time.monotonic_ns(), time.process_time_ns(), _queued_s()
        self._histogram, self._commands, self._jobs = Histogram(), 0, 0
        self._until(warm_ns + round(self._spec.seconds * 1e9))
        result = {
            "commands": self._commands,
            "jobs": self._jobs,
            "seconds": (time.monotonic_ns() - began_ns) / 1e9,
            "busy_s": (time.process_time_ns() - busy_ns) / 1e9,
            "queued_s": _queued_s() - queued_s,
            "histogram": self._histogram.dump(),
        }
        self._finish()
        return result

    def _until(self, end_ns: int) -> None:
        """Drive the connections until a given time, or until none of them has anything left to do."""
        clock, poll, connections = time.monotonic_ns, self._epoll.poll, self._by_fd
        stalls_ns = 0
        now_ns = clock()
        while self._open and now_ns < end_ns:
            wake_ns = end_ns
            if self._interval_ns:
                wake_ns = min(end_ns, self._begin_due(now_ns))
                # epoll counts in milliseconds, select in microseconds.
                select.select([self._epoll], [], [], max(0, wake_ns - clock()) / 1e9)
            events = poll(0 if self._interval_ns else min(1.0, (wake_ns - now_ns) / 1e9))
            for fd, event in events:
                if event & select.EPOLLOUT:
                    self._flush(connections[fd])
                if event & ~select.EPOLLOUT:
                    self._receive(connections[fd])
            now_ns = clock()
            if events or self._interval_ns:
                stalls_ns = now_ns + round(TIMEOUT_S * 1e9)
            elif stalls_ns and now_ns > stalls_ns:
                raise LoadFailed(f"no reply within {TIMEOUT_S:.0f} s")

    def _begin_due(self, now_ns: int) -> int:
        """Send the batches that are due; return when the next one is due."""
        due = self._due
        while due and due[0][0] <= now_ns:
            self._begin(self._by_fd[heapq.heappop(due)[1]])
        return due[0][0] if due else now_ns + 1_000_000_000

    def _begin(self, connection: _Connection) -> None:
        """Send the next step's batch."""
        connection.at = at = (connection.at + 1) % len(connection.steps)
        connection.step = step = connection.steps[at]
        request = step.request(connection.ids)
        connection.want = step.count or len(connection.ids)
        try:
            sent = connection.socket.send(request)
        except _LATER:
            sent = 0
        if sent < len(request):
            connection.unsent = memoryview(request)[sent:]
            self._epoll.modify(connection.fd, select.EPOLLIN | select.EPOLLOUT)

    def _flush(self, connection: _Connection) -> None:
        """Send more of a batch that the socket took only in part."""
        with contextlib.suppress(*_LATER):
            connection.unsent = connection.unsent[connection.socket.send(connection.unsent) :]
        if not connection.unsent:
            self._epoll.modify(connection.fd, select.EPOLLIN)

    def _receive(self, connection: _Connection) -> None:
        """Receive replies; after the last one of a batch, end the batch."""
        try:
            data = _receive(connection.socket, self._receive_bytes)
        except ssl.SSLWantReadError:  # a part of a record, or one without data
            return
        if connection.data:
            data = connection.data + data
        step = connection.step
        if not connection.want:
            raise LoadFailed(f"{data[:100]!r} came where nothing was due")
        ids = step.replies.read(data, connection.want)
        if ids is None:
            connection.data = data
            return
        connection.data = b""
        self._end_batch(connection, ids)

    def _end_batch(self, connection: _Connection, ids: list[bytes]) -> None:
        """Count a batch whose replies are all there, and begin the next."""
        step = connection.step
        if step is BESIDE[0]:
            self._begin(connection)
            return
        now_ns = time.monotonic_ns()
        if not step.waits:
            self._histogram.record(now_ns - connection.due_ns)
        self._commands += connection.want
        if step.finishes:
            self._jobs += connection.want
        connection.want = 0
        if step.reserves:
            connection.ids = ids
            if not ids:  # drained
                self._open -= 1
                return
        if self._interval_ns:
            connection.due_ns += self._interval_ns
            heapq.heappush(self._due, (connection.due_ns, connection.fd))
        else:
            connection.due_ns = now_ns
            self._begin(connection)

    def _finish(self) -> None:
        """Receive the outstanding replies, so that nothing is carried out after the connections are closed."""
        for connection in self._by_fd.values():
            if connection.want and not connection.step.waits:
                connection.socket.settimeout(TIMEOUT_S)
                connection.socket.sendall(connection.unsent)
                while connection.step.replies.read(connection.data, connection.want) is None:
                    connection.data += _receive(connection.socket, self._receive_bytes)
            connection.socket.close()


def _receive(sock: socket.socket, most: int) -> bytes:
    data = sock.recv(most)  # no record of TLS has more than that, or epoll would not tell of its rest
    if not data:
        raise LoadFailed("the server closed a connection")
    return data


def _spec(text: str) -> Spec:
    """Read the spec from JSON, which has an address as a list."""
    values = json.loads(text)
    address = values.pop("address")
    return Spec(address=OverTls(*address) if len(address) > len(("host", "port")) else tuple(address), **values)


def _queued_s() -> float:
    return machine.queued_s(os.getpid()) or 0.0


def main() -> int:
    """Carry out the spec of the command line."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in the terminal is for the parent process
    gc.disable()  # nothing here makes cycles
    try:
        load = Load(_spec(sys.argv[1]))
        _say("ready")
        line = sys.stdin.readline()
        if line:
            _say(json.dumps(load.run(int(line))))
    except (OtherReply, LoadFailed, BeanliteError) as error:
        _say(str(error))
        return 1
    except OSError as error:
        _say(in_plain_words(error))
        return 1
    return 0


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
