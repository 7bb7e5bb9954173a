"""Puts jobs and deletes half of them with beanlite's own client, which connects again by itself.

The arguments are the ports of the servers, one of which is active. Each line is what was acknowledged, or a delete that
is about to be sent.
"""

import contextlib
import itertools
import sys
import time

from beanlite.client import BlockingQueue, CannotConnect, JobLost, PutUnknown, connect_blocking

SERIALS = itertools.count(1)
URL = "beanlite://" + ",".join(f"127.0.0.1:{port}" for port in sys.argv[1:])


def first() -> BlockingQueue:
    """Connect once a server is there; what comes after that the client does by itself."""
    while True:
        try:
            return connect_blocking(URL)
        except CannotConnect:
            time.sleep(0.02)


with first() as queue:
    while True:
        for _ in range(2):
            body = f"beanlite-{next(SERIALS)}"
            with contextlib.suppress(PutUnknown):
                print("put", queue.put(body), body, flush=True)
        job = queue.reserve()
        print("deleting", job.id, flush=True)
        with contextlib.suppress(JobLost):
            job.delete()
            print("deleted", job.id, flush=True)
