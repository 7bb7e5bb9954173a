"""``beanlite backup``: one file, or one in a folder of dated ones."""

import json
import re
import sys
import time
from pathlib import Path

import pytest

from beanlite.cli import main
from beanlite.journal.sqlite.file.database import open_database
from beanlite.journal.sqlite.file.dated import dated_backups, dated_path
from beanlite.journal.sqlite.tools import backup
from beanlite.journal.sqlite.tools.backup import BackupResult
from tests.support.journal_files import snapshot
from tests.support.streams import DONE_UNPRINTED, onto_full_disk, without_reader

pytestmark = pytest.mark.usefixtures("clean_environment")


@pytest.fixture
def queue(tmp_path):
    """The path of a database without jobs, that no server has open."""
    path = tmp_path / "queue.db"
    open_database(path).close()
    return path


def test_backup_says_what_it_copied(queue, tmp_path, capsys):
    dest = tmp_path / "copy.db"
    assert main(["backup", str(dest), "--db", str(queue)]) == 0
    out, err = capsys.readouterr()
    assert re.fullmatch(rf"{dest}: 0 jobs, {dest.stat().st_size:,} bytes, \d+\.\d+ s\n", out)
    assert err == ""


def test_backups_through_a_link_are_named_after_the_file_and_count(queue, tmp_path, capsys):
    link, folder = tmp_path / "link.db", tmp_path / "folder"
    link.symlink_to(queue)
    folder.mkdir()
    for db in (queue, link):
        assert main(["backup", str(folder), "--keep", "1", "--db", str(db)]) == 0
    (made,) = folder.iterdir()
    assert dated_backups(folder, queue)[0][0] == made
    assert str(made) in capsys.readouterr().out


def test_a_backup_is_not_written_to_a_pipe(queue, capsys):
    assert main(["backup", "-", "--db", str(queue)]) == 2
    assert "a backup can't be written to a pipe; ./- names a file" in capsys.readouterr().err
    assert main(["backup", "./-", "--db", str(queue)]) == 0
    assert Path("./-").exists()
    assert main(["salvage", str(queue), "-"]) == 2
    assert "it can't be written to a pipe; ./- names a file" in capsys.readouterr().err


