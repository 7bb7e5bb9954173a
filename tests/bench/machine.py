"""Facts about the machine and its processes, from Linux."""

import contextlib
import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_TICKS_A_S: Final = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int | None) -> float | None:
    """Return the CPU time that a process has used in all its threads; None if it is not known."""
    if pid is None:
        return None
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / _TICKS_A_S


def queued_s(pid: int | None) -> float | None:
    """Return how long the main thread of a process has waited for a core, ready to run; None if it is not known."""
    if pid is None:
        return None
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text(encoding="utf-8").split()[1]) / 1e9
    except OSError:
        return None


def cores(pid: int = 0) -> list[int] | None:
    """Return the cores that a process may use, our own by default; None if it is not known."""
    try:
        return sorted(os.sched_getaffinity(pid))
    except OSError:
        return None


@contextlib.contextmanager
def children_on(chosen: list[int] | None) -> Iterator[None]:
    """Have processes that are started in this block run on these cores only; None changes nothing."""
    before = os.sched_getaffinity(0)
    if chosen:
        os.sched_setaffinity(0, chosen)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def file_system(directory: Path) -> str:
    """Return the type of the file system that a directory is on, such as ext4."""
    device = directory.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        before, _, after = line.partition(" - ")
        if before.split()[2] == wanted:
            return after.split()[0]
    return "unknown"


def describe() -> dict[str, object]:
    """Describe the machine, for the report."""
    model = ""
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return {
        "cores": os.cpu_count(),
        "cpu": model or platform.machine(),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }
