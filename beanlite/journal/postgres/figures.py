"""How a database is doing: its size, what keeps it from removing old rows, and what replicates it."""

from typing import Final

from beanlite.journal.base import DatabaseFigures, Standby
from beanlite.journal.postgres.link import CONNECT_S, Link

# What keeps PostgreSQL from removing old versions of rows: transactions that may still read them, by how many others
# have begun since. What other roles do may not be shown.
HOLDERS: Final = """
    SELECT concat_ws(' ', 'process', pid, nullif(application_name, '')) AS holder,
           greatest(age(backend_xmin), age(backend_xid)) AS age,
           extract(epoch FROM clock_timestamp() - xact_start) AS open_s
    FROM pg_stat_activity
    WHERE pid <> pg_backend_pid() AND (datname = current_database() OR backend_type = 'walsender')
        AND backend_type IS DISTINCT FROM 'autovacuum worker'
    UNION ALL
    SELECT 'the replication slot ' || slot_name, age(xmin), NULL FROM pg_replication_slots
    UNION ALL
    SELECT 'the prepared transaction ' || gid, age(transaction), extract(epoch FROM clock_timestamp() - prepared)
    FROM pg_prepared_xacts WHERE database = current_database()
"""
_DATABASE: Final = f"""
    WITH holders AS ({HOLDERS})
    SELECT pg_database_size(current_database()) AS size_bytes,
           (SELECT coalesce(max(open_s), 0)::float8 FROM holders) AS oldest_transaction_s,
           (SELECT coalesce(max(age), 0)::bigint FROM holders) AS oldest_snapshot,
           (SELECT holder FROM holders WHERE age > 0 ORDER BY age DESC LIMIT 1) AS oldest_holder,
           trim(current_setting('synchronous_standby_names')) <> '' AS is_synchronous
"""
_DEAD: Final = """
    SELECT pg_class.relname AS name, n_dead_tup AS dead FROM pg_stat_user_tables JOIN pg_class ON pg_class.oid = relid
    WHERE relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = to_regclass('jobs')) ORDER BY 1
"""
# A base backup is sent in the same way. Only a role that may see all has more than the name.
_STANDBYS: Final = """
    SELECT application_name AS name, coalesce(host(client_addr), '') AS address, coalesce(state, '') AS state,
           coalesce(sync_state, 'unknown') AS sync_state, extract(epoch FROM replay_lag)::float8 AS lag_s,
           pg_wal_lsn_diff(pg_current_wal_lsn(), flush_lsn)::bigint AS lag_bytes
    FROM pg_stat_replication WHERE state IS DISTINCT FROM 'backup' ORDER BY 1, 2
"""


async def database_of(link: Link) -> DatabaseFigures:
    """Ask how the database is doing; no table of ours is read. Raises one of TROUBLE or another error of asyncpg's."""
    row = await link.row(_DATABASE, within_s=CONNECT_S)
    assert row is not None
    dead = await link.rows(_DEAD, within_s=CONNECT_S)
    standbys = await link.rows(_STANDBYS, within_s=CONNECT_S)
    return DatabaseFigures(
        **row,
        dead_rows={each["name"]: each["dead"] for each in dead},
        standbys=[Standby(**each) for each in standbys],
    )
