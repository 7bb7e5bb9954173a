"""Charts of what came and went over time, as SVG that needs no script, and as a table of the same values."""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from beanlite.console import units
from beanlite.console.filters import Record

# In the picture's own units: pages scale the width, but not the height. The margin keeps a line at the top whole.
WIDTH: Final = 1000
HEIGHT: Final = 120
_TOP: Final = 6
# Into how many parts ticks divide the height at most.
_PARTS: Final = 4
# Lengths of time that ticks can be apart, beside those of a second or less.
_LENGTHS_S: Final = (
    *(1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400),
    *(172_800, 604_800, 1_209_600),
)
_DAY_S: Final = 86_400
# How far apart the ticks of the time are, for charts that show no more than so much.
_TIMES_S: Final = ((600, 60), (7200, 600), (2 * _DAY_S, 14_400), (8 * _DAY_S, _DAY_S), (math.inf, 14 * _DAY_S))
# No tick is so near to an end, of all that is shown, as its text would be cut.
_EDGE: Final = 0.025

_NONE: Final = "\N{EN DASH}"

# A point of a line: its moment, and its value; None: that is not known.
Points = Sequence[tuple[float, float | None]]


class ChartLine(NamedTuple):
    """A line of a panel."""

    key: str
    """By which the style knows it."""
    title: str
    unit: str
    points: Points
    """The moment at which each ends, and its value."""
    show: Callable[[float], str]
    filled: bool = False


class Drawn(NamedTuple):
    """A line as SVG."""

    line: ChartLine
    path: str
    area: str
    """What is below it; empty if it is not filled."""
    latest: str
    """The last value, as text."""


class Panel(NamedTuple):
    """Lines that have one scale."""

    title: str
    lines: list[Drawn]
    bars: str
    """The jobs that will be due, as a path."""
    ticks: list[tuple[float, str]]
    """The height of each, and its text."""
    text: str
    """What it shows, for those that don't see it."""


class Row(NamedTuple):
    """The values of one moment."""

    id: str
    """By which the page finds it again when the chart has moved: a time to come is told by its distance from now."""
    at: float
    x: float
    """In percent of the width."""
    cells: list[tuple[str, float | None, int]]
    """The text of each line's value, its height, and its panel."""


class Chart(NamedTuple):
    """Panels with the same times."""

    panels: list[Panel]
    times: Sequence[tuple[float, float]]
    """The place of each tick, in percent of the width, and its moment."""
    now_x: float
    rows: list[Row]
    since_at: float
    """Since when anything is known."""
    days: bool
    """Whether the ticks are days."""
    is_partial: bool = False
    """Whether a part of the range was before that."""
    has_hours: bool = False
    """Whether there are hours before that, of which less is known."""
    is_kept: bool = True
    due: int = 0
    """Delayed jobs that will be due."""
    due_s: int = 0
    """Within how long."""


def chart_of_flow(flow: Record, points: int, before: Iterable[Record] = ()) -> Chart:
    """Make the chart of a flow as the server tells it. ``before``: totals of hours before it was kept."""
    step_s, from_at = flow["step_s"], flow["from_at"]
    ends = [from_at + step_s * (at + 1) for at in range(len(flow["seconds"]))]
    end_at = ends[-1]
    due_s = flow["due_step_s"]
    hours = [row for row in before if end_at - step_s * points <= row["at"] and row["at"] + 3600 <= flow["since_at"]]

    def rates(key: str) -> list[tuple[float, float | None]]:
        old = [(row["at"] + 3600.0, row[key] / 3600) for row in hours]
        counts = zip(ends, flow[key], flow["seconds"], strict=True)
        return [*old, *((at, count / max(seconds, 0.1)) for at, count, seconds in counts)]

    def values(key: str) -> list[tuple[float, float | None]]:
        return [*((row["at"] + 3600.0, None) for row in hours), *zip(ends, flow[key], strict=True)]

    panels = [
        ("Jobs a second", [
            ChartLine("in", "In", " / s", rates("put"), units.rate, filled=True),
            ChartLine("out", "Out", " / s", rates("deleted"), units.rate),
            ChartLine("due", "Due", " / s", rates("delay_over"), units.rate),
        ]),
        ("Ready", [ChartLine("ready", "Ready", "", values("ready"), units.count, filled=True)]),
    ]  # fmt: skip
    if "wait_p50_s" in flow:
        panels.append(("Wait until reserved", [
            ChartLine("p50", "Wait p50", "", values("wait_p50_s"), wait, filled=True),
            ChartLine("p99", "Wait p99", "", values("wait_p99_s"), wait),
        ]))  # fmt: skip
    due = [(end_at + due_s * at, end_at + due_s * (at + 1), count / due_s) for at, count in enumerate(flow["due"])]
    chart = _chart(panels, end_at - step_s * points, end_at, due)
    is_partial = flow["since_at"] > end_at - step_s * points + step_s
    return chart._replace(
        since_at=flow["since_at"],
        is_partial=is_partial,
        has_hours=bool(hours),
        is_kept=flow["kept"],
        due=sum(flow["due"]),
        due_s=due_s * len(flow["due"]),
    )


