"""How other clients are affected while the server does long work or holds a great deal.

``python -m tests.performance.long_work [NAME...]`` starts a server on a core of its own for each scenario; while the
long work lasts, one connection puts, reserves and deletes without a pause and times each reply. It prints the tables
of docs/performance-lab.md, and takes about ten minutes and 2 GB of disk.
"""

import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.synchronize import Event
from pathlib import Path

from beanlite.beanstalk.client import Client as Control, Server
from beanlite.client import calls
from tests.bench.target import started
from tests.performance.apart import (
    APART,
    CORES,
    SETTLE_S,
    Client,
    chosen,
    leave_first_core,
    open_many_files,
    put,
    title,
)

MILLION = 1_000_000
CLIENTS = 10_000
BACKLOG = 500_000


def await_zero(address: Server, *names: str) -> None:
    """Wait until these statistics of the server are 0, not counting the one job of the probe."""
    with Control(address) as control:
        while any(int(control.ask(calls.stats())[name]) > 1 for name in names):
            time.sleep(0.1)


# -- the long work: prepared up to the yield, done after it; the docstrings are titles in the table


def kick(address: Server, _folder: Path) -> Iterator[None]:
    """`kick 1000000`."""
    client = Client(address)
    client.many(put(0, delay_s=3600), MILLION)
    yield
    client.ask(b"kick 1000000\r\n")


