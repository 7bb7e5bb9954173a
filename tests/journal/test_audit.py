"""After another program has changed the file, the rows are compared with memory while clients are served."""

import asyncio
import json
import random
import sqlite3
from contextlib import closing

import pytest

from beanlite.core import table as jobs
from beanlite.errors import JournalFailed
from beanlite.journal.columns import COUNTERS
from beanlite.journal.sqlite.served import upkeep
from beanlite.journal.sqlite.served.audit import SLICE_JOBS
from beanlite.journal.sqlite.served.batch import batch_of
from beanlite.journal.sqlite.tools.load import load
from tests.support.core import Core
from tests.support.inside import ask, connect, serving, until
from tests.support.journal_files import VERSION
from tests.support.policies import schedule, set_schedules

BODIES = (b"", b"small", b"x" * 1024, b"x" * 1025, b"x" * 20_000)
COPY = "CREATE TABLE t AS SELECT * FROM jobs WHERE id = 61; UPDATE t SET id = {}; INSERT INTO jobs SELECT * FROM t"
COMMANDS = (
    "reserve-with-timeout 0",
    "reserve-job {id}",
    "touch {id}",
    "release {id} {pri} {delay_s}",
    "bury {id} {pri}",
    "delete {id}",
    "delete {id}",
    "kick 3",
    "kick-job {id}",
    "pause-tube {tube} {delay_s}",
    "use {tube}",
    "watch {tube}",
    "name w{pri}",
)


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(upkeep, "AUDIT_REST_S", 0.0)
    monkeypatch.setattr("beanlite.journal.sqlite.served.audit.SLICE_JOBS", 7)
    monkeypatch.setattr(jobs, "NEWEST_MAX", 50)


def around_the_guards(path, statement):
    """Change something, by defining the function that the guard triggers call."""
    with closing(sqlite3.connect(path, isolation_level=None)) as outsider:
        outsider.create_function("only_the_beanlite_server_may_write", 0, lambda: 1)
        outsider.executescript(statement)


def some(chance):
    """Return a few random commands that a client sends at once."""
    fields = {"id": chance.randrange(1, 300), "pri": chance.randrange(9), "delay_s": chance.choice((0, 0, 1, 500))}
    fields["tube"] = chance.choice(("default", "one", "two"))
    for _ in range(chance.randrange(1, 6)):
        if chance.random() < 0.4:
            body = chance.choice(BODIES)
            line = "put {pri} {delay_s} 1 ".format(**fields)
            yield line.encode() + b"%d\r\n%b\r\n" % (len(body), body)
        else:
            yield chance.choice(COMMANDS).format(**fields).encode() + b"\r\n"


async def work(client, chance, over):
    """Send commands until ``over`` is set; the replies do not matter here."""
    reading = asyncio.create_task(client[0].read())
    while not over.is_set() and not reading.done():
        client[1].write(b"".join(some(chance)))
        await asyncio.sleep(0.002)  # otherwise there would soon be too many jobs to compare
    client[1].write(b"quit\r\n")
    await reading


@pytest.mark.parametrize("fsync", ["always", "5ms"])
async def test_audit_does_not_take_the_servers_writes_for_changes(tmp_path, fsync):
    path = tmp_path / "q.db"
    over = asyncio.Event()
    slices, ends = [], []
    async with serving(path, fsync) as (server, _):
        audit = server.parts.journal._writer.audit

        def seen(engine):
            for each in audit(engine):
                slices.append(each)
                yield
            ends.append(len(slices))

        server.parts.journal._writer.audit = seen
        clients = [await connect(server) for _ in range(4)]
        working = [asyncio.create_task(work(each, random.Random(n), over)) for n, each in enumerate(clients)]
        await until(lambda: len(server.parts.engine.jobs) > 100)
        with closing(sqlite3.connect(path, isolation_level=None, timeout=0)) as outsider:
            for audits in range(5):
                await until(lambda: change_nothing(outsider))
                await until(lambda: len(ends) > audits or server._failure)  # noqa: B023 - it is called here only
                assert server._failure is None
        over.set()
        await asyncio.gather(*working)
        assert len(slices) > 5 * len(ends)


def change_nothing(outsider):
    """Commit without changing anything; return False if another connection is writing."""
    try:
        outsider.execute(f"PRAGMA user_version = {VERSION}")
    except sqlite3.OperationalError:
        return False
    return True


