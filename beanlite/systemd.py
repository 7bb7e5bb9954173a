"""What systemd is told of the server, by the protocol of sd_notify(3): a datagram to the socket that it names.

These few lines are our own because the libraries there are either need a C library or have not been looked after for
years. They keep to two rules: nobody waits for systemd, and without systemd nothing is done.
"""

from __future__ import annotations

import os
import socket
import time
from typing import Final

# How much longer a start may take than systemd would wait, whenever it has made progress.
EXTEND_S: Final = 60


def is_told() -> bool:
    """Whether somebody wants to be told."""
    return bool(os.environ.get("NOTIFY_SOCKET"))


def tell(*lines: str) -> None:
    """Tell systemd something, such as ``READY=1``, unless it does not listen."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]  # an abstract socket
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sock:
        try:
            sock.sendto("\n".join(lines).encode(), address)
        except OSError:  # nobody reads it, or not as fast; the next line may arrive
            return


def recovering(jobs: int, of: int) -> None:
    """The start has made progress, and may take longer for it; who has stood by before is watched already."""
    tell(f"STATUS=Recovering: {jobs} of {of} jobs", "WATCHDOG=1", f"EXTEND_TIMEOUT_USEC={EXTEND_S * 1_000_000}")


def waiting(what: str) -> None:
    """The server waits for something that is not in its hands, and is well."""
    if is_told():
        tell(f"STATUS={what}", "WATCHDOG=1", f"EXTEND_TIMEOUT_USEC={EXTEND_S * 1_000_000}")


def reloading() -> None:
    """The settings are being read again; ``READY=1`` says that it is over."""
    tell("RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")


def watchdog_s() -> float | None:
    """Within what time systemd wants to hear of the server; None: it does not watch it."""
    wanted_us = os.environ.get("WATCHDOG_USEC", "")
    pid = os.environ.get("WATCHDOG_PID")
    if not is_told() or not wanted_us.isdecimal() or not int(wanted_us) or pid not in {None, str(os.getpid())}:
        return None
    return int(wanted_us) / 1_000_000
