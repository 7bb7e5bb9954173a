"""A server on a core of its own, measured from the others: what the scripts that do so have in common."""

import multiprocessing
import os
import resource
import sys
from collections.abc import Callable, Sequence

from beanlite.beanstalk.client import Server, connect
from tests.bench import machine

CORES = machine.cores() or [0]
APART = multiprocessing.get_context("spawn")  # a forked process would keep connections open that a scenario closes
SETTLE_S = 2.0  # for work that continues after a reply: late writes, the end of timers


class Client:
    """A connection that can send many commands at once."""

    def __init__(self, address: Server) -> None:
        self._socket = connect(address)
        self._lines = self._socket.makefile("rb")

    def close(self) -> None:
        """Close the connection."""
        self._lines.close()
        self._socket.close()

    def ask(self, command: bytes) -> bytes:
        """Send, and return the first line of the reply."""
        self.send(command)
        return self._lines.readline()

    def send(self, command: bytes) -> None:
        """Send without waiting for a reply."""
        self._socket.settimeout(600)
        self._socket.sendall(command)

    def many(self, command: bytes, count: int, lines: int = 1) -> None:
        """Send a command ``count`` times, and read the replies of ``lines`` lines each."""
        most = max(1, min(500, (1 << 20) // len(command)))
        for done in range(0, count, most):
            at_once = min(most, count - done)
            self.send(command * at_once)
            self.lines(at_once * lines)

    def lines(self, count: int) -> None:
        """Read this many lines of replies."""
        for _ in range(count):
            if not self._lines.readline():
                raise ConnectionResetError("the server closed a connection")

    def skip(self, size: int) -> None:
        """Read this many bytes of a reply."""
        self._lines.read(size)


def put(body: int, delay_s: int = 0) -> bytes:
    """Return a put with a body of this many bytes."""
    return b"put 0 %d 600 %d\r\n%b\r\n" % (delay_s, body, b"x" * body)


def title(work: Callable[..., object]) -> str:
    """Return the title of some work in the table, which is its docstring."""
    return (work.__doc__ or "").rstrip(".")


def leave_first_core() -> None:
    """Run on the other cores, if there are any: the server has the first one."""
    if len(CORES) > 1:
        os.sched_setaffinity(0, CORES[1:])


def open_many_files() -> None:
    """Allow this process and the server as many connections as the machine allows them."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def chosen(names: Sequence[str]) -> Sequence[str]:
    """Return those of the names that the command line has, or all if it has none. SystemExit: it has another one."""
    unknown = set(sys.argv[1:]) - set(names)
    if unknown:
        sys.exit(f"there is no {', '.join(unknown)}, but {', '.join(names)}")
    return sys.argv[1:] or names
