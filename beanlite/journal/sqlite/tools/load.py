"""Imports lines of JSON, as written by ``dump``, into a database that no server has open."""

import base64
import json
import sqlite3
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from time import time
from typing import Any, Final
from zlib import crc32

from beanlite.core.job import U32_MAX
from beanlite.core.recurrence import next_after
from beanlite.core.scheduler import BODY_MAX
from beanlite.core.schedules import NAME_MAX, Schedule, is_schedule_name
from beanlite.core.tube import is_tube_name
from beanlite.errors import BeanliteError
from beanlite.journal import policy_rows, schedule_rows
from beanlite.journal.checksum import checksum_of_row
from beanlite.journal.columns import COUNTERS, NAMES, TIMES, as_list
from beanlite.journal.lines import FORMAT, LINES_PER_CALL
from beanlite.journal.note_rows import note_of
from beanlite.journal.policy_rows import policy_of, row_of_policy
from beanlite.journal.schedule_rows import row_of_schedule, schedule_with
from beanlite.journal.sqlite.file.fileformat import refused, text_of
from beanlite.journal.sqlite.file.heartbeat import read_ahead_s
from beanlite.journal.sqlite.file.note_table import SET_NOTE, row_of_note
from beanlite.journal.sqlite.file.policy_tables import SET_POLICY, SET_SCHEDULE
from beanlite.journal.sqlite.file.replay import is_sound
from beanlite.journal.sqlite.file.rows import INLINE_MAX, INSERT_BODY, SET_PAUSE
from beanlite.journal.sqlite.tools.filling import filling
from beanlite.journal.validity import COUNTER_MAX, is_number, is_time

_HAS_OTHER_JOB: Final = "SELECT EXISTS (SELECT 1 FROM jobs WHERE id = ? AND NOT (tube = ? AND crc32 = ?))"
_CHECKSUM: Final = "UPDATE jobs SET row_crc32 = ? WHERE id = ?"
# Ids and counters end below this: a server that counts on never gets to where they would count as damage.
_END: Final = COUNTER_MAX // 2
_COUNTERS: Final = ("buried_seq", *COUNTERS)
# The errors with which SQLite rejects an impossible row.
_WRONG_ROW: Final = (sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_TOOBIG)


@dataclass(frozen=True, slots=True)
class LoadResult:
    """The numbers of jobs, pauses, policies and schedules that were imported, and what is left beside the file."""

    jobs: int
    pauses: int
    policies: int
    schedules: int
    left: str | None
    """What is left beside the file and why: it belongs to it. None if nothing is."""


class _Wrong(Exception):
    """A wrong line; the text says how."""


def load(
    lines: Iterable[bytes], target: Path, *, new_ids: bool = False, progress: Callable[[int], None] | None = None
) -> LoadResult:
    """Import the lines into the database, creating it if it is missing: all of them in one transaction, or none.

    Jobs keep their ids, or with `new_ids` get new ones. Buried jobs are queued behind those already buried. `progress`
    is called with the number of lines read so far. BeanliteError: a line is wrong, or an id is taken. JournalRefused: a
    server has the database open, or it can't be used.
    """
    with filling(target) as queue, refused(target):
        loading = _Loading(queue.connection, new_ids=new_ids)
        loading.load(lines, progress)
        queue.new_schedules.update(loading.schedules)
    return LoadResult(loading.jobs, loading.pauses, loading.policies, len(loading.schedules), queue.leftover)


