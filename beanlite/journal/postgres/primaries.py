"""The hosts that accept writes: more than one does if a standby was promoted and its primary was not stopped."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from beanlite.journal.postgres.address import hosts_of
from beanlite.journal.postgres.link import Link, connect


@asynccontextmanager
async def primaries(url: str) -> AsyncIterator[list[Link]]:
    """Connect, for the time of a block, to all hosts that accept writes; to none if the URL names only one.

    JournalRefused: the URL names a file that can't be read.
    """
    hosts = hosts_of(url)
    attempts = [asyncio.ensure_future(connect(one, "beanlite")) for one in hosts if len(hosts) > 1]
    try:
        done = await asyncio.gather(*attempts, return_exceptions=True)
        yield [each for each in done if isinstance(each, Link)]
    finally:
        for attempt in attempts:
            if attempt.done() and not attempt.cancelled() and attempt.exception() is None:
                attempt.result().drop()