def delays(address: Server, _folder: Path) -> Iterator[None]:
    """A million delays end within a second, and are written."""
    client = Client(address)
    end_s = time.monotonic() + 20
    for _ in range(100):
        client.many(put(0, delay_s=max(1, round(end_s - time.monotonic()))), MILLION // 100)
    time.sleep(max(0.0, end_s - time.monotonic() - 2))
    yield
    await_zero(address, "current-jobs-delayed")
    time.sleep(SETTLE_S)


def reservations(address: Server, _folder: Path) -> Iterator[None]:
    """A connection with 100,000 reservations closes."""
    client = Client(address)
    client.many(put(0), 100_000)
    client.many(b"reserve\r\n", 100_000, lines=2)
    yield
    client.close()
    await_zero(address, "current-jobs-reserved")
    time.sleep(SETTLE_S)


def connections(address: Server, _folder: Path) -> Iterator[None]:
    """10,000 connections close in one instant, each with a reservation."""
    workers = [Client(address) for _ in range(CLIENTS)]
    workers[0].many(put(0), CLIENTS)
    for worker in workers:
        worker.ask(b"reserve\r\n")
    yield
    for worker in workers:
        worker.close()
    time.sleep(SETTLE_S)


def waiting(address: Server, _folder: Path) -> Iterator[None]:
    """10,000 waiting clients time out."""
    workers = [Client(address) for _ in range(CLIENTS)]
    for worker in workers:
        worker.send(b"watch idle\r\nignore default\r\nreserve-with-timeout 3\r\n")
    yield
    await_zero(address, "current-waiting")


def pause(address: Server, _folder: Path) -> Iterator[None]:
    """`pause-tube` 0 on a tube where 10,000 wait for 10,000 jobs."""
    workers = [Client(address) for _ in range(CLIENTS)]
    workers[0].many(b"use busy\r\n", 1)
    workers[0].ask(b"pause-tube busy 600\r\n")
    workers[0].many(put(0), CLIENTS)
    for worker in workers:
        worker.send(b"watch busy\r\nignore default\r\nreserve\r\n")
    yield
    client = Client(address)
    client.ask(b"pause-tube busy 0\r\n")
    await_zero(address, "current-waiting")
    time.sleep(SETTLE_S)


def tubes(address: Server, _folder: Path) -> Iterator[None]:
    """`stats` and `list-tubes` with 100,000 tubes."""
    client = many_tubes(address)
    yield
    for _ in range(10):
        for command in (b"stats\r\n", b"list-tubes\r\n"):
            client.skip(int(client.ask(command).split()[1]) + 2)


def checkpoints(address: Server, _folder: Path) -> Iterator[None]:
    """Checkpoints: 300,000 pipelined puts of 100 bytes."""
    client = Client(address)
    yield
    client.many(put(100), 300_000)


def large(address: Server, _folder: Path) -> Iterator[None]:
    """Pipelined puts of 16 KiB, as fast as the disk takes them: 512 MiB."""
    client = Client(address)
    yield
    client.many(put(16 << 10), 1 << 15)


def large_at_once(address: Server, _folder: Path) -> Iterator[None]:
    """50 connections put a body of 8 MiB each, all at once."""
    clients = [Client(address) for _ in range(50)]
    yield
    senders = [threading.Thread(target=client.ask, args=(put(8 << 20),)) for client in clients]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()


def flood(address: Server, _folder: Path) -> Iterator[None]:
    """Ten connections send 1,000,000 puts of 1 byte, and don't wait for the answers."""
    clients = [Client(address) for _ in range(10)]
    yield
    readers = [threading.Thread(target=client.lines, args=(MILLION // 10,)) for client in clients]
    for reader in readers:
        reader.start()
    for _ in range(100):
        for client in clients:
            client.send(put(1) * (MILLION // 1000))
    for reader in readers:
        reader.join()


def backup(address: Server, folder: Path) -> Iterator[None]:
    """`beanlite backup` of 512 MiB."""
    Client(address).many(put(16 << 10), 1 << 15)
    time.sleep(SETTLE_S)
    yield
    copy = folder / "copy.db"
    subprocess.run([sys.executable, "-m", "beanlite", "backup", copy, "--db", folder], check=True, capture_output=True)
    time.sleep(SETTLE_S)


def delete(client: Client, jobs: range) -> None:
    """Delete these jobs, in order."""
    for first in range(0, len(jobs), 500):
        some = jobs[first : first + 500]
        client.send(b"".join(b"delete %d\r\n" % job for job in some))
        client.skip(len(some) * len(b"DELETED\r\n"))


def drained(address: Server, folder: Path) -> Iterator[None]:
    """A backlog of 512 MiB is drained by one client, and the file shrinks."""
    client = Client(address)
    client.many(put(1000), BACKLOG)
    yield
    delete(client, range(1, BACKLOG + 1))
    while (folder / "beanlite.db").stat().st_size > 16 << 20:
        time.sleep(0.1)


def drained_backwards(address: Server, folder: Path) -> Iterator[None]:
    """The same, the newest jobs first; ten seconds of the shrinking."""
    client = Client(address)
    client.many(put(1000), BACKLOG)
    full = (folder / "beanlite.db").stat().st_size
    yield
    delete(client, range(BACKLOG, 0, -1))
    time.sleep(10)
    if (folder / "beanlite.db").stat().st_size >= full:
        raise RuntimeError("the file has not shrunk")


SCENARIOS: tuple[Callable[[Server, Path], Iterator[None]], ...] = (
    kick, delays, reservations, connections, waiting, pause, tubes, checkpoints, large, large_at_once, flood, backup,
    drained, drained_backwards,
)  # fmt: skip


# -- what the server holds while the cycle's speed is measured; the docstrings are titles in the table


def many_tubes(address: Server) -> Client:
    """100,000 tubes with a job each."""
    client = Client(address)
    for first in range(0, 100_000, 100):
        client.send(b"".join(b"use tube-%d\r\n" % number + put(0) for number in range(first, first + 100)))
        client.lines(200)
    return client


def many_waiting(address: Server) -> object:
    """10,000 connections that wait in a reserve."""
    workers = [Client(address) for _ in range(CLIENTS)]
    for worker in workers:
        worker.send(b"watch idle\r\nignore default\r\nreserve\r\n")
    return workers


def many_jobs(address: Server) -> object:
    """2,000,000 ready jobs and 1,000,000 delayed ones."""
    client = Client(address)
    client.many(put(0), 2 * MILLION)
    client.many(put(0, delay_s=3600), MILLION)
    return client


AMOUNTS: tuple[Callable[[Server], object], ...] = (many_tubes, many_waiting, many_jobs)


# -- the measuring


def probe(address: Server, enough: Event, found: "multiprocessing.SimpleQueue[tuple[float, ...]]") -> None:
    """Put, reserve and delete over one connection; report the p50, p99 and worst of its replies, in ms."""
    client = Client(address)
    client.ask(b"use probe\r\n")
    client.ask(b"watch probe\r\n")
    client.ask(b"ignore default\r\n")
    took_s = []

    def ask(command: bytes) -> bytes:
        began_s = time.perf_counter()
        line = client.ask(command)
        took_s.append(time.perf_counter() - began_s)
        return line

    while not enough.is_set():
        ask(put(100))
        job = ask(b"reserve\r\n").split()[1]
        client.skip(102)
        ask(b"delete %b\r\n" % job)
    took_s.sort()
    found.put((1000 * took_s[len(took_s) // 2], 1000 * took_s[len(took_s) * 99 // 100], 1000 * took_s[-1]))


def freeze(scenario: Callable[[Server, Path], Iterator[None]]) -> str:
    """Play a scenario, and return a line of the table."""
    enough, found = APART.Event(), APART.SimpleQueue()
    with tempfile.TemporaryDirectory(dir=".") as name:
        folder = Path(name).resolve()
        flags = f"--max-connections {2 * CLIENTS} --max-job-size {8 << 20}"
        with started(f"beanlite --db {folder} {flags}", folder, CORES[:1]) as server:
            work = scenario(server.address, folder)
            next(work)
            os.sync()  # writes that are left from the preparation and from the previous scenario
            time.sleep(SETTLE_S)
            other = APART.Process(target=probe, args=(server.address, enough, found), daemon=True)
            other.start()
            time.sleep(0.5)
            next(work, None)
            enough.set()
            other.join()
            if other.exitcode:
                sys.exit(f"{title(scenario)}: the connection that is timed was cut off")
            p50, p99, worst = found.get()
    return f"| {title(scenario)} | {p50:.1f} | {p99:.1f} | {worst:.0f} |"


def growth(fill: Callable[[Server], object]) -> str:
    """Return a line of the table: the speed of a filled server, as a ratio to that of an empty one."""
    ratios = []
    for journal in ("--fsync always", "--no-journal"):
        server = f"beanlite {journal} --max-connections {2 * CLIENTS}"
        with started(server, Path(), CORES[:1]) as empty, started(server, Path(), CORES[:1]) as full:
            kept = fill(full.address)
            places = [f"--connect={name}={at.address[0]}:{at.address[-1]}" for name, at in (("e", empty), ("f", full))]
            bench = [sys.executable, "-m", "tests.bench", "--rounds", "6", "--seconds", "2", "--json", *places]
            report = json.loads(subprocess.run(bench, check=True, stdout=subprocess.PIPE).stdout)
            ratios.append(report["targets"][1]["ratio"])
            del kept
    return f"| {title(fill)} | {ratios[0]:.2f} | {ratios[1]:.2f} |"


def rss_bytes(pid: int | None) -> int:
    """Return the resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def memory() -> str:
    """Return how much memory a million ready jobs of 100 bytes take, and how fast a start restores them."""
    with tempfile.TemporaryDirectory(dir=".") as name:
        folder = Path(name).resolve()

        def server(work: Callable[[Server], object]) -> tuple[float, int]:
            began_s = time.monotonic()
            with started(f"beanlite --db {folder}", folder, CORES[:1]) as at:
                took_s = time.monotonic() - began_s
                work(at.address)
                return took_s, rss_bytes(at.pid)

        empty_s, empty = server(lambda _: None)
        _, filled = server(lambda address: Client(address).many(put(100), MILLION))
        full_s, full = server(lambda _: None)
    each, again = ((size - empty) / MILLION for size in (filled, full))
    restored = MILLION / (full_s - empty_s)
    return f"{each:.0f} bytes a job, {again:.0f} after a start, which restores {restored:,.0f} a second"


def main() -> None:
    """Measure everything, or what is named."""
    open_many_files()
    leave_first_core()
    names = chosen([*(work.__name__ for work in (*AMOUNTS, *SCENARIOS)), "memory"])
    for fill in AMOUNTS:
        if fill.__name__ in names:
            print(growth(fill), flush=True)
    for scenario in SCENARIOS:
        if scenario.__name__ in names:
            print(freeze(scenario), flush=True)
    if "memory" in names:
        print(memory())


if __name__ == "__main__":
    main()
