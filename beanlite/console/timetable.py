"""Schedules, with what keeps them from putting jobs, as far as that shows in what the server tells."""

import time
from itertools import islice
from typing import Final

from beanlite.console.filters import Record
from beanlite.console.listing import everything, records_of
from beanlite.console.live import Live
from beanlite.console.several import Servers, Several, named
from beanlite.core.recurrence import next_after

# A server puts a job at its time, unless it refuses it: then it tries again for a minute, and the time stays the next
# one. By how much the clocks of the two machines may differ.
_LATE_S: Final = 20.0
# By how much a job may be early, as UTC in seconds is not exact.
_EARLY_S: Final = 0.01


def of_all(servers: Servers) -> list[Record]:
    """Return the schedules of all servers, as ``of_one`` does."""
    replies = servers.each(of_one)
    if not isinstance(servers, Several):
        return next(iter(replies.values()))
    return [row for name, rows in replies.items() for row in named(name, rows)]


def of_one(live: Live, most: int | None = None) -> list[Record]:
    """Return the schedules of a server, or the first ones.

    Each has ``waits_for``, what keeps its next job from being put, and ``left_out_at``, the first time since its last
    job, or since it was set, at which none was put; or None.
    """
    rows = list(islice(records_of(live.list_schedules, {}, "schedules"), most))
    awaited = [row["last_job"] for row in rows if row["if_absent"] and row["last_job"] is not None]
    jobs = everything(live.list_jobs, {"ids": awaited}, "jobs") if awaited else ()
    states = {job["id"]: job["state"] for job in jobs}
    now_s = time.time()
    return [
        {
            **row,
            "waits_for": _waits_for(row, states.get(row["last_job"]) if row["if_absent"] else None, now_s),
            "left_out_at": _left_out_at(row),
        }
        for row in rows
    ]


def _waits_for(row: Record, state: str | None, now_s: float) -> str | None:
    """Return what a schedule waits for, if its last job, which it waits for, is in a state."""
    if state is not None:
        return f"job {row['last_job']} ({state})"
    if row["error"] is None and row["next_at"] < now_s - _LATE_S:
        return "puts, which the tube or the server refuses"
    return None


def _left_out_at(row: Record) -> float | None:
    since_s = max(row["changed_at"], row["last_at"] or 0.0) + _EARLY_S
    try:
        first_at = next_after(row["when"], row["zone"], since_s)
    except ValueError:  # this machine does not have the zone
        return None
    return first_at if first_at < row["next_at"] else None
