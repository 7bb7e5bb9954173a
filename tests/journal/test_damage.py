"""Damaged files: a start or a backup reports them in one line, never a traceback, not even while serving."""

import asyncio
import os
import random
import re
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from zlib import crc32

import pytest

from beanlite.cli import main
from beanlite.core.engine import Engine
from beanlite.core.restore import StoredJob
from beanlite.core.snapshot import job_snapshot, tube_snapshot
from beanlite.errors import BeanliteError, JournalRefused
from beanlite.host.clock import Clock
from beanlite.journal.sqlite.file.database import open_database
from beanlite.journal.sqlite.file.fileformat import WHAT_TO_DO
from beanlite.journal.sqlite.served import recovery
from beanlite.journal.sqlite.served.batch import batch_of
from beanlite.journal.sqlite.served.journal import SqliteJournal
from beanlite.journal.sqlite.tools.backup import backup
from beanlite.journal.sqlite.tools.btree import Pages
from beanlite.journal.sqlite.tools.verify import verify
from beanlite.protocol.stats import job_stats, tube_stats
from tests.support.inside import abandon
from tests.support.journal_files import NO_HISTORY, VERSION, make, put, put_by_chance, unchecked
from tests.support.servers import ServerDied, start_beanlite

PAGE = 4096
VARIANTS = 80
TEXT_MAX = 400
LAST_ID = 60


def fill(connection):
    """Insert jobs in all states, with pasts and with bodies of all sizes, and pauses."""
    chance = random.Random(1)
    connection.execute("BEGIN")
    for number in range(1, LAST_ID + 1):
        put_by_chance(connection, number, chance, [0, 5, 50, 300, 2000, 6000], [4e9, 1.7e9])
    connection.execute("INSERT INTO pauses VALUES ('default', 60, 4e9), ('gone', 5, 1.7e9)")
    connection.execute("UPDATE meta SET batch = 5, last_id = ?", (LAST_ID,))
    connection.execute("COMMIT")


@pytest.fixture
def stopped(path):
    """The file of a server that was stopped in an orderly way."""
    database = open_database(path)
    fill(database.connection)
    assert database.close() is None
    return path


@pytest.fixture
def start(monkeypatch):
    """A function that starts a server without clients, changes jobs as clients would, stores that, and stops it."""
    opened = []

    def open_and_note(*arguments, **settings):
        opened.append(open_database(*arguments, **settings))
        return opened[-1]

    monkeypatch.setattr(recovery, "open_database", open_and_note)

    async def run(path):
        engine, journal, clock = (
            Engine(),
            SqliteJournal(path, "always", 0, 65535, "unix:socket", NO_HISTORY),
            Clock(),
        )
        opened.clear()
        try:
            await journal.recover(engine, clock, asyncio.Event())
            use(engine, journal, clock())
            await journal.close()
            opened.clear()
        finally:
            if hasattr(journal, "_bodies"):
                await abandon(journal)
            for database in opened:
                database.connection.close()
                os.close(database.file)
                os.close(database.index)

    return lambda path: asyncio.run(run(path))


def use(engine, journal, now_ns):
    client = engine.clients.connect("10.0.0.1:1")
    for name in list(engine.tubes):
        engine.clients.watch(client, name)
        tube_stats(tube_snapshot(engine.tubes[name], now_ns))
    for job in list(engine.jobs.newest.values()):
        engine.kick_job(client, job.id, now_ns)
    while (job := engine.reserve(client, now_ns)) is not None:
        job_stats(job_snapshot(job, now_ns), journaled=True)
        engine.bury(client, job.id, 5, now_ns) if job.id % 2 else engine.release(client, job.id, 5, 10, now_ns)
    for name in list(engine.tubes):
        engine.clients.use(client, name)
        engine.put(client, 0, 0, 10, b"new", now_ns)
        engine.pause(client.peer, name, 1, now_ns)
    journal._writer.write(batch_of(engine.take_changes(deferred=True), journal._writer.chronicle.history))


def test_a_sound_file_starts_and_is_copied(stopped, start):
    assert backup(stopped, stopped.with_name("copy")).jobs == LAST_ID
    start(stopped)


