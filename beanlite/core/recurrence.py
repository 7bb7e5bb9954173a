"""When a schedule puts its job: five fields of cron in a zone, or ``every`` with a duration.

Times are UTC, in seconds since 1970. What this takes is imported only once a schedule exists.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from functools import cache
from typing import TYPE_CHECKING, Final

from beanlite.core.policies import duration_s

if TYPE_CHECKING:
    from cronsim import CronSim

EVERY: Final = "every "
UTC_ZONE: Final = "UTC"
# The characters of the longest text: what it says would take too long to work out.
WHEN_MAX: Final = 200
ZONE_MAX: Final = 64

FIELDS: Final = 5
_HOURS: Final = 24
_MINUTE: Final = timedelta(minutes=1)
_HOUR: Final = timedelta(hours=1)
# How far a time that cronsim skips is before the one that it finds: less than an hour to where it goes on, and another.
_SKIPPED_S: Final = 2 * 3600


def next_after(when: str, zone: str, utc_s: float) -> float:
    """Return the first time after ``utc_s`` that ``when`` stands for.

    Raises ValueError, in words for the operator, if it stands for none, or if there is no such zone.
    """
    if len(when) > WHEN_MAX:
        raise ValueError(f"a schedule has at most {WHEN_MAX} characters to say when")
    if when.startswith(EVERY):
        if zone != UTC_ZONE:
            raise ValueError("every counts from 1970 in UTC, and takes no zone")
        interval_s = duration_s(when.removeprefix(EVERY))
        return float((int(utc_s) // interval_s + 1) * interval_s)
    if len(when.split()) != FIELDS:
        raise ValueError(
            f"{when!r} is neither every with a duration, such as every 5m, nor five fields of cron: minute, hour, day"
            " of the month, month, day of the week"
        )
    return _next_cron(when, utc_s, _zone(zone))


def _next_cron(when: str, utc_s: float, zone: tzinfo) -> float:
    """Return the first time after ``utc_s`` for fields of cron.

    If only some hours match, each time of the day counts once: at the end of the gap if the clock skips it, and when
    the clock shows it first if it does so twice. If all hours match, every time that the clock shows counts.
    """
    from cronsim import CronSim, CronSimError  # noqa: PLC0415 - only with a schedule

    local = datetime.fromtimestamp(utc_s, zone)
    try:
        times = CronSim(when, local.replace(tzinfo=None))
        by_the_hour = len(times.hours) == _HOURS
        if by_the_hour and zone is not UTC:
            times.dt = local.replace(microsecond=0)
        for each in times:
            at = _not_skipped(times, local, each) if by_the_hour and zone is not UTC else _existing(each, zone)
            at_s = at.timestamp()
            if at_s > utc_s:  # else it is a time that the clock shows for the second time
                return at_s
    except CronSimError as why:
        raise ValueError(f"{when!r} is no schedule of cron: {str(why).lower()}") from None
    except (AssertionError, OverflowError):  # fields that it does not expect; a time after the year 9999
        pass
    raise ValueError(f"{when!r} never comes")


def _not_skipped(times: CronSim, since: datetime, at: datetime) -> datetime:
    """Return the first time after ``since`` that matches, of which cronsim has found ``at``.

    It goes on by up to an hour at once, and so skips times where the clock has changed by half an hour.
    """
    if (_ahead(at) - _ahead(since)) % _HOUR:
        first_s, found_s = int(since.timestamp()) // 60 * 60 + 60, int(at.timestamp())
        for at_s in range(max(first_s, found_s - _SKIPPED_S), found_s, 60):
            shown = datetime.fromtimestamp(at_s, at.tzinfo)
            if shown.minute in times.minutes and shown.month in times.months and times.match_day(shown.date()):
                return shown
    return at


def _ahead(at: datetime) -> timedelta:
    """Return by how much the clock that shows this is ahead of UTC."""
    return at.replace(tzinfo=UTC) - at


def _existing(local: datetime, zone: tzinfo) -> datetime:
    """Return when a clock in the zone shows this time first, or the end of the gap that skips it."""
    at = local.replace(tzinfo=zone)
    while at.astimezone(UTC).astimezone(zone) != at:
        local += _MINUTE
        at = local.replace(tzinfo=zone)
    return at


@cache
def _zone(name: str) -> tzinfo:
    """Return a zone; its file is read once."""
    if name == UTC_ZONE:
        return UTC
    from zoneinfo import ZoneInfo  # noqa: PLC0415 - only with a schedule

    try:
        return ZoneInfo(name[:ZONE_MAX])
    except (KeyError, OSError, ValueError):  # there is none, it is a folder, or no name at all
        raise ValueError(
            f"{name!r} is no zone such as Europe/Berlin, or this machine does not have it (Debian's package tzdata)"
        ) from None
