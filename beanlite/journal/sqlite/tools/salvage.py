"""Saves the sound contents of a damaged file: every job that is as it was written, wherever in the file it is."""

import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Final
from zlib import crc32

from beanlite.core.job import U32_MAX
from beanlite.core.policies import KEYS
from beanlite.core.tube import is_tube_name
from beanlite.errors import BeanliteError, JournalRefused
from beanlite.journal import policy_rows, schedule_rows
from beanlite.journal.checksum import checksum_of_row
from beanlite.journal.columns import DEFAULTS, NAMES, TIMES
from beanlite.journal.migrations import find_migrations
from beanlite.journal.note_rows import checksum_of_note, note_of
from beanlite.journal.policy_rows import policy_of, row_of_policy
from beanlite.journal.schedule_rows import row_of_schedule, schedule_of
from beanlite.journal.sqlite.file.fileformat import open_regular
from beanlite.journal.sqlite.file.heartbeat import last_seen
from beanlite.journal.sqlite.file.migrations import columns_of_jobs
from beanlite.journal.sqlite.file.note_table import SET_NOTE, row_of_note
from beanlite.journal.sqlite.file.policy_tables import SET_POLICY, SET_SCHEDULE
from beanlite.journal.sqlite.file.replay import is_sound
from beanlite.journal.sqlite.file.rows import INLINE_MAX, INSERT_BODY, INSERT_JOB
from beanlite.journal.sqlite.file.wholefile import lock_servers_out
from beanlite.journal.sqlite.tools.btree import INDEX, LEAF_TABLE, OwnRows, Pages, Spans, Value
from beanlite.journal.sqlite.tools.filling import filling
from beanlite.journal.sqlite.tools.promise import meta_of, said_of
from beanlite.journal.validity import COUNTER_MAX, is_number

# The span of a page that can't be reached in any b-tree because another page is damaged.
_ANYWHERE: Final = ((None, 0, 0),)
_BODY_WIDTH: Final = 2
_NOTE_WIDTH: Final = 3
_PAUSE_WIDTH: Final = 4
_POLICY_WIDTH: Final = len(policy_rows.NAMES) + 1
_SCHEDULE_WIDTH: Final = len(schedule_rows.NAMES) + 1
_SERVER_WIDTH: Final = 11
# The small tables, also those of older versions.
_SMALL: Final = {
    "pauses": OwnRows(INDEX, {3, _PAUSE_WIDTH}),
    "policies": OwnRows(INDEX, {_POLICY_WIDTH}),
    "schedules": OwnRows(INDEX, {_SCHEDULE_WIDTH}),
    "server": OwnRows({LEAF_TABLE}, {7, _SERVER_WIDTH}),
}
# The tables on whose pages there may be bodies, even if the disk has exchanged some of them.
_OURS: Final = {
    "sqlite_schema", "jobs", "bodies", "pauses", "policies", "schedules", "notes", "meta", "server", "totals",
    "history",
}  # fmt: skip
_KEYS: Final = [[key] for key in KEYS]
_SCHEDULE_TYPES: Final = (
    str, str, str, str, bytes, int, int, int, int, int | float, int | float | None, int | None, int | float, str, int,
)  # fmt: skip
# How far above the last known id new ids start, if it is unknown which ids have been given out.
_GAP: Final = 1_000_000
_PAGES_PER_CALL: Final = 100
_INSERT_PAUSE: Final = "INSERT OR IGNORE INTO pauses (tube, pause_s, until) VALUES (?, ?, ?)"
_INSERT_NOTE: Final = SET_NOTE.replace("REPLACE", "INSERT OR IGNORE")
# A job that is lost has no note, either.
_DELETE_STRAY_NOTES: Final = "DELETE FROM notes WHERE id NOT IN (SELECT id FROM jobs)"
_INSERT_POLICY: Final = SET_POLICY.replace("REPLACE", "INSERT OR IGNORE")
_INSERT_SCHEDULE: Final = SET_SCHEDULE.replace("REPLACE", "INSERT OR IGNORE")
# Of the server's row, only the values by which the next server sets its clock.
_INSERT_SERVER: Final = """
    REPLACE INTO server (one, version, pid, address, started_at, seen_at, ahead_s, boot, offset_ns)
    VALUES (1, '', 0, '', :seen_at, :seen_at, :ahead_s, :boot, :offset_ns)
"""


def _time_said(time_s: float) -> int:
    """Return a time as in ``said``: all its bits, as a whole number (see migrations/0003_checksums.sql)."""
    return int(time_s * 4194304)


