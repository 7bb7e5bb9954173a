"""Commits of other programs between the server's transactions, at moments when only SQLite knows of them."""

import os
import sqlite3
import time
from contextlib import closing

from beanlite.journal.sqlite.served.batch import batch_of
from tests.support.core import Core
from tests.support.sqlite_tool import outsider

CHANGE = "CREATE TABLE IF NOT EXISTS theirs (a); INSERT INTO theirs VALUES (1);"


def batch(journal, core):
    core.send(core.client(), b"put 0 0 60 0\r\n\r\n")
    return batch_of(core.store(), journal.chronicle.history)


async def test_a_commit_before_a_heartbeat_is_noticed(journal, monkeypatch):
    core = Core()
    journal.write(batch(journal, core))
    with outsider(journal._database.path) as do:
        do(CHANGE)
        monkeypatch.setattr(time, "monotonic", lambda t=time.monotonic: t() + 100)
        assert journal.write_slice(0, journal.chronicle.beat)
        journal.write(batch(journal, core))
    assert journal.others_came


async def test_a_commit_before_pages_are_given_back_is_noticed(journal):
    core = Core()
    client = core.client()
    for _ in range(20):
        core.send(client, b"put 0 0 60 50000\r\n%b\r\n" % (b"x" * 50000))
    journal.write(batch_of(core.store(), journal.chronicle.history))
    for n in range(1, 21):
        core.send(client, b"delete %d\r\n" % n)
    journal.write(batch_of(core.store(), journal.chronicle.history))
    with outsider(journal._database.path) as do:
        do(CHANGE)
        journal.give_back(1)
        journal.write(batch(journal, core))
    assert journal.others_came


async def test_a_commit_right_after_that_of_a_batch_apart_is_noticed(journal):
    """The worker's COMMIT has ended, and the loop is still busy with clients when another program commits."""
    core = Core()
    with outsider(journal._database.path) as do:
        execute = journal._worker.execute_fetchall

        async def busy(sql, *more):
            rows = await execute(sql, *more)
            if sql == "COMMIT":
                do(CHANGE)
            return rows

        journal._worker.execute_fetchall = busy
        await journal.write_apart(batch(journal, core))
        journal._worker.execute_fetchall = execute
        journal.write(batch(journal, core))
    assert journal.others_came


async def test_a_commit_right_after_that_of_a_batch_is_noticed(journal):
    """The process was preempted between its COMMIT and the reading of the -shm."""
    core = Core()
    with outsider(journal._database.path) as do:
        count = journal.frames.count

        def preempted():
            do(CHANGE)
            return count()

        journal.frames.count = preempted
        journal.write(batch(journal, core))
        journal.frames.count = count
        journal.write(batch(journal, core))
    assert journal.others_came


async def test_a_commit_right_after_a_batch_that_writes_nothing_is_noticed(journal):
    core = Core()
    journal.write(batch(journal, core))
    with outsider(journal._database.path) as do:
        do("CREATE TABLE theirs (a);")
        journal.write(batch(journal, core))
        journal.others_came = False
        count = journal.frames.count

        def preempted():
            do("INSERT INTO theirs VALUES (1);")
            return count()

        journal.frames.count = preempted
        core.send(core.client(), b"put 0 0 60 0\r\n\r\ndelete %d\r\n" % (core.engine.last_id + 1))
        journal.write(batch_of(core.store(), journal.chronicle.history))
        journal.frames.count = count
        journal.write(batch(journal, core))
    assert journal.others_came


async def test_a_wal_begun_anew_by_others_after_our_commit_gets_no_note(journal):
    with outsider(journal._database.path) as do:
        count = journal.frames.count

        def preempted():
            assert journal._tie.base is not None
            do(CHANGE)
            with closing(sqlite3.connect(journal._database.path, isolation_level=None)) as other:
                other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
                other.execute("INSERT INTO theirs VALUES (2)")
            return count()

        journal.frames.count = preempted
        await journal.checkpoint()
        journal.frames.count = count
    assert "user.beanlite" not in os.listxattr(f"{journal._database.path}-wal")
    assert journal.others_came
