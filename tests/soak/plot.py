"""The plot of a soak, with the faults marked. It needs matplotlib."""

from pathlib import Path

from tests.soak.judge import MIB, Sample

COLOURS = {"kill": "C3", "terminate": "C1", "drain": "C1", "halt": "C4"}
OTHERS = "0.75"
COLOURS_OF_CURVES = ("C0", "C2", "0.4")
Fault = tuple[str, float, float]
"""Its name, its begin, its end."""


def plot(samples: list[Sample], faults: list[Fault], title: str, file: Path) -> None:
    """Draw memory, descriptors, files and latency over time."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "beanlite"})
    from matplotlib import pyplot as plt

    figure, rows = plt.subplots(5, 1, figsize=(12, 12), sharex=True, layout="constrained")
    curves = (
        ("jobs", {"jobs": "jobs"}, 1),
        ("memory, MiB", {"rss": "resident"}, MIB),
        ("descriptors", {"fds": "open"}, 1),
        ("files, MiB", {"db": "database", "used": "in use of it", "wal": "-wal"}, MIB),
        ("latency, ms", {"p50": "p50", "p99": "p99", "max": "worst"}, 0.001),
    )
    for axes, (label, keys, unit) in zip(rows, curves, strict=True):
        for number, (key, name) in enumerate(keys.items()):
            seen = [sample for sample in samples if sample.get(key) is not None]
            axes.plot(
                [sample["t"] / 60 for sample in seen],
                [sample[key] / unit for sample in seen],
                lw=0.8,
                color=COLOURS_OF_CURVES[number],
                label=name,
            )
        if len(keys) > 1:
            axes.legend(loc="upper right", ncols=len(keys), fontsize="small")
        named = set()
        for name, begin_s, end_s in faults:
            colour = COLOURS.get(name, OTHERS)
            text = name if name in COLOURS else "other faults"
            axes.axvspan(begin_s / 60, end_s / 60, color=colour, alpha=0.4, lw=1, label=None if text in named else text)
            named.add(text)
        axes.set_ylabel(label)
        axes.grid(alpha=0.3)
    rows[-1].set(xlabel="minutes", yscale="log")
    rows[-1].legend(loc="upper right", ncols=6, fontsize="small")
    figure.suptitle(title)
    figure.savefig(file, metadata={"Date": None})
    plt.close(figure)
