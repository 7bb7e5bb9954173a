"""``beanlite verify``: a line for each check, and an exit code."""

import json

import pytest

from beanlite.cli import main
from tests.support.journal_files import LARGE, flip, make

pytestmark = pytest.mark.usefixtures("clean_environment")


@pytest.fixture
def queue(tmp_path):
    path = tmp_path / "queue.db"
    make(path, batches=3)
    return path


def test_a_sound_one(queue, capsys):
    assert main(["verify", str(queue)]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[-1] == "bodies  ok      9 checksums are right"
    assert err == ""


def test_for_scripts(queue, capsys):
    assert main(["verify", str(queue), "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[-1] == {
        "check": "bodies",
        "sound": True,
        "said": "9 checksums are right",
        "ours": True,
    }


def test_a_damaged_one(queue, capsys):
    flip(queue, queue.read_bytes().index(LARGE[:100]))
    assert main(["verify", str(queue)]) == 3
    out, err = capsys.readouterr()
    assert "bodies  DAMAGED " in out
    assert err == f"beanlite: {queue} is not sound: bodies\n"


@pytest.mark.parametrize(("content", "said"), [(b"", "is empty"), (b"text", "is not an SQLite file")])
def test_one_that_is_not_ours_is_not_called_damaged(content, said, tmp_path, capsys):
    file = tmp_path / "other"
    file.write_bytes(content)
    assert main(["verify", str(file)]) == 3
    out, err = capsys.readouterr()
    assert out.startswith(f"file    REFUSED {file} {said}; ")
    assert err == f"beanlite: {file} can't be checked\n"


def test_one_that_is_not_there(capsys):
    assert main(["verify", "none.db"]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_without_a_file(capsys):
    assert main(["verify"]) == 2
    assert capsys.readouterr().err == "beanlite: name either a FILE or a --database\n"
