"""The best ratios so far: what they are compared with, and how they rise."""

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

FILE = Path(__file__).parent.with_suffix(".json")
TOLERANCE = 0.02
"""How far a ratio may be below the best one."""

Ratios = dict[str, float]
"""By measure: cpu, instructions."""


class Ratio(NamedTuple):
    """A median of several rounds, and how far from it the true one may be."""

    median: float
    margin: float


def ratio(rounds: Sequence[tuple[float, float]]) -> Ratio:
    """Return the ratio of costs, of the baseline and the present in each round: above 1 the present is cheaper.

    The margin is that of the notches in a box plot: medians of other rounds are within it in 19 of 20 cases. A single
    round has none.
    """
    ratios = [baseline / present for baseline, present in rounds]
    if len(ratios) == 1:
        return Ratio(ratios[0], 0.0)
    low, median, high = statistics.quantiles(ratios, method="inclusive")
    return Ratio(median, 1.57 * (high - low) / math.sqrt(len(ratios)))


class Best:
    """The best ratios to one baseline, by kind of machine and row."""

    def __init__(self, text: str) -> None:
        content = json.loads(text)
        self.baseline: str = content["baseline"]
        self._machines: dict[str, dict[str, Ratios]] = content["best"]

    def knows(self, machine: str) -> bool:
        """Whether any ratio was recorded on such a machine."""
        return machine in self._machines

    def of(self, machine: str, row: str) -> Ratios:
        """Return the best ratios of a row; none if it was never recorded on such a machine."""
        return self._machines.get(machine, {}).get(row, {})

    def fallen(self, machine: str, row: str, now: Mapping[str, Ratio]) -> list[str]:
        """Return the measures of a row whose ratios are too far below the best ones, in words."""
        return [
            f"{row}: {measure} {now[measure].median:.3f}, {best:.3f} at best"
            for measure, best in self.of(machine, row).items()
            if measure in now and now[measure].median < best - TOLERANCE
        ]

    def rise(self, machine: str, row: str, now: Mapping[str, Ratio]) -> None:
        """Raise the best ratios of a row to those that are certainly better: without the margin."""
        best = self._machines.setdefault(machine, {}).setdefault(row, {})
        for measure, one in now.items():
            best[measure] = max(best.get(measure, 0.0), math.floor(1000 * (one.median - one.margin)) / 1000)

    def text(self) -> str:
        """Return the content of the file."""
        content: dict[str, Any] = {"baseline": self.baseline, "best": self._machines}
        return json.dumps(content, indent=2) + "\n"
