"""Checks thoroughly whether a database, served or not, is what a server would have written."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Final
from zlib import crc32

import asyncpg

from beanlite.core.job import U32_MAX
from beanlite.core.restore import StoredJob
from beanlite.core.tube import is_tube_name
from beanlite.errors import JournalRefused
from beanlite.journal import note_rows, policy_rows, schedule_rows
from beanlite.journal.checksum import find_changed
from beanlite.journal.migrations import find_migrations
from beanlite.journal.note_rows import note_of
from beanlite.journal.policy_rows import policy_of
from beanlite.journal.postgres.link import Link
from beanlite.journal.postgres.reader import connected, telling
from beanlite.journal.postgres.schema import MIGRATIONS, TABLES, version_of
from beanlite.journal.postgres.selects import WITH_BODIES
from beanlite.journal.schedule_rows import schedule_of
from beanlite.journal.validity import COUNTER_MAX, FAULTS_MAX, CheckResult

_DATABASE: Final = """
    SELECT pg_database_size(current_database()) AS bytes, current_setting('server_version') AS version,
           current_setting('data_checksums') AS checksums, current_setting('fsync') AS fsync
"""
# How many jobs are read at a time.
_CHUNK: Final = 5000
# A trigger or a rule of our tables would run as part of the server's own changes.
_TABLES: Final = "pg_table_is_visible(pg_class.oid) AND relname = ANY ($1)"
_FOREIGN: Final = f"""
    SELECT 'the trigger ' || tgname || ' of ' || relname AS what
    FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid WHERE NOT tgisinternal AND {_TABLES}
    UNION ALL
    SELECT 'the rule ' || rulename || ' of ' || relname
    FROM pg_rewrite JOIN pg_class ON pg_class.oid = ev_class WHERE relkind = 'r' AND {_TABLES}
    UNION ALL
    SELECT 'the invalid index ' || indexrelid::regclass || ' of ' || relname
    FROM pg_index JOIN pg_class ON pg_class.oid = indrelid WHERE NOT (indisvalid AND indisready) AND {_TABLES}
    ORDER BY 1
"""
_STATE: Final = "SELECT epoch, batch, last_id FROM lease_now"
_UNCHECKED: Final = "SELECT unchecked_id FROM lease"
_POLICIES: Final = f"SELECT {policy_rows.COLUMNS} FROM policies"
_SCHEDULES: Final = f"SELECT {schedule_rows.COLUMNS} FROM schedules"
_NOTES: Final = f"SELECT {note_rows.COLUMNS} FROM notes ORDER BY id"
_STRAY: Final = "SELECT id FROM notes WHERE NOT EXISTS (SELECT FROM jobs WHERE jobs.id = notes.id) ORDER BY id LIMIT 1"
_PAUSES: Final = "SELECT count(*) AS count FROM pauses"
# All rows as the table has them. Those that are read one after another are found by the index.
_BY_TABLE: Final = """
    SELECT set_config('enable_seqscan', 'on', true), set_config('enable_indexscan', 'off', true),
           set_config('enable_indexonlyscan', 'off', true), set_config('enable_bitmapscan', 'off', true)
"""
_COUNT: Final = "SELECT count(*) AS count FROM jobs"


def verify(url: str) -> Iterator[CheckResult]:
    """Check a database as of a single moment, yielding each result as it is made. BeanliteError: it can't be read."""
    with connected(url) as (runner, link, name), telling(name):
        runner.run(link.rows("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"))
        yield from _Check(runner, link, name).results()


