"""What operators see of a server whose jobs are in PostgreSQL."""

import json
import re
import subprocess
import sys

import pytest

from beanlite.cli import main
from tests.support.health import ask, metrics, start_watched
from tests.support.servers import free_port
from tests.support.wire import Wire, until


@pytest.fixture
def served(database, tmp_path):
    server, where = start_watched(tmp_path, "--database", database, "--require-sync", "false")
    with server:
        yield server, where


def test_it_is_measured_but_for_what_a_file_has(served):
    server, where = served
    with Wire(server.connect()) as wire:
        wire.put(b"job")
        found = metrics(where)
        assert found["beanlite_journal_commit_seconds_count",] >= 1
        assert found["beanlite_journal_batches_total",] >= 1
        assert found["beanlite_jobs", "ready"] == 1
        assert not [name for name, *_ in found if name.startswith(("beanlite_wal", "beanlite_database"))]
        assert ask(where, "/readyz")[0] == 200
        assert wire.stats()["binlog-records-written"] == "1"


@pytest.mark.usefixtures("served")
def test_a_server_that_stands_by_is_alive_and_not_ready(database):
    command = [sys.executable, "-m", "beanlite", "serve", "-p", "0", "--database", database, "--require-sync", "false"]
    where = f"127.0.0.1:{free_port()}"
    with subprocess.Popen([*command, "--health", where], stderr=subprocess.PIPE, text=True) as other:
        for line in other.stderr:
            if "standing by" in line:
                break
        until(lambda: ask(where, "/healthz")[0] == 200)
        assert ask(where, "/readyz")[0] == 503
        other.terminate()
        rest = other.stderr.read()
    assert (other.returncode, "Traceback" in rest) == (0, False)


def test_operators_commands_work_and_those_on_a_file_say_what_is_wrong(served, database, tmp_path):
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
        assert beanlite("compact") == (2, "", "beanlite: by the settings, jobs are in PostgreSQL; --db names a file\n")
        code, said, _ = beanlite("config", "--json")
        assert code == 0
        assert "postgresql" not in said


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["--no-journal"], "database and --no-journal exclude each other"),
        (["--history", "1d"], "history is for the database file, and there is none with database"),
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
    assert re.search(r"^standing_by +other$", as_text, re.MULTILINE)


def test_a_database_that_no_server_has_used_is_told(database, capsys, clean_environment):  # noqa: ARG001
    assert main(["cluster", "status", database]) == 3
    assert "no server has used it yet" in capsys.readouterr().err
    assert main(["cluster", "status"]) == 2
    assert "jobs are in a file" in capsys.readouterr().err
