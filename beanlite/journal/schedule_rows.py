"""A schedule as a row of a database, whatever the database, and as a line of an export."""

import json
from collections.abc import Sequence
from typing import Final
from zlib import crc32

from beanlite.core.job import U32_MAX
from beanlite.core.schedules import Schedule
from beanlite.core.tube import is_tube_name
from beanlite.errors import BeanliteError
from beanlite.journal.columns import as_list
from beanlite.journal.lines import body_of, line_of
from beanlite.journal.validity import COUNTER_MAX, is_flag, is_number, is_time

NAMES: Final = (
    "name", "timing", "zone", "tube", "body", "pri", "ttr_s", "if_absent", "once_if_missed", "next_at", "last_at",
    "last_job", "changed_at", "changed_by",
)  # fmt: skip
TIMES: Final = ("next_at", "last_at", "changed_at")
"""In UTC."""
_BODY: Final = NAMES.index("body")
COLUMNS: Final = as_list((*NAMES, "crc32"))
REPLACED: Final = as_list(tuple(f"{name} = excluded.{name}" for name in (*NAMES, "crc32")))
"""What replaces a row of the same name."""


def row_of_schedule(schedule: Schedule) -> tuple[object, ...]:
    """Return the values of the columns, the last of which is the checksum of the others."""
    last_at = schedule.last_at
    values = (
        schedule.name,
        schedule.when,
        schedule.zone,
        schedule.tube.decode(),
        schedule.body,
        schedule.pri,
        schedule.ttr_s,
        schedule.if_absent,
        schedule.once_if_missed,
        float(schedule.next_at),
        None if last_at is None else float(last_at),
        schedule.last_job,
        float(schedule.changed_at),
        schedule.changed_by,
    )
    return *values, _checksum(values)


def schedule_of(row: Sequence[object]) -> Schedule:
    """Return the schedule of a row. ValueError: the row is not what was written."""
    *values, checksum = row
    try:
        alike = _checksum(values) == checksum
    except (TypeError, ValueError):
        alike = False
    if not alike:
        raise ValueError(f"the schedule {values[0]!r:.100} has changed")
    return schedule_with(values)


def schedule_with(values: Sequence[object]) -> Schedule:
    """Return the schedule with these values of all columns but the checksum. ValueError: no server writes them."""
    (
        name, when, zone, tube, body, pri, ttr_s, if_absent, once_if_missed, next_at, last_at, last_job, changed_at,
        changed_by,
    ) = values  # fmt: skip
    if not (
        isinstance(name, str)
        and name
        and isinstance(when, str)
        and isinstance(zone, str)
        and isinstance(tube, str)
        and is_tube_name(tube.encode(errors="surrogateescape"))
        and isinstance(body, bytes)
        and isinstance(changed_by, str)
    ):
        raise ValueError("a schedule has a name, a timing, a zone, a tube, a body and a changed_by, which are texts")
    if not (
        is_number(pri, U32_MAX)
        and is_number(ttr_s, U32_MAX)
        and ttr_s > 0
        and (last_job is None or is_number(last_job, COUNTER_MAX))
    ):
        raise ValueError("the pri, the ttr_s or the last_job of the schedule is not a valid number")
    if not (is_flag(if_absent) and is_flag(once_if_missed)):
        raise ValueError("the if_absent or the once_if_missed of the schedule is neither true nor false")
    if not (is_time(next_at) and is_time(changed_at) and (last_at is None or is_time(last_at))):
        raise ValueError("the next_at, the last_at or the changed_at of the schedule is no time in seconds since 1970")
    return Schedule(
        name,
        when,
        zone,
        tube.encode(),
        body,
        pri,
        ttr_s,
        if_absent=bool(if_absent),
        once_if_missed=bool(once_if_missed),
        next_at=float(next_at),
        changed_at=float(changed_at),
        changed_by=changed_by,
        last_at=None if last_at is None else float(last_at),
        last_job=last_job,
    )


def check_schedules(count: int) -> None:
    """Check that there may be so many schedules, after an import. BeanliteError: they are too many."""
    from beanlite.core.scheduler import SCHEDULES_MAX  # noqa: PLC0415 - commands that read a file do without it

    if count > SCHEDULES_MAX:
        raise BeanliteError(f"nothing was imported: there would be {count} schedules; there can be {SCHEDULES_MAX}")


def line_of_schedule(schedule: Schedule) -> str:
    """Return the line of an export."""
    values = {name: value for name, value in zip(NAMES, row_of_schedule(schedule), strict=False) if value is not None}
    del values["body"]
    return line_of("schedule", values | body_of(schedule.body))


def _checksum(values: Sequence[object]) -> int:
    """Return the checksum of these values, which are the same from each database. TypeError: one has a wrong type."""
    body = values[_BODY]
    if not isinstance(body, bytes):
        raise TypeError("a body is bytes")
    others = [int(value) if isinstance(value, bool) else value for value in values if value is not body]
    return crc32(json.dumps(others).encode(), crc32(body))
