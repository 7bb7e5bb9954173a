"""Puts a job and releases it three times with greenstalk; the port is the argument."""

import sys

import greenstalk

with greenstalk.Client(("127.0.0.1", int(sys.argv[1])), use="mail.python", watch="mail.python") as client:
    client.put("x")
    for _ in range(3):
        job = client.reserve()
        client.release(job)
        print("released", job.id)
