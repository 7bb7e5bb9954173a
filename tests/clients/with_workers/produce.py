"""Puts jobs with the producer of the page, one for each line of stdin; prints the keys whose put was acknowledged."""

import sys
from contextlib import suppress

from producer import put

for line in sys.stdin:
    key = line.strip()
    for _ in range(100):
        with suppress(OSError):
            put({"key": key, "kind": "quick", "cents": 5})
            print(key, flush=True)
            break
