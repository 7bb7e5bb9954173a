"""The yardstick's judgement: ratios, their margins, what has fallen, and that the best ratios only rise."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.performance.yardstick import __main__ as yardstick
from tests.performance.yardstick.best import FILE, Best, Ratio, ratio
from tests.performance.yardstick.measuring import ROWS, Sample, counted, cpu_ns, in_turn
from tests.performance.yardstick.versions import Version

BEST = json.dumps({"baseline": "abc", "best": {"a machine": {"50": {"cpu": 0.95, "instructions": 0.9}}}})
BOTH = Version("old", Path("a")), Version("new", Path("b"))
ROW = ROWS[0]


class Bench:
    """Gives the CPU times of rounds with one slice each."""

    def __init__(self, *cpu_us):
        self.left = list(cpu_us)

    def samples(self, *_):
        old, new = self.left.pop(0)
        return [(Sample(commands_per_s=2000, p99_us=100, cpu_us=old), Sample(1000, 200, new))]

    def instructions(self, version, _):
        return {"old": 900, "new": 1000}[version.name]


def compare(bench, best, *words):
    return yardstick.compare(bench, BOTH, yardstick.arguments([ROW.name, "--rounds", "1", *words]), best, "here")


def recorded(cpu):
    return Best(json.dumps({"baseline": "abc", "best": {"here": {ROW.name: {"cpu": cpu}}}}))


def test_ratio_is_above_one_where_the_present_is_cheaper():
    assert ratio([(12.0, 10.0)]) == Ratio(1.2, 0.0)


def test_ratio_is_the_median_of_the_rounds_whatever_one_of_them_says():
    assert ratio([(1.0, 1.0), (1.1, 1.0), (90.0, 1.0)]).median == pytest.approx(1.1)


def test_margin_grows_with_differences_and_shrinks_with_more_rounds():
    calm = [(0.99, 1.0), (1.0, 1.0), (1.01, 1.0)]
    wild = [(0.9, 1.0), (1.0, 1.0), (1.1, 1.0)]
    assert ratio(calm).margin == pytest.approx(1.57 * 0.01 / 3**0.5)
    assert ratio(wild).margin > ratio(calm).margin > ratio(calm * 9).margin > 0


@pytest.mark.parametrize(("cpu", "fallen"), [(1.2, False), (0.95, False), (0.931, False), (0.929, True)])
def test_ratio_has_fallen_if_over_two_hundredths_below_the_best(cpu, fallen):
    said = Best(BEST).fallen("a machine", "50", {"cpu": Ratio(cpu, 0.01)})
    assert said == ([f"50: cpu {cpu:.3f}, 0.950 at best"] if fallen else [])


def test_each_measure_is_judged_by_itself():
    now = {"cpu": Ratio(1.0, 0.0), "instructions": Ratio(0.8, 0.0)}
    assert Best(BEST).fallen("a machine", "50", now) == ["50: instructions 0.800, 0.900 at best"]


def test_another_machine_or_row_has_no_best():
    now = {"cpu": Ratio(0.1, 0.0)}
    assert Best(BEST).fallen("another", "50", now) == Best(BEST).fallen("a machine", "1", now) == []
    assert Best(BEST).knows("a machine")
    assert not Best(BEST).knows("another")


def test_a_best_ratio_rises_by_what_is_certain_and_never_falls():
    best = Best(BEST)
    best.rise("a machine", "50", {"cpu": Ratio(1.0, 0.03), "instructions": Ratio(0.5, 0.0)})
    assert best.of("a machine", "50") == {"cpu": 0.97, "instructions": 0.9}
    best.rise("a machine", "50", {"cpu": Ratio(0.98, 0.03)})
    assert best.of("a machine", "50") == {"cpu": 0.97, "instructions": 0.9}


def test_what_is_recorded_can_be_read_again():
    best = Best(BEST)
    best.rise("another", "1", {"cpu": Ratio(1.25, 0.0)})
    again = Best(best.text())
    assert (again.baseline, again.of("another", "1")) == ("abc", {"cpu": 1.25})
    assert again.of("a machine", "50") == Best(BEST).of("a machine", "50")


def test_the_file_has_a_baseline_and_only_rows_that_are_measured():
    content = json.loads(FILE.read_text(encoding="utf-8"))
    assert len(content["baseline"]) == 40
    assert {row for rows in content["best"].values() for row in rows} <= {row.name for row in ROWS}


def test_two_versions_take_turns_in_coming_first():
    order = []
    pairs = in_turn(lambda name: order.append(name) or (name, len(order)), ("old", "new"), 3)
    assert order == ["old", "new", "new", "old", "old", "new"]
    assert pairs == [(("old", 1), ("new", 2)), (("old", 4), ("new", 3)), (("old", 5), ("new", 6))]


def test_apparent_fall_is_measured_again_before_it_is_said():
    bench = Bench((9, 10), (10, 10), (10, 10))
    assert compare(bench, recorded(1.0), "--check") == []
    assert bench.left == []


def test_what_has_fallen_is_said(capsys):
    assert compare(Bench(*[(9, 10)] * 3), recorded(1.0), "--check") == ["1: cpu 0.900, 1.000 at best"]
    assert (
        "| 1 | 2,000 | 1,000 | 0.500 ± 0.000 | 0.10 | 0.20 | 9.00 | 10.00 | 0.900 ± 0.000 |" in capsys.readouterr().out
    )


def test_only_a_check_measures_again_and_only_a_record_raises_a_best():
    best = recorded(1.0)
    bench = Bench((9, 10), (12, 10))
    compare(bench, best)
    assert bench.left == [(12, 10)]
    compare(bench, best)
    assert best.of("here", "1") == {"cpu": 1.0}


def test_the_table_has_the_best_ratio_from_before(capsys):
    best = recorded(0.5)
    compare(Bench((9, 10)), best, "--record", "--instructions")
    assert capsys.readouterr().out.endswith("| 0.900 ± 0.000 | 900 | 1,000 | 0.900 ± 0.000 | 0.500 |  |\n")
    assert best.of("here", "1") == {"cpu": 0.9, "instructions": 0.9}


@pytest.mark.parametrize("words", [["51"], ["--baseline", "HEAD", "--check"], ["--baseline", "HEAD", "--record"]])
def test_wrong_options_end_the_program(words):
    with pytest.raises(SystemExit) as ended:
        yardstick.arguments(words)
    assert ended.value.code == 2


def test_rows_are_chosen_by_name():
    assert [row.name for row in yardstick.arguments(["memory-50", "1"]).rows] == ["1", "memory-50"]
    assert yardstick.arguments([]).rows == list(ROWS)


def test_instructions_are_those_of_the_last_line_of_totals():
    assert counted("summary: 17\n\nevents: Ir\nfn=(1)\n0 12\ntotals: 1234567\n") == 1234567


def test_cpu_time_is_that_of_all_threads_of_another_process():
    code = """
import threading, time
def burn():
    while time.thread_time() < 0.05: pass
thread = threading.Thread(target=burn)
thread.start()
thread.join()
for _ in range(2):
    print(time.process_time_ns(), flush=True)
    input()
"""
    with subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1, text=True) as process:
        least_ns = int(process.stdout.readline())
        seen_ns = cpu_ns(process.pid)
        print(file=process.stdin, flush=True)
        most_ns = int(process.stdout.readline())
        print(file=process.stdin, flush=True)
    assert 50_000_000 < least_ns <= seen_ns <= most_ns
