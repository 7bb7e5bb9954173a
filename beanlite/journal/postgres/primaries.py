"""The hosts that accept writes: more than one does if a standby was promoted and its primary was not stopped."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

import asyncpg

from beanlite.journal.postgres.address import hosts_of, public_url
from beanlite.journal.postgres.link import TROUBLE, Link, connect, connect_to_all, newest_of
from beanlite.journal.postgres.schema import NOW

_USED: Final = "a server is active on another host that accepts writes: stop one of the hosts"
_LACKS: Final = (
    "another host that accepts writes has commits that this one lacks: stop the host that is to lose its own"
)
# A server is active if it has renewed its lease of late, by the clock of that database.
_LEASE: Final = f"""
    SELECT node, address, epoch, batch, coalesce(stopped_at IS NULL AND seen_at > {NOW} - lease_s, false) AS is_active
    FROM lease_now
"""


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


async def lease_on(link: Link) -> asyncpg.Record | None:
    """Return the lease on a host: its server, and whether that is active; None: the host does not say."""
    with suppress(*TROUBLE, asyncpg.PostgresError):
        return await link.glance(_LEASE)
    return None


async def host_of_queue(url: str) -> str:
    """Return the URL of the host with the queue: a server is active there, or it has the last commits.

    Of several that are alike it is the one that was promoted last. Raises as ``connect`` does.
    """
    if len(hosts_of(url)) == 1:
        return url
    links = await connect_to_all(url, "beanlite")
    try:
        newest = newest_of(links)
        last, last_rank = newest, await _rank(newest)
        for link in links:
            if link.is_of_the_system(newest.history) and (rank := await _rank(link)) > last_rank:
                last, last_rank = link, rank
        return last.url
    finally:
        for link in links:
            link.drop()


async def _rank(link: Link) -> tuple[bool, int, int]:
    lease = await lease_on(link)
    return (False, -1, -1) if lease is None else (lease["is_active"], lease["epoch"], lease["batch"])


async def why_not_here(url: str, link: Link, epoch: int, batch: int) -> tuple[str, dict[str, object]] | None:
    """Return why no server may take the lease on a host, as an event and its fields; None: one may.

    The lease has this epoch and this batch there. On another host a server is active, or has stored what this one
    lacks, and perhaps the other way round. ConnectionError: a host was promoted after that of the connection.
    """
    async with other_primaries(url, link) as links:
        for other in links:
            link.expect_successor(other.history)
            lease = await lease_on(other)
            if lease is None:
                continue
            hosts = {"database": public_url(link.url), "its_database": public_url(other.url)}
            if lease["is_active"]:
                server = {"node": lease["node"], "address": lease["address"]}
                return _USED, server | hosts
            has_more = lease["epoch"] > epoch or lease["batch"] > batch
            if has_more and other.is_of_the_system(link.history):
                return _LACKS, {**hosts, "batch": batch, "its_batch": lease["batch"]}
    return None
