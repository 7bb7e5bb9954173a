"""The rows that a batch of changes writes."""

import sqlite3
import threading
from contextlib import closing

import pytest

from beanlite.errors import JournalFailed, JournalRefused
from beanlite.host.clock import Clock
from beanlite.journal.sqlite.file.database import open_database
from beanlite.journal.sqlite.file.migrations import allow_writing
from beanlite.journal.sqlite.file.replay import read_jobs
from beanlite.journal.sqlite.file.wal import min_wal_size
from beanlite.journal.sqlite.served.batch import FREED_PART, batch_of
from beanlite.journal.sqlite.served.frames import CHECKPOINT_FRAMES
from beanlite.journal.sqlite.served.writer import IDS_AHEAD, Writer
from tests.support.core import Core, put
from tests.support.journal_files import NO_HISTORY


def write(journal, core):
    journal.write(batch_of(core.store(), journal.chronicle.history))


def stored(journal):
    """Return each job's id, state (None: ready), reserves, and other counters: timeouts, releases, buries, kicks."""
    path = journal._database.path
    return [(row[0], row[2], row[8], row[9:13]) for rows in read_jobs(journal._db, path) for row in rows]


async def test_deletes_of_single_ids_and_of_runs_leave_all_others(journal):
    core = Core()
    client = core.client()
    for _ in range(12):
        core.send(client, b"put 0 0 60 0\r\n\r\n")
    write(journal, core)
    for job_id in (9, 2, 12, 3, 4, 7, 10):
        assert core.send(client, b"delete %d\r\n" % job_id) == b"DELETED\r\n"
    write(journal, core)
    assert [job_id for job_id, *_ in stored(journal)] == [1, 5, 6, 8, 11]


async def test_deletes_of_large_bodies_count_as_writing_a_part_of_them(journal):
    core = Core()
    client = core.client()
    for size in (100, 60_000, 50_000):
        put(core, client, b"x" * size)
    write(journal, core)
    core.send(client, b"delete 1\r\ndelete 2\r\n")
    assert batch_of(core.store(), journal.chronicle.history).body_bytes == 60_000 // FREED_PART


async def test_each_of_many_new_jobs_is_written_as_it_was_put(journal):
    core = Core()
    client = core.client()
    puts = [(b"tube-%d" % (number % 3), number * 7 % 11, number % 5, b"%d" % number * number) for number in range(40)]
    for tube, pri, ttr_s, body in puts:
        core.send(client, b"use %b\r\nput %d 0 %d %d\r\n%b\r\n" % (tube, pri, ttr_s + 1, len(body), body))
    write(journal, core)
    rows = [row for rows in read_jobs(journal._db, journal._database.path) for row in rows]
    assert [(row[0], row[1], row[3], row[5] - 1, row[13]) for row in rows] == [
        (number, *put) for number, put in enumerate(puts, 1)
    ]


async def test_what_happened_to_a_job_before_it_was_first_written_is_kept(journal):
    core = Core()
    client = core.client()
    core.send(client, b"put 0 9 60 0\r\n\r\n" * 2 + b"put 0 0 60 0\r\n\r\n" * 2)
    core.send(client, b"kick 1\r\nreserve\r\nrelease 1 0 0\r\n")
    core.send(client, b"reserve-job 3\r\n")
    core.send(client, b"kick-job 2\r\n")
    write(journal, core)
    assert stored(journal) == [
        (1, None, 1, (0, 1, 0, 1)),
        (2, None, 0, (0, 0, 0, 1)),
        (3, "reserved", 1, (0, 0, 0, 0)),
        (4, None, 0, (0, 0, 0, 0)),
    ]


async def test_a_row_that_is_gone_is_an_error(journal):
    core = Core()
    client = core.client()
    core.send(client, b"put 0 0 60 0\r\n\r\n" * 3)
    write(journal, core)
    journal._db.execute("DELETE FROM jobs WHERE id = 2")
    core.send(client, b"delete 1\r\ndelete 2\r\ndelete 3\r\n")
    with pytest.raises(RuntimeError, match="3 jobs to change, 2 found"):
        write(journal, core)
    journal._db.rollback()  # a server would end here


async def test_row_that_another_program_deleted_is_no_bug_of_ours(journal):
    core = Core()
    client = core.client()
    core.send(client, b"put 0 0 60 0\r\n\r\n")
    write(journal, core)
    with closing(sqlite3.connect(journal._database.path, isolation_level=None)) as other:
        allow_writing(other)
        other.execute("DELETE FROM jobs")  # as .restore of the sqlite3 command does
    core.send(client, b"delete 1\r\n")
    with pytest.raises(
        JournalFailed, match=r"no longer is what was served; another program has been at it \(1 jobs to"
    ):
        write(journal, core)
    journal._db.rollback()  # a server would end here


