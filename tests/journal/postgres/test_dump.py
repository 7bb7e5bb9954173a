"""Queues are moved from the file into PostgreSQL and back, as a user does it."""

import asyncio
import contextlib
import io
import json
import signal
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from asyncpg.transaction import Transaction

from beanlite.errors import BeanliteError
from beanlite.host.signals import terminable
from beanlite.journal.postgres import dump, link as link_module, schema
from beanlite.journal.postgres.link import TROUBLE, session
from beanlite.journal.postgres.schema import migrate
from beanlite.journal.sqlite.tools.load import load
from tests.journal.postgres.serving import by, served, with_lost_standby
from tests.support.servers import start_beanlite
from tests.support.wire import Wire

ENDED = "(terminating connection|connection (was|is) closed|the connection has ended)"


def beanlite(*args, given=b""):
    command = [sys.executable, "-m", "beanlite", *map(str, args)]
    done = subprocess.run(command, input=given, capture_output=True, check=False)
    return done.returncode, done.stdout, done.stderr.decode()


@pytest.fixture
def exported(tmp_path):
    """The export of a file with jobs in each state, a large one among them, and a pause."""
    with start_beanlite(tmp_path / "file") as server:
        wire = Wire(server.connect())
        wire.send(
            b"use mail\r\nput 1 0 60 3\r\n\x00\xff\xfe\r\nput 2 1000 60 5\r\nlater\r\nput 3 0 60 2000\r\n"
            + b"x" * 2000
            + b"\r\nput 4 0 60 1\r\nb\r\nwatch mail\r\nreserve-job 4\r\nbury 4 7\r\n"
            b"put 0 0 60 4\r\ngone\r\ndelete 5\r\npause-tube mail 1000\r\n"
        )
        for _ in range(11):
            wire.reply()
        wire.close()
    code, lines, _ = beanlite("export", "--db", tmp_path / "file" / "queue.db")
    assert code == 0
    return lines


def test_a_queue_goes_to_postgresql_and_comes_home_as_it_was(exported, database, tmp_path):
    code, said, _ = beanlite("import", "-", "--database", database, given=exported)
    assert (code, said) == (0, f"{database}: 4 jobs and 1 pause imported\n".encode())
    assert beanlite("export", "--database", database)[:2] == (0, exported)
    code, said, _ = beanlite("verify", "--database", database)
    assert (code, b"no checksum" in said) == (0, False)
    lines, said = tmp_path / "lines", f"{tmp_path}/lines: 4 jobs and 1 pause exported\n".encode()
    assert beanlite("export", lines, "--database", database)[:2] == (0, said)
    assert lines.read_bytes() == exported
    home = tmp_path / "home.db"
    assert beanlite("import", "-", "--db", home, given=exported)[0] == 0
    assert beanlite("export", "--db", home)[1] == exported


def test_a_server_goes_on_with_what_was_imported(exported, database, tmp_path):
    assert beanlite("import", "-", "--database", database, given=exported)[0] == 0
    with start_beanlite(tmp_path, "--database", database, "--require-sync", "false") as server:
        wire = Wire(server.connect())
        wire.send(b"peek 1\r\nput 0 0 60 1\r\nx\r\n")
        assert (wire.reply(), wire.body, wire.reply()) == ("FOUND 1 3", b"\x00\xff\xfe", "INSERTED 6")
        wire.close()
        code, _, said = beanlite("import", "-", "--database", database, given=exported)
        assert code == 3
        assert "a server has" in said
        assert said.count("\n") == 1


def test_ids_that_are_taken_are_refused_unless_new_ones_are_wanted(exported, database):
    assert beanlite("import", "-", "--database", database, given=exported)[0] == 0
    code, _, said = beanlite("import", "-", "--database", database, given=exported)
    assert code == 1
    assert "--new-ids" in said
    assert said.count("\n") == 1
    assert beanlite("import", "-", "--database", database, "--new-ids", given=exported)[0] == 0
    _, lines, _ = beanlite("export", "--database", database)
    assert [line.split(b",")[1] for line in lines.splitlines() if b'"job"' in line] == [
        b' "id": %d' % job_id for job_id in (1, 2, 3, 4, 6, 7, 8, 9)
    ]
    assert b'"buried_seq": 2' in lines


def test_what_can_not_be_written_is_not_blamed_on_the_database(exported, database):
    assert beanlite("import", "-", "--database", database, given=exported)[0] == 0
    command = [sys.executable, "-m", "beanlite", "export", "--database", database]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 1
    assert done.stderr == b"beanlite: output can't be written: No space left on device\n"


def test_export_whose_connection_ends_says_so(exported, postgres, database):
    class Sink(io.BytesIO):
        def write(self, data):
            others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
            statement = f"{others} AND pid <> pg_backend_pid()"
            with ThreadPoolExecutor() as beside:  # a loop runs in this thread
                beside.submit(postgres.sql, statement, database.rpartition("/")[2]).result()
            return super().write(data)

    assert beanlite("import", "-", "--database", database, given=exported)[0] == 0
    with pytest.raises(BeanliteError, match=f"can't be used: {ENDED}"):
        dump.export(database, Sink())


async def test_migration_whose_connection_ends_says_so(postgres, database, monkeypatch):
    async def end(link, _name):
        await postgres.asql(f"SELECT pg_terminate_backend({link.connection.get_server_pid()})")
        await link.row("SELECT")

    monkeypatch.setattr(schema, "_version", end)
    with pytest.raises(TROUBLE, match=f"^{ENDED}"):
        async with session(database) as link:
            await migrate(link, "it")