class _Loading:
    """An import in progress, with the connection whose transaction takes its lines."""

    def __init__(self, connection: sqlite3.Connection, *, new_ids: bool) -> None:
        self._connection = connection
        self._new_ids = new_ids
        (self._last_id,) = connection.execute("SELECT last_id FROM meta").fetchone()
        (self._burials,) = connection.execute("SELECT coalesce(max(buried_seq), 0) FROM jobs").fetchone()
        self._ahead_s = read_ahead_s(connection)
        self._ends = False
        """Whether an "end" line must follow, because there was a "queue" line."""
        self._jobs_of_schedules: dict[int, int | None] = {}
        """The new id of the last job of each schedule, by the one in the lines; None: that job has not occurred."""
        self.jobs = 0
        self.pauses = 0
        self.policies = 0
        self.schedules: dict[str, Schedule] = {}

    def load(self, lines: Iterable[bytes], progress: Callable[[int], None] | None) -> None:
        """Import all lines. BeanliteError: a line is wrong."""
        for number, line in enumerate(lines, 1):
            try:
                self._take(line)
            except (_Wrong, ValueError, TypeError, OverflowError) as error:
                raise BeanliteError(f"nothing was imported: line {number}: {text_of(error)}") from error
            if progress is not None and number % LINES_PER_CALL == 0:
                progress(number)
        if self._ends:
            raise BeanliteError("nothing was imported: the last line is missing, the export was cut short")
        for schedule in self.schedules.values():
            if self._new_ids and schedule.last_job is not None:
                schedule.last_job = self._jobs_of_schedules[schedule.last_job]
            self._connection.execute(SET_SCHEDULE, row_of_schedule(schedule))
        self._check_settings()
        self._connection.execute("UPDATE meta SET last_id = ?", (self._last_id,))

    def _take(self, line: bytes) -> None:
        try:
            values = _DECODER.decode(line.decode())
        except UnicodeDecodeError as error:  # a database file given by mistake is full of such bytes
            raise _Wrong("it is not UTF-8, and so not JSON") from error
        except json.JSONDecodeError as error:
            raise _Wrong(f"it is not JSON: {error.msg} (character {error.pos + 1})") from error
        except RecursionError as error:
            raise _Wrong("it is nested too deeply") from error
        except ValueError as error:  # Python refuses thousands of digits
            raise _Wrong("it has a number of too many digits") from error
        if not isinstance(values, dict):
            raise _Wrong("it is not a JSON object")
        take = {
            "queue": self._begin,
            "end": self._end,
            "pause": self._pause,
            "policy": self._policy,
            "schedule": self._schedule,
            "job": self._job,
        }
        kind = values.pop("kind", None)
        if kind not in take:
            raise _Wrong(f"its kind is {kind!r}, and none of {', '.join(take)}")
        try:
            take[kind](values)
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", None)  # an error of Python's own layer has none
            if code is not None and code & 0xFF not in _WRONG_ROW:
                raise
            raise _Wrong(text_of(error)) from error

    def _begin(self, values: dict[str, Any]) -> None:
        if self._ends:
            raise _Wrong("an export begins here, and the one before it was cut short")
        if values.get("format") != FORMAT:
            raise _Wrong(f"its format is {values.get('format')!r}, and this beanlite knows {FORMAT}")
        if not is_number(values.get("last_id"), _END - 1):
            raise _Wrong("its last_id is not a valid number")
        if not self._new_ids:
            self._last_id = max(self._last_id, values["last_id"])
        self._ends = True

    def _end(self, values: dict[str, Any]) -> None:
        del values
        self._ends = False

    def _pause(self, values: dict[str, Any]) -> None:
        tube, pause_s, until = values.get("tube"), values.get("pause_s"), self._by_clock(values.get("until"))
        is_tube = isinstance(tube, str) and is_tube_name(tube.encode())
        if not (is_tube and is_number(pause_s, U32_MAX) and until is not None):
            raise _Wrong("the pause is not valid")
        self._connection.execute(SET_PAUSE, (tube, pause_s, until))
        self.pauses += 1

    def _policy(self, values: dict[str, Any]) -> None:
        _expect("policy", values, policy_rows.NAMES)
        policy = policy_of([values.get(name) for name in policy_rows.NAMES])
        self._connection.execute(SET_POLICY, row_of_policy(policy))
        self.policies += 1

    def _schedule(self, values: dict[str, Any]) -> None:
        values["body"] = _pop_body("schedule", values)
        _expect("schedule", values, schedule_rows.NAMES)
        schedule = schedule_with([values.get(name) for name in schedule_rows.NAMES])
        _check_schedule(schedule)
        if schedule.last_job is not None:
            if schedule.last_job >= _END:
                raise _Wrong("its last_job is not a valid number")
            if self._new_ids:
                self._jobs_of_schedules.setdefault(schedule.last_job, None)
            else:
                self._last_id = max(self._last_id, schedule.last_job)
                last_job = (schedule.last_job, schedule.tube.decode(), crc32(schedule.body))
                if self._connection.execute(_HAS_OTHER_JOB, last_job).fetchone()[0]:  # its own follows, if at all
                    schedule.last_job = None
        self.schedules[schedule.name] = schedule

    def _check_settings(self) -> None:
        """Check that a server would take as many policies and schedules as there are now. BeanliteError."""
        if self.policies:
            patterns = self._connection.execute("SELECT pattern FROM policies").fetchall()
            policy_rows.check_patterns([pattern for (pattern,) in patterns])
        if self.schedules:
            schedule_rows.check_schedules(self._connection.execute("SELECT count(*) FROM schedules").fetchone()[0])

    def _job(self, values: dict[str, Any]) -> None:
        body = _pop_body("job", values)
        note = values.pop("note", None)
        _expect("job", values, NAMES)
        if self._new_ids:
            old_id, values["id"] = values.get("id"), self._last_id + 1
            if isinstance(old_id, int) and old_id in self._jobs_of_schedules:
                self._jobs_of_schedules[old_id] = values["id"]
        elif not is_number(values.get("id"), _END - 1):
            raise _Wrong("its id is missing or not valid; --new-ids gives it one")
        if values.get("ttr_s") == 0:
            raise _Wrong("its ttr_s is 0, and a job has at least a second")
        job_id = values["id"]
        if values.get("buried_seq") is not None:
            values["buried_seq"] += self._burials
        self._check_numbers(values)
        self._insert(values, body)
        if not is_sound(self._connection, job_id):
            raise _Wrong("the job has impossible values")
        if note is not None:
            self._connection.execute(SET_NOTE, row_of_note(*note_of(job_id, note)))
        self._last_id = max(self._last_id, job_id)
        self.jobs += 1

    def _check_numbers(self, values: dict[str, Any]) -> None:
        """Check the counters, and check and convert the times."""
        for name in _COUNTERS:
            if isinstance(values.get(name), int | float) and not 0 <= values[name] < _END:
                raise _Wrong(f"its {name} is not a valid number")
        for name in TIMES:
            if values.get(name) is not None:
                values[name] = self._by_clock(values[name])
                if values[name] is None:
                    raise _Wrong(f"its {name} is not a valid time in seconds since 1970")

    def _by_clock(self, utc_s: object) -> float | None:
        """Return the time by the clock of the file; None: it is no time that can be."""
        if not isinstance(utc_s, float | int):
            return None
        at_s = utc_s + self._ahead_s
        return at_s if is_time(at_s) else None

    def _insert(self, values: dict[str, Any], body: bytes) -> None:
        is_large = len(body) > INLINE_MAX
        names = ", ".join(values)  # known to be columns of the table
        values_of_row = (*values.values(), crc32(body), None if is_large else body)
        try:
            row = self._connection.execute(
                f"""
                INSERT INTO jobs ({names}, crc32, body) VALUES ({", ".join("?" * len(values_of_row))})
                RETURNING {as_list()}
                """,
                values_of_row,
            ).fetchone()
        except sqlite3.IntegrityError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY:
                raise _Wrong(f"there is a job {values['id']} already; --new-ids gives each a new one") from error
            if error.sqlite_errorcode == sqlite3.SQLITE_CONSTRAINT_NOTNULL:  # "NOT NULL constraint failed: jobs.pri"
                raise _Wrong(f"its {str(error).rpartition('.')[2]} is missing") from error
            raise
        self._connection.execute(_CHECKSUM, (checksum_of_row(row), values["id"]))
        if is_large:
            self._connection.execute(INSERT_BODY, (values["id"], body))


