"""One round of a row: a server under load, and what a command costs it."""

import contextlib
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from beanlite.bench import machine, target
from tests.performance.yardstick.versions import Version

SYNCED = "--fsync always"
MEMORY = "--no-journal"
WARM_UP = 5  # this part of the cycles goes before
Load = subprocess.Popen[str]
BY_CALLGRIND = 20  # this part of the cycles is enough where each instruction is counted


class Row(NamedTuple):
    """A load. The cycles take some two seconds."""

    name: str
    flags: str
    connections: int
    depth: int
    """How many commands a connection sends at once."""
    cycles: int


ROWS = (
    Row("1", SYNCED, 1, 1, 3_000),
    Row("5", SYNCED, 5, 1, 10_000),
    Row("50", SYNCED, 50, 1, 40_000),
    Row("200", SYNCED, 200, 1, 50_000),
    Row("1x100", SYNCED, 1, 100, 1_000),
    Row("16x100", SYNCED, 16, 100, 2_000),
    Row("memory-50", MEMORY, 50, 1, 60_000),
    Row("memory-16x100", MEMORY, 16, 100, 4_000),
)


@dataclass(frozen=True)
class Sample:
    """The results of one round."""

    commands_per_s: float
    p99_us: float
    cpu_us: float
    """The server's CPU time a command, user and system, in all its threads."""


def cpu_ns(pid: int) -> int:
    """Return the CPU time that a process has used, user and system, in all its threads.

    /proc/PID/stat has the same in hundredths of a second. The clock's number is the one of clock_getcpuclockid().
    """
    return time.clock_gettime_ns(~pid << 3 | 2)


class Bench:
    """Measures versions in a folder, on the first core, with the load on the others. BenchFailed: a server failed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._load = folder / "load"
        subprocess.run(["cc", "-O2", "-o", self._load, Path(__file__).with_name("load.c")], check=True)
        self._cores = machine.cores() or []
        if len(self._cores) < 2:
            sys.exit("two cores are needed: one for the server, one for the load")

    def sample(self, version: Version, row: Row) -> Sample:
        """Measure one round on a new server."""
        with self._loaded([version.program], row) as (server, load):
            _carry_out(load, row.cycles // WARM_UP)
            before_ns = cpu_ns(server)
            commands, seconds, p99_us = _carry_out(load, row.cycles)
            return Sample(commands / seconds, p99_us, (cpu_ns(server) - before_ns) / 1000 / commands)

    def instructions(self, version: Version, row: Row) -> float:
        """Return how many instructions a command takes the server outside of the kernel, counted by callgrind."""
        counts = self._folder / "counts"
        callgrind = f"valgrind -q --tool=callgrind --instr-atstart=no --callgrind-out-file={counts}"
        cycles = row.cycles // BY_CALLGRIND
        with self._loaded([*callgrind.split(), version.python, version.program], row) as (server, load):
            _carry_out(load, cycles // WARM_UP)
            _count(server, "on")
            commands, _, _ = _carry_out(load, cycles)
            _count(server, "off")
        return counted(counts.read_text(encoding="utf-8")) / commands

    @contextlib.contextmanager
    def _loaded(self, program: Sequence[str | Path], row: Row) -> Iterator[tuple[int, Load]]:
        """Start a server, and what is to load it; yield the id of the first process, and the second."""
        command = shlex.join([*map(str, program), *row.flags.split()])
        with target.started(command, self._folder, self._cores[:1]) as server, machine.children_on(self._cores[1:]):
            words = [str(server.address[-1]), str(row.connections), str(row.depth)]
            with subprocess.Popen(
                [self._load, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            ) as load:
                assert server.pid
                yield server.pid, load


def _carry_out(load: Load, cycles: int) -> tuple[int, float, float]:
    """Return how many commands these cycles had, the seconds that they took, and the p99 in microseconds."""
    assert load.stdin
    assert load.stdout
    print(cycles, file=load.stdin, flush=True)
    commands, seconds, p99_us = (load.stdout.readline() or sys.exit("the load has failed")).split()
    return int(commands), float(seconds), float(p99_us)


def _count(pid: int, state: str) -> None:
    """Turn callgrind on or off."""
    subprocess.run(["callgrind_control", "-i", state, str(pid)], check=True, stdout=subprocess.DEVNULL)


def counted(text: str) -> int:
    """Return the number of instructions in what callgrind has written."""
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("totals:"))