def test_backup_for_scripts(queue, capsys, monkeypatch):
    monkeypatch.setenv("BEANLITE_DB", str(queue))
    assert main(["backup", "copy.db", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert 0 < result.pop("seconds") < 20
    assert result == {"file": "copy.db", "jobs": 0, "size": Path("copy.db").stat().st_size, "deleted": []}


@pytest.mark.parametrize(("run", "said"), [(onto_full_disk, DONE_UNPRINTED), (without_reader, "")])
def test_a_backup_that_is_made_but_can_not_be_told_of_is_made(run, said, queue):
    assert run("backup", "copy.db", "--db", str(queue)) == (0, said)
    assert run("backup", "other.db", "--db", str(queue), "--json") == (0, said)
    assert Path("copy.db").read_bytes() == Path("other.db").read_bytes()


def test_backup_copies_the_named_database_though_journal_is_off(queue, capsys, monkeypatch):
    monkeypatch.setenv("BEANLITE_JOURNAL", "false")
    assert main(["backup", "copy.db", "--db", str(queue)]) == 0
    assert capsys.readouterr().out.startswith("copy.db: 0 jobs, ")


@pytest.mark.parametrize(
    "line",
    ["backup copy.db", "restore queue.db", "compact", "export", "import none.jsonl", "import-binlog .", "history"],
)
def test_a_file_that_no_server_uses_is_taken_only_if_it_is_named(line, queue, capsys, monkeypatch):
    monkeypatch.setenv("BEANLITE_JOURNAL", "false")
    before = snapshot(queue.parent)
    assert main(line.split()) == 2
    assert capsys.readouterr() == ("", "beanlite: settings keep jobs in memory only; --db names a file\n")
    assert snapshot(queue.parent) == before


@pytest.mark.parametrize(("terminal", "shown"), [(True, "\r5 MiB\r\x1b[K"), (False, "")])
def test_backup_shows_its_progress_on_a_terminal_only(terminal, shown, capsys, monkeypatch):
    def copy(_source, _dest, progress, replace):
        assert not replace
        if progress:
            progress(5 << 20)
        return BackupResult(0, 0)

    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    monkeypatch.setattr("beanlite.journal.sqlite.tools.backup.backup", copy)
    assert main(["backup", "copy.db", "--db", "queue.db"]) == 0
    assert capsys.readouterr().err == shown


@pytest.mark.parametrize(("db", "dest", "exit_code"), [("none.db", "copy.db", 3), ("queue.db", "queue.db", 1)])
def test_backup_refuses_in_one_line(db, dest, exit_code, queue, capsys):
    assert main(["backup", dest, "--db", str(queue.with_name(db))]) == exit_code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("beanlite: ")
    assert err.count("\n") == 1
    assert not Path("copy.db").exists()


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "backups"
    folder.mkdir()
    return folder


def names(folder):
    return sorted(file.name for file in folder.iterdir())


def test_backup_in_a_folder_is_named_after_database_and_time(queue, folder, capsys):
    assert main(["backup", str(folder), "--db", str(queue)]) == 0
    (name,) = names(folder)
    assert re.fullmatch(r"queue-\d{8}T\d{6}\.\d{3}Z\.db", name)
    assert capsys.readouterr().out.startswith(f"{folder / name}: 0 jobs, ")


def test_the_oldest_beyond_those_to_keep_are_deleted(queue, folder, capsys):
    flags = ["backup", str(folder), "--db", str(queue), "--json"]
    made = []
    for _ in range(3):
        assert main([*flags, "--keep", "9"]) == 0
        made.append(json.loads(capsys.readouterr().out)["file"])
    assert main([*flags, "--keep", "2"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["deleted"] == made[:2]
    assert names(folder) == [Path(made[2]).name, Path(result["file"]).name]


def test_two_at_a_time_get_two_names_though_the_newest_is_ahead(queue, folder, monkeypatch):
    """The clock was ahead once: names go on from that one, and not by the time at which a backup begins."""
    open_database(dated_path(folder, queue, time.time() + 1_000_000)).close()
    command = ["backup", str(folder), "--db", str(queue)]
    codes = []

    def copied(*arguments):
        monkeypatch.setattr(backup, "copy", copy)
        codes.append(main(command))
        copy(*arguments)

    copy = backup.copy
    monkeypatch.setattr(backup, "copy", copied)
    codes.append(main(command))
    assert codes == [0, 0]
    assert len(names(folder)) == 3


def test_backup_that_would_get_the_same_name_for_ever_is_one_line(queue, folder, capsys):
    """There is no name after that of the last day of the year 9999."""
    open_database(folder / f"{queue.stem}-99991231T235959.999Z.db").close()
    command = ["backup", str(folder), "--db", str(queue)]
    assert [main(command), main(command)] == [0, 1]
    assert capsys.readouterr().err.endswith(": File exists\n")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["copy.db", "--keep", "2"], "copy.db is not a folder"),
        (["none/"], "none/ is not a folder"),
        (["backups", "--force"], "--force: backups is a folder"),
        (["backups", "--keep", "0"], "Invalid value for '--keep'"),
    ],
)
def test_flags_that_do_not_fit_are_one_line(flags, said, queue, folder, capsys):
    assert main(["backup", *flags, "--db", str(queue)]) == 2
    assert capsys.readouterr().err.startswith(f"beanlite: {said}")
    assert names(folder) == []


def test_force_replaces_a_file(queue, capsys):
    Path("copy.db").write_text("old")
    assert main(["backup", "copy.db", "--db", str(queue)]) == 1
    assert main(["backup", "copy.db", "--db", str(queue), "--force"]) == 0
    open_database(Path("copy.db")).close()
    assert "File exists" in capsys.readouterr().err


def test_new_backup_stays_though_an_old_one_can_not_be_deleted(queue, folder, monkeypatch, capsys):
    for _ in range(2):
        assert main(["backup", str(folder), "--db", str(queue)]) == 0
    first, second = names(folder)
    unlink = Path.unlink

    def unlinked(file, missing_ok=False):
        if file.name == first:
            raise PermissionError(13, "Permission denied", str(file))
        unlink(file, missing_ok)

    monkeypatch.setattr(Path, "unlink", unlinked)
    capsys.readouterr()
    assert main(["backup", str(folder), "--db", str(queue), "--keep", "1", "--json"]) == 1
    out, err = capsys.readouterr()
    assert re.search(r"is made, but an older backup can't be deleted: [^[]*: Permission denied", err)
    result = json.loads(out)
    assert result["deleted"] == [str(folder / second)]
    assert names(folder) == [first, Path(result["file"]).name]