@pytest.mark.parametrize("body", [b"", b"x" * 20_000])
async def test_a_checkpoint_is_due_after_so_many_frames_whatever_is_in_them(journal, body):
    core = Core()
    client = core.client()
    for _ in range(3):
        frames = 0
        while not journal.frames.checkpoint_due:
            frames = journal.frames.added
            core.send(client, b"put 0 0 60 %d\r\n%b\r\n" % (len(body), body) * 10)
            write(journal, core)
        assert frames < CHECKPOINT_FRAMES <= journal.frames.added
        counted = journal.frames.added
        await journal.checkpoint()
        assert journal.frames.at_checkpoint == counted


@pytest.mark.parametrize("case", ["a checkpoint", "pages given back", "another program's lock"])
async def test_checkpoint_leaves_no_batch_to_begin_the_wal_anew(journal, case):
    """SQLite syncs the header of a -wal that is begun anew, and truncates the file."""
    journal._db.execute("PRAGMA journal_size_limit = 0").fetchone()
    core = Core()
    client = core.client()
    for _ in range(3):
        put(core, client, b"x" * 60_000)
    write(journal, core)
    long = journal.frames.committed
    with closing(sqlite3.connect(journal._database.path, isolation_level=None)) as other:
        if case == "another program's lock":
            other.execute("BEGIN IMMEDIATE")
            await journal.checkpoint()
            assert journal.frames.committed == long
            other.execute("ROLLBACK")
        else:
            await journal.checkpoint()
            if case == "pages given back":
                await journal.shrink()
            assert 0 < journal.frames.committed < long
            assert min_wal_size(1) <= journal.wal_bytes < min_wal_size(long)
    put(core, client, b"x")
    write(journal, core)
    assert journal.frames.committed < long
    assert not journal.others_came


@pytest.mark.parametrize("size", [0, 500, 20_000, 1_000_000])
async def test_a_batch_has_no_more_frames_than_its_index_was_given_room_for(journal, size):
    core = Core(max_job_size=size)
    client = core.client()
    core.send(client, b"put 0 0 60 %d\r\n%b\r\n" % (size, b"x" * size) * 5)
    batch = batch_of(core.store(), journal.chronicle.history)
    journal.write(batch)
    assert 0 < journal.frames.added <= batch.frames


@pytest.mark.parametrize("hindrance", [None, "another", "a fault"])
async def test_close_notes_the_last_id_and_raises_a_fault_in_that(tmp_path, hindrance):
    path = tmp_path / "queue.db"
    journal = Writer(open_database(path), "unix:socket", NO_HISTORY, Clock(), 0)
    journal.prepare()
    await journal.start()
    core = Core()
    core.send(core.client(), b"put 0 0 60 0\r\n\r\n" * 3)
    write(journal, core)
    outsider = sqlite3.connect(path, isolation_level=None)
    if hindrance == "another":
        outsider.execute("BEGIN IMMEDIATE")
    elif hindrance == "a fault":
        journal._db.execute("PRAGMA query_only = ON")
    if hindrance == "a fault":
        with pytest.raises(JournalFailed, match="readonly"):
            await journal.close()
    else:
        await journal.close()
    assert outsider.execute("SELECT last_id FROM meta").fetchone() == (3 if hindrance is None else 3 + IDS_AHEAD,)
    outsider.close()


async def test_a_lock_of_another_program_is_told_as_that(tmp_path):
    database = open_database(tmp_path / "queue.db")
    with closing(sqlite3.connect(database.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        journal = Writer(database, "unix:socket", NO_HISTORY, Clock(), 0)
        with pytest.raises(
            JournalRefused, match="can't be used: database is locked; another program holds a lock on it"
        ):
            journal.prepare()
    assert database.close() is None


async def test_a_start_waits_for_a_lock_that_is_held_briefly(tmp_path):
    database = open_database(tmp_path / "queue.db")
    other = sqlite3.connect(database.path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    release = threading.Thread(target=other.rollback)
    database.connection.set_trace_callback(lambda said: release.start() if said.startswith("UPDATE meta") else None)
    journal = Writer(database, "unix:socket", NO_HISTORY, Clock(), 0)
    journal.prepare()
    release.join()
    other.close()
    await journal.start()
    assert await journal.close() is None
