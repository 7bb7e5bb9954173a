"""The work of the worker in Python, which calls that of the page."""

import json
import time
from pathlib import Path

import shop


def note(word, key):
    with Path("log").open("ab", buffering=0) as log:
        log.write(f"{word} {key} {time.monotonic()}\n".encode())


def work(body, touch):
    task = json.loads(body)
    key, kind = task["key"], task["kind"]
    note("begin", key)
    if kind == "fails":
        raise ValueError("as it is meant to")
    while kind != "quick" and not Path(f"end-{key}").exists():
        if kind == "touches":
            touch()
        time.sleep(0.005)
    shop.work(body, touch)
    note("end", key)
