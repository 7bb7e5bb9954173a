"""How Prometheus affects clients.

``python -m tests.performance.prometheus`` has 50 connections put, reserve and delete without a pause, and times each of
their replies: with a server that is scraped each second, with one that could be scraped, and with one that measures
nothing, in turns; and again with 100,000 tubes. It prints the table of docs/performance-lab.md.
"""

import os
import statistics
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

from tests.bench.target import started
from tests.performance.apart import APART, CORES, SETTLE_S, leave_first_core
from tests.performance.long_work import many_tubes
from tests.performance.operators import cycle

ROUNDS = 5
ROUND_S = 8.0
WATCHED = "127.0.0.1:21381"


def scrape(enough: threading.Event, took_s: list[float]) -> None:
    """Ask for the metrics each second."""
    while not enough.wait(1.0):
        began_s = time.perf_counter()
        with urllib.request.urlopen(f"http://{WATCHED}/metrics", timeout=10) as response:
            response.read()
        took_s.append(time.perf_counter() - began_s)


def measure(*, health: bool, scraped: bool, tubes: bool) -> tuple[float, ...]:
    """Return replies a second, their p50, p99 and worst in milliseconds, and the median milliseconds of a scrape."""
    enough, found, took_s = APART.Event(), APART.SimpleQueue(), [0.0]
    scrapes_enough = threading.Event()
    with tempfile.TemporaryDirectory(dir=".") as name:
        folder = Path(name).resolve()
        flags = f" --health {WATCHED}" if health else ""
        with started(f"beanlite --db {folder}{flags}", folder, CORES[:1]) as server:
            kept = many_tubes(server.address) if tubes else None
            os.sync()
            time.sleep(SETTLE_S)
            clients = APART.Process(target=cycle, args=(server.address, enough, found), daemon=True)
            clients.start()
            scraper = threading.Thread(target=scrape, args=(scrapes_enough, took_s))
            if scraped:
                scraper.start()
            time.sleep(ROUND_S)
            scrapes_enough.set()
            if scraped:
                scraper.join()
            enough.set()
            clients.join()
            if kept is not None:
                kept.close()
            replies: tuple[float, ...] = found.get()
    return (*replies, 1000 * statistics.median(took_s[1:] or took_s))


CASES = {
    "Nothing is measured": (False, False, False),
    "`--health`": (True, False, False),
    "`--health`, scraped each second": (True, True, False),
    "Nothing is measured, 100,000 tubes": (False, False, True),
    "`--health`, scraped each second, 100,000 tubes": (True, True, True),
}


def main() -> None:
    """Measure everything, and print the table."""
    leave_first_core()
    found: dict[str, list[tuple[float, ...]]] = {title: [] for title in CASES}
    for _ in range(ROUNDS):
        for title, (health, scraped, tubes) in CASES.items():
            found[title].append(measure(health=health, scraped=scraped, tubes=tubes))
    print("| | replies/s of 50 clients | p50 ms | p99 | worst | a scrape, ms |\n|---|--:|--:|--:|--:|--:|")
    for title, rounds in found.items():
        replies, p50, p99, worst, took = map(statistics.median, zip(*rounds, strict=True))
        print(f"| {title} | {replies:,.0f} | {p50:.1f} | {p99:.1f} | {worst:.0f} | {took:.0f} |")


if __name__ == "__main__":
    main()