class _Check:
    """The checks of an open database."""

    def __init__(self, runner: asyncio.Runner, link: Link, name: str) -> None:
        self._runner = runner
        self._link = link
        self._name = name
        self._last_id = 0

    def results(self) -> Iterator[CheckResult]:
        """Yield the result of each check."""
        (row,) = self._rows(_DATABASE)
        said = f"{row['bytes']} bytes in PostgreSQL {row['version']}, data_checksums {row['checksums']}"
        yield CheckResult("file", sound=True, said=said)
        try:
            version = self._runner.run(version_of(self._link, self._name))
        except JournalRefused as error:
            yield CheckResult("schema", sound=False, said=str(error), ours=False)
            return
        known = len(find_migrations(MIGRATIONS))
        if version != known:
            said = f"{self._name} has version {version}, and can be checked when a server of this version has served it"
            yield CheckResult("schema", sound=False, said=said, ours=False)
            return
        foreign = [row["what"] for row in self._rows(_FOREIGN, TABLES)]
        said = self._damaged(f"it has {', '.join(foreign)}") if foreign else f"version {version}"
        yield CheckResult("schema", sound=not foreign, said=said)
        leases = self._rows(_STATE)
        if not leases:
            yield CheckResult("state", sound=False, said=self._damaged("its table lease is empty"))
            return
        yield self._state(leases[0])
        yield from self._jobs()

    def _rows(self, statement: str, *values: object) -> list[asyncpg.Record]:
        return self._runner.run(self._link.rows(statement, *values))

    def _damaged(self, what: str) -> str:
        return f"{self._name} is damaged: {what}; restore a backup"

    def _state(self, lease: asyncpg.Record) -> CheckResult:
        self._last_id = lease["last_id"]
        try:
            policies = [policy_of(tuple(row)) for row in self._rows(_POLICIES)]
            schedules = [schedule_of(tuple(row)) for row in self._rows(_SCHEDULES)]
            notes = [note_of(*row) for row in self._rows(_NOTES)]
        except ValueError as error:
            return CheckResult("state", sound=False, said=self._damaged(str(error)))
        for row in self._rows(_STRAY):
            return CheckResult("state", sound=False, said=self._damaged(f"the note of job {row['id']} has no job"))
        (pauses,) = self._rows(_PAUSES)
        counts = f"{pauses['count']} pauses, {len(policies)} policies, {len(schedules)} schedules, {len(notes)} notes"
        said = f"last id {lease['last_id']}, epoch {lease['epoch']}, batch {lease['batch']}, {counts}"
        return CheckResult("state", sound=True, said=said)

    def _jobs(self) -> Iterator[CheckResult]:
        """Yield a result for each fault of a row or a body, up to FAULTS_MAX, and one for the rest."""
        faults: dict[str, list[str]] = {"jobs": [], "bodies": []}
        states = self._read_jobs(faults)
        unchecked = states.pop("unchecked")
        said = {
            "jobs": ", ".join(f"{jobs} {state}" for state, jobs in sorted(states.items()) if jobs) or "none",
            "bodies": f"{states.total()} checksums are right",
        }
        if unchecked:
            said["jobs"] += f"; {unchecked} rows of an older version have no checksum"
        for check, each in faults.items():
            for fault in each[:FAULTS_MAX]:
                yield CheckResult(check, sound=False, said=self._damaged(fault))
            if len(each) > FAULTS_MAX:
                rest = self._damaged(f"{len(each) - FAULTS_MAX} more of {check} have changed")
                yield CheckResult(check, sound=False, said=rest)
            if not each:
                yield CheckResult(check, sound=True, said=said[check])

    def _read_jobs(self, faults: dict[str, list[str]]) -> Counter[str]:
        """Read all jobs and note what is wrong; return how many there are by state, and ``unchecked`` by a checksum."""
        (lease,) = self._rows(_UNCHECKED)
        counts = Counter({"unchecked": 0})
        count = above_id = 0
        places: set[int] = set()
        while rows := self._rows(WITH_BODIES, above_id, _CHUNK):
            for job in (StoredJob(*each) for each in rows):
                counts[job.state or "ready"] += 1
                counts["unchecked"] += job.row_crc32 is None
                wrong = self._wrong(job, lease["unchecked_id"], places)
                if wrong:
                    faults["jobs"].append(f"the row of job {job.id} has changed ({wrong})")
                assert isinstance(job.body, bytes)
                if crc32(job.body) != job.crc32:
                    faults["bodies"].append(f"the body of job {job.id} has changed")
            count += len(rows)
            above_id = rows[-1][0]
        self._rows(_BY_TABLE)
        (table,) = self._rows(_COUNT)
        if table["count"] != count:
            faults["jobs"].append(f"the table has {table['count']} jobs, and its index {count}")
        return counts

    def _wrong(self, job: StoredJob, unchecked_id: int, places: set[int]) -> str | None:
        """Return what is wrong with a row; None if it is as a server writes it. ``places``: those of burials so far."""
        numbers = job.reserves, job.timeouts, job.releases, job.buries, job.kicks, job.forgiven
        wrong = {
            "its checksum differs": find_changed([tuple(job)], unchecked_id) is not None,
            "id": not 0 < job.id <= self._last_id,
            "tube": not is_tube_name(job.tube),
            "state, due_at or buried_seq": (job.state is None) != (job.place is None),
            "pri": not 0 <= job.pri <= U32_MAX,
            "a counter": not all(0 <= number < COUNTER_MAX for number in numbers),
            "buried_seq": job.state == "buried" and job.place in places,
        }
        if job.state == "buried" and job.place is not None:
            places.add(job.place)
        return next((what for what, is_so in wrong.items() if is_so), None)