def _with_times(columns: dict[str, Value], times: Iterable[str]) -> dict[str, Value]:
    """Return the columns with floats for these times: SQLite stores one without a fraction as an integer."""
    values = ((name, columns[name]) for name in times)
    return {**columns, **{name: float(value) for name, value in values if isinstance(value, int)}}


def _is_of_pause(tube: Value, said: Value) -> bool:
    """Whether this is a row of the pauses table, even if a value has changed, and not one of a foreign table."""
    text = said.decode(errors="replace") if isinstance(said, bytes) else said
    if not isinstance(text, str):
        return False
    return text.count(" ") == _PAUSE_WIDTH - 2 or (isinstance(tube, str) and tube != "" and text.startswith(tube))


def _is_of_policy(pattern: Value, said: Value) -> bool:
    """Whether this is a row of the policies table, even if a value has changed, and not one of a foreign table."""
    text = said.decode(errors="replace") if isinstance(said, bytes) else said
    if not isinstance(text, str):
        return False
    return text.split(" ")[1:2] in _KEYS or (isinstance(pattern, str) and text.startswith(f"{pattern} "))


def _is_of_schedule(values: list[Value]) -> bool:
    """Whether this is a row of the schedules table, even if a value has changed, and not one of a foreign table."""
    return (
        sum(isinstance(value, types) for value, types in zip(values, _SCHEDULE_TYPES, strict=True)) >= len(values) - 1
    )


@dataclass
class SalvageResult:
    """What was saved to the new database, and what was lost."""

    jobs: int = 0
    pauses: int = 0
    policies: int = 0
    schedules: int = 0
    last_id: int | None = None
    """The last id given out, according to the file; None: that record is damaged."""
    lost: list[int] = field(default_factory=list)
    """The ids of jobs of which only a part is left."""
    lost_pauses: int = 0
    lost_policies: int = 0
    lost_schedules: int = 0
    lost_notes: int = 0
    lost_clock: bool = False
    """Whether it is unknown by which clock the times are."""
    unreadable: int = 0
    """The number of pages in use that can't be read or are malformed. It is unknown whether they held jobs."""
    jobs_at_stop: int | None = None
    """The number of jobs at the orderly stop, if the file has not been served since."""
    doubtful: list[int] = field(default_factory=list)
    """The ids of saved jobs that may have been deleted before, because another page is identical to theirs."""
    left: str | None = None
    """What is left beside the new database and why: it belongs to it. None if nothing is."""

    @property
    def is_all(self) -> bool:
        """Whether nothing is known to be lost, and nothing is in doubt."""
        lost_rows = self.lost_pauses + self.lost_policies + self.lost_schedules + self.lost_notes
        is_whole = not (self.lost or lost_rows or self.lost_clock or self.unreadable or self.last_id is None)
        return is_whole and not self.doubtful and self.jobs_at_stop in {None, self.jobs}


def salvage(source: Path, dest: Path, progress: Callable[[int], None] | None = None) -> SalvageResult:
    """Create a new database of everything sound in the source; the source is only read.

    `progress` is given the percentage of the work done. JournalRefused: a server holds the source, or it contains
    nothing of ours. BeanliteError: `dest` exists, or something can't be read or written.
    """
    source = Path(os.path.realpath(source))
    if os.path.lexists(dest):
        raise BeanliteError(f"{dest} exists; name a file that does not")
    with _lock(source), closing(_open(source)) as pages, filling(dest) as queue:
        saving = _Saving(pages, queue.connection)
        saving.save(progress)
        result = saving.result
        settings = result.pauses + result.policies + result.schedules
        if not (result.jobs or result.lost or settings or result.last_id is not None):
            raise JournalRefused(f"{source} has nothing that can be saved")
    result.left = queue.leftover
    return result


def _open(source: Path) -> Pages:
    try:
        return Pages(source)
    except OSError as error:
        raise BeanliteError(f"{source} can't be read: {error.strerror}") from error


@contextmanager
def _lock(source: Path) -> Iterator[None]:
    """Lock servers out of the file. JournalRefused: a server holds it. BeanliteError: it can't be opened."""
    try:
        descriptor = open_regular(source)
    except OSError as error:
        raise BeanliteError(f"{source} can't be opened: {error.strerror}") from error
    with os.fdopen(descriptor):
        try:
            lock_servers_out(descriptor)
        except BlockingIOError as error:
            raise JournalRefused(f"a server or another command holds {source}; stop it") from error
        yield


