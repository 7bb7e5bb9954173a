"""The report: medians of rounds, ratios to the first target, and the limiting factor; as JSON and as a table."""

from collections.abc import Sequence
from dataclasses import asdict
from statistics import median
from typing import Any, Final

from tests.bench import machine
from tests.bench.runner import Options, Round
from tests.bench.target import Target

_BUSY: Final = 0.9  # of a core: from here on a process counts as having no time to spare
_MEASURES: Final = (
    "commands_per_s",
    "jobs_per_s",
    "p50_us",
    "p99_us",
    "p999_us",
    "max_us",
    "generator_busy",
    "server_busy",
    "queued",
)
_LIMITS: Final = {
    "generator": "the generator had no time to spare: the server can do more (--processes, --pin)",
    "both": "neither server nor generator had time to spare: the server may be able to do more (--processes, --pin)",
    "machine": "server or generator had to wait for a core: others use it (the kernel, too, for the disk)",
    "wait": "server and generator had time to spare: the disk or the round trips are the limit",
    "rate": "as many as --rate asked for",
    "unknown": "the generator had time to spare: the server is the limit, or the way to it",
}


def summary(options: Options, targets: Sequence[Target], rounds: Sequence[Sequence[Round]]) -> list[dict[str, Any]]:
    """Return the results of each target: medians over its rounds, and the rounds themselves.

    The ratio is the median of its ratios to the first target in the same round.
    """
    result = []
    for target, its in zip(targets, rounds, strict=True):
        figures = {name: _median([getattr(one, name) for one in its]) for name in _MEASURES}
        figures["max_us"] = max(one.max_us for one in its)
        ratios = [
            mine.commands_per_s / base.commands_per_s
            for mine, base in zip(its, rounds[0], strict=True)
            if base.commands_per_s
        ]
        result.append(
            {
                "name": target.name,
                "version": target.version,
                "cores": None if target.pid is None else machine.cores(target.pid),
                **figures,
                "ratio": _median(ratios),
                "limit": _limit(options, figures),
                "left": its[-1].left,
                "rounds": [asdict(one) for one in its],
            }
        )
    return result


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _limit(options: Options, figures: dict[str, Any]) -> str:
    """Return what kept the target from doing more, as far as can be told."""
    server = figures["server_busy"]
    if options.rate and figures["commands_per_s"] > 0.95 * options.rate:
        return "rate"
    if figures["generator_busy"] >= _BUSY:
        return "generator" if server is None or server < _BUSY else "both"
    if server is None:
        return "unknown"
    if server >= _BUSY:
        return "server"
    return "machine" if figures["queued"] > 1 - _BUSY else "wait"


def table(report: dict[str, Any]) -> str:
    """Return the report as text."""
    rows = [
        ("", "commands/s", "jobs/s", "ratio", "p50 µs", "p99", "p99.9", "max", "generator", "server", "limit"),
        *(
            (
                target["name"],
                f"{target['commands_per_s']:,.0f}",
                f"{target['jobs_per_s']:,.0f}",
                "-" if target["ratio"] is None else f"{target['ratio']:.2f}",
                *(f"{target[name]:,.0f}" for name in ("p50_us", "p99_us", "p999_us", "max_us")),
                _percent(target["generator_busy"]),
                _percent(target["server_busy"]),
                target["limit"],
            )
            for target in report["targets"]
        ),
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if number in {0, len(row) - 1} else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    limits = {target["limit"] for target in report["targets"]}
    notes = [f"{limit}: {text}" for limit, text in _LIMITS.items() if limit in limits]
    return "\n".join([*_heading(report), "", *lines, "", *notes]).rstrip()


def _percent(share: float | None) -> str:
    return "?" if share is None else f"{share:.0%}"


def _heading(report: dict[str, Any]) -> list[str]:
    """Return lines that describe the load and the machine."""
    load, machine_ = report["load"], report["machine"]
    parts = [
        _count(load["connections"], "connection"),
        f"{load['depth']} at a time",
        f"{load['body']}-byte bodies",
        _count(load["tubes"], "tube"),
        ("median of " if load["rounds"] > 1 else "") + _count(load["rounds"], "round"),
    ]
    if load["workload"] == "drain":
        parts.insert(-1, _count(load["jobs"], "job"))
    else:
        parts[-1] += f" of {load['seconds']:g} s after {load['warmup_s']:g} s"
    if load["beside"]:
        parts.insert(1, f"beside {load['beside']} that send list-tube-used")
    if load["rate"]:
        parts.append(f"{load['rate']:g} commands/s asked for")
    where = [
        f"{machine_['cores']} cores ({machine_['cpu']})",
        machine_["kernel"],
        f"Python {machine_['python']}",
        f"files on {machine_['file_system']}",
    ]
    cores = ", ".join(
        [
            f"generator ({_count(load['processes'], 'process', 'processes')}) on {_cores(report['generator_cores'])}",
            *(f"{target['name']} on {_cores(target['cores'])}" for target in report["targets"]),
        ]
    )
    return [
        f"{load['workload']}: {', '.join(parts)}",
        ", ".join(where),
        f"cores: {cores}",
        "latency: from the sending of a batch to its last reply"
        + (", from the time at which it was due" if load["rate"] else ""),
    ]


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def _cores(numbers: list[int] | None) -> str:
    return "?" if numbers is None else ",".join(map(str, numbers))
