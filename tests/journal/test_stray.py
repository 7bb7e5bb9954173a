"""A copy of the file, of whatever kind, that is put in the place of a killed server's file, beside that file's -wal."""

import asyncio
import errno
import os
import shutil
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from beanlite.errors import BeanliteError, JournalRefused
from beanlite.host.clock import Clock
from beanlite.journal.sqlite.file.database import open_database
from beanlite.journal.sqlite.file.fileformat import wal_size
from beanlite.journal.sqlite.file.mark import ATTRIBUTE
from beanlite.journal.sqlite.served.writer import Writer
from beanlite.journal.sqlite.tools import replace, restore as restore_module
from beanlite.journal.sqlite.tools.backup import backup
from beanlite.journal.sqlite.tools.restore import restore, undo_restore
from beanlite.journal.sqlite.tools.verify import verify
from tests.journal.test_restore import ids, kept_by, names
from tests.support.journal_files import NO_HISTORY, batch_in, make, refusal, snapshot, write_batch
from tests.support.needs import need_attributes
from tests.support.sqlite_tool import outsider

STRAY = "-wal belongs to another file than"


@pytest.fixture
def path(tmp_path):
    need_attributes(tmp_path)
    (tmp_path / "data").mkdir()
    return tmp_path / "data" / "queue.db"


def serve(path, batches, *, checkpoint_after=None, meanwhile=None):
    """Have a server write these batches, do this after one of them, and be killed."""

    async def served():
        database = open_database(path)
        writer = Writer(database, "127.0.0.1:11300", NO_HISTORY, Clock(), 0)
        assert writer.prepare()
        await writer.start()
        for batch in batches:
            writer.write_slice(100, partial(write_batch, database.connection, batch))
            if batch == checkpoint_after:
                await writer.checkpoint()
            if meanwhile is not None:
                meanwhile(batch)
        os._exit(0)

    process = os.fork()
    if not process:
        try:
            asyncio.run(served())
        finally:
            os._exit(1)
    assert os.waitpid(process, 0)[1] == 0


def written_over(copy, path):
    path.write_bytes(copy.read_bytes())  # as cp does


def moved_over(copy, path):
    shutil.copy(copy, copy.with_name("copy")).rename(path)  # as mv and rsync do


def moved_over_with_attributes(copy, path):
    shutil.copy2(copy, copy.with_name("copy"))
    copy.with_name("copy").rename(path)


PUTS = [written_over, moved_over, moved_over_with_attributes]


@pytest.fixture
def copy(path, tmp_path):
    """A plain copy of the stopped database, which has had three jobs."""
    make(path, batches=1)
    shutil.copy2(path, tmp_path / "b.db")
    return tmp_path / "b.db"


@pytest.mark.parametrize("put", PUTS)
@pytest.mark.parametrize(("batches", "checkpoint_after"), [(1, None), (30, 20)])
def test_an_older_copy_is_refused_beside_the_wal(path, copy, put, batches, checkpoint_after):
    serve(path, range(2, 2 + batches), checkpoint_after=checkpoint_after)
    put(copy, path)
    before = Path(f"{path}-wal").read_bytes()
    line = refusal(path)
    assert STRAY in line
    assert "move the -wal and the -shm away; what was acknowledged since then is in them" in line
    with pytest.raises(JournalRefused, match=STRAY):
        backup(path, path.with_name("backup.db"))
    assert [STRAY in finding.said for finding in verify(path) if not finding.sound] == [True]
    assert Path(f"{path}-wal").read_bytes() == before
    for end in ("-wal", "-shm"):
        Path(f"{path}{end}").unlink()
    assert ids(path) == ([1, 2, 3], 3)


def test_a_copy_of_another_queue_is_refused_beside_the_wal(path, tmp_path):
    serve(path, range(1, 10))
    serve(tmp_path / "other.db", range(1, 100), checkpoint_after=99)
    written_over(tmp_path / "other.db", path)
    assert STRAY in refusal(path)


def test_copy_of_the_file_while_served_is_refused_after_a_checkpoint(path, tmp_path):
    def meanwhile(batch):
        if batch == 5:
            shutil.copy(path, tmp_path / "b.db")

    serve(path, range(1, 30), checkpoint_after=20, meanwhile=meanwhile)
    written_over(tmp_path / "b.db", path)
    assert STRAY in refusal(path)


