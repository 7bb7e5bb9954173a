"""Whatever a command is given in the place of a database: one line at once, and nothing is changed."""

import os
import re
import shlex
import socket
import stat
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest

from beanlite import cli
from beanlite.cli import main
from tests.support.binlogs import begin, write
from tests.support.journal_files import make

NOBODY = 65534

pytestmark = pytest.mark.usefixtures("clean_environment")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "queue.db", batches=1)
    (tmp_path / "q.jsonl").touch()
    return tmp_path


@pytest.fixture
def pipe(folder):
    os.mkfifo(folder / "odd")
    held = os.open("odd", os.O_RDWR)  # so that a command that would wait for the other end fails instead
    yield stat.S_IFIFO
    os.close(held)


@pytest.fixture
def listener(folder):
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(folder / "odd"))
        yield stat.S_IFSOCK


@pytest.mark.parametrize("kind", ["pipe", "listener"])
@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("verify odd", 1),
        ("salvage odd new.db", 1),
        ("jobs --db odd", 3),
        ("export --db odd", 3),
        ("backup new.db --db odd", 3),
        ("backup odd --db queue.db --force", 1),
        ("export odd --db queue.db --force", 1),
        ("restore odd --db queue.db", 3),
        ("restore queue.db --db odd", 3),
        ("compact --db odd", 3),
        ("import q.jsonl --db odd", 3),
        ("serve --db odd --port 0", 3),
    ],
)
def test_what_is_no_regular_file_is_one_line(kind, line, code, request, folder, capsys):
    kind = request.getfixturevalue(kind)
    before = sorted(folder.iterdir())
    assert main(line.split()) == code
    said = capsys.readouterr().err
    assert said.startswith("beanlite: ")
    assert f"{folder}/odd" in said or "to odd: " in said
    assert "it is not a regular file" in said
    assert said.count("\n") == 1
    assert sorted(folder.iterdir()) == before
    assert stat.S_IFMT((folder / "odd").stat().st_mode) == kind


@pytest.mark.usefixtures("pipe")
@pytest.mark.parametrize("name", ["binlog.1", "lock"])
def test_fifo_among_the_files_of_a_binlog_is_one_line(name, folder, capsys):
    log = folder / "log"
    write(log, begin())
    (log / name).unlink(missing_ok=True)
    Path("odd").rename(log / name)
    lines = ["import-binlog log --db new.db", *(["serve -b log/ --port 0"] if name == "binlog.1" else [])]
    for line in lines:
        assert main(line.split()) == 1
        err = capsys.readouterr().err
        assert "it is not a regular file" in err
        assert err.count("\n") == 1
    assert sorted(each.name for each in log.iterdir()) == sorted({"binlog.1", name})


@pytest.mark.parametrize("line", ["verify .", "salvage . new.db"])
def test_a_directory_is_one_line(line, folder, capsys):
    assert main(line.split()) == 1
    assert capsys.readouterr().err == f"beanlite: {folder} can't be opened: it is a directory\n"


