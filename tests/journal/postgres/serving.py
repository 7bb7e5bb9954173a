"""A journal on a real database, served without a network; and helpers that its tests share."""

import asyncio
import re

import asyncpg
import pytest

from beanlite.core.engine import Engine
from beanlite.errors import JournalRefused
from beanlite.host.clock import Clock
from beanlite.journal.event_rows import DEEDS_ONLY
from beanlite.journal.migrations import find_migrations
from beanlite.journal.postgres import lease
from beanlite.journal.postgres.address import Entry
from beanlite.journal.postgres.ahead import Ahead
from beanlite.journal.postgres.journal import PostgresJournal
from beanlite.journal.postgres.lease import Applicant
from beanlite.journal.postgres.schema import MIGRATIONS
from tests.journal.test_base import Serving
from tests.support.core import put

LEASE_S = 1
SOON_S = 60


async def until(true):
    """Wait until a condition is true, polling it every millisecond."""
    async with asyncio.timeout(SOON_S):
        while not true():
            await asyncio.sleep(0.001)


class Postgres:
    """A database, as the medium of a journal."""

    def __init__(self, url, *, lease_s=LEASE_S, require_sync=False, node="here", clock=None, history=DEEDS_ONLY):
        self._clock = clock or Clock()
        self._history = history
        self._place = Entry(url, node, "127.0.0.1:11300", lease_s, require_sync)
        self.url = url
        self.standing_by = []

    def open(self):
        return PostgresJournal(
            self._place, self._clock, lambda active: self.standing_by.append(active is not None), self._history
        )


class ServingPostgres(Serving):
    """Serving in real time, on which the lease depends."""

    async def start(self):
        self.core.now_ns = Clock()()
        return await super().start()

    def release(self, replies):
        self.released.append(int(replies))

    async def put(self, body=b"job"):
        job_id = self.begin_to_put(body)
        await until(lambda: job_id in self.released or self.failures)
        return job_id

    def begin_to_put(self, body=b"job"):
        job_id = put(self.core, self.client, body=body)
        self.group.hold(self, b"%d" % job_id)
        return job_id

    async def abandon(self):
        """Leave everything as if the process had been killed."""
        self.journal._sender.end()
        self.journal._reader.close()
        self.journal._upkeep.close()
        upkeep = {self.journal._pruning, self.journal._looking_after}
        for task in upkeep:
            task.cancel()
        await asyncio.wait(upkeep)


def applicant(database, stand_by=lambda _: None):
    """Return a server that wants the lease of a database."""
    return Applicant(
        database, "here", "127.0.0.1:1", LEASE_S, require_sync=False, name="it", clock_ns=Clock(), stand_by=stand_by
    )


async def take(applicant, stopped):
    """Take the lease, and read nothing ahead."""
    return await lease.take(applicant, stopped, Ahead(Engine().memory, applicant.name))


async def served(url, **others):
    return await ServingPostgres(Postgres(url, **others)).start()


def by(way, url):
    """Return the URL of the same database through a proxy that can cut connections."""
    return re.sub(r":\d+/", f":{way.port}/", url)


async def by_few(postgres, url):
    """Make a role whose number of connections can be limited; return it, and the URL of the same database for it."""
    role = f"few_of_{url.rpartition('/')[2]}"
    await postgres.asql(f"CREATE ROLE {role} LOGIN")
    await sql(postgres, url, f"GRANT ALL ON SCHEMA public TO {role}")
    return role, url.replace("queue@", f"{role}@")


async def sql(postgres, database, statement):
    return await postgres.asql(statement, database.rpartition("/")[2])


async def made_by_an_older_version(url, version):
    """Make the tables as they were in an older version of the schema."""
    connection = await asyncpg.connect(url)
    await connection.execute(f"CREATE TABLE schema_version AS SELECT {version} AS number")
    for migration in find_migrations(MIGRATIONS)[:version]:
        await connection.execute(migration.read_text())
    await connection.close()


async def refusal(url, **others):
    journal = Postgres(url, **others).open()
    serving = ServingPostgres(Postgres(url))
    with pytest.raises(JournalRefused) as refused:
        await asyncio.wait_for(journal.recover(serving.core.engine, serving.core.clock(), asyncio.Event()), SOON_S)
    assert "\n" not in str(refused.value)
    return str(refused.value)


async def without_standby(cluster):
    """Let commits wait for no standby."""
    await cluster.asql("ALTER SYSTEM SET synchronous_standby_names = ''")
    await cluster.asql("SELECT pg_reload_conf()")


async def commit_waits(cluster, whose="true"):
    """Wait until a commit there waits for the standby."""
    async with asyncio.timeout(SOON_S):
        while not await cluster.asql(f"SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND {whose}"):
            await asyncio.sleep(0.01)


async def with_lost_standby(cluster):
    """Let commits wait for a standby that is not there. Return once one does: a reload takes effect later."""
    await cluster.asql("ALTER SYSTEM SET synchronous_standby_names = 'lost'")
    await cluster.asql("SELECT pg_reload_conf()")
    connection = await asyncpg.connect(cluster.url())

    async def commit_until_one_waits():
        while True:
            await connection.execute("SELECT pg_logical_emit_message(true, '', '')")

    commits = asyncio.create_task(commit_until_one_waits())
    pid = connection.get_server_pid()
    await commit_waits(cluster, f"pid = {pid}")
    await cluster.asql(f"SELECT pg_terminate_backend({pid})")
    await asyncio.wait([commits])
    assert isinstance(commits.exception(), asyncpg.PostgresConnectionError), commits
