"""What crowds of clients cost: how much memory beyond what is counted, and how long another client waits.

``python -m tests.performance.crowds memory|waits [NAME...]`` starts a server for each kind of crowd, and prints a table
for docs/performance-lab.md; two minutes each. The servers run on the interpreter that runs this, so use one with a
compiled beanlite.

``memory``: the most resident memory of a server under a bound of 256 MiB, first with nothing to do and then with the
crowd; and how much it counts at last. ``waits``: how long a client waits that puts, reserves and deletes one by one.
"""

import contextlib
import json
import multiprocessing
import os
import selectors
import signal
import socket
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing.synchronize import Event
from pathlib import Path

from tests.performance.apart import open_many_files
from tests.support.servers import RunningServer, start_beanlite
from tests.support.wire import Wire

MIB = 1 << 20
BOUND = 256
CROWD = 1500
OFFENDERS = 1000
SECONDS = 8.0
GIVE_WAY = 10  # as `nice` counts
BODY = b"x" * 60_000


def put(body: bytes, delay_s: int = 0) -> bytes:
    return b"put 0 %d 60 %d\r\n%b\r\n" % (delay_s, len(body), body)


def request(word: bytes, **what: object) -> bytes:
    body = json.dumps(what).encode()
    return b"%b %d\r\n%b\r\n" % (word, len(body), body)


def crowd(server: RunningServer, count: int = CROWD, small: int = 0) -> list[socket.socket]:
    """Open this many connections; ``small``: with buffers in the kernel of this size."""
    sockets = []
    for _ in range(count):
        each = socket.socket()
        each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if small:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, small)
        each.connect((server.host, server.port))
        each.settimeout(2)
        sockets.append(each)
    return sockets


def send_all(sockets: list[socket.socket], data: bytes) -> None:
    for each in sockets:
        with contextlib.suppress(OSError):
            each.sendall(data)


