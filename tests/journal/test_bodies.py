"""Bodies that are read back while the server runs, and recovery that leaves them in the file."""

import asyncio
import os
import sqlite3
from typing import cast

import pytest

from beanlite.core.memory import NO_BOUND
from beanlite.errors import JournalFailed, JournalRefused
from beanlite.journal.sqlite.file import replay
from beanlite.journal.sqlite.file.database import open_database
from beanlite.journal.sqlite.file.fileformat import ADVICE
from beanlite.journal.sqlite.file.replay import BELOW_ALL, read_jobs
from beanlite.journal.sqlite.file.rows import INLINE_MAX
from beanlite.journal.sqlite.served import recovery
from beanlite.journal.sqlite.served.bodies import BodyReader
from beanlite.journal.sqlite.served.journal import SqliteJournal
from tests.support.core import Core, put as put_to
from tests.support.journal_files import NO_HISTORY, put

BODIES = (b"", b"\x00\xff\r\n", b"x" * INLINE_MAX, b"y" * (INLINE_MAX + 1), b"z" * 70_000)


def body_of(number):
    return BODIES[number % len(BODIES)] + (b"%d" % number if number % len(BODIES) not in (0, 2) else b"")


@pytest.fixture
async def stored(tmp_path):
    """A file, still open in its writer, with 300 jobs of which each tenth is deleted; and a reader."""
    path = tmp_path / "queue.db"
    database = open_database(path)
    database.connection.execute("BEGIN")
    for number in range(1, 301):
        if number % 10:
            put(database.connection, number, body_of(number), large=len(body_of(number)) > INLINE_MAX)
    database.connection.execute("UPDATE meta SET last_id = 300")
    database.connection.execute("COMMIT")
    reader = BodyReader(path)
    await reader.open()
    yield database, reader
    await reader.close()
    database.close()


@pytest.mark.parametrize("number", [0, 1, 7, 8, 9, 127, 128, 129, 256, 299])
async def test_bodies_of_all_sizes_come_in_the_order_asked_for(stored, number):
    _, reader = stored
    ids = list(range(300, 300 - number, -1))
    assert await reader.read(ids) == [body_of(job_id) if job_id % 10 else None for job_id in ids]


async def test_what_was_committed_last_is_read(stored):
    database, reader = stored
    assert await reader.read([1, 301]) == [body_of(1), None]
    put(database.connection, 301, b"new")
    database.connection.execute("DELETE FROM jobs WHERE id = 1")
    assert await reader.read([1, 301, 1]) == [None, b"new", None]


async def test_while_a_batch_is_being_written_reading_does_not_wait(stored):
    database, reader = stored
    database.connection.execute("BEGIN IMMEDIATE")
    database.connection.execute("DELETE FROM jobs")
    assert await reader.read([1]) == [body_of(1)]
    database.connection.execute("ROLLBACK")


@pytest.mark.parametrize(
    ("number", "statement"),
    [
        (1, "UPDATE jobs SET body = CAST('other' AS BLOB) WHERE id = 1"),
        (4, "UPDATE bodies SET body = CAST('other' AS BLOB) WHERE id = 4"),
        (4, "DELETE FROM bodies WHERE id = 4"),
        (1, "UPDATE jobs SET crc32 = crc32 + 1 WHERE id = 1"),
        (5, "UPDATE jobs SET body = CAST('no longer empty' AS BLOB) WHERE id = 5"),
    ],
)
async def test_a_body_that_is_not_what_was_put_is_not_handed_out(stored, number, statement):
    database, reader = stored
    database.connection.execute(statement)
    with pytest.raises(JournalFailed, match=f"the body of job {number} in .* has changed"):
        await reader.read([2, number, 3])
    assert await reader.read([2, 3]) == [body_of(2), body_of(3)]


async def test_a_page_that_makes_no_sense_is_told_with_advice(stored):
    database, reader = stored
    (root,) = database.connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'bodies'").fetchone()
    database.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    os.pwrite(database.file, b"\xff" * 4096, (root - 1) * 4096)
    with pytest.raises(JournalFailed, match=f"can't be read: database disk image is malformed; {ADVICE}"):
        await reader.read([4])


async def test_the_reader_can_not_write(stored):
    _, reader = stored
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        await reader._connection.execute("CREATE TABLE mine (id)")


# -- recovery


def rows(path, **how):
    database = open_database(path)
    found = [row for chunk in read_jobs(database.connection, path, **how) for row in chunk]
    database.close()
    return found


def test_without_their_bodies_jobs_have_their_sizes(tmp_path):
    path = tmp_path / "queue.db"
    database = open_database(path)
    for number in range(1, 11):
        put(database.connection, number, body_of(number), large=len(body_of(number)) > INLINE_MAX)
    database.connection.execute("UPDATE meta SET last_id = 10")
    database.close()
    whole = rows(path)
    assert rows(path, bodies=False) == [(*row[:13], len(row[13]), *row[14:]) for row in whole]
    assert rows(path, above_id=4, bodies=False) == rows(path, bodies=False)[4:]
    assert rows(path, above_id=BELOW_ALL) == whole


