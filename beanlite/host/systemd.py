"""Reports to systemd, by the protocol of sd_notify(3): a datagram to the socket that systemd names.

These few lines are our own because the existing libraries either need a C library or have not been maintained for
years. They keep to two rules: the server never waits for systemd, and without systemd nothing is done.
"""

import asyncio
import os
import socket
import time
from collections.abc import Awaitable
from typing import Final, TypeVar

# By how much the timeout of the start is extended whenever it makes progress.
EXTEND_S: Final = 60
# How often systemd hears of work that may wait for long.
_PATIENCE_S: Final = 1.0
_T = TypeVar("_T")


def is_told() -> bool:
    """Whether systemd wants to be notified."""
    return bool(os.environ.get("NOTIFY_SOCKET"))


def tell(*lines: str) -> None:
    """Notify systemd, for example of ``READY=1``, if it listens."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]  # an abstract socket
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sock:
        try:
            sock.sendto("\n".join(lines).encode(), address)
        except OSError:  # there is no reader, or it is too slow; the next message may get through
            return


def recovering(jobs: int, of: int) -> None:
    """Report that the start makes progress, and extend its timeout.

    This also feeds the watchdog, which already watches a server that was a standby before.
    """
    tell(f"STATUS=Recovering: {jobs} of {of} jobs", "WATCHDOG=1", f"EXTEND_TIMEOUT_USEC={EXTEND_S * 1_000_000}")


def waiting(what: str) -> None:
    """Report that the server is well, but waits for something that is out of its hands."""
    if is_told():
        tell(f"STATUS={what}", "WATCHDOG=1", f"EXTEND_TIMEOUT_USEC={EXTEND_S * 1_000_000}")


async def be_patient_with(work: Awaitable[_T]) -> _T:
    """Await work that may wait for what is out of the server's hands, and report meanwhile that the server is well."""
    reporting = asyncio.ensure_future(_report_again_and_again()) if is_told() else None
    try:
        return await work
    finally:
        if reporting is not None:
            reporting.cancel()


async def _report_again_and_again() -> None:
    """Feed the watchdog and extend the timeout of the start; the status stays as it is."""
    while True:
        tell("WATCHDOG=1", f"EXTEND_TIMEOUT_USEC={EXTEND_S * 1_000_000}")
        await asyncio.sleep(_PATIENCE_S)


def reloading() -> None:
    """Report that the settings are being reloaded; ``READY=1`` reports the end of that."""
    tell("RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")


def watchdog_s() -> float | None:
    """Return the timeout of systemd's watchdog, or None if it does not watch this process."""
    wanted_us = os.environ.get("WATCHDOG_USEC", "")
    pid = os.environ.get("WATCHDOG_PID")
    if not is_told() or not wanted_us.isdecimal() or not int(wanted_us) or pid not in {None, str(os.getpid())}:
        return None
    return int(wanted_us) / 1_000_000
