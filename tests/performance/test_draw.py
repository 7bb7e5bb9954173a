"""The page of results is made from what the bench prints."""

import json
from pathlib import Path

import pytest

from tests.performance import draw as script

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def draw(monkeypatch, tmp_path):
    """tests/performance/draw.py, working in a folder of the test."""
    for name in ("RESULTS", "PAGE", "PLOT"):
        monkeypatch.setattr(script, name, tmp_path / getattr(script, name).name)
    return script


def report(connections, speeds, **load):
    targets = [
        {"name": name, "commands_per_s": speed, "jobs_per_s": speed / 3, "ratio": speed / 100, "limit": "wait"}
        | dict.fromkeys(("p50_us", "p99_us", "p999_us"), 250)
        | {"max_us": 1_250_000}
        for name, speed in speeds.items()
    ]
    usual = {"workload": "cycle", "connections": connections, "depth": 1, "body": 100, "beside": 0, "rate": 0}
    machine = {"cores": 2, "cpu": "A CPU", "kernel": "Linux 6", "python": "3.11", "file_system": "ext4"}
    about = {"beanlite": "0.1.0", "compiled": True, "when": "2026-01-02T03:04:05Z", "pinned": True, "machine": machine}
    return {**about, "load": usual | load, "targets": targets}


REPORTS = [
    report(50, {"beanstalkd": 100, "beanlite": 6000}),
    report(2, {"beanstalkd": 90, "beanlite": 80}),
    report(16, {"beanstalkd": 1, "beanlite": 1}, depth=100),
    report(50, {"beanlite": 3000}, rate=3000),
]


def test_a_curve_is_of_runs_that_differ_in_connections_only(draw):
    assert draw.curves(REPORTS) == {"beanstalkd": [(2, 90), (50, 100)], "beanlite": [(2, 80), (50, 6000)]}


def test_the_page_and_the_plot(draw):
    draw.RESULTS.write_text("".join(json.dumps(each) + "\n" for each in REPORTS))
    draw.PAGE.write_text(f"before\n{draw.BEGIN}old\n{draw.END}after\n")
    draw.main()
    page = draw.PAGE.read_text()
    assert page.startswith(f"before\n{draw.BEGIN}![Throughput against connections](throughput.svg)\n\nMeasured 2026")
    assert page.endswith(f"{draw.END}after\n")
    assert "old" not in page
    assert "with beanlite 0.1.0 (compiled) on" in page
    assert "\n### cycle, 16 connections, 100 commands at a time\n" in page
    assert "\n### cycle, 50 connections, 3,000 commands/s asked for\n" in page
    row = "| `beanlite` | 6,000 | 2,000 | 60.00 | 0.25 ms | 0.25 ms | 0.25 ms | 1,250.00 ms | wait |"
    assert row in page.splitlines()
    drawn = draw.PLOT.read_text()
    assert ">beanstalkd<" in drawn
    assert ">6,000<" in drawn
    draw.main()
    assert (draw.PAGE.read_text(), draw.PLOT.read_text()) == (page, drawn)


def test_the_page_has_a_place_for_the_results(draw):
    page = (DOCS / "performance-lab.md").read_text(encoding="utf-8")
    assert page.count(draw.BEGIN) == page.count(draw.END) == 1
