"""How long no reply comes while a second server takes over; see docs/performance-lab.md.

::

    python -m tests.performance.takeover

Two servers use a PostgreSQL with a synchronous standby; a client puts one job after another, and reconnects as soon as
it can. Prints the longest time between two replies around the loss of the active server, with an empty queue and with a
million jobs, which the second server has read ahead.
"""

import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from tests.support.postgres import SETTINGS, Pair
from tests.support.servers import free_port
from tests.support.wire import Wire

LEASE_S = 3
ROUNDS = 5
MILLION = 1_000_000
AT_ONCE = 1000
RETRY_S = 0.01
BEFORE_S, AFTER_S = 1.0, 0.5


class Servers:
    """Two servers, one of which is active."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.folder = folder
        self.logged = [0, 0]
        """The size of each server's log when it was started."""
        self.ports = [free_port(), free_port()]
        self.processes = [self.start(number) for number in (0, 1)]

    def start(self, number: int) -> subprocess.Popen[bytes]:
        # -P: measure the installed beanlite, which is compiled, rather than the sources in the current folder.
        command = f"{sys.executable} -P -m beanlite serve --database {self.url} --lease {LEASE_S}s"
        with (self.folder / f"{number}.log").open("ab") as log:
            self.logged[number] = log.tell()
            return subprocess.Popen([*command.split(), "-p", str(self.ports[number])], stdout=log, stderr=log)

    def connect(self) -> tuple[int, Wire]:
        """Wait until a server is active; return its number and a connection to it."""
        while True:
            for number, port in enumerate(self.ports):
                try:
                    return number, Wire(socket.create_connection(("127.0.0.1", port)))
                except OSError:
                    time.sleep(RETRY_S / 2)

    def gap_s(self, how: signal.Signals) -> float:
        """End the active server by a signal amid puts, and start it again; return the longest gap between replies."""
        active, client = self.connect()
        self.await_copy(1 - active)
        began_s = last_s = time.monotonic()
        lost_s, longest_s = 0.0, 0.0
        while not lost_s or last_s < lost_s + longest_s + AFTER_S:
            try:
                client.put(b"x" * 100)
            except OSError:
                client.socket.close()
                _, client = self.connect()
                continue
            now_s = time.monotonic()
            if lost_s:
                longest_s = max(longest_s, now_s - last_s)
            last_s = now_s
            if not lost_s and now_s > began_s + BEFORE_S:
                lost_s = now_s
                self.processes[active].send_signal(how)
        client.socket.close()
        self.processes[active].wait()
        self.processes[active] = self.start(active)
        return longest_s

    def await_copy(self, number: int) -> None:
        """Wait until a server that stands by has read all jobs ahead since its start."""
        while b"jobs are read ahead" not in (self.folder / f"{number}.log").read_bytes()[self.logged[number] :]:
            time.sleep(RETRY_S)

    def fill(self) -> None:
        """Put a million jobs."""
        _, client = self.connect()
        for _ in range(MILLION // AT_ONCE):
            client.send((b"put 1 0 60 100\r\n" + b"x" * 100 + b"\r\n") * AT_ONCE)
            for _ in range(AT_ONCE):
                client.reply()
        client.socket.close()

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


def main() -> None:
    """Measure, and print the results."""
    SETTINGS.update(fsync="on", full_page_writes="on", max_wal_size="4GB")
    with ExitStack() as stack:
        pair = Pair()
        stack.callback(pair.end)
        folder = Path(tempfile.mkdtemp())
        stack.callback(shutil.rmtree, folder)
        servers = Servers(pair.url(), folder)
        stack.callback(servers.kill)
        for jobs in 0, MILLION:
            if jobs:
                servers.fill()
            for how in signal.SIGKILL, signal.SIGTERM:
                gaps_s = sorted(servers.gap_s(how) for _ in range(ROUNDS))
                said = (
                    f"{how.name}: {gaps_s[0]:.2f} to {gaps_s[-1]:.2f} s, {statistics.median(gaps_s):.2f} in the middle"
                )
                print(f"{jobs:,} jobs, lease {LEASE_S} s, {said}", flush=True)


if __name__ == "__main__":
    main()