@contextmanager
def closed():
    """A folder into which the user, who is another one than root, may not look."""
    user, home = os.getuid(), Path.cwd()
    with tempfile.TemporaryDirectory() as name:
        os.chdir(name)
        Path("q.jsonl").touch()
        Path("closed").mkdir(mode=0)
        Path("secret").touch(mode=0)
        if user == 0:
            Path(name).chmod(0o777)
            os.setresuid(NOBODY, NOBODY, user)
        try:
            yield
        finally:
            os.setresuid(user, user, user)
            Path("closed").chmod(0o700)
            os.chdir(home)


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("backup closed/new.db --db none.db", 3, "none.db can't be opened: No such file"),
        ("backup closed/new --keep 2 --db none.db", 2, "closed/new is not a folder"),
        ("import q.jsonl --db closed/new.db", 3, "closed/new.db can't be opened: Permission denied"),
        ("restore --undo --db closed/queue.db", 1, "closed can't be read: Permission denied"),
        ("verify secret", 1, "secret can't be opened: Permission denied"),
        ("salvage secret new.db", 1, "secret can't be opened: Permission denied"),
        ("restore secret --db new.db", 3, "secret can't be opened: Permission denied"),
        ("import secret --db new.db", 1, "secret can't be read: Permission denied"),
        ("import-binlog closed --db new.db", 1, "closed/lock can't be opened and locked: Permission denied"),
    ],
)
def test_missing_permission_is_told_in_one_line(line, code, said, capsys):
    with closed():
        assert main(line.split()) == code
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("import queue.db --db new.db", 1, "nothing was imported: line 1: it is not UTF-8, and so not JSON"),
        ("put --jobs queue.db --connect unix:none", 2, "queue.db, line 1: it is not UTF-8, and so not JSON"),
        ("import-binlog queue.db --db new.db", 1, "queue.db can't be read: Not a directory"),
        ("restore --undo --db none/queue.db", 1, "to bring back"),
    ],
)
def test_what_is_mistaken_for_another_is_one_line(line, code, said, folder, capsys):
    before = sorted(folder.iterdir())
    assert main(line.split()) == code
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize(
    "line",
    [
        "backup queue.db-journal --db queue.db",
        "backup queue.db-wal --db queue.db --force",
        "export queue.db-wal --db queue.db",
        "export queue.db-reserve --db queue.db --force",
        "salvage queue.db queue.db-shm",
        "restore queue.db --db queue.db-wal",
        "import q.jsonl --db queue.db-wal",
        "import-binlog log --db queue.db-wal",
        "serve --db queue.db-wal --port 0",
    ],
)
def test_no_file_is_made_that_a_database_would_take_for_its_own(line, folder, capsys):
    write(folder / "log", begin())
    before = sorted(folder.iterdir())
    assert main(line.split()) == 1
    assert re.match(
        rf"beanlite: {folder}/queue.db-\w+ (can't be made: it would be taken for a part of|was not replaced: it belongs"
        rf" to) the database {folder}/queue.db\n$",
        capsys.readouterr().err,
    )
    assert sorted(folder.iterdir()) == before
    assert main(["verify", "queue.db"]) == 0


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("backup '' --db queue.db", "DEST"),
        ("backup '' --db queue.db --force", "DEST"),
        ("backup new.db --db ''", "--db"),
        ("backup new.db --config ''", "--config"),
        ("export '' --db queue.db", "DEST"),
        ("import '' --db new.db", "FILE"),
        ("import q.jsonl --db ''", "--db"),
        ("import-binlog '' --db new.db", "DIR"),
        ("restore '' --db queue.db", "FILE"),
        ("restore queue.db --db ''", "--db"),
        ("verify ''", "FILE"),
        ("salvage '' new.db", "SOURCE"),
        ("salvage queue.db ''", "DEST"),
        ("compact --db ''", "--db"),
        ("jobs --db ''", "--db"),
        ("put --jobs '' --connect unix:none", "--jobs"),
        ("web --password-file '' --connect unix:none", "--password-file"),
        ("config --config '' --check", "--config"),
        ("config --db '' --check", "--db"),
        ("config --socket '' --check", "--socket"),
        ("config --backup-every 1h --backup-dir '' --check", "--backup-dir"),
        ("serve --config ''", "--config"),
        ("serve -l unix: -b queue.db", "--socket"),
    ],
)
def test_an_empty_path_is_not_the_current_folder(line, wrong, folder, capfd):
    """It is what a script's variable that is not set leaves behind."""
    before = sorted(folder.iterdir())
    assert main(shlex.split(line)) == 2
    out, err = capfd.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert re.match(
        f"beanlite: ({wrong}: .* = '' is not allowed|Invalid value for .*{wrong}.*: the path is empty)", err
    )
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize("name", [b"\xff.db", b"?mode=ro#%20.db", b"'a \n\".db", b"file:x", b"[a]*.db"])
def test_a_name_may_have_any_bytes(name, folder, monkeypatch, capsys):
    monkeypatch.setattr(cli, "_fall", lambda message, _: pytest.fail(message))
    odd, copy, lines = (os.fsdecode(prefix + name) for prefix in (b"", b"copy-", b"lines-"))
    make(folder / odd, batches=1)
    for line in (
        ["backup", copy, "--db", odd],
        ["verify", copy],
        ["restore", copy, "--db", odd],
        ["restore", "--undo", "--db", odd],
        ["compact", "--db", odd],
        ["jobs", "--db", odd],
        ["export", lines, "--db", odd],
        ["import", lines, "--db", odd, "--new-ids"],
        ["salvage", odd, f"saved-{odd}"],
    ):
        assert (main(line), capsys.readouterr().err) == (0, ""), line


