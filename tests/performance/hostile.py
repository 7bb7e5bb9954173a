"""How other clients fare while some misbehave.

``python -m tests.performance.hostile [NAME...]`` starts a server on a core of its own for each kind of offender. Ten
innocent clients put, reserve and delete, one command at a time, first alone and then together with the offenders. It
prints a table for docs/performance-lab.md, and takes about three minutes.

The offenders' process yields the other core to the innocents', so that only the server decides how to share its time.
"""

import contextlib
import itertools
import json
import os
import selectors
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from multiprocessing.synchronize import Event
from pathlib import Path

from beanlite.beanstalk.client import Client as Control, Server, Unreachable, connect
from beanlite.client import calls
from tests.bench.target import started
from tests.performance.apart import (
    APART,
    CORES,
    Client,
    chosen,
    leave_first_core,
    open_many_files,
    put,
    title,
)

OFFENDERS = 10
CROWD = 1000
WATCHED = 1000  # as many as one client may
TUBES = 100_000
AT_ONCE = 1 << 16  # bytes
GIVE_WAY = 10  # as `nice` counts


class Offenders:
    """Connections whose replies do not matter, in a process that is killed at the end."""

    def __init__(self, address: Server, ready: Event) -> None:
        self.address = address
        self._ready = ready

    def crowd(self, count: int) -> list[socket.socket]:
        """Open this many connections."""
        return [connect(self.address) for _ in range(count)]

    def begin(self) -> None:
        """Report that everything is prepared, so that the timing begins."""
        self._ready.set()

    def send_forever(self, sockets: Iterable[socket.socket], *pieces: bytes) -> None:
        """Have each socket send these pieces in turn, as fast as it can."""
        for each in sockets:
            threading.Thread(target=self.send, args=(each, *pieces), daemon=True).start()

    def read_forever(self, sockets: Iterable[socket.socket]) -> None:
        """Read all replies, and discard them."""
        with selectors.DefaultSelector() as selector:
            for each in sockets:
                selector.register(each, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    with contextlib.suppress(TimeoutError):
                        if not key.fileobj.recv(1 << 20):
                            raise ConnectionResetError("the server closed a connection")

    def send(self, each: socket.socket, *pieces: bytes) -> None:
        """Send these pieces in turn, as fast as possible."""
        each.settimeout(600)
        for piece in itertools.cycle(pieces):
            each.sendall(piece)


def _many(command: bytes) -> bytes:
    return command * (AT_ONCE // len(command))


# -- the offenders: none of these functions returns; the docstrings are titles in the table


def slow_senders(offenders: Offenders) -> None:
    """1,000 clients send puts one byte at a time."""
    crowd = offenders.crowd(CROWD)
    offenders.begin()
    for byte in itertools.cycle(put(100)):
        for each in crowd:
            each.sendall(bytes([byte]))


def slow_readers(offenders: Offenders) -> None:
    """100 clients pipeline `peek` of 60 kB, `stats` and `list-tubes`, and read nothing."""
    Client(offenders.address).ask(b"use peeked\r\n" + put(60_000))
    crowd = offenders.crowd(100)
    offenders.send_forever(crowd, _many(b"use peeked\r\npeek-ready\r\nstats\r\nlist-tubes\r\n"))
    offenders.begin()
    threading.Event().wait()


def commands(offenders: Offenders) -> None:
    """10 clients pipeline `list-tube-used`."""
    _flood(offenders, b"list-tube-used\r\n")


def garbage(offenders: Offenders) -> None:
    """10 clients pipeline lines that are no command."""
    _flood(offenders, b"\r\n")


def cycles(offenders: Offenders) -> None:
    """10 clients pipeline `put`, `peek-ready`, `reserve` and `release`."""
    _flood(offenders, put(1) + b"peek-ready\r\nreserve-with-timeout 0\r\nrelease 1 0 0\r\n")


def one_each(offenders: Offenders) -> None:
    """1,000 clients send `list-tube-used` one at a time."""
    crowd = offenders.crowd(CROWD)
    offenders.begin()
    while True:
        for each in crowd:
            each.sendall(b"list-tube-used\r\n")
        for each in crowd:
            each.recv(100)


def statistics(offenders: Offenders) -> None:
    """10 clients pipeline `stats`."""
    _flood(offenders, b"stats\r\n")


def lists(offenders: Offenders) -> None:
    """10 clients pipeline `list-tubes` with 100,000 tubes."""
    client = Client(offenders.address)
    for first in range(0, TUBES, 1000):
        client.send(b"".join(b"use tube-%d\r\n" % number + put(0) for number in range(first, first + 1000)))
        client.lines(2000)
    _flood(offenders, b"list-tubes\r\n")


def endless_lines(offenders: Offenders) -> None:
    """10 clients send a line that never ends, and come again when they are closed."""

    def send_until_closed() -> None:
        while True:
            with contextlib.suppress(OSError, Unreachable), connect(offenders.address) as each:
                offenders.send(each, b"a" * AT_ONCE)

    offenders.begin()
    for _ in range(OFFENDERS):
        threading.Thread(target=send_until_closed, daemon=True).start()
    threading.Event().wait()


def connections(offenders: Offenders) -> None:
    """10 clients connect and close in a loop."""

    def come_and_go() -> None:
        while True:
            with contextlib.suppress(OSError, Unreachable), connect(offenders.address) as each:
                # Reset at once, or all ports would soon be in use.
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

    offenders.begin()
    for _ in range(OFFENDERS):
        threading.Thread(target=come_and_go, daemon=True).start()
    threading.Event().wait()


def tubes(offenders: Offenders) -> None:
    """10 clients put into ever new tubes, until there are 150,000."""
    crowd = offenders.crowd(OFFENDERS)

    def grow(number: int, each: socket.socket) -> None:
        each.settimeout(600)
        for first in range(0, 15_000, 1000):
            names = (b"%d.%d" % (number, first + more) for more in range(1000))
            each.sendall(b"".join(b"use %b\r\n" % name + put(0) for name in names))

    offenders.begin()
    for number, each in enumerate(crowd):
        threading.Thread(target=grow, args=(number, each), daemon=True).start()
    offenders.read_forever(crowd)


def watch_many(offenders: Offenders, count: int) -> list[socket.socket]:
    """Open this many connections, each of which watches as many tubes as it may."""
    watches = b"".join(b"watch %d\r\n" % number for number in range(WATCHED - 1))
    crowd = offenders.crowd(count)
    for each in crowd:
        each.sendall(watches)
        with each.makefile("rb") as lines:
            for _ in range(WATCHED - 1):
                lines.readline()
    return crowd


def watchers(offenders: Offenders) -> None:
    """50 clients that watch 1,000 tubes pipeline `reserve-with-timeout 0`."""
    crowd = watch_many(offenders, 50)
    offenders.send_forever(crowd, _many(b"reserve-with-timeout 0\r\n"))
    offenders.begin()
    offenders.read_forever(crowd)


def single_watchers(offenders: Offenders) -> None:
    """500 clients that watch 1,000 tubes `reserve` one at a time, and are woken together."""
    crowd = watch_many(offenders, 500)
    client = Client(offenders.address)
    offenders.begin()
    while True:
        for each in crowd:
            each.sendall(b"reserve\r\n")
        client.many(b"put 0 1 600 0\r\n\r\n", len(crowd))
        client.ask(b"kick 500\r\n")
        for each in crowd:
            each.sendall(b"delete %b\r\n" % each.recv(100).split()[1])
        for each in crowd:
            each.recv(100)


def woken(offenders: Offenders) -> None:
    """200 clients pipeline 1,000 commands behind a `reserve`, and are woken together."""
    crowd = offenders.crowd(200)
    client = Client(offenders.address)
    offenders.begin()
    threading.Thread(target=offenders.read_forever, args=(crowd,), daemon=True).start()
    while True:
        for each in crowd:
            each.sendall(b"reserve\r\n" + b"list-tube-used\r\n" * 1000)
        client.many(b"put 0 1 600 0\r\n\r\n", len(crowd))
        client.ask(b"kick 500\r\n")
        time.sleep(0.2)


def _flood(offenders: Offenders, command: bytes) -> None:
    crowd = offenders.crowd(OFFENDERS)
    for number, each in enumerate(crowd):
        each.sendall(b"use flood-%d\r\nwatch flood-%d\r\nignore default\r\n" % (number, number))
    offenders.send_forever(crowd, _many(command))
    offenders.begin()
    offenders.read_forever(crowd)


SCENARIOS: tuple[Callable[[Offenders], None], ...] = (
    slow_senders, slow_readers, commands, one_each, garbage, cycles, statistics, lists, endless_lines, connections,
    tubes, watchers, single_watchers, woken,
)  # fmt: skip


# -- the measuring


def offend(scenario: Callable[[Offenders], None], address: Server, ready: Event) -> None:
    """Run a scenario until the process is killed."""
    os.nice(GIVE_WAY)
    scenario(Offenders(address, ready))


def innocents(address: Server) -> dict[str, float]:
    """Measure ten clients that put, reserve and delete."""
    place = f"it={address[0]}:{address[-1]}"
    bench = [sys.executable, "-m", "tests.bench", "-c", "10", "-t", "1.5", "--json", "--connect", place]
    done = subprocess.run(bench, check=True, stdout=subprocess.PIPE)
    figures: dict[str, float] = json.loads(done.stdout)["targets"][0]
    return figures


def peak_bytes(pid: int | None) -> int:
    """Return the peak memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return 1024 * int(status.split("VmHWM:")[1].split()[0])


def suffer(scenario: Callable[[Offenders], None]) -> str:
    """Measure a scenario, and return a line of the table."""
    with started("beanlite", Path(), CORES[:1]) as server:
        alone = innocents(server.address)
        before = peak_bytes(server.pid)
        ready = APART.Event()
        process = APART.Process(target=offend, args=(scenario, server.address, ready), daemon=True)
        process.start()
        ready.wait(60)
        beside = innocents(server.address)
        ticks = Path(f"/proc/{process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        share = (int(ticks[11]) + int(ticks[12])) / os.sysconf("SC_CLK_TCK")
        if not process.is_alive():
            sys.exit(f"{title(scenario)}: the offenders have gone")
        process.kill()
        process.join()
        with Control(server.address) as control:
            stats = control.ask(calls.stats())
        refused = sum(int(number) for key, number in stats.items() if key.startswith("refused-"))
        more = (peak_bytes(server.pid) - before) >> 20
    speed = beside["commands_per_s"] / alone["commands_per_s"]
    p99, worst = beside["p99_us"] / 1000, beside["max_us"] / 1000
    print(f"{scenario.__name__}: alone {alone['commands_per_s']:,.0f}/s, offenders {share:.1f} s", file=sys.stderr)
    return f"| {title(scenario)} | {speed:.2f} | {p99:.1f} | {worst:.0f} | {more} | {refused:,} |"


def main() -> None:
    """Measure all scenarios, or the named ones."""
    open_many_files()
    leave_first_core()
    names = chosen([scenario.__name__ for scenario in SCENARIOS])
    for scenario in SCENARIOS:
        if scenario.__name__ in names:
            print(suffer(scenario), flush=True)


if __name__ == "__main__":
    main()
