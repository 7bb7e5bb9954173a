"""Which servers use a database, and how it is replicated, as the database itself reports."""

import asyncio
import re
from typing import Any, Final

from beanlite.errors import JournalRefused
from beanlite.journal.postgres.address import public_url, sslmode_of
from beanlite.journal.postgres.figures import database_of
from beanlite.journal.postgres.link import name_of, session
from beanlite.journal.postgres.primaries import host_of_queue, other_primaries
from beanlite.journal.postgres.reader import telling

_OURS: Final = "beanlite "
_ALIVE: Final = """
    SELECT status, node, address, version, started, seen_s, epoch,
           (SELECT to_jsonb(lease) ->> 'takeovers' FROM lease)::bigint AS takeovers,
           host(inet_server_addr()) || ':' || inet_server_port() AS database,
           (SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()) AS encrypted,
           current_setting('server_version') AS postgresql,
           current_setting('synchronous_standby_names') AS synchronous_standby_names
    FROM alive
"""
# A server that stands by looks at the lease several times a second. PostgreSQL keeps the connections of one that is
# halted, or whose machine is lost, and waits for what it sends next, perhaps amid a statement. What other roles do may
# not be shown: then it is unknown. Two servers may have the same name, and one of them may be active: the other is the
# one that looks.
_SILENT_S: Final = 10.0
_SERVERS: Final = """
    SELECT application_name AS name,
           bool_and(
               wait_event = 'ClientRead' AND state_change < clock_timestamp() - make_interval(secs => $2)
           ) IS TRUE AS is_silent
    FROM pg_stat_activity
    WHERE datname = current_database() AND starts_with(application_name, $1)
        AND (application_name <> $3 OR query LIKE '%AS is_free%')
    GROUP BY 1 ORDER BY 1
"""
# "FIRST 2 (a, b)", "ANY 2 (a, b)" or "2 (a, b)"; a plain list of names needs one of them.
_NEEDED: Final = re.compile(r"\s*(?:(?:FIRST|ANY)\s*)?(\d+)\s*\(", re.IGNORECASE)


def status(url: str) -> dict[str, Any]:
    """Return the status of a database. BeanliteError: it can't be read. JournalRefused: it has no queue of ours."""
    with telling(public_url(url)):
        return asyncio.run(_ask(url))


async def _ask(url: str) -> dict[str, Any]:
    async with session(await host_of_queue(url)) as link:
        row = await link.glance(_ALIVE)
        if row is None:
            raise JournalRefused(f"{public_url(url)}: its table lease is empty")
        servers = await link.rows(_SERVERS, _OURS, _SILENT_S, name_of(row["node"]))
        database = await database_of(link)
        async with other_primaries(url, link) as links:
            others = [public_url(each.url) for each in links if each.is_of_the_system(link.history)]
    standing_by, silent = (
        [each["name"].removeprefix(_OURS) for each in servers if each["is_silent"] == is_silent]
        for is_silent in (False, True)
    )
    parts = [standby.sync_state for standby in database.standbys]
    names = row["synchronous_standby_names"]
    several = _NEEDED.match(names)
    needed, streaming = int(several[1]) if several else 1, parts.count("sync") + parts.count("quorum")
    # Of an unknown one the role may not see whether commits wait for it.
    commits_wait = database.is_synchronous and streaming < needed and "unknown" not in parts
    few = f"{streaming} of {needed} synchronous standbys" if streaming else "no synchronous standby"
    doubt = f", but commits wait: {few} ({names}) {'is' if streaming < 2 else 'are'} streaming" if commits_wait else ""
    return {
        **row,
        "status": f"{row['status']}{doubt}",
        "commits_wait": commits_wait,
        "sslmode": sslmode_of(url),
        "standing_by": standing_by,
        "silent": silent,
        "other_primaries": others,
        "replicas": [replica._asdict() for replica in database.standbys],
        "size_bytes": database.size_bytes,
        "dead_rows": database.dead_rows,
        "oldest_transaction_s": round(database.oldest_transaction_s, 3),
        "oldest_snapshot": database.oldest_snapshot,
        "oldest_holder": database.oldest_holder,
    }
