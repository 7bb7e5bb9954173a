"""Reading the queue at the start, and single bodies later, by a connection of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from operator import itemgetter
from typing import Final, NamedTuple, cast
from zlib import crc32

import asyncpg

from beanlite import log
from beanlite.clock import EPOCH_S, clock_ns
from beanlite.core.restore import StoredJob
from beanlite.core.tube import is_tube_name
from beanlite.errors import JournalFailed, JournalRefused
from beanlite.journal.postgres.link import CONNECT_S, TROUBLE, Link, connect, said
from beanlite.journal.totals import KEPT_S

# How many jobs are read at a time, and how many bytes of bodies, if that is not less than one of them.
_CHUNK: Final = 5000
_CHUNK_BYTES: Final = 4 << 20
# How long to wait until it is tried again to reach the database.
_AGAIN_S: Final = 0.2
# What the engine needs is made by PostgreSQL, as ``StoredJob`` has it. It knows the size of a body without reading it.
_JOBS: Final = f"""
    SELECT id, tube::bytea, CASE state WHEN 'ready' THEN NULL ELSE state END, pri, delay_s, ttr_s,
           ((created_at - {EPOCH_S}) * 1e9)::bigint,
           coalesce(buried_seq, ((due_at - {EPOCH_S}) * 1e9)::bigint),
           reserves, timeouts, releases, buries, kicks,
           {{body}}, crc32,
           ((since - {EPOCH_S}) * 1e9)::bigint, holder, holder_conn, why, NULL::bigint
    FROM {{rows}} ORDER BY id
"""  # noqa: S608 - our own words
_SOME: Final = f"(SELECT * FROM jobs WHERE id > $1 ORDER BY id LIMIT {_CHUNK}) AS next_ones"  # noqa: S608 - likewise
_FEW_BYTES: Final = f"""
    (SELECT *, sum(length(body)) OVER (ORDER BY id) - length(body) AS before_it FROM {_SOME}) AS few_ones
    WHERE before_it < {_CHUNK_BYTES}
"""  # noqa: S608 - likewise
_WITH_BODIES: Final = _JOBS.format(body="body", rows=_FEW_BYTES)
_WITHOUT_BODIES: Final = _JOBS.format(body="length(body)::bigint", rows=_SOME)
_BODIES: Final = "SELECT id, body, crc32 FROM jobs WHERE id = ANY ($1)"
_LEASE: Final = "SELECT epoch, batch FROM lease"
_PAUSES: Final = "SELECT tube, pause_s, until FROM pauses"
_PRUNE: Final = "DELETE FROM totals WHERE span_s = $1 AND at < $2"
_NOW: Final = "SELECT extract(epoch FROM clock_timestamp())::float8 AS now"
_COUNTS: Final = "SELECT count(*) AS jobs FROM jobs"
_body = itemgetter(13)
_crc32 = itemgetter(14)


class Pause(NamedTuple):
    """A tube's pause, as ``Engine.restore_pause`` takes it."""

    tube: bytes
    pause_s: int
    until_ns: int


