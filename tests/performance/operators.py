"""How operators' commands affect clients.

``python -m tests.performance.operators [NAME...]`` has 50 connections put, reserve and delete without a pause, and
times each of their replies, while an operator does each of the things below. It prints the table of
docs/performance-lab.md.
"""

import json
import multiprocessing
import os
import selectors
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from beanlite.beanstalk.client import Server, connect
from tests.bench.target import started
from tests.performance.apart import APART, CORES, SETTLE_S, Client, chosen, leave_first_core, put, title
from tests.performance.long_work import MILLION, many_tubes

CLIENTS = 50
ALONE_S = 10.0


class Operator(Client):
    """A connection that sends operators' commands."""

    def request(self, word: str, **what: object) -> dict[str, Any]:
        """Run one slice, and return the reply."""
        body = json.dumps(what).encode()
        head = self.ask(b"%b %d\r\n%b\r\n" % (word.encode(), len(body), body))
        if not head.startswith(b"OK "):
            raise RuntimeError(head.decode())
        reply: dict[str, Any] = json.loads(self._lines.read(int(head.split()[1]) + 2))
        return reply

    def all(self, word: str, **what: object) -> Iterator[dict[str, Any]]:
        """Run all slices, and yield their replies."""
        after = None
        while True:
            reply = self.request(word, after=after, **what)
            yield reply
            after = reply["next"]
            if after is None:
                return


# -- operators' work: prepared up to the yield, done after it; the docstrings are titles in the table


def nothing(_address: Server) -> Iterator[None]:
    """Nothing."""
    yield
    time.sleep(ALONE_S)


def move(address: Server) -> Iterator[None]:
    """A million jobs are moved by filter."""
    operator = million(address)
    yield
    done = sum(reply["done"] for reply in operator.all("change-jobs", do="move", to="other", tube="many"))
    assert done == MILLION


def delete(address: Server) -> Iterator[None]:
    """A million jobs are deleted by filter."""
    operator = million(address)
    yield
    done = sum(reply["done"] for reply in operator.all("change-jobs", do="delete", tube="many"))
    assert done == MILLION


def copy(address: Server) -> Iterator[None]:
    """A million jobs are copied."""
    operator = million(address)
    yield
    done = sum(reply["done"] for reply in operator.all("change-jobs", do="copy", to="other", tube="many"))
    assert done == MILLION


def search(address: Server) -> Iterator[None]:
    """A million jobs are searched for a text."""
    operator = million(address)
    yield
    assert not [reply for reply in operator.all("list-jobs", text="needle", tube="many") if reply["jobs"]]


def values(address: Server) -> Iterator[None]:
    """A million jobs are searched for a value in JSON, and each is parsed."""
    operator = million_of_json(address)
    yield
    assert not [reply for reply in operator.all("list-jobs", where="to=4711", tube="many") if reply["jobs"]]


def groups(address: Server) -> Iterator[None]:
    """A million jobs are counted by a value in JSON."""
    operator = million_of_json(address)
    yield
    found = sum(
        jobs for reply in operator.all("group-jobs", path="customer", tube="many") for _, jobs in reply["groups"]
    )
    assert found == MILLION


def listing(address: Server) -> Iterator[None]:
    """A million jobs are listed."""
    operator = million(address)
    yield
    found = sum(len(reply["jobs"]) for reply in operator.all("list-jobs", tube="many", limit=200, preview=60))
    assert found == MILLION


def tubes(address: Server) -> Iterator[None]:
    """The fullest of 100,000 tubes are found, ten times."""
    kept = many_tubes(address)
    operator = Operator(address)
    yield
    for _ in range(10):
        for _ in operator.all("list-tube-stats", order="ready", limit=50):
            pass
    kept.close()


def watching(address: Server) -> Iterator[None]:
    """All that happens is watched."""
    operator = Operator(address)
    yield
    operator.request("watch-events")
    end_s = time.monotonic() + ALONE_S
    events = 0
    while time.monotonic() < end_s:
        operator.skip(int(operator.ask(b"").split()[1]) + 2)
        events += 1
    print(f"{events / ALONE_S:,.0f} events a second", file=sys.stderr)