ROWS = [
    *((f"UPDATE jobs SET {column} = {value} WHERE id = 7", "the row of job 7 has changed") for column, value in [  # noqa: S608 - our own
        ("state", "'redy'"),
        ("state", "NULL"),
        ("pri", "NULL"),
        ("pri", "x''"),
        ("pri", "1.5"),
        ("delay_s", "NULL"),
        ("ttr_s", "x''"),
        ("ttr_s", "'x'"),
        ("ttr_s", "1.5"),
        ("ttr_s", "-1"),
        ("created_at", "NULL"),
        ("reserves", "NULL"),
        ("reserves", "x''"),
        ("kicks", "NULL"),
        ("timeouts", "x''"),
        ("buried_seq", "NULL"),
        ("buried_seq", "x''"),
        ("holder", "5"),
        ("holder", "'unix'"),
        ("holder_conn", "7"),
        ("holder_conn", "'x'"),
        ("why", "x''"),
    ]),
    ("UPDATE jobs SET tube = NULL WHERE id = 7", "the row of job 7 has changed"),
    ("UPDATE jobs SET tube = '' WHERE id = 7", "the row of job 7 has changed"),
    ("UPDATE jobs SET tube = '-x' WHERE id = 7", "the row of job 7 has changed"),
    ("UPDATE jobs SET tube = CAST(x'ff' AS TEXT) WHERE id = 7", "the row of job 7 has changed"),
    ("UPDATE jobs SET body = 'text' WHERE id = 7", "the body of job 7 has changed"),
    ("UPDATE jobs SET body = 5 WHERE id = 7", "the body of job 7 has changed"),
    ("UPDATE jobs SET crc32 = NULL WHERE id = 7", "the body of job 7 has changed"),
    ("UPDATE jobs SET id = -7 WHERE id = 7", "the row of job -7 has changed"),
    ("UPDATE jobs SET row_crc32 = NULL WHERE id = 7", "the row of job 7 has changed"),
    ("UPDATE meta SET last_id = 59", "meta row has impossible values"),
    ("UPDATE meta SET last_id = NULL", "meta row has impossible values"),
    ("UPDATE meta SET last_id = 9223372036854775807", "meta row has impossible values"),
    ("UPDATE meta SET batch = 'x'", "meta row has impossible values"),
    ("UPDATE pauses SET pause_s = 'x'", "row of pauses has impossible values"),
    ("UPDATE pauses SET until = NULL", "row of pauses has impossible values"),
    ("UPDATE pauses SET until = 9e999", "row of pauses has impossible values"),
    ("UPDATE pauses SET tube = CAST(x'ff' AS TEXT) WHERE tube = 'gone'", "row of pauses has impossible values"),
]  # fmt: skip


@pytest.mark.parametrize(("damage", "said"), ROWS, ids=[damage for damage, _ in ROWS])
def test_a_row_that_no_server_would_write(damage, said, stopped, start):
    with unchecked(stopped) as connection:
        connection.execute(damage)
    with pytest.raises(JournalRefused) as caught:
        start(stopped)
    assert str(caught.value) == f"{stopped} is damaged: {said}; {WHAT_TO_DO}"
    with pytest.raises(JournalRefused, match=r"queue\.db is damaged"):
        backup(stopped, stopped.with_name("copy"))


def test_swapped_pages_are_refused_wherever_lists_of_jobs_end(path, start):
    """The file is that of a killed server, and does not record the number of jobs."""
    with closing(open_database(path)) as database:
        database.connection.execute("BEGIN")
        for number in range(1, 2001):
            put(database.connection, number, b"%100d" % number)
        database.connection.execute("UPDATE meta SET last_id = 2000")
        database.connection.execute("COMMIT")
    with closing(Pages(path)) as pages:
        first, second = (
            next(page for page in pages.in_use() if job_id in (rowid for rowid, _ in pages.rows(page)))
            for job_id in (1000, 1500)
        )
    content = path.read_bytes()
    with path.open("r+b") as file:
        for page, other in ((first, second), (second, first)):
            file.seek((page - 1) * PAGE)
            file.write(content[(other - 1) * PAGE : other * PAGE])
    with pytest.raises(JournalRefused, match=r"queue\.db is damaged"):
        start(path)


def test_a_bug_of_ours_is_not_taken_for_damage(stopped, start, monkeypatch):
    monkeypatch.setattr(recovery, "read_jobs", lambda *_: (rows for rows in [[(None,) * len(StoredJob._fields)]]))
    with pytest.raises((TypeError, ValueError)):
        start(stopped)


