"""When schedules put their jobs, compared with a search through every minute."""

import contextlib
import os
import random
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from beanlite.core import recurrence
from beanlite.core.recurrence import next_after

SEED = int(os.environ.get("MODEL_SEED", str(random.randrange(1 << 32))))

pytestmark = pytest.mark.usefixtures("zones")


@pytest.fixture(scope="module")
def zones():
    recurrence._zone.cache_clear()


def utc(text):
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def after(when, text, zone="UTC", times=1):
    """Return the next times after this one, as UTC."""
    at_s = utc(text)
    found = []
    for _ in range(times):
        at_s = next_after(when, zone, at_s)
        found.append(datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M:%S"))
    return found


@pytest.mark.parametrize(
    ("when", "since", "expected"),
    [
        ("every 5m", "2026-01-01 00:00:00", "2026-01-01 00:05:00"),
        ("every 5m", "2026-01-01 00:04:59.9", "2026-01-01 00:05:00"),
        ("every 90s", "2026-01-01 00:00:01", "2026-01-01 00:01:30"),
        ("every 1d", "2026-01-01 12:00", "2026-01-02 00:00:00"),
        ("0 3 * * *", "2026-01-01 03:00:00", "2026-01-02 03:00:00"),
        ("0 3 * * *", "2026-01-01 02:59:59.999", "2026-01-01 03:00:00"),
        ("0 3 * * *", "2026-01-01 03:00:00.001", "2026-01-02 03:00:00"),
        ("0 0 31 * *", "2026-01-31 00:00", "2026-03-31 00:00:00"),
        ("0 0 L * *", "2028-02-01 00:00", "2028-02-29 00:00:00"),
        ("0 0 29 2 *", "2096-03-01 00:00", "2104-02-29 00:00:00"),
        ("59 23 31 12 *", "2026-12-31 23:59", "2027-12-31 23:59:00"),
        ("0 9 * * mon-fri", "2026-11-27 09:00", "2026-11-30 09:00:00"),
        ("0 0 13 * FRI", "2026-11-01 00:00", "2026-11-06 00:00:00"),
        ("0 0 * 2 MON#5", "2026-01-01 00:00", "2044-02-29 00:00:00"),
    ],
)
def test_next_time_is_the_first_one_after(when, since, expected):
    assert after(when, since) == [expected]


@pytest.mark.parametrize("when", ["* * * * *", "0 * * * *", "0 3 * * *"])
@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
def test_time_begins_with_its_minute(when, zone):
    assert next_after(when, zone, utc("2026-11-27 12:34:56.789")) % 60 == 0


def test_zone_decides_which_time_of_day():
    assert after("0 9 * * *", "2026-01-01 00:00", "Europe/Berlin") == ["2026-01-01 08:00:00"]
    assert after("0 9 * * *", "2026-07-01 00:00", "Europe/Berlin") == ["2026-07-01 07:00:00"]
    assert after("0 9 1 * *", "2026-06-30 12:00", "Pacific/Auckland") == ["2026-06-30 21:00:00"]
    assert after("0 9 * * *", "2026-01-01 00:00", "Asia/Kathmandu") == ["2026-01-01 03:15:00"]


# In Berlin the clock goes from 02:00 to 03:00 on 2026-03-29 at 01:00 UTC, and from 03:00 to 02:00 on 2026-10-25 at the
# same time.


@pytest.mark.parametrize("when", ["30 2 * * *", "0 2 * * *", "0,15,30 2 * * *", "*/20 2 * * *", "0-59 2 * * *"])
def test_time_that_the_clock_skips_is_the_end_of_the_gap(when):
    assert after(when, "2026-03-29 00:00", "Europe/Berlin") == ["2026-03-29 01:00:00"]
    following = datetime.fromisoformat(after(when, "2026-03-29 01:00", "Europe/Berlin")[0])
    assert following.day == 30


def test_every_other_hour_comes_at_the_end_of_the_gap():
    assert after("0 */2 * * *", "2026-03-28 23:00", "Europe/Berlin", 2) == [
        "2026-03-29 01:00:00",
        "2026-03-29 02:00:00",
    ]


@pytest.mark.parametrize("since", ["2026-10-25 00:00", "2026-10-25 00:29:59"])
def test_time_that_the_clock_shows_twice_comes_the_first_time(since):
    expected = ["2026-10-25 00:30:00", "2026-10-26 01:30:00"]
    assert after("30 2 * * *", since, "Europe/Berlin", 2) == expected


@pytest.mark.parametrize("since", ["2026-10-25 00:45", "2026-10-25 01:00", "2026-10-25 01:15", "2026-10-25 01:45"])
def test_time_that_the_clock_shows_again_does_not_come(since):
    assert after("30 2 * * *", since, "Europe/Berlin") == ["2026-10-26 01:30:00"]


def test_hourly_schedule_comes_every_hour_of_a_day_with_23_or_25():
    for day, hours in (("2026-03-29", 23), ("2026-10-25", 25)):
        midnight = datetime.fromisoformat(day).replace(tzinfo=ZoneInfo("Europe/Berlin"))
        end_s = (midnight + timedelta(days=1)).timestamp()
        at_s, count = midnight.timestamp() - 1, 0
        while (at_s := next_after("0 * * * *", "Europe/Berlin", at_s)) < end_s:
            count += 1
        assert count == hours


def test_hourly_schedule_comes_though_half_an_hour_changes():
    """On Lord Howe Island the clock goes from 02:00 to 01:30 at 15:00 UTC, and from 02:00 to 02:30 at 15:30 UTC."""
    assert after("30 * * * *", "2026-04-04 14:30", "Australia/Lord_Howe", 2) == [
        "2026-04-04 15:00:00",
        "2026-04-04 16:00:00",
    ]
    assert after("30 * * * *", "2026-10-03 15:00:00.5", "Australia/Lord_Howe", 2) == [
        "2026-10-03 15:30:00",
        "2026-10-03 16:30:00",
    ]


def test_midnight_that_is_skipped_is_made_up_for():
    """In Cuba the clock goes from 00:00 to 01:00."""
    assert after("0 0 * * *", "2026-03-08 00:00", "America/Havana", 2) == ["2026-03-08 05:00:00", "2026-03-09 04:00:00"]


def test_day_that_is_skipped_is_made_up_for_once():
    """Samoa had no 30 December 2011."""
    assert after("0 12 * * *", "2011-12-29 23:00", "Pacific/Apia", 2) == ["2011-12-30 10:00:00", "2011-12-30 22:00:00"]


@pytest.mark.parametrize(
    ("when", "zone", "said"),
    [
        ("0 0 30 2 *", "UTC", "'0 0 30 2 *' is no schedule of cron: bad day-of-month"),
        ("0 0 */20 * MON#5", "UTC", "'0 0 */20 * MON#5' never comes"),
        ("61 * * * *", "UTC", "'61 * * * *' is no schedule of cron: bad minute"),
        ("* * * *", "UTC", "'* * * *' is neither every with a duration"),
        ("0 0 3 * * *", "UTC", "'0 0 3 * * *' is neither every with a duration"),
        ("", "UTC", "'' is neither every with a duration"),
        ("@daily", "UTC", "'@daily' is neither every with a duration"),
        ("every", "UTC", "'every' is neither every with a duration"),
        ("every 0s", "UTC", "'0s' is no duration"),
        ("every 5", "UTC", "'5' is no duration"),
        ("every 5m", "Europe/Berlin", "every counts from 1970 in UTC, and takes no zone"),
        ("0 0 * * *", "Europe/Berlim", "'Europe/Berlim' is no zone such as Europe/Berlin"),
        ("0 0 * * *", "Europe", "'Europe' is no zone"),
        ("0 0 * * *", "", "'' is no zone"),
        ("0 0 * * *", "../etc/passwd", "'../etc/passwd' is no zone"),
        ("0 0 * * *", "/etc/passwd", "'/etc/passwd' is no zone"),
        ("0 0 * * *", "a\0b", r"'a\x00b' is no zone"),
        ("0 0 * * " + "1," * 100 + "1", "UTC", "a schedule has at most 200 characters to say when"),
    ],
)
def test_what_never_comes_is_refused_in_plain_words(when, zone, said):
    with pytest.raises(ValueError) as refused:
        next_after(when, zone, utc("2026-01-01 00:00"))
    assert str(refused.value).startswith(said)


def test_any_text_is_refused_or_has_a_time():
    rng = random.Random(SEED)
    for _ in range(2000):
        fields = ["".join(rng.choices("0123456789*/,-L#WMONFEB", k=rng.randint(1, 6))) for _ in range(5)]
        with contextlib.suppress(ValueError):
            assert next_after(" ".join(fields), "UTC", 1.8e9) > 1.8e9, f"MODEL_SEED={SEED}"


def test_file_of_a_zone_is_read_once(monkeypatch):
    recurrence._zone.cache_clear()
    reads = []
    monkeypatch.setattr("zoneinfo.ZoneInfo", lambda name: reads.append(name) or ZoneInfo(name))
    for _ in range(3):
        next_after("0 3 * * *", "Europe/Paris", 1.8e9)
    assert reads == ["Europe/Paris"]


# -- by brute force


def numbers(text, low, high):
    """Return what a field matches, in the plain forms that random schedules have."""
    matches = set()
    for part in text.split(","):
        span, _, step = part.partition("/")
        first, _, last = (f"{low}-{high}" if span == "*" else span).partition("-")
        matches.update(range(int(first), int(last or first) + 1, int(step or 1)))
    return matches


def random_field(rng, low, high, *, star):
    if rng.random() < star:
        return rng.choice(["*", "*", f"*/{rng.randint(1, (high - low) // 2)}"])
    first = rng.randint(low, high)
    return rng.choice([str(first), f"{first}-{rng.randint(first, high)}", f"{first},{rng.randint(low, high)}"])


def shown_by_clock(zone, first_s, minutes):
    """Yield each minute, what the clock shows, what it has skipped just before, and whether it shows that again."""
    shown = set()
    before = datetime.fromtimestamp(first_s - 60, zone).replace(tzinfo=None, fold=0)
    for at_s in range(first_s, first_s + 60 * minutes, 60):
        local = datetime.fromtimestamp(at_s, zone).replace(tzinfo=None, fold=0)
        skipped_minutes = max(0, (local - before) // timedelta(minutes=1) - 1)
        skipped = [before + timedelta(minutes=1 + number) for number in range(skipped_minutes)]
        yield at_s, local, skipped, local in shown
        shown.add(local)
        before = local


def matching(when, clock):
    """Return the times at which a schedule comes, by looking at every minute."""
    minute, hour, day, month, weekday = when.split()
    minutes_of, hours_of = numbers(minute, 0, 59), numbers(hour, 0, 23)
    days_of, months_of, weekdays_of = numbers(day, 1, 31), numbers(month, 1, 12), numbers(weekday, 0, 7)
    both = day.startswith("*") or weekday.startswith("*")

    def fits(local):
        if local.minute not in minutes_of or local.hour not in hours_of or local.month not in months_of:
            return False
        in_days, in_weekdays = local.day in days_of, {local.isoweekday(), local.isoweekday() % 7} & weekdays_of
        return bool(in_days and in_weekdays if both else in_days or in_weekdays)

    if len(hours_of) == 24:
        return {at_s for at_s, local, _, _ in clock if fits(local)}
    return {at_s for at_s, local, skipped, again in clock if (fits(local) and not again) or any(map(fits, skipped))}


# Around a change of the clock: an hour ahead and back, half an hour, at midnight, and none.
CHANGES = [
    ("Europe/Berlin", "2026-03-28 00:00"),
    ("Europe/Berlin", "2026-10-24 00:00"),
    ("America/New_York", "2026-03-07 12:00"),
    ("America/New_York", "2026-10-31 12:00"),
    ("Australia/Lord_Howe", "2026-04-04 00:00"),
    ("Australia/Lord_Howe", "2026-10-03 00:00"),
    ("America/Havana", "2026-03-07 12:00"),
    ("America/Havana", "2026-10-31 12:00"),
    ("UTC", "2026-02-27 00:00"),
    ("Asia/Kolkata", "2026-12-30 00:00"),
]


@pytest.mark.parametrize("part", range(len(CHANGES)))
def test_times_are_those_of_a_search_through_every_minute(part):
    rng = random.Random(f"{SEED} {part}")
    name, begin = CHANGES[part]
    zone = ZoneInfo(name)
    first_s, minutes = int(utc(begin)), 3 * 24 * 60
    clock = list(shown_by_clock(zone, first_s, minutes))
    tried = 0
    while tried < 30:
        when = " ".join(
            (
                random_field(rng, 0, 59, star=0.3),
                random_field(rng, 0, 23, star=0.4),
                random_field(rng, 1, 31, star=0.8),
                random_field(rng, 1, 12, star=0.9),
                random_field(rng, 0, 7, star=0.7),
            )
        )
        expected = matching(when, clock)
        if not expected and rng.random() < 0.9:  # most of those that never come in these days
            continue
        tried += 1
        found, at_s = set(), first_s - 1.0
        try:
            while (at_s := next_after(when, name, at_s)) < first_s + 60 * minutes:
                found.add(int(at_s))
        except ValueError:
            assert not expected, f"{when} (MODEL_SEED={SEED})"
        assert found == expected, f"{when} (MODEL_SEED={SEED})"
