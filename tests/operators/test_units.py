"""How sizes, ages and texts are written and read."""

import time
from datetime import datetime

import pytest

from beanlite.console import units


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("5min", 300), ("5 m", 300), ("1.5h", 5400), ("2d 3h", 183_600), ("1h30min", 5400),
     ("1W", 604_800), ("0", 0)],
)  # fmt: skip
def test_lengths_of_time_are_read(text, seconds):
    assert units.parse_age(text) == seconds


@pytest.mark.parametrize(
    ("text", "whole"), [("0", 0), ("0.0000001s", 1), ("0.4", 1), ("1", 1), ("1.0001s", 2), ("1.1h", 3960), ("90s", 90)]
)
def test_whole_seconds_are_never_fewer(text, whole):
    assert units.whole_seconds(units.parse_age(text)) == whole


@pytest.mark.parametrize("text", ["", "x", "-5s", "5 5y", "1h,", "h", "1,5h", "5min ago"])
def test_what_is_no_length_of_time(text):
    with pytest.raises(ValueError, match=r"is not a (length|unit) of time"):
        units.parse_age(text)


@pytest.mark.parametrize("text", ["1h30", "30 1h", "1 30", "2d 3"])
def test_a_number_without_a_unit_stands_alone(text):
    with pytest.raises(ValueError, match="write it as 1h30min"):
        units.parse_age(text)


@pytest.mark.parametrize("text", ["1157408d", "9" * 400])
def test_what_is_longer_than_any_length_of_time(text):
    with pytest.raises(ValueError, match="is more than 1157407 d"):
        units.parse_age(text)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(None, ""), (0, "0 s"), (59.4, "59 s"), (60, "1 min"), (61, "1 min 1 s"), (3600, "1 h"), (3605, "1 h"),
     (11_523, "3 h 12 min"), (86_400, "1 d"),
     (90_000, "1 d 1 h"), (400 * 86_400, "400 d"), (-5, "-5 s"), (-0.2, "0 s")],
)  # fmt: skip
def test_ages_have_two_units(seconds, shown):
    assert units.age(seconds) == shown


@pytest.mark.parametrize(
    ("number", "shown"),
    [(None, ""), (0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1_258_291, "1.2 MiB"), (1 << 20, "1.0 MiB"),
     ((1 << 20) - 1, "1.0 MiB"), (5 << 30, "5.0 GiB"), (3 << 40, "3.0 TiB"), (2000 << 40, "2000.0 TiB")],
)  # fmt: skip
def test_sizes(number, shown):
    assert units.size(number) == shown


def test_rates_have_three_digits():
    shown = [units.rate(per_s) for per_s in (None, 0, 0.004, 0.5, 99.94, 100, 12_345.6)]
    assert shown == ["", "0.0", "0.004", "0.5", "99.9", "100", "12,346"]


def test_a_body_can_not_command_the_terminal():
    assert units.on_one_line("a\x1b[2Jb\r\nc\td\u202ee\x9b") == "a·[2Jb··c·d·e·"
    assert units.on_lines("a\x1b[2J\r\n\tb\u2028") == "a·[2J·\n\tb·"
    assert units.on_one_line("ä日本語 🎉") == "ä日本語 🎉"


def test_moments_are_utc():
    assert units.utc(1_700_000_000.9) == "2023-11-14 22:13:20"


