"""Reads the whole state back at the start."""

import sqlite3
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from beanlite.core.job import U32_MAX
from beanlite.core.policies import PolicyRow
from beanlite.core.restore import BODY_AT, CRC32_AT, FAR_NS, StoredJob
from beanlite.core.schedules import Schedule
from beanlite.core.tube import is_tube_name
from beanlite.host.clock import EPOCH_S, clock_ns
from beanlite.journal.checksum import find_changed
from beanlite.journal.columns import COUNTERS, TEXTS, as_list, stored_job
from beanlite.journal.sqlite.file.fileformat import damaged, refused, text_of
from beanlite.journal.sqlite.file.heartbeat import read_last_seen
from beanlite.journal.sqlite.file.migrations import read_version
from beanlite.journal.sqlite.file.policy_tables import read_policies, read_schedules
from beanlite.journal.validity import COUNTER_MAX, is_number

# The smallest rowid, so that only one possible id is not above it; only damage makes an id negative.
BELOW_ALL = -(1 << 63)
_ABOVE_ALL = (1 << 63) - 1
# The most jobs read at a time, and the most bytes of large bodies, though always at least one body.
_CHUNK = 1000
_CHUNK_BYTES = 4 << 20
_ABOVE = "FROM jobs WHERE id > ? ORDER BY id"
_LARGE_BODY = "(SELECT {} FROM bodies WHERE bodies.id = jobs.id)"


def _read(body: str) -> str:
    return stored_job(
        tube="CAST(tube AS BLOB)", time=f"CAST(({{}} - {EPOCH_S}) * 1e9 AS INTEGER)", body=body, row_crc32="row_crc32"
    )


_BODY = f"coalesce(body, {_LARGE_BODY.format('bodies.body')})"
_JOBS = f"SELECT {_read(_BODY)} {_ABOVE}"
# SQLite determines the size of a body without reading it.
_SIZE = f"coalesce(length(body), {_LARGE_BODY.format('length(bodies.body)')})"
_JOBS_WITHOUT_BODIES = f"SELECT {_read(_SIZE)} {_ABOVE}"
_LARGE = "SELECT id, coalesce(length(body), 0) FROM bodies WHERE id > ? ORDER BY id LIMIT ?"
_COUNT_BETWEEN = "SELECT count(*) FROM (SELECT 1 FROM jobs WHERE id > ? AND id < ? LIMIT ?)"
# The conditions that a row written by a server meets, keyed by the columns that each is about. Only damage can have
# broken one, but SQLite does not check STRICT types when it reads rows, and rows of older versions have no checksum.
_CONDITIONS = {
    "tube": "typeof(tube) = 'text'",
    "pri, delay_s or ttr_s": """
        typeof(pri) = 'integer' AND typeof(delay_s) = 'integer' AND typeof(ttr_s) = 'integer'
        AND min(pri, delay_s, ttr_s) >= 0 AND max(pri, delay_s, ttr_s) <= :u32_max
    """,
    "a counter": f"""
        {" AND ".join(f"typeof({name}) = 'integer'" for name in COUNTERS)}
        AND min({as_list(COUNTERS)}) >= 0 AND max({as_list(COUNTERS)}) < :counter_max
    """,
    "state, due_at or buried_seq": """
        typeof(coalesce(buried_seq, 0)) = 'integer' AND coalesce(buried_seq, 0) < :counter_max
        AND CASE state WHEN 'ready' THEN due_at IS NULL AND buried_seq IS NULL
                       WHEN 'delayed' THEN typeof(due_at) = 'real' AND buried_seq IS NULL
                       WHEN 'reserved' THEN typeof(due_at) = 'real' AND buried_seq IS NULL
                       WHEN 'buried' THEN due_at IS NULL AND typeof(buried_seq) = 'integer'
                       ELSE 0 END
    """,
    "created_at or since": "typeof(created_at) = 'real' AND typeof(since) IN ('real', 'null')",
    " or ".join(TEXTS): f"""
        {" AND ".join(f"typeof({name}) IN ('text', 'null')" for name in TEXTS)}
        AND (why IS NULL OR state = 'buried')
        AND typeof(holder) || typeof(holder_conn) IN ('textinteger', 'nullnull')
    """,
}
_SOUND = " AND ".join(f"({each})" for each in _CONDITIONS.values())
# A job without its body, and whether it meets each condition.
_PARTS = f"SELECT {_read('0')}, {', '.join(_CONDITIONS.values())} FROM jobs ORDER BY id"
_WIDTH = len(StoredJob._fields)
_EACH_BODY = f"SELECT id, {_BODY}, crc32 FROM jobs ORDER BY id"
_ROW = f"SELECT id, CAST(tube AS BLOB), {_SOUND} FROM jobs WHERE id = :id"
_BOUNDS = {"u32_max": U32_MAX, "counter_max": COUNTER_MAX}
# The first version with row checksums, and with tables that hold everything twice: in columns and in a text.
_TWOFOLD = 3
# The first version in which the last server's clock is recorded, likewise twice, and needed for a start.
_HAS_CLOCK = 4
# Whether the column ``said``, which SQLite stored with the row, is what the migrations make of the others. The factor
# makes a whole number of all bits of a time.
_META_SAID = "said IS batch || ' ' || last_id || ' ' || unchecked_id || ' ' || coalesce(jobs, '-')"
_PAUSE_SAID = "said IS tube || ' ' || pause_s || ' ' || CAST(until * 4194304 AS INTEGER)"
_body = itemgetter(BODY_AT)
_crc32 = itemgetter(CRC32_AT)


