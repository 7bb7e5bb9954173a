"""``beanlite export`` and ``beanlite import``: to files and through pipes."""

import fcntl
import json
import os
import sqlite3
import sys
import tempfile
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from beanlite.cli import main
from beanlite.journal import lines
from beanlite.journal.sqlite.file.database import Database
from beanlite.journal.sqlite.tools import salvage
from tests.support.journal_files import export_to_file, files_of_at_most, make
from tests.support.sqlite_tool import outsider
from tests.support.streams import (
    DONE_UNPRINTED,
    from_broken,
    from_late,
    from_unreadable,
    onto_full_disk,
    without_reader,
)

pytestmark = pytest.mark.usefixtures("clean_environment")


@pytest.fixture
def queue(tmp_path):
    path = tmp_path / "queue.db"
    make(path, batches=3)
    return path


def test_to_a_file_and_back(queue, capsys):
    assert main(["export", "queue.jsonl", "--db", str(queue)]) == 0
    assert capsys.readouterr() == ("queue.jsonl: 9 jobs and 0 pauses exported\n", "")
    assert main(["import", "queue.jsonl", "--db", "new.db"]) == 0
    assert capsys.readouterr().out == "new.db: 9 jobs and 0 pauses imported\n"
    assert main(["export", "new.jsonl", "--db", "new.db"]) == 0
    assert Path("new.jsonl").read_text() == Path("queue.jsonl").read_text()
    assert Path("new.jsonl").stat().st_mode & 0o777 == 0o600


def test_through_a_pipe(queue, capfdbinary, monkeypatch):
    assert main(["export", "--db", str(queue)]) == 0
    out = capfdbinary.readouterr().out
    assert main(["export", "-", "--db", str(queue)]) == 0
    assert capfdbinary.readouterr().out == out
    assert out.count(b"\n") == 11
    Path("exported").write_bytes(out)
    with Path("exported").open() as exported:
        monkeypatch.setattr(sys, "stdin", exported)
        assert main(["import", "-", "--db", str(queue), "--new-ids", "--json"]) == 0
    result = json.loads(capfdbinary.readouterr().out)
    assert result == {"file": str(queue), "jobs": 9, "pauses": 0, "policies": 0, "schedules": 0, "left": None}


def test_import_and_salvage_tell_what_is_left_beside_the_database(queue, tmp_path, capsys, monkeypatch):
    left = "\nbeside the database there is still a -wal that a reader is using; it belongs to it\n"
    export_to_file(queue, tmp_path / "queue.jsonl")
    make(tmp_path / "old.db", batches=1)
    with outsider(tmp_path / "old.db") as do:
        do("BEGIN; SELECT 'done' FROM jobs LIMIT 0;")
        assert main(["import", "queue.jsonl", "--new-ids", "--db", "old.db"]) == 0
        assert capsys.readouterr().out == f"old.db: 9 jobs and 0 pauses imported{left}"
        assert main(["import", "queue.jsonl", "--new-ids", "--db", "old.db", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["left"] == "a -wal that a reader is using"
    with ExitStack() as reading:
        save = salvage._Saving.save

        def watched(saving, progress):
            reading.enter_context(outsider(tmp_path / "new.db"))("BEGIN; SELECT 'done' FROM jobs LIMIT 0;")
            save(saving, progress)

        monkeypatch.setattr(salvage._Saving, "save", watched)
        assert main(["salvage", str(queue), "new.db"]) == 0
        assert capsys.readouterr().out.endswith(left)


def test_only_an_import_into_postgresql_needs_a_temporary_folder(queue, capsys, monkeypatch):
    export_to_file(queue, Path("queue.jsonl"))
    monkeypatch.setattr(tempfile, "tempdir", "/nonexistent")
    assert main(["import", "queue.jsonl", "--db", "new.db"]) == 0
    assert main(["import", "queue.jsonl", "--database", "postgresql://nobody@localhost/none"]) == 1
    why = "no temporary folder can be made: No such file or directory; TMPDIR names the place for it"
    assert capsys.readouterr().err == f"beanlite: nothing was imported: {why}\n"


def test_what_is_done_but_can_not_be_printed_is_done(queue):
    assert onto_full_disk("export", "queue.jsonl", "--db", str(queue)) == (0, DONE_UNPRINTED)
    command = ("import", "queue.jsonl", "--db", "new.db", "--new-ids")
    assert onto_full_disk(*command) == (0, DONE_UNPRINTED)
    assert onto_full_disk(*command, "--json") == (0, DONE_UNPRINTED)
    assert without_reader(*command) == (0, "")
    assert main(["export", "new.jsonl", "--db", "new.db"]) == 0
    assert Path("new.jsonl").read_text().count('"kind": "job"') == 3 * 9


def test_an_export_that_can_not_be_printed_is_not_done(queue):
    said = "beanlite: output can't be written: No space left on device\n"
    assert onto_full_disk("export", "--db", str(queue)) == (1, said)
    assert without_reader("export", "--db", str(queue)) == (1, "")


def test_what_can_not_be_read_is_not_blamed_on_the_database():
    said = "can't be read: Input/output error"
    assert from_unreadable("import", "-", "--db", "new.db") == (
        1,
        "beanlite: stdin can't be read: Bad file descriptor\n",
    )
    assert from_broken("import", "-", "--db", "new.db") == (1, f"beanlite: stdin {said}\n")
    assert onto_full_disk("import", "/proc/self/mem", "--db", "new.db") == (1, f"beanlite: /proc/self/mem {said}\n")
    assert list(Path().iterdir()) == []


def test_a_pause_in_a_pipe_is_not_its_end(queue):
    assert main(["export", "queue.jsonl", "--db", str(queue)]) == 0
    assert from_late(Path("queue.jsonl").read_bytes(), "import", "-", "--db", "new.db") == (0, "")
    assert main(["export", "new.jsonl", "--db", "new.db"]) == 0
    assert Path("new.jsonl").read_text() == Path("queue.jsonl").read_text()


def test_a_file_is_replaced_only_if_that_is_asked_for(queue, capsys):
    Path("queue.jsonl").write_text("old")
    assert main(["export", "queue.jsonl", "--db", str(queue)]) == 1
    assert capsys.readouterr().err == "beanlite: nothing was exported to queue.jsonl: File exists\n"
    assert main(["export", "queue.jsonl", "--db", str(queue), "--force"]) == 0
    assert Path("queue.jsonl").read_text().count("\n") == 11


@pytest.mark.parametrize("command", ["export", "backup"])
def test_a_database_that_is_missing_is_named_with_force_as_well(command, tmp_path, capsys):
    Path("old").write_text("old")
    for words in (["new"], ["old", "--force"]):
        assert main([command, *words, "--db", "none.db"]) == 3
        assert capsys.readouterr().err == f"beanlite: {tmp_path}/none.db can't be opened: No such file or directory\n"
    assert Path("old").read_text() == "old"


def test_what_a_server_holds_is_not_replaced_by_jobs_from_postgresql(queue, capsys):
    with queue.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert main(["export", str(queue), "--database", "postgresql://127.0.0.1:1/none", "--force"]) == 1
    assert capsys.readouterr().err == f"beanlite: {queue} was not replaced: a server or another command holds it\n"


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("export --force", 2, "--force: there is no DEST to replace"),
        ("export --db none.db", 3, "none.db can't be opened"),
        ("import none.jsonl", 1, "none.jsonl can't be read: No such file or directory"),
        ("import", 2, "Missing argument 'FILE'"),
    ],
)
def test_what_can_not_be_done_is_one_line(line, code, said, capsys):
    assert main(line.split()) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert err.count("\n") == 1
    assert list(Path().iterdir()) == []


