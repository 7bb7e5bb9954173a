"""The hosts that accept writes: more than one does if a standby was promoted and its primary was not stopped."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

import asyncpg

from beanlite.journal.postgres.address import hosts_of
from beanlite.journal.postgres.link import CONNECT_S, TROUBLE, Link, connect
from beanlite.journal.postgres.schema import NOW

# The same for all addresses of a host.
_IDENTITY: Final = "SELECT system_identifier, pg_postmaster_start_time() FROM pg_control_system()"

# Which server has renewed its lease there of late, by the clock of that database.
_ACTIVE: Final = f"SELECT node, address FROM lease_now WHERE stopped_at IS NULL AND seen_at > {NOW} - lease_s"


@asynccontextmanager
async def other_primaries(url: str, link: Link) -> AsyncIterator[list[Link]]:
    """Connect, for the time of a block, to all hosts that accept writes, but that of the connection.

    JournalRefused: the URL names a file that can't be read.
    """
    hosts = hosts_of(url)
    attempts = [asyncio.ensure_future(connect(one, "beanlite")) for one in hosts if len(hosts) > 1]
    try:
        done = await asyncio.gather(*attempts, return_exceptions=True)
        links = [each for each in done if isinstance(each, Link)]
        identities = await asyncio.gather(*map(_identity, links))
        ours = [identity for each, identity in zip(links, identities, strict=True) if each.url == link.url]
        yield [
            each
            for each, identity in zip(links, identities, strict=True)
            if each.url != link.url and (identity is None or identity not in ours)
        ]
    finally:
        for attempt in attempts:
            if attempt.done() and not attempt.cancelled() and attempt.exception() is None:
                attempt.result().drop()


async def _identity(link: Link) -> tuple[object, ...] | None:
    """Return what tells a host from others; None if it does not say."""
    try:
        row = await link.row(_IDENTITY, within_s=CONNECT_S)
    except (*TROUBLE, asyncpg.PostgresError):
        return None
    return None if row is None else tuple(row)


async def active_server(link: Link) -> asyncpg.Record | None:
    """Return the name and the address of the server that is active on a host; None: none is, or it does not say."""
    with suppress(*TROUBLE, asyncpg.PostgresError):
        return await link.glance(_ACTIVE)
    return None