def _expect(kind: str, values: dict[str, Any], names: tuple[str, ...]) -> None:
    """Raise _Wrong if a line has a value that is not one of these."""
    unknown = values.keys() - set(names)
    if unknown:
        raise _Wrong(f"a {kind} has no {min(unknown)}")


def _check_schedule(schedule: Schedule) -> None:
    """Check what a server checks when a schedule is set, and not when it starts. _Wrong, ValueError: it is refused."""
    if not is_schedule_name(schedule.name):
        raise _Wrong(f"a schedule has a name of 1 to {NAME_MAX} printable characters, none of them a blank")
    if len(schedule.body) > BODY_MAX:
        raise _Wrong(f"the body of a schedule's job has at most {BODY_MAX} bytes")
    next_after(schedule.when, schedule.zone, time())


def _pop_body(kind: str, values: dict[str, Any]) -> bytes:
    if ("body" in values) == ("base64" in values):
        raise _Wrong(f'a {kind} has either a "body" or a "base64"')
    if "body" in values:
        body = values.pop("body")
        if not isinstance(body, str):
            raise _Wrong('a "body" is a text')
        return body.encode()
    return base64.b64decode(values.pop("base64"), validate=True)


def _refuse(constant: str) -> None:
    raise _Wrong(f"{constant} is not a number")


_DECODER: Final = json.JSONDecoder(parse_constant=_refuse)