def million(address: Server) -> Operator:
    """Put a million jobs of 100 bytes into one tube."""
    operator = Operator(address)
    operator.ask(b"use many\r\n")
    operator.many(put(100), MILLION)
    return operator


def million_of_json(address: Server) -> Operator:
    """Put a million jobs with JSON of 100 bytes into one tube."""
    operator = Operator(address)
    operator.ask(b"use many\r\n")
    body = json.dumps({"customer": 4711, "to": "somebody@example.org", "items": [1, 2, 3]}).ljust(100).encode()
    operator.many(b"put 0 0 60 100\r\n%b\r\n" % body, MILLION)
    return operator


WORKS: tuple[Callable[[Server], Iterator[None]], ...] = (
    nothing, move, delete, copy, search, values, groups, listing, tubes, watching,
)  # fmt: skip


# -- the clients that are timed


def cycle(address: Server, enough: Event, found: "multiprocessing.SimpleQueue[tuple[float, ...]]") -> None:
    """Run all clients, each with one command under way; report the replies a second, and how long they took."""
    selector = selectors.DefaultSelector()
    took_s: list[float] = []
    for _ in range(CLIENTS):
        sock = connect(address)
        selector.register(sock, selectors.EVENT_READ, turns(sock, took_s))
    for key in list(selector.get_map().values()):
        next(key.data)
    began_s = time.perf_counter()
    while not enough.is_set():
        for key, _ in selector.select(1.0):
            next(key.data)
    lasted_s = time.perf_counter() - began_s
    took_s.sort()
    p50, p99, worst = (1000 * took_s[min(len(took_s) - 1, int(len(took_s) * part))] for part in (0.5, 0.99, 1.0))
    found.put((len(took_s) / lasted_s, p50, p99, worst))


def turns(sock: Any, took_s: list[float]) -> Iterator[None]:
    """Run one client; the generator is continued whenever there is something to read."""
    reply = b""

    def ask(command: bytes, lines: int = 1) -> Iterator[None]:
        nonlocal reply
        sock.sendall(command)
        began_s = time.perf_counter()
        reply = b""
        while reply.count(b"\r\n") < lines:
            yield
            reply += sock.recv(1 << 16)
        took_s.append(time.perf_counter() - began_s)

    yield from ask(b"use probe\r\n")
    yield from ask(b"watch probe\r\n")
    yield from ask(b"ignore default\r\n")
    while True:
        yield from ask(put(100))
        yield from ask(b"reserve\r\n", lines=2)
        yield from ask(b"delete %b\r\n" % reply.split()[1])


def measure(work: Callable[[Server], Iterator[None]]) -> str:
    """Measure, and return a line of the table."""
    enough, found = APART.Event(), APART.SimpleQueue()
    with tempfile.TemporaryDirectory(dir=".") as name:
        folder = Path(name).resolve()
        with started(f"beanlite --db {folder}", folder, CORES[:1]) as server:
            doing = work(server.address)
            next(doing)
            os.sync()
            time.sleep(SETTLE_S)
            clients = APART.Process(target=cycle, args=(server.address, enough, found), daemon=True)
            clients.start()
            time.sleep(1)
            began_s = time.monotonic()
            next(doing, None)
            lasted_s = time.monotonic() - began_s
            enough.set()
            clients.join()
            if clients.exitcode:
                sys.exit(f"{title(work)}: a client was cut off")
            replies, p50, p99, worst = found.get()
    return f"| {title(work)} | {lasted_s:.1f} | {replies:,.0f} | {p50:.1f} | {p99:.1f} | {worst:.0f} |"


def main() -> None:
    """Measure everything, or the named work."""
    leave_first_core()
    names = chosen([work.__name__ for work in WORKS])
    print("| an operator's | s | replies/s of 50 clients | p50 ms | p99 | worst |\n|---|--:|--:|--:|--:|--:|")
    for work in WORKS:
        if work.__name__ in names:
            print(measure(work), flush=True)


if __name__ == "__main__":
    main()
