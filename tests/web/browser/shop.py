"""A queue as a shop might have it, for pages to look at."""

import contextlib
import json
import math
import random
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from tests.support.servers import RunningServer
from tests.support.wire import Wire

TUBES = ("billing", "mail", "reports.nightly", "search-index", "thumbnails", "webhooks")
TEMPLATES = ("welcome", "invoice", "reminder", "receipt")
# What goes wrong, and how often.
ERRORS = {
    "Timeout": 50,
    "ConnectionRefused": 30,
    "HTTPError 502": 12,
    "KeyError: 'sku'": 6,
    "card declined, try again": 2,
}
HOUR_S = 3600
_INTO_TOTALS = """
    INSERT INTO totals
        (span_s, at, tube, put, reserved, deleted, released, timed_out, buried, kicked, waited_s, held_s)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""


def fill(wire: Wire) -> int:
    """Put jobs in all states into tubes, some of them watched; returns the id of a buried job of ``mail``."""
    chance = random.Random(1)
    for tube in TUBES:
        wire.ask(f"use {tube}")
        for number in range(chance.randrange(40, 200)):
            delay_s = chance.choice((0, 0, 0, 12 * HOUR_S))
            wire.put(_body(tube, number, chance), pri=chance.choice((512, 1024, 2048)), delay_s=delay_s)
    buried = 0
    for tube, times in (("thumbnails", 40), ("mail", 30)):
        wire.ask(f"watch {tube}")
        for number in range(times):
            job_id = int(wire.ask("reserve-with-timeout 0").split()[1])
            wire.ask(f"bury {job_id} 1024" if number % 3 == 0 else f"delete {job_id}")
            buried = job_id if number % 3 == 0 else buried
        wire.ask(f"ignore {tube}")
    wire.ask("pause-tube reports.nightly 3600")
    wire.request("set-policy", pattern="*", set={"max_tries": 5, "retry": "10s..1h"}, by="ann")
    wire.request("set-policy", pattern="mail", set={"max_tries": 12}, by="ann")
    nightly = {"name": "nightly", "when": "0 3 * * *", "zone": "Europe/Berlin", "tube": "reports.nightly"}
    wire.request("set-schedule", **nightly, body='{"report": "sales"}', by="ann")
    return buried


def _body(tube: str, number: int, chance: random.Random) -> bytes:
    said: dict[str, object] = {"order": 48_000 + number * 7}
    if tube == "mail":
        said |= {"to": f"customer{number}@example.org", "template": chance.choice(TEMPLATES), "language": "en"}
    elif tube == "thumbnails":
        said = {"image": f"products/{1000 + number}.jpg", "sizes": [160, 480, 1200]}
    return json.dumps(said).encode()


def fail(wire: Wire) -> None:
    """Put jobs into a tube, of which each second one is buried, and most say why they have failed."""
    chance = random.Random(4)
    for command in ("use web.orders", "watch web.orders"):
        wire.ask(command)
    for number in range(120):
        body: dict[str, object] = {"customer": 4700 + number % 13, "order": number}
        if number % 9:
            body["error"] = {"type": chance.choices(tuple(ERRORS), tuple(ERRORS.values()))[0]}
        job_id = wire.put(json.dumps(body).encode())
        if number % 2:
            wire.ask(f"reserve-job {job_id}")
            wire.ask(f"bury {job_id} 1024")
    wire.ask("ignore web.orders")


def make_older(database: Path) -> None:
    """Have a stopped server's file look as if it had been in use for a day: what is in it is hours old, with curves."""
    chance = random.Random(2)
    with contextlib.closing(sqlite3.connect(database)) as file, file:
        # The triggers that keep other programs from writing name it.
        file.create_function("only_the_beanlite_server_may_write", 0, lambda: 1)
        file.execute("UPDATE jobs SET created_at = created_at - 36000 + 13.7 * id, due_at = due_at - 36000 + 13.7 * id")
        file.execute("UPDATE jobs SET since = created_at + iif(state = 'buried', 16000 + 103.3 * buried_seq, 0)")
        file.execute("UPDATE jobs SET row_crc32 = NULL")  # as in rows of a version without checksums
        file.execute("UPDATE meta SET unchecked_id = last_id")
        file.execute("""
            UPDATE history SET at = since - 2.3 * (what = 'reserve') - (since - created_at) * (what = 'put')
            FROM jobs WHERE jobs.id = job
        """)
        now = int(time.time()) // HOUR_S * HOUR_S
        for rank, tube in enumerate(TUBES, 1):
            for hours in range(1, 24):
                row = _hour(now - hours * HOUR_S, tube, 4000 / rank, rank, chance)
                file.execute(_INTO_TOTALS, row)


def _hour(at: int, tube: str, mean: float, later: int, chance: random.Random) -> tuple[object, ...]:
    """A row of totals: little is bought at night."""
    share = 1.3 - math.cos((at % 86_400 / HOUR_S - 3 - later) * math.pi / 12)
    put = int(mean * share * chance.uniform(0.8, 1.2))
    deleted = int(put * chance.uniform(0.9, 1.05))
    waited_s = deleted * 3.0 * share * chance.uniform(0.7, 1.3)
    return HOUR_S, at, tube, put, deleted, deleted, 0, 0, put // 500, 0, waited_s, deleted * 0.4


@contextlib.contextmanager
def trade(server: RunningServer) -> Iterator[None]:
    """Customers and workers: jobs come and go for as long as the ``with`` lasts."""
    closing = threading.Event()

    def work() -> None:
        chance = random.Random(3)
        with Wire(server.connect()) as wire:
            while not closing.wait(0.02):
                tube = chance.choice(TUBES)
                for command in (f"use {tube}", f"watch {tube}", "ignore default"):
                    wire.ask(command)
                wire.put(_body(tube, chance.randrange(1000), chance))
                if chance.random() < 0.7:
                    wire.ask(f"delete {wire.ask('reserve').split()[1]}")

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        closing.set()
        thread.join()
