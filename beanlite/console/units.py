"""Sizes, ages and times as people write and read them; and text made safe for a terminal."""

import math
import re
import time
from datetime import datetime, time as time_of_day, timedelta, tzinfo
from typing import NoReturn

from beanlite.core import phrases

_UNITS_S = {
    "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 604_800,
}  # fmt: skip
# The longest length of time that the protocol takes: some thousand years.
AGE_MAX_S = 100_000_000_000
_ZONE_MAX = 100
_TIME_OF_DAY = re.compile(r"\d?\d:\d\d(:\d\d)?Z?")
_DATE = re.compile(r"\d{4}-\d\d-\d\d|\d{8}(?=Z?$|[T ]\d)")  # eight digits are a date, too, and not so many seconds ago
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)")
quantity = phrases.quantity
jobs = phrases.jobs_text
# Characters that make a terminal move the cursor, change colours or reverse the writing direction.
_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


class NoSuchZone(ValueError):
    """A moment is to be in a zone that is not known here."""


class _UnknownZone(tzinfo):
    """A zone that is not known here, so that no moment can be told that is in it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def utcoffset(self, _: datetime | None) -> NoReturn:
        raise NoSuchZone(
            f"the zone {self._name} is not known on the machine of this page; write the time in UTC, with a Z behind"
        )

    dst = tzname = utcoffset


class StillToCome(ValueError):
    """A time of day up to which something is to count is still to come today."""


def parse_age(text: str) -> float:
    """Return the seconds in "90", "90s", "5min", "1.5h" or "2d 3h". ValueError: it is something else."""
    parts = _PART.findall(text.strip().lower())
    if not parts or _PART.sub("", text.strip().lower()).strip():
        raise ValueError(f"{text!r} is not a length of time; write it as 90s, 5min, 3h, 2d or 1h30min")
    try:
        seconds = sum(float(number) * _UNITS_S[unit or "s"] for number, unit in parts)
    except KeyError as error:
        raise ValueError(f"{error.args[0]!r} is not a unit of time; these are s, min, h, d and w") from None
    if len(parts) > 1 and not all(unit for _, unit in parts):  # 1h30 is meant as 1h30min
        raise ValueError(f"{text!r} has a number without a unit of time; write it as 1h30min")
    if seconds > AGE_MAX_S:
        raise ValueError(f"{text!r} is more than {AGE_MAX_S // 86_400} d")
    return seconds


def zone_of(name: str) -> tzinfo | None:
    """Return the zone of this name; None if there is none here."""
    from zoneinfo import ZoneInfo  # noqa: PLC0415 - only for readers of the page

    try:
        return ZoneInfo(name[:_ZONE_MAX]) if name else None
    except (KeyError, OSError, ValueError):  # there is none, it is a folder, or no name at all
        return None


def zone_of_reader(name: str) -> tzinfo | None:
    """Return the zone of this name, for ``parse_moment``: if there is none here, one in which it reads no moment.

    None: the reader has told none.
    """
    return zone_of(name) or _UnknownZone(on_one_line(name[:_ZONE_MAX])) if name else None


def parse_moment(text: str, now_s: float, zone: tzinfo | None = None, *, is_end: bool = False) -> float:
    """Return the UTC timestamp of "02:00" (the last time it was so), "24h" (ago), "2026-11-27" or "2026-11-27 14:30".

    The zone is that of the process if none is given, or UTC with a Z at the end. ValueError: it is something else, or
    before 1970. StillToCome: so is a time of day with ``is_end``, by which few mean yesterday's. NoSuchZone.
    """
    text = text.strip()
    last = ""
    try:
        if _TIME_OF_DAY.fullmatch(text):
            padded = text if text[2] == ":" else f"0{text}"
            wanted = time_of_day.fromisoformat(padded)
            wanted = wanted.replace(tzinfo=wanted.tzinfo or zone)
            today = datetime.fromtimestamp(now_s, wanted.tzinfo).date()
            # When a clock is set back an hour comes twice, and when it is set forward one does not come.
            moments = [
                datetime.combine(day, wanted.replace(fold=fold))
                for day in (today, today - timedelta(days=1))
                for fold in (0, 1)
            ]
            moment = max((each for each in moments if each.timestamp() <= now_s), key=datetime.timestamp)
            if moment.date() != today:
                last = f"{moment.date()} {padded}"
            at_s = moment.timestamp()
        elif _DATE.match(text):
            is_utc_date = text.endswith("Z") and _DATE.fullmatch(text[:-1])
            moment = datetime.fromisoformat(f"{text[:-1]}T00:00Z" if is_utc_date else text)
            at_s = moment.replace(tzinfo=moment.tzinfo or zone).timestamp()
        else:
            at_s = max(now_s - parse_age(text), 0.0)
    except NoSuchZone:
        raise
    except ValueError:
        raise ValueError(f"{text!r} is no moment; write it as 02:00, 24h (ago) or 2026-11-27 14:30") from None
    if is_end and last:
        raise StillToCome(f"{text} is still to come today; the last one was {last}")
    if at_s < 0:
        raise ValueError(f"{text!r} is before 1970")
    return at_s


def whole_seconds(seconds: float) -> int:
    """Round a length of time up, because 0 seconds may mean something else: no delay, or the end of a pause."""
    # 1.1 h are not to be a second more because of the last digit of a float.
    return max(math.ceil(round(seconds, 6)), 1) if seconds else 0


def age(seconds: float | None) -> str:
    """Return a length of time in its two largest units: "3 h 12 min"."""
    return "" if seconds is None else phrases.age(seconds)


def size(number: float | None) -> str:
    """Return a number of bytes as text: "1.2 MiB"."""
    if number is None:
        return ""
    if number < 1024:
        return f"{number:.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        number /= 1024
        if number < 1023.95:
            return f"{number:.1f} {unit}"
    return f"{number / 1024:.1f} TiB"


def count(number: float | None) -> str:
    """Return a number with thousands separators: "1,234"."""
    return "" if number is None else f"{number:,.0f}"


def short(number: float | None) -> str:
    """Return a number in no more than six characters: "12,345", "1.2M"."""
    if number is None or number < 100_000:
        return count(number)
    for unit in ("k", "M", "G"):
        number /= 1000
        if number < 999.5:
            return f"{number:.1f}{unit}" if number < 99.95 else f"{number:.0f}{unit}"
    return f"{number / 1000:.0f}T"


def milliseconds(seconds: float) -> str:
    """Return a short time as text: "0.3 ms"."""
    return f"{1000 * seconds:.1f} ms"


def settings(pauses: int, policies: int, schedules: int) -> list[str]:
    """Return the numbers of what a queue has besides jobs, as texts; policies and schedules only if there are any."""
    texts = [quantity(pauses, "pause")]
    if policies:
        texts.append(quantity(policies, "policy", "policies"))
    if schedules:
        texts.append(quantity(schedules, "schedule"))
    return texts


def rate(per_s: float | None) -> str:
    """Return a rate per second, to about three digits."""
    if per_s is None:
        return ""
    return f"{per_s:,.0f}" if per_s >= 100 else f"{per_s:.1f}" if per_s >= 0.05 or not per_s else f"{per_s:.3f}"


def utc(at: float | None) -> str:
    """Return the date and time of a UTC timestamp."""
    return "" if at is None else time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(at))


def on_one_line(text: str) -> str:
    """Make text safe for a table: characters that break the line or control the terminal become dots."""
    return _UNSAFE.sub("·", text)


def on_lines(text: str) -> str:
    """Make text safe for a terminal, but keep its lines and tabs."""
    return "\n".join("\t".join(map(on_one_line, line.split("\t"))) for line in text.split("\n"))
