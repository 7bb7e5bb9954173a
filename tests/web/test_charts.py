"""Charts: their scales, their times, and what is known of them."""

import re

import pytest

from beanlite.console import units
from beanlite.web.charts import HEIGHT, ChartLine, _ticks, chart_of_flow, chart_of_totals, wait
from beanlite.web.curves import curve

NOON = 1_700_000_000 // 3600 * 3600
STEP_S, POINTS = 30, 120


def flow(**columns):
    """A flow as the server tells it; columns that are not given are silent."""
    size = max([len(values) for key, values in columns.items() if key != "due" and isinstance(values, list)])
    silent = {key: [0] * size for key in ("put", "reserved", "deleted", "delay_over", "ready")}
    waits = {key: [None] * size for key in ("wait_p50_s", "wait_p99_s")}
    known = {"since_at": NOON - STEP_S * size, "from_at": NOON - STEP_S * size, "step_s": STEP_S, "kept": True}
    return {**known, **silent, **waits, "seconds": [30.0] * size, "due": [0] * 12, "due_step_s": 60, **columns}


def line(*values, show=units.rate):
    return ChartLine("in", "In", "", list(enumerate(values)), show)


@pytest.mark.parametrize(
    ("most", "show", "ticks"),
    [
        (0, units.rate, [0, 1]),
        (0.3, units.rate, [0, 0.1, 0.2, 0.3]),
        (12, units.rate, [0, 5, 10, 15]),
        (99, units.rate, [0, 50, 100]),
        (2, units.count, [0, 1, 2]),
        (0.007, wait, [0, 0.002, 0.004, 0.006, 0.008]),
        (7, wait, [0, 2, 4, 6, 8]),
        (100, wait, [0, 30, 60, 90, 120]),
        (30_000, wait, [0, 14_400, 28_800, 43_200]),
        (10_000_000, wait, [0, 3_628_800, 7_257_600, 10_886_400]),
    ],
)
def test_ticks_are_round_and_few(most, show, ticks):
    assert _ticks([line(0, most, show=show)], []) == pytest.approx(ticks)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (0.00042, "0.4 ms"), (0.25, "250 ms"), (1.26, "1.3 s"), (2, "2 s"), (75, "1 min 15 s"), (3600, "1 h")],
)
def test_waits_are_told_in_their_unit(seconds, text):
    assert wait(seconds) == text


def test_rate_is_the_count_by_the_time_for_which_it_was_counted():
    chart = chart_of_flow(flow(put=[60, 60, 30], seconds=[30.0, 20.0, 10.0], deleted=[0, 0, 0]), POINTS)
    assert [row.cells[0][0] for row in chart.rows[:3]] == ["2.0", "3.0", "3.0"]
    assert chart.panels[0].lines[0].latest == "3.0"


def test_line_has_gaps_where_nothing_is_known():
    chart = chart_of_flow(flow(ready=[None, 1, 2, None, 3]), POINTS)
    (ready,) = chart.panels[1].lines
    assert ready.path.count("M") == 2
    assert ready.area.count("Z") == 1
    assert [row.cells[3][0] for row in chart.rows[:2]] == ["\N{EN DASH}", "1"]


def test_jobs_that_will_be_due_are_right_of_now_on_the_same_scale():
    chart = chart_of_flow(flow(put=[30] * POINTS, due=[600] + [0] * 10 + [60]), POINTS)
    assert (chart.due, chart.due_s) == (660, 720)
    assert chart.now_x == pytest.approx(100 * 3600 / 4320, abs=0.01)
    assert chart.panels[0].bars.count("Z") == 2
    assert chart.panels[0].ticks[-1][1] == "10"  # the in is 1 / s, and 10 / s will be due
    last = chart.rows[-1]
    assert [text for text, _, _ in last.cells] == ["", "", "1.0 (60 jobs)", "", "", ""]
    assert chart.now_x < last.x < 100


def test_rows_of_what_will_be_due_stay_the_same_while_the_chart_moves():
    before, after = (
        chart_of_flow(flow(put=[0] * POINTS, from_at=NOON + STEP_S * moved), POINTS).rows for moved in (0, 1)
    )
    assert [row.id for row in before[1:POINTS]] == [row.id for row in after[: POINTS - 1]]
    assert [(row.id, row.x) for row in before[POINTS:]] == [(row.id, row.x) for row in after[POINTS:]]
    assert len({row.id for row in before}) == len(before)


def test_all_that_is_drawn_is_within_the_picture():
    chart = chart_of_flow(
        flow(put=list(range(POINTS)), deleted=[5] * POINTS, ready=[7] * POINTS, due=[999] * 12), POINTS
    )
    for panel in chart.panels:
        for path in (panel.bars, *(each for drawn in panel.lines for each in (drawn.path, drawn.area))):
            for x, y in re.findall(r"([\d.]+),([\d.]+)", path):
                assert 0 <= float(x) <= 1000
                assert 0 <= float(y) <= HEIGHT
        assert [y for y, _ in panel.ticks] == sorted((y for y, _ in panel.ticks), reverse=True)
    assert all(0 < x < 100 for x, _ in chart.times)
    assert all(at % 600 == 0 for _, at in chart.times)
    assert all(0 <= row.x <= 100 for row in chart.rows)


def test_day_begins_with_the_hours_of_the_database():
    hours = [{"at": NOON - 3600 * back, "put": 3600 * back, "deleted": 0, "delay_over": 0} for back in range(30, 0, -1)]
    known = flow(put=[1] * 12, since_at=NOON - 7000) | {"step_s": 600, "from_at": NOON - 7200, "due_step_s": 1440}
    chart = chart_of_flow(known, 144, hours)
    firsts = [row.cells[0][0] for row in chart.rows[:23]]
    assert firsts[:22] == [units.rate(back) for back in range(24, 2, -1)]  # none of an hour in which the server began
    assert (chart.is_partial, chart.has_hours) == (True, True)
    assert (chart_of_flow(known, 144).is_partial, chart_of_flow(known, 144).has_hours) == (True, False)


def test_totals_of_days_are_drawn_by_the_day():
    rows = [
        {"at": NOON // 86_400 * 86_400 - 86_400 * back, "put": 5, "deleted": 2, "waited_s": 9.0, "reserved": 3}
        for back in (3, 1)
    ]
    chart = chart_of_totals(rows, 86_400, 91, NOON)
    assert chart.days
    assert [row.cells[0][0] for row in chart.rows[-4:]] == ["5", "0", "5", "0"]
    assert [row.cells[2][0] for row in chart.rows[-4:]] == ["3 s", "\N{EN DASH}", "3 s", "\N{EN DASH}"]
    assert chart.now_x == 100


def test_tube_without_room_for_its_flow_is_marked():
    assert not chart_of_flow(flow(put=[0], kept=False), POINTS).is_kept


def test_curve_beside_a_tube_reaches_the_top_and_has_no_gaps(monkeypatch):
    monkeypatch.setattr("time.time", lambda: NOON + 5)
    rows = [{"at": NOON - 3600 * back, "put": 7 * back} for back in (0, 1, 3)]
    drawn = curve(rows, "put", 3600, 5)
    assert drawn.line == "M0.0,100.0L150.0,4.0L300.0,100.0L450.0,68.0L600.0,100.0"
    assert (drawn.most, drawn.area.count("Z")) == (21, 1)
    assert curve([], "put", 3600, 5).most == 0