class Reader:
    """Reads what the server that has the lease has stored; connects anew whenever that is needed."""

    def __init__(self, url: str, name: str, node: str, stored: Callable[[], tuple[int, int]]) -> None:
        """``name`` is what people call the database, ``node`` what it calls us.

        ``stored`` tells the epoch of the lease and the last batch that is stored.
        """
        self._url = url
        self._name = name
        self._node = node
        self._stored = stored
        self._link: Link | None = None
        self._one_at_a_time = asyncio.Lock()
        self._closed = False
        self._oddities = log.Seldom()

    async def _fetch(self, statement: str, *parameters: object) -> list[asyncpg.Record]:
        """What a statement finds, however often that has to be tried. JournalFailed: it can't be read at all."""
        async with self._one_at_a_time:
            return await self._try(statement, *parameters)

    async def _try(self, statement: str, *parameters: object) -> list[asyncpg.Record]:
        while True:
            try:
                link = self._link or await self._connect()
                return await link.connection.fetch(statement, *parameters)
            except (*TROUBLE, JournalRefused) as error:
                if self._closed:
                    raise JournalFailed(f"{self._name}: {said(error)}") from error
                self._oddities.warning("the database can't be read now", database=self._name, error=said(error))
                self.drop()
            except asyncpg.PostgresError as error:
                raise JournalFailed(f"{self._name} can't be read: {said(error)}") from error
            await asyncio.sleep(_AGAIN_S)

    async def _connect(self) -> Link:
        """Connect to the database that has our lease: an old primary may be there, too, and be found first."""
        epoch, batch = self._stored()
        link = self._link = await connect(self._url, self._node)
        if self._closed:  # meanwhile
            self.drop()
            raise ConnectionError("it is closed")
        row = await link.row(_LEASE, within_s=CONNECT_S)
        if row is None or row["epoch"] != epoch or row["batch"] < batch:
            raise ConnectionError("it is not the database that has the lease")
        return link

    async def count(self) -> int:
        """How many jobs there are. JournalFailed."""
        return int((await self._fetch(_COUNTS))[0]["jobs"])

    async def now_ns(self) -> int:
        """What the clock of the database shows, as ours counts. JournalFailed."""
        return clock_ns((await self._fetch(_NOW))[0]["now"])

    async def pauses(self) -> list[Pause]:
        """All pauses, with those that have ended. JournalFailed."""
        rows = await self._fetch(_PAUSES)
        return [Pause(row["tube"].encode(), row["pause_s"], clock_ns(row["until"])) for row in rows]

    async def jobs(self, wants_bodies: Callable[[], bool]) -> AsyncIterator[list[StoredJob]]:
        """All jobs in the order of their ids, with their bodies as long as these are wanted, else with their sizes.

        While some are looked at, the next are on their way. JournalRefused: a body is not the one that was put.
        JournalFailed.
        """
        found = await self._fetch(_WITH_BODIES, 0)
        while found:
            statement = _WITH_BODIES if wants_bodies() else _WITHOUT_BODIES
            coming = asyncio.ensure_future(self._fetch(statement, found[-1][0]))
            try:
                rows = cast(list[StoredJob], list(map(tuple, found)))  # which are read by position
                self._check(rows)
                yield rows
                found = await coming
            finally:
                if not coming.done():
                    self.drop()  # or asyncpg would have the database cancel it, by another connection
                    coming.cancel()

    def _check(self, rows: list[StoredJob]) -> None:
        if not isinstance(_body(rows[0]), bytes):
            return  # nor are the others here
        if list(map(crc32, map(_body, rows))) != list(map(_crc32, rows)):
            bad = next(row for row in rows if crc32(_body(row)) != _crc32(row))
            raise JournalRefused(f"{self._name} is damaged: the body of job {bad[0]} has changed; restore a backup")

    def check_names(self, names: Iterable[bytes]) -> None:
        """Raise JournalRefused if one of these names, which jobs have, can't be a tube's."""
        for name in names:
            if not is_tube_name(name):
                raise JournalRefused(f"{self._name} is damaged: a job is in the tube {name!r:.100}")

    async def bodies(self, job_ids: Sequence[int]) -> list[bytes | None]:
        """The bodies of these jobs; None for one that is not there. JournalFailed."""
        found: dict[int, bytes] = {}
        for job_id, body, checksum in await self._fetch(_BODIES, job_ids):
            if crc32(body) != checksum:
                raise JournalFailed(f"{self._name}: the body of job {job_id} has changed")
            found[job_id] = body
        return [found.get(job_id) for job_id in job_ids]

    async def prune_totals(self, now_s: float) -> None:
        """Take away what is too old of the totals; ``now_s`` is UTC."""
        try:
            for span_s, kept_s in KEPT_S.items():
                await self._fetch(_PRUNE, span_s, int(now_s) - kept_s)
        except JournalFailed as error:
            if not self._closed:
                self._oddities.warning("old totals could not be taken away", error=error)

    def close(self) -> None:
        """Read nothing more."""
        self._closed = True
        self.drop()

    def drop(self) -> None:
        """Read by another connection from now on."""
        if self._link is not None:
            self._link.drop()
            self._link = None