@pytest.fixture
def failing_last(queue, monkeypatch):
    """An export of the queue; the disk fails when a database is closed, and a test survives the end of the process."""
    export_to_file(queue, queue.with_suffix(".jsonl"))
    close = Database.close

    def closed(database):
        with files_of_at_most(0):
            return close(database)

    monkeypatch.setattr(Database, "close", closed)
    monkeypatch.setattr(os, "_exit", sys.exit)


@pytest.mark.usefixtures("failing_last")
@pytest.mark.parametrize("line", ["import queue.jsonl --db new.db", "salvage queue.db new.db"])
def test_disk_that_fails_last_has_an_exit_code_of_its_own(line, tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main(line.split())
    new = tmp_path / "new.db"
    said = f"beanlite: everything was added to {new}, but the last checkpoint of {new} failed: disk I/O error\n"
    assert (ended.value.code, capsys.readouterr().err) == (4, said)
    with closing(sqlite3.connect(new)) as connection:
        assert connection.execute("SELECT count(*) FROM jobs").fetchone() == (9,)
    assert main([line.split()[0], "--help"]) == 0
    assert "; 4 " in capsys.readouterr().out


@pytest.mark.usefixtures("failing_last")
def test_disk_of_the_temporary_folder_that_fails_last(capsys):
    assert main(["import", "queue.jsonl", "--database", "postgresql://nobody@localhost/none"]) == 1
    why = f"the last checkpoint of {tempfile.gettempdir()}/"
    assert capsys.readouterr().err.startswith(f"beanlite: nothing was imported: {why}")


def test_a_file_that_has_no_end_is_not_read_to_it(capsys):
    assert main(["import", "/dev/zero", "--db", "new.db"]) == 1
    assert (
        capsys.readouterr().err
        == "beanlite: nothing was imported: line 1: it is not JSON: Expecting value (character 1)\n"
    )


def test_a_line_that_is_longer_than_any_job_is_not_read_to_its_end(queue, capsys, monkeypatch):
    assert main(["export", "queue.jsonl", "--db", str(queue)]) == 0
    monkeypatch.setattr(lines, "_HEAD_BYTES", 10)
    monkeypatch.setattr(lines, "LINE_MAX", 100_000)
    assert main(["import", "queue.jsonl", "--db", "new.db"]) == 0
    with Path("queue.jsonl").open("a") as file:
        file.write('{"kind": "job", "body": "' + "x" * 200_000)
    capsys.readouterr()
    assert main(["import", "queue.jsonl", "--db", "other.db"]) == 1
    said = "beanlite: line 12 has 100,000 bytes or more, and no job is so large\n"
    assert capsys.readouterr().err == said
    assert not Path("other.db").exists()
