"""Reads the queue at the start, and single bodies later, over a connection of its own."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from typing import Final
from zlib import crc32

import asyncpg

from beanlite.core.job import Job
from beanlite.core.policies import PolicyRow
from beanlite.core.restore import StoredJob
from beanlite.core.schedules import Schedule
from beanlite.core.tube import is_tube_name
from beanlite.errors import JournalFailed, JournalRefused
from beanlite.host import log
from beanlite.host.clock import clock_ns
from beanlite.journal import policy_rows, schedule_rows
from beanlite.journal.policy_rows import policy_of
from beanlite.journal.postgres.figures import HOLDERS
from beanlite.journal.postgres.link import LOOK_AFTER_S, NO_LOCKS, TROUBLE, Link, beside, connect, text_of
from beanlite.journal.postgres.selects import NOTES, WITH_BODIES, WITHOUT_BODIES, jobs_of, notes_of
from beanlite.journal.postgres.standing import Standing, change_error
from beanlite.journal.postgres.waits import SLOW, why_it_waits
from beanlite.journal.schedule_rows import schedule_of
from beanlite.journal.totals import KEPT_S, Totals, began_s

# How many jobs are read at a time.
_CHUNK: Final = 5000
# The pause between attempts to reach the database.
_AGAIN_S: Final = 0.2
_BODIES: Final = "SELECT id, body, crc32 FROM jobs WHERE id = ANY ($1)"
_LEASE: Final = "SELECT epoch, started_at, batch FROM lease_now"
_PAUSES: Final = 'SELECT tube, pause_s, until FROM pauses ORDER BY tube COLLATE "C"'
_POLICIES: Final = f"SELECT {policy_rows.COLUMNS} FROM policies"
_SCHEDULES: Final = f"SELECT {schedule_rows.COLUMNS} FROM schedules"
_TUBES: Final = "SELECT tube FROM totals WHERE span_s = $1 AND at = $2"
_PRUNE: Final = "DELETE FROM totals WHERE span_s = $1 AND at < $2"
# The row of a batch may only be missing if the row of the lease has its number, or a higher one: a late copy of the
# batch would be stored again otherwise.
MARK: Final = """
    UPDATE lease SET batch = number, last_id = greatest(lease.last_id, batches.last_id)
    FROM batches WHERE epoch = $1 AND batch < number AND number = $2 AND batches.beat = 0
"""
# Each batch of the server's own locks that row until it is committed, which takes long only while the standby is gone.
_AFTER_A_BATCH: Final = "SELECT set_config('lock_timeout', '30s', false)"
# Rows that some open transaction may still read can't be removed, and are passed by their number. The last row stays:
# it tells when the server was last seen.
PRUNE_BATCHES: Final = """
    DELETE FROM batches
    WHERE number > $1 AND number <= (SELECT batch FROM lease WHERE epoch = $2) AND (beat <> 0 OR number <= $3)
        AND (number, beat) <> (SELECT number, beat FROM batches ORDER BY number DESC, beat DESC LIMIT 1)
