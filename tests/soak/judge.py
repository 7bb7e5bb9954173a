"""Whether what grows with the backlog also shrinks with it: memory, descriptors, files.

Compared are the first and the last third of the server's longest life (which are the second and the last quarter of
the soak, for it is restarted in the first one only), and only samples of the same phase: the backlog was in the same
fifth of its range, and rising or falling as well. Of each phase the median is taken, so that single peaks (a backup, a
pinned ``-wal``, a halt) don't count, and of the growth in all phases the median again. A leak shows in every phase; an
uneven wave does not.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

LEVELS = 5
SAMPLES_MIN = 4  # of a phase, in each third
PHASES_MIN = 4
MIB = 1 << 20

Sample = dict[str, float]
"""What was seen at the time ``t``: pid, jobs, what is in ``NAMES``, and p50, p99, max of the latency."""

NAMES = {
    "rss": "memory",
    "fds": "descriptors",
    "used": "pages in use",
    "db": "database file",
    "wal": "-wal",
}
ALLOWED = {
    "rss": (8.0 * MIB, 0.08),
    "fds": (10.0, 0.08),
    "used": (4.0 * MIB, 0.1),
    # Free pages are given back by and by, and not all of them; a -wal may keep 64 MiB.
    "db": (16.0 * MIB, 0.5),
    "wal": (64.0 * MIB, 0.0),
}
"""How much growth is not a leak yet: so much, or such a share of what there was, whichever is more."""


@dataclass(frozen=True)
class Trend:
    """How something has changed from the first third to the last. ``before`` is None: too little was seen to tell."""

    name: str
    before: float | None
    growth: float
    allowed: float

    @property
    def flat(self) -> bool:
        return self.before is None or self.growth <= self.allowed

    def __str__(self) -> str:
        if self.before is None:
            return f"{self.name}: too short to judge"
        unit, per = ("", 1) if self.name == NAMES["fds"] else (" MiB", MIB)
        figures = f"{self.before / per:,.1f}{unit}, then {self.growth / per:+,.1f}{unit}"
        return (
            f"{self.name}: {figures} ({'flat' if self.flat else 'GROWS'}; up to {self.allowed / per:,.1f} is allowed)"
        )


def longest_life(samples: Iterable[Sample], kind: str) -> list[Sample]:
    """The samples of the server process that was seen most often, where the jobs are known, and what is asked for."""
    lives: dict[float, list[Sample]] = {}
    for sample in samples:
        if sample.get("jobs") is not None and kind in sample:
            lives.setdefault(sample["pid"], []).append(sample)
    return max(lives.values(), key=len, default=[])


def phases(samples: list[Sample], backlog: float, kind: str) -> dict[tuple[int, bool], list[float]]:
    """The values by phase."""
    found: dict[tuple[int, bool], list[float]] = {}
    for last, sample in pairwise(samples):
        level = min(LEVELS - 1, int(LEVELS * sample["jobs"] / max(1.0, backlog)))
        found.setdefault((level, sample["jobs"] > last["jobs"]), []).append(sample[kind])
    return found


def trend(samples: Iterable[Sample], kind: str) -> Trend:
    """How one of ```NAMES``` has changed."""
    life = longest_life(samples, kind)
    third = len(life) // 3
    backlog = max((sample["jobs"] for sample in life), default=0)
    first, last = phases(life[:third], backlog, kind), phases(life[len(life) - third :], backlog, kind)
    both = [phase for phase in first if min(len(first[phase]), len(last.get(phase, ()))) >= SAMPLES_MIN]
    if len(both) < PHASES_MIN:
        return Trend(NAMES[kind], None, 0, 0)
    least, share = ALLOWED[kind]
    before = median(median(first[phase]) for phase in both)
    growth = median(median(last[phase]) - median(first[phase]) for phase in both)
    return Trend(NAMES[kind], before, growth, max(least, share * before))


def latency(samples: Iterable[Sample], faults: Iterable[tuple[float, float]]) -> str:
    """What the innocent client saw: the median of the seconds' p50 and p99, and the worst, without and with faults."""
    times = sorted(faults)
    seen = [sample for sample in samples if "p50" in sample]
    calm = [
        sample for sample in seen if not any(begin - 1 <= sample["t"] <= end + 2 for begin, end in times)
    ]  # a sample tells of the second before it
    if not calm:
        return "latency: too short to judge"
    p50, p99 = (1000 * median(sample[key] for sample in calm) for key in ("p50", "p99"))
    worst, ever = (1000 * max(sample["max"] for sample in group) for group in (calm, seen))
    return f"latency of a cycle: p50 {p50:.1f} ms, p99 {p99:.1f} ms, worst {worst:.0f} ms; {ever:.0f} ms beside faults"
