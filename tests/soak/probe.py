"""An innocent client: it puts, reserves and deletes a small job some times a second, and times each cycle."""

import threading
import time

from tests.soak.books import Bits
from tests.soak.server import Server
from tests.support.wire import Wire

PAUSE_S = 0.015
BODY = b"probe" * 20


class Probe(threading.Thread):
    """Runs until it is told to end; then its tube is empty."""

    def __init__(self, server: Server) -> None:
        super().__init__(daemon=True)
        self.complaints: list[str] = []
        self.given = Bits()
        self.ending = threading.Event()
        self._server = server
        self._last_id = 0
        self._took_s: list[float] = []

    def latencies(self) -> dict[str, float]:
        """What the cycles since the last call took, in seconds; nothing if none ended."""
        took, self._took_s = sorted(self._took_s), []
        if not took:
            return {}
        return {"p50": took[len(took) // 2], "p99": took[len(took) * 99 // 100], "max": took[-1]}

    def run(self) -> None:
        """Cycle; where the server goes down, begin again."""
        while not self.ending.is_set():
            try:
                with Wire(self._server.connect()) as wire:
                    self._session(wire)
            except (OSError, AttributeError):
                self.ending.wait(0.05)
            except (AssertionError, ValueError) as error:
                self.complaints.append(f"the client that is timed: {error}")
                self.ending.wait(1)

    def _session(self, wire: Wire) -> None:
        for line in ("use probe", "watch probe", "ignore default"):
            wire.ask(line)
        while (reply := wire.ask("reserve-with-timeout 0")) != "TIMED_OUT":  # what a kill has left
            wire.ask(f"delete {reply.split()[1]}")
        while not self.ending.is_set():
            self._cycle(wire)
            self.ending.wait(PAUSE_S)

    def _cycle(self, wire: Wire) -> None:
        began_s = time.monotonic()
        reply = wire.ask(f"put 0 0 60 {len(BODY)}", BODY)
        if not reply.startswith("INSERTED "):
            assert reply in {"OUT_OF_MEMORY", "DRAINING"}, f"put was answered {reply}"
            return
        job_id = int(reply.split()[1])
        assert job_id > self._last_id, f"id {job_id} was given after {self._last_id}"
        self._last_id = job_id
        self.given.add(job_id)
        reply = wire.ask("reserve-with-timeout 0")
        assert (reply, wire.body) == (f"RESERVED {job_id} {len(BODY)}", BODY), f"{job_id} was put, but then: {reply}"
        reply = wire.ask(f"delete {job_id}")
        assert reply == "DELETED", f"delete of what was reserved was answered {reply}"
        self._took_s.append(time.monotonic() - began_s)