def test_memory_that_runs_out_while_jobs_are_restored(stopped, start, monkeypatch):
    def read_jobs(*_, **__):
        raise MemoryError
        yield

    monkeypatch.setattr(recovery, "read_jobs", read_jobs)
    with pytest.raises(JournalRefused, match=f"there is not enough memory for what {stopped} holds"):
        start(stopped)


def test_a_server_without_enough_memory_for_the_jobs(tmp_path, path):
    modules = "beanlite.cli, beanlite.server.start, beanlite.journal.sqlite.served.writer"
    program = f"import {modules}; print(open('/proc/self/status').read())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True)
    (without_jobs_kb,) = map(int, re.findall(r"VmPeak:\s+(\d+) kB", done.stdout))
    database = open_database(path)
    job = (crc32(b"body"), b"body")
    database.connection.execute("BEGIN")
    database.connection.executemany(
        """
        INSERT INTO jobs (id, tube, state, pri, delay_s, ttr_s, created_at, reserves, timeouts, releases, buries, kicks,
                          crc32, body, since)
        VALUES (?, 't', 'ready', 0, 0, 60, 1.7e9, 0, 0, 0, 0, 0, ?, ?, 1.7e9)
        """,
        ((number, *job) for number in range(1, 80_001)),
    )
    database.connection.execute("UPDATE meta SET last_id = 80000, unchecked_id = 80000")
    database.connection.execute("COMMIT")
    database.close()
    with pytest.raises(ServerDied) as died, start_beanlite(tmp_path, before=f"ulimit -v {without_jobs_kb + 12_000}"):
        pass
    assert str(died.value).endswith(f" ended with 3: beanlite: there is not enough memory for what {path} holds\n")


def test_a_schema_that_is_not_text(stopped, start):
    content = stopped.read_bytes()
    assert b"CREATE TABLE jobs" in content
    stopped.write_bytes(content.replace(b"CREATE TABLE jobs", b"CREATE \xf4\xffBLE jobs"))
    for use_it in (start, lambda path: backup(path, path.with_name("copy"))):
        with pytest.raises(JournalRefused, match=r"queue\.db is damaged \(") as caught:
            use_it(stopped)
        assert len(str(caught.value)) < TEXT_MAX


def test_a_statement_of_the_schema_that_has_changed(stopped, start):
    """A trigger must be ours; an operator may have changed a view, which is told, but is no damage."""
    content = stopped.read_bytes()
    for text, changed in ((b"RAISE(ABORT", b"REISE(ABORT"), (b"WHERE state = 'ready'", b"WHERE state = 'rfady'")):
        assert text in content
        stopped.write_bytes(content.replace(text, changed))
        (schema,) = [finding for finding in verify(stopped) if finding.check == "schema"]
        if b"state" in text:
            assert (schema.sound, schema.said) == (
                True,
                f"version {VERSION}; views that are not as beanlite makes them: ready, tubes",
            )
            start(stopped)
        else:
            assert not schema.sound
            with pytest.raises(JournalRefused, match=r"queue\.db is damaged: the trigger bodies_delete has changed"):
                start(stopped)


def test_a_damaged_page_that_only_writing_finds(stopped, start):
    """A key in an interior page of a table is wrong: all jobs are read in order, but some can't be found by id."""
    with closing(sqlite3.connect(stopped, isolation_level=None)) as connection:
        (root,) = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'jobs'").fetchone()
    content = bytearray(stopped.read_bytes())
    page = (root - 1) * PAGE
    assert content[page] == 5, "an interior page"
    first_cell = page + int.from_bytes(content[page + 12 : page + 14])
    content[first_cell + 4] = 1  # the largest id on the first leaf, according to this page
    stopped.write_bytes(content)
    with pytest.raises(BeanliteError, match=r"queue.db is damaged \(") as caught:
        start(stopped)
    assert "\n" not in str(caught.value)