async def test_audit_accepts_imported_jobs_without_a_time_in_their_state(tmp_path):
    path = tmp_path / "q.db"
    job = {"kind": "job", "id": 1, "tube": "a", "state": "ready", "pri": 0, "delay_s": 0, "ttr_s": 60, "created_at": 1}
    counters = dict.fromkeys(COUNTERS, 0)
    load([json.dumps({**job, **counters, "body": "x"}).encode()], path)
    audited = []
    async with serving(path) as (server, _):
        audit = server.parts.journal._writer.audit

        def seen(engine):
            yield from audit(engine)
            audited.append(engine.jobs[1].since_ns)

        server.parts.journal._writer.audit = seen
        client = await connect(server)
        with closing(sqlite3.connect(path, isolation_level=None, timeout=0)) as outsider:
            await until(lambda: change_nothing(outsider))
            assert await ask(client, b"put 0 0 60 1\r\nx\r\n") == b"INSERTED 2\r\n"
            await until(lambda: audited or server._failure)
        assert server._failure is None


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        ("UPDATE jobs SET pri = 7 WHERE id = 61", "job 61"),
        ("UPDATE jobs SET due_at = due_at + 1 WHERE id = 3", "job 3"),
        ("UPDATE jobs SET body = CAST('other' AS BLOB) WHERE id = 61", "job 61"),
        ("UPDATE bodies SET body = CAST('other' AS BLOB) WHERE id = 5", "job 5"),
        ("DELETE FROM bodies WHERE id = 5", "job 5"),
        ("DELETE FROM jobs WHERE id = 100", "job 100"),
        ("INSERT INTO bodies SELECT 61, body FROM jobs WHERE id = 61", "job 61"),
        (COPY.format(50), "job 50"),
        (COPY.format(500), "jobs"),
        ("UPDATE meta SET last_id = 5", "the last id"),
        ("UPDATE pauses SET pause_s = 5", "the pause of b'default'"),
        ("DELETE FROM pauses", "the pause of b'default'"),
        ("INSERT INTO pauses VALUES ('mine', 1, 1)", "the pause of b'mine'"),
    ],
)
async def test_a_change_around_the_guards_is_noticed(tmp_path, statement, what):
    async with serving(tmp_path / "q.db") as (server, task):
        client = await connect(server)
        for number in range(1, 121):
            body = b"x" * (5000 if number % 5 == 0 else 5)
            put = b"put 0 %d 60 %d\r\n%b\r\n" % (1000 * (number == 3), len(body), body)
            assert await ask(client, put) == b"INSERTED %d\r\n" % number
        assert await ask(client, b"pause-tube default 1000\r\n") == b"PAUSED\r\n"
        assert await ask(client, b"delete 50\r\n") == b"DELETED\r\n"
        around_the_guards(tmp_path / "q.db", statement)
        assert await ask(client, b"delete 7\r\n") == b"DELETED\r\n"
        with pytest.raises(JournalFailed, match=f"another program has changed {what} in .*; it no longer is what"):
            await asyncio.wait_for(asyncio.shield(task), 10)


async def test_many_pauses_are_compared_in_slices(tmp_path):
    tubes = 2 * SLICE_JOBS + 1
    async with serving(tmp_path / "q.db") as (server, _):
        reader, writer = await connect(server)
        for number in range(tubes):
            writer.write(b"watch t%d\r\npause-tube t%d 1000\r\n" % (number, number))
        for _ in range(2 * tubes):
            await asyncio.wait_for(reader.readline(), 10)
        await until(lambda: not server.parts.journal.busy)
        steps = list(server.parts.journal._writer.audit(server.parts.engine))
    assert len(steps) > 2 * 3


async def test_schedules_are_compared_in_slices_too(journal, monkeypatch):
    monkeypatch.setattr("beanlite.journal.sqlite.served.audit.SLICE_BYTES", 100_000)
    core = Core()
    each = [schedule(f"s{n}", body=b"x" * 60_000, next_at=4e9) for n in range(20)]
    set_schedules(core.engine, *each)
    journal.write(batch_of(core.store(), journal.chronicle.history))
    assert sum(1 for _ in journal.audit(core.engine)) > 10
    around_the_guards(journal._database.path, "UPDATE schedules SET pri = 8 WHERE name = 's19'")
    with pytest.raises(JournalFailed, match="the schedule s19"):
        list(journal.audit(core.engine))