class QueueState(NamedTuple):
    """The state that the file holds apart from the jobs."""

    batch: int
    """The number of the last batch."""
    last_id: int
    """An id above which none has ever been given out."""
    pauses: list[tuple[bytes, int, int]]
    """The name, pause_s and until_ns of each paused tube, including pauses that have ended."""
    policies: list[PolicyRow]
    schedules: list[Schedule]


def read_state(connection: sqlite3.Connection, path: Path) -> QueueState:
    """Read everything but the jobs. JournalRefused: the file is damaged."""
    with refused(path):
        version = read_version(connection)
        meta_said, pause_said = (_META_SAID, _PAUSE_SAID) if version >= _TWOFOLD else ("1", "1")
        meta = connection.execute(
            f"SELECT batch, last_id, (SELECT max(id) FROM jobs), {meta_said} FROM meta"
        ).fetchone()
        if meta is None:
            raise damaged(path, "table meta is empty")
        pauses = connection.execute(f"SELECT CAST(tube AS BLOB), pause_s, until, {pause_said} FROM pauses").fetchall()
    batch, last_id, last_job, alike = meta
    if not (is_number(batch, COUNTER_MAX) and is_number(last_id, COUNTER_MAX) and last_id >= (last_job or 0)):
        raise damaged(path, "meta row has impossible values")
    if not alike:
        raise damaged(path, "meta row does not match its checksum")
    for tube, pause_s, until, pause_alike in pauses:
        if not (_is_name(tube) and is_number(pause_s, U32_MAX) and isinstance(until, float) and abs(until) <= FAR_NS):
            raise damaged(path, "row of pauses has impossible values")
        if not pause_alike:
            raise damaged(path, f"the pause of {tube!r:.100} has changed")
    if version >= _HAS_CLOCK:
        read_last_seen(connection, path)  # raises if it is damaged, since a start needs it
    return QueueState(
        batch,
        last_id,
        [(tube, pause_s, clock_ns(until)) for tube, pause_s, until, _ in pauses],
        read_policies(connection, path),
        read_schedules(connection, path),
    )


def read_unchecked_id(connection: sqlite3.Connection) -> int:
    """Return the id of the last job whose row may lack a checksum because an older version wrote it."""
    if read_version(connection) < _TWOFOLD:
        return _ABOVE_ALL
    row = connection.execute("SELECT unchecked_id FROM meta").fetchone()
    return row[0] if row is not None and isinstance(row[0], int) else 0


def _is_name(value: object) -> bool:
    return isinstance(value, bytes) and is_tube_name(value)


def count_jobs(connection: sqlite3.Connection, path: Path) -> int:
    """Count the jobs in the file. JournalRefused: the file is damaged."""
    with refused(path):
        count: int = connection.execute("SELECT count(*) FROM jobs").fetchone()[0]
    return count


def check_count(connection: sqlite3.Connection, path: Path, jobs: int) -> None:
    """Raise JournalRefused if the last orderly stop left a different number of jobs; call ``read_state`` first.

    Without this check, a page that has lost some of its rows would look sound.
    """
    with refused(path):
        if read_version(connection) < _TWOFOLD:
            return
        meta = connection.execute("SELECT jobs FROM meta").fetchone()
    if meta is not None and meta[0] not in {None, jobs}:
        raise damaged(path, f"{jobs} jobs are left of {meta[0]!a:.40}")


def guess_jobs(connection: sqlite3.Connection, path: Path) -> int:
    """Return an upper bound on the number of jobs, without counting them. JournalRefused: the file is damaged."""
    with refused(path):
        first, last = connection.execute("SELECT (SELECT min(id) FROM jobs), (SELECT max(id) FROM jobs)").fetchone()
    return int(last) - int(first) + 1 if first is not None else 0


