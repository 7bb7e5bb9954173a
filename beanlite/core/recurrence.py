"""When a schedule puts its job: five fields of cron in a zone, or ``every`` with a duration.

Times are UTC, in seconds since 1970. What this takes is imported only once a schedule exists.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from functools import cache
from typing import Final

from beanlite.core.policies import duration_s

EVERY: Final = "every "
UTC_ZONE: Final = "UTC"
# The characters of the longest text: what it says would take too long to work out.
WHEN_MAX: Final = 200
ZONE_MAX: Final = 64

FIELDS: Final = 5
_HOURS: Final = 24
_MINUTE: Final = timedelta(minutes=1)


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
            at = each if by_the_hour and zone is not UTC else _existing(each, zone)
            at_s = at.timestamp()
            if at_s > utc_s:  # else it is a time that the clock shows for the second time
                return at_s
    except CronSimError as why:
        raise ValueError(f"{when!r} is no schedule of cron: {str(why).lower()}") from None
    except (AssertionError, OverflowError):  # fields that it does not expect; a time after the year 9999
        pass
    raise ValueError(f"{when!r} never comes")


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
