"""What is done to the server while it works.

Restarts come in the first quarter of the time only, and once at the end: in between lies one long life, in which a leak
has time to show. All other faults come throughout.
"""

import contextlib
import random
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tests.soak.server import Failed, Server

BACKUP_WITHIN_S = 600.0


class Faults(threading.Thread):
    """Does one fault after another until it is told to end. ``note`` is told name, begin and end of each."""

    def __init__(
        self, server: Server, seed: int, every_s: float, out: Path, note: Callable[[str, float, float], None]
    ) -> None:
        super().__init__(daemon=True)
        self.complaints: list[str] = []
        self.ending = threading.Event()
        self.with_restarts = True
        self.counts: dict[str, int] = {}
        self._server = server
        self._chance = random.Random(f"{seed} faults")
        self._every_s = every_s
        self._out = out
        self._note = note

    def run(self) -> None:
        """Wait, and do something."""
        restarts, others = [self.kill, self.terminate, self.drain], [self.halt, self.crowd]
        if self._server.db is None:
            restarts = []
        else:
            others += [self.pin, self.lock, self.backup]
        while not self.ending.wait(self._chance.expovariate(1 / self._every_s)):
            try:
                kinds = [restarts, others] if restarts and self.with_restarts else [others]
                self.do(self._chance.choice(self._chance.choice(kinds)))
            except Failed as error:
                self.complaints.append(str(error))
                return
            except (OSError, sqlite3.Error, AssertionError, subprocess.SubprocessError) as error:
                self.complaints.append(f"{type(error).__name__} at a fault: {error}")
                self.ending.wait(1)

    def do(self, fault: Callable[[], None]) -> None:
        """Do one."""
        began_s = time.monotonic()
        fault()
        self.counts[fault.__name__] = self.counts.get(fault.__name__, 0) + 1
        self._note(fault.__name__, began_s, time.monotonic())

    def kill(self) -> None:
        self._server.kill()
        self._server.start()

    def terminate(self) -> None:
        self._server.stop()
        self._server.start()

    def drain(self) -> None:
        """Drain mode, which only a restart ends."""
        self._server.signal(signal.SIGUSR1)
        self.ending.wait(self._chance.uniform(0, 1))
        self.terminate()

    def halt(self) -> None:
        """The process is stopped for a while, as by a debugger or a frozen container."""
        self._server.signal(signal.SIGSTOP)
        try:
            self.ending.wait(self._chance.uniform(0.1, 3))
        finally:
            self._server.signal(signal.SIGCONT)

    def crowd(self) -> None:
        """A hundred clients come at once and go without a word."""
        with contextlib.ExitStack() as stack:
            for _ in range(100):
                stack.enter_context(socket.create_connection(("127.0.0.1", self._server.port), 10))

    def pin(self) -> None:
        """Another program reads the file in one long transaction, so that the -wal can't be reused."""
        with contextlib.closing(self._open("ro")) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM jobs").fetchall()
            self.ending.wait(self._chance.uniform(0.5, 8))
            reader.execute("ROLLBACK")

    def lock(self) -> None:
        """Another program holds the write lock for a moment."""
        with contextlib.closing(self._open("rw")) as writer:
            writer.execute("BEGIN IMMEDIATE")
            self.ending.wait(self._chance.uniform(0.01, 0.5))
            writer.execute("ROLLBACK")

    def backup(self) -> None:
        """A backup under load; it is whole."""
        copy = self._out / "copy.db"
        copy.unlink(missing_ok=True)
        command = [sys.executable, "-m", "beanlite", "backup", str(copy), "--db", str(self._server.db)]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=BACKUP_WITHIN_S, check=False, process_group=0
        )
        if done.returncode:
            self.complaints.append(f"the backup has ended with {done.returncode}: {done.stderr[-500:]}")
            return
        with contextlib.closing(sqlite3.connect(copy)) as file:
            if (found := file.execute("PRAGMA quick_check").fetchone()[0]) != "ok":
                self.complaints.append(f"a backup is damaged: {found}")
        copy.unlink()

    def _open(self, mode: str) -> sqlite3.Connection:
        assert self._server.db is not None
        return sqlite3.connect(f"{self._server.db.as_uri()}?mode={mode}", uri=True, timeout=10, isolation_level=None)