@pytest.mark.parametrize("checkpoint_after", [None, 20])
def test_files_own_wal_is_not_taken_for_anothers(path, tmp_path, checkpoint_after):
    for start in (1, 100, 200):  # each time after a kill
        serve(path, range(start, start + 30), checkpoint_after=checkpoint_after and start + checkpoint_after)
    shutil.copytree(path.parent, tmp_path / "copied")
    shutil.copytree(path.parent, tmp_path / "without attributes", copy_function=shutil.copyfile)
    shutil.copy(path, tmp_path / "same")
    (tmp_path / "same").rename(path)  # it has the same contents
    for folder in ("copied", "without attributes", "data"):
        assert batch_in(tmp_path / folder / "queue.db") == 229


def test_wal_begun_anew_by_another_program_is_not_taken_for_anothers(path):
    def meanwhile(batch):
        if batch == 25:
            with closing(sqlite3.connect(path, isolation_level=None)) as other:
                other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
                other.execute("CREATE TABLE theirs (a)")

    serve(path, range(1, 30), checkpoint_after=20, meanwhile=meanwhile)
    assert batch_in(path) == 29


def test_a_file_and_its_wal_may_both_be_put_over_others(path, tmp_path):
    """Of a killed server, each copied over the file of that name, which keeps its attributes."""
    serve(path, range(1, 10))
    shutil.copytree(path.parent, tmp_path / "kept")
    serve(path, range(10, 50), checkpoint_after=30)
    for end in ("", "-wal"):
        Path(f"{path}{end}").write_bytes((tmp_path / "kept" / f"queue.db{end}").read_bytes())
    Path(f"{path}-shm").unlink()
    assert batch_in(path) == 9


@pytest.fixture
def source(tmp_path):
    make(tmp_path / "source.db", batches=1)
    return tmp_path / "source.db"


@pytest.mark.parametrize("put", [*PUTS, "a backup"])
def test_restore_over_a_copy_puts_the_wal_into_no_file(path, copy, source, put):
    serve(path, range(2, 50), checkpoint_after=20)
    wal = Path(f"{path}-wal").read_bytes()
    if put == "a backup":
        backup(copy, copy.with_name("backup.db"))
        written_over(copy.with_name("backup.db"), path)
    else:
        put(copy, path)
    was = path.read_bytes()
    kept = kept_by(restore(source, path))
    assert kept.read_bytes() == was
    stray = kept.with_name(f"{kept.name}.stray-wal")
    assert stray.read_bytes() == wal
    assert names(path) == ["queue.db", "queue.db-reserve", kept.name, stray.name]
    assert ids(path) == ([1, 2, 3], 147)  # ids that the killed server gave out are not given out again
    undo_restore(path)
    assert ids(path) == ([1, 2, 3], 147)
    assert stray.read_bytes() == wal


def test_start_is_refused_after_a_restore_was_killed_amid_its_renames(path, copy, source, tmp_path, monkeypatch):
    serve(path, range(2, 50), checkpoint_after=20)
    wal = Path(f"{path}-wal").read_bytes()
    written_over(copy, path)
    restore_killed_in(restore_module, "take_place", source, path, monkeypatch)
    assert not Path(f"{path}-wal").exists()
    (stray,) = path.parent.glob("*.stray-wal")
    assert refusal(path).endswith(f"move {stray.name} to another folder, and keep it")
    stray.rename(tmp_path / "kept-wal")  # as it says
    assert ids(path)[0] == [1, 2, 3]
    (tmp_path / "kept-wal").rename(stray)
    kept = kept_by(restore(source, path))
    assert kept.with_name(f"{kept.name}.stray-wal").read_bytes() == wal
    assert ids(path) == ([1, 2, 3], 147)  # as if it had not been killed
    assert not [name for name in names(path) if "partial" in name]


