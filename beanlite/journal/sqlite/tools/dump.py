"""Exports a database file as the lines of ``journal/lines.py``; ``load`` is the inverse."""

import os
import sqlite3
from collections.abc import Callable, Generator
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any, BinaryIO, Final
from zlib import crc32

from beanlite.errors import BeanliteError
from beanlite.journal.checksum import checksum_of_row
from beanlite.journal.columns import NAMES, TIMES, as_list
from beanlite.journal.lines import FORMAT, body_of, line_of, write_lines
from beanlite.journal.policy_rows import line_of_policy
from beanlite.journal.schedule_rows import line_of_schedule
from beanlite.journal.sqlite.file.fileformat import damaged, refused
from beanlite.journal.sqlite.file.heartbeat import read_ahead_s
from beanlite.journal.sqlite.file.note_table import check_notes
from beanlite.journal.sqlite.file.replay import check_count, read_state, read_unchecked_id
from beanlite.journal.sqlite.file.wholefile import not_linked, unserved, written_whole
from beanlite.journal.sqlite.tools.verify import reading_whole

_PAUSES: Final = "SELECT tube, pause_s, until FROM pauses ORDER BY tube"
_JOBS: Final = f"""
    SELECT {as_list()}, row_crc32, crc32, coalesce(body, (SELECT bodies.body FROM bodies WHERE bodies.id = jobs.id))
    FROM jobs ORDER BY id
"""
_NOTE: Final = "SELECT note FROM notes WHERE id = ?"


def export(source: Path, sink: BinaryIO, progress: Callable[[int], None] | None = None) -> int:
    """Write the lines of a database, served or not, and return their number; `progress` is given it now and then.

    JournalRefused: the source is not ours, or damaged. OSError: writing to the sink has failed.
    """
    source = Path(os.path.realpath(source))
    with (
        reading_whole(source) as connection,
        closing(dump(connection, source)) as lines,  # or SQLite would leave a -wal if this is interrupted
    ):
        return write_lines(lines, sink, progress)


def export_to_file(write: Callable[[BinaryIO], int], dest: Path, source: Path | None, *, replace: bool = False) -> int:
    """Have ``write`` write to a file of mode 0600, which appears when it is complete; returns what it returns.

    ``source`` is the file from which it reads. BeanliteError: `dest` exists and is not to be replaced, is the source or
    a live database, or can't be written. Raises what ``write`` raises as well.
    """
    path = not_linked(dest)
    try:
        with (
            unserved(path, source) if replace else nullcontext() as there,
            written_whole(path, replace=there) as partial,
            partial.open("wb") as sink,
        ):
            return write(sink)
    except OSError as error:
        raise BeanliteError(f"nothing was exported to {dest}: {error.strerror}") from error


def dump(connection: sqlite3.Connection, path: Path) -> Generator[str]:
    """Yield the lines of a database, a snapshot of its state: the jobs come last, by ascending id.

    JournalRefused: the database is damaged.
    """
    with refused(path):
        connection.execute("BEGIN")
        state = read_state(connection, path)
        yield line_of("queue", {"format": FORMAT, "last_id": state.last_id})
        ahead_s = read_ahead_s(connection)
        for tube, pause_s, until in connection.execute(_PAUSES):
            yield line_of("pause", {"tube": tube, "pause_s": pause_s, "until": until - ahead_s})
        yield from map(line_of_policy, state.policies)
        yield from map(line_of_schedule, state.schedules)
        unchecked_id = read_unchecked_id(connection)
        has_notes = check_notes(connection, path) > 0
        count = last_id = 0
        for *values, of_row, checksum, body in connection.execute(_JOBS):
            is_unchecked = of_row is None and values[0] <= unchecked_id
            if not is_unchecked and checksum_of_row(tuple(values)) != of_row:
                raise damaged(path, f"the row of job {values[0]} has changed")
            if values[0] <= last_id:  # a page is in the place of another
                raise damaged(path, f"job {values[0]} stands behind {last_id}")
            last_id = values[0]
            if not isinstance(body, bytes) or crc32(body) != checksum:
                raise damaged(path, f"the body of job {values[0]} has changed")
            job = {name: value for name, value in zip(NAMES, values, strict=True) if value is not None}
            if not _is_whole(job):
                raise damaged(path, f"the row of job {values[0]} has changed")
            job |= {name: job[name] - ahead_s for name in TIMES if name in job}
            if has_notes:
                for (note,) in connection.execute(_NOTE, (values[0],)):
                    job["note"] = note
            yield line_of("job", job | body_of(body))
            count += 1
        check_count(connection, path, count)
        yield line_of("end", {})


def _is_whole(job: dict[str, Any]) -> bool:
    """Whether a job has exactly the values that its state requires: the checksum can't tell some values from NULL."""
    state = job.get("state")
    return (
        ("due_at" in job) == (state in {"delayed", "reserved"})
        and ("buried_seq" in job) == (state == "buried")
        and ("holder" in job) == ("holder_conn" in job)
        and all(isinstance(job[name], float | int) for name in TIMES if name in job)
        and state is not None
    )
