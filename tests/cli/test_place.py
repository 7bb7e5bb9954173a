"""The place of a server's database: what is in it already, and whether anybody has named it."""

import os
import shlex
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from beanlite.cli import main
from beanlite.errors import JournalRefused
from beanlite.settings import sources
from tests.support.binlogs import begin, record, write
from tests.support.journal_files import make

pytestmark = pytest.mark.usefixtures("clean_environment")

ONE = begin() + record(1, b"one") + record(2, b"two")
EMPTY = begin() + record(1, b"one") + record(1, size=3, state=0)


@pytest.fixture(autouse=True)
def server(monkeypatch, tmp_path):
    """In the server's place: it notes its database, or raises what it is told to."""
    module: Any = types.ModuleType("beanlite.server.start")
    module.file, module.ends = None, None

    def run(settings, _load):
        module.file = settings.file
        if module.ends is not None:
            raise module.ends
        return 0

    module.run = run
    monkeypatch.setitem(sys.modules, "beanlite.server.start", module)
    monkeypatch.chdir(tmp_path)
    return module


@pytest.mark.parametrize("flags", ["-b {dir}", "-b {dir}/", "-b {dir}/new.db", "--db {dir}/beanlite.db"])
def test_jobs_that_beanstalkd_has_left_there_are_not_passed_over(flags, tmp_path, server, capsys):
    log = write(tmp_path / "log", ONE)
    assert main(flags.format(dir=log).split()) == 3
    said = capsys.readouterr().err
    name = "new.db" if "new.db" in flags else "beanlite.db"
    assert f"{log} has beanstalkd's binlog, and 2 jobs in it would be passed over" in said
    assert f"beanlite import-binlog {log} --db {log}/{name}" in said
    assert server.file is None
    assert not list(log.glob("*.db"))


def test_jobs_of_beanstalkd_in_the_current_folder_are_not_passed_over(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(write(tmp_path / "log", ONE))
    assert main([]) == 3
    assert "would be passed over" in capsys.readouterr().err
    Path("beanlite.db").touch()  # as an earlier start may have left it
    assert main([]) == 3


@pytest.mark.parametrize("content", [EMPTY, b""])
def test_a_binlog_without_jobs_is_no_obstacle(content, tmp_path, server):
    log = write(tmp_path / "log", content)
    assert main(["-b", str(log)]) == 0
    assert server.file == log / "beanlite.db"


@pytest.mark.parametrize("name", ["log", "binlog; of '18"])
def test_the_import_is_what_the_line_says_and_then_it_starts(name, tmp_path, server, capsys):
    log = write(tmp_path / name, ONE)
    assert main(["-b", str(log)]) == 3
    command = capsys.readouterr().err.partition("beanlite import-binlog ")[2].partition("; to begin")[0]
    assert main(["import-binlog", *shlex.split(command)]) == 0
    capsys.readouterr()
    assert main(["-b", str(log)]) == 0
    assert server.file == log / "beanlite.db"
    assert capsys.readouterr().err == ""


def test_a_binlog_that_is_newer_than_the_database_is_warned_of(tmp_path, capsys):
    log = write(tmp_path / "log", ONE)
    make(log / "beanlite.db")
    os.utime(log / "binlog.1", (2e9, 2e9))
    assert main(["-b", str(log)]) == 0
    assert "beanstalkd has written its binlog here since" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["nowhere/", "nowhere/.", "nowhere//", "nowhere/deeper/", "nowhere/q.db"])
def test_a_directory_that_is_not_there_is_not_made_a_file(name, tmp_path, server, capsys):
    assert main(["-b", name]) == 3
    assert f"there is no directory {tmp_path}/nowhere" in capsys.readouterr().err
    assert server.file is None
    assert list(tmp_path.iterdir()) == []


def test_missing_path_without_a_slash_is_not_made_a_file(tmp_path, capsys):
    assert main(["-b", "nowhere"]) == 3
    assert f"there is no {tmp_path}/nowhere: if a directory was meant, make it" in capsys.readouterr().err
    (tmp_path / "nowhere").touch()
    assert main(["-b", "nowhere"]) == 0


def test_missing_directory_named_by_environment_or_file_is_refused(tmp_path, monkeypatch, capsys):
    (tmp_path / "settings.toml").write_text('db = "nowhere/"\n')
    assert main(["--config", "settings.toml"]) == 3
    monkeypatch.setenv("BEANLITE_DB", "nowhere/")
    assert main([]) == 3
    assert capsys.readouterr().err.count("there is no directory") == 2


@pytest.mark.parametrize(
    "line", ["export nowhere/ --db q.db", "salvage q.db nowhere/", "import in.jsonl --db nowhere/"]
)
def test_no_command_makes_a_file_of_what_is_to_be_a_directory(line, tmp_path, capsys):
    make(tmp_path / "q.db")
    (tmp_path / "in.jsonl").touch()
    assert main(line.split()) in {2, 3}
    assert "nowhere" in capsys.readouterr().err
    assert not (tmp_path / "nowhere").exists()


def test_nobody_has_named_a_place_and_the_current_folder_is_the_root(monkeypatch, server, capsys):
    monkeypatch.chdir("/")
    assert main([]) == 2
    said = capsys.readouterr().err
    assert "no database named, and /beanlite.db can't be it" in said
    assert "-b" in said
    assert "--no-journal" in said
    assert main(["--no-journal"]) == 0
    assert server.file is None


def test_refusal_in_an_unwritable_folder_says_no_database_was_named(server, monkeypatch, capsys):
    monkeypatch.setattr(os, "access", lambda *_given, **_how: False)  # root may write anywhere
    server.ends = JournalRefused("/srv/beanlite.db can't be opened: Permission denied")
    assert main([]) == 3
    said = capsys.readouterr().err
    assert said.startswith("beanlite: /srv/beanlite.db can't be opened: Permission denied; no database named")
    assert main(["-b", "named.db"]) == 3
    assert "no database named" not in capsys.readouterr().err


def test_the_directory_of_a_unit_is_taken_where_nobody_names_a_place(tmp_path, monkeypatch, server):
    monkeypatch.chdir("/")
    monkeypatch.setenv("STATE_DIRECTORY", f"{tmp_path}:/elsewhere")
    assert main([]) == 0
    assert server.file == tmp_path / "beanlite.db"
    assert sources.examine().origins["db"] == "STATE_DIRECTORY"
    assert main(["-b", str(tmp_path / "named.db")]) == 0
    assert server.file == tmp_path / "named.db"


def test_a_database_in_the_current_folder_goes_first(tmp_path, monkeypatch, server):
    """An older version knew of no other place."""
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "state"))
    make(tmp_path / "beanlite.db")
    assert main([]) == 0
    assert server.file == Path("beanlite.db")


def test_database_of_a_unit_keeps_its_name_once_it_exists(tmp_path, monkeypatch, server):
    """Or each reload would say that it needs a restart for another file."""
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path))
    assert main([]) == 0
    before = server.file
    make(tmp_path / "beanlite.db")
    assert main([]) == 0
    assert server.file == before == tmp_path / "beanlite.db"


def test_database_of_a_unit_stays_though_the_current_folder_is_gone(tmp_path, monkeypatch):
    """Or a reload would end the server."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path))
    before = sources.load()
    gone.rmdir()
    assert sources.load() == before
