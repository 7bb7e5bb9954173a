"""How long one client's large body holds up the others.

``python -m tests.performance.large_bodies [--server COMMAND] [MIB...]`` starts a server on a core of its own for each
size and each way to sync. One connection puts a job with a large body, reserves, releases, peeks at and deletes it.
Meanwhile a second one puts, reserves and deletes small jobs without a pause, and a third sends `use`, which does not
wait for the disk. It prints the slowest reply to each of the two during each step, in ms, for
docs/performance-lab.md.
"""

import argparse
import multiprocessing
import os
import tempfile
import time
from multiprocessing.synchronize import Event
from pathlib import Path

from beanlite.beanstalk.client import Server
from tests.bench.target import started
from tests.performance.apart import APART, CORES, Client, leave_first_core, put

SIZES_MIB = (1, 4, 8, 16, 32, 64, 128)
MODES = ("--fsync always", "--fsync 50ms", "--no-journal")
STEPS = ("put", "reserve", "release", "peek", "delete")
SETTLE_S = 0.4  # for work that continues after a reply: a late write, a checkpoint
NOTED_S = 0.001  # quicker replies are not kept

Late = list[tuple[float, float]]
"""For each slow reply, when the wait for it began, and how long it took."""


def probe(address: Server, enough: Event, found: "multiprocessing.SimpleQueue[Late]", *, cycle: bool) -> None:
    """Send commands without a pause over one connection, and note the slow replies."""
    client = Client(address)
    client.ask(b"use probe\r\n")
    client.ask(b"watch probe\r\n")
    client.ask(b"ignore default\r\n")
    late: Late = []

    def ask(command: bytes) -> bytes:
        began_s = time.perf_counter()
        line = client.ask(command)
        took_s = time.perf_counter() - began_s
        if took_s > NOTED_S:
            late.append((began_s, took_s))
        return line

    while not enough.is_set():
        if cycle:
            ask(put(100))
            job = ask(b"reserve\r\n").split()[1]
            client.skip(102)
            ask(b"delete %b\r\n" % job)
        else:
            ask(b"use probe\r\n")
            time.sleep(0.0005)  # so as to measure the server, and not two clients that share a core
    found.put(late)


def worst_ms(late: Late, began_s: float, ended_s: float) -> float:
    """Return the longest wait that overlaps a step."""
    return 1000 * max((took for at, took in late if at < ended_s and at + took > began_s), default=NOTED_S)


def play(address: Server, size: int) -> list[tuple[float, float]]:
    """Do one client's steps with a large body; return when each step began and ended."""
    client = Client(address)
    body = put(size)
    whole = size + 2
    steps = []

    def step(command: bytes, size: int = 0) -> bytes:
        began_s = time.perf_counter()
        line = client.ask(command)
        client.skip(size)
        time.sleep(SETTLE_S)
        steps.append((began_s, time.perf_counter()))
        return line

    job = step(body).split()[1].strip()
    step(b"reserve\r\n", whole)
    step(b"release %b 0 0\r\n" % job)
    step(b"peek %b\r\n" % job, whole)
    step(b"delete %b\r\n" % job)
    return steps


def measure(command: str, size: int) -> str:
    """Measure one server and one size; return the cells of a row, a pair for each step."""
    enough = APART.Event()
    with tempfile.TemporaryDirectory(dir=".") as name:
        folder = Path(name).resolve()
        with started(f"{command} --max-job-size {size}", folder, CORES[:1]) as server:
            os.sync()
            probes = []
            for cycle in (True, False):
                found = APART.SimpleQueue()
                keywords = {"cycle": cycle}
                other = APART.Process(target=probe, args=(server.address, enough, found), kwargs=keywords, daemon=True)
                other.start()
                probes.append(found)
            time.sleep(1.0)
            steps = play(server.address, size)
            enough.set()
            lates = [found.get() for found in probes]
    return " | ".join(" / ".join(f"{worst_ms(late, *step):.0f}" for late in lates) for step in steps)


def main() -> None:
    """Measure all sizes, or those given."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", default="beanlite")
    parser.add_argument("--mode", action="append")
    parser.add_argument("mib", nargs="*", type=int)
    options = parser.parse_args()
    leave_first_core()
    print(f"| MiB | | {' | '.join(STEPS)} |\n|--:|---|{'--:|' * len(STEPS)}")
    for mode in options.mode or MODES:
        for mib in options.mib or SIZES_MIB:
            print(f"| {mib} | `{mode}` | {measure(f'{options.server} {mode}', mib << 20)} |", flush=True)


if __name__ == "__main__":
    main()
