"""Exports a queue in PostgreSQL as the lines of ``journal/lines.py``, and imports jobs from a database file."""

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar
from zlib import crc32

import asyncpg

from beanlite import __version__
from beanlite.errors import BeanliteError, JournalRefused
from beanlite.journal import note_rows, policy_rows, schedule_rows
from beanlite.journal.checksum import checksum_of_row
from beanlite.journal.columns import DEFAULTS, LATER, NAMES
from beanlite.journal.lines import FORMAT, body_of, line_of, write_lines
from beanlite.journal.policy_rows import line_of_policy, policy_of
from beanlite.journal.postgres.address import public_url
from beanlite.journal.postgres.link import TROUBLE, Link, session, text_of
from beanlite.journal.postgres.primaries import host_of_queue
from beanlite.journal.postgres.schema import NOW, check, has_batches, has_checksums, has_notes, has_policies, migrate
from beanlite.journal.schedule_rows import line_of_schedule, row_of_schedule, schedule_of

# An import holds the lease while it runs, as a server would, and takes it only if no server has it.
_TAKE: Final = f"""
    UPDATE lease
    SET epoch = epoch + 1, node = 'import', version = $1, started_at = {NOW}, seen_at = {NOW}
    WHERE stopped_at IS NOT NULL
    RETURNING last_id
"""
_COLUMNS: Final = (*NAMES, "crc32", "body")
# How many jobs are read or written at a time, and how many bytes of bodies (but at least one body).
_CHUNK: Final = 1000
_CHUNK_BYTES: Final = 4 << 20
_JOBS: Final = f"""
    SELECT {", ".join(_COLUMNS)}, row_crc32 FROM (
        SELECT *, sum(length(body)) OVER (ORDER BY id) - length(body) AS before_it
        FROM (SELECT * FROM {{jobs}} WHERE id > $1 ORDER BY id LIMIT {_CHUNK}) AS next_ones
    ) AS few_ones
    WHERE before_it < {_CHUNK_BYTES} ORDER BY id
"""
_COLUMNS_OF_JOBS: Final = "SELECT attname FROM pg_attribute WHERE attrelid = 'jobs'::regclass"
_POLICIES: Final = f"SELECT {policy_rows.COLUMNS} FROM policies ORDER BY pattern, key"
_SCHEDULES: Final = f"SELECT {schedule_rows.COLUMNS} FROM schedules ORDER BY name"
_NOTES: Final = "SELECT id, note FROM notes WHERE id > $1 AND id <= $2"
_SET_POLICY: Final = f"""
    INSERT INTO policies ({policy_rows.COLUMNS}) VALUES ($1, $2, $3, $4, $5)
    ON CONFLICT (pattern, key) DO UPDATE SET {policy_rows.REPLACED}
"""
_SET_SCHEDULE: Final = f"""
    INSERT INTO schedules ({schedule_rows.COLUMNS})
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)
    ON CONFLICT (name) DO UPDATE SET {schedule_rows.REPLACED}
"""
_HAS_OTHER_JOB: Final = "SELECT EXISTS (SELECT 1 FROM jobs WHERE id = $1 AND NOT (tube = $2 AND crc32 = $3))"
_GONE: Final = """
    SELECT last_job FROM schedules WHERE last_job IS NOT NULL AND NOT EXISTS (SELECT FROM jobs WHERE id = last_job)
"""
_T = TypeVar("_T")


