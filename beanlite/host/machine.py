"""How much memory the machine has for this process."""

import ctypes
import os
import resource
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from beanlite.errors import ConfigError

# What an empty server will still take, in bytes; and the part of the remaining memory that it uses by default: four
# fifths. The rest is for what is not counted, such as the kernel's socket buffers.
_OWN: Final = 32 << 20
_SHARE: Final = (4, 5)
# The mallopt parameter of glibc for the number of heaps.
_M_ARENA_MAX: Final = -8
_CGROUPS: Final = Path("/sys/fs/cgroup")


def share_one_heap() -> None:
    """Have all threads use one heap; to be called before any thread is started.

    Bodies are read in one thread and freed in another. If each thread had its own heap, fragmentation would add up, and
    each heap would take 64 MiB of address space, which ``ulimit -v`` counts.
    """
    with suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


class MemoryLimit(NamedTuple):
    """The tightest limit on the memory of this process."""

    room_bytes: int
    """How much more the process may take than it does at present."""
    source: str
    """What sets the limit, in words."""


def memory_limit(cgroups: Path = _CGROUPS, process: Path = Path("/proc/self")) -> MemoryLimit:
    """Find the tightest limit among the machine's memory, the limits of cgroups, and those of the process.

    Raises ConfigError if /proc can't be read.
    """
    try:
        pages, resident = (int(number) for number in (process / "statm").read_text(encoding="utf-8").split()[:2])
    except OSError as error:
        raise ConfigError(f"how much memory there is can't be read from {process}: {error.strerror}") from error
    virtual_bytes, resident_bytes = pages * resource.getpagesize(), resident * resource.getpagesize()
    limits = [
        MemoryLimit(os.sysconf("SC_PHYS_PAGES") * resource.getpagesize() - resident_bytes, "the machine's memory")
    ]
    limits += [
        MemoryLimit(limit - resident_bytes, f"the memory limit of the cgroup {group}")
        for group, limit in _cgroup_limits(cgroups, process)
    ]
    for kind, name in ((resource.RLIMIT_AS, "ulimit -v"), (resource.RLIMIT_DATA, "ulimit -d")):
        soft, _ = resource.getrlimit(kind)
        if soft != resource.RLIM_INFINITY:
            limits.append(MemoryLimit(soft - virtual_bytes, name))
    return min(limits)


def _cgroup_limits(cgroups: Path, process: Path) -> list[tuple[str, int]]:
    """Return the limits of the process's cgroup and of its ancestors, in both versions of cgroups."""
    limits = []
    try:
        lines = (process / "cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            root, name = cgroups, "memory.max"
        elif "memory" in controllers.split(","):
            root, name = cgroups / "memory", "memory.limit_in_bytes"
        else:
            continue
        group = root / path.strip("/")
        for folder in (group, *group.parents):
            with suppress(OSError, ValueError):  # no such limit, or "max"
                limits.append((str(folder), int((folder / name).read_text(encoding="utf-8"))))
            if folder == root:
                break
    return limits


def default_max_memory(limit: MemoryLimit) -> int:
    """Return the default bound on the memory that a server takes for jobs, bodies, tubes, clients and buffers."""
    times, of = _SHARE
    return max(0, limit.room_bytes - _OWN) * times // of