def chart_of_totals(rows: Iterable[Record], span_s: int, points: int, now_s: float) -> Chart:
    """Make the chart of totals by the hour or by the day, up to now."""
    end_at = (int(now_s) // span_s + 1) * span_s
    ends = [end_at - span_s * (points - at - 1) for at in range(points)]
    by_end = {row["at"] + span_s: row for row in rows}
    unit = " / day" if span_s == _DAY_S else " / h"

    def counts(key: str) -> list[tuple[float, float | None]]:
        return [(end, by_end[end][key] if end in by_end else 0) for end in ends]

    waits: list[tuple[float, float | None]] = [
        (end, row["waited_s"] / row["reserved"] if row is not None and row["reserved"] else None)
        for end, row in ((end, by_end.get(end)) for end in ends)
    ]
    panels = [
        ("Jobs a day" if span_s == _DAY_S else "Jobs an hour", [
            ChartLine("in", "In", unit, counts("put"), units.count, filled=True),
            ChartLine("out", "Out", unit, counts("deleted"), units.count),
        ]),
        ("Wait until reserved", [ChartLine("p50", "Mean wait", "", waits, wait, filled=True)]),
    ]  # fmt: skip
    return _chart(panels, ends[0] - span_s, end_at, [])


def _chart(
    panels: list[tuple[str, list[ChartLine]]], from_at: float, now_at: float, due: list[tuple[float, float, float]]
) -> Chart:
    to_at = due[-1][1] if due else now_at
    drawn = [_panel(*panel, from_at, to_at, due if not at else []) for at, panel in enumerate(panels)]

    def x(at: float) -> float:
        return round(100 * (at - from_at) / (to_at - from_at), 3)

    every_s = next(each for most, each in _TIMES_S if to_at - from_at <= most)
    edge_s = _EDGE * (to_at - from_at)
    first = math.ceil((from_at + edge_s) / every_s) * every_s
    times = [(x(at), at) for at in range(first, math.ceil(to_at - edge_s), every_s)]
    days = every_s >= _DAY_S
    return Chart(drawn, times, x(now_at), _rows(panels, x, due), from_at, days)


def _rows(
    panels: list[tuple[str, list[ChartLine]]], x: Callable[[float], float], due: list[tuple[float, float, float]]
) -> list[Row]:
    lines = [(at, line) for at, (_, lines) in enumerate(panels) for line in lines]
    tops = [_ticks(of_panel, due if not at else [])[-1] for at, (_, of_panel) in enumerate(panels)]
    rows: list[Row] = []
    for place, (at, _) in enumerate(lines[0][1].points):
        cells = []
        for panel, line in lines:
            value = line.points[place][1]
            cells.append((_NONE if value is None else line.show(value), _y(value, tops[panel]), panel))
        rows.append(Row(str(at), at, x(at), cells))
    for number, (begin, end, rate) in enumerate(due, 1):
        jobs = round(rate * (end - begin))
        text = f"{units.rate(rate)} ({units.jobs(jobs)})" if jobs else units.rate(rate)
        cells = [(text, _y(rate, tops[0]), 0) if line.key == "due" else ("", None, panel) for panel, line in lines]
        rows.append(Row(f"due {number}", end, x((begin + end) / 2), cells))
    return rows


def _ticks(lines: list[ChartLine], due: list[tuple[float, float, float]]) -> list[float]:
    most = max(
        [value for line in lines for _, value in line.points if value] + [rate for _, _, rate in due], default=0.0
    )
    whole = lines[0].show is units.count
    step = _length_step(most / _PARTS) if lines[0].show is wait else _step(most / _PARTS, whole=whole)
    return [step * number for number in range(max(math.ceil(round(most / step, 9)), 1) + 1)]


def _step(least: float, *, whole: bool) -> float:
    """Return the smallest of 1, 2, 5, 10 and so on, or a part of these, that is not less."""
    if least <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(least))
    step = next(each * power for each in (1, 2, 5, 10) if each * power >= least * (1 - 1e-9))
    return max(step, 1.0) if whole else step


