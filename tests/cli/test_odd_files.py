"""Whatever a command is given in the place of a database: one line at once, and nothing is changed."""

import os
import socket
import stat

import pytest

from beanlite.cli import main
from tests.support.journal_files import make

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


@pytest.mark.parametrize("line", ["verify .", "salvage . new.db"])
def test_a_directory_is_one_line(line, folder, capsys):
    assert main(line.split()) == 1
    assert capsys.readouterr().err == f"beanlite: {folder} can't be opened: it is a directory\n"
