"""Rounds: servers under load, and what a command costs them."""

import contextlib
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

from tests.bench import machine, target
from tests.performance.yardstick.versions import Version

SYNCED = "--fsync always"
MEMORY = "--no-journal"
SLICES = 12  # of load in a round, for each version
BY_CALLGRIND = 3  # this part of a slice is enough where each instruction is counted
Subject = TypeVar("Subject")
Measured = TypeVar("Measured")


class Row(NamedTuple):
    """A load."""

    name: str
    flags: str
    connections: int
    depth: int
    """How many commands a connection sends at once."""
    cycles: int
    """How many a slice has, which takes about a quarter of a second."""


ROWS = (
    Row("1", SYNCED, 1, 1, 400),
    Row("5", SYNCED, 5, 1, 1_200),
    Row("50", SYNCED, 50, 1, 5_000),
    Row("200", SYNCED, 200, 1, 6_000),
    Row("1x100", SYNCED, 1, 100, 120),
    Row("16x100", SYNCED, 16, 100, 240),
    Row("memory-50", MEMORY, 50, 1, 7_500),
    Row("memory-16x100", MEMORY, 16, 100, 500),
)


@dataclass(frozen=True)
class Sample:
    """The results of one slice of load."""

    commands_per_s: float
    p99_us: float
    cpu_us: float
    """The server's CPU time a command, user and system, in all its threads."""


def cpu_ns(pid: int) -> int:
    """Return the CPU time that a process has used, user and system, in all its threads.

    /proc/PID/stat has the same in hundredths of a second. The clock's number is the one of clock_getcpuclockid().
    """
    return time.clock_gettime_ns(~pid << 3 | 2)


class Loaded:
    """A server with a load."""

    def __init__(self, pid: int, load: subprocess.Popen[str]) -> None:
        self._pid = pid
        self._load = load

    def carry_out(self, cycles: int) -> tuple[int, float, float]:
        """Return how many commands these cycles had, the seconds that they took, and the p99 in microseconds."""
        assert self._load.stdin
        assert self._load.stdout
        print(cycles, file=self._load.stdin, flush=True)
        line = self._load.stdout.readline() or sys.exit("the load has failed")
        commands, seconds, p99_us = line.split()
        return int(commands), float(seconds), float(p99_us)

    def sample(self, row: Row) -> Sample:
        """Measure a slice."""
        before_ns = cpu_ns(self._pid)
        commands, seconds, p99_us = self.carry_out(row.cycles)
        return Sample(commands / seconds, p99_us, (cpu_ns(self._pid) - before_ns) / 1000 / commands)

    def count(self, state: str) -> None:
        """Turn callgrind "on" or "off"."""
        subprocess.run(["callgrind_control", "-i", state, str(self._pid)], check=True, capture_output=True)


def in_turn(
    measure: Callable[[Subject], Measured], both: tuple[Subject, Subject], times: int
) -> list[tuple[Measured, Measured]]:
    """Measure one and the other some times; which of them comes first changes each time."""
    one, other = both
    pairs = []
    for number in range(times):
        if number % 2:
            later = measure(other)
            pairs.append((measure(one), later))
        else:
            pairs.append((measure(one), measure(other)))
    return pairs


class Bench:
    """Measures versions in a folder, on the first core, with the load on the others. BenchFailed: a server failed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._load = folder / "load"
        subprocess.run(["cc", "-O2", "-o", self._load, Path(__file__).with_name("load.c")], check=True)
        self._cores = machine.cores() or []
        if len(self._cores) < 2:
            sys.exit("two cores are needed: one for the server, one for the load")

    def samples(self, both: tuple[Version, Version], row: Row) -> list[tuple[Sample, Sample]]:
        """Load new servers of two versions in turn.

        The slices are short, so that what disturbs the machine meets both, and all connections of a slice begin alike.
        """
        old, new = ([version.program] for version in both)
        with self._loaded(old, row) as one, self._loaded(new, row) as other:
            for server in one, other:
                server.carry_out(row.cycles)
            return in_turn(lambda server: server.sample(row), (one, other), SLICES)

    def instructions(self, version: Version, row: Row) -> float:
        """Return how many instructions a command takes a server outside of the kernel, counted by callgrind."""
        counts = self._folder / "counts"
        callgrind = f"valgrind -q --tool=callgrind --instr-atstart=no --callgrind-out-file={counts}"
        cycles = row.cycles // BY_CALLGRIND
        with self._loaded([*callgrind.split(), version.python, version.program], row) as server:
            server.carry_out(cycles // BY_CALLGRIND)
            server.count("on")
            commands, _, _ = server.carry_out(cycles)
            server.count("off")
        return counted(counts.read_text(encoding="utf-8")) / commands

    @contextlib.contextmanager
    def _loaded(self, program: Sequence[str | Path], row: Row) -> Iterator[Loaded]:
        """Start a server, and what is to load it."""
        command = shlex.join([*map(str, program), *row.flags.split()])
        with target.started(command, self._folder, self._cores[:1]) as server, machine.children_on(self._cores[1:]):
            words = [str(server.address[-1]), str(row.connections), str(row.depth)]
            with subprocess.Popen(
                [self._load, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            ) as load:
                assert server.pid
                yield Loaded(server.pid, load)


def counted(text: str) -> int:
    """Return the number of instructions in what callgrind has written."""
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("totals:"))
