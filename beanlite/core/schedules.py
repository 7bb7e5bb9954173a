"""Schedules: jobs that the server puts by itself, again and again."""

from __future__ import annotations

from typing import Final

NAME_MAX: Final = 128  # characters
# What becomes of ticks that were missed.
SKIP: Final = "skip"
ONCE: Final = "once"


def is_schedule_name(name: str) -> bool:
    """Whether a schedule may have this name: 1 to NAME_MAX printable characters, none of them a blank."""
    return 1 <= len(name) <= NAME_MAX and name.isprintable() and " " not in name


class Schedule:
    """A job that is put at certain times, and when that is next. Times are UTC, in seconds since 1970."""

    __slots__ = (
        "body",
        "changed_at",
        "changed_by",
        "if_absent",
        "last_at",
        "last_job",
        "name",
        "next_at",
        "once_if_missed",
        "pri",
        "ttr_s",
        "tube",
        "when",
        "zone",
    )

    def __init__(
        self,
        name: str,
        when: str,
        zone: str,
        tube: bytes,
        body: bytes,
        pri: int,
        ttr_s: int,
        *,
        if_absent: bool,
        once_if_missed: bool,
        next_at: float,
        changed_at: float,
        changed_by: str,
        last_at: float | None = None,
        last_job: int | None = None,
    ) -> None:
        self.name = name
        self.when = when
        """Five fields of cron, or ``every`` with a duration."""
        self.zone = zone
        """The zone in which the fields of cron are read, as the IANA names it."""
        self.tube = tube
        self.body = body
        self.pri = pri
        self.ttr_s = ttr_s
        self.if_absent = if_absent
        """Nothing is put while the last job of this schedule is still there."""
        self.once_if_missed = once_if_missed
        """What was missed while no server ran is put once, at the start; otherwise not at all."""
        self.next_at = next_at
        self.last_at = last_at
        """When it last put a job; None: never."""
        self.last_job = last_job
        """The id of that job."""
        self.changed_at = changed_at
        self.changed_by = changed_by
