"""Write the results of measure.py into docs/performance-lab.md and draw docs/throughput.svg.

``python -m tests.performance.draw``; it needs ``pip install matplotlib``.
"""

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results.jsonl"
DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "performance-lab.md"
PLOT = DOCS / "throughput.svg"
BEGIN, END = "<!-- measured -->\n", "<!-- /measured -->\n"

Report = dict[str, Any]
"""The output of one ``python -m tests.bench --json``."""


def curves(reports: list[Report]) -> dict[str, list[tuple[int, float]]]:
    """Return the throughput of each target by the number of connections, from the runs that differ only in that."""
    found: dict[str, list[tuple[int, float]]] = {}
    for report in reports:
        load = report["load"]
        if (load["workload"], load["depth"], load["body"], load["beside"], load["rate"]) == ("cycle", 1, 100, 0, 0):
            for target in report["targets"]:
                found.setdefault(target["name"], []).append((load["connections"], target["commands_per_s"]))
    return {name: sorted(points) for name, points in found.items()}


def plot(reports: list[Report], file: Path) -> None:
    """Draw the curves; the same results make the same file."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "beanlite"})
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    for number, (name, points) in enumerate(curves(reports).items()):
        style = "o-" if name.startswith("beanlite") else "x--"
        # measure.py lists our servers in the order of their peers, so servers with the same promise share a colour
        axes.plot(*zip(*points, strict=True), style, color=f"C{number % 3}", label=name)
    connections = sorted({number for points in curves(reports).values() for number, _ in points})
    axes.set(xlabel="connections", ylabel="commands/s (put, reserve, delete)", xscale="log", ylim=(0, None))
    axes.set_xticks(connections, [str(number) for number in connections])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(file, metadata={"Date": None})


def tables(reports: list[Report]) -> str:
    """Return the plot, the machine, and a table for each report, in Markdown."""
    machine = reports[-1]["machine"]
    beanlite = f"beanlite {reports[-1]['beanlite']} ({'' if reports[-1]['compiled'] else 'not '}compiled)"
    where = [
        f"Measured {reports[-1]['when'][:10]} with {beanlite} on {machine['cores']} cores",
        f"({machine['cpu']}), {machine['kernel']}, Python {machine['python']}, files on {machine['file_system']};",
        "the servers on one core, the generator on the others.\n" if reports[-1]["pinned"] else "nothing pinned.\n",
    ]
    parts = [f"![Throughput against connections]({PLOT.name})\n\n", " ".join(where)]
    for report in reports:
        parts += [f"\n### {title(report['load'])}\n\n", *table(report)]
    return "".join(parts)


def title(load: dict[str, Any]) -> str:
    """Return a short description of the load."""
    words = [f"{load['workload']}, {load['connections']} connection{'s' * (load['connections'] != 1)}"]
    words += [f"{load['depth']} commands at a time"] * (load["depth"] > 1)
    words += [f"{load['body']}-byte bodies"] * (load["body"] != 100)
    words += [f"beside {load['beside']} that send `list-tube-used`"] * (load["beside"] > 0)
    words += [f"{load['rate']:,.0f} commands/s asked for"] * (load["rate"] > 0)
    return ", ".join(words)


def table(report: Report) -> list[str]:
    """Return the lines of the table of one report."""
    rows = ["| | commands/s | jobs/s | ratio | p50 | p99 | p99.9 | max | limit |\n", "|---|" + "--:|" * 7 + "---|\n"]
    for target in report["targets"]:
        latencies = [f"{target[key] / 1000:,.2f} ms" for key in ("p50_us", "p99_us", "p999_us", "max_us")]
        speeds = [f"{target[key]:,.0f}" for key in ("commands_per_s", "jobs_per_s")]
        ratio = "-" if target["ratio"] is None else f"{target['ratio']:.2f}"
        rows.append(f"| `{target['name']}` | {' | '.join([*speeds, ratio, *latencies])} | {target['limit']} |\n")
    return rows


def main() -> None:
    """Write the measured part of the page, and the plot."""
    reports = [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}{tables(reports)}{END}{after}", encoding="utf-8")
    plot(reports, PLOT)


if __name__ == "__main__":
    main()
