"""Machines for a test: network namespaces behind a router, which can be told to drop packets between two of them.

Packets are dropped silently, as when a cable is pulled: neither side is notified that a connection has ended.
"""

import contextlib
import ctypes
import itertools
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Self

CLONE_NEWNET = 0x40000000
LIBC = ctypes.CDLL(None, use_errno=True)
NUMBERS = itertools.count(1)


class Machine:
    """A network namespace for programs, with an address."""

    def __init__(self, address: str, namespace: str | None) -> None:
        self.address = address
        self._namespace = namespace

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Run the block in this namespace: processes and sockets that it makes belong there. It must not await."""
        if self._namespace is None:
            yield
            return
        with Path("/proc/thread-self/ns/net").open("rb") as before:
            with Path("/run/netns", self._namespace).open("rb") as there:
                _enter(there.fileno())
            try:
                yield
            finally:
                _enter(before.fileno())

    def processes(self) -> list[int]:
        """Return the ids of all processes in this namespace. A thread that has entered it does not count."""
        assert self._namespace is not None
        command = ["ip", "netns", "pids", self._namespace]
        return list(map(int, subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()))


HERE = Machine("127.0.0.1", None)


def _enter(descriptor: int) -> None:
    if LIBC.setns(descriptor, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


class Network:
    """A number of machines. Leaving its ``with`` removes them, once nothing runs in them."""

    def __init__(self, size: int) -> None:
        name = f"beanlite-{os.getpid()}-{next(NUMBERS)}"
        self._router = f"{name}-router"
        self.machines = [Machine(f"10.213.{number}.2", f"{name}-{number}") for number in range(size)]
        self._cuts: list[tuple[str, ...]] = []

    def __enter__(self) -> Self:
        try:
            self._make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        for namespace in (self._router, *(machine._namespace for machine in self.machines)):
            subprocess.run(["ip", "netns", "delete", str(namespace)], check=False, capture_output=True)

    def _make(self) -> None:
        router = self._router
        _ip("netns", "add", router)
        with Machine("", router).entered():
            Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        for number, machine in enumerate(self.machines):
            there, end, gate = str(machine._namespace), f"end{number}", f"10.213.{number}.1"
            _ip("netns", "add", there)
            _ip("-n", router, "link", "add", end, "type", "veth", "peer", "name", "end", "netns", there)
            _ip("-n", router, "address", "add", f"{gate}/30", "dev", end)
            _ip("-n", router, "link", "set", end, "up")
            _ip("-n", there, "address", "add", f"{machine.address}/30", "dev", "end")
            _ip("-n", there, "link", "set", "lo", "up")
            _ip("-n", there, "link", "set", "end", "up")
            _ip("-n", there, "route", "add", "default", "via", gate)

    def cut(self, one: Machine, *others: Machine) -> None:
        """Drop all packets between one machine and each of the others, in both directions."""
        for other in others:
            self.mute(one, other)
            self.mute(other, one)

    def mute(self, one: Machine, other: Machine) -> None:
        """Drop packets from the first machine to the other, in this direction only."""
        way = ("from", one.address, "to", other.address, "blackhole")
        _ip("-n", self._router, "rule", "add", *way)
        self._cuts.append(way)

    def heal(self) -> None:
        """End all cuts."""
        while self._cuts:
            _ip("-n", self._router, "rule", "delete", *self._cuts.pop())


def no_network() -> str:
    """Return why no network can be made here; empty if one can."""
    try:
        with Network(1) as network, network.machines[0].entered():
            return ""
    except subprocess.CalledProcessError as error:
        return f"no network namespaces: {error.stderr.strip()}"
    except OSError as error:
        return f"no network namespaces: {error}"
