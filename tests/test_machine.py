"""How much memory there is for a server: of the machine's, of cgroups' and of ulimit's the tightest counts."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from beanlite.host.machine import MemoryLimit, default_max_memory, memory_limit

GIB = 1 << 30
RESIDENT_PAGES = 1000
RESIDENT = RESIDENT_PAGES * resource.getpagesize()
MIB = 1 << 20


@pytest.fixture
def limit_of(tmp_path):
    """The limit where the process is in these cgroups, of which some have limits."""
    process, cgroups = tmp_path / "self", tmp_path / "cgroups"
    process.mkdir()
    cgroups.mkdir()
    (process / "statm").write_text(f"5000 {RESIDENT_PAGES} 300 1 0 900 0\n")

    def limit_of(lines, limits):
        if lines is not None:
            (process / "cgroup").write_text(lines)
        for name, limit in limits.items():
            (cgroups / name).parent.mkdir(parents=True, exist_ok=True)
            (cgroups / name).write_text(f"{limit}\n")
        limit = memory_limit(cgroups, process)
        return limit.room_bytes, limit.source.replace(str(cgroups), "")

    return limit_of


V2 = "0::/a/b\n"
V1 = "11:cpu,cpuacct:/c\n5:memory:/a/b\n0::/\n"


@pytest.mark.parametrize(
    ("lines", "limits", "source"),
    [
        (V2, {"a/b/memory.max": 64 * MIB}, "/a/b"),
        (V2, {"a/b/memory.max": "max", "a/memory.max": 64 * MIB}, "/a"),
        (V2, {"a/b/memory.max": 65 * MIB, "a/memory.max": 64 * MIB}, "/a"),
        (V2, {"a/b/memory.max": 64 * MIB, "a/memory.max": 65 * MIB, "memory.max": "max"}, "/a/b"),
        (V2, {"memory.max": 64 * MIB}, ""),
        ("0::/\n", {"memory.max": 64 * MIB}, ""),
        (V1, {"memory/a/b/memory.limit_in_bytes": 64 * MIB, "memory/memory.limit_in_bytes": (1 << 63) - 4096}, "/a/b"),
        (V1, {"memory/memory.limit_in_bytes": 64 * MIB}, ""),
        (V1, {"memory/a/memory.limit_in_bytes": 64 * MIB, "c/memory.limit_in_bytes": MIB}, "/a"),
    ],
)
def test_the_tightest_cgroup_counts(limit_of, lines, limits, source):
    room_bytes, found = limit_of(lines, limits)
    assert room_bytes == 64 * MIB - RESIDENT
    assert found.replace("/memory", "").removeprefix("the memory limit of the cgroup").strip() == source


@pytest.mark.parametrize(
    ("lines", "limits"), [(None, {}), ("", {}), (V2, {}), (V1, {}), (V2, {"a/b/memory.max": "max"})]
)
def test_without_a_cgroup_that_has_a_limit_it_is_the_machine(limit_of, lines, limits):
    room_bytes, source = limit_of(lines, limits)
    assert source == "the machine's memory"
    total_kb = int(Path("/proc/meminfo").read_text(encoding="ascii").split()[1])
    assert room_bytes == total_kb * 1024 - RESIDENT


@pytest.mark.parametrize(("limit", "name"), [("RLIMIT_AS", "ulimit -v"), ("RLIMIT_DATA", "ulimit -d")])
def test_a_ulimit_counts_what_is_taken_already(limit, name):
    program = (
        "import resource\nfrom beanlite.host.machine import memory_limit\n"
        f"resource.setrlimit(resource.{limit}, (1 << 29, -1))\nlimit = memory_limit()\n"
        "taken = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "print((1 << 29) - taken - limit.room_bytes, limit.source)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True)
    off, source = done.stdout.strip().split(" ", 1)
    assert source == name
    assert abs(int(off)) < 4 * MIB  # of what reading it has taken


def test_a_share_is_made_use_of():
    assert default_max_memory(MemoryLimit(5 * GIB + (32 << 20), "")) == 4 * GIB
    assert default_max_memory(MemoryLimit(-5, "")) == 0