def damaged(files, chance):
    """Return the files, one of them changed as by a bad disk or a stray write."""
    name = chance.choice(sorted(files))
    content = bytearray(files[name])
    for _ in range(chance.choice([1, 1, 1, 4])):
        place = chance.randrange(len(content))
        page, other = (chance.randrange(len(content) // PAGE) * PAGE for _ in range(2))
        kind = chance.randrange(8)
        if kind <= 3:
            content[place] ^= 1 << chance.randrange(8)
        elif kind == 4:
            run = content[place : place + chance.randrange(1, 64)]
            content[place : place + len(run)] = chance.randbytes(len(run))
        elif kind == 5:
            content[page : page + PAGE] = content[other : other + PAGE]
        elif kind == 6:
            content[page : page + PAGE] = bytes(PAGE)
        elif len(content) > 2 * PAGE:
            del content[-chance.randrange(PAGE) :]
    return {**files, name: bytes(content)}


def test_whatever_is_damaged_the_file_is_used_or_refused_in_one_line(tmp_path, start):
    origin = tmp_path / "origin"
    origin.mkdir()
    database = open_database(origin / "queue.db")
    fill(database.connection)
    killed = {name: (origin / name).read_bytes() for name in ("queue.db", "queue.db-wal")}
    assert database.close() is None
    stopped = {"queue.db": (origin / "queue.db").read_bytes()}
    wrong = []
    for seed in range(VARIANTS):
        chance = random.Random(seed)
        files = damaged(killed if seed % 3 == 0 else stopped, chance)
        for use_it in (lambda path: backup(path, path.with_name("copy")), start):
            folder = tmp_path / "variant"
            folder.mkdir()
            for name, content in files.items():
                (folder / name).write_bytes(content)
            try:
                use_it(folder / "queue.db")
            except BeanliteError as error:
                if len(str(error)) > TEXT_MAX or "\n" in str(error):
                    wrong.append((seed, str(error)))
            except Exception as error:  # noqa: BLE001 - these are what the test is looking for
                wrong.append((seed, repr(error)))
            shutil.rmtree(folder)
    assert wrong == []


@pytest.mark.parametrize(
    ("damage", "command"),
    [
        ("UPDATE bodies SET body = 'text'", "jobs"),
        ("DELETE FROM bodies", "jobs"),
        ("DELETE FROM bodies", "job 3"),
        ("UPDATE jobs SET created_at = 9e18", "job 3"),
        ("UPDATE jobs SET delay_s = ''", "job 3"),
        ("UPDATE jobs SET state = x''", "stats"),
        ("UPDATE jobs SET tube = x''", "tubes"),
        ("UPDATE meta SET jobs = CAST(x'ff' AS TEXT)", "verify"),
    ],
)
def test_look_into_a_damaged_file_fails_in_one_line(path, capsys, damage, command):
    make(path, batches=1)
    with unchecked(path) as connection:
        connection.execute(damage)
    assert main([*command.split(), *(["--db"] if command != "verify" else []), str(path)]) == 3
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_refusal_quotes_a_damaged_file_in_printable_characters(path, start):
    make(path, batches=1)
    with unchecked(path) as connection:
        connection.execute("UPDATE jobs SET row_crc32 = CAST(x'1b5b324aff' AS TEXT)")
    with pytest.raises(JournalRefused, match="Could not decode") as refused:
        start(path)
    assert str(refused.value).isprintable()


@pytest.mark.parametrize("due_at", ["x''", "5.5"])
def test_a_buried_job_that_is_due_is_not_exported(path, capsys, due_at):
    """A start ignores the due time, and the checksum does not cover it."""
    with closing(open_database(path)) as database:
        put(database.connection, 1, state="buried", buried_seq=1)
        database.connection.execute("UPDATE meta SET last_id = 1")
    with unchecked(path) as connection:
        connection.execute(f"UPDATE jobs SET due_at = {due_at}")  # noqa: S608 - our own words
    assert main(["export", "--db", str(path)]) == 3
    assert "the row of job 1 has changed" in capsys.readouterr().err


@pytest.mark.parametrize("damage", ["state = NULL", "buried_seq = -1", "holder_conn = -1"])
def test_export_refuses_damage_that_the_checksum_takes_for_nothing(path, capsys, damage):
    with closing(open_database(path)) as database:
        put(database.connection, 1, b"x", reserves=1)
        database.connection.execute("UPDATE meta SET last_id = 1")
    with unchecked(path) as connection:
        connection.execute(f"UPDATE jobs SET {damage}")  # noqa: S608 - our own words
    assert main(["export", "--db", str(path)]) == 3
    assert "the row of job 1 has changed" in capsys.readouterr().err


def test_an_empty_body_can_be_looked_at(path, capsys):
    with closing(open_database(path)) as database:
        put(database.connection, 1, b"")
        database.connection.execute("UPDATE meta SET last_id = 1")
    assert main(["jobs", "--db", str(path)]) == 0
    assert main(["job", "1", "--db", str(path)]) == 0
    assert capsys.readouterr().err == ""
