"""Space on the database's disk that is kept for when the disk is full.

It is a table whose pages are nearly empty. Once there is no room for a batch, the table is emptied, and puts are
refused until it can be filled again; meanwhile jobs can be reserved and deleted.
"""

from __future__ import annotations

import asyncio
from typing import Final

import asyncpg

from beanlite import log
from beanlite.core.admission import Admission
from beanlite.core.memory import NO_BOUND
from beanlite.journal.postgres.link import TROUBLE, said
from beanlite.journal.postgres.sender import Sender

# Rows that take some 8 MiB.
_ROWS: Final = 23_000
_SIZE: Final = "SELECT pg_relation_size('disk_reserve') AS bytes"
# One transaction, as several statements at a time are. Nothing depends on it, so no standby has to confirm it.
_EMPTY: Final = "SET LOCAL synchronous_commit = local; SET LOCAL lock_timeout = '1s'; TRUNCATE disk_reserve"
# If there is no room for all rows, the table stays empty: pages taken by an INSERT alone would not be given back.
_FILL: Final = f"{_EMPTY}; INSERT INTO disk_reserve SELECT generate_series(1, {_ROWS})"
# The same if there is twice as much room, and so some for puts as well.
_FILL_AGAIN: Final = f"{_FILL}; INSERT INTO disk_reserve SELECT generate_series(1, {_ROWS}); {_FILL}"
# How often it is tried to fill the table.
FILL_EVERY_S = 5.0


class Reserve:
    """The reserve, and whether puts are accepted."""

    def __init__(self, admission: Admission, sender: Sender) -> None:
        """Begin without a reserve: ``keep`` looks whether it is there."""
        self._admission = admission
        self._sender = sender
        self._missing = asyncio.Event()
        self._missing.set()
        self._oddities = log.Seldom()

    async def keep(self) -> None:
        """Fill the table whenever it is empty and there is room; to be run as a task."""
        while True:
            await self._missing.wait()
            try:
                await self._fill()
            except asyncpg.DiskFullError as error:
                self._refuse_puts(error)
            except (*TROUBLE, asyncpg.PostgresError) as error:
                self._oddities.warning("no reserve for a full disk of the database", error=said(error))
            if self._missing.is_set():
                await asyncio.sleep(FILL_EVERY_S)

    async def _fill(self) -> None:
        async with self._sender.beside() as link:
            row = await link.row(_SIZE)
            if row is None or not row["bytes"]:
                await link.connection.execute(_FILL_AGAIN if self._admission.disk_full else _FILL)
        self._missing.clear()
        if self._admission.disk_full:
            log.info("database disk has room again: puts are accepted")
            self._admission.accept_puts(NO_BOUND)

    async def give_up(self, error: Exception) -> None:
        """Empty the table, since a batch failed for want of room; puts are refused until it is filled again."""
        self._refuse_puts(error)
        try:
            await self._sender.execute(_EMPTY)  # on a full disk there may be no new connections
        except (*TROUBLE, asyncpg.PostgresError) as failure:
            self._oddities.warning("reserve for a full disk of the database can't be used", error=said(failure))

    def stored(self) -> None:
        """Fill the table again when there is room; the batch for which it was given up has been stored."""
        self._missing.set()

    def _refuse_puts(self, error: Exception) -> None:
        if not self._admission.disk_full:
            log.error("database disk full: puts are refused until there is room again", error=error)
            self._admission.refuse_puts()