def test_short_numbers_have_six_characters_at_most():
    numbers = (None, 0, 99_999, 100_000, 1_234_567, 99_949_999, 999_499_999, 10**10, 10**13)
    assert [units.short(number) for number in numbers] == [
        "",
        "0",
        "99,999",
        "100k",
        "1.2M",
        "99.9M",
        "999M",
        "10.0G",
        "10T",
    ]


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("02:00", "2026-11-27 01:00:00"), ("2:00:30", "2026-11-27 01:00:30"), ("11:13:59", "2026-11-27 10:13:59"),
        ("23:59", "2026-11-26 22:59:00"), ("02:00Z", "2026-11-27 02:00:00"), ("23:59Z", "2026-11-26 23:59:00"),
        ("24h", "2026-11-26 10:13:59"), (" 90 ", "2026-11-27 10:12:29"), ("99999d", "1970-01-01 00:00:00"),
        ("2026-07-01", "2026-06-30 22:00:00"), ("2026-11-26 02:00", "2026-11-26 01:00:00"),
        ("2026-11-26T02:00:00Z", "2026-11-26 02:00:00"), ("2026-11-26 02:00+05:00", "2026-11-25 21:00:00"),
        ("2026-07-01Z", "2026-07-01 00:00:00"), ("20260701", "2026-06-30 22:00:00"),
        ("20260701Z", "2026-07-01 00:00:00"), ("20260701T1430", "2026-07-01 12:30:00"),
        ("86400000s", "2024-03-02 10:13:59"), ("86400000 sec", "2024-03-02 10:13:59"),
    ],
)  # fmt: skip
def test_moments_are_read_in_the_zone_of_the_reader(text, moment, monkeypatch):
    assert units.utc(units.parse_moment(text, 1_795_774_439.0, units.zone_of("Europe/Berlin"))) == moment
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        assert units.utc(units.parse_moment(text, 1_795_774_439.0)) == moment
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    ("now", "text", "minutes"),
    [
        ("2026-03-29T01:10Z", "02:30", 40),  # 3:10, and 2:30 did not come
        ("2026-03-29T01:40Z", "02:30", 10),
        ("2026-03-29T01:10Z", "01:50", 20),
        ("2026-10-25T01:10Z", "02:30", 40),  # 2:10 for the second time
        ("2026-10-25T01:10Z", "02:05", 5),
        ("2026-10-25T00:10Z", "02:05", 5),
        ("2026-10-25T00:10Z", "02:30", 23 * 60 + 40),
        ("2026-10-25T01:10Z", "03:00", 23 * 60 + 10 + 60),
    ],
)
def test_time_of_day_is_the_last_such_when_the_clock_is_changed(now, text, minutes, monkeypatch):
    now_s = datetime.fromisoformat(now).timestamp()
    assert (now_s - units.parse_moment(text, now_s, units.zone_of("Europe/Berlin"))) / 60 == minutes
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        assert (now_s - units.parse_moment(text, now_s)) / 60 == minutes
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    "text",
    ["", "x", "25:00", "12:60", "1:2", "2026-13-01", "2026-11-26x", "20261301", "20261126x", "yesterday", "24 hours"],
)
def test_what_is_no_moment(text):
    with pytest.raises(ValueError, match="is no moment; write it as 02:00, 24h"):
        units.parse_moment(text, 1e9)


def test_moment_before_1970_is_an_error():
    with pytest.raises(ValueError, match="is before 1970"):
        units.parse_moment("1960-01-01", 1e9)


def test_last_such_time_of_day_is_told_as_it_can_be_given():
    with pytest.raises(units.StillToCome, match=r"the last one was 2026-11-26 07:00Z$") as told:
        units.parse_moment("7:00Z", 1_795_741_200.0, is_end=True)
    moment = units.parse_moment(str(told.value).partition("the last one was ")[2], 1_795_741_200.0, is_end=True)
    assert units.utc(moment) == "2026-11-26 07:00:00"


@pytest.mark.parametrize("text", ["10:15", "23:59:59", "23:59Z"])
def test_end_still_to_come_today_is_not_taken_for_yesterdays(text, monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    try:
        with pytest.raises(
            units.StillToCome, match=f"^{text} is still to come today; the last one was 2026-11-26 {text}$"
        ):
            units.parse_moment(text, 1_795_774_439.0, is_end=True)
        assert units.utc(units.parse_moment("10:13", 1_795_774_439.0, is_end=True)) == "2026-11-27 10:13:00"
    finally:
        monkeypatch.undo()
        time.tzset()
