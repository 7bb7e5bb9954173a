"""Why a statement has not been answered yet."""

from typing import Final

from beanlite.journal.postgres.link import LOOK_AFTER_S, OURS, Link

NO_STANDBY: Final = "no answer from the synchronous standby"
CROWDED: Final = "reason unknown, since all connections of the database are in use"
SLOW: Final = "the database is slow"
# What the role that has connected waits for may not be shown to the one that ALTER ROLE ... SET role has made of it.
_AS_WHO_CONNECTED: Final = "SELECT set_config('role', 'none', false)"
_AS_CONFIGURED: Final = "RESET role"
_WAITS: Final = """
    SELECT array_to_string(pg_blocking_pids(pid), ', ') AS blocked_by,
           (
               SELECT min(application_name) FROM pg_stat_activity
               WHERE pid = ANY (pg_blocking_pids(waiting.pid)) AND starts_with(application_name, 'beanlite ')
           ) AS server,
           EXISTS (
               SELECT FROM pg_stat_activity
               WHERE pid = ANY (waiting.pid || pg_blocking_pids(waiting.pid)) AND wait_event = 'SyncRep'
           ) AS awaits_standby
    FROM pg_stat_activity AS waiting WHERE pid = $1 AND application_name = $2
"""


async def why_it_waits(other: Link, name: str, pid: int) -> str | None:
    """Return why the server process of a connection has not answered yet, for people; None: there is no such process.

    Raises one of TROUBLE.
    """
    await other.row(_AS_WHO_CONNECTED, within_s=LOOK_AFTER_S)
    row = await other.row(_WAITS, pid, name, within_s=LOOK_AFTER_S)
    await other.row(_AS_CONFIGURED, within_s=LOOK_AFTER_S)
    if row is None:
        return None
    # By itself, or behind another commit that does: a beat beside it, or a copy whose connection was lost.
    if row["awaits_standby"]:
        return NO_STANDBY
    if row["server"]:
        server = row["server"].removeprefix(OURS)
        return f"a commit of the server {server} is under way, in process {row['blocked_by']} of the database"
    if row["blocked_by"]:
        return f"another program has a lock, in process {row['blocked_by']} of the database"
    return SLOW