@contextlib.contextmanager
def locked(server: RunningServer) -> Iterator[None]:
    """Have another program lock the file, so that commits wait."""
    with contextlib.closing(sqlite3.connect(server.directory / "crowds.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield


# -- memory: each of these yields while the crowd is there, and the docstring is its title


def idle(server: RunningServer) -> Iterator[None]:
    """10,000 clients that do nothing"""
    _ = crowd(server, 10_000)
    yield


def held(server: RunningServer) -> Iterator[None]:
    """1,500 clients send a put and 17 peeks of 60 kB while a commit waits"""
    Wire(server.connect()).put(BODY)
    sockets = crowd(server)
    with locked(server):
        send_all(sockets, put(b"") + b"peek 1\r\n" * 17)
        time.sleep(3)
        yield


def held_later(server: RunningServer) -> Iterator[None]:
    """1,500 clients send the peeks one by one after the put"""
    Wire(server.connect()).put(BODY)
    sockets = crowd(server)
    with locked(server):
        send_all(sockets, put(b""))
        for _ in range(17):
            send_all(sockets, b"peek 1\r\n")
        time.sleep(3)
        yield


def pieces(server: RunningServer) -> Iterator[None]:
    """1,500 clients send 4,000 bytes of a body, two at a time"""
    sockets = crowd(server)
    send_all(sockets, b"put 0 0 60 4001\r\n")
    for _ in range(2000):
        send_all(sockets, b"xx")
    yield


def unread(server: RunningServer) -> Iterator[None]:
    """10,000 clients leave a reply of 60 kB unread"""
    Wire(server.connect()).put(BODY)
    sockets = crowd(server, 10_000, small=2048)
    send_all(sockets, b"peek 1\r\n")
    time.sleep(3)
    yield


def requests(server: RunningServer) -> Iterator[None]:
    """1,500 clients watch events of kinds with very long names"""
    sockets = crowd(server)
    send_all(sockets, request(b"watch-events", what=["x" * 1000 + str(number) for number in range(900)]))
    time.sleep(3)
    yield


def events(server: RunningServer) -> Iterator[None]:
    """1,500 clients watch and don't read 50,000 events"""
    sockets = crowd(server, small=2048)
    send_all(sockets, request(b"watch-events"))
    with Wire(server.connect()) as wire:
        for _ in range(100):
            wire.send(put(b"x") * 500)
            for _ in range(500):
                wire.reply()
    time.sleep(3)
    yield


def tubes(server: RunningServer) -> Iterator[None]:
    """1,500 clients watch 1,000 tubes of their own, with long names"""
    sockets = crowd(server)
    for number, each in enumerate(sockets):
        names = (b"%b%d-%d" % (b"n" * 180, number, more) for more in range(1000))
        with contextlib.suppress(OSError):
            each.sendall(b"".join(b"watch %b\r\n" % name for name in names))
            each.recv(1 << 20)
    time.sleep(3)
    yield


def returned(server: RunningServer) -> Iterator[None]:
    """30,000 jobs that 30,000 connections have reserved and released"""
    with Wire(server.connect()) as wire:
        for _ in range(60):
            wire.send(put(b"", 0) * 500)
            for _ in range(500):
                wire.reply()
    for number in range(30_000):
        with Wire(server.connect()) as wire:
            assert wire.ask(f"reserve-job {number + 1}").startswith("RESERVED")
            assert wire.ask(f"release {number + 1} 0 0") == "RELEASED"
    yield


def puts(server: RunningServer) -> Iterator[None]:
    """1,500 clients put jobs of 60 kB until they are refused, without a journal"""
    sockets = crowd(server)
    for _ in range(5):
        send_all(sockets, put(BODY))
    time.sleep(3)
    yield


def send_at_once(server: RunningServer, sockets: list[socket.socket], data: bytes) -> None:
    """Send as much as the kernel takes while the server is halted, so that it comes in a single turn of its loop."""
    server.signal(signal.SIGSTOP)
    for each in sockets:
        each.setblocking(False)
    send_all(sockets, data)
    server.signal(signal.SIGCONT)
    time.sleep(3)


def parts(server: RunningServer) -> Iterator[None]:
    """1,500 clients send nine tenths of a body of 1 MB while the server is halted"""
    sockets = crowd(server)
    send_at_once(server, sockets, put(b"x" * 1_000_000)[:-100_000])
    yield


def peeks(server: RunningServer) -> Iterator[None]:
    """1,500 clients send 2,000 peeks of 60 kB while the server is halted, and read nothing"""
    Wire(server.connect()).put(BODY)
    sockets = crowd(server, small=2048)
    send_at_once(server, sockets, b"peek 1\r\n" * 2000)
    yield


MEMORY = [idle, held, held_later, pieces, unread, requests, events, tubes, returned, puts, parts, peeks]


def peak_bytes(server: RunningServer) -> int:
    """The most resident memory that the server's process has had so far."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) << 10


def counted_bytes(server: RunningServer) -> int:
    """What the server counts as taken."""
    with Wire(server.connect()) as wire:
        return int(wire.stats()["memory-used"])


def measure_memory(kind: Callable[[RunningServer], Iterator[None]], bound_mib: int = BOUND) -> tuple[int, int, int]:
    """Resident bytes of an empty server, the most of one with the crowd, and the bytes counted at last."""
    keeps = ("--no-journal",) if kind is puts else ("--db", "crowds.db")
    with tempfile.TemporaryDirectory() as folder:
        flags = (*keeps, "--max-memory", f"{bound_mib}MiB", "--max-connections", "12000", "-z", "1000000")
        with start_beanlite(Path(folder), *flags, forked=False) as server:
            counted_bytes(server)
            empty = peak_bytes(server)
            for _ in kind(server):
                counted = counted_bytes(server)
                return empty, peak_bytes(server), counted
    raise AssertionError("a crowd yields once")


# -- waits: what each client of the crowd sends again and again, after what is to be prepared


def fill(server: RunningServer, *commands: bytes) -> None:
    """Send commands, each of which has one reply, in parts."""
    with Wire(server.connect()) as wire:
        for first in range(0, len(commands), 500):
            part = commands[first : first + 500]
            wire.send(b"".join(part))
            for _ in part:
                wire.reply()


def prepare_kicks(server: RunningServer) -> None:
    fill(server, b"use kicked\r\n", *[put(b"x", 100_000)] * 300_000)


def prepare_bodies(server: RunningServer) -> None:
    fill(server, b"use searched\r\n", *[put(b"y" * 1000)] * 20_000)


def prepare_tubes(server: RunningServer) -> None:
    with Wire(server.connect()) as wire:
        for number in range(10_000):
            wire.ask(f"use t{number}")
            wire.put(b"")


def prepare_nothing(_server: RunningServer) -> None:
    pass


WATCHES = b"".join(b"watch %d\r\n" % number for number in range(500))
NEW = [{"body": "x", "tube": "batch"}] * 500
WAITS: dict[str, tuple[int, Callable[[RunningServer], None], bytes, bytes]] = {
    "nothing": (1, prepare_nothing, b"", b""),
    "`kick 500`": (OFFENDERS, prepare_kicks, b"use kicked\r\n", b"kick 500\r\n"),
    "`list-jobs` with a text": (OFFENDERS, prepare_bodies, b"", request(b"list-jobs", text="z", tube="searched")),
    "`change-jobs` (a dry run)": (
        OFFENDERS,
        prepare_bodies,
        b"",
        request(b"change-jobs", do="bury", text="z", tube="searched", dry_run=True),
    ),
    "`put-jobs` of 500 jobs": (OFFENDERS, prepare_nothing, b"", request(b"put-jobs", jobs=NEW)),
    "`stats`": (OFFENDERS, prepare_nothing, b"", b"stats\r\n"),
    "`list-tubes` with 10,000 tubes": (OFFENDERS, prepare_tubes, b"", b"list-tubes\r\n"),
    "`reserve-with-timeout 0` from 500 tubes": (OFFENDERS, prepare_nothing, WATCHES, b"reserve-with-timeout 0\r\n"),
    "`watch-events`, 5,000 clients": (5000, prepare_nothing, request(b"watch-events"), b""),
}


def offend(address: tuple[str, int], count: int, first: bytes, again: bytes, ready: Event) -> None:
    """Be a crowd: each client sends its command again when it has a reply."""
    os.nice(GIVE_WAY)
    selector = selectors.DefaultSelector()
    sockets = []
    for _ in range(count):
        each = socket.create_connection(address)
        each.sendall(first)
        if first.startswith((b"use ", b"watch ")):
            with each.makefile("rb") as lines:
                for _ in range(first.count(b"\n")):
                    lines.readline()
        each.setblocking(False)
        selector.register(each, selectors.EVENT_READ, each)
        sockets.append(each)
    ready.set()
    for each in sockets:
        each.send(again)
    while True:
        for key, _ in selector.select():
            data = key.data.recv(1 << 20)
            if not data:
                raise ConnectionResetError("the server closed a connection")
            if again and data.endswith(b"\n"):
                key.data.send(again)


def waited_s(server: RunningServer) -> list[float]:
    """How long each of a client's commands took, in ascending order."""
    took = []

    def ask(line: str, body: bytes | None = None) -> str:
        began_s = time.monotonic()
        reply = wire.ask(line, body)
        took.append(time.monotonic() - began_s)
        return reply

    with Wire(server.connect()) as wire:
        for line in ("use own", "watch own", "ignore default"):
            wire.ask(line)
        until_s = time.monotonic() + SECONDS
        while time.monotonic() < until_s:
            ask("put 0 0 60 5", b"hello")
            job_id = ask("reserve").split()[1]
            ask(f"delete {job_id}")
    return sorted(took)


def measure_waits(name: str) -> list[float]:
    count, prepare, first, again = WAITS[name]
    flags = ("--db", "crowds.db", "--max-connections", "12000")
    with tempfile.TemporaryDirectory() as folder, start_beanlite(Path(folder), *flags, forked=False) as server:
        prepare(server)
        ready = multiprocessing.Event()
        offenders = multiprocessing.Process(
            target=offend, args=((server.host, server.port), count, first, again, ready), daemon=True
        )
        offenders.start()
        try:
            ready.wait()
            time.sleep(1)
            return waited_s(server)
        finally:
            offenders.kill()
            offenders.join()


def main(what: str, names: list[str]) -> None:
    open_many_files()
    if what == "memory":
        print(f"| under {BOUND} MiB | resident, MiB | of them when empty | counted |\n|---|---|---|---|")
        for kind in MEMORY:
            if not names or kind.__name__ in names:
                empty, full, counted = measure_memory(kind)
                title = f"{kind.__doc__}"
                print(f"| {title} | {full / MIB:.0f} | {empty / MIB:.0f} | {counted / MIB:.0f} |", flush=True)
    else:
        print("| beside 1,000 clients with | commands | p50, ms | p99 | worst |\n|---|---|---|---|---|")
        for name in WAITS:
            if not names or any(each in name for each in names):
                took = measure_waits(name)
                p50, p99 = took[len(took) // 2], took[len(took) * 99 // 100]
                print(
                    f"| {name} | {len(took):,} | {p50 * 1e3:.1f} | {p99 * 1e3:.1f} | {took[-1] * 1e3:.1f} |", flush=True
                )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
