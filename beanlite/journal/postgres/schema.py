"""Checks a database before its rows are read: it has to be set up safely, be ours, and have our schema version."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

import asyncpg

from beanlite.errors import JournalRefused, NotOurs
from beanlite.host import log
from beanlite.journal.migrations import FOLDER, find_migrations
from beanlite.journal.postgres.link import CONNECT_S, TROUBLE, Link, session, text_of

MIGRATIONS: Final = FOLDER / "postgres"
# The oldest version of PostgreSQL that is tested is 15; the features that are used came with 14.
_OLDEST: Final = 14
# The number of the advisory lock that is held while the schema is made or changed; no other program uses it in this
# database.
_LOCK: Final = 0x6265616E
# The version of the schema in which each batch has a row.
_WITH_BATCHES: Final = 3
# That in which there are policies and schedules.
_WITH_POLICIES: Final = 4
# That in which there are notes.
_WITH_NOTES: Final = 6
# That in which there is a history.
_WITH_HISTORY: Final = 9
# That in which rows of jobs have a checksum.
_WITH_CHECKSUMS: Final = 10
# All tables but schema_version.
TABLES: Final = ("lease", "batches", "jobs", "pauses", "policies", "schedules", "notes", "totals", "history")
# A dump gives a table its key when its rows are there. The table schema_version has one since there are batches.
_KEYLESS: Final = """
    SELECT relname FROM pg_class
    WHERE relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = to_regclass('lease')) AND relkind = 'r'
        AND (relname = ANY ($1) OR relname = 'schema_version' AND to_regclass('batches') IS NOT NULL)
        AND NOT EXISTS (SELECT FROM pg_index WHERE indrelid = pg_class.oid AND indisprimary AND indisvalid)
        AND EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass('lease') AND attname = 'epoch')
    ORDER BY relname LIMIT 1
"""
# The time by the database's clock, which is the same for all servers.
NOW: Final = "extract(epoch FROM clock_timestamp())::float8"
_PID: Final = "SELECT pg_backend_pid() AS pid"
_FACTS: Final = """
    SELECT current_setting('server_version_num')::integer / 10000 AS version,
           current_setting('server_encoding') AS encoding,
           current_setting('synchronous_standby_names') AS standbys,
           current_setting('synchronous_commit') AS commits,
           current_setting('client_min_messages') AS messages,
           current_setting('fsync') AS fsync,
           pg_backend_pid() AS pid,
           ARRAY (
               SELECT relname::text FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
               WHERE nspname = current_schema
           ) AS tables,
           to_regclass('schema_version') IS NOT NULL AS has_queue
"""


async def check(link: Link, name: str, *, require_sync: bool) -> None:
    """Raise JournalRefused unless this database's acknowledgements can be trusted; ``name`` is its name for people."""
    row = await link.row(_FACTS, within_s=CONNECT_S)
    assert row is not None
    link.pid = int(row["pid"])  # a pooler tells clients another one
    for setting, value, is_wrong, right in (
        ("synchronous_commit", row["commits"], row["commits"] != "on", "on"),
        ("client_min_messages", row["messages"], row["messages"] == "error", "warning"),
    ):
        if is_wrong:
            raise JournalRefused(
                f"{name} has {setting} = {value}, although this connection asks for {right}: a pooler in between"
                " ignores that; name the database itself"
            )
    if row["version"] < _OLDEST:
        raise JournalRefused(f"{name} is served by PostgreSQL {row['version']}, which is older than {_OLDEST}")
    if row["encoding"] != "UTF8":
        raise JournalRefused(f"{name} has the encoding {row['encoding']}; make it with ENCODING 'UTF8'")
    if require_sync and not row["standbys"].strip():
        raise JournalRefused(
            f"{name} has no synchronous standby: what it acknowledges would be lost with its machine; set"
            " synchronous_standby_names there, or require_sync = false here if something below PostgreSQL replicates it"
        )


async def expect_session(link: Link, name: str) -> None:
    """Raise JournalRefused if a pooler gives each transaction a session of its choice: others have what one sets.

    So a commit that somebody waits for might not wait for the standby, because another need not.
    """
    if link.told_pid == link.pid:
        return  # it is the database that answers
    pid = link.pid
    with suppress(*TROUBLE):  # the pooler may have no other connection
        async with session(link.url) as other:
            await other.rows("BEGIN", within_s=CONNECT_S)
            await other.row(_PID, within_s=CONNECT_S)  # has the session now that was used last
            row = await link.row(_PID, within_s=CONNECT_S)
            pid = row["pid"] if row is not None else pid
    if pid != link.pid:
        raise JournalRefused(
            f"{name} is behind a pooler that gives each transaction another session, and so loses its settings; have it"
            " pool sessions, or name the database itself"
        )


