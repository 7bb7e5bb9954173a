"""``beanlite restore`` and ``beanlite compact``: what they print, and how they end."""

import json
import os
from pathlib import Path

import pytest

from beanlite.cli import main
from beanlite.console import listing
from beanlite.console.file import File
from beanlite.console.filters import filter_by
from tests.support.journal_files import make, writer
from tests.support.streams import DONE_UNPRINTED, onto_full_disk, without_reader


@pytest.fixture(autouse=True)
def queue(
    clean_environment,  # noqa: ARG001 - it comes first
    tmp_path,
    monkeypatch,
):
    """A database of twelve jobs, the one of the settings; copy.db beside it has three."""
    path = tmp_path / "queue.db"
    make(path, batches=4)
    make(tmp_path / "copy.db", batches=1)
    monkeypatch.setenv("BEANLITE_DB", str(path))
    return path


def test_restore_and_undo(queue, capsys):
    assert main(["restore", "copy.db"]) == 0
    restored, kept = capsys.readouterr().out.splitlines()
    assert restored.startswith(f"{queue}: 3 jobs, as in {Path('copy.db').resolve()}, ")
    kept, said = kept.split(": ")
    assert said == "the database that was replaced"
    assert main(["restore", "--undo", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["file"], result["restored"], result["jobs"]) == (str(queue), kept, 12)
    assert Path(result["kept"]).exists()


def count_jobs(path):
    with File(path) as file:
        return len(listing.jobs(file, filter_by(), "id", 0, None).records)


def test_restore_to_another_place(capsys):
    assert main(["restore", "copy.db", "--db", "new.db"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"{Path('new.db').absolute()}: 3 jobs, as in ")
    assert said.endswith(" s; there was none before\n")
    assert Path("new.db").exists()


@pytest.mark.parametrize("command", ["compact", "backup new.db", "export", "history", "undelete 1"])
def test_database_that_is_not_there_is_told_by_its_path(command, queue, monkeypatch, capsys):
    def said(code, *words):
        assert main([*command.split(), *words]) == code
        return capsys.readouterr().err

    monkeypatch.setenv("BEANLITE_DB", "lost.db")
    assert said(3) == f"beanlite: there is no {queue.with_name('lost.db')}, which the settings name\n"
    assert "there is no" not in said(3, "--db", "lost.db")
    monkeypatch.delenv("BEANLITE_DB")
    advice = "name the server's database by --db, or its settings by --config"
    assert said(3) == f"beanlite: there is no {queue.with_name('beanlite.db')}: {advice}\n"
    with monkeypatch.context() as patch:
        patch.setattr(os, "lstat", denied)
        assert "there is no" not in said(3)


def denied(_path):
    raise PermissionError(13, "Permission denied")


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("restore", 2, "name either a FILE or --undo"),
        ("restore copy.db --undo", 2, "name either a FILE or --undo"),
        ("restore --undo", 1, "queue.db.replaced-… to bring back"),
        ("restore none.db", 3, "none.db can't be opened"),
        ("restore queue.db", 1, "can't be restored to itself"),
        ("compact --db none.db", 3, "none.db can't be opened"),
        ("compact extra", 2, "unexpected extra argument"),
    ],
)
def test_what_can_not_be_done_is_one_line(line, code, said, capsys):
    assert main(line.split()) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert err.count("\n") == 1


def test_compact(queue, capsys):
    size = queue.stat().st_size
    assert main(["compact"]) == 0
    assert capsys.readouterr().out.startswith(f"{queue}: 12 jobs, {size:,} bytes before, ")
    size = queue.stat().st_size
    assert main(["compact", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert 0 < result.pop("seconds") < 20
    assert result == {"file": str(queue), "jobs": 12, "before": size, "after": queue.stat().st_size}


@pytest.mark.parametrize(("run", "said"), [(onto_full_disk, DONE_UNPRINTED), (without_reader, "")])
def test_what_is_done_but_can_not_be_printed_is_done(run, said, queue):
    assert run("restore", "copy.db") == (0, said)
    assert count_jobs(queue) == 3
    assert run("restore", "--undo", "--json") == (0, said)
    assert count_jobs(queue) == 12
    assert run("compact") == (0, said)
    assert run("compact", "--json") == (0, said)
    assert count_jobs(queue) == 12


@pytest.mark.parametrize("line", ["compact --db live.db", "restore copy.db --db live.db"])
def test_a_served_database_is_left_alone(line, capsys):
    with writer(Path("live.db").absolute(), "idle"):
        assert main(line.split()) == 3
    assert "a server or another command holds" in capsys.readouterr().err


def test_restore_over_an_empty_file_keeps_its_owner_and_mode():
    """As over any other file: the server's user may have made it, and root restores."""
    file = Path("new.db")
    file.touch()
    file.chmod(0o640)
    owner = (4711, 4712) if os.getuid() == 0 else (os.getuid(), os.getgid())
    os.chown(file, *owner)
    assert main(["restore", "copy.db", "--db", "new.db"]) == 0
    facts = file.stat()
    assert ((facts.st_uid, facts.st_gid), facts.st_mode & 0o777, facts.st_size > 0) == (owner, 0o640, True)