def _length_step(least_s: float) -> float:
    """Return such a length of time."""
    if least_s <= 1:
        return max(_step(least_s, whole=False), 0.0001) if least_s > 0 else 1.0
    at = bisect_left(_LENGTHS_S, least_s)
    return float(_LENGTHS_S[at]) if at < len(_LENGTHS_S) else math.ceil(least_s / _LENGTHS_S[-1]) * _LENGTHS_S[-1]


def _text_of_tick(line: ChartLine, tick: float) -> str:
    return f"{round(tick, 9):,.10g}" if line.show is units.rate else line.show(tick)


def _y(value: float | None, top: float) -> float | None:
    return None if value is None else round(HEIGHT - (HEIGHT - _TOP) * value / top, 1)


def _panel(
    title: str, lines: list[ChartLine], from_at: float, to_at: float, due: list[tuple[float, float, float]]
) -> Panel:
    ticks = _ticks(lines, due)
    top = ticks[-1]
    scale = WIDTH / (to_at - from_at)
    drawn = []
    for line in lines:
        runs = _runs(line.points)
        places = [[f"{(at - from_at) * scale:.1f},{_y(value, top)}" for at, value in run] for run in runs]
        path = "".join(f"M{'L'.join(run)}{'h0.1' if len(run) == 1 else ''}" for run in places)
        area = ""
        if line.filled:
            area = "".join(
                f"M{run[0].partition(',')[0]},{HEIGHT}L{'L'.join(run)}V{HEIGHT}Z" for run in places if len(run) > 1
            )
        value = line.points[-1][1] if line.points else None
        drawn.append(Drawn(line, path, area, _NONE if value is None else line.show(value)))
    bars = "".join(
        f"M{(begin - from_at) * scale + 1:.1f},{HEIGHT}V{_y(rate, top)}H{(end - from_at) * scale - 1:.1f}V{HEIGHT}Z"
        for begin, end, rate in due
        if rate
    )
    words = []
    for line, _, _, now in drawn:
        most = max([value for _, value in line.points if value], default=0.0)
        words.append(f"{line.title.lower()} now {now}, at most {line.show(most)}")
    text = "; ".join(words)
    return Panel(
        title,
        drawn,
        bars,
        [(HEIGHT - (HEIGHT - _TOP) * tick / top, _text_of_tick(lines[0], tick)) for tick in ticks],
        f"{title}: {text}",
    )


def _runs(points: Points) -> list[list[tuple[float, float]]]:
    """Return the parts of a line between which a value is not known."""
    runs: list[list[tuple[float, float]]] = [[]]
    for at, value in points:
        if value is None:
            runs.append([])
        else:
            runs[-1].append((at, value))
    return [run for run in runs if run]


def wait(seconds: float) -> str:
    """Return a length of time, which may be short."""
    if seconds >= 10 or not seconds:
        return units.age(round(seconds)) or "0 s"
    if seconds >= 1:
        return f"{seconds:.1f} s".replace(".0", "")
    number = 1000 * seconds
    return f"{number:.0f} ms" if number >= 10 or number == round(number) else f"{number:.1f} ms"