@contextmanager
def read_only(folder, folder_mode):
    """Let nobody, and somebody other than root, write to the files in the folder."""
    user = os.geteuid()
    for each in folder.iterdir():
        each.chmod(each.stat().st_mode & 0o555 | 0o444)
    folder.chmod(folder_mode)
    if user == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(user)
        folder.chmod(0o755)


@pytest.mark.parametrize("folder_mode", [0o555, 0o777])
def test_a_stopped_database_is_read_by_who_may_not_write_to_it(folder_mode, capsys):
    """Nothing is left beside it, which its own user might not be able to write to."""
    with tempfile.TemporaryDirectory() as name:
        folder, free = Path(name) / "snapshot", Path(name) / "free"
        folder.mkdir()
        free.mkdir()
        Path(name).chmod(0o755)
        free.chmod(0o777)
        make(folder / "queue.db", batches=1)
        copy = str(folder / "queue.db")
        with read_only(folder, folder_mode):
            for line in (
                ["verify", copy],
                ["jobs", "--db", copy],
                ["export", str(free / "lines"), "--db", copy],
                ["backup", str(free / "backup.db"), "--db", copy],
                ["restore", copy, "--db", str(free / "queue.db")],
            ):
                assert (main(line), capsys.readouterr().err) == (0, ""), line
        assert [file.name for file in folder.iterdir()] == ["queue.db"]


@pytest.mark.parametrize(
    ("command", "instead"),
    [
        (["verify", "URL"], "pg_amcheck"),
        (["backup", "--db", "URL", "x"], "pg_dump"),
        (["restore", "--db", "URL", "x"], "pg_restore"),
        (["salvage", "URL", "x"], "promote a standby"),
        (["compact", "--db", "URL"], "VACUUM FULL"),
    ],
)
def test_commands_for_files_say_what_postgresql_has_instead(command, instead, capsys):
    url = "postgresql://queue:secret@db/queue"
    assert main([url if word == "URL" else word for word in command]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert f"beanlite {command[0]} is for database files; for a database in PostgreSQL: " in said
    assert instead in said
    assert "secret" not in said


@pytest.mark.parametrize("line", ["verify queue.db", "backup copy.db --db queue.db", "jobs --db queue.db", "serve"])
def test_a_working_directory_that_is_gone_is_one_line(line, tmp_path, monkeypatch, capfd):
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    monkeypatch.setattr(cli, "_fall", lambda message, _: pytest.fail(message))
    assert main(shlex.split(line)) == 1
    assert capfd.readouterr() == ("", "beanlite: the working directory is gone: No such file or directory\n")


@pytest.mark.parametrize("line", ["jobs --db loop", "web --db loop", "shard move mail --to one --servers loop/x"])
def test_a_loop_of_links_is_one_line(line, folder, monkeypatch, capfd):
    (folder / "loop").symlink_to("loop")
    monkeypatch.setattr(cli, "_fall", lambda message, _: pytest.fail(message))
    assert main(shlex.split(line)) in {1, 2, 3}
    out, err = capfd.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "Too many levels of symbolic links" in err