"""
_VACUUM: Final = "VACUUM batches, jobs"
_HOLDER: Final = f"SELECT holder, age FROM ({HOLDERS}) AS holders WHERE age >= $1 ORDER BY age DESC LIMIT 1"
# The number of later transactions from which on it is worth a warning.
_OLD: Final = 1_000_000
_NOW: Final = "SELECT extract(epoch FROM clock_timestamp())::float8 AS now"
_COUNTS: Final = "SELECT count(*) AS jobs FROM jobs"
_LAST_JOB: Final = "SELECT coalesce(max(id), 0) AS id FROM jobs"
_LAST_EVENT: Final = "SELECT coalesce(max(n), 0) AS n FROM history"
_TENURE: Final = "SELECT takeovers, unchecked_id FROM lease"


class Reader:
    """Reads from the database in which this server holds the lease; reconnects whenever necessary."""

    def __init__(self, url: str, name: str, node: str, standing: Callable[[], Standing]) -> None:
        """``name`` is the database's name for people, ``node`` the name under which the database knows this server.

        ``standing`` returns the state of the database in which this server has the lease.
        """
        self._url = url
        self._name = name
        self._node = node
        self._standing = standing
        self._link: Link | None = None
        self._pruner: Link | None = None
        self._pruned_to = -1
        """The rows of the batches up to this one have been deleted."""
        self._kept_above: int | None = None
        """The last batch when rows were last deleted; None: none have been yet."""
        self._one_at_a_time = asyncio.Lock()
        self._closed = False
        self._drops = 0
        self._oddities = log.Seldom()

    async def fetch(self, statement: str, *parameters: object) -> list[asyncpg.Record]:
        """Return the rows of a query, retried as often as necessary. JournalFailed: the rows can't be read at all."""
        while not self._closed:
            async with self._one_at_a_time:  # and others have their turn before it is tried again
                rows = await self._try(statement, *parameters)
            if rows is not None:
                return rows
            await asyncio.sleep(_AGAIN_S)
        raise JournalFailed(f"{self._name}: nothing more is read")

    async def _try(self, statement: str, *parameters: object) -> list[asyncpg.Record] | None:
        """Return the rows of a query, or None if they can't be read now."""
        looking = None
        try:
            if self._link is None:
                self._link = await self.connect()
            looking = asyncio.ensure_future(self._look_after(self._link))
            return await self._link.rows(statement, *parameters)
        except (*TROUBLE, JournalRefused) as error:
            if self._closed:
                raise JournalFailed(f"{self._name}: {text_of(error)}") from error
            self._oddities.warning(
                "could not read the database; trying again", database=self._name, error=text_of(error)
            )
            self.drop()
        except asyncpg.PostgresError as error:
            raise JournalFailed(f"{self._name} can't be read: {text_of(error)}") from error
        finally:
            if looking is not None:
                looking.cancel()
        return None

    async def _look_after(self, link: Link) -> None:
        """Log for whose lock a query waits. Those that read much are slow without any."""
        why: str | None = SLOW
        while why is not None:
            await asyncio.sleep(LOOK_AFTER_S)
            try:
                async with beside(link) as other:
                    why = await why_it_waits(other, self._node, link.pid)
            except (*TROUBLE, asyncpg.PostgresError, JournalRefused):
                continue  # the query tells what is wrong with the database
            if why not in {None, SLOW}:
                self._oddities.warning(f"read is waiting: {why}", database=self._name)

    async def connect(self) -> Link:
        """Connect to the host to which batches are sent: others may accept writes, too, and have our lease."""
        drops = self._drops
        link = await connect(self._url, self._node, self._expect_lease)
        if self._drops != drops:  # meanwhile
            link.drop()
            raise ConnectionError("it is closed, or the database has moved")
        return link

    async def _expect_lease(self, link: Link) -> None:
        standing = self._standing()
        link.expect_successor(standing.history)
        row = await link.glance(_LEASE)
        if row is None or standing.reign != (row["epoch"], row["started_at"]) or row["batch"] < standing.batch:
            raise ConnectionError("it is not the database that has the lease")
        if None not in {link.host, standing.host} and link.host != standing.host:
            raise ConnectionError("it is not the host to which batches are sent")

    async def count(self) -> int:
        """Return the number of jobs. Raises JournalFailed."""
        return int((await self.fetch(_COUNTS))[0]["jobs"])

    async def now_ns(self) -> int:
        """Return the time of the database's clock, in the units of ours. Raises JournalFailed."""
        return clock_ns((await self.fetch(_NOW))[0]["now"])

    async def tenure(self) -> tuple[int, int]:
        """Return how often a lease was taken that had not been given back, and up to which id rows may lack a checksum.

        Raises JournalFailed.
        """
        (row,) = await self.fetch(_TENURE)
        return row["takeovers"], row["unchecked_id"]

    async def check_ids(self, last_id: int) -> None:
        """Raise JournalRefused if a job has an id above the last one given: a put would be given it again.

        Raises JournalFailed.
        """
        job_id = (await self.fetch(_LAST_JOB))[0]["id"]
        if job_id > last_id:
            raise JournalRefused(
                f"{self._name} is damaged: there is a job {job_id}, and the last id is {last_id}; restore a backup"
            )

    async def last_event(self) -> int:
        """Return the number of the last row of the history. Raises JournalFailed."""
        return int((await self.fetch(_LAST_EVENT))[0]["n"])

    async def pauses(self) -> list[tuple[bytes, int, int]]:
        """Return all pauses, including those that have ended, for ``Engine.restore_pause``. Raises JournalFailed."""
        rows = await self.fetch(_PAUSES)
        return [(row["tube"].encode(), row["pause_s"], clock_ns(row["until"])) for row in rows]

    async def policies(self) -> list[PolicyRow]:
        """Return all policies. JournalRefused: one can't be. Raises JournalFailed."""
        try:
            return [policy_of(tuple(row)) for row in await self.fetch(_POLICIES)]
        except ValueError as error:
            raise JournalRefused(f"{self._name} is damaged: {error}; restore a backup") from error

    async def schedules(self) -> list[Schedule]:
        """Return all schedules. JournalRefused: one is not what was written. Raises JournalFailed."""
        try:
            return [schedule_of(tuple(row)) for row in await self.fetch(_SCHEDULES)]
        except ValueError as error:
            raise JournalRefused(f"{self._name} is damaged: {error}; restore a backup") from error

    async def notes(self) -> AsyncGenerator[list[tuple[int, bytes]], None]:
        """Yield all notes in order of id, in lists. JournalRefused: one is none. Raises JournalFailed."""
        last_id = 0
        while rows := await self.fetch(NOTES, last_id, _CHUNK):
            yield notes_of(rows, self._name)
            last_id = rows[-1]["id"]

    async def jobs(self, wants_bodies: Callable[[], bool], unchecked_id: int) -> AsyncGenerator[list[StoredJob], None]:
        """Yield all jobs in order of id, with their bodies as long as these are wanted, and otherwise with their sizes.

        The next chunk is fetched while one is processed. JournalRefused: a row or a body is not what was written.
        Raises JournalFailed.
        """
        rows_before = await self.fetch(WITH_BODIES, 0, _CHUNK)
        while rows_before:
            statement = WITH_BODIES if wants_bodies() else WITHOUT_BODIES
            coming = asyncio.ensure_future(self.fetch(statement, rows_before[-1][0], _CHUNK))
            try:
                yield jobs_of(rows_before, self._name, unchecked_id)
                rows_before = await coming
            finally:
                if not coming.done():
                    self.drop()  # or asyncpg would have the database cancel the query, over another connection
                    coming.cancel()
                elif not coming.cancelled():
                    coming.exception()  # which may not have been raised to anybody

    def check_names(self, names: Iterable[bytes]) -> None:
        """Raise JournalRefused if one of these names, read from jobs, is not a valid name of a tube."""
        for name in names:
            if not is_tube_name(name):
                raise JournalRefused(f"{self._name} is damaged: a job is in the tube {name!r:.100}")

    async def bodies(self, job_ids: Sequence[int], find: Callable[[int], Job | None]) -> list[bytes | None]:
        """Return the bodies of these jobs; None for a job that does not exist.

        ``find`` tells which jobs have not been deleted. Raises JournalFailed, also if the row of one is missing.
        """
        bodies: dict[int, bytes] = {}
        for is_again in (False, True):
            for job_id, body, checksum in await self.fetch(_BODIES, job_ids):
                if crc32(body) != checksum:
                    raise JournalFailed(f"{self._name}: the body of job {job_id} has changed")
                bodies[job_id] = body
            if all(job_id in bodies or find(job_id) is None for job_id in job_ids):
                break
            if is_again:
                raise change_error(self._name)
            self.drop()  # the connection may be to another host
        return [bodies.get(job_id) for job_id in job_ids]

    async def resume_totals(self, totals: Totals, now_s: float) -> None:
        """Continue with the tubes that have a row in the present hour and day (UTC). Raises JournalFailed."""
        for span_s in KEPT_S:
            at_s = began_s(span_s, now_s)
            totals.resume(span_s, at_s, {row["tube"].encode() for row in await self.fetch(_TUBES, span_s, at_s)})

    async def prune(self, now_s: float, *, is_full: bool = False) -> None:
        """Delete totals that are too old, and rows of stored batches, unless another program has locked them.

        ``now_s`` is UTC. It has a connection of its own: what is deleted may have to wait for the synchronous standby,
        and bodies don't. If the disk ``is_full``, the room of all deleted rows is made usable at once.
        """
        link = None
        standing = self._standing()
        try:
            self._pruner = link = await self.connect()
            await link.row(NO_LOCKS)
            for span_s, kept_s in KEPT_S.items():
                await link.rows(_PRUNE, span_s, int(now_s) - kept_s)
            await link.row(_AFTER_A_BATCH)
            await link.rows(MARK, standing.epoch, standing.batch)
            await link.row(NO_LOCKS)
            # A standby may still need the rows of batches that were stored since this was last done.
            kept_above = standing.batch if self._kept_above is None else self._kept_above
            await link.rows(PRUNE_BATCHES, self._pruned_to, standing.epoch, kept_above)
            self._pruned_to = kept_above - 1  # later beats have the number of the last batch as well
            self._kept_above = standing.batch
            if is_full:  # autovacuum comes once a minute, and not for few rows
                await link.rows(_VACUUM)
            for row in await link.rows(_HOLDER, _OLD):
                self._oddities.warning(
                    f"the database can't remove old rows, and grows: {row['holder']} has held a transaction open for"
                    f" {row['age']:,} others",
                    database=self._name,
                )
        except (*TROUBLE, asyncpg.PostgresError, JournalRefused) as error:
            if not self._closed:
                self._oddities.warning("could not delete old totals and batches", error=text_of(error))
        finally:
            if link is not None:
                link.drop()

    def close(self) -> None:
        """Read nothing more."""
        self._closed = True
        self.drop()

    def drop(self) -> None:
        """Drop the connections, including one that is being made; the next read makes another one."""
        self._drops += 1
        for link in (self._link, self._pruner):
            if link is not None:
                link.drop()
        self._link = self._pruner = None