async def heed_fsync(link: Link, name: str) -> None:
    """Log a warning if the database runs with fsync off and may lose acknowledged commits."""
    row = await link.row(_FACTS, within_s=CONNECT_S)
    if row is not None and row["fsync"] != "on":
        log.warning("the database does not sync to its disk: a power failure can lose everything", database=name)


async def expect_keys(link: Link) -> None:
    """Raise ConnectionError if a table of ours has no primary key: while a dump is restored, or after half of one."""
    row = await link.row(_KEYLESS, TABLES, within_s=CONNECT_S)
    if row is not None:
        raise ConnectionError(
            f"its table {row['relname']} has no primary key: a dump is being restored, or its restoration was cut short"
        )


async def has_batches(link: Link, name: str) -> bool:
    """Whether the schema is one with the table of batches, or newer. Raises JournalRefused."""
    return await version_of(link, name) >= _WITH_BATCHES


async def has_policies(link: Link, name: str) -> bool:
    """Whether the schema is one with the tables of policies and of schedules, or newer. Raises JournalRefused."""
    return await version_of(link, name) >= _WITH_POLICIES


async def has_notes(link: Link, name: str) -> bool:
    """Whether the schema is one with the table of notes, or newer. Raises JournalRefused."""
    return await version_of(link, name) >= _WITH_NOTES


async def has_history(link: Link, name: str) -> bool:
    """Whether the schema is one with the table of the history, or newer. Raises JournalRefused."""
    return await version_of(link, name) >= _WITH_HISTORY


async def has_checksums(link: Link, name: str) -> bool:
    """Whether the schema is one in which rows of jobs have a checksum, or newer. Raises JournalRefused."""
    return await version_of(link, name) >= _WITH_CHECKSUMS


async def migrate(link: Link, name: str, *, only_from: int | None = None) -> None:
    """Apply missing migrations, in one transaction; with ``only_from``, only to a database of that version.

    An empty database has version 0; any other is only to be changed while holding the lease. JournalRefused: that
    failed, or permission is missing.
    """
    migrations = find_migrations(MIGRATIONS)
    connection = link.connection
    try:
        async with _transaction(link):
            await connection.execute(f"SELECT pg_advisory_xact_lock({_LOCK})")
            version = await _version(link, name)
            if version > len(migrations):
                raise JournalRefused(
                    f"{name} has version {version}, this beanlite knows {len(migrations)}; use a newer beanlite"
                )
            if version == len(migrations) or only_from not in {None, version}:
                return
            for migration in migrations[version:]:
                try:
                    await connection.execute(migration.read_text(encoding="utf-8"))
                except asyncpg.InsufficientPrivilegeError:
                    raise
                except asyncpg.PostgresError as error:
                    what = f"the migration {migration.name} of {name} failed"
                    raise JournalRefused(f"{what}: {text_of(error)}") from error
            await connection.execute("UPDATE schema_version SET number = $1", len(migrations))
        if version:
            log.info("migrated", database=name, from_version=version, to_version=len(migrations))
        for _ in range(2):  # a page of the index that is emptied can be used again after another transaction
            await connection.execute("VACUUM (INDEX_CLEANUP ON) batches")
            await connection.execute("SELECT pg_current_xact_id()")
    except asyncpg.InsufficientPrivilegeError as error:
        raise JournalRefused(f"{name}: the tables can't be made: {text_of(error)}; own the database") from error


@asynccontextmanager
async def _transaction(link: Link) -> AsyncIterator[None]:
    """Carry out a block in one transaction. Unlike with asyncpg's, the error of a lost connection stays what it is."""
    await link.connection.execute("BEGIN")
    try:
        yield
    except BaseException:
        with suppress(*TROUBLE):  # the end of the connection has undone it
            await link.connection.execute("ROLLBACK")
        raise
    await link.connection.execute("COMMIT")


async def _version(link: Link, name: str) -> int:
    """Return the number of the last migration applied; 0 for a database without our tables."""
    row = await link.row(_FACTS)
    assert row is not None
    if "schema_version" not in row["tables"]:
        if "jobs" in row["tables"]:
            raise JournalRefused(f"{name} has a table jobs that is not beanlite's; name another database")
        if not row["has_queue"]:  # nor in a later schema of the search path, which statements look into as well
            await link.connection.execute("CREATE TABLE schema_version AS SELECT 0 AS number")
    return await version_of(link, name)


async def version_of(link: Link, name: str) -> int:
    """Return the version of the schema. Raises JournalRefused."""
    try:
        number = await link.row("SELECT number FROM schema_version")
    except asyncpg.UndefinedColumnError as error:  # Flyway has had one as well
        raise NotOurs(f"{name} has a table schema_version that is not beanlite's; name another database") from error
    if number is None:
        raise JournalRefused(f"{name}: its table schema_version is empty")
    return int(number["number"])