def export(url: str, sink: BinaryIO, progress: Callable[[int], None] | None = None) -> int:
    """Write the lines of a queue, served or not, as of a single moment, and return their number.

    BeanliteError: the queue can't be read. OSError: the sink can't be written to.
    """
    unwritable: list[OSError] = []

    async def run() -> int:
        host = await host_of_queue(url)
        async with session(host) as link:
            await link.rows("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            count = 0
            async for lines in _dump(link, public_url(url)):
                try:
                    count += write_lines(lines, sink, None)
                except OSError as error:
                    unwritable.append(error)
                    raise
                if progress is not None:
                    progress(count)
            return count

    try:
        return _run(run(), public_url(url))
    except BeanliteError:
        if unwritable:
            raise unwritable[0] from None  # it is not the database that can't be used
        raise


async def _dump(link: Link, name: str) -> AsyncIterator[Iterable[str]]:
    """Yield all lines, in chunks."""
    connection = link.connection
    leases = "lease_now" if await has_batches(link, name) else "lease"
    state = await link.row(f"SELECT last_id FROM {leases}")
    if state is None:
        raise JournalRefused(f"{name}: its table lease is empty")
    yield [line_of("queue", {"format": FORMAT, "last_id": state["last_id"]})]
    settings = [line_of("pause", dict(row)) for row in await connection.fetch("SELECT * FROM pauses ORDER BY tube")]
    if await has_policies(link, name):
        settings += await _lines_of_policies(link, name)
    yield settings
    jobs = _JOBS.format(jobs=await _whole_jobs(link))
    unchecked_id = state["last_id"]
    if await has_checksums(link, name):
        unchecked_id = await connection.fetchval("SELECT unchecked_id FROM lease")
    last_id = 0
    with_notes = await has_notes(link, name)
    while rows := await connection.fetch(jobs, last_id):
        of_notes = await connection.fetch(_NOTES, last_id, rows[-1]["id"]) if with_notes else []
        yield _lines_of(rows, {row["id"]: row["note"] for row in of_notes}, unchecked_id, name)
        last_id = rows[-1]["id"]
    yield [line_of("end", {})]


async def _lines_of_policies(link: Link, name: str) -> list[str]:
    """Return the lines of all policies and schedules."""
    of_policies, of_schedules = await link.connection.fetch(_POLICIES), await link.connection.fetch(_SCHEDULES)
    try:
        return [
            *(line_of_policy(policy_of(tuple(row))) for row in of_policies),
            *(line_of_schedule(schedule_of(tuple(row))) for row in of_schedules),
        ]
    except ValueError as error:
        raise JournalRefused(f"{name} is damaged: {error}; restore a backup") from error


async def _whole_jobs(link: Link) -> str:
    """Return the jobs as a table, with the columns that are newer than the schema by default."""
    names = {row["attname"] for row in await link.connection.fetch(_COLUMNS_OF_JOBS)}
    missing = [column for column in LATER if column.name not in names]
    values = "".join(f", {json.dumps(DEFAULTS[each.name])}::{each.type} AS {each.name}" for each in missing)
    if "row_crc32" not in names:
        values += ", NULL::bigint AS row_crc32"
    return f"(SELECT *{values} FROM jobs) AS jobs" if values else "jobs"


def _lines_of(rows: list[asyncpg.Record], notes: dict[int, str], unchecked_id: int, name: str) -> Iterator[str]:
    """Yield the lines of jobs, of which those up to ``unchecked_id`` may lack a checksum of their row."""
    for row in rows:
        job = {key: value for key, value in row.items() if value is not None}
        body, checksum, of_row = job.pop("body"), job.pop("crc32"), job.pop("row_crc32", None)
        is_unchecked = of_row is None and job["id"] <= unchecked_id
        if not is_unchecked and checksum_of_row(tuple(row[column] for column in NAMES)) != of_row:
            raise JournalRefused(f"{name} is damaged: the row of job {job['id']} has changed; restore a backup")
        if crc32(body) != checksum:
            raise JournalRefused(f"{name} is damaged: the body of job {job['id']} has changed; restore a backup")
        note = {"note": notes[job["id"]]} if job["id"] in notes else {}
        yield line_of("job", job | note | body_of(body))


def load(file: Path, url: str, *, new_ids: bool) -> None:
    """Import all of a database file, or nothing, into a queue that no server has.

    BeanliteError: an id is taken, or a server has the queue.
    """
    name, commit = public_url(url), _Commit()
    try:
        with closing(sqlite3.connect(file)) as source:
            _run(_copy(source, url, commit, new_ids=new_ids), name)
    except KeyboardInterrupt:
        if commit.is_done:
            return
        if commit.is_asked_for:
            raise _in_doubt(name, "interrupted") from None
        raise


class _Commit:
    """How far the commit of an import has come."""

    def __init__(self) -> None:
        self.is_asked_for = False
        self.is_done = False


def _in_doubt(name: str, why: str) -> BeanliteError:
    return BeanliteError(
        f"{name}: it is not known whether all was imported, or nothing ({why}); see what is there before you try again:"
        " --new-ids would double the jobs"
    )


async def _copy(source: sqlite3.Connection, url: str, commit: _Commit, *, new_ids: bool) -> None:
    name = public_url(url)
    async with session(await host_of_queue(url)) as link:  # its end undoes what was not committed
        await check(link, name, require_sync=False)
        await migrate(link, name, only_from=0)
        transaction = link.connection.transaction()
        await transaction.start()
        await _fill(link, source, name, new_ids=new_ids)
        commit.is_asked_for = True
        try:
            await transaction.commit()
            link.believe()
        except (*TROUBLE, asyncpg.PostgresError) as error:
            raise _in_doubt(name, text_of(error)) from error
        commit.is_done = True


async def _fill(link: Link, source: sqlite3.Connection, name: str, *, new_ids: bool) -> None:
    """Insert everything, in a transaction. Raises as ``load`` does."""
    connection = link.connection
    lease = await link.row(_TAKE, __version__)
    if lease is None:
        raise JournalRefused(f"a server has {name}, or was killed; stop it in an orderly way first")
    if not await has_policies(link, name):
        raise JournalRefused(f"{name} was last served by an older version; serve it once with this beanlite")
    (last_id,) = source.execute("SELECT last_id FROM meta").fetchone()
    above_id = lease["last_id"] if new_ids else 0
    burials = await connection.fetchval("SELECT coalesce(max(buried_seq), 0) FROM jobs")
    with_checksums = await has_checksums(link, name)
    gone = {row["last_job"] for row in await connection.fetch(_GONE)}
    schedules = await _schedules(connection, source, above_id)
    for rows in _rows(source, above_id, burials):
        columns: tuple[str, ...] = _COLUMNS
        if with_checksums:
            columns = (*_COLUMNS, "row_crc32")
            rows = [(*row, checksum_of_row(row[: len(NAMES)])) for row in rows]  # noqa: PLW2901
        await connection.copy_records_to_table("jobs", records=rows, columns=columns)
    notes = source.execute("SELECT id + ?, note FROM notes", (above_id,)).fetchall()
    if notes:
        if not await has_notes(link, name):
            raise JournalRefused(f"{name} has no notes yet; serve it once with this beanlite")
        await connection.copy_records_to_table("notes", records=notes, columns=note_rows.NAMES)
    pauses = source.execute("SELECT tube, pause_s, until FROM pauses").fetchall()
    await connection.executemany(
        "INSERT INTO pauses VALUES ($1, $2, $3) ON CONFLICT (tube) DO UPDATE SET"
        " pause_s = excluded.pause_s, until = excluded.until",
        pauses,
    )
    of_policies = source.execute(f"SELECT {policy_rows.COLUMNS} FROM policies").fetchall()
    await connection.executemany(_SET_POLICY, of_policies)
    if of_policies:
        patterns = await connection.fetch("SELECT pattern FROM policies")
        policy_rows.check_patterns([row["pattern"] for row in patterns])
    await connection.executemany(_SET_SCHEDULE, schedules)
    if schedules:
        schedule_rows.check_schedules(await connection.fetchval("SELECT count(*) FROM schedules"))
    await _keep_schedules(connection, gone, {row[0] for row in schedules}, name)
    await connection.execute(
        f"UPDATE lease SET last_id = greatest(last_id, $1), stopped_at = {NOW}",
        above_id + last_id,
    )


def _rows(source: sqlite3.Connection, above_id: int, burials: int) -> Iterator[list[tuple[object, ...]]]:
    """Yield the rows of the file in chunks, with ids and burial numbers above those already in the database."""
    names = ", ".join(_COLUMNS[1:-1])
    jobs = source.execute(
        f"""
        SELECT id + ?, {names.replace("buried_seq", "buried_seq + ?").replace("since", "coalesce(since, created_at)")},
               coalesce(body, (SELECT bodies.body FROM bodies WHERE bodies.id = jobs.id))
        FROM jobs ORDER BY id
        """,
        (above_id, burials),
    )
    rows: list[tuple[object, ...]] = []
    size = 0
    for row in jobs:
        rows.append(row)
        size += len(row[-1])
        if len(rows) == _CHUNK or size >= _CHUNK_BYTES:
            yield rows
            rows, size = [], 0
    yield rows


async def _schedules(
    connection: asyncpg.Connection, source: sqlite3.Connection, above_id: int
) -> list[tuple[object, ...]]:
    """Return the rows of the schedules in the file, before their jobs are there, to which they refer by ids."""
    read = [schedule_of(row) for row in source.execute(f"SELECT {schedule_rows.COLUMNS} FROM schedules")]
    for schedule in read:
        if schedule.last_job is not None:
            schedule.last_job += above_id
            last_job = (schedule.last_job, schedule.tube.decode(), crc32(schedule.body))
            if await connection.fetchval(_HAS_OTHER_JOB, *last_job):
                schedule.last_job = None
    return [row_of_schedule(schedule) for schedule in read]


async def _keep_schedules(connection: asyncpg.Connection, gone: set[int], new: set[object], name: str) -> None:
    """Have no job that has come by the id of one that was ``gone`` pass for the last one of a schedule.

    ``new``: schedules that have come with their last jobs. JournalRefused: another one is damaged.
    """
    try:
        read = [schedule_of(tuple(row)) for row in await connection.fetch(_SCHEDULES)] if gone else []
    except ValueError as error:
        raise JournalRefused(f"{name} is damaged: {error}; restore a backup") from error
    for schedule in read:
        if schedule.last_job not in gone or schedule.name in new:
            continue
        job = (schedule.last_job, schedule.tube.decode(), crc32(schedule.body))
        if await connection.fetchval(_HAS_OTHER_JOB, *job):
            schedule.last_job = None
            await connection.execute(_SET_SCHEDULE, *row_of_schedule(schedule))


def _run(work: Coroutine[Any, Any, _T], name: str) -> _T:
    try:
        return asyncio.run(work)
    except asyncpg.UniqueViolationError as error:
        raise BeanliteError(
            f"nothing was imported now: {error.detail} If it may come from an earlier import, see what is there;"
            " otherwise --new-ids gives each job a new one"
        ) from error
    except (*TROUBLE, asyncpg.PostgresError) as error:
        raise BeanliteError(f"{name} can't be used: {text_of(error)}") from error
