"""How operators see a server whose jobs are in PostgreSQL."""

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys

import asyncpg
import pytest

from beanlite.cli import main
from beanlite.journal.postgres import status
from tests.support.health import ask, metrics, start_watched
from tests.support.postgres import receiver_of
from tests.support.servers import free_port
from tests.support.web import Web
from tests.support.wire import Wire, until

SOON_S = 60


@pytest.fixture
def served(database, tmp_path):
    server, where = start_watched(tmp_path, "--database", database, "--require-sync", "false")
    with server:
        yield server, where


def test_metrics_cover_all_but_what_only_a_file_has(served):
    server, where = served
    with Wire(server.connect()) as wire:
        wire.put(b"job")
        found = metrics(where)
        assert found["beanlite_journal_commit_seconds_count",] >= 1
        assert found["beanlite_journal_batches_total",] >= 1
        assert found["beanlite_jobs", "ready"] == 1
        assert not [name for name, *_ in found if name.startswith(("beanlite_wal", "beanlite_filesystem"))]
        assert ask(where, "/readyz")[0] == 200
        assert wire.stats()["binlog-records-written"] == "1"


def test_metrics_tell_of_the_lease_and_the_database(served, database):
    server, where = served
    until(lambda: ("beanlite_database_bytes",) in metrics(where))
    found = metrics(where)
    assert found["beanlite_database_bytes",] > 1_000_000
    assert (found["beanlite_lease_epoch",], found["beanlite_lease_takeovers_total", database]) == (1, 0)
    assert [at for name, at, _ in [key for key in found if key[0] == "beanlite_lease_holder_info"]] == [
        f"127.0.0.1:{server.port}"
    ]
    assert ("beanlite_postgresql_dead_rows", "jobs") in found
    assert [found["beanlite_postgresql_standbys", state] for state in ("sync", "quorum", "async")] == [0, 0, 0]
    assert found["beanlite_postgresql_synchronous",] == 0
    assert found["beanlite_postgresql_oldest_transaction_seconds",] >= 0
    assert found["beanlite_postgresql_oldest_snapshot_transactions",] >= 0


def test_metrics_tell_of_the_standby_of_the_database(pair, tmp_path):
    server, where = start_watched(tmp_path, "--database", pair.url())
    with server, Wire(server.connect()) as wire:
        wire.put(b"job")
        until(lambda: ("beanlite_postgresql_synchronous",) in metrics(where))
        found = metrics(where)
        assert (found["beanlite_postgresql_synchronous",], found["beanlite_postgresql_standbys", "quorum"]) == (1, 1)
        assert found["beanlite_postgresql_standby_lag_bytes", "two 127.0.0.1"] >= 0


def test_a_tube_that_goes_and_comes_again_within_a_batch_of_totals(served, postgres, database):
    server, _ = served
    for _ in range(3):
        with Wire(server.connect()) as wire:
            wire.ask("use mail")
            wire.ask(f"delete {wire.put(b'job')}")
    counted = "SELECT coalesce(sum(put), 0) AS put, sum(deleted) AS deleted FROM days WHERE tube = 'mail'"
    until(lambda: tuple(postgres.sql(counted, database.rpartition("/")[2])[0]) == (3, 3))


def wait_for_line(process, words):
    """Read the log up to a line with these words."""
    assert any(words in line for line in process.stderr)


def test_a_server_that_stands_by_is_alive_and_not_ready(served, database):
    command = [sys.executable, "-m", "beanlite", "serve", "-p", "0", "--database", database, "--require-sync", "false"]
    where = f"127.0.0.1:{free_port()}"
    with contextlib.ExitStack() as at_the_end:
        other = subprocess.Popen([*command, "--health", where], stderr=subprocess.PIPE, text=True)
        at_the_end.enter_context(other)
        at_the_end.callback(other.kill)
        wait_for_line(other, "standing by")
        until(lambda: ask(where, "/healthz")[0] == 200)
        assert ask(where, "/readyz") == (503, "standing by\n")
        assert metrics(where)["beanlite_ready",] == 0
        other.send_signal(signal.SIGHUP)
        assert "reload postponed" in other.stderr.readline()
        served[0].stop()
        wait_for_line(other, ": reloaded\n")
        until(lambda: ask(where, "/readyz")[0] == 200)
        other.terminate()
        rest = other.stderr.read()
        other.wait()
    assert (other.returncode, "Traceback" in rest) == (0, False)


def test_file_commands_say_what_is_wrong_and_operators_commands_work(served, database, tmp_path):
    server, _ = served
    with Wire(server.connect()) as wire:
        wire.put(b"job")

        def beanlite(*args):
            command = [sys.executable, "-m", "beanlite", *args]
            environment = {"BEANLITE_DATABASE": database, "PATH": ""}
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, cwd=tmp_path.parent, env=environment
            )
            return done.returncode, done.stdout, done.stderr

        code, said, _ = beanlite("jobs", "--connect", f"127.0.0.1:{server.port}", "--json")
        assert code == 0
        assert '"preview": "job"' in said
        code, _, said = beanlite("compact")
        assert (code, said.count("\n"), "VACUUM FULL" in said) == (2, 1, True)
        code, said, _ = beanlite("config", "--json")
        assert code == 0
        assert "postgresql" not in said


