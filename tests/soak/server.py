"""The server that is soaked: started again and again at one port and on one file, and looked at from outside."""

import contextlib
import os
import socket
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

from tests.support.servers import free_port
from tests.support.wire import Wire

STARTS_WITHIN_S = 120.0
STOPS_WITHIN_S = 120.0
STATES = ("ready", "delayed", "reserved", "buried")
PAGE = os.sysconf("SC_PAGE_SIZE")


class Failed(Exception):
    """The server did not do what a server has to."""


class Server:
    """A server on the database in a directory; its log is that of all its lives."""

    def __init__(self, directory: Path, log: Path, flags: list[str]) -> None:
        self.port = free_port()
        self.db = None if "--no-journal" in flags else directory / "queue.db"
        self.outages: list[list[float]] = []
        """When it was on its way down, and when it was up again."""
        self._log = log
        self._flags = flags
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it, and wait until it has answered."""
        command = [sys.executable, "-m", "beanlite", "serve", "--port", str(self.port), *self._flags]
        if self.db is not None:
            command += ["--db", str(self.db)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,  # Ctrl-C is for the soak
            )
        end_s = time.monotonic() + STARTS_WITHIN_S
        while time.monotonic() < end_s:
            self.check()
            with contextlib.suppress(OSError), Wire(self.connect()) as wire:
                wire.ask("list-tube-used")
                if self.outages:
                    self.outages[-1].append(time.monotonic())
                return
            time.sleep(0.01)
        raise Failed(f"the server did not answer within {STARTS_WITHIN_S:.0f} s of its start")

    def connect(self) -> socket.socket:
        """A new connection. Raises OSError."""
        return socket.create_connection(("127.0.0.1", self.port), 10)

    def check(self) -> None:
        """Raise Failed if it has ended by itself."""
        if self._process is not None and (code := self._process.poll()) is not None:
            raise Failed(f"the server has ended with exit code {code}: {self.last_words()}")

    def last_words(self) -> str:
        """The end of its log."""
        return self._log.read_text(errors="replace")[-2000:]

    def signal(self, number: int) -> None:
        """Send a signal."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """End it without warning."""
        self.check()
        self.outages.append([time.monotonic()])
        self.end()

    def end(self) -> None:
        """See to it that there is none."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """End it in order. Raises Failed if that is not what happens."""
        self.check()
        self.outages.append([time.monotonic()])
        assert self._process is not None
        self._process.terminate()
        try:
            code = self._process.wait(STOPS_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise Failed(f"the server did not stop within {STOPS_WITHIN_S:.0f} s") from None
        finally:
            self._process = None
        if code:
            raise Failed(f"the server has stopped with exit code {code}: {self.last_words()}")

    def was_down(self, when_s: float, slack_s: float = 5.0) -> bool:
        """Whether a client that lost its connection at that time was to expect it."""
        return any(outage[0] <= when_s <= (outage[1:] or [when_s])[0] + slack_s for outage in self.outages)

    def stats(self) -> dict[str, str]:
        """What it tells of itself; nothing while it doesn't answer."""
        with contextlib.suppress(OSError, AssertionError), Wire(self.connect()) as wire:
            return wire.stats()
        return {}

    def jobs(self) -> int | None:
        """How many jobs it tells of; None while it doesn't answer."""
        told = self.stats()
        return sum(int(told[f"current-jobs-{state}"]) for state in STATES) if told else None

    def figures(self) -> dict[str, float]:
        """What the kernel tells: memory, descriptors, the size of the files, and what of it is in use."""
        return {
            "rss": int(Path(f"/proc/{self.pid}/statm").read_text(encoding="ascii").split()[1]) * PAGE,
            "fds": sum(1 for _ in Path(f"/proc/{self.pid}/fd").iterdir()),
            **self._sizes(),
        }

    def _sizes(self) -> dict[str, float]:
        if self.db is None:
            return {}
        wal = self.db.with_name(self.db.name + "-wal")
        sizes: dict[str, float] = {
            "db": self.db.stat().st_size,
            "wal": wal.stat().st_size if wal.exists() else 0,
        }
        with contextlib.closing(sqlite3.connect(f"{self.db.as_uri()}?mode=ro", uri=True)) as file:
            page, pages, free = (
                file.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_size", "page_count", "freelist_count")
            )
        return sizes | {"used": page * (pages - free)}
