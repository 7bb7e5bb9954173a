"""The hosts that accept writes: more than one does if a standby was promoted and its primary was not stopped."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

import asyncpg

from beanlite.journal.postgres.address import hosts_of
from beanlite.journal.postgres.link import TROUBLE, Link, connect
from beanlite.journal.postgres.schema import NOW

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
        # A restart of the host may have ended the connection just now. The attempt to our own address may have failed.
        ours = {link.host, *(each.host for each in links if each.url == link.url)}
        yield [each for each in links if each.url != link.url and (each.host is None or each.host not in ours)]
    finally:
        for attempt in attempts:
            if attempt.done() and not attempt.cancelled() and attempt.exception() is None:
                attempt.result().drop()


async def active_server(link: Link) -> asyncpg.Record | None:
    """Return the name and the address of the server that is active on a host; None: none is, or it does not say."""
    with suppress(*TROUBLE, asyncpg.PostgresError):
        return await link.glance(_ACTIVE)
    return None