def test_scheduled_backups_are_not_missed_where_they_are_refused(served, capsys):
    connect = f"127.0.0.1:{served[0].port}"
    assert main(["why", "--connect", connect]) == 0
    assert capsys.readouterr().out.endswith(", disk and memory\n")
    with Web(connect) as web:
        for path in ("/journal", "/backups"):
            page = web.get(path).text
            assert ("backup_every" in page, "-wal" in page, "back the database up" in page) == (False, False, True)


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["--no-journal"], "database and --no-journal exclude each other"),
        (["--fsync", "never"], "fsync is for the database file, and there is none with database"),
        (["--backup-every", "1d", "--backup-dir", "."], "backup_every is for the database file"),
    ],
)
def test_what_is_for_the_file_is_refused(flags, why):
    command = [sys.executable, "-m", "beanlite", "serve", "--database", "postgresql://nowhere/queue", *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert why in done.stderr


def test_the_database_tells_who_is_active_and_who_stands_by(served, database, capsys, clean_environment):  # noqa: ARG001
    server, _ = served
    command = [sys.executable, "-m", "beanlite", "serve", "-p", "0", "--database", database, "--require-sync", "false"]
    with subprocess.Popen([*command, "--node", "other"], stderr=subprocess.PIPE, text=True) as other:
        for line in other.stderr:
            if "standing by" in line:
                break
        codes = main(["cluster", "status", database, "--json"]), main(["cluster", "status", database])
        other.terminate()
        other.stderr.read()
    assert codes == (0, 0)
    as_json, _, as_text = capsys.readouterr().out.partition("\n")
    found = json.loads(as_json)
    assert (found["status"], found["address"]) == ("serving", f"127.0.0.1:{server.port}")
    assert (found["epoch"], found["standing_by"], found["replicas"]) == (1, ["other"], [])
    assert found["seen_s"] < 30
    assert found["database"] in database
    assert (found["sslmode"], found["encrypted"], found["takeovers"]) == ("prefer", False, 0)
    assert found["size_bytes"] > 1_000_000
    assert "jobs" in found["dead_rows"]
    for line in (r"standing_by +other", r"size_bytes +\d.* MiB", r"oldest_snapshot +\d+ later transaction.*"):
        assert re.search(f"^{line}$", as_text, re.MULTILINE), line


def test_halted_server_does_not_stand_by(served, database, capsys, clean_environment, monkeypatch):  # noqa: ARG001
    monkeypatch.setattr(status, "_SILENT_S", 1.0)
    command = [sys.executable, "-m", "beanlite", "serve", "-p", "0", "--database", database, "--require-sync", "false"]

    def found():
        assert main(["cluster", "status", database, "--json"]) == 0
        (found,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        return found["standing_by"], found["silent"]

    with subprocess.Popen([*command, "--node", "other"], stderr=subprocess.PIPE, text=True) as other:
        try:
            until(lambda: found() == (["other"], []))
            other.send_signal(signal.SIGSTOP)
            until(lambda: found() == ([], ["other"]))
        finally:
            other.send_signal(signal.SIGCONT)
            other.terminate()
            other.stderr.read()


@pytest.mark.usefixtures("served")
async def test_the_status_waits_for_no_lock(database):
    command = [sys.executable, "-m", "beanlite", "cluster", "status", database]
    holder = await asyncpg.connect(database)
    async with holder.transaction():
        await holder.execute("LOCK TABLE lease")
        done = await asyncio.to_thread(
            subprocess.run, command, capture_output=True, text=True, check=False, timeout=SOON_S
        )
    await holder.close()
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "another program has locked the table lease" in done.stderr


def test_a_database_that_no_server_has_used_is_told(database, capsys, clean_environment):  # noqa: ARG001
    assert main(["cluster", "status", database]) == 3
    assert "no server has used it yet" in capsys.readouterr().err
    assert main(["cluster", "status"]) == 2
    assert "settings keep jobs in a file" in capsys.readouterr().err


def test_reply_is_sent_though_a_commit_waits_longer_than_the_lease(pair, tmp_path):
    server, where = start_watched(tmp_path, "--database", pair.url(), "--lease", "1s")
    with server, Wire(server.connect()) as wire:
        wire.put(b"first")
        receiver = receiver_of(pair.standby)
        os.kill(receiver, signal.SIGSTOP)
        wire.send(b"put 0 0 60 6\r\nsecond\r\n")
        until(lambda: metrics(where)["beanlite_journal_unsynced_seconds",])
        wire.send(b"list-tube-used\r\nreserve\r\n")
        until(lambda: metrics(where)["beanlite_journal_unsynced_seconds",] > 1.2)
        os.kill(receiver, signal.SIGCONT)
        assert [wire.reply() for _ in range(3)] == ["INSERTED 2", "USING default", "RESERVED 1 5"]
