"""What is asked and deleted in between, over a connection of its own, which keeps nobody waiting."""

from collections.abc import Awaitable, Callable
from typing import Final

import asyncpg

from beanlite.errors import JournalRefused
from beanlite.host import log
from beanlite.journal.base import DatabaseFigures
from beanlite.journal.postgres.figures import database_of
from beanlite.journal.postgres.link import NO_LOCKS, TROUBLE, Link, text_of

# The most rows of the history that are looked at and deleted at a time.
_SLICE: Final = 1000
# What is deleted need not wait for the synchronous standby: after a promotion it is deleted again.
_UNCONFIRMED: Final = "SELECT set_config('synchronous_commit', 'local', false)"
# Rows that some open transaction may still read can't be removed, and are passed by their number, up to the first row
# that is kept: after the clock has gone back, later rows may be older. Those that are in the future, because the clock
# was wrong, count as new.
_FORGET: Final = f"""
    WITH gone AS (
        DELETE FROM history WHERE n = ANY (ARRAY (
            SELECT n FROM history WHERE n > $1 AND at <= $4 ORDER BY n LIMIT {_SLICE}
        )) AND (n < $2 OR at < $3)
        RETURNING n
    ), last AS (SELECT count(*) AS rows, max(n) AS n FROM gone)
    SELECT rows, least(n, (
        SELECT kept.n - 1 FROM history AS kept
        WHERE kept.n > $1 AND kept.n < last.n AND NOT (at <= $4 AND (kept.n < $2 OR at < $3)) ORDER BY kept.n LIMIT 1
    )) AS last
    FROM last
"""
# Rows that are no further in the future than this don't count as such.
_AHEAD_S: Final = 60.0


class Housekeeping:
    """Asks how the database is doing, and deletes old rows of the history."""

    def __init__(self, name: str, open_link: Callable[[], Awaitable[Link]]) -> None:
        """``name`` is the database's name for people; ``open_link`` connects to the one that has our lease."""
        self._name = name
        self._open = open_link
        self._link: Link | None = None
        self._forgotten_to = -1
        """The rows up to this number have been deleted."""
        self._closed = False
        self._oddities = log.Seldom()

    async def database(self) -> DatabaseFigures | None:
        """Return how the database is doing; None if it does not answer, or not soon enough."""
        try:
            return await database_of(await self._connected())
        except (*TROUBLE, asyncpg.PostgresError, JournalRefused) as error:
            self._note("could not ask the database how it is doing", error)
        return None

    async def forget(self, before_n: int, before_s: float, now_s: float) -> bool:
        """Delete a slice of the rows with lower numbers or earlier times; return whether there may be more."""
        try:
            row = await (await self._connected()).row(_FORGET, self._forgotten_to, before_n, before_s, now_s + _AHEAD_S)
        except (*TROUBLE, asyncpg.PostgresError, JournalRefused) as error:
            self._note("could not delete old history", error)
            return False
        assert row is not None
        if row["rows"]:
            self._forgotten_to = row["last"]
        return int(row["rows"]) == _SLICE

    async def _connected(self) -> Link:
        link = self._link
        if link is None:
            link = await self._open()
            self._link = link
            await link.row(NO_LOCKS)
            await link.row(_UNCONFIRMED)
        return link

    def _note(self, event: str, error: Exception) -> None:
        if not self._closed:
            self._oddities.warning(event, database=self._name, error=text_of(error))
        self.drop()

    def close(self) -> None:
        """Do nothing more."""
        self._closed = True
        self.drop()

    def drop(self) -> None:
        """Drop the connection: another host may have the lease, and rows that were deleted may be there."""
        if self._link is not None:
            self._link.drop()
        self._link = None
        self._forgotten_to = -1
