"""``beanlite import-binlog``: what it says, its exit codes, and an end before its time."""

import json
import re
import signal
import subprocess
import sys

import pytest

from beanlite.cli import main
from beanlite.console import listing
from beanlite.console.file import File
from beanlite.console.filters import filter_by
from beanlite.journal.sqlite.file.database import open_database
from tests.support.binlogs import begin, record, write
from tests.support.journal_files import ROOT, make
from tests.support.streams import DONE_UNPRINTED, onto_full_disk, without_reader
from tests.support.wire import until

pytestmark = pytest.mark.usefixtures("clean_environment")

TORN = record(9, b"torn")[:-3]
DAMAGED = begin() + record(8) + b"\xff" * 200 + record(1, b"one") + TORN


@pytest.fixture
def log(tmp_path):
    return write(tmp_path / "log", begin() + record(1, b"one") + record(2, b"two") + record(2, size=3, state=3))


@pytest.fixture
def db(tmp_path):
    return tmp_path / "queue.db"


def test_it_says_what_it_imported(log, db, capsys):
    assert main(["import-binlog", str(log), "--db", str(db)]) == 0
    out, err = capsys.readouterr()
    assert re.fullmatch(rf"{db}: 2 jobs \(1 ready, 0 delayed, 1 buried\), \d+\.\d+ s\n", out)
    assert err == ""


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_imported_jobs_are_sorted_by_a_time_that_no_binlog_has(limit, log, db):
    assert main(["import-binlog", str(log), "--db", str(db)]) == 0
    with File(db) as file:
        rows = listing.jobs(file, filter_by(), "in-state", limit, None).records
    assert [(row["id"], row["in_state_s"]) for row in rows] == [(1, None), (2, None)][:limit]


@pytest.mark.parametrize(("run", "said"), [(onto_full_disk, DONE_UNPRINTED), (without_reader, "")])
def test_an_import_that_is_done_but_can_not_be_told_of_is_done(run, said, log, tmp_path):
    assert run("import-binlog", str(log), "--db", "one.db") == (0, said)
    assert run("import-binlog", str(log), "--db", "two.db", "--json") == (0, said)
    assert {path.name for path in tmp_path.glob("*.db")} == {"one.db", "two.db"}


def test_for_scripts(log, capsys, monkeypatch):
    monkeypatch.setenv("BEANLITE_DB", "queue.db")
    assert main(["import-binlog", str(log), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert 0 < result.pop("seconds") < 20
    assert result == {
        "file": "queue.db",
        "jobs": 2,
        "ready": 1,
        "delayed": 0,
        "buried": 1,
        "last_id": 2,
        "left_out": [],
        "without_body": [],
        "left": None,
    }


def test_a_damaged_one_is_refused_in_one_line(tmp_path, db, capsys):
    log = write(tmp_path / "log", DAMAGED)
    assert main(["import-binlog", str(log), "--db", str(db)]) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(r"beanlite: .*binlog\.1 is damaged: .*; --salvage goes on without that\n", err)
    assert not db.exists()


def test_what_was_salvaged_and_what_was_not(tmp_path, db, capsys):
    log = write(tmp_path / "log", DAMAGED)
    assert main(["import-binlog", str(log), "--db", str(db), "--salvage"]) == 0
    _, *rest = capsys.readouterr().out.splitlines()
    assert rest == [
        "left out: binlog.1: 200 bytes from byte 88 on are no record",
        f"left out: binlog.1: the last record, of which no more than {len(TORN)} bytes were written",
        "lost: 1 job of which the binlog has changes, but not their bodies: 8",
    ]
    db.unlink()
    assert main(["import-binlog", str(log), "--db", str(db), "--salvage", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["without_body"] == [8]
    assert result["left_out"][0] == {
        "file": "binlog.1",
        "at": 88,
        "size": 200,
        "why": "200 bytes from byte 88 on are no record",
    }


def test_of_many_lost_jobs_twenty_are_named(tmp_path, db, capsys):
    log = write(tmp_path / "log", begin() + b"".join(map(record, range(1, 31))))
    assert main(["import-binlog", str(log), "--db", str(db)]) == 0
    named = ", ".join(map(str, range(1, 21)))
    assert capsys.readouterr().out.endswith(
        f"lost: 30 jobs of which the binlog has changes, but not their bodies: {named}, …\n"
    )


def test_progress_is_shown_on_a_terminal_only(log, db, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert main(["import-binlog", str(log), "--db", str(db)]) == 0
    assert capsys.readouterr().err == "\r0 %\r50 %\r\x1b[K"


def test_a_database_with_jobs_is_refused_and_left_alone(log, db, capsys):
    make(db, batches=1)
    assert main(["import-binlog", str(log), "--db", str(db)]) == 3
    assert re.fullmatch(r"beanlite: .* has jobs already; .*\n", capsys.readouterr().err)


@pytest.fixture
def long_import(tmp_path, db):
    """An import that has come as far as writing, and has some more to write."""
    body = bytes(3000)
    data = begin() + b"".join(record(job_id, body) for job_id in range(1, 10_001))
    log = write(tmp_path / "log", data)
    command = [sys.executable, "-m", "beanlite", "import-binlog", str(log), "--db", str(db)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        wal = db.with_name("queue.db-wal")
        until(lambda: process.poll() is not None or (wal.exists() and wal.stat().st_size > 1 << 20))
        assert process.poll() is None
        yield process, command
        process.kill()


def test_told_to_end_it_leaves_nothing_behind(long_import, db):
    process, _ = long_import
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 130
    assert process.stderr.read() == b""
    assert [file.name for file in db.parent.iterdir()] == ["log"]


def test_killed_it_leaves_an_empty_queue_and_can_be_begun_again(long_import, db):
    process, command = long_import
    process.kill()
    process.wait()
    database = open_database(db)
    assert database.connection.execute("SELECT count(*) FROM jobs").fetchone() == (0,)
    assert database.close() is None
    assert subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.startswith(
        f"{db}: 10,000 jobs ".encode()
    )