def read_jobs(
    connection: sqlite3.Connection, path: Path, above_id: int = BELOW_ALL, *, bodies: bool = True
) -> Generator[list[StoredJob], None, None]:
    """Read all jobs above an id by ascending id, in lists of up to 1000, with their bodies or only the bodies' sizes.

    JournalRefused: the file is damaged, a row is not what was written, or a body is not the one that was put.
    """
    statement, check = (_JOBS, _check_bodies) if bodies else (_JOBS_WITHOUT_BODIES, _check_sizes)
    with refused(path), closing(connection.cursor()) as jobs:
        unchecked_id = read_unchecked_id(connection)
        # A single statement moves from page to page. One statement per list would seek each time, and skip the jobs
        # between a misplaced page and the right one.
        jobs.execute(statement, (above_id,))
        while rows := jobs.fetchmany(_few_enough(connection, above_id) if bodies else _CHUNK):
            job_id = find_changed(rows, unchecked_id)
            if job_id is not None:
                raise damaged(path, f"the row of job {job_id} has changed")
            check(rows, path)
            yield rows
            above_id = rows[-1][0]


def _few_enough(connection: sqlite3.Connection, above_id: int) -> int:
    """Return how many jobs to read as the next chunk, with their bodies."""
    size = 0
    for job_id, body_size in connection.execute(_LARGE, (above_id, _CHUNK)):
        if size and size + body_size > _CHUNK_BYTES:
            (jobs,) = connection.execute(_COUNT_BETWEEN, (above_id, job_id, _CHUNK)).fetchone()
            return max(1, int(jobs))
        size += body_size
    return _CHUNK


def _check_sizes(rows: list[StoredJob], path: Path) -> None:
    for row in rows:
        if not isinstance(_body(row), int):
            raise damaged(path, f"the body of job {row[0]} is missing")


def _check_bodies(rows: list[StoredJob], path: Path) -> None:
    try:
        sound = list(map(crc32, map(_body, rows))) == list(map(_crc32, rows))
    except TypeError:  # a body is missing, or is not bytes
        sound = False
    if not sound:
        bad = next(row for row in rows if not isinstance(_body(row), bytes) or crc32(_body(row)) != _crc32(row))
        raise damaged(path, f"the body of job {bad[0]} has changed")


def check_names(names: Iterable[bytes], path: Path) -> None:
    """Raise JournalRefused if one of these names, taken from jobs, is not a valid tube name."""
    for name in names:
        if not _is_name(name):
            raise damaged(path, f"a job is in the tube {name!r:.100}")


def check_jobs(connection: sqlite3.Connection, path: Path) -> None:
    """Raise JournalRefused if the row of a job is not as a server writes it. Bodies are not checked.

    The check would take a noticeable part of a start, so it runs only when the engine can't make sense of a job.
    """
    with refused(path):
        for job_id, what in changed_rows(connection):
            raise damaged(path, f"the row of job {job_id} has changed ({what})")


def check_pages(connection: sqlite3.Connection, path: Path) -> None:
    """Raise JournalRefused if a page is in another's place. It takes longer than a start; see ``check_jobs``."""
    with refused(path):
        (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        raise damaged(path, f"SQLite says {text_of(verdict)}")


def changed_rows(connection: sqlite3.Connection) -> Iterator[tuple[int, str]]:
    """Yield the id of each job whose row is not as a server writes it, and what has changed. Raises sqlite3.Error."""
    unchecked_id = read_unchecked_id(connection)
    last_id = 0
    for row in connection.execute(_PARTS, _BOUNDS):
        job_id, tube = row[:2]
        values, sound = row[:_WIDTH], row[_WIDTH:]
        wrong = [what for what, is_met in zip(_CONDITIONS, sound, strict=True) if not is_met]
        if job_id <= last_id:
            wrong = ["id", *wrong]
        elif not wrong and not _is_name(tube):
            wrong = ["tube"]
        elif not wrong and find_changed([values], unchecked_id) is not None:
            wrong = ["its checksum differs"]
        if wrong:
            yield job_id, "; ".join(wrong)
        last_id = job_id


def changed_bodies(connection: sqlite3.Connection) -> Iterator[tuple[int, str]]:
    """Yield the id of each job whose body is not the one that was put, and what is wrong. Raises sqlite3.Error."""
    for job_id, body, checksum in connection.execute(_EACH_BODY):
        if body is None:
            yield job_id, "is missing"
        elif not isinstance(body, bytes) or crc32(body) != checksum:
            yield job_id, "has changed"


def is_sound(connection: sqlite3.Connection, job_id: int) -> bool:
    """Whether the row of one job is as a server writes it. sqlite3.Error: the row can't be read."""
    _, tube, sound = connection.execute(_ROW, {**_BOUNDS, "id": job_id}).fetchone()
    return bool(sound) and 0 < job_id < COUNTER_MAX and _is_name(tube)
