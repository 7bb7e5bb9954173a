"""The log lines: their form, what can't break them, and who is meant to read them."""

import io
import json
import logging
import os
import re
import time
from types import SimpleNamespace

import pytest

from beanlite.host import log

LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ (.*)")


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def lines(monkeypatch):
    """Log with the given form and level; returns the lines that came out, without their time."""
    monkeypatch.delenv("JOURNAL_STREAM", raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)

    def start(form="text", level="debug", stream=None):
        stream = stream or io.StringIO()
        log.setup(level, form, stream)

        def read():
            return stream.getvalue().splitlines()

        return read

    return start


def text(line):
    found = LINE.fullmatch(line)
    assert found, line
    return found[1]


def test_a_text_line(lines):
    read = lines()
    log.info("started", address="127.0.0.1:11300", jobs=3)
    log.warning("slow commit", seconds=1.23456)
    assert [text(line) for line in read()] == [
        "INFO  beanlite: started address=127.0.0.1:11300 jobs=3",
        "WARNING beanlite: slow commit seconds=1.235",
    ]


def test_a_line_of_a_child_is_logged_again(lines, monkeypatch):
    of_child, logger = io.StringIO(), logging.getLogger("child")
    with monkeypatch.context() as child:
        child.setattr(log, "_logger", logger)
        child.setattr("sys.stderr", of_child)
        log.setup_child()
        log.info("a detail")
        log.warning("wrong password", address="192.0.2.1", user="a\nb", times=2)
        log.error("failed", time="never")
    read = lines()
    assert [log.relay(line) for line in of_child.getvalue().splitlines()] == [True, True]
    assert [text(line) for line in read()] == [
        'WARNING beanlite: wrong password address=192.0.2.1 user="a\\nb" times=2',
        "ERROR beanlite: failed",
    ]


@pytest.mark.parametrize(
    "line",
    [
        "ValueError: x",
        "",
        "{",
        "[" * 100_000,
        '{"a":' * 100_000,
        "5",
        '["level", "event"]',
        '{"event": "x"}',
        '{"level": "warning"}',
        '{"level": "loud", "event": "x"}',
        '{"level": ["warning"], "event": "x"}',
        '{"level": "warning", "event": ["x"]}',
    ],
)
def test_what_is_no_line_of_a_log_is_not_logged_again(lines, line):
    read = lines()
    assert not log.relay(line)
    assert read() == []


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now_s=1000.0)
    monkeypatch.setattr(time, "monotonic", lambda: clock.now_s)
    return clock


def test_a_warning_that_comes_without_end_is_logged_seldom(lines, clock):
    read = lines()
    seldom = log.Seldom()
    for _ in range(5):
        seldom.warning("slow", seconds=1)
    assert [text(line) for line in read()] == ["WARNING beanlite: slow seconds=1"]
    clock.now_s += log.SELDOM_S
    seldom.warning("slow", seconds=2)
    assert [text(line) for line in read()][1:] == ["WARNING beanlite: slow seconds=2 times=5"]


def test_frequent_warning_does_not_hide_another_one(lines):
    read = lines()
    seldom = log.Seldom()
    for number in range(3):
        seldom.warning("slow")
        seldom.warning("lost")
        seldom.warning(f"process {number} has a lock")
    events = [text(line).removeprefix("WARNING beanlite: ") for line in read()]
    assert events == ["slow", "lost", *(f"process {number} has a lock" for number in range(3))]


def test_warnings_without_end_take_no_memory_without_end():
    seldom = log.Seldom()
    for number in range(10 * log.EVENTS_MAX):
        seldom.warning(f"process {number} has a lock")
    assert len(seldom._dropped) == log.EVENTS_MAX


def test_the_time_is_utc():
    record = logging.makeLogRecord({"created": 1795203240.9, "levelname": "INFO", "name": "beanlite", "msg": "x"})
    assert log.TextFormatter(io.StringIO()).format(record) == "2026-11-20T19:34:00Z INFO  beanlite: x"
    assert json.loads(log.JsonFormatter().format(record))["time"] == "2026-11-20T19:34:00Z"


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("two words", '"two words"'),
        ("", '""'),
        ("a\nb", r'"a\nb"'),
        ("\x1b[31m", r'"\u001b[31m"'),
        ('q"q', r'"q\"q"'),
        ("a=b", '"a=b"'),
        ("\u2028", r'"\u2028"'),
        (None, "None"),
    ],
)
def test_a_value_stays_one_word_of_its_line(value, written, lines):
    read = lines()
    log.info("x", value=value)
    (line,) = read()
    assert text(line) == f"INFO  beanlite: x value={written}"


def test_a_json_line(lines):
    read = lines("json")
    log.info("started", address="a\nb", jobs=3, path=os)
    (line,) = read()
    assert list(json.loads(line)) == ["time", "level", "event", "address", "jobs", "path"]
    assert json.loads(line) | {"time": 0} == {
        "time": 0,
        "level": "info",
        "event": "started",
        "address": "a\nb",
        "jobs": 3,
        "path": str(os),
    }


def failed():
    try:
        return 1 // 0
    except ZeroDivisionError as error:
        return error


def test_a_traceback_in_text_follows_its_line(lines):
    read = lines()
    log.error("a bug", exc=failed(), jobs=1)
    first, *rest = read()
    assert text(first) == "ERROR beanlite: a bug jobs=1"
    assert rest[0] == "Traceback (most recent call last):"
    assert rest[-1].startswith("ZeroDivisionError")


def test_a_traceback_in_json_is_a_field(lines):
    read = lines("json")
    log.error("a bug", exc=failed())
    (line,) = read()
    assert "\nZeroDivisionError" in json.loads(line)["traceback"]


@pytest.mark.parametrize(("level", "count"), [("debug", 4), ("info", 3), ("warning", 2), ("error", 1)])
def test_the_level_is_the_least_that_is_written(level, count, lines):
    read = lines(level=level)
    for write in (log.debug, log.info, log.warning, log.error):
        write("x")
    assert len(read()) == count


def test_others_log_their_warnings_in_the_same_form(lines):
    read = lines("json")
    logging.getLogger("asyncio").info("hidden")
    logging.getLogger("asyncio").warning("shown %s", 1)
    assert [json.loads(line)["event"] for line in read()] == ["shown 1"]


def test_colours_are_for_terminals_only(lines, monkeypatch):
    read = lines(stream=Terminal())
    log.error("x")
    assert "\x1b[31mERROR\x1b[0m" in read()[0]
    read = lines()
    log.error("x")
    assert "\x1b" not in read()[0]
    monkeypatch.setenv("NO_COLOR", "1")
    read = lines(stream=Terminal())
    log.error("x")
    assert "\x1b" not in read()[0]


@pytest.mark.parametrize(("ours", "start"), [(True, r"<4>\d{4}-"), (False, r"\d{4}-")])
def test_a_line_for_the_systemd_journal_begins_with_its_priority(ours, start, lines, monkeypatch, tmp_path):
    with (tmp_path / "stderr").open("w+") as stream:
        stat = os.fstat(stream.fileno())
        monkeypatch.setenv("JOURNAL_STREAM", f"{stat.st_dev}:{stat.st_ino + (not ours)}")
        lines(stream=stream)
        log.warning("x")
        stream.seek(0)
        assert re.match(start, stream.read())