async def test_large_bodies_are_moved_a_few_at_a_time(database, tmp_path):
    file = tmp_path / "queue.db"
    lines = [
        b'{"kind": "job", "id": %d, "tube": "a", "state": "ready", "pri": 1, "delay_s": 0, "ttr_s": 1, "created_at": 1,'
        b' "since": 1, "reserves": 0, "timeouts": 0, "releases": 0, "buries": 0, "kicks": 0, "body": "%b"}'
        % (job_id, b"x" * 2_000_000)
        for job_id in range(1, 8)
    ]
    load(lines, file)
    with contextlib.closing(sqlite3.connect(file)) as source:
        assert [len(rows) for rows in dump._rows(source, 0, 0)] == [3, 3, 1]
        async with session(database) as link:
            await migrate(link, "it", only_from=0)
            async with link.connection.transaction():
                await dump._fill(link, source, "it", new_ids=False)
    async with session(database) as link:
        assert [len(list(lines)) async for lines in dump._dump(link, "it")] == [1, 0, 3, 3, 1, 1]


async def test_an_import_that_the_standby_may_not_have_is_no_success(exported, other):
    """An operator has cancelled the import's wait for the standby."""
    await other.asql("CREATE DATABASE imported")
    await (await served(other.url("imported"))).stop()
    await with_lost_standby(other)
    try:
        importing = asyncio.create_task(
            asyncio.to_thread(beanlite, "import", "-", "--database", other.url("imported"), given=exported)
        )
        while not importing.done():
            await other.asql("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
    finally:
        for statement in ("ALTER SYSTEM RESET ALL", "SELECT pg_reload_conf()"):
            await other.asql(statement)
    code, _, said = await importing
    assert (code, said.count("\n")) == (1, 1)
    assert "it is not known whether all was imported, or nothing (the wait for the synchronous standby was" in said


async def test_import_whose_last_answer_is_lost_is_not_said_to_have_failed(
    exported, database, way, tmp_path, monkeypatch
):
    """It has succeeded, and another one with new ids would double all jobs."""
    commit = Transaction.commit

    async def commit_unheard(transaction):
        way.cut_at = "answer"
        await commit(transaction)

    monkeypatch.setattr(Transaction, "commit", commit_unheard)
    load(exported.splitlines(keepends=True), tmp_path / "queue.db")
    with pytest.raises(BeanliteError) as told:
        await asyncio.to_thread(dump.load, tmp_path / "queue.db", by(way, database), new_ids=False)
    assert "it is not known whether all was imported, or nothing" in str(told.value)
    monkeypatch.undo()
    code, _, said = await asyncio.to_thread(beanlite, "import", "-", "--database", database, given=exported)
    assert (code, said.count("\n"), "If it may come from an earlier import" in said) == (1, 1, True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_import_that_is_interrupted_amid_its_commit_is_in_doubt(
    exported, database, tmp_path, monkeypatch, capsys, number
):
    async def wait_for_standby(_transaction):
        asyncio.get_running_loop().call_soon(signal.raise_signal, number)
        await asyncio.sleep(60)

    monkeypatch.setattr(Transaction, "commit", wait_for_standby)
    load(exported.splitlines(keepends=True), tmp_path / "queue.db")
    with terminable(), pytest.raises(BeanliteError) as told:
        dump.load(tmp_path / "queue.db", database, new_ids=False)
    assert "it is not known whether all was imported, or nothing (interrupted)" in str(told.value)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_import_that_is_interrupted_after_its_commit_is_one(exported, database, tmp_path, monkeypatch, number):
    close = link_module.close

    async def close_amid_signal(link):
        signal.raise_signal(number)
        await close(link)

    monkeypatch.setattr(link_module, "close", close_amid_signal)
    load(exported.splitlines(keepends=True), tmp_path / "queue.db")
    with terminable():
        dump.load(tmp_path / "queue.db", database, new_ids=False)
    monkeypatch.undo()
    assert b'"kind": "job"' in beanlite("export", "--database", database)[1]


def test_lines_that_are_wrong_import_nothing(exported, database):
    code, _, said = beanlite("import", "-", "--database", database, given=exported[:-20])
    assert (code, said.count("\n")) == (1, 1)
    assert beanlite("import", "-", "--database", database, given=exported)[0] == 0


def test_a_database_that_does_not_answer_is_one_line():
    code, _, said = beanlite("export", "--database", "postgresql://queue:secret@127.0.0.1:1/queue")
    assert (code, said.count("\n")) == (1, 1)
    assert "secret" not in said


def test_job_that_comes_by_the_id_of_a_last_job_is_no_schedules(database):
    """The last job of a schedule that is there was deleted long ago."""
    schedule = {"kind": "schedule", "timing": "0 3 * * *", "zone": "UTC", "body": "x", "pri": 0, "ttr_s": 60}
    schedule |= {"if_absent": True, "once_if_missed": False, "next_at": 1.9e9, "last_at": 1.7e9, "last_job": 7}
    schedule |= {"changed_at": 1.7e9, "changed_by": "ann"}
    job = {"kind": "job", "id": 7, "tube": "a", "body": "x", "state": "ready", "pri": 0, "delay_s": 0, "ttr_s": 60}
    job |= dict.fromkeys(("reserves", "timeouts", "releases", "buries", "kicks"), 0) | {"created_at": 1.7e9}
    for lines in ([schedule | {"name": "own", "tube": "a"}, schedule | {"name": "other", "tube": "b"}], [job]):
        given = "".join(f"{json.dumps(line)}\n" for line in lines).encode()
        assert beanlite("import", "-", "--database", database, given=given)[2] == ""
    exported = map(json.loads, beanlite("export", "--database", database)[1].splitlines())
    assert [(line["name"], line.get("last_job")) for line in exported if line["kind"] == "schedule"] == [
        ("other", None),
        ("own", 7),
    ]