def test_of_large_bodies_few_are_read_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(replay, "_CHUNK_BYTES", 10_000)
    monkeypatch.setattr(replay, "_CHUNK", 7)
    path = tmp_path / "queue.db"
    database = open_database(path)
    sizes = [5, *[4000] * 5, 90_000, *[5] * 20, 4000, 5, 20_000]
    for number, size in enumerate(sizes, 1):
        put(database.connection, number, b"x" * size, large=size > INLINE_MAX)
    chunks = [[len(cast(bytes, row[13])) for row in rows] for rows in read_jobs(database.connection, path)]
    assert [size for chunk in chunks for size in chunk] == sizes
    assert chunks == [
        [5, 4000, 4000], [4000, 4000], [4000], [90_000, *[5] * 6], [5] * 7, [5] * 7, [4000, 5], [20_000]
    ]  # fmt: skip
    database.close()


@pytest.mark.parametrize("statement", ["DELETE FROM bodies WHERE id = 3", "UPDATE jobs SET body = NULL WHERE id = 3"])
def test_a_body_that_is_missing_is_noticed_without_reading_it(tmp_path, statement):
    path = tmp_path / "queue.db"
    database = open_database(path)
    for number in range(1, 5):
        put(database.connection, number, body_of(number), large="bodies" in statement)
    database.connection.execute(statement)
    with pytest.raises(JournalRefused, match="the body of job 3 is missing"):
        list(read_jobs(database.connection, path, bodies=False))
    database.close()


class Listening:
    """A listener that reacts to the journal as the group commit does."""

    def __init__(self, engine):
        self.engine = engine

    def durable(self, batch, last_id):
        self.engine.stored(batch, last_id)

    def ready(self):
        pass

    def failed(self, error):
        raise error


async def started(path, body_max_bytes=NO_BOUND):
    """Return a core, and the journal from which it was recovered."""
    core, journal = Core(1 << 20), SqliteJournal(path, "never", None, 1 << 20, "unix:socket", NO_HISTORY)
    core.engine.bound_memory(NO_BOUND, body_max_bytes, fetches=True)
    assert await journal.recover(core.engine, core.clock(), asyncio.Event())
    journal.attach(Listening(core.engine))
    return core, journal


def queue(core):
    """Return all jobs, without bodies, in the order of their queues."""
    jobs = [core.engine.jobs[job_id] for _, part in core.engine.jobs.segments() for job_id in part]
    return [
        (job.id, job.tube.name, job.state, job.key, job.pri, job.size, job.created_ns, job.past.buries)
        for job in sorted(jobs, key=lambda job: (job.tube.name, job.state.value, job.key))
    ]


@pytest.mark.parametrize("body_max_bytes", [0, 100_000, NO_BOUND])
async def test_recovery_that_leaves_bodies_restores_the_same_queue(tmp_path, monkeypatch, body_max_bytes):
    monkeypatch.setattr(replay, "_CHUNK", 7)
    monkeypatch.setattr(recovery, "FEW_JOBS", 1 << 60)  # the jobs are counted, not guessed
    path = tmp_path / "queue.db"
    core, journal = await started(path)
    client = core.client()
    for number in range(1, 61):
        core.send(client, b"use t%d\r\n" % (number % 3))
        assert put_to(core, client, body_of(number), pri=number % 4, delay_s=1000 * (number % 5 == 0)) == number
    core.send(client, b"reserve-job 7\r\nbury 7 5\r\nreserve-job 8\r\nbury 8 5\r\ndelete 9\r\n")
    journal.commit(core.engine.take_changes(deferred=True))
    before = queue(core)
    assert await journal.close() is None

    core, journal = await started(path, body_max_bytes)
    memory = core.engine.memory
    assert [job[:6] for job in queue(core)] == [job[:6] for job in before]
    jobs = list(core.engine.jobs.newest.values())
    left = [job.id for job in jobs if job.body is None]
    assert memory.unloaded == len(left)
    assert memory.unloaded_bytes == sum(job.size for job in jobs if job.body is None)
    assert memory.body_bytes <= body_max_bytes
    if body_max_bytes == 0:
        assert len(left) == 59
    elif body_max_bytes == NO_BOUND:
        assert not left
    else:
        assert 0 < len(left) < 59
        assert left == [job.id for job in jobs][-len(left) :]
    assert await journal.fetch(left) == [body_of(job_id) for job_id in left]
    assert all(job.body == body_of(job.id) for job in jobs if job.body is not None)
    assert await journal.close() is None
