"""The workers and producers of a night, each with a connection of its own: they work for as long as the server does."""

import contextlib
import json
import random
import threading
from collections.abc import Callable, Iterator
from typing import Self

from tests.night.script import TUBES, Night, body_of
from tests.support.servers import RunningServer
from tests.support.wire import Wire

# A worker that waits asks again before its connection would take the server for dead.
WAIT_S = 5
# A server answers when all jobs of the night are recovered.
STARTS_WITHIN_S = 60.0
CRASH_S = 2.0
TURN_S = 0.25
MAILERS = 3
STUCK = "shop2/orders/41"
# What has work of its own below, and no ordinary workers.
ODD = {"mail", "thumbnails", "reports.nightly", "legacy-sync", "emial", "search-index"}


class Company:
    """The clients. Leaving its ``with`` ends them: before that, the server has to be stopped."""

    def __init__(self, night: Night, server: RunningServer, *, times: int = 1) -> None:
        """``times``: so many times as fast the server's time runs."""
        self._night = night
        self._crash_s = CRASH_S / times
        self._server = server
        self._closing = threading.Event()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self._set_schedule()
        for number in range(MAILERS):
            self._hire(f"web3/mailer/{2210 + number}", self._hang, "mail")
        self._hire("thumbs1/thumbnails/1", self._crash, "thumbnails")
        for number in range(2):
            self._hire(f"search{number + 1}/indexer/7", self._keep, "search-index")
        self._hire(STUCK, self._hold_one, "orders")
        # A tube that is paused is watched all the same.
        self._hire("reports1/nightly/12", self._work, "reports.nightly", 1.0)
        for tube in TUBES:
            if tube.going and tube.name not in ODD:
                workers = 2 if tube.going >= 2 else 1
                for number in range(workers):
                    name = f"{tube.name.split('.')[0]}{number + 1}/{tube.name}/{300 + number}"
                    self._hire(name, self._work, tube.name, tube.going / workers)
            if tube.coming:
                self._hire(f"shop1/{tube.name}/88", self._produce, tube.name, tube.coming)
        return self

    def __exit__(self, *_error: object) -> None:
        self._closing.set()
        for thread in self._threads:
            thread.join()

    def _set_schedule(self) -> None:
        with Wire(self._server.connect(STARTS_WITHIN_S)) as wire:
            wire.request(
                "set-schedule", name="nightly", when="0 3 * * *", zone="Europe/Berlin", tube="reports.nightly",
                body='{"report": "sales"}', by="ann",
            )  # fmt: skip

    def _hire(self, name: str, act: Callable[..., None], *what: object) -> None:
        def live() -> None:
            # The server has been stopped.
            with contextlib.suppress(OSError):
                act(name, *what)

        thread = threading.Thread(target=live, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _connect(self, name: str, tube: str) -> Wire:
        wire = Wire(self._server.connect())
        for line in (f"name {name}", f"use {tube}", f"watch {tube}", "ignore default"):
            wire.ask(line)
        return wire

    # -- workers

    def _work(self, name: str, tube: str, jobs_per_s: float) -> None:
        with self._connect(name, tube) as wire:
            while not self._closing.wait(0.8 / jobs_per_s):
                if (job_id := _reserve(wire)) is not None:
                    self._closing.wait(0.2 / jobs_per_s)
                    wire.ask(f"delete {job_id}")

    def _hang(self, name: str, tube: str) -> None:
        """Work off two jobs, and never answer for the third."""
        with self._connect(name, tube) as wire:
            for _ in range(2):
                wire.ask(f"delete {_reserve(wire)}")
            _reserve(wire)
            self._closing.wait()

    def _hold_one(self, name: str, tube: str) -> None:
        with self._connect(name, tube) as wire:
            while _reserve(wire) is None:
                pass
            self._closing.wait()

    def _crash(self, name: str, tube: str) -> None:
        while not self._closing.wait(self._crash_s):
            with self._connect(name, tube) as wire:
                _reserve(wire)

    def _keep(self, name: str, tube: str) -> None:
        """Work on the same job for long, and say so."""
        with self._connect(name, tube) as wire:
            job_id = _reserve(wire)
            while not self._closing.wait(WAIT_S):
                wire.ask(f"touch {job_id}")

    # -- producers

    def _produce(self, name: str, tube: str, jobs_per_s: float) -> None:
        chance = random.Random(f"{self._night.seed} {name}")
        with self._connect_producer(name, tube) as wire:
            for jobs in _portions(jobs_per_s * TURN_S):
                if self._closing.wait(TURN_S):
                    break
                for _ in range(jobs):
                    body = json.dumps(body_of(tube, chance)).encode()
                    wire.ask(f"put 1024 0 600 {len(body)}", body)  # which may be refused

    def _connect_producer(self, name: str, tube: str) -> Wire:
        wire = Wire(self._server.connect())
        for line in (f"name {name}", f"use {tube}"):
            wire.ask(line)
        return wire


def _reserve(wire: Wire) -> int | None:
    reply = wire.ask(f"reserve-with-timeout {WAIT_S}")
    return int(reply.split()[1]) if reply.startswith("RESERVED") else None


def _portions(each: float) -> Iterator[int]:
    """Yield whole numbers that are ``each`` on average."""
    rest = 0.0
    while True:
        rest += each
        yield int(rest)
        rest -= int(rest)
