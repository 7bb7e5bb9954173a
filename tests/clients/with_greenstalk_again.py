"""Puts jobs and deletes half of them with greenstalk, and connects again whenever that breaks.

The arguments are the ports of the servers, one of which is active. Each line is what was acknowledged, or a delete that
is about to be sent.
"""

import itertools
import sys
import time

import greenstalk

SERIALS = itertools.count(1)


def work(port: int) -> None:
    with greenstalk.Client(("127.0.0.1", port)) as client:
        while True:
            for _ in range(2):
                body = f"greenstalk-{next(SERIALS)}"
                print("put", client.put(body), body, flush=True)
            job = client.reserve()
            print("deleting", job.id, flush=True)
            client.delete(job)
            print("deleted", job.id, flush=True)


for port in itertools.cycle(map(int, sys.argv[1:])):
    try:
        work(port)
    except OSError:
        time.sleep(0.02)