class _Saving:
    """One pass over the pages to find the bodies, pauses, meta and clock, and a second one to save the jobs."""

    def __init__(self, pages: Pages, connection: sqlite3.Connection) -> None:
        self._pages = pages
        self._connection = connection
        migrations = find_migrations()
        versions = [columns_of_jobs(migrations[:number]) for number in range(1, len(migrations) + 1)]
        self._columns, self._widths = versions[-1], set(map(len, versions))
        self._bodies: dict[int, list[int]] = {}
        """The pages with the body of each job, normally one."""
        self._unchecked_id = COUNTER_MAX
        self._saved_ids: set[int] = set()
        self._lost_ids: set[int] = set()
        self._copies: set[int] = set()
        """Pages that have an identical copy, but may be in their proper place."""
        self._on_copies: set[int] = set()
        self._has_clock = False
        self.result = SalvageResult()

    def save(self, progress: Callable[[int], None] | None) -> None:
        """Save everything that is sound."""
        in_use = self._pages.in_use()
        copies = self._pages.copies(in_use)
        self._spans = spans = self._pages.spans(in_use)
        misplaced = self._misplaced_pages(copies, in_use, spans)
        self._copies = copies - misplaced
        self._pages.unreadable |= misplaced | self._pages.overwritten(in_use, _SMALL)
        in_use = [number for number in in_use if number not in misplaced]
        for step, look in enumerate((self._note, self._save)):
            for position, number in enumerate(in_use):
                for rowid, values in self._pages.rows(number):
                    look(number, rowid, values)
                if progress is not None and position % _PAGES_PER_CALL == 0:
                    progress(50 * step + 50 * position // len(in_use))
        result = self.result
        foreign = {number for number, each in spans.items() if not any(table in _OURS for table, _, _ in each)}
        alone = {job_id for job_id, on in self._bodies.items() if not foreign.issuperset(on)}
        result.lost = sorted((self._lost_ids | alone) - self._saved_ids)
        result.jobs = len(self._saved_ids)
        if result.jobs_at_stop is not None and not self._has_clock:  # an orderly stop always records the clock
            result.lost_clock = True
        if result.jobs != result.jobs_at_stop:
            result.doubtful = sorted(self._on_copies)
        result.unreadable = len(self._pages.unreadable)
        given_out = [*result.lost, *(row[0] or 0 for row in self._connection.execute("SELECT last_job FROM schedules"))]
        last_id = max([0, *self._saved_ids, *(job_id for job_id in given_out if job_id < COUNTER_MAX - _GAP)])
        last_id = last_id + _GAP if result.last_id is None else max(last_id, result.last_id)
        self._connection.execute("UPDATE meta SET last_id = ?", (last_id,))
        self._connection.execute(_DELETE_STRAY_NOTES)

    def _misplaced_pages(self, copies: set[int], in_use: list[int], spans: Spans) -> set[int]:
        """Return the pages that the disk has written in place of others: if they are old, their jobs were deleted."""
        if not copies:
            return copies
        inner = self._pages.inner(in_use)
        return {
            number
            for number in copies
            if number in inner or not any(self._fits(number, *span) for span in spans.get(number, _ANYWHERE))
        }

    def _fits(self, number: int, table: Value, above: int, to: int) -> bool:
        """Whether the rows of a page can belong to this span of this table, as far as jobs and bodies are concerned."""
        widths = {"jobs": self._widths, "bodies": {_BODY_WIDTH}}.get(str(table))
        others = {_BODY_WIDTH, *self._widths}
        return all(
            table is None or (above < rowid <= to and (len(row) in widths if widths else len(row) not in others))
            for rowid, row in self._pages.rows(number)
        )

    def _note(self, number: int, rowid: int, values: list[Value]) -> None:
        width = len(values)
        if width == _BODY_WIDTH and values[0] is None and isinstance(values[1], bytes) and rowid > 0:
            self._bodies.setdefault(rowid, []).append(number)
        elif width == _NOTE_WIDTH and values[0] is None:
            self._save_note(number, rowid, values)
        elif width == _PAUSE_WIDTH:
            self._save_pause(values)
        elif width == _POLICY_WIDTH and isinstance(values[0], str | bytes):
            self._save_policy(values)
        elif width == _SCHEDULE_WIDTH:
            self._save_schedule(values)
        elif width == _SERVER_WIDTH and rowid == 1 and values[0] is None:
            self._save_clock(values)
        elif (meta := meta_of(values)) is not None:
            self.result.last_id, self._unchecked_id, self.result.jobs_at_stop = meta

    def _save_note(self, number: int, rowid: int, values: list[Value]) -> None:
        _, text, checksum = values
        try:
            job_id, note = note_of(rowid, text)
        except ValueError:
            is_sound = False
        else:
            is_sound = checksum_of_note(job_id, note) == checksum
        if is_sound:
            self._connection.execute(_INSERT_NOTE, row_of_note(job_id, note))
        elif any(table == "notes" for table, _, _ in self._spans.get(number, ())):  # a foreign table may look the same
            self.result.lost_notes += 1

    def _save_pause(self, values: list[Value]) -> None:
        tube, pause_s, until, said = values
        if not _is_of_pause(tube, said):
            return
        if (
            isinstance(tube, str)
            and is_tube_name(tube.encode())
            and is_number(pause_s, U32_MAX)
            and isinstance(until, int | float)
            and isfinite(until)
            and said == said_of([tube, pause_s, _time_said(until)])
        ):
            self._connection.execute(_INSERT_PAUSE, (tube, pause_s, float(until)))
            self.result.pauses += 1
        else:
            self.result.lost_pauses += 1

    def _save_policy(self, values: list[Value]) -> None:
        if not _is_of_policy(values[0], values[-1]):
            return
        try:
            pattern, key, value, changed_at, changed_by = row_of_policy(policy_of(values[:-1]))
        except ValueError:
            self.result.lost_policies += 1
            return
        if values[-1] == said_of([pattern, key, value, _time_said(changed_at), changed_by]):
            self._connection.execute(_INSERT_POLICY, (pattern, key, value, changed_at, changed_by))
            self.result.policies += 1
        else:
            self.result.lost_policies += 1

    def _save_schedule(self, values: list[Value]) -> None:
        if not _is_of_schedule(values):
            return
        try:
            names = (*schedule_rows.NAMES, "crc32")
            columns = _with_times(dict(zip(names, values, strict=True)), schedule_rows.TIMES)
            row = row_of_schedule(schedule_of(list(columns.values())))
        except ValueError:
            self.result.lost_schedules += 1
        else:
            self._connection.execute(_INSERT_SCHEDULE, row)
            self.result.schedules += 1

    def _save_clock(self, values: list[Value]) -> None:
        self._has_clock = True
        seen_at, _, ahead_s, boot, offset_ns, said = values[5:]
        if (
            isinstance(seen_at, int | float)
            and isinstance(ahead_s, int | float)
            and isinstance(boot, str | None)
            and last_seen(seen_at, ahead_s, None, offset_ns) is not None
            and said == said_of([_time_said(seen_at), _time_said(ahead_s), boot, offset_ns])
        ):
            clock = {"seen_at": seen_at, "ahead_s": ahead_s, "boot": boot, "offset_ns": offset_ns}
            self._connection.execute(_INSERT_SERVER, clock)
        else:
            self.result.lost_clock = True

    def _save(self, number: int, rowid: int, values: list[Value]) -> None:
        if len(values) not in self._widths or values[0] is not None or rowid in self._saved_ids:
            return
        # An older version's row lacks the last columns.
        columns = DEFAULTS | {"row_crc32": None} | dict(zip(self._columns, values, strict=False)) | {"id": rowid}
        if 0 < rowid < COUNTER_MAX and self._save_job(rowid, columns):
            self._saved_ids.add(rowid)
            if number in self._copies:
                self._on_copies.add(rowid)
        else:
            self._lost_ids.add(rowid)

    def _save_job(self, job_id: int, columns: dict[str, Value]) -> bool:
        columns = _with_times(columns, TIMES)
        row = tuple(columns[name] for name in NAMES)
        checksum = checksum_of_row(row)
        is_unchecked = columns["row_crc32"] is None and job_id <= self._unchecked_id
        body = self._body(job_id, columns["body"], columns["crc32"])
        if checksum is None or body is None or not (is_unchecked or checksum == columns["row_crc32"]):
            return False
        is_large = len(body) > INLINE_MAX
        try:
            self._connection.execute(INSERT_JOB, (*row, checksum, crc32(body), None if is_large else body))
            if not is_sound(self._connection, job_id):
                self._connection.execute("DELETE FROM jobs WHERE id = ?", (job_id,))
                return False
        except sqlite3.IntegrityError:  # no server would write such a row
            return False
        if is_large:
            self._connection.execute(INSERT_BODY, (job_id, body))
        return True

    def _body(self, job_id: int, inline: Value, checksum: Value) -> bytes | None:
        """Return the body that was put; None if it can't be found."""
        candidates: Iterable[Value] = (
            (inline,)
            if inline is not None
            else (
                each[1]
                for number in self._bodies.get(job_id, ())
                for rowid, each in self._pages.rows(number)
                if rowid == job_id and len(each) == _BODY_WIDTH
            )
        )
        for body in candidates:
            if isinstance(body, bytes) and crc32(body) == checksum:
                return body
        return None