def test_both_wals_are_kept_where_a_server_ran_after_a_killed_restore(path, copy, source, tmp_path, monkeypatch):
    serve(path, range(2, 50), checkpoint_after=20)
    written_over(copy, path)
    restore_killed_in(restore_module, "take_place", source, path, monkeypatch)
    (stray,) = path.parent.glob("*.stray-wal")
    stray.rename(tmp_path / "kept-wal")  # as the refusal says
    serve(path, range(2, 5))
    (tmp_path / "kept-wal").rename(stray)
    before = snapshot(path.parent)
    with pytest.raises(JournalRefused, match=f"move {stray.name} to another folder, keep it, and restore again"):
        restore(source, path)
    assert snapshot(path.parent) == before
    stray.rename(tmp_path / "kept-wal")
    assert ids(kept_by(restore(source, path)))[0] == list(range(1, 13))


def restore_killed_in(module, step, source, path, monkeypatch):
    """Have a restore in another process be killed instead of this step."""
    child = os.fork()
    if not child:
        try:
            monkeypatch.setattr(module, step, lambda *_: os._exit(9))
            restore(source, path)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


@pytest.fixture
def interrupted(path, copy, source, monkeypatch):
    """The path after a restore over a copy that a power failure has ended amid its renames; nothing is noted then."""
    serve(path, range(2, 50), checkpoint_after=20)
    written_over(copy, path)
    restore_killed_in(restore_module, "take_place", source, path, monkeypatch)
    (stray,) = path.parent.glob("*.stray-wal")
    os.removexattr(stray, ATTRIBUTE)
    return path


@pytest.mark.parametrize(
    ("module", "step"),
    [
        (restore_module, "copy_checked"),
        (restore_module, "_set_aside"),
        (restore_module, "_leave_out_ids"),
        (restore_module, "take_place"),
        (replace, "_move_wal"),
    ],
)
@pytest.mark.parametrize("is_killed", [False, True])
def test_start_is_refused_after_a_second_restore_that_ended(interrupted, source, module, step, is_killed, monkeypatch):
    (stray,) = interrupted.parent.glob("*.stray-wal")
    wal = stray.read_bytes()
    if is_killed:
        restore_killed_in(module, step, source, interrupted, monkeypatch)
    else:
        with monkeypatch.context() as patch:
            patch.setattr(module, step, failing)
            with pytest.raises(BeanliteError, match="Input/output error"):
                restore(source, interrupted)
        assert stray.exists()
    assert "a restore of" in refusal(interrupted)
    assert wal_size(interrupted) == 0
    kept = kept_by(restore(source, interrupted))
    left = kept.with_name(f"{kept.name}.stray-wal")
    assert left.read_bytes() == wal
    assert [name for name in names(interrupted) if "partial" not in name] == [
        "queue.db",
        "queue.db-reserve",
        kept.name,
        left.name,
    ]
    assert ids(interrupted) == ([1, 2, 3], 147)


def failing(*_):
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_failed_restore_over_a_copy_changes_nothing(path, copy, source, monkeypatch):
    serve(path, range(2, 50))
    written_over(copy, path)
    before = {file.name: file.read_bytes() for file in path.parent.iterdir() if not file.name.endswith("-shm")}

    monkeypatch.setattr(replace, "_move_wal", failing)
    with pytest.raises(BeanliteError, match="was not replaced: Input/output error"):
        restore(source, path)
    assert {file.name: file.read_bytes() for file in path.parent.iterdir()} == before


def test_restore_over_a_copy_is_refused_while_others_have_it_open(path, copy, source):
    serve(path, range(2, 50))
    written_over(copy, path)
    with outsider(path) as do:
        do("SELECT 1 FROM sqlite_schema LIMIT 0;")
        with pytest.raises(JournalRefused, match=r"another program has .* open"):
            restore(source, path)


def test_interrupt_amid_the_rename_of_a_stray_wal_undoes_it(interrupted, source, monkeypatch):
    """A signal that comes during the call is heard right after it."""
    (stray,) = interrupted.parent.glob("*.stray-wal")
    rename = Path.rename

    def renamed(file, name):
        rename(file, name)
        if file == stray:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", renamed)
        with pytest.raises(KeyboardInterrupt):
            restore(source, interrupted)
    assert stray.exists()
    assert "a restore of" in refusal(interrupted)
