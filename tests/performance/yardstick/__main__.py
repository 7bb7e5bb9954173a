"""The speed of the present, compared with a named baseline whose best ratios only rise.

::

    python -m tests.performance.yardstick [ROW...] --check

Compiles both versions, once for each commit, and runs them in turn, the server on one core and the load on another.
For each row it prints what a command costs the server, in CPU time and, with --instructions, in instructions outside of
the kernel. A ratio above 1 says that the present is better: it is that of the costs of baseline and present, and that
of the commands/s of present and baseline.
"""

import argparse
import platform
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from statistics import median

from beanlite.errors import ConfigError
from tests.bench import machine
from tests.bench.target import BenchFailed
from tests.performance.yardstick import versions
from tests.performance.yardstick.best import FILE, Best, Ratio, Ratios, ratio
from tests.performance.yardstick.measuring import ROWS, Bench, Row, Sample, in_turn
from tests.performance.yardstick.versions import Version

AGAIN = 2  # times as many rounds, where the first ones seem to be worse than the best
HEAD = """\
| row | commands/s | | ratio | p99, ms | | CPU µs | | ratio | instructions | | ratio | best: CPU | instructions |
|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|"""


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    """Return the options; the program ends if they are wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [row.name for row in ROWS]
    parser.add_argument("rows", metavar="ROW", nargs="*", help=f"instead of all: {', '.join(names)}")
    parser.add_argument("--present", metavar="WHAT", default="HEAD", help="a commit, or an installed bin/beanlite")
    parser.add_argument("--baseline", metavar="WHAT", help=f"likewise, instead of the one in {FILE.name}")
    parser.add_argument("--rounds", metavar="N", type=int, default=5, help="of each row (default: 5)")
    parser.add_argument("--instructions", action="store_true", help="count them with valgrind's callgrind")
    parser.add_argument("--check", action="store_true", help="exit code 1 if a row is 0.02 below its best")
    parser.add_argument("--record", action="store_true", help=f"raise the best ratios in {FILE.name}")
    chosen = parser.parse_args(words)
    if unknown := set(chosen.rows) - set(names):
        parser.error(f"there is no row {', '.join(unknown)}")
    if chosen.baseline and (chosen.check or chosen.record):
        parser.error(f"the best ratios are those to the baseline in {FILE.name}")
    chosen.rows = [row for row in ROWS if row.name in (chosen.rows or names)]
    return chosen


def cell(value: Ratio) -> str:
    """Return a ratio and its margin for the table."""
    return f"{value.median:.3f} ± {value.margin:.3f}"


class Result:
    """The rounds of a row."""

    def __init__(self, row: Row) -> None:
        self.row = row
        self.samples: list[tuple[Sample, Sample]] = []
        self.counts: list[tuple[float, float]] = []
        """The instructions of a command, if they are counted."""

    def measure(self, bench: Bench, both: tuple[Version, Version], rounds: int, *, count: bool) -> None:
        """Add some rounds."""
        for _ in range(rounds):
            self.samples += bench.samples(both, self.row)
        if count:
            self.counts += in_turn(lambda version: bench.instructions(version, self.row), both, rounds)

    def ratios(self) -> dict[str, Ratio]:
        """Return the ratio of each measure of costs."""
        cpu = ratio([(baseline.cpu_us, present.cpu_us) for baseline, present in self.samples])
        return {"cpu": cpu} | ({"instructions": ratio(self.counts)} if self.counts else {})

    def line(self, best: Ratios) -> str:
        """Return the line of the table."""
        versions = [*zip(*self.samples, strict=True)]
        now = self.ratios()
        cells = [self.row.name]
        cells += [f"{median(one.commands_per_s for one in its):,.0f}" for its in versions]
        cells += [cell(ratio([(new.commands_per_s, old.commands_per_s) for old, new in self.samples]))]
        cells += [f"{median(one.p99_us for one in its) / 1000:.2f}" for its in versions]
        cells += [f"{median(one.cpu_us for one in its):.2f}" for its in versions]
        cells += [cell(now["cpu"])]
        cells += [f"{median(its):,.0f}" for its in zip(*self.counts, strict=True)] or ["", ""]
        cells += [cell(now["instructions"]) if self.counts else ""]
        cells += [f"{best[measure]:.3f}" if measure in best else "" for measure in ("cpu", "instructions")]
        return f"| {' | '.join(cells)} |"


def compare(
    bench: Bench, both: tuple[Version, Version], chosen: argparse.Namespace, best: Best, kind: str
) -> list[str]:
    """Measure the chosen rows, print the table, and raise the best; return what has fallen."""
    fallen = []
    print(HEAD, flush=True)
    for row in chosen.rows:
        result = Result(row)
        result.measure(bench, both, chosen.rounds, count=chosen.instructions)
        if chosen.check and best.fallen(kind, row.name, result.ratios()):
            result.measure(bench, both, AGAIN * chosen.rounds, count=chosen.instructions)
        now = result.ratios()
        print(result.line({} if chosen.baseline else best.of(kind, row.name)), flush=True)
        fallen += best.fallen(kind, row.name, now)
        if chosen.record:
            best.rise(kind, row.name, now)
    return fallen


def main() -> None:
    """Compare two versions, and end with exit code 1 if the verdict is bad."""
    chosen = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # having stopped the servers
    for program in ["cc"] + ["valgrind"] * chosen.instructions:
        if not shutil.which(program):
            sys.exit(f"{program} is not installed")
    best = Best(FILE.read_text(encoding="utf-8"))
    versions.CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=versions.CACHE) as name:
        both = versions.both(chosen.baseline or best.baseline, chosen.present, Path(name))
        python = both[1].ask(versions.VERSION)
        kind = f"{machine.describe()['cpu']}, Python {python}"
        print(f"{both[0].name} (first) and {both[1].name} (second) on {kind}, {platform.release()}\n")
        if chosen.check and not best.knows(kind):
            print("No ratio was recorded with such a processor and interpreter, so there is nothing to check.\n")
        try:
            fallen = compare(Bench(Path(name)), both, chosen, best, kind)
        except (BenchFailed, ConfigError) as error:
            sys.exit(str(error))
    if chosen.record:
        FILE.write_text(best.text(), encoding="utf-8")
    if chosen.check and fallen:
        sys.exit("\nBelow the best:\n" + "\n".join(fallen))


if __name__ == "__main__":
    main()
