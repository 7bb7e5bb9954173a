"""The actors that workers of the tests run: each message is a line in a log."""

import os
from pathlib import Path

import dramatiq

from beanlite.dramatiq import BeanliteBroker

dramatiq.set_broker(BeanliteBroker(os.environ["DRAMATIQ_SERVER"], name="tests/actors"))


@dramatiq.actor(max_retries=3, min_backoff=50, max_backoff=100)
def work(key):
    with Path("log").open("ab", buffering=0) as log:
        log.write(f"{key}\n".encode())
    if key == "fails":
        raise ValueError("as it is meant to")
